"""How each Java of the tests starts, and the archive of Spark's classes that halves the time of a start.

Source: JEP 350 (dynamic archives of class data sharing). An archive is for one Java and one classpath; a Java that
finds another one of either starts as it would without.

Usage: python -m support.spark.classes  (make does it, once; it takes some 15 seconds)
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
"""Empty where this Java could make none."""


def environment() -> dict[str, str]:
    """What to set for every Java of the tests, and for every Spark."""
    # Every Java here lives for some minutes at most: what compiles thoroughly compiles in vain.
    java = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    return java | ({"SPARK_SUBMIT_OPTS": java_options()} if java_options() else {})


def java_options() -> str:
    """What each Java of Spark's is told that is not the driver's; empty where there is no archive."""
    usable = ARCHIVE.exists() and ARCHIVE.stat().st_size
    return f"-XX:SharedArchiveFile={ARCHIVE} -Xlog:disable" if usable else ""


def main() -> None:
    """Let a Spark do what it does in the tests; its Java writes the archive when it ends."""
    # Not before: this module is imported by every process of the tests.
    from pyspark import SparkContext  # noqa: PLC0415

    with tempfile.TemporaryDirectory(dir=ARCHIVE.parent) as room:
        archive = Path(room) / ARCHIVE.name
        os.environ.update(environment())
        os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:ArchiveClassesAtExit={archive} -Xlog:disable"
        _use_spark(Path(room))
        java = SparkContext._gateway.proc  # type: ignore[union-attr]
        # The end of its input is what ends it.
        java.stdin.close()
        java.wait(timeout=180)
        if not archive.exists():
            print("This Java makes no archive of classes: Spark starts slower in the tests.")  # noqa: T201 - for make.
            archive.touch()
        archive.rename(ARCHIVE)


def _use_spark(room: Path) -> None:
    """Run batches and streams of sinks, and read what they wrote."""
    import partfile as pf  # noqa: PLC0415
    from support.spark.streams import build_session, stream, write_source  # noqa: PLC0415

    write_source(room / "source", 2)
    spark = build_session()
    for name in ("json", "parquet"):
        tree = room / name
        sink = pf.FileSink(str(tree), uid="job", format=name, bucketer=pf.HiveBucketer("bucket"))
        started = sink.start(stream(spark, room / "source"), checkpoint_location=f"{tree}-spark", availableNow=True)
        with started as query:
            query.awaitTermination()
        rows = spark.read.schema("id long, bucket long").format(name).load(str(tree))
        rows.groupBy("bucket").count().orderBy("bucket").collect()
    for name in ("csv", "orc", "text"):
        spark.range(20).selectExpr("CAST(id AS string) AS id").write.format(name).save(str(room / name))
        spark.read.format(name).load(str(room / name)).collect()
    spark.stop()


if __name__ == "__main__":
    main()
