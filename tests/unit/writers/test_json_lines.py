"""JSON lines: null and nested columns in every layout, and what is refused."""

from __future__ import annotations

import json
import pickle  # noqa: TID251 - what Spark does with a format, in memory
from typing import Any

import pyarrow as pa
import pytest

from partfile.errors import ConfigError, UnsupportedTypeError
from partfile.writers.base import EncodedRows
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
    with pytest.raises(ConfigError, match='Use "literal" or "string"'):
        JsonLinesFormat(non_finite="null")


def test_the_format_travels_to_a_worker() -> None:
    """A format pickles to an equal format, as Spark does with it."""
    form = JsonLinesFormat(non_finite="string")
    assert pickle.loads(pickle.dumps(form)) == form  # noqa: S301
