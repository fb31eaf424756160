"""Bloom filters of ORC files: they are on the columns that are named, and on no others."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from orc_footers import bloom_filter_ids
from pyarrow import orc

from partfile.errors import ConfigError
from partfile.writers.orc import OrcFormat

_ROWS = 100
_BATCH = pa.record_batch(
    {
        "a": list(range(_ROWS)),
        "s": [{"x": 1, "l": [1, 2], "y": {"z": "text", "w": 0.5}} for _ in range(_ROWS)],
        "m": pa.array([[("k", {"v": 1})]] * _ROWS, pa.map_(pa.string(), pa.struct({"v": pa.int64()}))),
        "f": pa.array([[1, 2]] * _ROWS, pa.list_(pa.int32(), 2)),
        "d": pa.array(["one", "two"] * (_ROWS // 2)).dictionary_encode(),
        "b": [f"word {number}" for number in range(_ROWS)],
    }
)


@pytest.mark.parametrize(
    ("names", "ids"),
    [
        ((), set()),
        (("a",), {1}),
        # s is 2, its l is 4 with 5 in it, its y is 6; m is 9, with key 10, value 11 and 12; f is 13 with 14.
        (("s.x",), {3}),
        (("s.y.z", "s.y.w"), {7, 8}),
        (("d",), {15}),
        (("b", "a"), {1, 16}),
    ],
)
def test_a_filter_is_on_the_column_that_is_named(names: tuple[str, ...], ids: set[int], memory_part: Any) -> None:
    """By the numbers of the type tree, which count all that is nested before it."""
    form = OrcFormat(compression="none", bloom_filter_columns=names)
    form.check(_BATCH.schema)
    part = memory_part()
    form.encode([_BATCH], _BATCH.schema, part)
    assert bloom_filter_ids(bytes(part.data)) == ids
    assert orc.ORCFile(pa.BufferReader(bytes(part.data))).read().num_rows == _ROWS


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("c", "'c', which is no column"),
        ("s.q", "'s.q', which is no column"),
        ("s", "'s', which holds no single values"),
        ("m", "'m', which holds no single values"),
        ("f", "'f', which holds no single values"),
    ],
)
def test_a_filter_of_nothing_is_refused(name: str, words: str) -> None:
    """At the first batch, with the columns that there are."""
    with pytest.raises(ConfigError, match=words) as refused:
        OrcFormat(bloom_filter_columns=(name,)).check(_BATCH.schema)
    assert "There are a, b, d, s.x, s.y.w, s.y.z." in str(refused.value)
