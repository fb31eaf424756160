"""The floor: micro-batches of one row, partfile (JSON) against Spark's own partitioned Parquet sink."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from figures import Report, figure_of_rounds
from generator import one_row_files
from places import LocalPlace
from streams import Run, read_files, run_native, run_partfile, spark_session

if TYPE_CHECKING:
    from pathlib import Path

BATCHES = 20
WARM_UP_BATCHES = 8
GOAL = 1.1


def run(data: Path, work: Path, *, quick: bool, rounds: int) -> Report:
    """Measure both sinks once a round; the first batches of each query are dropped, for they start it up."""
    del quick  # short as it is
    source = one_row_files(data, WARM_UP_BATCHES + BATCHES)
    place, report, ratios = LocalPlace(work), Report(), list[float]()
    with spark_session(work) as spark:
        for number in range(rounds + 1):
            spark_run = run_native("one row spark parquet", read_files(spark, source, 1), place, "parquet")
            our_run = run_partfile("one row partfile", read_files(spark, source, 1), place)
            if number == 0:
                continue  # the warm-up of the whole process
            report.runs += [spark_run, our_run]
            ratios.append(_median_ms(our_run) / _median_ms(spark_run))
            print(
                f"  round {number}: partfile {_median_ms(our_run):.0f} ms, Spark {_median_ms(spark_run):.0f} ms",
                flush=True,
            )
    note = (
        f"median batch: partfile {_median_ms(our_run):.0f} ms, Spark's sink {_median_ms(spark_run):.0f} ms (last round)"
    )
    report.figures.append(figure_of_rounds("one-row batch", ratios, GOAL, "at most", note))
    return report


def _median_ms(run: Run) -> float:
    return statistics.median(run.batch_ms[WARM_UP_BATCHES:])
