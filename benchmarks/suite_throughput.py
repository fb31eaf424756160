"""JSON lines into hourly buckets: partfile against Spark's own JSON sink, many hours a batch and few."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import duckdb

from figures import Figure, Report, figure_of_rounds
from generator import FILES_PER_BATCH, ROWS_PER_FILE, Dataset, dataset
from places import LocalPlace
from streams import Run, read_files, run_native, run_partfile, spark_session

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

    from places import Place

Order = Literal["shuffled", "ordered"]
BATCHES: dict[Order, int] = {"shuffled": 20, "ordered": 10}
QUICK_BATCHES: dict[Order, int] = {"shuffled": 6, "ordered": 4}
GOALS: dict[Order, float] = {"shuffled": 1.5, "ordered": 1.0}
FILES_GOAL_PER_BATCH = 15 / 20
"""Spark leaves new files with every batch: a fifteenth of them after 20 batches, less after fewer."""
WARM_UP_ROUNDS = 2
"""Streams that each sink writes before anything counts: a stream runs for weeks, the JVM compiles for a minute."""


def run(data: Path, work: Path, *, quick: bool, rounds: int) -> Report:
    """Measure every case once a round, the order turned round from one round to the next."""
    batches = QUICK_BATCHES if quick else BATCHES
    sets = {
        order: dataset(data, order, count * FILES_PER_BATCH, BATCHES[order] * FILES_PER_BATCH)
        for order, count in batches.items()
    }
    place, report, measured = LocalPlace(work), Report(), dict[tuple[Order, str], list[Run]]()
    with spark_session(work) as spark:
        for sink in ("spark", "partfile") * WARM_UP_ROUNDS:
            _measure(read_files(spark, sets["ordered"].path, FILES_PER_BATCH), _case("ordered", sink), sink, place)
        for number in range(rounds):
            for order, source in sets.items():
                for sink in ("spark", "partfile") if number % 2 == 0 else ("partfile", "spark"):
                    stream = read_files(spark, source.path, FILES_PER_BATCH)
                    done = _measure(stream, _case(order, sink), sink, place)
                    measured.setdefault((order, sink), []).append(done)
                    report.runs.append(done)
                    print(f"  round {number + 1} {done.case}: {done.seconds:.1f} s, {done.files} files", flush=True)
    for order, source in sets.items():
        _check_rows(work / _case(order, "partfile").replace(" ", "-") / "output", source)
        report.figures.append(_ratio(order, measured[order, "spark"], measured[order, "partfile"]))
    goal = FILES_GOAL_PER_BATCH * batches["shuffled"]
    report.figures.insert(0, _files(measured["shuffled", "spark"], measured["shuffled", "partfile"], goal))
    return report


def _measure(stream: DataFrame, case: str, sink: str, place: Place) -> Run:
    return run_partfile(case, stream, place) if sink == "partfile" else run_native(case, stream, place, "json")


def _case(order: Order, sink: str) -> str:
    return f"json {order} {sink}"


def _ratio(order: Order, native: list[Run], ours: list[Run]) -> Figure:
    ratios = [theirs.seconds / mine.seconds for theirs, mine in zip(native, ours, strict=True)]
    cpu = [theirs.cpu_s / mine.cpu_s for theirs, mine in zip(native, ours, strict=True)]
    note = f"speed of partfile / speed of Spark's sink; per CPU second {sorted(cpu)[len(cpu) // 2]:.2f}"
    return figure_of_rounds(f"JSON lines, {order}", ratios, GOALS[order], "at least", note)


def _files(native: list[Run], ours: list[Run], goal: float) -> Figure:
    shares = [theirs.files / mine.files for theirs, mine in zip(native, ours, strict=True)]
    note = f"Spark's sink leaves {native[0].files} files, partfile {ours[0].files}"
    return figure_of_rounds("files, Spark / partfile", shares, goal, "at least", note)


def _check_rows(output: Path, source: Dataset) -> None:
    """A fast sink that loses rows would be no sink."""
    query = f"SELECT count(*) FROM read_json('{output}/*/*.json', columns = {{user_id: 'BIGINT'}})"  # noqa: S608 - our own names
    rows = duckdb.execute(query).fetchall()[0][0]
    if rows != source.files * ROWS_PER_FILE:
        raise SystemExit(f"{output} holds {rows} rows, not {source.rows}: the figures above mean nothing")
