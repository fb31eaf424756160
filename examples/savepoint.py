"""A stream stopped with a savepoint, moved, and resumed elsewhere with another number of partitions, row by row.

Run it with ``python examples/savepoint.py``. It needs Java 17+ and ``pip install 'partfile[demo]'``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
from pyspark.sql import SparkSession

import partfile as pf

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

FILES = 24
ROWS_A_FILE = 500
FILES_BEFORE = 8
WAIT_S = 240
SCHEMA = "id long, country string, amount double"
COUNTRIES = ("AT", "BE", "CH", "DE", "FR")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the example; returns 0 if nothing was lost or duplicated."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="an empty directory to work in; else one that is deleted again")
    output: Path | None = parser.parse_args(arguments).output
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        if any(output.iterdir()):
            raise SystemExit(f"{output} is not empty: name another --output")
        return run(output.absolute())
    with tempfile.TemporaryDirectory(prefix="partfile-savepoint-") as directory:
        return run(Path(directory))


def run(root: Path) -> int:
    """Everything, in one directory."""
    os.environ["PYSPARK_PYTHON"] = sys.executable  # Spark's workers must be this Python, which has partfile.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    write_source(root / "source")
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "ERROR")
    with builder.getOrCreate() as spark:
        savepoint = first_run(spark, root)
        moved = root / "archive" / "taken-along"
        moved.parent.mkdir()
        shutil.move(savepoint, moved)
        print(f"moved it to {moved}")
        second_run(spark, root, moved)
    return compare(root)


def write_source(directory: Path) -> None:
    """Files of numbered rows, one a micro-batch."""
    directory.mkdir()
    for number in range(FILES):
        first = number * ROWS_A_FILE
        rows = (
            {"id": row, "country": COUNTRIES[row % len(COUNTRIES)], "amount": row / 4}
            for row in range(first, first + ROWS_A_FILE)
        )
        path = directory / f"{number:03d}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(path, (1e9 + number, 1e9 + number))


def read_stream(spark: SparkSession, root: Path, partitions: int) -> DataFrame:
    """The source as a stream of as many partitions."""
    files = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(root / "source"))
    return files.repartition(partitions)


def first_run(spark: SparkSession, root: Path) -> str:
    """Stream some of the files over three partitions, then stop with a savepoint."""
    batches: list[pf.BatchProgress] = []
    enough = threading.Event()

    def note(batch: pf.BatchProgress) -> None:
        batches.append(batch)
        if sum(one.rows for one in batches) >= FILES_BEFORE * ROWS_A_FILE:
            enough.set()

    sink = pf.FileSink(root / "before", uid="sales", bucketer=pf.HiveBucketer("country"), on_progress=note)
    query = sink.start(read_stream(spark, root, 3), checkpoint_location=str(root / "spark"), processingTime="0 seconds")
    enough.wait(timeout=WAIT_S)
    where: str = query.stop_with_savepoint(root / "savepoints")
    print(f"stopped after {sum(batch.rows for batch in batches)} rows in 3 partitions with {where}")
    return where


def second_run(spark: SparkSession, root: Path, savepoint: Path) -> None:
    """Go on from the savepoint to the end: another base path, seven partitions."""
    sink = pf.FileSink(root / "after", uid="sales", bucketer=pf.HiveBucketer("country"), restore_from=savepoint)
    with sink.start(read_stream(spark, root, 7), checkpoint_location=str(root / "spark"), availableNow=True):
        pass
    print("resumed from it in 7 partitions to the end of the stream")


def compare(root: Path) -> int:
    """Compare the two base paths together with the source as multisets of rows."""
    columns = "id, country, amount"
    source = Counter(duckdb.read_json(f"{root}/source/*.json").project(columns).fetchall())
    found: Counter[tuple[object, ...]] = Counter()
    for base in ("before", "after"):
        rows = duckdb.read_json(f"{root}/{base}/**/*.json", hive_partitioning=True).project(columns).fetchall()
        found += Counter(rows)
        print(f"{base}: {len(rows)} rows in {len(list((root / base).glob('country=*/*.json')))} files")
    lost, duplicated = (source - found).total(), (found - source).total()
    print(f"savepoint: lost={lost} duplicated={duplicated}")
    return 0 if lost == duplicated == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
