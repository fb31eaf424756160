"""Parquet and JSON lines into hourly buckets: partfile, Spark's own sinks, a writer in foreachBatch, and Delta."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal

import duckdb

import limits
from figures import Report, shown
from generator import FILES_PER_BATCH, ROWS_PER_FILE, dataset
from goals import GOALS
from peers import (
    DELTA_IS_THERE,
    NO_DELTA,
    NO_DELTA_SPARK,
    DeltaStream,
    run_encoding,
    run_foreach_write,
    run_transfer,
)
from places import LocalPlace
from rounds import Rounds, interleaved
from runs import Run, ratios
from streams import NOT_STAGED, can_stage, columnar, read_files, run_native, run_partfile, spark_session

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from figures import Figure
    from generator import Dataset
    from scale import Scale

Order = Literal["shuffled", "ordered"]
BATCHES: dict[Order, int] = {"shuffled": 20, "ordered": 10}
WARM_UP_ROUNDS = 2
"""Streams that each sink writes before anything counts: a stream runs for weeks, the JVM compiles for a minute."""
WARM_UP_BATCHES = 5
PARQUET, JSON = "native parquet", "native json"
OUR_JSON, STAGED, PER_CHECKPOINT = "partfile json", "partfile parquet staged", "partfile parquet per checkpoint"
HASHED = "partfile parquet staged, hash"
FOREACH, DELTA, COMPACTED = "foreachBatch parquet", "delta-rs", "delta-rs compacted"
CEILING = "count in Python"
PARQUET_CEILING, JSON_CEILING = "Parquet in Python, dropped", "JSON in Python, dropped"
CEILINGS = {CEILING, PARQUET_CEILING, JSON_CEILING}
"""Cases that keep nothing: what no sink in Python can get past."""
NOTHING_STAGED = "columnar='staged' staged nothing: it left as many files as one file a checkpoint"
GOALS_OF_STAGED = ("P1 shuffled", "P1 ordered", "P3 files", "P3 size", "P11 speed", "P11 files", "P12")


@dataclass(frozen=True, slots=True)
class Sinks:
    """All sinks over one data set.

    Args:
        spark: Where they run.
        place: Where they write.
        source: What they write.
        order: Of its rows.
    """

    spark: SparkSession
    place: LocalPlace
    source: Dataset
    order: Order
    delta: DeltaStream = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "delta", DeltaStream(self.place))

    def cases(self, files: int | None = None) -> dict[str, Callable[[], Run]]:
        """A function for each sink that writes the source, or the first files of it."""
        place, ours = self.place, partial(run_partfile, format="parquet")
        by_name: dict[str, Callable[[str, DataFrame], Run]] = {
            PARQUET: lambda case, stream: run_native(case, stream, place, "parquet"),
            JSON: lambda case, stream: run_native(case, stream, place, "json"),
            OUR_JSON: lambda case, stream: run_partfile(case, stream, place),
            PER_CHECKPOINT: lambda case, stream: ours(case, stream, place, **columnar("per_checkpoint")),
        }
        if can_stage():
            by_name[STAGED] = lambda case, stream: ours(case, stream, place, **columnar("staged"))
            if self.order == "shuffled":
                by_name[HASHED] = lambda case, stream: ours(
                    case, stream, place, distribution="hash", **columnar("staged")
                )
        by_name[CEILING] = lambda case, stream: run_transfer(case, stream, place)
        by_name[PARQUET_CEILING] = lambda case, stream: run_encoding(case, stream, place, "parquet")
        by_name[JSON_CEILING] = lambda case, stream: run_encoding(case, stream, place, "json")
        if self.order == "shuffled":
            by_name[FOREACH] = lambda case, stream: run_foreach_write(case, stream, place)
        if self.order == "shuffled" and DELTA_IS_THERE:
            by_name |= {DELTA: self.delta.run, COMPACTED: self.delta.run_compacted}
        return {name: partial(self._run, sink, name, files) for name, sink in by_name.items()}

    def _run(self, sink: Callable[[str, DataFrame], Run], name: str, files: int | None) -> Run:
        run = sink(f"{self.order} {name}", read_files(self.spark, self.source.path, FILES_PER_BATCH, files))
        # Not what Spark counts: a sink that reads its batch twice would have written twice as much.
        run.rows = (files or self.source.files) * ROWS_PER_FILE
        return run

    def check_rows(self, name: str, kind: str) -> None:
        """Stop if an output does not hold as many rows as the source: a fast sink that loses rows would be no sink."""
        output = self.place.work / f"{self.order} {name}".replace(" ", "-") / "output"
        columns = "" if kind == "parquet" else ", columns = {user_id: 'BIGINT'}"
        query = f"SELECT count(*) FROM read_{kind}('{output}/*/*.{kind}'{columns})"  # noqa: S608 - our own names
        rows = duckdb.execute(query).fetchall()[0][0]
        if rows != self.source.rows:
            raise SystemExit(f"{output} holds {rows} rows, not {self.source.rows}: the figures mean nothing")


def run(data: Path, work: Path, scale: Scale) -> Report:
    """Measure every sink once a round, first over the shuffled rows, then over the ordered ones."""
    place, report, done, encoder_cpu_s = LocalPlace(work), Report(), dict[Order, Rounds](), 0.0
    with spark_session(work) as spark:
        for order, batches in BATCHES.items():
            files = scale.of(batches) * FILES_PER_BATCH
            sinks = Sinks(spark, place, dataset(data, order, files, batches * FILES_PER_BATCH), order)
            if not done:
                encoder_cpu_s = limits.parquet_cpu_s(sinks.source)
                _warm_up(sinks, scale)
            done[order] = interleaved(sinks.cases(), scale.rounds, spare=min(1, scale.spare_rounds), say=print)
            for name in done[order].kept[-1]:
                if name in {DELTA, COMPACTED}:
                    sinks.delta.check_rows(f"{order} {name}", sinks.source.rows)
                elif name not in CEILINGS:
                    sinks.check_rows(name, "json" if "json" in name else "parquet")
            report.runs += done[order].runs
    report.missing = missing(done)
    report.figures = figures_of(done, scale.of(BATCHES["shuffled"]))
    report.figures += limits_of(done, encoder_cpu_s)
    return report


def why_not_staged(done: dict[Order, Rounds]) -> str | None:
    """Why the runs say nothing about staged parts; None if they do."""
    last = done["shuffled"].kept[-1]
    if STAGED not in last:
        return NOT_STAGED
    # Its speed would be that of files written at each checkpoint, and would meet goals that are none of theirs.
    return NOTHING_STAGED if last[STAGED].files >= last[PER_CHECKPOINT].files else None


def missing(done: dict[Order, Rounds]) -> dict[str, str]:
    """What was not measured, and why."""
    found = {"Delta's own writer for Spark": NO_DELTA_SPARK}
    if not DELTA_IS_THERE:
        found |= dict.fromkeys((DELTA, COMPACTED), NO_DELTA)
    if reason := why_not_staged(done):
        found |= dict.fromkeys(GOALS_OF_STAGED, reason)
    return found


def figures_of(done: dict[Order, Rounds], batches: int) -> list[Figure]:
    """The goals and what is shown beside them.

    Args:
        done: The rounds of each order of rows.
        batches: Micro-batches of a shuffled stream; the counts of files are bounded by them.
    """
    found = [_speed(f"P2 {order}", done[order], OUR_JSON, JSON) for order in BATCHES]
    if why_not_staged(done) is None:
        found += [_speed(f"P1 {order}", done[order], STAGED, PARQUET) for order in BATCHES]
        found += _of_files(done["shuffled"], batches)
        cpu = ratios(done["shuffled"].kept, STAGED, PARQUET, lambda run: run.cpu_s / run.rows)
        found.append(GOALS["P12"].figure(cpu, _cpu_note(done["shuffled"], STAGED, PARQUET)))
    for name in done["shuffled"].kept[0]:
        if name not in {PARQUET, STAGED, OUR_JSON, JSON} | CEILINGS:
            speed = ratios(done["shuffled"].kept, name, PARQUET, lambda run: run.rows_per_s)
            found.append(shown(f"shuffled {name}, rows/s / native Parquet", speed, _left(done["shuffled"], name)))
    if HASHED in done["shuffled"].kept[0]:
        sizes = ratios(done["shuffled"].kept, HASHED, PARQUET, lambda run: run.median_file_bytes)
        found.append(shown(f"P3 size by {HASHED}", sizes, _left(done["shuffled"], HASHED)))
    return sorted(found, key=lambda figure: (not figure.goal_name, figure.name))


def limits_of(done: dict[Order, Rounds], encoder_cpu_s: float) -> list[Figure]:
    """What stands in the way of P1, P2 and P12, measured in the same rounds.

    Args:
        done: The rounds of each order of rows.
        encoder_cpu_s: CPU seconds that encoding one row as Parquet takes.
    """
    found = [
        limits.of_speed(f"{goal} {order}", rounds, ceiling, native)
        for goal, native, encoding in (("P1", PARQUET, PARQUET_CEILING), ("P2", JSON, JSON_CEILING))
        for order, rounds in done.items()
        for ceiling in (CEILING, encoding)
    ]
    found += [
        limits.share_of(f"{goal} {order}", rounds, ours, ceiling)
        for goal, ours, ceiling in (("P1", STAGED, PARQUET_CEILING), ("P2", OUR_JSON, JSON_CEILING))
        for order, rounds in done.items()
        if ours in rounds.kept[0]
    ]
    return [*found, limits.of_cpu(done["shuffled"], CEILING, PARQUET, encoder_cpu_s)]


def _of_files(rounds: Rounds, batches: int) -> list[Figure]:
    """P3 and P11; a stream of fewer batches is bounded by their number, as one of 20 is by 20."""
    kept, left = rounds.kept, f"{_left(rounds, STAGED)}; native {_left(rounds, PARQUET)}"
    against = f"{_left(rounds, STAGED)}; one file a checkpoint {_left(rounds, PER_CHECKPOINT)}"
    return [
        GOALS["P3 files"].figure(ratios(kept, STAGED, PARQUET, lambda run: run.files), left, 1 / batches),
        GOALS["P3 size"].figure(ratios(kept, STAGED, PARQUET, lambda run: run.median_file_bytes), left, float(batches)),
        _speed("P11 speed", rounds, STAGED, PER_CHECKPOINT),
        GOALS["P11 files"].figure(ratios(kept, STAGED, PER_CHECKPOINT, lambda run: run.files), against, 1 / batches),
    ]


def _speed(goal: str, rounds: Rounds, ours: str, theirs: str) -> Figure:
    own, other = (statistics.median(each[name].rows_per_s for each in rounds.kept) for name in (ours, theirs))
    per_cpu = statistics.median(ratios(rounds.kept, theirs, ours, lambda run: run.cpu_s))
    note = f"{own / 1000:.0f} k and {other / 1000:.0f} k rows/s; per CPU second {per_cpu:.2f}"
    return GOALS[goal].figure(ratios(rounds.kept, ours, theirs, lambda run: run.rows_per_s), note)


def _cpu_note(rounds: Rounds, ours: str, theirs: str) -> str:
    own, other = (
        statistics.median(each[name].cpu_s / each[name].rows * 1e6 for each in rounds.kept) for name in (ours, theirs)
    )
    return f"{own:.1f} s and {other:.1f} s a million rows, all processes"


def _left(rounds: Rounds, name: str) -> str:
    run = rounds.kept[-1][name]
    return f"{run.files} files, median {run.median_file_bytes / 1e6:.2f} MB" if run.files else "no files"


def _warm_up(sinks: Sinks, scale: Scale) -> None:
    for _ in range(WARM_UP_ROUNDS if scale.is_full else 1):
        for case in sinks.cases(scale.of(WARM_UP_BATCHES) * FILES_PER_BATCH).values():
            case()
