"""Hostile values never leave the base, never collide, never hide a file (T6 to T8)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import partfile as pf
from partfile.bucketers.base import escape_path, escape_segment, is_safe_path
from partfile.bucketers.builtin import FunctionBucketer
from partfile.errors import BucketValueError
from partfile.stores.paths import check_relative_path

CONTEXT = pf.BucketContext(batch_time_ms=0)
HOSTILE = [
    ".",
    "..",
    "/etc",
    "a/../../b",
    "a\\b",
    "C:x",
    "%2e%2e",
    "%00",
    "\0",
    "line\nbreak",
    "\x1b[31m",
    "_hidden",
    ".hidden",
    "_partfile",
    "trailing. ",
    "CON",
    "*",
    "?",
    "[a]",
    "{a,b}",
    "caf\u00e9",
    "cafe\u0301",
    "\u202ertl",
    "\U0001f600",
    "\u200d",
    "=",
    "a=b",
]


def buckets(bucketer: pf.Bucketer, column: str, values: list[Any]) -> list[str]:
    batch = pa.RecordBatch.from_pydict({column: pa.array(values, pa.string()), "x": list(range(len(values)))})
    return [str(path) for path in bucketer.bucket_of(batch, CONTEXT).to_pylist()]


@pytest.mark.parametrize(
    "make", [lambda: pf.HiveBucketer("c"), lambda: FunctionBucketer(lambda batch: batch.column("c"))]
)
@pytest.mark.fault("T6", "T7", "T8")
def test_hostile_values_stay_below_the_base_and_apart(make: Any) -> None:
    """Each hostile value gets a path of its own that a store accepts and no reader hides."""
    values = [value for value in HOSTILE if value not in {"/etc", "a/../../b"} or isinstance(make(), pf.HiveBucketer)]
    paths = buckets(make(), "c", values)
    assert len(set(paths)) == len(values)
    for path in paths:
        check_relative_path(path)
        assert not any(segment.startswith(("_", ".")) for segment in path.split("/"))
        assert not set(path) & set('*?[]{\\":\0\n\x1b')


@given(st.lists(st.text(min_size=1, max_size=40), min_size=1, max_size=30, unique=True))
@pytest.mark.fault("T7")
def test_different_values_never_share_a_hive_bucket(values: list[str]) -> None:
    """Escaping is injective and repeatable, for any text."""
    paths = buckets(pf.HiveBucketer("c"), "c", values)
    assert len(set(paths)) == len(values)
    assert paths == buckets(pf.HiveBucketer("c"), "c", values)
    for path in paths:
        assert check_relative_path(path) == path
        assert "/" not in path


@given(st.text(min_size=1, max_size=60))
def test_a_segment_is_one_visible_name(text: str) -> None:
    """Whatever the text, its segment is one path step that neither hides nor climbs."""
    segment = escape_segment(text)
    assert "/" not in segment
    assert not segment.startswith(("_", "."))
    assert check_relative_path(segment) == segment


@pytest.mark.parametrize("value", ["x" * 256, "x" * 4096, "\u00e9" * 128, "%" * 86, "_" + "x" * 253, "lone \ud800"])
@pytest.mark.fault("T6")
def test_what_cannot_be_a_name_is_refused(value: str) -> None:
    """Too long once escaped, or not encodable: an error that shows it."""
    with pytest.raises(BucketValueError, match=r"bytes|UTF-8"):
        escape_segment(value)


@pytest.mark.parametrize("value", ["x" * 255, "\u00e9" * 127 + "x", "%" * 85, "_" + "x" * 252])
def test_a_segment_of_255_bytes_fits(value: str) -> None:
    """The limit is counted in bytes, after escaping, and the last byte may be used."""
    assert len(escape_segment(value).encode()) == 255


@pytest.mark.fault("T7")
def test_a_path_of_1024_bytes_fits_and_one_more_does_not() -> None:
    """The limit of the whole path counts its slashes."""
    longest = "/".join(["x" * 204, *["x" * 204] * 4])
    assert escape_path(longest) == longest
    assert len(longest) == 1024
    with pytest.raises(BucketValueError, match="longer than 1024 bytes"):
        escape_path(longest + "x")


@given(st.lists(st.text("ab%_./\\2EF5\u00e9\u0301", max_size=8), unique=True, max_size=40))
def test_different_paths_of_a_function_never_meet(texts: list[str]) -> None:
    """Whole paths are escaped injectively, to safe ones; '%' and hex digits cannot imitate an escape."""
    good = [text for text in texts if all(text.split("/")) or not text]
    paths = [escape_path(text) for text in good]
    assert len(set(paths)) == len(good)
    assert all(is_safe_path(path) for path in paths)


@pytest.mark.parametrize("path", ["a//b", "/a", "a/", "x/" * 600 + "x"])
def test_a_path_with_an_empty_segment_or_too_long_is_refused(path: str) -> None:
    """A function's path must be made of segments."""
    with pytest.raises(BucketValueError):
        escape_path(path)


def test_bad_values_go_to_the_fallback_alone() -> None:
    """Only the rows that name no bucket go to the fallback."""
    batch = pa.RecordBatch.from_pydict({"c": ["ok", "x" * 300, None], "x": [1, 2, 3]})
    context = pf.BucketContext(batch_time_ms=0, on_bad_bucket="bad")
    by_hive = pf.HiveBucketer("c").bucket_of(batch, context).to_pylist()
    assert by_hive == ["c=ok", "bad", "c=__HIVE_DEFAULT_PARTITION__"]
    by_function = FunctionBucketer(lambda batch: batch.column("c")).bucket_of(batch, context).to_pylist()
    assert by_function == ["ok", "bad", "bad"]
