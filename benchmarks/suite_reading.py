"""What readers get from few large files: DuckDB over partfile's output and over that of Spark's Parquet sink."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import duckdb

from figures import Report, shown
from generator import FILES_PER_BATCH, ROWS_PER_FILE, dataset
from goals import GOALS
from places import LocalPlace
from processes import Meter
from rounds import interleaved
from runs import Run, ratios
from streams import NOT_STAGED, can_stage, columnar, read_files, run_native, run_partfile, spark_session

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from generator import Dataset
    from scale import Scale

BATCHES = 20
REPEATS = 5
"""Queries of one round; the quickest counts, for what disturbs a query only ever makes it slower."""
THREADS = 2
NATIVE, STAGED, PER_CHECKPOINT = "native parquet", "partfile parquet staged", "partfile parquet per checkpoint"


def run(data: Path, work: Path, scale: Scale) -> Report:
    """Write each output once, end Spark, then query them in turns, all in the page cache."""
    source = dataset(data, "shuffled", scale.of(BATCHES) * FILES_PER_BATCH, BATCHES * FILES_PER_BATCH)
    place, report = LocalPlace(work), Report(missing={} if can_stage() else {"P9": NOT_STAGED})
    written = write_outputs(work, place, source)
    cases = {name: _queries(work, name, source) for name in written}
    for case in cases.values():
        case()
    done = interleaved(cases, scale.rounds, spare=scale.spare_rounds, say=print)
    report.runs = [*written.values(), *done.runs]
    for name in cases:
        if name != NATIVE:
            speed = ratios(done.kept, name, NATIVE, lambda run: 1 / run.batch_ms[0])
            note = " and ".join(f"{done.kept[-1][each].batch_ms[0]:.0f} ms" for each in (name, NATIVE))
            note += f"; {written[name].files} and {written[NATIVE].files} files"
            made = GOALS["P9"].figure(speed, note) if name == STAGED else shown(f"DuckDB, {name} / native", speed, note)
            report.figures.append(made)
    return report


def write_outputs(work: Path, place: LocalPlace, source: Dataset) -> dict[str, Run]:
    """The files of each sink over the same rows."""
    found = {}
    with spark_session(work) as spark:
        found[NATIVE] = run_native(NATIVE, read_files(spark, source.path, FILES_PER_BATCH), place, "parquet")
        ways = {PER_CHECKPOINT: columnar("per_checkpoint")} | ({STAGED: columnar("staged")} if can_stage() else {})
        for name, options in ways.items():
            stream = read_files(spark, source.path, FILES_PER_BATCH)
            found[name] = run_partfile(name, stream, place, format="parquet", **options)
    return found


def _queries(work: Path, name: str, source: Dataset) -> Callable[[], Run]:
    return lambda: measure_queries(f"DuckDB over {name}", work / name.replace(" ", "-") / "output", source)


def measure_queries(case: str, output: Path, source: Dataset) -> Run:
    """Ask the same question some times; ``batch_ms`` holds the quickest answer."""
    query = (
        "SELECT country, count(*), sum(amount), max(user_id) "  # noqa: S608 - our own names
        f"FROM read_parquet('{output}/*/*.parquet', hive_partitioning = false) GROUP BY country"
    )
    run, took_ms = Run(case, rows=source.files * ROWS_PER_FILE * REPEATS), list[float]()
    with duckdb.connect(config={"threads": THREADS}) as database, Meter() as meter:
        for _ in range(REPEATS):
            began_s = time.perf_counter()
            answer = database.execute(query).fetchall()
            took_ms.append((time.perf_counter() - began_s) * 1000)
    if sum(row[1] for row in answer) != source.files * ROWS_PER_FILE:
        raise SystemExit(f"{output} does not hold {source.rows} rows: the figures mean nothing")
    run.seconds, run.cpu_s, run.foreign_cores = meter.seconds, meter.cpu_s, meter.foreign_cores
    run.batch_ms = [min(took_ms)]
    return run
