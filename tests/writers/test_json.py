"""JSON lines: the text of each Arrow type, nested columns, and random columns against Python's json."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import pickle  # noqa: TID251 - what Spark does with a format, in memory
import struct
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partfile.errors import ConfigError, UnsupportedTypeError
from partfile.writers.base import EncodedRows
from partfile.writers.json import JsonLinesFormat

if TYPE_CHECKING:
    from collections.abc import Callable


# JSON lines: null and nested columns in every layout, and what is refused.

_FORMAT = JsonLinesFormat()


def _values(column: pa.Array[Any], form: JsonLinesFormat = _FORMAT) -> list[str]:
    """The JSON text of each value of one column called x."""
    schema = pa.schema([pa.field("x", column.type)])
    form.check(schema)
    lines = bytes(form.encode(pa.record_batch([column], schema=schema)).data).decode().split("\n")
    assert lines.pop() == ""
    assert all(line.startswith('{"x":') and line.endswith("}") for line in lines)
    return [line[5:-1] for line in lines]


def test_null_lists_and_maps_that_span_values_stay_null() -> None:
    """A null list whose offsets span values is null, and its values appear nowhere."""
    offsets = pa.array([0, 2, 3, 3], pa.int32())
    mask = pa.array([False, True, False])
    lists = pa.ListArray.from_arrays(offsets, pa.array(["a", "b", "hidden"]), mask=mask)
    assert _values(lists) == ['["a","b"]', "null", "[]"]
    of_maps: Any = pa.MapArray.from_arrays
    maps = of_maps(offsets, pa.array(["a", "b", "hidden"]), pa.array([1, 2, 3]), mask=mask)
    assert _values(maps) == ['{"a":1,"b":2}', "null", "{}"]


def test_children_with_offsets_of_their_own_are_minded() -> None:
    """Lists, maps and structs made over sliced children take the children's rows, not the buffers' first ones."""
    words = pa.array(["no", "a", "b", "c"]).slice(1)
    numbers = pa.array([9, 9, 1, 2, 3]).slice(2)
    offsets = pa.array([0, 1, 1, 3], pa.int32())
    of_maps: Any = pa.MapArray.from_arrays
    assert _values(pa.ListArray.from_arrays(offsets, words).slice(1)) == ["[]", '["b","c"]']
    assert _values(of_maps(offsets, words, numbers).slice(1)) == ["{}", '{"b":2,"c":3}']
    assert _values(pa.StructArray.from_arrays([words, numbers], ["w", "n"]).slice(2)) == ['{"w":"c","n":3}']


def test_nulls_of_a_struct_win_over_its_fields() -> None:
    """A null struct over fields that hold values is null."""
    struct = pa.StructArray.from_arrays([pa.array([1, 2])], ["a"], mask=pa.array([True, False]))
    assert _values(struct) == ["null", '{"a":2}']


def test_offsets_cut_the_bytes_at_each_row() -> None:
    """Bytes between two offsets are exactly the lines of those rows."""
    columns: dict[str, Any] = {"a": [1, 22, 333], "b": ["é", None, '"']}
    rows = _FORMAT.encode(pa.record_batch(columns))
    lines = [bytes(rows.rows(at, at + 1)).decode() for at in range(3)]
    assert lines == ['{"a":1,"b":"é"}\n', '{"a":22,"b":null}\n', '{"a":333,"b":"\\""}\n']
    assert bytes(rows.rows(1, 3)).decode() == "".join(lines[1:])
    assert bytes(rows.data).decode() == "".join(lines)


def test_bytes_after_the_last_row_are_not_rows() -> None:
    """A buffer that is longer than its rows, as Arrow's may be, gives the rows alone."""
    offsets = pa.py_buffer(pa.array([0, 2, 4], pa.int64()).buffers()[1] or b"")
    rows = EncodedRows.of(pa.LargeStringArray.from_buffers(2, offsets, pa.py_buffer(b"a\nb\nmore")))
    assert bytes(rows.data) == b"a\nb\n"


