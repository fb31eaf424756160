"""What a LocalSink is handed: rows in whatever has an Arrow form, or as dictionaries, and where their input stands."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from datetime import datetime, time, timedelta
from decimal import Decimal
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, cast

import pyarrow as pa

from partfile.errors import ConfigError
from partfile.stores.checksums import crc32_of

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
_ANY_SCHEMA = 'local(schema={"name": "string"})'


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
    if _is_pandas(rows):
        # By pandas' own stream an index would be a column.
        rows = _converted(
            rows,
            lambda: pa.Table.from_pandas(rows, preserve_index=False).replace_schema_metadata(),
            "Give each column a name of its own, and values of one type: frame.astype({'COLUMN': 'str'})",
        )
    _check_lazy(rows)
    _check_polars(rows)
    if hasattr(rows, "__arrow_c_stream__"):
        return iter(_converted(rows, lambda: pa.RecordBatchReader.from_stream(rows)))
    if hasattr(rows, "__arrow_c_array__"):
        return iter([_converted(rows, lambda: pa.record_batch(rows))])
    if isinstance(rows, Sequence) and not isinstance(rows, str | bytes):
        given = list(rows)
        other = next((at for at, row in enumerate(given) if not isinstance(row, Mapping)), None)
        if other is None:
            return iter([_batch_of(given, schema)] if given else [])
        raise ConfigError(
            f"rows are a {_kind(rows)} whose item {other} is of type {_kind(given[other])}; write takes lists of "
            "dictionaries",
            hint="Write [{'id': 1}]; an iterable of frames goes to write_all(rows).",
        )
    if isinstance(rows, Mapping):
        what, hint = "one dictionary", "Write a list: write([row])."
    else:
        what = f"of type {_kind(rows)}"
        hint = "Write a pyarrow.Table or [{'id': 1}]; an iterable of either goes to write_all(rows)."
    raise ConfigError(f"rows are {what}; write takes what has an Arrow form, and lists of dictionaries", hint=hint)


def items_of(rows: object) -> Iterator[Any]:
    """The items of an iterable that is to be written one after another.

    Raises:
        ConfigError: It is one frame, whose items would be its columns, or nothing to iterate over.
    """
    is_stream = hasattr(rows, "__arrow_c_stream__") and not isinstance(rows, pa.RecordBatchReader)
    is_whole = is_stream or hasattr(rows, "__arrow_c_array__") or _is_pandas(rows)
    _check_lazy(rows)
    if is_whole or isinstance(rows, Mapping | str | bytes):
        raise ConfigError(
            f"write_all takes an iterable of rows, not one {_kind(rows)}",
            hint="Hand it to write, or to write_all([it]).",
        )
    try:
        return iter(cast("Iterable[Any]", rows))
    except TypeError as error:
        raise ConfigError(
            f"write_all takes an iterable of rows, not {_kind(rows)}",
            hint="Hand it a generator or a list of rows: write_all([{'id': 1}])",
        ) from error


class Chunk(NamedTuple):
    """Rows that are written at once."""

    rows: object
    stands: JsonValue
    """Where the input stands after them."""
    items: int = 1
    """The items of the input that they are."""


def chunks_of(
    items: Iterable[Any], position: Callable[[Any], object] | None, *, done: int, most: int, is_due: Callable[[], bool]
) -> Iterator[Chunk]:
    """What an iterable yields, as it is written.

    Args:
        items: Dictionaries, of which some are written at once; or other rows, each by itself. A source may use one
            dictionary for all its rows.
        position: Tells where the input stands after an item; asked before the next one is, and copied. None counts.
        done: How many items came before.
        most: Most dictionaries that are written at once.
        is_due: Whether those that wait have to be written now, however few they are.

    Raises:
        ConfigError: ``position`` returned None, or what does not come back from a checkpoint.
    """
    waiting: list[Row] = []
    stands: JsonValue = None

    def waited(count: int) -> Chunk:
        nonlocal waiting
        rows, waiting = waiting, []
        return Chunk(rows, counted(count, rows[-1]) if position is None else stands, len(rows))

    count = done
    for count, item in enumerate(items, done + 1):
        is_row = isinstance(item, Mapping)
        if waiting and not is_row:
            yield waited(count - 1)
        if position is not None:
            stands = kept_position(position(item))
            if stands is None:
                raise ConfigError(
                    "position returned None for an item",
                    hint="Return where the input stands: position=lambda item: item['offset']",
                )
        if not is_row:
            yield Chunk(item, counted(count, item) if position is None else stands)
            continue
        waiting.append(dict(item))
        if len(waiting) >= most or is_due():
            yield waited(count)
    if waiting:
        yield waited(count)


_ITEMS, _LAST = "items", "last"


def counted(count: int, last: object) -> JsonValue:
    """The position after so many items. The CRC-32 of its text tells the last one again, if it is a dictionary."""
    if not isinstance(last, Mapping):
        return {_ITEMS: count, _LAST: None}
    pairs = [[str(name), value] for name, value in last.items()]
    return {_ITEMS: count, _LAST: f"{crc32_of(json.dumps(pairs, default=str, skipkeys=True).encode()):08x}"}


def count_in(position: JsonValue) -> int | None:
    """The items that a position counts; None if it is another one."""
    if position is None:
        return 0
    if not isinstance(position, dict) or position.keys() != {_ITEMS, _LAST}:
        return None
    count = position[_ITEMS]
    return count if type(count) is int and count >= 0 else None


def _is_pandas(rows: object) -> bool:
    """Whether it is a frame of pandas, or of a class that was made of it."""
    return any(kind.__name__ == "DataFrame" and kind.__module__.startswith("pandas.") for kind in type(rows).__mro__)


def _check_lazy(rows: object) -> None:
    """Refuse a query of polars, which has no rows yet and yet looks iterable."""
    if type(rows).__name__ == "LazyFrame":
        raise ConfigError(
            f"rows are one {_kind(rows)}, a query that has not run",
            hint="Run it, and write its frame: out.write(frame.collect())",
        )


def _check_polars(rows: object) -> None:
    """Refuse what polars does not hand over: Python objects, which are addresses in memory, and wide integers."""
    if type(rows).__module__.partition(".")[0] != "polars":
        return
    for name, kind in getattr(rows, "schema", {}).items():
        if str(kind) == "Object":
            raise ConfigError(
                f"column {name!r} of the polars frame holds Python objects",
                hint=f"Cast it, or drop it before the sink: frame.drop({name!r})",
            )
        wide = next((str(one) for one in _polars_types(kind) if str(one) in _WIDE_INTEGERS), "")
        if wide:
            what, inner, cast_to = (wide, "it", "pl.Int64") if wide == str(kind) else (kind, "what is in it", "TYPE")
            raise ConfigError(
                f"column {name!r} of the polars frame has the type {what}, and Arrow has no {wide}",
                hint=f"Cast {inner} to pl.Int64, or to pl.Decimal(38, 0) where values are larger: "
                f"frame.with_columns(pl.col({name!r}).cast({cast_to}))",
            )


_WIDE_INTEGERS = frozenset({"Int128", "UInt128"})


def _polars_types(kind: Any) -> Iterator[Any]:
    """A type of polars, and all that it is made of."""
    yield kind
    for inner in (getattr(kind, "inner", None), *(field.dtype for field in getattr(kind, "fields", None) or ())):
        if inner is not None:
            yield from _polars_types(inner)


_NAMED = "Write rows with named columns: a frame, a pyarrow.Table, or write([{'id': 1}])."


def _converted(rows: object, convert: Callable[[], Any], hint: str = _NAMED) -> Any:
    """What a conversion makes; raises ConfigError where it cannot."""
    try:
        return convert()
    except _REFUSALS as error:
        raise ConfigError(f"rows of type {_kind(rows)} cannot be converted: {error}", hint=hint) from error


def _batch_of(rows: Sequence[Row], schema: pa.Schema | None) -> pa.RecordBatch:
    if schema is None:
        raise ConfigError("rows are dictionaries, whose types are not known", hint=f"Pass {_schema_words(rows)}.")
    known = set(schema.names)
    for number, row in enumerate(rows):
        if not known.issuperset(row):
            _check_names(row, schema, _row_words(number))
    columns = [_column_of([row.get(field.name) for row in rows], field) for field in schema]
    return _converted(rows, lambda: pa.record_batch(columns, schema=schema))


def _column_of(values: list[object], field: pa.Field) -> pa.Array:
    empty = None if field.nullable else next((at for at, value in enumerate(values) if value is None), None)
    if empty is not None:
        raise _missing(field.name, _row_words(empty))
    if not {*map(type, values)} <= _whole_types(field.type):
        for number, value in enumerate(values):
            _check_value(value, field.type, f"{field.name!r} of {_row_words(number)}")
    try:
        return pa.array(values, field.type)
    except _REFUSALS as error:
        wrong = next((at for at, value in enumerate(values) if not _fits(value, field.type)), None)
        where = "" if wrong is None else f"{_row_words(wrong)}: "
        raise ConfigError(
            f"{where}values of {field.name!r} do not fit its type {field.type}: {error}",
            hint=f"Convert them, or give {field.name!r} another type in local(schema=...).",
        ) from error


def _row_words(number: int) -> str:
    return f"row {number} of those that were handed over"


def _check_value(value: object, kind: pa.DataType, where: str) -> None:
    """Refuse what pyarrow would drop: keys that a struct lacks, nulls where there may be none, parts of a value."""
    if value is None:
        return
    kind = _plain(kind)
    if pa.types.is_struct(kind):
        _check_struct(value, kind, where)
    elif pa.types.is_map(kind):
        for pair in value.items() if isinstance(value, Mapping) else _elements(value):
            for part, part_kind in zip(_elements(pair), (kind.key_type, kind.item_type), strict=False):
                _check_value(part, part_kind, where)
    elif _is_list(kind):
        for element in _elements(value):
            _check_value(element, kind.value_type, where)
    elif not _is_kept(value, kind):
        raise ConfigError(
            f"{where} is {value!r}, of which {kind} would keep a part alone",
            hint=_hint_to_keep(value),
        )


def _check_struct(value: object, kind: pa.StructType, where: str) -> None:
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{where} is {value!r}, and {kind} takes dictionaries",
            hint="Write it as a dictionary, for instance dict(value).",
        )
    fields = [kind.field(at) for at in range(kind.num_fields)]
    _check_names(value, pa.schema(fields), where)
    for field in fields:
        if value.get(field.name) is None and not field.nullable:
            raise _missing(field.name, where)
        _check_value(value.get(field.name), field.type, f"{field.name!r} of {where}")


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type of the values, however Arrow keeps them."""
    while pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        kind = kind.value_type
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _elements(value: object) -> Iterable[object]:
    """What a collection holds: a list, an array of numpy, a series. Nothing of what pyarrow refuses as a list."""
    return value if isinstance(value, Collection) and not isinstance(value, str | bytes) else ()


