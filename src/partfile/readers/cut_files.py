"""Files with a sidecar in Spark: executors cut them at their valid length, and Spark parses the rows.

The same files are left out of what Spark reads by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyspark.sql import functions
from pyspark.sql.types import StructType

from partfile.errors import ConfigError
from partfile.readers.files import partition_values
from partfile.readers.filesystem import open_for_reading
from partfile.readers.lines import records
from partfile.readers.streams import ReadableFile, decompressed, open_readable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from pyspark.sql import Column, DataFrame, SparkSession

_ROWS_A_BATCH = 10_000
_BEFORE_THE_PATH = "^[A-Za-z][A-Za-z0-9+.-]*:(//[^/]*)?/+"


@dataclass(frozen=True, slots=True)
class CutFiles:
    """Everything an executor needs to read files up to their valid length; travels in the closure."""

    url: str
    storage_options: dict[str, object] = field(repr=False)
    format: str
    partition_columns: tuple[str, ...]
    is_header: bool = field(kw_only=True)

    def rows(
        self, spark: SparkSession, files: Mapping[str, int], schema: StructType, options: Mapping[str, str]
    ) -> DataFrame:
        """The rows of some files as Spark's own reader would give them.

        Args:
            spark: The session.
            files: Paths relative to the base, with valid lengths in bytes.
            schema: Of the result, partition columns included.
            options: Of Spark's reader.
        """
        places = ", ".join(f"partition_{at} string" for at in range(len(self.partition_columns)))
        described = spark.createDataFrame(sorted(files.items()), "path string, valid_length long")
        found = described.mapInArrow(self.read, ", ".join(filter(None, ["record string", places])))
        data = StructType([column for column in schema if column.name not in self.partition_columns])
        parsed = found.withColumn("row", self._parsed(data, options))
        columns = [self._column(column.name, data).cast(column.dataType).alias(column.name) for column in schema]
        return parsed.select(*columns)

    def read(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the records of the listed files, each with the partition values of its file."""
        # Once for all files: a client costs more than a small file.
        file_system, base = open_for_reading(self.url, self.storage_options)
        for batch in batches:
            for row in batch.to_pylist():
                path, valid_length = row["path"], row["valid_length"]
                with open_readable(file_system, base, ReadableFile(path, valid_length, (path,))) as file:
                    yield from self._batches_of(file, path)

    def _batches_of(self, file: BinaryIO, path: str) -> Iterator[pa.RecordBatch]:
        values = partition_values(path)
        found = records(decompressed(file, path), is_csv=self.format == "csv")
        rows = islice(found, 1, None) if self.is_header else found
        # Spark's readers of JSON and CSV pass over empty lines; each line of text is a row.
        kept = rows if self.format == "text" else filter(bytes.strip, rows)
        while some := list(islice(kept, _ROWS_A_BATCH)):
            columns: list[pa.Array[Any]] = [pa.array(some, pa.binary()).cast(pa.string())]
            columns += [pa.array([value] * len(some), pa.string()) for value in values]
            names = ["record", *(f"partition_{at}" for at in range(len(values)))]
            yield pa.RecordBatch.from_arrays(columns, names=names)

    def _parsed(self, data: StructType, options: Mapping[str, str]) -> Column:
        record = functions.col("record")
        if self.format == "json":
            return functions.from_json(record, data, dict(options))
        if self.format == "csv":
            return functions.from_csv(record, data.toDDL(), {**options, "header": "false"})
        return functions.struct(record.alias(data.names[0]))

    def _column(self, name: str, data: StructType) -> Column:
        if name in data.names:
            return functions.col("row").getField(name)
        return functions.col(f"partition_{self.partition_columns.index(name)}")


def without(plain: DataFrame, base: str, cut: Collection[str]) -> DataFrame:
    """The rows of all files but some. Spark opens none of these: it filters files by their path first.

    Args:
        plain: What Spark reads below the base.
        base: The base path, without a scheme.
        cut: The files to leave out, relative to the base.

    Raises:
        ConfigError: Spark has other paths for the files.
    """
    encoded = [urlsplit(file).path for file in plain.inputFiles()]
    unread = [path for path in encoded if _relative(path, base) in cut]
    # Spark writes the same file as file:/path in one place and as file:///path in another.
    file_path = functions.regexp_replace("_metadata.file_path", _BEFORE_THE_PATH, "/")
    return plain.where(~file_path.isin(unread)) if unread else plain


def _relative(encoded: str, base: str) -> str:
    """The path below the base of a file that Spark lists."""
    path = unquote(encoded)
    if not path.startswith(f"{base}/"):
        # Going on could read a file twice, the second time with what lies beyond its valid length.
        raise ConfigError(
            f"Spark lists {path!r}, which is not below {base!r}",
            hint="Pass the path as Spark knows it, for instance hdfs://name-service/path.",
            path=path,
        )
    return path[len(base) + 1 :]
