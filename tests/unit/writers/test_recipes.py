"""Recipes of formats: plain data that comes back as the same format."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from partfile.errors import ConfigError
from partfile.writers.parquet import ParquetFormat
from partfile.writers.registry import BULK_FORMATS, FORMATS, format_of, recipe_of, resolve_format


@pytest.mark.parametrize("name", sorted(BULK_FORMATS))
def test_a_recipe_comes_back_as_the_format(name: str) -> None:
    """Each columnar format goes through JSON and comes back equal."""
    form = resolve_format(name, "zstd")
    recipe = json.loads(json.dumps(recipe_of(form)))
    assert recipe["format"] == name
    assert format_of(recipe) == form


def test_a_recipe_says_every_option() -> None:
    """Options with their defaults are in it, so that a stage is encoded as its sink would have."""
    form = ParquetFormat(compression="zstd", compression_level=3, row_group_rows=7)
    recipe = recipe_of(form)
    assert {*recipe} == {"format", *(field.name for field in dataclasses.fields(ParquetFormat))}
    assert format_of(recipe) == form


def test_what_a_recipe_lacks_has_its_default() -> None:
    """A recipe of an older version, which knew fewer options, is read."""
    assert format_of({"format": "parquet"}) == ParquetFormat()


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ({}, ["'format'", "None"]),
        ({"format": "jsonl"}, ["'format'", "'jsonl'", "parquet"]),
        ({"format": ["parquet"]}, ["'format'"]),
        ({"format": "parquet", "shine": 1}, ["'shine'", "no such option"]),
        ({"format": "parquet", "row_group_rows": "7"}, ["'row_group_rows'", "integer"]),
        ({"format": "parquet", "compression": "lzo"}, ["lzo"]),
    ],
)
def test_what_is_no_recipe_is_refused_by_its_field(recipe: Any, words: list[str]) -> None:
    """A recipe that was damaged, or comes from a newer version, is refused by the field at fault."""
    with pytest.raises(ConfigError) as refused:
        format_of(recipe)
    assert all(word in str(refused.value) for word in words), str(refused.value)


def _no_keys() -> None:
    """Stands for encryption."""


def test_encryption_is_lent_by_the_sink() -> None:
    """A recipe says that a file is to be encrypted, holds no code, and makes no plain file where nobody encrypts."""
    form = ParquetFormat(encryption=_no_keys, sort_by=("a",), dictionary=("b",))
    recipe = json.loads(json.dumps(recipe_of(form)))
    assert recipe["encryption"] is True
    assert format_of(recipe, form) == form
    for lender in (None, ParquetFormat(), resolve_format("orc")):
        with pytest.raises(ConfigError, match="to be encrypted"):
            format_of(recipe, lender)
    assert recipe_of(ParquetFormat())["encryption"] is False
    assert format_of(recipe_of(ParquetFormat()), form) == ParquetFormat()


def test_a_format_of_ones_own_has_no_recipe() -> None:
    """A subclass, too, which plain data cannot tell from the format."""

    class Own(ParquetFormat):
        pass

    with pytest.raises(ConfigError, match="has no recipe"):
        recipe_of(Own())


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_recipe_of_each_format_comes_back(name: str) -> None:
    """With the defaults of its compression, too."""
    form = resolve_format(name)
    assert format_of(json.loads(json.dumps(recipe_of(form)))) == form


def test_a_recipe_keeps_how_lines_are_compressed() -> None:
    """Codec and level are options of an option."""
    form = resolve_format("csv", "gzip", compression_level=3, header=False, separator=";")
    assert format_of(json.loads(json.dumps(recipe_of(form)))) == form
