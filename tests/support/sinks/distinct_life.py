"""Lives of a sink that deduplicates, on any store: crashes, merges, a savepoint, two drivers, files that are left."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import partfile as pf
from partfile.errors import Fenced
from partfile.sink import deduplicate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

KEYS = 40


def distinct_sink(base: str, options: Mapping[str, Any], **more: Any) -> pf.FileSink:
    """A sink that deduplicates by ``id``, and every run of whose keys is a file."""
    fixed: dict[str, Any] = {"deduplicate": pf.Deduplicate("id"), "inline_threshold_bytes": 0}
    return pf.FileSink(base, uid="d", format="json", storage_options=dict(options), **(fixed | more))


def rows(first: int, last: int) -> pa.Table:
    """A row of each key of a range."""
    return pa.table({"id": [f"key-{one}" for one in range(first, last)]})


def ids_in(base: str, options: Mapping[str, Any]) -> Counter[str]:
    """How often each key is in the finished files."""
    return Counter(pf.read(base, storage_options=dict(options)).to_table()["id"].to_pylist())


def live_and_check(
    base: str, options: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch, names_in: Callable[[str], list[str]]
) -> None:
    """Write rows that come again, over crashes, and compare; every run of keys is a file, and mapped.

    Args:
        base: Where to, as a URL.
        options: Of the store's client.
        monkeypatch: Undoes at the test's end what this sets.
        names_in: The names in a directory below the base, by another client than the sink's.
    """
    monkeypatch.setattr(deduplicate, "_MAPPED_BYTES", 0)
    for begin in range(0, KEYS, 10):
        crashed = distinct_sink(base, options).local().open()
        crashed.write(rows(0, begin + 5))
        crashed.checkpoint()
        crashed.write(rows(begin, begin + 10))
        crashed.checkpoint()
        crashed.write(rows(begin, KEYS))
        crashed.close()
    with distinct_sink(base, options).local() as out:
        out.write(rows(0, KEYS + 1))
        progress = out.checkpoint()
        assert (progress.rows, progress.duplicates, progress.state_keys) == (1, KEYS, KEYS + 1)
        saved = out.savepoint(f"{base}/_saved")
    assert len(names_in("_partfile/d/shared")) <= 2 * progress.state_runs
    assert ids_in(base, options) == Counter(f"key-{one}" for one in range(KEYS + 1))
    with distinct_sink(f"{base}-moved", options, restore_from=saved).local() as out:
        out.write(rows(0, KEYS + 2))
        assert out.checkpoint().duplicates == KEYS + 1


def take_over_and_check(base: str, options: Mapping[str, Any], names_in: Callable[[str], list[str]]) -> None:
    """Have a second driver merge and delete the run that a first one is about to merge, and compare.

    The first one misses the run, and is fenced; that is no damage. A third driver knows every key that counts.

    Args:
        base: Where to, as a URL.
        options: Of the store's client.
        names_in: The names in a directory below the base, by another client than the sink's.
    """
    rolling = pf.RollingPolicy(on_checkpoint=True)
    first = distinct_sink(base, options, rolling=rolling).local().open()
    first.write(rows(0, 10))
    first.checkpoint()
    (merged,) = names_in("_partfile/d/shared")
    first.write(rows(5, 20))
    with distinct_sink(base, options, retained_checkpoints=1).local() as second:
        for begin in range(0, KEYS, 10):
            second.write(rows(begin, begin + 15))
            second.checkpoint()
    left = names_in("_partfile/d/shared")
    assert merged not in left
    with pytest.raises(Fenced):
        first.checkpoint()
    assert set(left) <= set(names_in("_partfile/d/shared"))
    with distinct_sink(base, options).local() as third:
        third.write(rows(0, KEYS + 6))
        assert third.checkpoint().duplicates == KEYS + 5
    assert ids_in(base, options) == Counter(f"key-{one}" for one in range(KEYS + 6))
