"""Formats by name, formats of the user's own, and their persisted specs."""

from __future__ import annotations

import dataclasses
import json
import pickle  # noqa: TID251 - what Spark does with a format, in memory
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from partfile.errors import ConfigError
from partfile.writers.base import RowFormat
from partfile.writers.parquet import ParquetFormat
from partfile.writers.registry import BULK_FORMATS, FORMATS, format_of, resolve_format, spec_of

# Formats by name, and formats of the user's own.

_DOCUMENT = Path(__file__).parents[2] / "docs" / "FORMATS.md"


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
        (("jsn",), {}, ["'jsn'", "avro, csv, json, orc, parquet, text", "Did you mean json?"]),
        ((3,), {}, ["3 is not known", "format='json'", "JsonLinesFormat()"]),
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


# Format specs of formats: plain data that comes back as the same format.


@pytest.mark.parametrize("name", sorted(BULK_FORMATS))
def test_a_spec_comes_back_as_the_format(name: str) -> None:
    """Each columnar format goes through JSON and comes back equal."""
    form = resolve_format(name, "zstd")
    spec = json.loads(json.dumps(spec_of(form)))
    assert spec["format"] == name
    assert format_of(spec) == form


def test_a_spec_says_every_option() -> None:
    """Options with their defaults are in it, so that a staging file is encoded as its sink would have."""
    form = ParquetFormat(compression="zstd", compression_level=3, row_group_rows=7)
    spec = spec_of(form)
    assert {*spec} == {"format", *(field.name for field in dataclasses.fields(ParquetFormat))}
    assert format_of(spec) == form


def test_what_a_spec_lacks_has_its_default() -> None:
    """A format spec of an older version, which knew fewer options, is read."""
    assert format_of({"format": "parquet"}) == ParquetFormat()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, ["'format'", "None"]),
        ({"format": "jsonl"}, ["'format'", "'jsonl'", "parquet"]),
        ({"format": ["parquet"]}, ["'format'"]),
        ({"format": "parquet", "shine": 1}, ["'shine'", "no such option"]),
        ({"format": "parquet", "row_group_rows": "7"}, ["'row_group_rows': it must be a whole number"]),
        ({"format": "parquet", "compression": "lzo"}, ["lzo"]),
    ],
)
def test_what_is_no_spec_is_refused_by_its_field(spec: Any, words: list[str]) -> None:
    """A format spec that was damaged, or comes from a newer version, is refused by the field at fault."""
    with pytest.raises(ConfigError) as refused:
        format_of(spec)
    assert all(word in str(refused.value) for word in words), str(refused.value)


def _no_keys() -> None:
    """Stands for encryption."""


def test_encryption_is_lent_by_the_sink() -> None:
    """A format spec says that a file is encrypted, holds no code, and makes no plain file without a key."""
    form = ParquetFormat(encryption=_no_keys, sort_by=("a",), dictionary=("b",))
    spec = json.loads(json.dumps(spec_of(form)))
    assert spec["encryption"] is True
    assert format_of(spec, form) == form
    for lender in (None, ParquetFormat(), resolve_format("orc")):
        with pytest.raises(ConfigError, match="to be encrypted"):
            format_of(spec, lender)
    assert spec_of(ParquetFormat())["encryption"] is False
    assert format_of(spec_of(ParquetFormat()), form) == ParquetFormat()


def test_a_format_of_ones_own_has_no_spec() -> None:
    """A subclass, too, which plain data cannot tell from the format."""

    class Own(ParquetFormat):
        pass

    with pytest.raises(ConfigError, match="has no format spec"):
        spec_of(Own())


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_spec_of_each_format_comes_back(name: str) -> None:
    """With the defaults of its compression, too."""
    form = resolve_format(name)
    assert format_of(json.loads(json.dumps(spec_of(form)))) == form


def test_a_spec_keeps_how_lines_are_compressed() -> None:
    """Codec and level are options of an option."""
    form = resolve_format("csv", "gzip", compression_level=3, header=False, separator=";")
    assert format_of(json.loads(json.dumps(spec_of(form)))) == form
