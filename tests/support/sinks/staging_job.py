"""A job that writes batches into staging files and knows what a checkpoint would hold; see ``life_cycle`` for parts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from partfile.errors import LeaseUnavailable
from partfile.stores.base import PartHandle
from partfile.testing.store import new_staging_file, read_staging_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from partfile.stores.base import PartStream, Store
    from partfile.testing.faults import Interceptor


BATCHES = [f"rows of batch {number};".encode() for number in range(20)]


class StagingJob:
    """Writes batches into a staging file, and into another one where no task may go on with it.

    Args:
        open_store: Opens the store, with its requests led through an interceptor if there is one.
        resumes: Whether each batch is another attempt's, as in Spark.
        notes: A file that keeps what the checkpoint holds, for a job that is killed; it may be there.
    """

    def __init__(
        self, open_store: Callable[[Interceptor | None], Store], *, resumes: bool, notes: Path | None = None
    ) -> None:
        self._open_store = open_store
        self._resumes = resumes
        self._notes = notes
        self.done = 0
        self.ended: list[PartHandle] = []
        self.open: PartHandle | None = None
        if notes is not None and notes.exists():
            self._recall(notes)

    @property
    def staging_files(self) -> list[PartHandle]:
        """Every staging file that counts."""
        return [*self.ended, *([self.open] if self.open else [])]

    def run(self, interceptor: Interceptor | None = None) -> None:
        """Go on from what the last checkpoint holds, to the end."""
        stream: PartStream | None = None
        with self._open_store(interceptor) as store:
            while self.done < len(BATCHES):
                stream = stream or self._writer(store)
                stream.write(BATCHES[self.done])
                handle = stream.persist()
                stream.verify()
                self.open, self.done = handle, self.done + 1
                self._note()
                if self._resumes:
                    stream.close()
                    stream = None
            if stream is not None:
                stream.close()

    def check(self) -> None:
        """What a checkpoint vouches for is read, byte for byte."""
        with self._open_store(None) as store:
            assert b"".join(read_staging_file(store, staging_file) for staging_file in self.staging_files) == b"".join(
                BATCHES[: self.done]
            )

    def _writer(self, store: Store) -> PartStream:
        if self.open is not None:
            try:
                return store.resume(self.open)
            except LeaseUnavailable:
                # A process that died has claimed it: it ends here.
                self.ended.append(self.open)
        return store.create(new_staging_file())

    def _note(self) -> None:
        if self._notes is not None:
            state = {
                "done": self.done,
                "open": _json(self.open),
                "ended": [_json(staging_file) for staging_file in self.ended],
            }
            fresh = self._notes.with_suffix(".fresh")
            fresh.write_text(json.dumps(state))
            fresh.rename(self._notes)

    def _recall(self, notes: Path) -> None:
        state = json.loads(notes.read_text())
        self.done = state["done"]
        self.open = PartHandle.model_validate_json(state["open"])
        self.ended = [PartHandle.model_validate_json(staging_file) for staging_file in state["ended"]]


def _json(handle: PartHandle | None) -> str:
    assert handle is not None
    return handle.model_dump_json()