def _hint_to_keep(value: object) -> str:
    if value != value:  # noqa: PLR0124 - only what stands for a missing value is not equal to itself.
        return "Write None for a missing value, for instance frame.astype(object).where(frame.notna(), None)."
    if isinstance(value, datetime | time) and value.tzinfo is not None:
        return "Give the column a zone: local(schema=pa.schema({'at': pa.timestamp('us', 'UTC')}))."
    return "Round it before the sink, or give it another type in local(schema=...)."


def _check_names(row: Mapping[Any, object], schema: pa.Schema, where: str) -> None:
    for name in row:
        if name not in schema.names:
            raise ConfigError(
                f"{where} has {name!r}, which is no column of the schema",
                hint=f"Leave it out, or add it to local(schema=...), which has {', '.join(schema.names)} there.",
            )


def _missing(name: str, where: str) -> ConfigError:
    return ConfigError(
        f"{where} has no {name!r}, which may not be null",
        hint=f"Give it a value, or let pa.field({name!r}, ...) be nullable in local(schema=...).",
    )


def _whole_types(kind: pa.DataType) -> set[type]:
    """Types whose values pyarrow takes whole or refuses."""
    whole = {int, str, bytes, bool, type(None)}
    return {*whole, float} if pa.types.is_float64(kind) else whole