@pytest.mark.parametrize("start", [0, 1])
def test_rows_in_another_order_are_the_same_lines(start: int) -> None:
    """Taking lines moves whole lines, as often as asked, also where the places begin inside their buffer."""
    columns: dict[str, Any] = {"a": [1, 22, 333, 4444]}
    rows = _FORMAT.encode(pa.record_batch(columns))
    rows = EncodedRows(rows.data, rows.offsets.slice(start))
    order = [2, 0, 1, 2]
    taken = rows.take(pa.array(order, pa.uint64()))
    assert bytes(taken.data) == b"".join(bytes(rows.rows(at, at + 1)) for at in order)
    assert [bytes(taken.rows(at, at + 1)) for at in range(4)] == [bytes(rows.rows(at, at + 1)) for at in order]


def test_names_are_escaped() -> None:
    """Column and field names with quotes, line feeds and letters beyond ASCII are valid keys."""
    name = 'a"\\\n漢'
    column = pa.array([{name: 1}])
    line = bytes(_FORMAT.encode(pa.record_batch([column], names=[name])).data).decode()
    assert json.loads(line) == {name: {name: 1}}
    assert line.count("\n") == 1


def test_rows_without_columns_are_empty_objects() -> None:
    """A batch that has rows and no columns keeps its number of rows."""
    batch = pa.record_batch({"x": [1, 2, 3]}).select([])
    assert bytes(_FORMAT.encode(batch).data) == b"{}\n" * 3


def test_strict_json_puts_the_odd_floats_in_quotes() -> None:
    """With non_finite="string" every line is RFC 8259 JSON, nested values included."""
    form = JsonLinesFormat(non_finite="string")
    values = [float("nan"), float("inf"), -float("inf"), 1.5]
    assert _values(pa.array(values), form) == ['"NaN"', '"Infinity"', '"-Infinity"', "1.5"]
    assert _values(pa.array([values]), form) == ['["NaN","Infinity","-Infinity",1.5]']


_VARIANT = pa.struct([pa.field("value", pa.binary()), pa.field("metadata", pa.binary(), metadata={"variant": "true"})])


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (pa.month_day_nano_interval(), ["'x'", "month_day_nano_interval"]),
        (pa.map_(pa.int32(), pa.string()), ["'x'", "map<int32, string>", "'x.key'"]),
        (pa.list_(pa.struct([("y", pa.month_day_nano_interval())])), ["'x'", "'x[].y'"]),
        (pa.map_(pa.string(), pa.month_day_nano_interval()), ["'x'", "'x.value'"]),
        (pa.dictionary(pa.int8(), pa.month_day_nano_interval()), ["'x'", "month_day_nano_interval"]),
        (pa.sparse_union([pa.field("a", pa.int8())]), ["'x'", "union"]),
        (pa.struct([pa.field("a", pa.int8()), pa.field("a", pa.int8())]), ["'x.a'", "2 times"]),
        (pa.list_view(pa.int8()), ["'x'", "list_view<item: int8>"]),
        (pa.decimal128(10, -2), ["'x'", "decimal128(10, -2)"]),
        (pa.uuid(), ["'x'", "uuid"]),
        (_VARIANT, ["'x'", "variant", "to_json"]),
        (pa.list_(_VARIANT), ["'x'", "variant", "'x[]'"]),
    ],
    ids=str,
)
def test_types_without_a_form_are_refused_by_name(kind: pa.DataType, words: list[str]) -> None:
    """What has no form is refused with the column, the place within it, the type and a way out."""
    with pytest.raises(UnsupportedTypeError) as refused:
        _FORMAT.check(pa.schema([pa.field("ok", pa.int8()), pa.field("x", kind)]))
    assert all(word in str(refused.value) for word in words), str(refused.value)
    assert refused.value.hint


