"""partfile: a transactional file sink for PySpark and plain Python.

Importing this package needs neither Spark nor a client of any remote store.
"""

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
from partfile.writers.csv_rows import CsvFormat
from partfile.writers.json_lines import JsonLinesFormat
from partfile.writers.parquet import ParquetFormat
from partfile.writers.port import Format, RowFormat, RowWriter, Writer
from partfile.writers.text import TextFormat

__all__ = [
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
    "Format",
    "HiveBucketer",
    "JsonLinesFormat",
    "LocalSink",
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
    "SnapshotCorrupt",
    "SnapshotVersionError",
    "StoreError",
    "TextFormat",
    "UnsupportedTypeError",
    "Writer",
    "__version__",
    "dispose_savepoint",
    "list_savepoints",
    "show_savepoint",
]