def _is_list(kind: pa.DataType) -> bool:
    is_view = pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind)
    return bool(is_view or pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


_MICROSECONDS = {"s": 1_000_000, "ms": 1000, "us": 1, "ns": 1}


def _is_kept(value: object, kind: pa.DataType) -> bool:
    """Whether pyarrow would keep all of a value.

    In silence it truncates floats to integers and instants to days, and drops zones.
    """
    is_number = isinstance(value, Decimal) or (isinstance(value, Real) and not isinstance(value, Integral))
    if is_number and (pa.types.is_integer(kind) or pa.types.is_temporal(kind)):
        return bool(value % 1 == 0)  # type: ignore[operator]  # a number; infinity and nan are not whole.
    if is_number and pa.types.is_floating(kind):
        held = pa.scalar(float(value), pa.float64()).cast(kind).as_py()  # type: ignore[arg-type]  # likewise.
        return not math.isinf(held) or math.isinf(float(value))  # type: ignore[arg-type]
    return _is_kept_in_time(value, kind)


def _is_kept_in_time(value: object, kind: pa.DataType) -> bool:
    if getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0):
        return getattr(kind, "unit", "") == "ns"  # Of pandas, whose values are datetimes of Python as well.
    has_zone = isinstance(value, datetime | time) and value.tzinfo is not None
    if has_zone and not (pa.types.is_timestamp(kind) and kind.tz is not None):
        return False
    if isinstance(value, datetime) and pa.types.is_date(kind):
        return bool(value.time() == time())
    if isinstance(value, datetime | time | timedelta) and hasattr(kind, "unit"):
        micros = value.microseconds if isinstance(value, timedelta) else value.microsecond
        return bool(micros % _MICROSECONDS[kind.unit] == 0)
    return True


