"""Which Spark partition a row is written by: as it comes, or one subtask a bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.types import IntegerType, StructType

from partfile.filesystems.checksums import crc32_of
from partfile.filesystems.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import Column, DataFrame

    from partfile.bucketers.port import BucketContext, Bucketer, HashKey

_SUBTASK_COLUMN = "__partfile_subtask"


def by_bucket(df: DataFrame, bucketer: Bucketer, context: BucketContext, partitions: int) -> DataFrame:
    """Shuffle rows so that those of one bucket come to one of ``partitions`` subtasks.

    Where the bucketer knows a key that Spark can compute, Spark does; else the bucketer runs once more before the
    shuffle. Correctness never depends on it: a bucket may be open in several subtasks, it only makes more files.
    """
    key = bucketer.hash_key
    if key is not None:
        missing = [name for name in key.columns if name not in df.columns]
        if missing:
            raise ConfigError(f"{bucketer!r} needs column {missing[0]!r}; the columns are {', '.join(df.columns)}")
        hashed = F.xxhash64(*_key_columns(key))
        return _repartition(df, partitions, F.pmod(hashed, F.lit(partitions)).cast("int"))
    marked = df.mapInArrow(_marker(bucketer, context, partitions), _with_subtask(df))
    return _repartition(marked, partitions, F.col(_SUBTASK_COLUMN)).drop(_SUBTASK_COLUMN)


def _repartition(df: DataFrame, partitions: int, target: Column) -> DataFrame:
    if hasattr(df, "repartitionById"):
        return df.repartitionById(partitions, target)
    return df.repartition(partitions, target)


def _key_columns(key: HashKey) -> list[Column]:
    columns = [F.col(f"`{name.replace('`', '``')}`") for name in key.columns]
    if key.truncate_to is None:
        return columns
    local = F.convert_timezone(F.current_timezone(), F.lit(key.time_zone), columns[0].cast("timestamp_ntz"))
    return [F.date_trunc(key.truncate_to, local)]


def _with_subtask(df: DataFrame) -> StructType:
    return StructType(list(df.schema.fields)).add(_SUBTASK_COLUMN, IntegerType())


def _marker(
    bucketer: Bucketer, context: BucketContext, partitions: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def mark(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            buckets = bucketer.bucket_of(batch, context)
            ids = [crc32_of(str(path).encode()) % partitions for path in buckets.dictionary.to_pylist()]
            subtasks = pc.take(pa.array(ids, pa.int32()), buckets.indices)
            yield batch.append_column(_SUBTASK_COLUMN, subtasks)

    return mark
