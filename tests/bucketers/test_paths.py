"""Splitting: no row lost, none moved without need, nothing believed that would leave the base."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partfile.bucketers.paths import split
from partfile.errors import ConfigError


def coded(codes: list[int | None], names: list[Any]) -> pa.DictionaryArray[Any, Any]:
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(names, pa.string()))


@given(st.data())
def test_slices_of_slices_keep_every_row(data: st.DataObject) -> None:
    """Batches and buckets with offsets, entries no row has, any number of buckets: rows keep their order."""
    codes = data.draw(st.lists(st.integers(0, 5), max_size=40))
    start = data.draw(st.integers(0, len(codes)))
    batch = pa.RecordBatch.from_pydict({"n": pa.array(range(len(codes)), pa.int64())}).slice(start)
    order, slices = split(len(batch), coded(list(codes), list("abcdef")).slice(start))
    ordered = batch if order is None else batch.take(order)
    assert len({bucket for bucket, _, _ in slices}) == len(slices)
    assert [begin for _, begin, _ in slices] == [0, *[stop for _, _, stop in slices]][: len(slices)]
    found = {bucket: ordered.column("n").to_pylist()[begin:stop] for bucket, begin, stop in slices}
    wanted: dict[str, list[int]] = {}
    for row, code in list(enumerate(codes))[start:]:
        wanted.setdefault("abcdef"[code], []).append(row)
    assert found == wanted


@pytest.mark.parametrize("codes", [[0, 0, 0, 0], [1, 1, 0, 0], [0, 1, 2, 3], [3, 2, 2, 0]])
def test_contiguous_rows_are_not_copied(codes: list[int | None]) -> None:
    """Whatever the order of the buckets, rows that stand together stay where they are."""
    order, slices = split(4, coded(codes, list("abcd")))
    assert order is None
    assert [stop - start for _, start, stop in slices] == [codes.count(code) for code in dict.fromkeys(codes)]


@pytest.mark.parametrize("codes", [[0, 1, 0, 1], [0, 1, 1, 0], [2, 0, 2, 2]])
def test_scattered_rows_are_brought_together(codes: list[int | None]) -> None:
    """More runs than buckets or fewer than the dictionary has: a bucket that comes twice is sorted."""
    order, slices = split(4, coded(codes, list("abcd")))
    assert order is not None
    assert [codes[row] for row in order.to_pylist()] == sorted(code for code in codes if code is not None)
    assert len(slices) == 2


def test_few_runs_may_stay_where_they_are() -> None:
    """Up to most_runs a bucket may come in several slices, in order; one run more and they are sorted."""
    buckets = coded([0, 1, 0, 0], ["a", "b"])
    assert split(4, buckets, most_runs=3) == (None, [("a", 0, 1), ("b", 1, 2), ("a", 2, 4)])
    assert split(4, buckets, most_runs=2).slices == [("a", 0, 3), ("b", 3, 4)]


@pytest.mark.parametrize(
    ("buckets", "problem"),
    [
        (coded([0, 0], ["a"]), "2 buckets for 4 rows"),
        (coded([0] * 5, ["a"]), "5 buckets for 4 rows"),
        (coded([], []), "0 buckets for 4 rows"),
        (coded([0, None, 0, 0], ["a"]), "has nulls"),
        (coded([0, 1, 0, 0], ["a", None]), "has nulls"),
        (pa.array(["a"] * 4), "not a dictionary array"),
        (["a"] * 4, "not a dictionary array"),
        (pa.array([1] * 4).dictionary_encode(), "not a dictionary array"),
    ],
)
def test_what_would_lose_rows_is_refused(buckets: Any, problem: str) -> None:
    """A bucketer of a user's own that names too few buckets, or null, is told so; no row is dropped in silence."""
    with pytest.raises(ConfigError, match=problem):
        split(4, buckets)


@pytest.mark.parametrize(
    "bucket",
    [
        *("..", "a/../b", "/etc", "_partfile/uid/chk-1", "ok/_x", ".git", "a//b", "a/", "a\nb", "a\0"),
        *("x" * 256, "é" * 128, "/".join(["x" * 200] * 6)),
    ],
)
def test_unsafe_buckets_are_refused(bucket: str) -> None:
    """Nothing leaves the base, hides or reaches partfile's own state, whatever the bucketer says."""
    with pytest.raises(ConfigError, match="not safe as a path"):
        split(4, coded([0, 1, 0, 1], ["ok", bucket]))


@pytest.mark.parametrize("bucket", ["", "y=2013/m=1", "é" * 127, "x" * 255, "/".join(["x" * 204] * 5), "a b", "%2E"])
def test_safe_buckets_pass(bucket: str) -> None:
    """Hive's '=', spaces, escapes, and the longest that fit."""
    assert split(4, coded([0] * 4, [bucket])).slices == [(bucket, 0, 4)]
