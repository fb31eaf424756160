"""Formats by name, and formats of the user's own."""

from __future__ import annotations

import pickle  # noqa: TID251 - what Spark does with a format, in memory
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from partfile.errors import ConfigError
from partfile.writers.base import RowFormat
from partfile.writers.registry import resolve_format

_DOCUMENT = Path(__file__).parents[3] / "docs" / "FORMATS.md"


@pytest.mark.parametrize("name", ["text", "json", "csv", "parquet"])
@pytest.mark.parametrize(
    ("codec", "suffix"), [(None, ""), ("gzip", ".gz"), ("zstd", ".zst"), ("lz4", ".lz4"), ("snappy", ".snappy")]
)
def test_names_give_formats_with_suffixes_that_readers_know(name: str, codec: str | None, suffix: str) -> None:
    """Each name and compression gives a format with the suffix by which readers tell what is inside."""
    form = resolve_format(name, codec)
    stem = {"text": ".txt"}.get(name, f".{name}")
    assert form.suffix == (stem if name == "parquet" else stem + suffix)
    assert form.appendable == isinstance(form, RowFormat) == (name != "parquet")
    assert pickle.loads(pickle.dumps(form)) == form  # noqa: S301


def test_options_reach_the_format() -> None:
    """Options, the level among them, are fields of the format."""
    form: Any = resolve_format("csv", "gzip", header=False, compression_level=1)
    assert (form.header, form.compression.level) == (False, 1)
    parquet: Any = resolve_format("parquet", "zstd", row_group_rows=5, compression_level=7)
    assert (parquet.compression, parquet.compression_level, parquet.row_group_rows) == ("zstd", 7, 5)
    snappy: Any = resolve_format("parquet")
    assert snappy.compression == "snappy"


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        (("jsn",), {}, ["'jsn'", "avro, csv, json, orc, parquet, text", "Format object"]),
        ((3,), {}, ["3 is not known"]),
        (("json", "brotli"), {}, ["'brotli'", "gzip", "zstd"]),
        (("parquet", "lzo"), {}, ["'lzo'", "snappy, zstd"]),
        (("json",), {"header": True}, ["json", "'header'", "non_finite"]),
        (("parquet",), {"sortby": ("n",)}, ["'sortby'", "Did you mean sort_by?", "compression_level"]),
        (("parquet", "zstd"), {"compression_level": 99}, ["'zstd'", "compression_level=99", "-131072 to 22"]),
        (("parquet", "brotli"), {"compression_level": 12}, ["'brotli'", "0 to 11"]),
        (("parquet", "lz4"), {"compression_level": 0}, ["'lz4'", "1 to 12"]),
        (("parquet", "snappy"), {"compression_level": 3}, ["'snappy'", "compression_level=3"]),
        (("json",), {"compression": None}, []),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(arguments: Any, options: dict[str, Any], words: list[str]) -> None:
    """Unknown names, compressions and options are refused, listing those that work."""
    if not words:
        assert resolve_format(*arguments, **options).suffix == ".json"
        return
    with pytest.raises(ConfigError) as refused:
        resolve_format(*arguments, **options)
    assert all(word in str(refused.value) for word in words), str(refused.value)


def test_a_format_object_is_taken_as_it_is() -> None:
    """A format passes through, and options beside it, which would be ignored, are refused."""
    form = resolve_format("csv")
    assert resolve_format(form) is form
    with pytest.raises(ConfigError, match="compression cannot be given beside CsvFormat"):
        resolve_format(form, "gzip")
    with pytest.raises(ConfigError, match="compression, header cannot be given beside CsvFormat"):
        resolve_format(form, "gzip", header=False)


def test_the_documented_format_of_ones_own_works(memory_part: Any) -> None:
    """The example in docs/FORMATS.md runs as printed, in at most fifteen lines, and writes parts like any format."""
    example = re.search(r"<!-- own-format -->\n```python\n(.*?)```", _DOCUMENT.read_text(), re.DOTALL)
    assert example is not None
    lines = [line for line in example[1].splitlines() if line.strip()]
    assert len(lines) <= 15
    names: dict[str, Any] = {}
    exec(compile(example[1], str(_DOCUMENT), "exec"), names)  # noqa: S102
    form = resolve_format(names["TabFormat"]())
    columns: dict[str, Any] = {"a": [1, None], "b": ["x", "y"]}
    batch = pa.record_batch(columns)
    form.check(batch.schema)
    part = memory_part()
    writer = form.open(part, batch.schema)
    writer.write(batch)
    assert writer.persist() == len(part.data)
    assert bytes(part.data) == b"1\tx\n\ty\n"
    assert form.suffix == ".tsv"
