"""What partfile is compared with beside Spark's own streaming sinks: writers within foreachBatch, and bare ceilings."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from partfile.sink.batches import coalesce_batches, prefetch
from partfile.sink.spark.write_job import begin_task
from partfile.writers.json import JsonLinesFormat
from processes import Meter
from runs import with_files
from streams import run_query

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame

    from places import LocalPlace
    from runs import Run
    from streams import Kind

try:
    from deltalake import DeltaTable, write_deltalake
except ImportError:
    DELTA_IS_THERE = False
else:
    DELTA_IS_THERE = True

NO_DELTA = "the package deltalake is not installed (extra bench)"
NO_DELTA_SPARK = (
    "delta-spark 4.4.1 on PyPI allows pyspark up to 4.2.0, and Maven Central has no artifact of it for Spark 4.3"
)


def run_foreach_write(case: str, stream: DataFrame, place: LocalPlace) -> Run:
    """Append each batch with ``df.write`` to Parquet by hour; a batch that is repeated is written twice."""
    output, checkpoint = place.fresh(case)

    def append(batch: DataFrame, _batch_id: int) -> None:
        batch.withColumn("bucket", F.hour("event_time")).write.mode("append").partitionBy("bucket").parquet(output)

    return run_query(case, stream.writeStream.foreachBatch(append), checkpoint, lambda: place.sizes(output, ".parquet"))


def run_pass(case: str, stream: DataFrame, place: LocalPlace) -> Run:
    """Do nothing with a batch: what Spark itself takes for one."""
    _, checkpoint = place.fresh(case)
    return run_query(case, stream.writeStream.foreachBatch(lambda _batch, _batch_id: None), checkpoint)


def run_transfer(case: str, stream: DataFrame, place: LocalPlace) -> Run:
    """Hand each batch to Python workers, who count its rows: what no sink written in Python can get below."""
    _, checkpoint = place.fresh(case)
    count = counting()

    def transfer(batch: DataFrame, _batch_id: int) -> None:
        batch.mapInArrow(count, "rows long").collect()

    return run_query(case, stream.writeStream.foreachBatch(transfer), checkpoint)


def run_encoding(case: str, stream: DataFrame, place: LocalPlace, kind: Kind) -> Run:
    """Hand each batch to Python workers, who encode its rows as partfile does, in memory, and drop what comes of it.

    The transfer is as quick as ours: workers begin their tasks alike (``begin_task``).
    Rows are encoded while the next ones are fetched. There are no buckets, files or checkpoints: a sink that encodes in
    Python does this, and more.
    """
    _, checkpoint = place.fresh(case)
    encode = encoding_parquet() if kind == "parquet" else encoding_json()

    def transfer(batch: DataFrame, _batch_id: int) -> None:
        batch.mapInArrow(encode, "bytes long").collect()

    return run_query(case, stream.writeStream.foreachBatch(transfer), checkpoint)


def counting() -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function that counts the rows of a task."""

    # Made in here, it travels to the workers by value: they cannot import this module.
    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begin_task()
        yield pa.RecordBatch.from_pydict({"rows": [sum(batch.num_rows for batch in batches)]})

    return count


def encoding_parquet() -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function that encodes the rows of a task as one Parquet file."""

    def encode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begin_task()
        file, rows = pa.BufferOutputStream(), coalesce_batches(batches)
        first = next(rows)
        with pq.ParquetWriter(file, first.schema, compression="snappy", write_page_index=True) as writer:
            prefetch(chain([first], rows), writer.write_batch)
        yield pa.RecordBatch.from_pydict({"bytes": [file.tell()]})

    return encode


def encoding_json() -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function that encodes the rows of a task as JSON lines, with partfile's encoder."""
    lines = JsonLinesFormat()

    def encode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begin_task()
        sizes: list[int] = []
        prefetch(batches, lambda batch: sizes.append(len(lines.encode(batch).data)))
        yield pa.RecordBatch.from_pydict({"bytes": [sum(sizes)]})

    return encode


@dataclass(slots=True)
class DeltaStream:
    """Appends each batch to a Delta table by hour with delta-rs, in the driver: it has no writer within Spark's tasks.

    Args:
        place: Where.
    """

    place: LocalPlace
    table: str = ""
    """Where the last run has written."""

    def run(self, case: str, stream: DataFrame) -> Run:
        """Append batch by batch."""
        output, checkpoint = self.place.fresh(case)
        self.table = output

        def append(batch: DataFrame, _batch_id: int) -> None:
            rows = batch.withColumn("bucket", F.hour("event_time")).toArrow()
            write_deltalake(output, rows, mode="append", partition_by=["bucket"])

        writer = stream.writeStream.foreachBatch(append)
        return run_query(case, writer, checkpoint, lambda: self.place.sizes(output, ".parquet"))

    def run_compacted(self, case: str, stream: DataFrame) -> Run:
        """The same, and ``optimize.compact`` once at the end; the files are those that the table then consists of."""
        run = self.run(case, stream)
        with Meter() as compaction:
            table = DeltaTable(self.table)
            table.optimize.compact()
        run.seconds += compaction.seconds
        run.cpu_s += compaction.cpu_s
        return with_files(run, active_bytes(table))

    def check_rows(self, case: str, rows: int) -> None:
        """Stop if the table of a case does not hold as many rows."""
        table = self.place.work / case.replace(" ", "-") / "output"
        actions = pa.table(DeltaTable(table).get_add_actions(flatten=True))
        found = sum(actions["num_records"].to_pylist())
        if found != rows:
            raise SystemExit(f"{table} holds {found} rows, not {rows}: the figures mean nothing")


def active_bytes(table: Any) -> list[int]:
    """The sizes of the files that a Delta table consists of."""
    return [int(size) for size in pa.table(table.get_add_actions(flatten=True))["size_bytes"].to_pylist()]
