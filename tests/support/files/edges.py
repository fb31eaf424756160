"""Every type that Arrow can make, with the values at its edges, in every place where a value can stand."""

from __future__ import annotations

import bisect
import datetime as dt
import itertools
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import types

from support.files.columns import COLUMNS, column_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY_SECONDS = 86_400
_LARGEST = 2**63 - 1


def _ticks(kind: Any, *values: int | None) -> Any:
    return pa.array(values, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)


def _stored(kind: Any, values: list[Any]) -> Any:
    return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))


def _far() -> dict[str, Any]:
    """The ends of 32 and 64 bits, where a type has no narrower range of its own."""
    columns = {"day_far": _ticks(pa.date32(), 2**31 - 1, None, -(2**31))}
    columns["day_10000"] = _ticks(pa.date32(), 2_932_897, None, -719_528)
    for unit, ticks in _TICKS.items():
        for zone, name in ((None, "local"), ("UTC", "utc")):
            kind = pa.timestamp(unit, zone)
            columns[f"at_{unit}_{name}_last"] = _ticks(kind, _LARGEST, None, 0)
            columns[f"at_{unit}_{name}_first"] = _ticks(kind, -(2**63), None, 0)
            columns[f"at_{unit}_{name}_9999"] = _ticks(kind, min(253_402_300_799 * ticks, _LARGEST), None, 1)
            if unit != "ns":
                columns[f"at_{unit}_{name}_10000"] = _ticks(kind, 253_402_300_800 * ticks, None, 1)
        columns[f"at_{unit}_mars"] = _ticks(pa.timestamp(unit, "Mars/Gale"), 1, None, 0)
        columns[f"span_{unit}_far"] = _ticks(pa.duration(unit), _LARGEST, None, -(2**63))
        kind = pa.time32(unit) if unit in {"s", "ms"} else pa.time64(unit)
        columns[f"clock_{unit}_outside"] = _ticks(kind, -1, None, _DAY_SECONDS * ticks)
    columns["day64_outside"] = _ticks(pa.date64(), 1, None, 0)
    columns["day64_far"] = _ticks(pa.date64(), _LARGEST - _LARGEST % 86_400_000, None, 0)
    columns["clock_ns_part"] = _ticks(pa.time64("ns"), 1, None, 86_399_999_999_999)
    columns["span_ns_part"] = _ticks(pa.duration("ns"), 1, None, -1)
    return columns


def _odd() -> dict[str, Any]:
    """Types that few formats have, and those that pyarrow does not make of a name."""
    ids, offsets = pa.array([0, 1, 0], pa.int8()), pa.array([0, 0, 1], pa.int32())
    numbers, words = pa.array([1, 2, 3]), pa.array(["a", "b", "c"])
    return {
        "raw_none": pa.array([b"", None, b""], pa.binary(0)),
        "decimal_negative": pa.array([Decimal("1E+2"), None], pa.decimal128(5, -2)),
        "decimal_wide_part": pa.array(["0." + "9" * 9, None]).cast(pa.decimal32(9, 9)),
        "months": pa.array([pa.MonthDayNano([1, 2, 3]), None], pa.month_day_nano_interval()),
        "list_view": pa.array([[1, None], None, []], pa.list_view(pa.int32())),
        "list_view_large": pa.array([[1, None], None, []], pa.large_list_view(pa.int64())),
        "list_fixed_none": pa.array([[], None, []], pa.list_(pa.int8(), 0)),
        "struct_none": pa.array([{}, None, {}], pa.struct([])),
        "struct_twice": pa.StructArray.from_arrays([numbers, numbers], names=["x", "x"]),
        "union_dense": pa.UnionArray.from_dense(ids, offsets, [numbers, words]),
        "union_sparse": pa.UnionArray.from_sparse(ids, [numbers, words]),
        "map_of_numbers": pa.array([[(1, "x")], None, []], pa.map_(pa.int32(), pa.string())),
        "map_of_days": pa.array([[(dt.date(2024, 1, 1), "x")], None], pa.map_(pa.date32(), pa.string())),
        "map_twice": pa.array([[("a", 1), ("a", 2)], None, []], pa.map_(pa.string(), pa.int64())),
        "word_null": pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.int8()), pa.array([None, "x"])),
        "word_wide": pa.DictionaryArray.from_arrays(pa.array([1, None], pa.uint64()), pa.array(["p", "x"])),
        "uuid": _stored(pa.uuid(), [b"0123456789abcdef", None, bytes(16)]),
        "json": _stored(pa.json_(), ['{"a":1}', None, "[]"]),
        "truth8": _stored(pa.bool8(), [1, None, 0]),
        "tensor": _stored(pa.fixed_shape_tensor(pa.int32(), [2]), [[1, 2], None, [3, 4]]),
        "opaque": _stored(pa.opaque(pa.binary(), "type", "vendor"), [b"1", None, b"2"]),
    }


