"""Records that are no rows, in files of their own, exactly once beside the rows of their job.

Two sinks have two logs. At each checkpoint of a job its dead letters come first, with the places of those that are
ahead of the rows' newest checkpoint. After a crash between the two, the source reads these records again, and passes
over exactly them. A process opens the dead letters before the rows. So a process whose rows are taken over has lost its
dead letters before, and writes none twice.
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


_MOST_AHEAD = 20_000
"""So many places are at most some 300 KB of a position, which may have 1 MiB."""


class DeadLetters:
    """The sink of a job's records that are no rows.

    Args:
        sink: Where they go; its uid is not that of the rows.
        rows_uid: The uid of the rows.
    """

    def __init__(self, sink: FileSink, rows_uid: str) -> None:
        self._uid = sink.settings.uid
        self._rows_uid = rows_uid
        self._out = sink.local()
        self._ahead: dict[str, set[int]] = {}
        """By partition, the offsets of records that are written, and that are ahead of the rows' newest checkpoint."""
        self._read: dict[str, set[int]] = {}
        """Those of them that have been read since that checkpoint: the next one covers them."""
        self._is_open = False
        """Whether records wait, or parts that are to be published when they have rolled."""
        self._waiting = 0

    def open(self) -> None:
        """Take the sink over.

        Raises:
            CheckpointMismatch: They are the dead letters of other rows; or as of ``LocalSink.open``.
        """
        self._out.open()
        position = self._out.position
        if position is None:
            return
        if not isinstance(position, dict) or position.get("rows") != self._rows_uid:
            whose = repr(position.get("rows")) if isinstance(position, dict) else "another program"
            raise CheckpointMismatch(
                f"the dead letters with uid {self._uid!r} are those of {whose}, and not of {self._rows_uid!r}",
                hint="Give them another uid: dead_letters=pf.FileSink(PATH, uid=ANOTHER)",
            )
        self._ahead = _places_in(position.get("ahead"))
        # What the last run has kept open is to be published in its time, though no further record comes.
        self._is_open = True

    @property
    def is_new(self) -> bool:
        """Whether there is no checkpoint of them yet."""
        return self._out.position is None

    @property
    def is_full(self) -> bool:
        """Whether a checkpoint has to come before more are written."""
        return sum(map(len, self._ahead.values())) >= _MOST_AHEAD

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

    def finish(self) -> int:
        """Publish all of them, and end; returns how many are new.

        Raises:
            Fenced, OutcomeUnknown, NotReady: As of ``LocalSink.finish``.
        """
        self._out.finish(self._position() if self._is_open else None)
        return self._written()

    def close(self) -> None:
        """Let go of the sink; what has no checkpoint does not count."""
        self._out.close()

    def _written(self) -> int:
        written, self._waiting = self._waiting, 0
        return written

    def _position(self) -> JsonValue:
        return {
            "rows": self._rows_uid,
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
