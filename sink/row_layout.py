"""How the rows of one schema are laid out in a file: which columns, under which fingerprint."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from partfile.bucketers.port import BucketContext
from partfile.filesystems.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from partfile.bucketers.port import Bucketer
    from partfile.sink.description import SinkDescription, SubtaskContext
    from partfile.writers.port import Format


@dataclass(frozen=True, slots=True)
class RowLayout:
    """What of a row goes into the file."""

    schema: pa.Schema
    """The columns of the file: those of the rows less the ones that the path holds."""
    fingerprint: str
    """Digest of these columns and the format: parts with another one are not appended to."""

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns of a batch that go into the file."""
        return batch if len(self.schema) == batch.num_columns else batch.select(self.schema.names)


class RowLayouts:
    """The layout of each schema that comes along, checked once.

    Args:
        bucketer: Says which columns the path holds.
        format: What readers see.
        stage: What rows are staged in before that; None where they are not.
    """

    def __init__(self, bucketer: Bucketer, format: Format, stage: Format | None = None) -> None:
        self._bucketer = bucketer
        self._format = format
        self._stage = stage
        self._known: dict[pa.Schema, RowLayout] = {}
        self._context: BucketContext | None = None

    def of(self, schema: pa.Schema) -> RowLayout:
        """The layout of ``schema``.

        Raises:
            ConfigError: The bucketer cannot work on it, or two columns have one name.
            UnsupportedTypeError: The format has no form for a column.
        """
        layout = self._known.get(schema)
        if layout is None:
            _check_names(schema)
            self._bucketer.check(schema)
            dropped = set(self._bucketer.dropped_columns)
            bare = schema.remove_metadata()
            kept = bare.empty_table().select([name for name in bare.names if name not in dropped]).schema
            self._format.check(kept)
            if self._stage is not None:
                self._stage.check(kept)
            digest = hashlib.sha256(kept.serialize().to_pybytes() + _identity(self._format).encode())
            layout = self._known[schema] = RowLayout(kept, digest.hexdigest()[:16])
        return layout

    def context(self, subtask: SubtaskContext, description: SinkDescription) -> BucketContext:
        """What the bucketer may know in this batch."""
        if self._context is None or self._context.batch_time_ms != subtask.batch_time_ms:
            self._context = BucketContext(batch_time_ms=subtask.batch_time_ms, on_bad_bucket=description.on_bad_bucket)
        return self._context


def _check_names(schema: pa.Schema) -> None:
    doubled = [name for index, name in enumerate(schema.names) if name in schema.names[:index]]
    if doubled:
        raise ConfigError(f"two columns have the name {doubled[0]!r}", hint="Rename or drop one of them.")


def _identity(format: Format) -> str:
    # The default repr of an object holds its address, which another process does not share.
    cls = type(format)
    shown = repr(format) if cls.__repr__ is not object.__repr__ else format.suffix
    return f"{cls.__module__}.{cls.__qualname__} {shown}"