EDGES: dict[str, Any] = {**COLUMNS, **_far(), **_odd()}
"""Each column by a name that Avro takes as well."""

_FEWER = [name for name in EDGES if not (name.startswith("at_") and ("_2" in name or "_3" in name))]

UNMADE = {"Type_INTERVAL_MONTHS", "Type_INTERVAL_DAY_TIME"}
"""What pyarrow has a number for, and makes no type of."""


def missing_types() -> set[str]:
    """The types of this pyarrow that no column has: by their numbers, and by the classes of the extension types."""
    kinds = [kind for column in EDGES.values() for kind in _kinds(column.type)]
    numbers = {kind.id for kind in kinds}
    found = {name for name in dir(pa.lib) if name.startswith("Type_") and getattr(pa.lib, name) not in numbers}
    classes: Any = [one for one in vars(pa).values() if isinstance(one, type) and issubclass(one, pa.DataType)]
    bases = {pa.DataType, pa.BaseExtensionType, pa.ExtensionType, pa.UnknownExtensionType}
    return (found - UNMADE) | {one.__name__ for one in classes if one not in bases and not _is_there(one, kinds)}


def _is_there(cls: Any, kinds: list[Any]) -> bool:
    return any(isinstance(kind, cls) for kind in kinds)


def _kinds(kind: Any) -> Iterator[Any]:
    yield kind
    if isinstance(kind, pa.BaseExtensionType):
        yield from _kinds(kind.storage_type)
    for at in range(kind.num_fields):
        yield from _kinds(kind.field(at).type)


# A place takes a column of values and has a row for each. Rows 3, 8, ... of it are null, over values that are there.


def _mask(values: Any) -> Any:
    return pa.array([row % 5 == 3 for row in range(len(values))])


def _ends(values: Any) -> list[int]:
    return [0, 2, 2, *range(3, len(values) + 1)]


def _in_runs(values: Any) -> Any:
    half = -(-len(values) // 2)
    ends = [*range(2, len(values) + 1, 2), len(values)][:half]
    return pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), values.slice(0, half))


def _in_dictionary(values: Any) -> Any:
    rows = [None if row % 5 == 3 else len(values) - 1 - row for row in range(len(values))]
    return pa.DictionaryArray.from_arrays(pa.array(rows, pa.int16()), values)


def _in_list(values: Any) -> Any:
    return pa.ListArray.from_arrays(pa.array(_ends(values), pa.int32()), values, mask=_mask(values))


def _in_struct(values: Any) -> Any:
    return pa.StructArray.from_arrays([values], names=["f"], mask=_mask(values))


def _in_map(values: Any) -> Any:
    ends = [None if row % 5 == 3 else end for row, end in enumerate(_ends(values)[:-1])]
    keys = pa.array([f"k{row}" for row in range(len(values))])
    return pa.MapArray.from_arrays(pa.array([*ends, len(values)], pa.int32()), keys, values)