def _fits(value: object, kind: pa.DataType) -> bool:
    try:
        pa.array([value], kind)
    except _REFUSALS:
        return False
    return True


def _schema_words(rows: Sequence[Row]) -> str:
    """The argument that would say the types, as they look in the first rows."""
    try:
        found = pa.Table.from_pylist([dict(row) for row in rows[:100]]).schema
    except _REFUSALS:
        return _ANY_SCHEMA
    # Nothing tells the type of a column without a value.
    kinds = {field.name: pa.string() if pa.types.is_null(field.type) else field.type for field in found}
    types = ", ".join(f'"{name}": "{kind}"' for name, kind in kinds.items())
    is_short = found and all(isinstance(name, str) for row in rows[:100] for name in row)
    is_short = is_short and not any(pa.types.is_nested(field.type) for field in found)
    return f"local(schema={{{types}}})" if is_short else _ANY_SCHEMA


def _kind(rows: object) -> str:
    kind = type(rows)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__.partition('.')[0]}.{kind.__name__}"


MAX_POSITION_BYTES = 1 << 20
"""Of the JSON of a position, which each checkpoint holds."""
_SHORT = 1000
"""Characters of a text that is not measured: each takes at most six bytes as JSON."""
_AS_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def kept_position(value: object) -> JsonValue:
    """Copy a position, so that an offset that the caller moves on in place does not change with it.

    Raises:
        ConfigError: It would not come back from a checkpoint as it is, or is larger than ``MAX_POSITION_BYTES``.
    """
    _check_position(value)
    size = _json_bytes(value)
    if size > MAX_POSITION_BYTES:
        raise ConfigError(
            f"position takes {size} bytes as JSON, and a checkpoint keeps at most {MAX_POSITION_BYTES}",
            hint="Keep where the input stands, not what was read: position=17, or position={'file': 'a', 'line': 17}",
        )
    return cast("JsonValue", deepcopy(value))


def _json_bytes(value: object) -> int:
    """The length of a position as JSON; 0 of one that is short whatever is in it."""
    if value is None or isinstance(value, int | float) or (isinstance(value, str) and len(value) < _SHORT):
        return 0
    return len(_AS_JSON.encode(value).encode())


_DEEPEST = 100
"""Levels of lists and dictionaries; a reader of a checkpoint takes about twice as many."""
_WIDEST_BITS = 13_000
"""Of an integer: some 3 900 digits. A reader of a checkpoint takes 4 300."""


def _check_position(value: object, depth: int = 0) -> None:
    """Refuse a position that would not come back from a checkpoint as it is.

    Raises:
        ConfigError: Names the value and its type.
    """
    if depth > _DEEPEST:
        raise ConfigError(
            f"position is more than {_DEEPEST} lists or dictionaries deep",
            hint="Use a flatter value, as position=17 or position={'partition': 0, 'offset': 17}.",
        )
    if isinstance(value, dict):
        for key in value:
            if type(key) is not str:
                raise ConfigError(f"position has the key {key!r}; in JSON keys are text", hint="Use str(key).")
            _check_text(key)
            _check_position(value[key], depth + 1)
    elif isinstance(value, list):
        for element in value:
            _check_position(element, depth + 1)
    else:
        _check_scalar(value)


def _check_scalar(value: object) -> None:
    if value is not None and type(value) not in {bool, int, float, str}:
        raise ConfigError(
            f"position holds {value!r}, of type {type(value).__name__}; it must be a JSON value",
            hint="Use bool, int, float, str, or lists and dictionaries of these; int(value) for a numpy integer.",
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(
            f"position holds {value!r}, which JSON has no form for", hint="Use a finite number, as position=17."
        )
    if isinstance(value, int) and value.bit_length() > _WIDEST_BITS:
        raise ConfigError(
            f"position holds an integer of {value.bit_length()} bits",
            hint="Hand it over as text: position=str(value)",
        )
    if isinstance(value, str):
        _check_text(value)


def _check_text(text: str) -> None:
    """Refuse text that UTF-8 has no form for, as ``os.fsdecode`` makes of some file names."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"position holds {text!r:.80}, which is no Unicode text", hint="Escape it, for instance by repr(text)."
        ) from error
