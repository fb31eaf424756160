"""Streams that deduplicate, on any storage: what their tasks read of it, and two drivers of one of them."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

import partfile as pf
from partfile.errors import Fenced
from partfile.sink.spark.write_job import run_write_job
from partfile.snapshot.documents import FileHandle
from support.spark.drivers import Driver, copy_checkpoint
from support.spark.openers import ReadsNoted
from support.spark.streams import make_sink, run, stream, write_source

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from partfile.sink.coordinator import Runtime, TriggeredCheckpoint
    from partfile.sink.settings import SinkSettings
    from partfile.sink.spark.distinct import KeyPlan
    from partfile.sink.spark.write_job import Acknowledgement

When = Literal["before", "after"]
_SOON_GONE = {"inline_threshold_bytes": 0, "retained_checkpoints": 1}
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


# Two drivers of one stream.


def distinct_sink(base: str, options: Mapping[str, Any]) -> pf.FileSink:
    """A sink whose runs of keys are files, which go soon after they were merged."""
    return make_sink(base, storage_options=dict(options), deduplicate=pf.Deduplicate("id"), **_SOON_GONE)


def taken_over_by_a_rival(
    base: str,
    options: Mapping[str, Any],
    spark: SparkSession,
    root: Path,
    *,
    when: When,
    monkeypatch: pytest.MonkeyPatch,
) -> int:
    """Have another driver take over a stream in its second batch and write all rows; the first one is fenced.

    Before or after the tasks of that batch, the rival merges and deletes a run of keys in which they look.

    Args:
        base: Where to, as a URL.
        options: Of the store's client.
        spark: The session of the first driver, which is this process.
        root: A local directory of this test's own; Spark's checkpoint of the rival is ``copy`` in it.
        when: Before the tasks, or after them.
        monkeypatch: Leads the write jobs through this function.

    Returns:
        The number after the last row.
    """
    last = write_files_again(root / "source", 7)
    rival = {
        "base": base,
        "source": str(root / "source"),
        "checkpoint": str(root / "copy"),
        "deduplicate": "id",
        "options": {"storage_options": dict(options), **_SOON_GONE},
    }
    batches = 0

    def in_the_second_batch(
        df: DataFrame, settings: SinkSettings, runtime: Runtime, triggered: TriggeredCheckpoint, keys: KeyPlan
    ) -> list[Acknowledgement]:
        nonlocal batches
        batches += 1
        if batches != 2:
            return run_write_job(df, settings, runtime, triggered, keys)
        done = run_write_job(df, settings, runtime, triggered, keys) if when == "after" else None
        copy_checkpoint(root / "spark", root / "copy")
        # A process of its own: a session has one run of a query at a time.
        assert Driver(rival).finish() == "done"
        paths = [file.handle.path for file in keys.runs if isinstance(file.handle, FileHandle)]
        assert paths
        assert not any(runtime.storage.store.file_exists(runtime.storage.path(path)) for path in paths)
        return run_write_job(df, settings, runtime, triggered, keys) if done is None else done

    monkeypatch.setattr("partfile.sink.spark.stream.run_write_job", in_the_second_batch)
    with pytest.raises(Fenced):
        run(distinct_sink(base, options), stream(spark, root / "source"), str(root / "spark"))
    assert batches == 2
    return last


def write_files_again(source: Path, files: int, first: int = 0) -> int:
    """Add source files of which each has most of the rows of the one before; returns the number after the last row."""
    for number in range(files):
        last = write_source(source, 1, ROWS_A_FILE, first=first + NEW_ROWS_A_FILE * number)
    return last
