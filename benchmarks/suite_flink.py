"""JSON lines by hour from the same CSV files: partfile on Spark, Spark's own sink, and Flink's SQL file sink."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import duckdb

import limits
from figures import Report, shown
from flink_engine import Flink
from generator import FILES_PER_BATCH, ROWS_PER_FILE, csv_dataset
from goals import GOALS
from peers import run_transfer
from places import LocalPlace
from rounds import interleaved
from runs import ratios
from streams import run_native, run_partfile, spark_session

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from generator import Dataset
    from runs import Run
    from scale import Scale

BATCHES = 10
SCHEMA = "event_time TIMESTAMP, user_id BIGINT, country STRING, url STRING, payload STRING, amount DOUBLE"
OURS, NATIVE, CEILING = "partfile json", "native json", "count in Python"
FLINK = "Flink json, checkpoint {} s"
CHECKPOINTS_S = (5, 1)


@dataclass(frozen=True, slots=True)
class Engines:
    """Spark and Flink over the same files.

    Args:
        spark: One of them.
        flink: The other.
        place: Where both write.
        source: CSV files.
    """

    spark: SparkSession
    flink: Flink
    place: LocalPlace
    source: Dataset

    def cases(self) -> dict[str, Callable[[], Run]]:
        """A function for each sink; Flink's with a checkpoint every five seconds and every second."""
        found: dict[str, Callable[[], Run]] = {OURS: self.ours, NATIVE: self.native, CEILING: self.ceiling}
        return found | {FLINK.format(seconds): partial(self.flinks, seconds) for seconds in CHECKPOINTS_S}

    def ours(self) -> Run:
        """By partfile on Spark."""
        return self._counted(run_partfile(f"csv {OURS}", self._stream(), self.place))

    def native(self) -> Run:
        """By Spark's sink."""
        return self._counted(run_native(f"csv {NATIVE}", self._stream(), self.place, "json"))

    def ceiling(self) -> Run:
        """Into nothing: Spark reads the CSV and hands its rows to Python."""
        run = run_transfer(f"csv {CEILING}", self._stream(), self.place)
        run.rows = self.source.files * ROWS_PER_FILE
        return run

    def flinks(self, checkpoint_s: int) -> Run:
        """By Flink's SQL file sink."""
        case = FLINK.format(checkpoint_s)
        output = self.place.fresh(case)[0]
        run = self.flink.write(
            case,
            self.source.path,
            self.place.work / output,
            checkpoint_ms=checkpoint_s * 1000,
            sizes=lambda: self.place.sizes(output, ""),
        )
        return self._counted(run)

    def _stream(self) -> DataFrame:
        # RFC 4180 doubles quotes; Spark's default is a backslash, with which rows are misread in silence.
        reader = self.spark.readStream.schema(SCHEMA).option("escape", '"')
        return reader.option("maxFilesPerTrigger", FILES_PER_BATCH).csv(str(self.source.path / "*.csv"))

    def _counted(self, run: Run) -> Run:
        output = self.place.work / run.case.replace(" ", "-") / "output"
        query = f"SELECT count(*) FROM read_json('{output}/[!_.]*/[!_.]*', columns = {{user_id: 'BIGINT'}})"  # noqa: S608
        run.rows = duckdb.execute(query).fetchall()[0][0]
        if run.rows != self.source.files * ROWS_PER_FILE:
            raise SystemExit(f"{output} holds {run.rows} rows, not {self.source.rows}: the figures mean nothing")
        return run


def run(data: Path, work: Path, scale: Scale) -> Report:
    """Measure each sink once a round; a round before the first warms both JVMs up."""
    files = scale.of(BATCHES) * FILES_PER_BATCH
    source = csv_dataset(data, "shuffled", files, BATCHES * FILES_PER_BATCH)
    with spark_session(work) as spark, Flink(work / "flink.log") as flink:
        cases = Engines(spark, flink, LocalPlace(work), source).cases()
        for case in cases.values():
            case()
        done = interleaved(cases, scale.rounds, spare=scale.spare_rounds, say=print)
    shutil.copy(work / "flink.log", data.parent / "flink.log")
    report = Report(runs=done.runs)
    slow, quick = (FLINK.format(seconds) for seconds in CHECKPOINTS_S)
    left = "; ".join(f"{name} {done.kept[-1][name].files} files" for name in cases)
    report.figures.append(GOALS["P8"].figure(ratios(done.kept, OURS, slow, lambda run: run.rows_per_s), left))
    for name, against in ((OURS, quick), (NATIVE, slow), (OURS, NATIVE)):
        speed = ratios(done.kept, name, against, lambda run: run.rows_per_s)
        report.figures.append(shown(f"from CSV: {name} / {against}", speed))
    report.figures.append(limits.of_speed("P8", done, CEILING, slow))
    net = [each[slow].phases_ms["net_ms"] / 1000 / each[OURS].seconds for each in done.kept]
    report.figures.append(shown(f"from CSV: {OURS} / {slow}, net", net, "its job without the start of its cluster"))
    return report
