"""The floor: micro-batches of one row, partfile against Spark's own sinks and against no sink at all."""

from __future__ import annotations

import statistics
from functools import partial
from typing import TYPE_CHECKING

from figures import Report, shown
from generator import one_row_files
from goals import GOALS
from peers import run_foreach_write, run_pass, run_transfer
from places import LocalPlace
from rounds import interleaved
from runs import ratios
from streams import NOT_STAGED, can_stage, columnar, read_files, run_native, run_partfile, spark_session

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from runs import Run
    from scale import Scale

BATCHES = 20
WARM_UP_BATCHES = 8
"""The first batches of each query, which start it up and are dropped."""
PARQUET, JSON, FOREACH, NOTHING = "native parquet", "native json", "foreachBatch parquet", "no sink"
CEILING = "count in Python"
OUR_JSON, STAGED = "partfile json", "partfile parquet staged"


def run(data: Path, work: Path, scale: Scale) -> Report:
    """Measure each sink once a round; a round before the first warms the process up."""
    source = one_row_files(data, WARM_UP_BATCHES + scale.of(BATCHES, least=6))
    report = Report(missing={} if can_stage() else {"P4 Parquet": NOT_STAGED})
    with spark_session(work) as spark:
        cases = cases_of(spark, LocalPlace(work), source)
        for case in cases.values():
            case()
        done = interleaved(cases, scale.rounds, spare=scale.spare_rounds, say=print)
    report.runs += done.runs
    for name in cases:
        measured = ratios(done.kept, name, PARQUET, median_ms)
        note = " ms, native Parquet ".join(f"{_typical_ms(done.kept, each):.0f}" for each in (name, PARQUET)) + " ms"
        goal = {OUR_JSON: "P4 JSON", STAGED: "P4 Parquet"}.get(name)
        if goal is not None:
            report.figures.append(GOALS[goal].figure(measured, note))
        elif name != PARQUET:
            report.figures.append(shown(f"one-row batch, {name} / native Parquet", measured, note))
    return report


def cases_of(spark: SparkSession, place: LocalPlace, source: Path) -> dict[str, Callable[[], Run]]:
    """A function for each sink that writes one file, which is one row, a batch."""

    def measure(name: str, sink: Callable[..., Run], **options: str) -> Run:
        return sink(f"one row {name}", read_files(spark, source, 1), place, **options)

    cases = {
        PARQUET: partial(measure, PARQUET, partial(run_native, kind="parquet")),
        OUR_JSON: partial(measure, OUR_JSON, run_partfile),
        JSON: partial(measure, JSON, partial(run_native, kind="json")),
        FOREACH: partial(measure, FOREACH, run_foreach_write),
        NOTHING: partial(measure, NOTHING, run_pass),
        CEILING: partial(measure, CEILING, run_transfer),
    }
    if can_stage():
        cases[STAGED] = partial(measure, STAGED, run_partfile, format="parquet", **columnar("staged"))
    return dict(cases)


def median_ms(run: Run) -> float:
    """The batch in the middle, in milliseconds, of those that do not start the query up."""
    return statistics.median(run.batch_ms[WARM_UP_BATCHES:])


def _typical_ms(rounds: list[dict[str, Run]], name: str) -> float:
    return statistics.median(median_ms(each[name]) for each in rounds)
