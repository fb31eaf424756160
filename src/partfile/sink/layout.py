"""The columns of a row that go into a file, their fingerprint, and the settings that every subtask gets."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from partfile.bucketers.base import BucketContext
from partfile.errors import ConfigError
from partfile.sink.multi_bucket import Sharing, shared_schema
from partfile.writers.arrow_staging import StagingFormat
from partfile.writers.base import BulkFormat, RowFormat
from partfile.writers.columns import as_plain, plain_schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from pydantic import JsonValue

    from partfile.bucketers.base import Bucketer
    from partfile.sink.policies import PartNaming, RollingPolicy
    from partfile.writers.base import Format


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The columns that go into the file, and their fingerprint."""

    schema: pa.Schema
    """The columns of the file: those of the rows less the ones that the path holds."""
    fingerprint: str
    """Digest of these columns and the format: parts with another one are not appended to."""
    is_shared: bool = False
    """Set for the layout of a multi-bucket staging file."""
    is_plain: bool = False
    """Whether rows are laid out as plain columns: Arrow moves no rows of others, as views and runs are."""

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns of a batch that go into the file."""
        kept = batch if len(self.schema) == batch.num_columns else batch.select(self.schema.names)
        return as_plain(kept, self.schema) if self.is_plain else kept


class RowLayouts:
    """The layout of each schema that comes along, checked once.

    Args:
        bucketer: Says which columns the path holds.
        format: What readers see.
        staging_file: What rows are staged in before that; None where they are not.
    """

    def __init__(self, bucketer: Bucketer, format: Format, staging_file: Format | None = None) -> None:
        self._bucketer = bucketer
        self._format = format
        self._staging_file = staging_file
        self._known: dict[pa.Schema, RowLayout] = {}
        self._shared: dict[str, RowLayout] = {}
        self._context: BucketContext | None = None

    def of(self, schema: pa.Schema) -> RowLayout:
        """The layout of ``schema``.

        Raises:
            ConfigError: The bucketer cannot work on it, or two columns have one name.
            UnsupportedTypeError: The format has no form for a column.
        """
        import pyarrow as pa  # noqa: PLC0415 - commands that see no rows do not load it.

        layout = self._known.get(schema)
        if layout is None:
            _check_names(schema)
            self._bucketer.check(schema)
            dropped = set(self._bucketer.dropped_columns)
            bare = schema.remove_metadata()
            kept = pa.schema([field for field in bare if field.name not in dropped])
            # Lines are moved instead of rows, where there are lines.
            is_plain = not isinstance(self._format, RowFormat)
            if is_plain:
                kept = plain_schema(kept)
            self._format.check(kept)
            if self._staging_file is not None:
                self._staging_file.check(kept)
            layout = self._known[schema] = RowLayout(kept, self._fingerprint(kept), is_plain=is_plain)
        return layout

    def shared(self, layout: RowLayout) -> RowLayout:
        """The layout of the multi-bucket staging file for rows that have the layout ``layout``."""
        known = self._shared.get(layout.fingerprint)
        if known is None:
            schema = shared_schema(self._format, layout.schema)
            # The same bytes may be a layout of rows, which belong into parts of their own.
            known = RowLayout(schema, self._fingerprint(schema, b" shared"), is_shared=True)
            self._shared[layout.fingerprint] = known
        return known

    def _fingerprint(self, schema: pa.Schema, way: bytes = b"") -> str:
        digest = hashlib.sha256(schema.serialize().to_pybytes() + _identity(self._format).encode() + way)
        return digest.hexdigest()[:16]

    def context(self, subtask: SubtaskContext, description: SinkDescription) -> BucketContext:
        """The context that the bucketer gets in this batch."""
        if self._context is None or self._context.batch_time_ms != subtask.batch_time_ms:
            self._context = BucketContext(batch_time_ms=subtask.batch_time_ms, on_bad_bucket=description.on_bad_bucket)
        return self._context


def _check_names(schema: pa.Schema) -> None:
    doubled = [name for index, name in enumerate(schema.names) if name in schema.names[:index]]
    if doubled:
        raise ConfigError(
            f"two columns have the name {doubled[0]!r}",
            hint="Rename or drop one of them: df.withColumnRenamed(OLD, NEW) or df.drop(NAME)",
        )


def _identity(format: Format) -> str:
    # The default repr of an object holds its address, which another process does not share.
    cls = type(format)
    shown = repr(format) if cls.__repr__ is not object.__repr__ else format.suffix
    return f"{cls.__module__}.{cls.__qualname__} {shown}"


@dataclass(frozen=True, slots=True)
class SinkDescription:
    """The settings of an operator that are the same for all subtasks and batches. Picklable."""

    format: Format
    bucketer: Bucketer
    rolling: RollingPolicy
    naming: PartNaming
    max_open_parts: int
    on_bad_bucket: str
    spec: Mapping[str, JsonValue] | None = None
    """Format spec of a staging file of one bucket; None where the parts of a bucket are not staged."""
    multi_bucket_spec: Mapping[str, JsonValue] | None = None
    """Format spec of a multi-bucket staging file; None where buckets share none."""
    staging_compression: Literal["auto", "lz4", "zstd", "none"] = "auto"
    """Compression of staging files; ``auto`` asks the store."""
    buckets_per_staging_file: int = 0
    """Most buckets in one batch of a subtask that share no staging file."""

    @property
    def sharing(self) -> Sharing:
        """The limits beyond which rows share a staging file, where they may."""
        return Sharing(self.buckets_per_staging_file, self.rolling.max_part_bytes, self.max_open_parts)

    def staged_in(self, *, travels: bool) -> StagingFormat:
        """The format of staging files: columns that the sink's format can hold, or its encoded lines.

        Args:
            travels: Whether staging files go to the store over a network.
        """
        chosen = self.staging_compression
        if chosen == "auto":
            chosen = "lz4" if travels else "none"
        return StagingFormat(self.format if isinstance(self.format, BulkFormat) else None, compression=chosen)


@dataclass(frozen=True, slots=True)
class SubtaskContext:
    """The subtask and attempt of an operator in this batch, as the coordinator says."""

    subtask: int
    attempt: int
    """0 for a first run. A hint, not a fence (R2)."""
    epoch: int
    chain: str
    batch_time_ms: int
    """The coordinator's time, in milliseconds since 1970 (R8)."""
    may_keep: bool = True
    """Whether parts may stay open over the checkpoint; False where the store cannot append, as its coordinator has
    found out, or leases are not proven (R13)."""
    may_stage: bool = False
    """Whether the store reads staging files back, as its coordinator has found out; else columnar parts roll at every
    checkpoint."""
    encoded_ratio: float | None = None
    """Bytes of encoded files for each byte of their staging files, as far as the coordinator has seen some."""
