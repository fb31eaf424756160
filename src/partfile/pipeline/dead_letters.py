"""Records that are no rows, in files of their own, exactly once beside the rows of their job.

Two sinks have two logs. At each checkpoint of a job its dead letters come first, with the places of those that are
ahead of the rows' newest checkpoint. After a crash between the two, the source reads these records again, and passes
over exactly them. A process opens the dead letters before the rows. From then on no other process writes any, and the
rows that it goes on from are not older than what it has read of them.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, cast

from partfile.errors import CheckpointMismatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pydantic import JsonValue

    from partfile.sink.file_sink import FileSink
    from partfile.sink.local import LocalSink


_MOST_AHEAD = 10_000
"""A read adds as many at most, and a place has up to 26 bytes in a position, which may have 1 MiB."""


class DeadLetters:
    """The sink of a job's records that are no rows.

    Args:
        sink: Where they go; its uid is not that of the rows.
        rows_uid: The uid of the rows.
    """

    def __init__(self, sink: FileSink, rows_uid: str) -> None:
        self._uid = sink.settings.uid
        self._rows_uid = rows_uid
        self._history = ""
        self._out = sink.local()
        self._ahead: dict[str, set[int]] = {}
        """By partition, the offsets of records that are written, and that are ahead of the rows' newest checkpoint."""
        self._read: dict[str, set[int]] = {}
        """Those of them that have been read since that checkpoint: the next one covers them."""
        self._is_open = False
        """Whether records wait, or parts that are to be published when they have rolled."""
        self._waiting = 0

    def open(self) -> None:
        """Take the sink over; raises as ``LocalSink.open``."""
        self._out.open()

    def begin_beside(self, rows: LocalSink) -> None:
        """Go on beside the rows, whose sink was opened after this one.

        Raises:
            CheckpointMismatch: They are not the rows that these are the dead letters of.
        """
        self._history = rows.history
        position = self._out.position
        if position is None:
            return
        known = position if isinstance(position, dict) else {}
        problem = None
        if known.get("rows") != self._rows_uid:
            problem = f"belong to {known.get('rows')!r}, and not to {self._rows_uid!r}"
        elif rows.position is None:
            problem = f"are there, and the rows with uid {self._rows_uid!r} are not"
        elif known.get("history") != self._history:
            problem = f"do not go back, and the rows with uid {self._rows_uid!r} have gone back to a savepoint since"
        if problem is not None:
            raise CheckpointMismatch(
                f"the dead letters with uid {self._uid!r} {problem}",
                hint="Begin new ones: dead_letters=pf.FileSink(ANOTHER_PATH, uid=ANOTHER)",
            )
        self._ahead = _places_in(known.get("ahead"))
        # What the last run has kept open is to be published in its time, though no further record comes.
        self._is_open = True

    @property
    def is_full(self) -> bool:
        """Whether a checkpoint has to come before more are written; it covers those that have been read."""
        return sum(map(len, self._read.values())) >= _MOST_AHEAD

    @property
    def is_ahead(self) -> bool:
        """Whether records may come that are written already."""
        return any(self._ahead.values())

    def forget_before(self, partition: str, offset: int) -> None:
        """Take note that no record of a partition before an offset comes again."""
        self._ahead[partition] = {one for one in self._ahead.get(partition, ()) if one >= offset}

    def pass_over(self, partition: str, offset: int) -> bool:
        """Whether a record that is read was written before a crash; it is to be left out then."""
        if offset not in self._ahead.get(partition, ()):
            return False
        self._read.setdefault(partition, set()).add(offset)
        return True

    def write(self, records: pa.RecordBatch, places: Iterable[tuple[str, int]]) -> None:
        """Add records, with partition and offset of each; raises as ``LocalSink.write``."""
        self._out.write(records)
        self._waiting += records.num_rows
        for partition, offset in places:
            self._ahead.setdefault(partition, set()).add(offset)
            self._read.setdefault(partition, set()).add(offset)
        self._is_open = True

    def checkpoint(self) -> int:
        """Make them durable, before the rows of a checkpoint are; returns how many.

        Raises:
            Fenced, OutcomeUnknown: As of ``LocalSink.checkpoint``.
        """
        if self._is_open:
            done = self._out.checkpoint(self._position())
            self._is_open = bool(done.parts_in_progress or done.parts_pending or done.staging_files_waiting)
        return self._written()

    def confirm(self) -> None:
        """Take note that the rows' checkpoint is complete: no record that was read before it comes again."""
        for partition, offsets in self._read.items():
            self._ahead[partition] -= offsets
        self._read = {}

    def finish(self) -> None:
        """Publish all of them, and end.

        Raises:
            Fenced, OutcomeUnknown, NotReady: As of ``LocalSink.finish``.
        """
        self._out.finish(self._position() if self._is_open else None)

    def close(self) -> None:
        """Let go of the sink; what has no checkpoint does not count."""
        self._out.close()

    def _written(self) -> int:
        written, self._waiting = self._waiting, 0
        return written

    def _position(self) -> JsonValue:
        return {
            "rows": self._rows_uid,
            "history": self._history,
            "ahead": {partition: [*_runs(offsets)] for partition, offsets in sorted(self._ahead.items()) if offsets},
        }


def _runs(offsets: set[int]) -> Iterator[JsonValue]:
    """First offset and number of those that follow each other."""
    for _, run in groupby(enumerate(sorted(offsets)), key=lambda one: one[1] - one[0]):
        found = [offset for _, offset in run]
        yield [found[0], len(found)]


def _places_in(ahead: JsonValue) -> dict[str, set[int]]:
    runs = cast("dict[str, list[list[int]]]", ahead)
    return {
        partition: {offset for first, count in found for offset in range(first, first + count)}
        for partition, found in runs.items()
    }
