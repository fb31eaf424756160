"""Staging files that many buckets share: which rows go there, and how they are laid out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from partfile.writers.base import EncodedRows, RowFormat
from partfile.writers.columns import as_plain, plain_schema

if TYPE_CHECKING:
    from collections.abc import Collection

    from partfile.writers.base import Format


_PART_OF_ITS_OWN = 64
"""A slice of a 64th of a part is worth a part of its own, however many buckets there are."""
_BUCKET = "bucket"
_LINE = "line"
_ROWS_SCHEMA = b"partfile.rows"
_PATHS = pa.large_string()


@dataclass(frozen=True, slots=True)
class Sharing:
    """The limits beyond which rows share a staging file."""

    most_buckets: int
    """Most buckets in one batch of a subtask that each have a part of their own."""
    max_part_bytes: int
    """The size at which a part is rolled, in bytes."""
    max_open_parts: int
    """Most parts a subtask holds open; one more would close another."""

    def room_beside(self, opened: OpenKeys) -> int:
        """The number of parts that can be opened beside those that are."""
        # A cap below `most_buckets` limits files; sharing is not used to save them.
        return max(self.max_open_parts, self.most_buckets) - opened.count

    def may_be_for(self, buckets: int, opened: OpenKeys) -> bool:
        """Whether rows of a batch of so many buckets may share a staging file."""
        return buckets > min(self.most_buckets, self.room_beside(opened))


@dataclass(frozen=True, slots=True)
class OpenKeys:
    """The keys of the parts that a subtask has open, or was handed as open."""

    keys: tuple[Collection[tuple[str, str]], ...]
    """Buckets and fingerprints, a part each; in none of them twice."""
    fingerprint: str
    """Of the rows at hand."""

    @property
    def count(self) -> int:
        """The number of open parts, of all buckets and schemas."""
        return sum(map(len, self.keys))

    def has(self, bucket: str) -> bool:
        """Whether a bucket has one for the rows at hand."""
        return any((bucket, self.fingerprint) in some for some in self.keys)


class Parted(NamedTuple):
    """The rows of a batch by where they go."""

    shared: pa.Array[Any]
    """Those for the multi-bucket staging file, bucket by bucket, each bucket's in their order."""
    own: pa.Array[Any]
    """The others, in their order."""
    buckets: int
    """The number of buckets that share."""


def parted(buckets: pa.DictionaryArray[Any, Any], size_bytes: int, sharing: Sharing, opened: OpenKeys) -> Parted | None:
    """Say which rows go to the multi-bucket staging file.

    Small slices in a batch of many buckets, or where many parts are open.

    Those of buckets with an open part go there, unless that would be many parts to open and sync for few rows each.
    Stateless: what a slice does depends on its batch and on the parts that are open, so any attempt does the same.

    Args:
        buckets: One bucket a row, checked.
        size_bytes: Of the batch; its rows count as equally large.
        sharing: The limits beyond which rows share a staging file.
        opened: What is open.

    Returns:
        None if every row goes to a part of its bucket's own.
    """
    names = buckets.dictionary
    if not sharing.may_be_for(len(names), opened):
        return None
    room = sharing.room_beside(opened)
    counts: Any = pc.value_counts(buckets.indices)
    has_many = len(counts) > sharing.most_buckets
    if not has_many and len(counts) <= room:
        return None
    most_rows = sharing.max_part_bytes / _PART_OF_ITS_OWN * len(buckets) / max(1, size_bytes)
    codes, rows = counts.field("values"), counts.field("counts")
    slices = list(zip(codes.to_pylist(), rows.to_pylist(), map(opened.has, names.take(codes).to_pylist()), strict=True))
    if not has_many and sum(not is_open for _, _, is_open in slices) <= room:
        return None
    small = [(code, is_open) for code, count, is_open in slices if count < most_rows]
    if sum(is_open for _, is_open in small) <= sharing.most_buckets:
        small = [(code, is_open) for code, is_open in small if not is_open]
    if not small:
        return None
    order: Any = pc.sort_indices(buckets.indices)
    if len(small) == len(counts):
        return Parted(order, order.slice(0, 0), len(small))
    shared = pa.array([code for code, _ in small], buckets.indices.type)
    is_small: Any = pc.is_in(buckets.indices, value_set=shared)
    return Parted(order.filter(is_small.take(order)), pc.indices_nonzero(pc.invert(is_small)), len(small))


def shared_schema(form: Format, schema: pa.Schema) -> pa.Schema:
    """The columns of a multi-bucket staging file.

    Args:
        form: What readers will see.
        schema: The columns of a file.
    """
    if isinstance(form, RowFormat):
        columns = [pa.field(_LINE, pa.large_binary()), pa.field(_BUCKET, _PATHS)]
        # A header cannot be made of lines.
        return pa.schema(columns, {_ROWS_SCHEMA: schema.serialize().to_pybytes()})
    name = _BUCKET
    while name in schema.names:
        name += "_"
    return plain_schema(schema).append(pa.field(name, _PATHS))


def file_schema(form: Format, shared: pa.Schema) -> pa.Schema:
    """The columns of a file, from those of the multi-bucket staging file that its rows lie in.

    Raises:
        ValueError: It is no such schema.
    """
    if len(shared) == 0 or shared.field(len(shared) - 1).type != _PATHS:
        raise ValueError("its last column does not say the buckets")
    if not isinstance(form, RowFormat):
        return shared.remove(len(shared) - 1)
    described = schema_of_lines(shared)
    if described is None:
        raise ValueError("it holds no lines, or does not say of what")
    return described


def schema_of_lines(shared: pa.Schema) -> pa.Schema | None:
    """The columns of the rows that have become the lines of a multi-bucket staging file.

    None if it holds rows, or is not shared.
    """
    described = (shared.metadata or {}).get(_ROWS_SCHEMA)
    if described is None or shared.types != [pa.large_binary(), _PATHS]:
        return None
    return pa.ipc.read_schema(pa.py_buffer(described))


def shared_rows(
    content: pa.RecordBatch | EncodedRows,
    order: pa.Array[Any],
    buckets: pa.DictionaryArray[Any, Any],
    schema: pa.Schema,
) -> pa.RecordBatch:
    """Rows as they lie in a multi-bucket staging file.

    Args:
        content: A batch, as rows or as lines.
        order: Which of its rows, in which order.
        buckets: The bucket of each row of the batch.
        schema: As ``shared_schema`` made it.
    """
    taken = content.take(order)
    paths: Any = buckets.dictionary.cast(_PATHS).take(buckets.indices.take(order))
    return pa.RecordBatch.from_arrays([*_columns(taken), paths], schema=schema)


def longest_bucket(rows: pa.RecordBatch) -> str:
    """The bucket with the longest path, in bytes, of rows as they lie in a multi-bucket staging file.

    There has to be one.
    """
    paths: Any = rows.column(rows.num_columns - 1)
    lengths: Any = pc.binary_length(paths)
    longest: Any = pc.index(lengths, pc.max(lengths))
    return str(paths[longest.as_py()])


def _columns(taken: pa.RecordBatch | EncodedRows) -> list[Any]:
    if isinstance(taken, EncodedRows):
        return [taken.lines()]
    return [*as_plain(taken, plain_schema(taken.schema)).columns]
