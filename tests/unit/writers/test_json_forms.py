"""JSON lines: the exact text of each Arrow type."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from partfile.writers.json import JsonLinesFormat

_FORMAT = JsonLinesFormat()


def _values(column: pa.Array[Any], form: JsonLinesFormat = _FORMAT) -> list[str]:
    """The JSON text of each value of one column called x."""
    schema = pa.schema([pa.field("x", column.type)])
    form.check(schema)
    lines = bytes(form.encode(pa.record_batch([column], schema=schema)).data).decode().split("\n")
    assert lines.pop() == ""
    assert all(line.startswith('{"x":') and line.endswith("}") for line in lines)
    return [line[5:-1] for line in lines]


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
    (
        pa.array([2932896, 2932897, -719529], pa.int32()).view(pa.date32()),
        ['"9999-12-31"', '"+10000-01-01"', '"-0001-12-31"'],
    ),
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
        _micros(
            pa.timestamp("us", "UTC"),
            253402300799999999,
            253402300800000000,
            -62167219200000001,
            None,
            2**63 - 1,
            -(2**63),
        ),
        [
            '"9999-12-31T23:59:59.999999Z"',
            '"+10000-01-01T00:00:00.000000Z"',
            '"-0001-12-31T23:59:59.999999Z"',
            "null",
            '"+294247-01-10T04:00:54.775807Z"',
            '"-290308-12-21T19:59:05.224192Z"',
        ],
    ),
    (_micros(pa.timestamp("s"), 253402300800), ['"+10000-01-01T00:00:00"']),
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
