"""partfile: a transactional file sink for PySpark and plain Python.

Importing this package needs neither Spark nor a client of any remote store. The readers are imported when they are
first asked for, since a task that writes does not need them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from partfile.bucketers.base import BucketContext, Bucketer
from partfile.bucketers.builtin import BasePathBucketer, CompositeBucketer
from partfile.bucketers.date_time import DateTimeBucketer
from partfile.bucketers.hive import HiveBucketer
from partfile.errors import (
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
from partfile.sink.policies import PartNaming, PartProgress, RollingPolicy
from partfile.sink.progress import BatchProgress
from partfile.snapshot.savepoints import dispose_savepoint, list_savepoints, show_savepoint
from partfile.version import __version__
from partfile.writers.avro import AvroFormat
from partfile.writers.base import Format, RowFormat, RowWriter, Writer
from partfile.writers.csv import CsvFormat
from partfile.writers.json import JsonLinesFormat
from partfile.writers.orc import OrcFormat
from partfile.writers.parquet import ParquetFormat
from partfile.writers.text import TextFormat

if TYPE_CHECKING:
    from partfile.readers.dataset import read
    from partfile.readers.files import FlinkSidecars, SidecarNaming
    from partfile.readers.filesystem import valid_length_filesystem
    from partfile.readers.spark import read_spark


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
    "FlinkSidecars": "partfile.readers.files",
    "SidecarNaming": "partfile.readers.files",
    "read": "partfile.readers.dataset",
    "read_spark": "partfile.readers.spark",
    "valid_length_filesystem": "partfile.readers.filesystem",
}


def __getattr__(name: str) -> Any:
    """Import a reader when it is first asked for."""
    if name not in _READERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_READERS[name]), name)
