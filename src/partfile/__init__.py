"""partfile: a transactional file sink for PySpark and plain Python.

Importing this package needs neither Spark nor a client of any remote store. The readers are imported when they are
first asked for, since a task that writes does not need them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from partfile.bucketers.base_path import BasePathBucketer
from partfile.bucketers.composite import CompositeBucketer
from partfile.bucketers.date_time import DateTimeBucketer
from partfile.bucketers.hive import HiveBucketer
from partfile.bucketers.port import BucketContext, Bucketer
from partfile.filesystems.errors import (
    BucketValueError,
    CheckpointMismatch,
    CommitConflict,
    ConfigError,
    Fenced,
    OutcomeUnknown,
    PartfileError,
    PartMissing,
    RecoveryRefused,
    SnapshotCorrupt,
    SnapshotVersionError,
    StoreError,
    UnsupportedTypeError,
)
from partfile.sink.file_sink import FileSink
from partfile.sink.local import LocalSink
from partfile.sink.naming import PartNaming
from partfile.sink.progress import BatchProgress
from partfile.sink.rolling import PartProgress, RollingPolicy
from partfile.snapshot.savepoint_directory import dispose_savepoint, list_savepoints, show_savepoint
from partfile.version import __version__
from partfile.writers.avro import AvroFormat
from partfile.writers.csv_rows import CsvFormat
from partfile.writers.json_lines import JsonLinesFormat
from partfile.writers.orc import OrcFormat
from partfile.writers.parquet import ParquetFormat
from partfile.writers.port import Format, RowFormat, RowWriter, Writer
from partfile.writers.text import TextFormat

if TYPE_CHECKING:
    from partfile.recovery.flink_sidecars import FlinkSidecars
    from partfile.recovery.layout import SidecarNaming
    from partfile.recovery.valid_length_filesystem import valid_length_filesystem
    from partfile.sink.reading import read
    from partfile.sink.spark.reading import read_spark

__all__ = [
    "AvroFormat",
    "BasePathBucketer",
    "BatchProgress",
    "BucketContext",
    "BucketValueError",
    "Bucketer",
    "CheckpointMismatch",
    "CommitConflict",
    "CompositeBucketer",
    "ConfigError",
    "CsvFormat",
    "DateTimeBucketer",
    "Fenced",
    "FileSink",
    "FlinkSidecars",
    "Format",
    "HiveBucketer",
    "JsonLinesFormat",
    "LocalSink",
    "OrcFormat",
    "OutcomeUnknown",
    "ParquetFormat",
    "PartMissing",
    "PartNaming",
    "PartProgress",
    "PartfileError",
    "RecoveryRefused",
    "RollingPolicy",
    "RowFormat",
    "RowWriter",
    "SidecarNaming",
    "SnapshotCorrupt",
    "SnapshotVersionError",
    "StoreError",
    "TextFormat",
    "UnsupportedTypeError",
    "Writer",
    "__version__",
    "dispose_savepoint",
    "list_savepoints",
    "read",
    "read_spark",
    "show_savepoint",
    "valid_length_filesystem",
]

_READERS = {
    "FlinkSidecars": "partfile.recovery.flink_sidecars",
    "SidecarNaming": "partfile.recovery.layout",
    "read": "partfile.sink.reading",
    "read_spark": "partfile.sink.spark.reading",
    "valid_length_filesystem": "partfile.recovery.valid_length_filesystem",
}


def __getattr__(name: str) -> Any:
    """Import a reader when it is first asked for."""
    if name not in _READERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_READERS[name]), name)