def test_columns_of_one_name_are_refused() -> None:
    """Two columns of one name would be one key in JSON."""
    with pytest.raises(UnsupportedTypeError, match="'a' is there 2 times"):
        _FORMAT.check(pa.schema([("a", pa.int8()), ("b", pa.int8()), ("a", pa.int8())]))


def test_an_unknown_choice_is_refused() -> None:
    """A misspelt non_finite is refused at once, with the choices."""
    with pytest.raises(ConfigError, match="non_finite='literal' or non_finite='string'"):
        JsonLinesFormat(non_finite="null")


def test_the_format_travels_to_a_worker() -> None:
    """A format pickles to an equal format, as Spark does with it."""
    form = JsonLinesFormat(non_finite="string")
    assert pickle.loads(pickle.dumps(form)) == form  # noqa: S301


# JSON lines: the exact text of each Arrow type.


def _micros(kind: pa.DataType, *values: int | None) -> Any:
    return pa.array(values, pa.int64()).view(kind)


_GOLDEN: list[tuple[Any, list[str]]] = [
    (pa.array([True, False, None]), ["true", "false", "null"]),
    (pa.array([-(2**63), 2**63 - 1, 2**53 + 1]), ["-9223372036854775808", "9223372036854775807", "9007199254740993"]),
    (pa.array([2**64 - 1], pa.uint64()), ["18446744073709551615"]),
    (pa.array([0.0, -0.0, 1.0, -3.0, None]), ["0.0", "-0.0", "1.0", "-3.0", "null"]),
    (pa.array([1e300, 5e-324, 0.1, 1e10, 1e17]), ["1e+300", "5e-324", "0.1", "1e+10", "1e+17"]),
    (pa.array([float("nan"), float("inf"), -float("inf"), None]), ["NaN", "Infinity", "-Infinity", "null"]),
    (pa.array([None, None], pa.float64()), ["null", "null"]),
    (pa.array([0.1, 3.4028235e38, 16777216.0], pa.float32()), ["0.1", "3.4028235e+38", "16777216.0"]),
    (pa.array([0.5, 2.0], pa.float16()), ["0.5", "2.0"]),
    (pa.array([Decimal("1.10"), Decimal("-0.01"), None], pa.decimal128(20, 2)), ['"1.10"', '"-0.01"', "null"]),
    (
        pa.array([None, Decimal("-1E-18"), Decimal(0), Decimal("1E-7"), Decimal("-12.5")], pa.decimal128(38, 18)),
        [
            "null",
            '"-0.000000000000000001"',
            '"0.000000000000000000"',
            '"0.000000100000000000"',
            '"-12.500000000000000000"',
        ],
    ),
    (pa.array([Decimal("1E-40")], pa.decimal256(60, 40)), ['"0.' + "0" * 39 + '1"']),
    (pa.array([Decimal(0), Decimal(-7)], pa.decimal128(38, 0)), ['"0"', '"-7"']),
    (pa.array([dt.date(2024, 2, 29), dt.date(1, 1, 1), None]), ['"2024-02-29"', '"0001-01-01"', "null"]),
    (pa.array([2932896, -719528], pa.int32()).view(pa.date32()), ['"9999-12-31"', '"0000-01-01"']),
    (pa.array([dt.date(2024, 2, 29)], pa.date64()), ['"2024-02-29"']),
    (
        _micros(pa.timestamp("us", "UTC"), 0, -1, None),
        ['"1970-01-01T00:00:00.000000Z"', '"1969-12-31T23:59:59.999999Z"', "null"],
    ),
    (_micros(pa.timestamp("us", "Europe/Berlin"), 1), ['"1970-01-01T00:00:00.000001Z"']),
    (_micros(pa.timestamp("us"), 1, None), ['"1970-01-01T00:00:00.000001"', "null"]),
    (_micros(pa.timestamp("s"), 1), ['"1970-01-01T00:00:01"']),
    (_micros(pa.timestamp("ms", "UTC"), 1), ['"1970-01-01T00:00:00.001Z"']),
    (_micros(pa.timestamp("ns"), -1), ['"1969-12-31T23:59:59.999999999"']),
    (
        _micros(pa.timestamp("us", "UTC"), 253402300799999999, -62167219200000000, None),
        ['"9999-12-31T23:59:59.999999Z"', '"0000-01-01T00:00:00.000000Z"', "null"],
    ),
    (pa.array([3723], pa.int32()).view(pa.time32("s")), ['"01:02:03"']),
    (_micros(pa.time64("us"), 3723456789, None), ['"01:02:03.456789"', "null"]),
    (_micros(pa.time64("ns"), 1), ['"00:00:00.000000001"']),
    (
        _micros(pa.duration("us"), 93784000005, -93784000005, -1, 0, None, -(2**63)),
        [
            '"1 02:03:04.000005"',
            '"-1 02:03:04.000005"',
            '"-0 00:00:00.000001"',
            '"0 00:00:00.000000"',
            "null",
            '"-106751991 04:00:54.775808"',
        ],
    ),
    (_micros(pa.duration("s"), 86401), ['"1 00:00:01"']),
    (_micros(pa.duration("ms"), -86401), ['"-0 00:01:26.401"']),
    (
        pa.array([b"", b"\0", b"\xff\0", b"\xff\0\1", None, b"abcd"]),
        ['""', '"AA=="', '"/wA="', '"/wAB"', "null", '"YWJjZA=="'],
    ),
    (pa.array([b"ab", None], pa.binary(2)), ['"YWI="', "null"]),
    (pa.array([b"a"], pa.large_binary()), ['"YQ=="']),
    (pa.array([None, None], pa.null()), ["null", "null"]),
    (
        pa.array(['a"b\\c/', "\b\f\n\r\t\0\x1f", "\x7f\u2028é漢😀", "", None]),
        [r'"a\"b\\c/"', r'"\b\f\n\r\t\u0000\u001f"', '"\x7f\u2028é漢😀"', '""', "null"],
    ),
    (pa.array(["a", "b", None], pa.string_view()), ['"a"', '"b"', "null"]),
    (pa.array(['a"', None, 'a"']).dictionary_encode(), [r'"a\""', "null", r'"a\""']),
    (pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(["a", None])), ['"a"', '"a"', "null"]),
    (pa.array([[1, None], [], None]), ["[1,null]", "[]", "null"]),
    (pa.array([["a", None], [], None], pa.large_list(pa.string())), ['["a",null]', "[]", "null"]),
    (pa.array([[1, 2], None, [None, 3]], pa.list_(pa.int8(), 2)), ["[1,2]", "null", "[null,3]"]),
    (pa.array([[], None], pa.list_(pa.int8(), 0)), ["[]", "null"]),
    (pa.array([[], []], pa.list_(pa.string())), ["[]", "[]"]),
    (
        pa.array([[("k\n", 1), ("b", None)], [], None], pa.map_(pa.string(), pa.int32())),
        [r'{"k\n":1,"b":null}', "{}", "null"],
    ),
    (pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int32())), ['{"a":1,"a":2}']),
    (
        pa.array(
            [{"a": 1, "b": "x"}, {"a": None, "b": None}, None], pa.struct([("a", pa.int64()), ("b", pa.string())])
        ),
        ['{"a":1,"b":"x"}', '{"a":null,"b":null}', "null"],
    ),
    (pa.array([{}, None], pa.struct([])), ["{}", "null"]),
    (
        pa.array(
            [[{"a": [[("k", b"\0")]]}], [None]],
            pa.list_(pa.struct([("a", pa.list_(pa.map_(pa.string(), pa.binary())))])),
        ),
        ['[{"a":[{"k":"AA=="}]}]', "[null]"],
    ),
]


