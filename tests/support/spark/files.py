"""Files that a task of Spark's makes of a DataFrame, and the values that readers give of them."""

from __future__ import annotations

import datetime as dt
import io
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.ipc

from partfile.writers.arrow_staging import StagingFormat, read_staging_file
from partfile.writers.base import BulkFormat
from support.processes.java import maven_jars

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from partfile.writers.base import Format


# Files that a task of Spark's makes of a DataFrame, and the values that readers give of them, as comparable text.


class MemoryPart(bytearray):
    """The bytes of a part, in the task."""

    position = property(bytearray.__len__)
    write = bytearray.extend


def write_file(table: DataFrame, form: Format, directory: Path, *, staged: bool = False) -> str:
    """Write a table by a task of Spark's, row by row with a persist after every second, and return the file's path.

    Args:
        table: The rows.
        form: What readers see.
        directory: Where the file goes.
        staged: The rows of a columnar format go through a staging file.
    """

    def encode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        part: Any = MemoryPart()
        opened = StagingFormat(form) if staged and isinstance(form, BulkFormat) else form
        writer = None
        for batch in batches:
            opened.check(batch.schema)
            writer = writer or opened.open(part, batch.schema)
            for at in range(batch.num_rows):
                writer.write(batch.slice(at, 1))
                if opened.appendable and at % 2:
                    writer.persist()
        if writer is not None:
            writer.close()
        if opened is not form and isinstance(form, BulkFormat):
            schema, rows = read_staging_file(io.BytesIO(part), len(part))
            part = MemoryPart()
            form.encode(rows, schema, part)
        yield pa.record_batch({"data": [bytes(part)]})

    (row,) = table.mapInArrow(encode, "data binary").collect()
    path = directory / f"part-0{form.suffix}"
    path.write_bytes(row.data)
    return str(path)


def values_of(table: pa.Table, names: Iterable[str]) -> dict[str, str]:
    """Columns as text that tells apart what compares equal (``-0.0``), and joins what does not (``nan``)."""
    columns = {name: table[name] for name in names}
    for name, column in columns.items():
        if pa.types.is_time(column.type):
            columns[name] = column.cast(pa.time64("ns"))
        elif pa.types.is_timestamp(column.type) and column.type.tz:
            columns[name] = column.cast(pa.timestamp("us", "UTC"))
    return {name: str(_in_utc(column.to_pylist())) for name, column in columns.items()}


def _in_utc(value: Any) -> Any:
    """Readers give instants in a zone of their choice, within nested values too."""
    if isinstance(value, dt.datetime) and value.tzinfo:
        return value.astimezone(dt.UTC)
    if isinstance(value, dict):
        return {name: _in_utc(item) for name, item in value.items()}
    return type(value)(map(_in_utc, value)) if isinstance(value, list | tuple) else value


def arrow_of_task(table: DataFrame) -> pa.Table:
    """The rows of a table in the Arrow types that a task gets."""

    def serialise(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            stream = pa.BufferOutputStream()
            with pa.ipc.new_stream(stream, batch.schema) as writer:
                writer.write_batch(batch)
            yield pa.record_batch({"data": [stream.getvalue().to_pybytes()]})

    found = [pa.ipc.open_stream(row.data).read_all() for row in table.mapInArrow(serialise, "data binary").collect()]
    return pa.concat_tables(found)


def rows_of(table: pa.Table, names: Sequence[str]) -> list[str]:
    """Rows as sorted text, so that readers agree who give them, and the entries of maps, in another order."""
    columns = []
    for name in names:
        column = table[name]
        if pa.types.is_time(column.type):
            column = column.cast(pa.time64("ns"))
        elif pa.types.is_timestamp(column.type) and column.type.tz:
            column = column.cast(pa.timestamp("us", "UTC"))
        columns.append([_in_order(value) for value in column.to_pylist()])
    return sorted(str(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True))


def _in_order(value: Any) -> Any:
    """Instants in UTC, and maps as sorted pairs, which some readers give as structs."""
    if isinstance(value, dict):
        inner = {name: _in_order(item) for name, item in value.items()}
        return tuple(inner.values()) if list(inner) == ["key", "value"] else inner
    if isinstance(value, tuple):
        return tuple(map(_in_order, value))
    if isinstance(value, list):
        items = [_in_order(item) for item in value]
        return sorted(items, key=str) if any(isinstance(item, tuple) for item in items) else items
    return _in_utc(value)


# Spark's reader of Avro, which is a package of its own: its jar, fetched once, in a session that runs.

SPARK_AVRO_VERSION = "4.1.1"
"""The newest that Maven Central has here."""


def with_avro(spark: SparkSession) -> SparkSession:
    """Add the reader to a session.

    Raises:
        MissingProgram: The jar is not in the cache and there is no Maven.
        RuntimeError: Maven could not fetch it.
    """
    artifacts = [("org.apache.spark", "spark-avro_2.13", SPARK_AVRO_VERSION)]
    what = f"The jars of spark-avro {SPARK_AVRO_VERSION}"
    name = f"spark-avro-{SPARK_AVRO_VERSION}"
    (jar,) = maven_jars(name, artifacts, what=what, skip="spark_avro", alone=True).glob("*.jar")
    spark.sql(f"ADD JAR '{jar}'")
    return spark