PLACES: dict[str, Callable[[Any], Any]] = {
    "top": lambda values: values,
    "struct": _in_struct,
    "list": _in_list,
    "large list": lambda values: pa.LargeListArray.from_arrays(
        pa.array(_ends(values), pa.int64()), values, mask=_mask(values)
    ),
    "fixed list": lambda values: pa.FixedSizeListArray.from_arrays(values, 1, mask=_mask(values)),
    "map": _in_map,
    "structs in a list": lambda values: _in_list(_in_struct(values)),
    "dictionary": _in_dictionary,
    "runs": _in_runs,
    "runs in a list": lambda values: _in_list(_in_runs(values)),
    "dictionaries in a map": lambda values: _in_map(_in_dictionary(values)),
    "runs in a fixed list": lambda values: pa.FixedSizeListArray.from_arrays(_in_runs(values), 1, mask=_mask(values)),
}


def columns_in(place: str, rows: int) -> dict[str, Any]:
    """Each column with edges in a place; of runs, those are left out that pyarrow itself has no array of.

    Two zones are enough for nested instants.
    """
    found = {}
    for name in EDGES if place == "top" else _FEWER:
        try:
            found[name] = PLACES[place](_rows_of(name, rows))
        except pa.ArrowInvalid:
            # Arrow encodes no runs of values that are no times or days.
            assert "runs" in place, f"no column {name} in the place {place}"
            assert name.endswith("_outside"), f"no column {name} in the place {place}"
    return found


def _rows_of(name: str, rows: int) -> Any:
    if name in COLUMNS:
        return column_of(name, rows)
    values = EDGES[name]
    return pa.concat_arrays([values] * -(-rows // len(values))).slice(0, rows)


# Values that are equal exactly if Arrow's are, of whichever type: moments as nanoseconds, fractions as text.


def exact(column: Any) -> list[Any]:
    """The value of each row, made without any code of ours."""
    if isinstance(column, pa.ChunkedArray):
        return [value for chunk in column.chunks for value in exact(chunk)]
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return exact(column.storage)
    if types.is_dictionary(kind):
        values = exact(column.dictionary)
        return [None if index is None else values[index] for index in column.indices.to_pylist()]
    if types.is_run_end_encoded(kind):
        values, ends = exact(column.values), column.run_ends.to_pylist()
        return [values[bisect.bisect_right(ends, column.offset + row)] for row in range(len(column))]
    if types.is_nested(kind):
        found = _exact_nested(column, kind)
        return [value if there else None for value, there in zip(found, column.is_valid().to_pylist(), strict=True)]
    return _exact_single(column, kind)


def _exact_nested(column: Any, kind: Any) -> list[Any]:
    if types.is_struct(kind):
        fields = [exact(column.field(at)) for at in range(kind.num_fields)]
        return list(zip(*fields, strict=True)) if fields else [()] * len(column)
    if types.is_fixed_size_list(kind):
        values, size = exact(column.values), kind.list_size
        return [values[row * size : (row + 1) * size] for row in range(column.offset, column.offset + len(column))]
    ends = column.offsets.to_pylist()
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        values = exact(column.values)
        return [values[start : start + size] for start, size in zip(ends, column.sizes.to_pylist(), strict=True)]
    if types.is_map(kind):
        values = list(zip(exact(column.keys), exact(column.items), strict=True))
    else:
        values = exact(column.values)
    return [values[start:end] for start, end in itertools.pairwise(ends)]


def _exact_single(column: Any, kind: Any) -> list[Any]:
    if types.is_floating(kind):
        return [None if value is None else float_text(value) for value in column.to_pylist()]
    size = nanoseconds(kind)
    if size is None:
        return list(column.to_pylist())
    ticks = column.view(pa.int32() if kind.bit_width == 32 else pa.int64()).to_pylist()
    return [None if tick is None else tick * size for tick in ticks]


def float_text(value: float) -> str:
    """The bits of a fraction; all that is no number is alike."""
    return "nan" if math.isnan(value) else float(value).hex()


def nanoseconds(kind: Any) -> int | None:
    """How many a tick of a moment or a span has."""
    if types.is_date32(kind):
        return _DAY_SECONDS * 10**9
    if types.is_date64(kind):
        return 10**6
    if types.is_timestamp(kind) or types.is_duration(kind) or types.is_time(kind):
        return 10**9 // _TICKS[kind.unit]
    return None
