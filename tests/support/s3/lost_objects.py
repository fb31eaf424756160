"""Staging files of several objects on S3 whose sink has died, and starts whose encoder is elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from partfile.sink.coordinator import Runtime
from partfile.sink.encode import LocalEncoder
from partfile.stores.s3.handle import S3Staging, side_path
from support.sinks.life_cycle import LONG
from support.sinks.recovery import giving_all_up
from support.sinks.staged_streams import STAGED

if TYPE_CHECKING:
    import random

    from partfile.sink.coordinator import CommitReport
    from support.crash.worlds import Process


OBJECTS = 3
ROWS = 5
"""In each object."""
_ROLLING = LONG.model_copy(update={"max_part_bytes": 1 << 30})


class Elsewhere(LocalEncoder):
    """What encodes in workers, which need not see what the coordinator sees."""

    @property
    def is_elsewhere(self) -> bool:
        """Yes."""
        return True


def leave_a_staging_file(process: Process, draw: random.Random, row_bytes: int) -> list[str]:
    """A staging file of an object a checkpoint, whose sink has died; the paths of its objects, in their order."""
    out = process.sink(**STAGED, rolling=_ROLLING).local().open()
    for _ in range(OBJECTS):
        rows = [draw.randbytes(row_bytes) for _ in range(ROWS)]
        out.write(pa.RecordBatch.from_pydict({"bucket": ["b"] * ROWS, "row": rows}))
        out.checkpoint()
    staging = S3Staging.of(out._runtime.coordinator.state.open[0][0].part)
    out.close()
    assert staging is not None
    assert len(staging.sides) == OBJECTS
    return [side_path(side.name) for side in staging.sides]


def start(process: Process, worker: Process, *, gives_up: bool = False) -> CommitReport:
    """A start of the sink, whose staging files are encoded by a worker with a view of its own."""
    settings = process.sink(**STAGED, rolling=_ROLLING).settings
    with worker.open_store(worker.base, {}) as store:
        runtime = Runtime(settings, "life", encoder=lambda _storage, _here: Elsewhere(store, 1))
        try:
            terms = giving_all_up(runtime) if gives_up else None
            return runtime.coordinator.start(lambda _position: None, 10**12, terms)
        finally:
            runtime.close()