@pytest.mark.parametrize(("column", "expected"), _GOLDEN, ids=[str(column.type) for column, _ in _GOLDEN])
def test_each_type_has_exactly_this_text(column: Any, expected: list[str]) -> None:
    """Each Arrow type has the text form that docs/FORMATS.md promises, to the byte."""
    assert _values(column) == expected


@pytest.mark.parametrize(("column", "expected"), _GOLDEN, ids=[str(column.type) for column, _ in _GOLDEN])
def test_a_slice_has_the_text_of_its_own_rows(column: Any, expected: list[str]) -> None:
    """A column that is a window into a longer one encodes as its own rows, nested buffers minded."""
    twice = pa.concat_arrays([column, column])
    assert _values(twice.slice(1, len(column))) == expected[1:] + expected[:1]


def test_a_slice_of_nothing_is_nothing() -> None:
    """An empty batch and an empty slice encode to no bytes and one offset."""
    for column, _ in _GOLDEN:
        rows = _FORMAT.encode(pa.record_batch([column.slice(1, 0)], names=["x"]))
        assert (bytes(rows.data), rows.offsets.to_pylist()) == (b"", [0])


# JSON lines of random columns, nested to any depth, against Python's own json module.


@dataclass(frozen=True)
class _Kind:
    """An Arrow type, values of it, and whether parsed JSON is such a value."""

    arrow: Any
    values: st.SearchStrategy[Any]
    agrees: Callable[[Any, Any], bool]

    def matches(self, parsed: Any, value: Any) -> bool:
        return (parsed is None) == (value is None) and (value is None or self.agrees(parsed, value))


