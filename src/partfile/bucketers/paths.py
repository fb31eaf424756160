"""Bucket paths from column values: each distinct value is formatted and escaped once.

``split`` turns what a bucketer returned into the rows of each bucket, and refuses a path that is not safe.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from partfile.bucketers.base import check_length, is_safe_path
from partfile.errors import BucketValueError, ConfigError, page_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from partfile.bucketers.base import BucketContext


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
        once = [each for each in schema.names if schema.names.count(each) == 1]
        folded = {each.lower(): each for each in reversed(once)}
        near = difflib.get_close_matches(name.lower(), folded, 1)
        example = once[0] if once else "name"
        meant = (
            f"Did you mean {folded[near[0]]!r}?"
            if near and not found
            else f"Name one of them that is there once, as HiveBucketer({example!r})."
        )
        raise ConfigError(
            f"{bucketer} needs column {name!r}, but {problem}; the columns are {', '.join(schema.names)}", hint=meant
        )
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
                error.message, hint="Clean the value, or give such rows a bucket: on_bad_bucket='bad'"
            ) from error
        return BAD


class Slice(NamedTuple):
    """A run of rows of one bucket."""

    bucket: str
    start: int
    stop: int


class Split(NamedTuple):
    """The rows of each bucket, as slices of one order."""

    order: pa.Array[Any] | None
    """The rows to take, in this order, before the slices hold; None if they may stay where they are."""
    slices: list[Slice]


def split(rows: int, buckets: pa.DictionaryArray[Any, Any], *, most_runs: int = 0) -> Split:
    """Say how the rows of each bucket come together, in their order: one stable sort of integer codes.

    No row is moved here, for the caller knows what is cheapest to move: rows, or the lines they have become.

    Args:
        rows: How many rows there are.
        buckets: One bucket a row, as ``Bucketer.bucket_of`` returns them.
        most_runs: Up to so many runs the rows are left where they are, and a bucket may come in several slices, in
            order. That is cheaper where the caller gathers them itself.

    Raises:
        ConfigError: The buckets are not what a bucketer must return; rows would be lost or land outside the base.
    """
    check_buckets(rows, buckets)
    if rows == 0:
        return Split(None, [])
    codes, names = buckets.indices, buckets.dictionary.to_pylist()
    encoded = pc.run_end_encode(codes)
    runs = len(encoded.values)
    order: Any = None
    # More runs than buckets: some bucket's rows are apart. Fewer: look whether one comes twice.
    if runs > most_runs and (runs > len(names) or len(encoded.values.unique()) < runs):
        order = pc.sort_indices(codes)
        encoded = pc.run_end_encode(codes.take(order))
    ends = encoded.run_ends.to_pylist()
    slices = zip(encoded.values.to_pylist(), [0, *ends[:-1]], ends, strict=True)
    return Split(order, [Slice(str(names[code]), start, stop) for code, start, stop in slices])


def check_buckets(rows: int, buckets: Any) -> None:
    """Refuse what no bucketer may return; those of users' own are asked, not believed.

    Args:
        rows: How many rows it was asked about.
        buckets: Its answer.

    Raises:
        ConfigError: Rows would be lost, or land outside the base.
    """
    problem = ""
    if not isinstance(buckets, pa.DictionaryArray) or not pa.types.is_string(buckets.type.value_type):
        problem = f"is not a dictionary array of strings but {getattr(buckets, 'type', type(buckets))}"
    elif len(buckets) != rows:
        problem = f"names {len(buckets)} buckets for {rows} rows"
    elif buckets.indices.null_count or buckets.dictionary.null_count:
        problem = "has nulls"
    else:
        unsafe = [name for name in buckets.dictionary.to_pylist() if not is_safe_path(str(name))]
        problem = f"names the bucket {str(unsafe[0])[:60]!r}, which is not safe as a path" if unsafe else ""
    if problem:
        raise ConfigError(
            f"what the bucketer returned {problem}", hint=f"Return one string a row. {page_url('BUCKETERS')}"
        )
