"""Lives of a stream that deduplicates, whose storage has no files on this host: what its tasks read of it, and when."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.spark.drivers import Driver
from support.spark.openers import ReadsNoted
from support.spark.streams import write_source

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest

LIVES = 3
FILES_A_LIFE, ROWS_A_FILE, NEW_ROWS_A_FILE = 2, 30, 10


class DistinctLife:
    """Drivers of one stream, each from its start to its end; every run of keys is a file, and has several tasks.

    Its tasks come one after the other, so that none reads what another one is copying.

    Args:
        base: Where to, as a URL.
        checkpoint: Of Spark, a path or a URL.
        root: A local directory of this test's own.
        options: Of the store's client.
        monkeypatch: Gives the drivers a directory for temporary files, in which the copies of this host are.
    """

    def __init__(
        self, base: str, checkpoint: str, root: Path, options: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self._source = root / "source"
        self._reads = ReadsNoted(root / "reads")
        temporary = root / "temporary"
        temporary.mkdir()
        monkeypatch.setenv("TMPDIR", str(temporary))
        self.copies = temporary / f"partfile-{os.getuid()}"
        self._first = 0
        """The first row of the next source file."""
        self._job = {
            "base": base,
            "source": str(self._source),
            "checkpoint": checkpoint,
            "master": "local[1,4]",
            "deduplicate": "id",
            "options": {"storage_options": dict(options), "inline_threshold_bytes": 0, "hash_partitions": 2},
            "reads_log": self._reads.log,
        }

    @property
    def ids(self) -> int:
        """How many there are in the source."""
        return self._first + ROWS_A_FILE - NEW_ROWS_A_FILE

    def live(self) -> Counter[str]:
        """Stream files of which each has most of the rows of the one before; how often tasks read each run of keys."""
        for _ in range(FILES_A_LIFE):
            write_source(self._source, 1, ROWS_A_FILE, first=self._first)
            self._first += NEW_ROWS_A_FILE
        before = self._reads.reads()
        assert Driver(self._job).finish() == "done"
        return Counter({path: count for path, count in (self._reads.reads() - before).items() if "/shared/" in path})

    def live_and_check(self) -> Counter[str]:
        """Three lives, the copies of this host are gone before the last one; how often tasks read each run in all."""
        first = self.live()
        assert set(first.values()) == {1}, first
        assert self._are_copied(first)
        second = self.live()
        assert set(second.values()) == {1}, second
        assert not first.keys() & second.keys()
        assert self._are_copied(second)
        shutil.rmtree(self.copies)
        third = self.live()
        assert set(third.values()) == {1}, third
        assert third.keys() & (first.keys() | second.keys())
        return first + second + third

    def _are_copied(self, reads: Counter[str]) -> bool:
        copies = [path.name for path in self.copies.iterdir()]
        return all(any(name.startswith(f"{Path(path).name}-") for name in copies) for path in reads)
