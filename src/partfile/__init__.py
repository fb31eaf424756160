"""partfile: a transactional file sink for PySpark and plain Python.

A public name is imported when it is first asked for. So a program loads what it uses: neither Spark nor a client of a
remote store, and no pyarrow for a command that looks at no rows.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from partfile.version import __version__

if TYPE_CHECKING:
    from partfile.bucketers.base import BucketContext, Bucketer
    from partfile.bucketers.builtin import BasePathBucketer, CompositeBucketer
    from partfile.bucketers.date_time import DateTimeBucketer
    from partfile.bucketers.hive import HiveBucketer
    from partfile.errors import (
        AlreadyExists,
        BucketValueError,
        CheckpointMismatch,
        CommitConflict,
        CommitError,
        ConfigError,
        DirectoriesUnreadable,
        Fenced,
        FileTooLarge,
        LeaseUnavailable,
        NotApplied,
        NotFound,
        NotReady,
        OutcomeUnknown,
        PartDamaged,
        PartfileError,
        PartMissing,
        RecordError,
        RecoveryRefused,
        SnapshotCancelled,
        SnapshotCorrupt,
        SnapshotError,
        SnapshotVersionError,
        SourceError,
        StateTooLarge,
        StoreError,
        UnencodableState,
        UnsupportedTypeError,
    )
    from partfile.pipeline.files import FilesSource
    from partfile.pipeline.job import JobProgress, JobResult, Pipeline, Restart
    from partfile.pipeline.kafka import KafkaSource, RawBytes
    from partfile.pipeline.records import JsonRows
    from partfile.pipeline.source import IterableSource
    from partfile.readers.dataset import read
    from partfile.readers.files import FlinkSidecars, SidecarNaming
    from partfile.readers.filesystem import valid_length_filesystem
    from partfile.readers.schema import read_schema
    from partfile.readers.spark import read_spark
    from partfile.sink.file_sink import FileSink
    from partfile.sink.local import LocalSink
    from partfile.sink.policies import Deduplicate, Earliest, Latest, PartNaming, PartProgress, RollingPolicy
    from partfile.sink.progress import BatchProgress
    from partfile.snapshot.savepoints import dispose_savepoint, list_savepoints, show_savepoint
    from partfile.writers.avro import AvroFormat
    from partfile.writers.base import Format, RowFormat, RowWriter, Writer
    from partfile.writers.csv import CsvFormat
    from partfile.writers.json import JsonLinesFormat
    from partfile.writers.orc import OrcFormat
    from partfile.writers.parquet import ParquetFormat
    from partfile.writers.text import TextFormat

__all__ = [
    "AlreadyExists",
    "AvroFormat",
    "BasePathBucketer",
    "BatchProgress",
    "BucketContext",
    "BucketValueError",
    "Bucketer",
    "CheckpointMismatch",
    "CommitConflict",
    "CommitError",
    "CompositeBucketer",
    "ConfigError",
    "CsvFormat",
    "DateTimeBucketer",
    "Deduplicate",
    "DirectoriesUnreadable",
    "Earliest",
    "Fenced",
    "FileSink",
    "FileTooLarge",
    "FilesSource",
    "FlinkSidecars",
    "Format",
    "HiveBucketer",
    "IterableSource",
    "JobProgress",
    "JobResult",
    "JsonLinesFormat",
    "JsonRows",
    "KafkaSource",
    "Latest",
    "LeaseUnavailable",
    "LocalSink",
    "NotApplied",
    "NotFound",
    "NotReady",
    "OrcFormat",
    "OutcomeUnknown",
    "ParquetFormat",
    "PartDamaged",
    "PartMissing",
    "PartNaming",
    "PartProgress",
    "PartfileError",
    "Pipeline",
    "RawBytes",
    "RecordError",
    "RecoveryRefused",
    "Restart",
    "RollingPolicy",
    "RowFormat",
    "RowWriter",
    "SidecarNaming",
    "SnapshotCancelled",
    "SnapshotCorrupt",
    "SnapshotError",
    "SnapshotVersionError",
    "SourceError",
    "StateTooLarge",
    "StoreError",
    "TextFormat",
    "UnencodableState",
    "UnsupportedTypeError",
    "Writer",
    "__version__",
    "dispose_savepoint",
    "list_savepoints",
    "read",
    "read_schema",
    "read_spark",
    "show_savepoint",
    "valid_length_filesystem",
]

_NAMES = {
    "partfile.bucketers.base": ("BucketContext", "Bucketer"),
    "partfile.bucketers.builtin": ("BasePathBucketer", "CompositeBucketer"),
    "partfile.bucketers.date_time": ("DateTimeBucketer",),
    "partfile.bucketers.hive": ("HiveBucketer",),
    "partfile.errors": (
        "AlreadyExists",
        "BucketValueError",
        "CheckpointMismatch",
        "CommitConflict",
        "CommitError",
        "ConfigError",
        "DirectoriesUnreadable",
        "Fenced",
        "FileTooLarge",
        "LeaseUnavailable",
        "NotApplied",
        "NotFound",
        "NotReady",
        "OutcomeUnknown",
        "PartDamaged",
        "PartMissing",
        "PartfileError",
        "RecordError",
        "RecoveryRefused",
        "SnapshotCancelled",
        "SnapshotCorrupt",
        "SnapshotError",
        "SnapshotVersionError",
        "SourceError",
        "StateTooLarge",
        "StoreError",
        "UnencodableState",
        "UnsupportedTypeError",
    ),
    "partfile.pipeline.job": ("JobProgress", "JobResult", "Pipeline", "Restart"),
    "partfile.pipeline.files": ("FilesSource",),
    "partfile.pipeline.kafka": ("KafkaSource", "RawBytes"),
    "partfile.pipeline.records": ("JsonRows",),
    "partfile.pipeline.source": ("IterableSource",),
    "partfile.readers.dataset": ("read",),
    "partfile.readers.files": ("FlinkSidecars", "SidecarNaming"),
    "partfile.readers.filesystem": ("valid_length_filesystem",),
    "partfile.readers.schema": ("read_schema",),
    "partfile.readers.spark": ("read_spark",),
    "partfile.sink.file_sink": ("FileSink",),
    "partfile.sink.local": ("LocalSink",),
    "partfile.sink.policies": ("Deduplicate", "Earliest", "Latest", "PartNaming", "PartProgress", "RollingPolicy"),
    "partfile.sink.progress": ("BatchProgress",),
    "partfile.snapshot.savepoints": ("dispose_savepoint", "list_savepoints", "show_savepoint"),
    "partfile.writers.avro": ("AvroFormat",),
    "partfile.writers.base": ("Format", "RowFormat", "RowWriter", "Writer"),
    "partfile.writers.csv": ("CsvFormat",),
    "partfile.writers.json": ("JsonLinesFormat",),
    "partfile.writers.orc": ("OrcFormat",),
    "partfile.writers.parquet": ("ParquetFormat",),
    "partfile.writers.text": ("TextFormat",),
}
"""The module of each public name."""
_MODULES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Kept, so that the next look at it is one of a plain attribute.
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    """All public names, also those that are not imported yet."""
    return sorted({*globals(), *__all__})