def _same_double(parsed: Any, value: float) -> bool:
    same_nan = isinstance(parsed, float) and math.isnan(parsed) and math.isnan(value)
    return same_nan or (isinstance(parsed, float) and struct.pack("d", parsed) == struct.pack("d", value))


def _same_single(parsed: Any, value: float) -> bool:
    return _same_double(struct.unpack("f", struct.pack("f", parsed))[0], value)


def _equal(text_of: Callable[[Any], Any]) -> Callable[[Any, Any], bool]:
    def agrees(parsed: Any, value: Any) -> bool:
        return type(parsed) is type(text_of(value)) and bool(parsed == text_of(value))

    return agrees


# From text, since arithmetic would round to the 28 digits of the decimal context.
_DECIMALS = st.integers(-(10**38) + 1, 10**38 - 1).map(lambda digits: Decimal(f"{digits}E-18"))
_TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
_NAMES = st.lists(st.text(st.characters(codec="utf-8"), max_size=4), unique=True, max_size=3)
_SCALARS = st.sampled_from(
    [
        _Kind(pa.bool_(), st.booleans(), _equal(bool)),
        _Kind(pa.int64(), st.integers(-(2**63), 2**63 - 1), _equal(int)),
        _Kind(pa.float64(), st.floats(), _same_double),
        _Kind(pa.float32(), st.floats(width=32), _same_single),
        _Kind(pa.string(), _TEXTS, _equal(str)),
        _Kind(pa.large_string(), _TEXTS, _equal(str)),
        _Kind(pa.binary(), st.binary(max_size=8), _equal(lambda value: base64.b64encode(value).decode())),
        _Kind(pa.date32(), st.dates(), _equal(dt.date.isoformat)),
        _Kind(pa.decimal128(38, 18), _DECIMALS, lambda parsed, value: Decimal(parsed) == value and "E" not in parsed),
        _Kind(pa.time64("us"), st.times(), _equal(lambda value: value.isoformat("microseconds"))),
        _Kind(pa.timestamp("us"), st.datetimes(), _equal(lambda value: value.isoformat("T", "microseconds"))),
        _Kind(
            pa.timestamp("us", "UTC"),
            st.datetimes(timezones=st.just(dt.UTC)),
            _equal(lambda value: value.replace(tzinfo=None).isoformat("T", "microseconds") + "Z"),
        ),
    ]
)


