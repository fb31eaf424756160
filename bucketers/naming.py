"""From distinct values to distinct buckets: each value is formatted once, bad ones go where the user says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from partfile.bucketers.escaping import check_length
from partfile.filesystems.errors import BucketValueError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from partfile.bucketers.port import BucketContext

FAIL = "fail"
BAD = "\x00"
"""Marks a key without a bucket; no bucket can be called so. As ``on_bad_bucket`` it leaves the marks as they are."""
UNREADABLE = object()
"""Stands for a date or time that Python cannot hold."""


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


def value_type(kind: Any) -> Any:
    """The type of the values, be they dictionary-encoded or not."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def is_name(value: object) -> bool:
    """Whether a user's ``value`` can name a column."""
    return isinstance(value, str) and bool(value)


def all_rows_in(bucket: str, rows: int) -> pa.DictionaryArray[Any, Any]:
    """The same bucket for every row."""
    return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), rows), pa.array([bucket]))


def named(keys: pa.Array[Any], name: Callable[[Any], str], context: BucketContext) -> pa.DictionaryArray[Any, Any]:
    """Give each distinct key that occurs its bucket.

    Args:
        keys: One key a row; nulls are keys too.
        name: From a key (None for null) to its bucket, safe as a path; may raise BucketValueError. Text that is no
            valid UTF-8 comes with lone surrogates, which no path can hold; a time beyond Python's as UNREADABLE.
        context: Says what to do with a key that names none; it is marked as BAD if there is a fallback.
    """
    codes, distinct = _encoded(keys)
    return _renamed(codes, [_name_or_bad(key, name, context) for key in _python_values(distinct)])


def joined(levels: Sequence[pa.DictionaryArray[Any, Any]], context: BucketContext) -> pa.DictionaryArray[Any, Any]:
    """Combine one bucket a level into paths; only combinations that occur are made. BAD at any level is BAD."""
    paths: Any = levels[0]
    for level in levels[1:]:
        width = max(1, len(level.dictionary))
        pairs = pc.add(pc.multiply(paths.indices.cast(pa.int64()), width), level.indices.cast(pa.int64()))
        encoded = pairs.dictionary_encode()
        outer: Any = paths.dictionary.to_pylist()
        inner: Any = level.dictionary.to_pylist()
        steps = [(outer[code // width], inner[code % width]) for code in encoded.dictionary.to_pylist()]
        paths = _renamed(encoded.indices, [_name_or_bad(pair, _join, context) for pair in steps])
    return paths


def with_fallback(buckets: pa.DictionaryArray[Any, Any], context: BucketContext) -> pa.DictionaryArray[Any, Any]:
    """Send the rows whose bucket is BAD to the fallback, as a whole: no level of their own path is kept."""
    names = [str(name) for name in buckets.dictionary.to_pylist()]
    if BAD not in names:
        return buckets
    return _renamed(buckets.indices, [context.on_bad_bucket if name == BAD else name for name in names])


def _renamed(codes: pa.Array[Any], paths: Iterable[str]) -> pa.DictionaryArray[Any, Any]:
    """Codes into buckets of which two may be the same, as a dictionary array of distinct ones."""
    distinct: dict[str, int] = {}
    new_codes = [distinct.setdefault(path, len(distinct)) for path in paths]
    indices = pc.take(pa.array(new_codes, pa.int32()), codes)
    return pa.DictionaryArray.from_arrays(indices, pa.array(list(distinct), pa.string()))


def _encoded(keys: Any) -> tuple[Any, Any]:
    """Codes and the distinct keys: just those that occur, since a sliced dictionary has others too."""
    if pa.types.is_dictionary(keys.type):
        used = keys.indices.dictionary_encode(null_encoding="encode")
        return used.indices, keys.dictionary.take(used.dictionary)
    encoded = keys.dictionary_encode(null_encoding="encode")
    return encoded.indices, encoded.dictionary


def _python_values(values: Any) -> list[Any]:
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        # Spark's strings need not be UTF-8, and nothing has checked them on the way.
        raw = values.cast(pa.large_binary() if pa.types.is_large_string(kind) else pa.binary())
        return [None if text is None else text.decode(errors="surrogateescape") for text in raw.to_pylist()]
    try:
        return list(values.to_pylist())
    except (OverflowError, ValueError):
        return [_python_value(value) for value in values]


def _python_value(value: Any) -> Any:
    try:
        return value.as_py()
    except (OverflowError, ValueError):
        return UNREADABLE


def _join(steps: tuple[str, str]) -> str:
    return BAD if BAD in steps else check_length("/".join(step for step in steps if step))


def _name_or_bad(key: Any, name: Callable[[Any], str], context: BucketContext) -> str:
    try:
        return name(key)
    except BucketValueError as error:
        if context.on_bad_bucket == FAIL:
            raise BucketValueError(
                error.message, hint="Clean the value, or set on_bad_bucket to a bucket for such rows."
            ) from error
        return BAD
