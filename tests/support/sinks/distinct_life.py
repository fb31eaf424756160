"""One life of a sink that deduplicates, on any store: crashes, merges, a savepoint, and the files that are left."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import partfile as pf
from partfile.sink import deduplicate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pytest

KEYS = 40


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

    def sink(where: str, **more: Any) -> pf.FileSink:
        fixed: dict[str, Any] = {"deduplicate": pf.Deduplicate("id"), "inline_threshold_bytes": 0}
        return pf.FileSink(where, uid="d", format="json", storage_options=dict(options), **(fixed | more))

    def rows(first: int, last: int) -> pa.Table:
        return pa.table({"id": [f"key-{one}" for one in range(first, last)]})

    for begin in range(0, KEYS, 10):
        crashed = sink(base).local().open()
        crashed.write(rows(0, begin + 5))
        crashed.checkpoint()
        crashed.write(rows(begin, begin + 10))
        crashed.checkpoint()
        crashed.write(rows(begin, KEYS))
        crashed.close()
    with sink(base).local() as out:
        out.write(rows(0, KEYS + 1))
        progress = out.checkpoint()
        assert (progress.rows, progress.duplicates, progress.state_keys) == (1, KEYS, KEYS + 1)
        saved = out.savepoint(f"{base}/_saved")
    assert len(names_in("_partfile/d/shared")) <= 2 * progress.state_runs
    found = pf.read(base, storage_options=dict(options)).to_table()["id"].to_pylist()
    assert Counter(found) == Counter(f"key-{one}" for one in range(KEYS + 1))
    with sink(f"{base}-moved", restore_from=saved).local() as out:
        out.write(rows(0, KEYS + 2))
        assert out.checkpoint().duplicates == KEYS + 1