def _list_of(inner: _Kind) -> _Kind:
    return _Kind(
        pa.list_(inner.arrow),
        st.lists(_or_null(inner), max_size=3),
        lambda parsed, value: len(parsed) == len(value) and all(map(inner.matches, parsed, value)),
    )


def _pair_of(inner: _Kind) -> _Kind:
    return _Kind(
        pa.list_(inner.arrow, 2),
        st.lists(_or_null(inner), min_size=2, max_size=2),
        lambda parsed, value: len(parsed) == 2 and all(map(inner.matches, parsed, value)),
    )


def _map_of(inner: _Kind) -> _Kind:
    return _Kind(
        pa.map_(pa.string(), inner.arrow),
        st.dictionaries(_TEXTS, _or_null(inner), max_size=3).map(lambda entries: list(entries.items())),
        lambda parsed, value: (
            list(parsed) == [key for key, _ in value] and all(inner.matches(parsed[key], item) for key, item in value)
        ),
    )


def _struct_of(names: list[str], kinds: list[_Kind]) -> _Kind:
    fields = dict(zip(names, kinds, strict=False))
    return _Kind(
        pa.struct([pa.field(name, kind.arrow) for name, kind in fields.items()]),
        st.fixed_dictionaries({name: _or_null(kind) for name, kind in fields.items()}),
        lambda parsed, value: (
            list(parsed) == list(fields)
            and all(kind.matches(parsed[name], value[name]) for name, kind in fields.items())
        ),
    )


def _or_null(kind: _Kind) -> st.SearchStrategy[Any]:
    return st.none() | kind.values


def _nested(inner: st.SearchStrategy[_Kind]) -> st.SearchStrategy[_Kind]:
    return st.one_of(
        inner.map(_list_of),
        inner.map(_pair_of),
        inner.map(_map_of),
        st.builds(_struct_of, _NAMES, st.lists(inner, min_size=3, max_size=3)),
    )


_KINDS = st.recursive(_SCALARS, _nested, max_leaves=5)


@st.composite
def _batches(draw: st.DrawFn) -> tuple[dict[str, _Kind], list[dict[str, Any]], pa.RecordBatch]:
    """A batch that is a window into a longer one, its kinds, and the rows in the window."""
    kinds = {name: draw(_KINDS) for name in draw(_NAMES)}
    rows = draw(st.lists(st.fixed_dictionaries({name: _or_null(kind) for name, kind in kinds.items()}), max_size=8))
    schema = pa.schema([pa.field(name, kind.arrow) for name, kind in kinds.items()])
    columns = [pa.array([row[name] for row in rows], kind.arrow) for name, kind in kinds.items()]
    start = draw(st.integers(0, len(rows)))
    length = draw(st.integers(0, len(rows) - start))
    return kinds, rows[start : start + length], pa.record_batch(columns, schema=schema).slice(start, length)


@given(_batches())
def test_every_line_is_the_row_it_came_from(
    case: tuple[dict[str, _Kind], list[dict[str, Any]], pa.RecordBatch],
) -> None:
    """Python's json module reads every line, as cut by its offsets, back to the values and types of its row."""
    kinds, rows, batch = case
    form = JsonLinesFormat()
    form.check(batch.schema)
    encoded = form.encode(batch)
    if not kinds:
        return
    assert len(encoded.offsets) == len(rows) + 1
    for at, row in enumerate(rows):
        line = bytes(encoded.rows(at, at + 1)).decode()
        assert line.endswith("}\n")
        assert line.count("\n") == 1
        parsed = json.loads(line)
        assert list(parsed) == list(kinds)
        assert all(kind.matches(parsed[name], row[name]) for name, kind in kinds.items()), (line, row)
    assert len(encoded.data) == encoded.offsets[-1].as_py()
