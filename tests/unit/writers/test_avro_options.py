"""Avro parts: which columns and options are refused, and by which words."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest

from partfile.errors import ConfigError, UnsupportedTypeError
from partfile.writers.avro import AvroFormat
from partfile.writers.registry import resolve_format


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (pa.schema([]), "at least one column"),
        (pa.schema({"a b": pa.int8()}), "'a b' .* letters"),
        (pa.schema({"s": pa.struct({"é": pa.int8()})}), "'s' .* letters.* at 's.é'"),
        (pa.schema([("a", pa.int8()), ("a", pa.int8())]), "occurs twice"),
        (pa.schema({"m": pa.map_(pa.int32(), pa.string())}), "'m' .* map key of type int32"),
        (pa.schema({"u": pa.uint64()}), "uint64 .*decimal"),
        (pa.schema({"i": pa.list_(pa.month_day_nano_interval())}), "month_day_nano_interval .* at 'i.item'"),
        (pa.schema({"d": pa.decimal128(5, -2)}), r"decimal128\(5, -2\)"),
    ],
)
def test_what_avro_lacks_is_refused_by_name(schema: pa.Schema, words: str) -> None:
    """The column at fault, the place within it and the type are named."""
    with pytest.raises(UnsupportedTypeError, match=re.compile(words)):
        AvroFormat().check(schema)


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "lzo"},
        {"compression_level": 3},
        {"compression": "deflate", "compression_level": 0},
        {"compression": "zstd", "compression_level": 23},
        {"block_bytes": 0},
    ],
)
def test_useless_options_are_refused(options: dict[str, Any]) -> None:
    """An unknown codec, a level that is not taken and an empty block are refused at once."""
    with pytest.raises(ConfigError):
        AvroFormat(**options)


def test_a_name_gives_the_format() -> None:
    """``format="avro"`` takes the format's own default codec unless told otherwise."""
    assert resolve_format("avro") == AvroFormat(compression="snappy")
    assert resolve_format("avro", "zstd", compression_level=9) == AvroFormat(compression="zstd", compression_level=9)
