"""Two thousand buckets in each batch against 24 of the same rows: speed, and the memory of the largest worker."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

import partfile as pf
from figures import Report, shown
from generator import FILES_PER_BATCH, ROWS_PER_FILE, dataset
from goals import GOALS
from places import LocalPlace
from processes import WorkerMemory
from rounds import interleaved
from runs import Run, ratios
from streams import NOT_STAGED, can_stage, columnar, read_files, run_native, run_partfile, spark_session

if TYPE_CHECKING:
    from pathlib import Path

    from figures import Figure
    from generator import Dataset
    from rounds import Rounds
    from scale import Scale

BATCHES = 10
NATIVE_BATCHES = 3
"""Of Spark's own sink, which writes a file a bucket and batch: its rows/s do not depend on how many there are."""
FILES_A_DAY = 40
FEW, MANY = 24, 2_000
WARM_UP_BATCHES = 1
JSON, STAGED, NATIVE = "partfile json", "partfile parquet staged", "native json"


def run(data: Path, work: Path, scale: Scale) -> Report:
    """Each case has a Spark context of its own, so that its workers are fresh; the JVM stays, and stays warm."""
    source = dataset(data, "shuffled", scale.of(BATCHES) * FILES_PER_BATCH, FILES_A_DAY)
    cases = cases_of(work, source)
    cases[f"{FEW} {JSON}"]()
    done = interleaved(cases, scale.rounds, spare=scale.spare_rounds, say=print)
    # What P10 speaks of is the form that columnar files are meant to have; row by row it is shown.
    goal, other = (STAGED, JSON) if can_stage() else (JSON, None)
    report = Report(runs=done.runs, missing={} if can_stage() else {"P10 with Parquet": NOT_STAGED})
    report.figures = goals_of(done, goal)
    for name in filter(None, (other, NATIVE)):
        speed, left = _speed(done, name), done.kept[-1][f"{MANY} {name}"].files
        report.figures.append(shown(f"{MANY} buckets, {name}, rows/s / {FEW} buckets", speed, f"{left} files"))
    against = ratios(done.kept, f"{MANY} {JSON}", f"{MANY} {NATIVE}", lambda run: run.rows_per_s)
    report.figures.append(shown(f"{MANY} buckets, {JSON}, rows/s / {NATIVE}", against))
    return report


def goals_of(done: Rounds, name: str) -> list[Figure]:
    """Both figures of P10 for one form of our files."""
    many, few = (done.kept[-1][f"{count} {name}"] for count in (MANY, FEW))
    speeds = f"{name}: {many.rows_per_s / 1000:.0f} k and {few.rows_per_s / 1000:.0f} k rows/s"
    speeds += f"; {many.seconds - sum(many.batch_ms) / 1000:.1f} of {many.seconds:.1f} s outside of batches"
    memory = ratios(done.kept, f"{MANY} {name}", f"{FEW} {name}", lambda run: run.peak_worker_bytes)
    peaks = f"{name}: {many.peak_worker_bytes >> 20} and {few.peak_worker_bytes >> 20} MiB"
    return [GOALS["P10 speed"].figure(_speed(done, name), speeds), GOALS["P10 memory"].figure(memory, peaks)]


def cases_of(work: Path, source: Dataset) -> dict[str, Callable[[], Run]]:
    """Each sink with few and with many buckets; which bucket a row has is a hash of its address, alike for all."""
    place, found = LocalPlace(work), dict[str, Callable[[], Run]]()

    def measure(name: str, buckets: int) -> Run:
        case = f"{buckets} {name}"
        with spark_session(work) as spark:
            bucket = F.pmod(F.hash("url"), F.lit(buckets))
            files = min(source.files, NATIVE_BATCHES * FILES_PER_BATCH) if name == NATIVE else source.files
            stream = read_files(spark, source.path, FILES_PER_BATCH, files)
            # The workers are looked at before their context ends, and they with it.
            with WorkerMemory() as memory:
                if name == NATIVE:
                    run = run_native(case, stream, place, "json", bucket)
                else:
                    options = {"format": "parquet", **columnar("staged")} if name == STAGED else {}
                    named, hive = stream.withColumn("bucket", bucket), pf.HiveBucketer("bucket")
                    run = run_partfile(case, named, place, bucketer=hive, **options)
        run.peak_worker_bytes = memory.peak_bytes
        run.rows = files * ROWS_PER_FILE
        return run

    for name in (JSON, NATIVE, *([STAGED] if can_stage() else [])):
        for buckets in (FEW, MANY):
            found[f"{buckets} {name}"] = partial(measure, name, buckets)
    return found


def _speed(done: Rounds, name: str) -> list[float]:
    return ratios(done.kept, f"{MANY} {name}", f"{FEW} {name}", lambda run: run.rows_per_s)
