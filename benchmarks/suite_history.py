"""Ten thousand checkpoints of one sink without Spark: does the last one cost what the hundredth did?

What is measured is the sink's own work, a write of 24 open parts, their fsync, the checkpoint and the publishing: no
engine's work hides it. The suite ``long`` does the same within Spark, for fewer batches.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import pyarrow as pa

import partfile as pf
from figures import Report
from goals import GOALS
from processes import Meter
from runs import Run, with_outcome

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scale import Scale

BUCKETS = 24
ROWS_PER_BUCKET = 10
EARLY, LATE = 100, 10_000
WINDOW = 50
"""Checkpoints to each side of the two places over which the median is taken."""
MAX_PART_BYTES = 64 << 10
"""So small that each part is rolled every few dozen checkpoints: history grows, as in a stream of weeks."""
LOOK_EVERY = 10
"""Checkpoints from one look at the metadata to the next."""
SHORTEST = 3 * EARLY


def run(data: Path, work: Path, scale: Scale) -> Report:
    """Write and checkpoint without a pause; whatever the number of rounds, for a history is lived once."""
    del data
    late = scale.of(LATE, least=SHORTEST)
    base = work / "history"
    sink = pf.FileSink(
        base,
        uid="history",
        bucketer=pf.HiveBucketer("bucket"),
        rolling=pf.RollingPolicy(max_part_bytes=MAX_PART_BYTES, rollover_interval_s=1e6, inactivity_interval_s=1e6),
    )
    took_ms, metadata, meter, windows = list[float](), dict[int, int](), Meter(), list[float]()
    with meter, sink.local() as out:
        window = Meter()
        for number in range(1, late + WINDOW + 1):
            if number + WINDOW in (EARLY, late):
                window.start()
            began_s = time.perf_counter()
            out.write(rows_of(number))
            checkpoint = out.checkpoint()
            took_ms.append((time.perf_counter() - began_s) * 1000)
            if number % LOOK_EVERY == 0:
                path = base / "_partfile" / "history" / f"chk-{checkpoint.checkpoint_id}" / "_metadata"
                metadata[number] = path.stat().st_size
            if number - WINDOW in (EARLY, late):
                window.stop()
                windows.append(window.foreign_cores)
            if number % 1000 == 0:
                print(f"  checkpoint {number}: {took_ms[-1]:.1f} ms, {metadata[number]} bytes", flush=True)
    sizes = [path.stat().st_size for path in base.glob("bucket=*/part-*")]
    record = with_outcome(Run("history", rows=late * BUCKETS * ROWS_PER_BUCKET, batch_ms=took_ms), meter, sizes)
    return report_of(record, metadata, windows, late)


def rows_of(number: int) -> pa.RecordBatch:
    """Some rows for each bucket."""
    count = BUCKETS * ROWS_PER_BUCKET
    values = range(number * count, (number + 1) * count)
    return pa.RecordBatch.from_pydict(
        {
            "bucket": [value % BUCKETS for value in values],
            "user": list(values),
            "payload": [f"payload of event {value:012} " * 2 for value in values],
        }
    )


def report_of(record: Run, metadata: dict[int, int], others_cores: Sequence[float], late: int) -> Report:
    """Compare the two places.

    Args:
        record: The whole history.
        metadata: Bytes of a checkpoint's metadata by the number of the checkpoint.
        others_cores: Others' load around the two places.
        late: The second place.
    """
    early_ms, late_ms = (_around(record.batch_ms, place) for place in (EARLY, late))
    early_bytes, late_bytes = (
        statistics.median(size for number, size in metadata.items() if abs(number - place) <= WINDOW)
        for place in (EARLY, late)
    )
    loads = " and ".join(f"{cores:.2f}" for cores in others_cores)
    times = f"{early_ms:.1f} ms and {late_ms:.1f} ms at checkpoint {late}, {record.files} files; load {loads} cores"
    figures = [
        GOALS["P5 time"].figure([late_ms / early_ms], times),
        GOALS["P5 metadata"].figure([late_bytes / early_bytes], f"{early_bytes:.0f} and {late_bytes:.0f} bytes"),
    ]
    return Report(figures, [record], {"metadata_bytes": metadata})


def _around(took_ms: Sequence[float], place: int) -> float:
    return statistics.median(took_ms[place - 1 - WINDOW : place - 1 + WINDOW])
