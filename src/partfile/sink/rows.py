"""What a LocalSink is handed rows in: anything with an Arrow form, frames of pandas, lists of dictionaries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from partfile.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import JsonValue


class ArrowStream(Protocol):
    """What hands its rows over as a stream, for instance a frame of polars or a relation of DuckDB.

    Of the Arrow PyCapsule interface, https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html.
    """

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The capsule of the stream."""


class ArrowArray(Protocol):
    """What hands its rows over at once, as an array of structs; of the same interface."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        """The capsules of the schema and of the array."""


Row: TypeAlias = Mapping[str, object]
Rows: TypeAlias = ArrowStream | ArrowArray | Sequence[Row]
"""Rows that are written at once."""

ROWS_AT_ONCE = 10_000
"""Dictionaries that ``chunks_of`` collects."""

_REFUSALS = (pa.ArrowException, TypeError, ValueError, OverflowError)
"""What pyarrow raises for values of another type."""
_ANY_SCHEMA = 'local(schema=pyarrow.schema({"name": "string"}))'
_Item = TypeVar("_Item")


def batches_of(rows: object, schema: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
    """The record batches of some rows. A stream is read while they are taken; all else is converted before.

    Args:
        rows: As ``Rows``, or a frame of any pandas, whose index is left out.
        schema: Of dictionaries; not needed for all others, which have one.

    Raises:
        ConfigError: They are none of these, or values do not fit the schema.
    """
    if isinstance(rows, pa.RecordBatch):
        return iter([rows])
    if type(rows).__module__.partition(".")[0] == "pandas":
        # By pandas' own stream an index would be a column.
        rows = _converted(rows, lambda: pa.Table.from_pandas(rows, preserve_index=False).replace_schema_metadata())
    if hasattr(rows, "__arrow_c_stream__"):
        return iter(_converted(rows, lambda: pa.RecordBatchReader.from_stream(rows)))
    if hasattr(rows, "__arrow_c_array__"):
        return iter([_converted(rows, lambda: pa.record_batch(rows))])
    if (
        isinstance(rows, Sequence)
        and not isinstance(rows, str | bytes)
        and all(isinstance(row, Mapping) for row in rows)
    ):
        return iter([_batch_of(rows, schema)])
    if isinstance(rows, Mapping):
        what, hint = "one dictionary", "Write a list: write([row]); or hand an iterable of them to write_all."
    elif isinstance(rows, Iterable):
        what, hint = f"an iterable ({_kind(rows)})", "Hand it to write_all, or make it a pyarrow.Table."
    else:
        what, hint = f"of type {_kind(rows)}", "Make it a pyarrow.Table, or a list of dictionaries."
    raise ConfigError(f"rows are {what}; write takes what has an Arrow form, and lists of dictionaries", hint=hint)


def chunks_of(
    items: Iterable[_Item], position: Callable[[_Item], JsonValue] | None, *, done: int, most: int
) -> Iterator[tuple[object, JsonValue]]:
    """Rows to be written at once, each with where the input stands after them.

    Args:
        items: Dictionaries, of which some are written at once; or other rows, each by itself.
        position: Tells where the input stands after an item; None counts the items.
        done: How many came before.
        most: Most dictionaries that are written at once.

    Raises:
        ConfigError: ``position`` returned None.
    """
    waiting: list[Row] = []
    stands: JsonValue = None
    for count, item in enumerate(items, done + 1):
        if not isinstance(item, Mapping) and waiting:
            yield waiting, stands
            waiting = []
        stands = count if position is None else position(item)
        if stands is None:
            raise ConfigError(
                f"position returned None for item {count}",
                hint="Return where the input stands, for instance its offset.",
            )
        if not isinstance(item, Mapping):
            yield item, stands
            continue
        waiting.append(item)
        if len(waiting) >= most:
            yield waiting, stands
            waiting = []
    if waiting:
        yield waiting, stands


def _converted(rows: object, convert: Callable[[], Any]) -> Any:
    """What a conversion makes; raises ConfigError where it cannot."""
    try:
        return convert()
    except _REFUSALS as error:
        raise ConfigError(
            f"rows of type {_kind(rows)} cannot be converted: {error}",
            hint="Write rows with named columns, for instance a frame, a pyarrow.Table or a list of dictionaries.",
        ) from error


def _batch_of(rows: Sequence[Row], schema: pa.Schema | None) -> pa.RecordBatch:
    if schema is None:
        raise ConfigError("rows are dictionaries, whose types are not known", hint=f"Pass {_schema_words(rows)}.")
    known = set(schema.names)
    for number, row in enumerate(rows):
        if not known.issuperset(row):
            unknown = next(name for name in row if name not in known)
            raise ConfigError(
                f"row {number} of those that were handed over has {unknown!r}, which is no column of the schema",
                hint=f"Leave it out, or add it to local(schema=...), which has {', '.join(schema.names)}.",
            )
    return pa.record_batch([_column_of(rows, field) for field in schema], schema=schema)


def _column_of(rows: Sequence[Row], field: pa.Field) -> pa.Array:
    if not field.nullable:
        for number, row in enumerate(rows):
            if row.get(field.name) is None:
                raise ConfigError(
                    f"row {number} of those that were handed over has no {field.name!r}, which may not be null",
                    hint=f"Give it a value, or let pa.field({field.name!r}, ...) be nullable in local(schema=...).",
                )
    try:
        return pa.array([row.get(field.name) for row in rows], field.type)
    except _REFUSALS as error:
        raise ConfigError(
            f"values of {field.name!r} do not fit its type {field.type}: {error}",
            hint=f"Convert them, or give {field.name!r} another type in local(schema=...).",
        ) from error


def _schema_words(rows: Sequence[Row]) -> str:
    """The argument that would say the types, as they look in the first rows."""
    try:
        found = pa.Table.from_pylist([dict(row) for row in rows[:100]]).schema
    except _REFUSALS:
        return _ANY_SCHEMA
    types = ", ".join(f'"{field.name}": "{field.type}"' for field in found)
    is_short = not any(pa.types.is_nested(field.type) for field in found)
    return f"local(schema=pyarrow.schema({{{types}}}))" if is_short else _ANY_SCHEMA


def _kind(rows: object) -> str:
    kind = type(rows)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
