"""CSV: RFC 4180, null apart from the empty string, and one header a part."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partfile.errors import ConfigError, UnsupportedTypeError
from partfile.writers.compression import Compression
from partfile.writers.csv import CsvFormat

if TYPE_CHECKING:
    from collections.abc import Callable


def _batch(columns: Any) -> pa.RecordBatch:
    return pa.record_batch(columns)


def _lines(batch: pa.RecordBatch, **options: Any) -> str:
    form = CsvFormat(**options)
    form.check(batch.schema)
    return bytes(form.encode(batch).data).decode()


def test_quotes_stand_only_where_they_are_needed() -> None:
    """Separators, quotes and line breaks are quoted, everything else is bare."""
    batch = pa.record_batch(
        {"a": ["plain", "a,b", 'say "x"', "two\nlines", "cr\rhere", " spaced ", "semi;colon"], "n": [1] * 7}
    )
    assert _lines(batch).splitlines(keepends=True) == [
        "plain,1\n",
        '"a,b",1\n',
        '"say ""x""",1\n',
        '"two\n',
        'lines",1\n',
        '"cr\r',
        'here",1\n',
        " spaced ,1\n",
        "semi;colon,1\n",
    ]  # fmt: skip


def test_null_and_the_empty_string_differ() -> None:
    """A null is an empty field, an empty string is a pair of quotes."""
    assert _lines(_batch({"a": [None, "", "x"], "b": [1.5, None, float("nan")]})) == ',1.5\n"",\nx,NaN\n'
    assert _lines(_batch({"a": [None, b"", b"\0"], "b": [1, 2, 3]})) == ',1\n"",2\nAA==,3\n'


def test_a_null_value_of_ones_own() -> None:
    """Another null value stands bare for nulls, and in quotes where a string looks like it."""
    batch = _batch({"a": [None, "", "\\N", "x"]})
    assert _lines(batch, null_value="\\N") == '\\N\n""\n"\\N"\nx\n'


def test_a_null_as_the_only_field_is_refused() -> None:
    """An empty line would be skipped by readers, so a lone null needs a null value."""
    with pytest.raises(ConfigError, match="'a' holds a null") as refused:
        _lines(_batch({"a": ["x", None]}))
    assert "null_value" in refused.value.hint


def test_separator_and_line_terminator_are_choices() -> None:
    """The chosen separator is quoted, the comma then is not."""
    batch = _batch({"a": ["x;y", "x,y"], "b": [True, False]})
    assert _lines(batch, separator=";", line_terminator="\r\n") == '"x;y";true\r\nx,y;false\r\n'


def test_dictionaries_and_other_layouts_are_their_values() -> None:
    """Dictionary and run-end encoding are invisible in the file."""
    runs: Any = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array([7, None]))
    columns: dict[str, Any] = {"d": pa.array(["a,b", None, "a,b"]).dictionary_encode(), "r": runs}
    assert _lines(pa.record_batch(columns)) == '"a,b",7\n,7\n"a,b",\n'


def test_base64_and_numbers_stand_bare() -> None:
    """Values whose text cannot hold a mark are never looked at."""
    columns: dict[str, Any] = {"b": [b"\xff\xfe\xfd"], "t": pa.array([0], pa.timestamp("us", "UTC"))}
    assert _lines(pa.record_batch(columns)) == "//79,1970-01-01T00:00:00.000000Z\n"


@pytest.mark.parametrize("codec", [None, "gzip", "zstd"])
def test_the_header_stands_once_at_the_start(
    codec: str | None, memory_part: Any, decode: Callable[[bytes, str | None], bytes]
) -> None:
    """A new part begins with the names; a part that is resumed does not get them again."""
    form = CsvFormat(compression=Compression(codec=codec))
    batch = _batch({"a,b": [1], 'q"': [2]})
    part = memory_part()
    writer = form.open(part, batch.schema)
    writer.write(batch)
    writer.persist()
    resumed = form.open(part, batch.schema)
    resumed.write(batch)
    resumed.close()
    assert decode(bytes(part.data), codec) == b'"a,b","q"""\n1,2\n1,2\n'


def test_no_header_when_it_is_not_wanted(memory_part: Any) -> None:
    """With header=False the first line is the first row."""
    part = memory_part()
    writer = CsvFormat(header=False).open(part, pa.schema([("a", pa.int64())]))
    writer.write(_batch({"a": [1]}))
    writer.close()
    assert bytes(part.data) == b"1\n"


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int8()), pa.struct([("a", pa.int8())]), pa.map_(pa.string(), pa.int8())], ids=str
)
def test_nested_columns_are_refused_by_name(kind: pa.DataType) -> None:
    """CSV has no form for nested values; the message names the column, the type and the way out."""
    with pytest.raises(UnsupportedTypeError, match="'x'") as refused:
        CsvFormat().check(pa.schema([("x", kind)]))
    assert str(kind) in str(refused.value)
    assert "to_json" in refused.value.hint


def test_no_columns_are_refused() -> None:
    """Rows without columns would be empty lines."""
    with pytest.raises(UnsupportedTypeError, match="at least one column"):
        CsvFormat().check(pa.schema([]))


@pytest.mark.parametrize(
    "options",
    [
        {"separator": ""},
        {"separator": ",,"},
        {"separator": '"'},
        {"separator": "-"},
        {"separator": "0"},
        {"line_terminator": "\r"},
        {"null_value": "a,b"},
        {"null_value": 'a"'},
    ],
)
def test_ambiguous_options_are_refused(options: dict[str, Any]) -> None:
    """An option that would make values and marks look alike is refused at once."""
    with pytest.raises(ConfigError):
        CsvFormat(**options)


_FIELDS = st.none() | st.text(st.sampled_from('a,;"\r\n\\N é'), max_size=5)


@given(
    rows=st.lists(st.tuples(_FIELDS, _FIELDS), max_size=8),
    start=st.integers(0, 8),
    separator=st.sampled_from([",", ";", "\t"]),
    terminator=st.sampled_from(["\n", "\r\n"]),
    null_value=st.sampled_from(["", "\\N"]),
)
def test_the_csv_module_reads_every_row(
    rows: list[tuple[str | None, str | None]], start: int, separator: str, terminator: str, null_value: str
) -> None:
    """Python's csv module reads each row back, and quotes tell strings from nulls, whatever the strings hold."""
    columns = [pa.array([row[at] for row in rows], pa.string()).slice(start) for at in (0, 1)]
    form = CsvFormat(separator=separator, line_terminator=terminator, null_value=null_value)
    encoded = form.encode(pa.record_batch(columns, names=["a", "b"]))
    text = bytes(encoded.data).decode()
    expected = [[null_value if value is None else value for value in row] for row in rows[start:]]
    assert list(csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)) == expected
    for at, (first, second) in enumerate(rows[start:]):
        line = bytes(encoded.rows(at, at + 1)).decode()
        assert line.startswith(null_value + separator) == (first is None)
        assert line.endswith(separator + null_value + terminator) == (second is None)


def test_a_separator_beyond_ascii_is_quoted_too() -> None:
    """Its bytes alone would find other characters."""
    rows = pa.record_batch({"a": ["x§y", "é", None, 'q"'], "b": [1, 2, 3, 4]})
    form = CsvFormat(separator="§", header=False)
    assert bytes(form.encode(rows).data).decode() == '"x§y"§1\né§2\n§3\n"q"""§4\n'
