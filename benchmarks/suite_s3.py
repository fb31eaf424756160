"""S3: partfile against foreachBatch with renames over s3fs, one large part against boto3, and bytes copied: none."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from figures import Figure, Report, figure_of_rounds
from generator import ROWS_PER_FILE, dataset
from places import S3Place
from renaming_stream import run_renaming
from runs import Run
from s3_upload import LEAST_PART_BYTES, PART_BYTES, Uploads
from streams import read_files, run_partfile, spark_session
from support.s3.ceph import RadosGateway
from support.s3.proxy import S3Proxy

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Mapping
    from pathlib import Path

    import s3fs
    from pyspark.sql import SparkSession

    from generator import Dataset
    from scale import Scale

BATCHES = 4
WARM_UP_BATCHES = 1
FILES_PER_BATCH = 8
"""One for each task, as in the suite of HDFS: renames grow with tasks times buckets, parts with buckets alone."""
FILES_A_DAY = 40
UPLOAD_ROUNDS = 5
SPEED_GOALS = {"renames one by one": 2.0, "renames at once": None}
"""What people do is a loop of ``mv``; renames made all at once are shown beside it, without a goal."""
UPLOAD_GOAL = 0.9
SINKS = ("renames one by one", "renames at once", "partfile")
COPIES = ("CopyObject", "UploadPartCopy")


@dataclass(frozen=True, slots=True)
class ThroughProxy(S3Place):
    """The same server behind a proxy that sees each request; no place to measure time."""

    proxy: S3Proxy

    @property
    def storage_options(self) -> Mapping[str, object]:
        """Where the proxy is."""
        return {**super(ThroughProxy, self).storage_options, "endpoint_url": self.proxy.endpoint_url}


@dataclass(frozen=True, slots=True)
class Streams:
    """All sinks over the same data, into the same server.

    Args:
        spark: Where they run.
        place: Where they write.
        source: What they write.
    """

    spark: SparkSession
    place: S3Place
    source: Dataset

    def measure(self, sink: str, batches: int) -> Run:
        """Run one sink over the first batches; stop if its output does not hold each row."""
        files = batches * FILES_PER_BATCH
        stream = read_files(self.spark, self.source.path, FILES_PER_BATCH, files)
        case = f"s3 {sink}"
        if sink == "partfile":
            run = run_partfile(case, stream, self.place, distribution="hash")
        else:
            run = run_renaming(case, stream, self.place, one_by_one=sink.endswith("one by one"))
        rows = count_rows(self.place.client, f"{self.place.bucket}/{case.replace(' ', '-')}")
        if rows != files * ROWS_PER_FILE:
            raise SystemExit(f"{case} holds {rows} rows, not {files * ROWS_PER_FILE}: the figures mean nothing")
        print(f"  {case}: {run.seconds:.1f} s, {run.files} files, {run.phases_ms}", flush=True)
        return run


def run(data: Path, work: Path, scale: Scale) -> Report:
    """Each round measures all sinks, the order turned round from one round to the next; then the uploads."""
    batches = scale.of(BATCHES)
    source = dataset(data, "shuffled", batches * FILES_PER_BATCH, FILES_A_DAY)
    report, measured = Report(), dict[str, list[Run]]()
    with RadosGateway(work / "server") as server:
        place = S3Place(server, server.filesystem(), server.bucket(), work)
        # A task for each file: Spark packs as many into one as fit under what this divides by.
        with spark_session(work, {"spark.sql.files.minPartitionNum": FILES_PER_BATCH}) as spark:
            streams = Streams(spark, place, source)
            for sink in SINKS:
                streams.measure(sink, WARM_UP_BATCHES)
            for number in range(scale.rounds):
                for sink in SINKS if number % 2 == 0 else reversed(SINKS):
                    measured.setdefault(sink, []).append(streams.measure(sink, batches))
            asked = requests_of_a_stream(streams)
        report.runs += [one for runs in measured.values() for one in runs]
        report.figures += [_against(sink, measured[sink], measured["partfile"]) for sink in SINKS[:-1]]
        report.figures.append(_uploads(Uploads(place, scale.of(PART_BYTES, least=LEAST_PART_BYTES))))
    copies = float(sum(asked[operation] for operation in COPIES))
    report.figures.append(
        figure_of_rounds("S3: objects copied on the server", [copies], 0.0, "at most", str(dict(asked)))
    )
    return report


def requests_of_a_stream(streams: Streams) -> Counter[str]:
    """What partfile asks of the server over a short stream."""
    place = streams.place
    with S3Proxy(place.server) as proxy:
        replace(streams, place=ThroughProxy(place.server, place.client, place.bucket, place.work, proxy=proxy)).measure(
            "partfile", WARM_UP_BATCHES
        )
        return proxy.count()


def count_rows(client: s3fs.S3FileSystem, output: str) -> int:
    """Lines of the finished files of an output."""
    files = [path for path in client.find(output, refresh=True) if path.endswith(".json") and "/_" not in path]
    return sum(client.cat_file(path).count(b"\n") for path in files)


def _against(sink: str, renames: list[Run], ours: list[Run]) -> Figure:
    ratios = [theirs.seconds / mine.seconds for theirs, mine in zip(renames, ours, strict=True)]
    cpu = sorted(theirs.cpu_s / mine.cpu_s for theirs, mine in zip(renames, ours, strict=True))
    note = (
        f"speed of partfile / speed of {sink}; per CPU second {cpu[len(cpu) // 2]:.2f}; "
        f"renames leave {renames[-1].files} files, partfile {ours[-1].files}"
    )
    return figure_of_rounds(f"S3: JSON lines, {sink}", ratios, SPEED_GOALS[sink], "at least", note)


def _uploads(uploads: Uploads) -> Figure:
    uploads.by_boto3()
    uploads.by_partfile()
    seconds = [(uploads.by_boto3(), uploads.by_partfile()) for _ in range(UPLOAD_ROUNDS)]
    note = f"speed of partfile / speed of boto3's upload_fileobj; {seconds[-1][1]:.2f} s, boto3 {seconds[-1][0]:.2f} s"
    ratios = [theirs / ours for theirs, ours in seconds]
    return figure_of_rounds("S3: upload of one part", ratios, UPLOAD_GOAL, "at least", note)
