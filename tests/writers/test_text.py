"""Text: one string column, one value a line."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from partfile.errors import ConfigError, UnsupportedTypeError
from partfile.writers.text import TextFormat


def _text(values: Any, **options: Any) -> str:
    batch = pa.record_batch([values], names=["value"])
    form = TextFormat(**options)
    form.check(batch.schema)
    return bytes(form.encode(batch).data).decode()


@pytest.mark.parametrize("separator", ["\n", "\r\n", "*", "##"])
def test_the_separator_follows_each_value(separator: str) -> None:
    """Values are joined by the chosen separator, which also ends the last one (Flink's T-A25)."""
    assert _text(pa.array(["A", "é", "C"]), line_separator=separator) == f"A{separator}é{separator}C{separator}"


def test_a_null_is_an_empty_line() -> None:
    """A null keeps its line, as in Spark's text sink."""
    assert _text(pa.array(["A", None, ""])) == "A\n\n\n"


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())], ids=str)
def test_any_layout_of_strings_will_do(kind: pa.DataType) -> None:
    """Large, view and dictionary strings are strings."""
    assert _text(pa.array(["A", None, "B"], pa.string()).cast(kind)) == "A\n\nB\n"


def test_a_value_of_two_lines_is_refused() -> None:
    """A value that would read back as two lines is refused with the column and the ways out."""
    with pytest.raises(ConfigError, match=r"'value' holds the line separator .* in 1 of ") as refused:
        _text(pa.array(["fine", "two\nlines", None]))
    assert "json" in refused.value.hint


def test_bytes_outside_the_slice_and_under_nulls_do_not_count() -> None:
    """Only values of the batch itself are looked at, and only their own characters."""
    assert _text(pa.array(["a\nb", "c"]).slice(1)) == "c\n"
    assert _text(pa.array(["x#", "#y"]), line_separator="##") == "x###" + "#y##"


def test_line_breaks_can_be_kept() -> None:
    """On request a value with line breaks becomes several lines."""
    assert _text(pa.array(["two\nlines"]), embedded_separator="keep") == "two\nlines\n"


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ([("a", pa.string()), ("b", pa.int64())], ["'a' (string)", "'b' (int64)"]),
        ([("n", pa.int64())], ["'n' (int64)"]),
        ([("n", pa.binary())], ["'n' (binary)"]),
        ([], ["none"]),
    ],
)
def test_anything_else_is_refused_by_name(schema: Any, words: list[str]) -> None:
    """More columns, none, or another type are refused, naming all of them."""
    with pytest.raises(UnsupportedTypeError) as refused:
        TextFormat().check(pa.schema(schema))
    assert all(word in str(refused.value) for word in words)


@pytest.mark.parametrize("options", [{"line_separator": ""}, {"embedded_separator": "drop"}])
def test_useless_options_are_refused(options: dict[str, Any]) -> None:
    """An empty separator and an unknown choice are refused at once."""
    with pytest.raises(ConfigError):
        TextFormat(**options)
