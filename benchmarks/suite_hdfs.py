"""HDFS: partfile against Spark's JSON sink on one NameNode, in time and in what both ask of it; and a large restore."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from hdfs_native import Client

from figures import Figure, Report, figure_of_rounds
from generator import ROWS_PER_FILE, dataset
from hdfs_restore import RestoreCost, measure_restore
from places import HdfsPlace
from streams import read_files, run_native, run_partfile, spark_session
from support.hdfs.cluster import HdfsCluster

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from generator import Dataset
    from runs import Run
    from scale import Scale

BATCHES = 5
WARM_UP_BATCHES = 1
FILES_PER_BATCH = 8
"""One for each task: a small stream for a cluster, and what either sink asks of the NameNode depends on tasks."""
OPEN_PARTS = 100
FINISHED_PARTS = 10_000
SPEED_GOAL = 1.4
OPERATIONS_GOAL = 1 / 5
RESTORE_OPERATIONS_GOAL = 3.0
OVERLAP_GOAL = 10.0
"""How many times one part's restore all of them may take together; in turn it would be as many as there are parts."""
_CASE = {"spark": "hdfs spark", "partfile": "hdfs partfile"}


class Measured(NamedTuple):
    """One stream, and how often it and its clients asked the NameNode."""

    run: Run
    operations: int


@dataclass(frozen=True, slots=True)
class Streams:
    """Both sinks over the same data, into the same HDFS.

    Args:
        spark: Where they run.
        place: Where they write.
        source: What they write.
    """

    spark: SparkSession
    place: HdfsPlace
    source: Dataset

    def measure(self, sink: str, batches: int) -> Measured:
        """Run one sink over the first batches."""
        stream = read_files(self.spark, self.source.path, FILES_PER_BATCH, batches * FILES_PER_BATCH)
        before = self.place.operations()
        run = (
            run_partfile(_CASE[sink], stream, self.place, distribution="hash", inline_threshold_bytes=1 << 20)
            if sink == "partfile"
            else run_native(_CASE[sink], stream, self.place, "json")
        )
        operations = (self.place.operations() - before).total()
        print(f"  {run.case}: {run.seconds:.1f} s, {run.files} files, {operations} operations", flush=True)
        return Measured(run, operations)

    def check_rows(self, sink: str, rows: int) -> None:
        """Stop if an output does not hold as many rows."""
        output = f"{self.place.cluster.url}/{_CASE[sink].replace(' ', '-')}/output"
        found = self.spark.read.text(f"{output}/*/*.json").count()
        if found != rows:
            raise SystemExit(f"{_CASE[sink]} holds {found} rows, not {rows}: the figures mean nothing")


def run(data: Path, work: Path, scale: Scale) -> Report:
    """Each round measures both sinks, the order turned round from one round to the next; then the restores."""
    batches = scale.of(BATCHES)
    files = batches * FILES_PER_BATCH
    source = dataset(data, "shuffled", files, BATCHES * FILES_PER_BATCH)
    report, measured = Report(), dict[str, list[Measured]]()
    with HdfsCluster(work / "cluster") as cluster:
        place = HdfsPlace(cluster, Client(cluster.url))
        # A task for each file: Spark packs as many into one as fit under what this divides by.
        with spark_session(work, {"spark.sql.files.minPartitionNum": FILES_PER_BATCH}) as spark:
            streams = Streams(spark, place, source)
            for sink in ("spark", "partfile"):
                streams.measure(sink, WARM_UP_BATCHES)
            for number in range(scale.rounds):
                for sink in ("spark", "partfile") if number % 2 == 0 else ("partfile", "spark"):
                    measured.setdefault(sink, []).append(streams.measure(sink, batches))
            for sink in measured:
                streams.check_rows(sink, files * ROWS_PER_FILE)
        report.runs += [one.run for runs in measured.values() for one in runs]
        report.figures += _against_native(measured["spark"], measured["partfile"])
        finished = scale.of(FINISHED_PARTS)
        one, cut_one = (measure_restore(place, open_parts=1, finished_parts=0, tails=tails) for tails in (False, True))
        many = measure_restore(place, open_parts=OPEN_PARTS, finished_parts=finished)
        report.figures += _restore(one, many)
        cut = measure_restore(place, open_parts=OPEN_PARTS, finished_parts=0, tails=True)
        report.extra["operations_a_part_with_a_tail"] = (cut.operations - cut_one.operations) / (OPEN_PARTS - 1)
    return report


def _against_native(native: list[Measured], ours: list[Measured]) -> list[Figure]:
    pairs = list(zip(native, ours, strict=True))
    speed = [theirs.run.seconds / mine.run.seconds for theirs, mine in pairs]
    cpu = sorted(theirs.run.cpu_s / mine.run.cpu_s for theirs, mine in pairs)
    a_row = [mine.operations / theirs.operations for theirs, mine in pairs]
    asked = f"Spark's sink {_asked(native[-1])}; partfile {_asked(ours[-1])}"
    note = f"speed of partfile / speed of Spark's sink; per CPU second {cpu[len(cpu) // 2]:.2f}"
    return [
        figure_of_rounds("HDFS: JSON lines, shuffled", speed, SPEED_GOAL, "at least", note),
        figure_of_rounds("HDFS: operations a row", a_row, OPERATIONS_GOAL, "at most", asked),
    ]


def _asked(measured: Measured) -> str:
    files, operations = measured.run.files, measured.operations
    return f"asks {operations} times and leaves {files} files, {operations / files:.1f} each"


def _restore(one: RestoreCost, many: RestoreCost) -> list[Figure]:
    parts = many.open_parts - one.open_parts
    asked = (many.operations - one.operations) / parts
    leases = (many.lease_operations - one.lease_operations) / parts
    listings = float(many.listings - one.listings)
    overlap = many.seconds / one.seconds
    what = f"{many.open_parts} open parts, {many.finished_parts} finished ones"
    took = f"{many.seconds:.1f} s for all of them, {one.seconds:.1f} s for one"
    return [
        figure_of_rounds(
            "HDFS restore: operations an open part",
            [asked],
            RESTORE_OPERATIONS_GOAL,
            "at most",
            f"{what}; besides TRUNCATE, and {leases:.1f} to recover its lease and wait for that",
        ),
        figure_of_rounds("HDFS restore: listings more than of one part", [listings], 0.0, "at most", what),
        figure_of_rounds("HDFS restore: time of 100 parts / of one", [overlap], OVERLAP_GOAL, "at most", took),
    ]
