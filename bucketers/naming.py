"""From distinct values to distinct buckets: each value is formatted once, bad ones go where the user says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from partfile.bucketers.escaping import check_length, escape_path
from partfile.filesystems.errors import BucketValueError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from partfile.bucketers.port import BucketContext

FAIL = "fail"
BAD = "\x00"
"""Marks a key without a bucket; no bucket can be called so."""


def column_field(schema: pa.Schema, name: str, bucketer: str) -> pa.Field[Any]:
    """The field of a column that a bucketer needs.

    Raises:
        ConfigError: It is missing or there are two of that name; the message lists the columns.
    """
    found = schema.get_all_field_indices(name)
    if len(found) != 1:
        problem = "there is no such column" if not found else "there are several of that name"
        raise ConfigError(f"{bucketer} needs column {name!r}, but {problem}; the columns are {', '.join(schema.names)}")
    return schema.field(found[0])


def named(keys: pa.Array[Any], name: Callable[[Any], str], context: BucketContext) -> pa.DictionaryArray[Any, Any]:
    """Give each distinct key its bucket.

    Args:
        keys: One key a row; nulls are keys too.
        name: From a key (None for null) to its bucket, safe as a path; may raise BucketValueError.
        context: Says what to do with a key that names none; it is marked as BAD if there is a fallback.
    """
    encoded: Any = keys if pa.types.is_dictionary(keys.type) and not keys.null_count else _encoded(keys)
    return renamed(encoded.indices, [_name_or_bad(key, name, context) for key in encoded.dictionary.to_pylist()])


def renamed(codes: pa.Array[Any], paths: Iterable[str]) -> pa.DictionaryArray[Any, Any]:
    """Codes into buckets of which two may be the same, as a dictionary array of distinct ones."""
    distinct: dict[str, int] = {}
    new_codes = [distinct.setdefault(check_length(path), len(distinct)) for path in paths]
    indices = pc.take(pa.array(new_codes, pa.int32()), codes)
    return pa.DictionaryArray.from_arrays(indices, pa.array(list(distinct), pa.string()))


def joined(levels: Sequence[pa.DictionaryArray[Any, Any]]) -> pa.DictionaryArray[Any, Any]:
    """Combine one bucket a level into paths; only combinations that occur are made. BAD at any level is BAD."""
    paths: Any = levels[0]
    for level in levels[1:]:
        width = max(1, len(level.dictionary))
        pairs = pc.add(pc.multiply(paths.indices.cast(pa.int64()), width), level.indices.cast(pa.int64()))
        encoded = pairs.dictionary_encode()
        outer: Any = paths.dictionary.to_pylist()
        inner: Any = level.dictionary.to_pylist()
        codes: Any = encoded.dictionary.to_pylist()
        paths = renamed(encoded.indices, [_join(outer[code // width], inner[code % width]) for code in codes])
    return paths


def with_fallback(buckets: pa.DictionaryArray[Any, Any], context: BucketContext) -> pa.DictionaryArray[Any, Any]:
    """Send the rows whose bucket is BAD to the fallback."""
    names = [str(name) for name in buckets.dictionary.to_pylist()]
    if BAD not in names:
        return buckets
    fallback = escape_path(context.on_bad_bucket)
    return renamed(buckets.indices, [fallback if name == BAD else name for name in names])


def _encoded(keys: Any) -> pa.DictionaryArray[Any, Any]:
    values = keys.dictionary_decode() if pa.types.is_dictionary(keys.type) else keys
    return values.dictionary_encode(null_encoding="encode")


def _join(outer: str, inner: str) -> str:
    if BAD in {outer, inner}:
        return BAD
    return "/".join(step for step in (outer, inner) if step)


def _name_or_bad(key: Any, name: Callable[[Any], str], context: BucketContext) -> str:
    try:
        return name(key)
    except BucketValueError as error:
        if context.on_bad_bucket == FAIL:
            raise BucketValueError(
                error.message, hint="Clean the value, or set on_bad_bucket to a bucket for such rows."
            ) from error
        return BAD
