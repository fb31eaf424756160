"""Distinct rows in Spark: each key is in the files once, whatever happens to tasks, drivers and their number."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

import partfile as pf
from partfile.errors import CheckpointMismatch, ConfigError, SnapshotCorrupt
from partfile.sink import deduplicate
from partfile.sink.spark import distinct
from partfile.sink.spark.distinct import KeyAnswer, TaskKeys, by_key, is_in_one_partition, key_plan
from partfile.sink.states import SeenKeys
from partfile.snapshot import run_file
from partfile.snapshot.documents import FileHandle, InlineHandle
from partfile.snapshot.key_hash import hashes_of
from partfile.snapshot.storage import CheckpointStorage, FileStreamSettings
from partfile.stores.local.store import LocalStore
from partfile.stores.memory import MemoryMetadataStore
from support.processes.command_line import told
from support.spark.drivers import copy_checkpoint
from support.spark.streams import Once, expected, ids_by_duckdb, make_sink, run_without_end, stream, write_source

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from partfile.sink.spark.distinct import KeyPlan


NOW = {"availableNow": True}
BY_ID = pf.Deduplicate("id")
IN_FILES = {"inline_threshold_bytes": 0}
"""Every run has a file of its own."""


def run(sink: pf.FileSink, frame: DataFrame, root: Path, checkpoint: str = "spark") -> None:
    """Stream everything that is there, with a clean end."""
    with sink.start(frame, checkpoint_location=str(root / checkpoint), trigger=NOW) as query:
        query.awaitTermination()


def rows_again(source: Path, files: int, first: int = 0) -> int:
    """Add files of 30 rows each, of which all but ten were in the file before; returns the number after the last."""
    for number in range(files):
        end = write_source(source, 1, first=first + 10 * number)
    return end


# Without Spark: what the tasks and the driver do with keys


class Job:
    """Batches of keys through tasks, with lost attempts and a driver that starts again, as Spark would run them."""

    def __init__(self, options: pf.Deduplicate, rng: random.Random) -> None:
        self.options = options
        self.rng = rng
        streams = FileStreamSettings(inline_threshold_bytes=rng.choice([0, 20_480]))
        self.storage = CheckpointStorage(MemoryMetadataStore(), "d", streams)
        self.seen: SeenKeys | None = None
        self.checkpoint_id = 0

    def batch(self, keys: list[int | None], now_ms: int) -> list[int | None]:
        """The keys of the rows that are written, of one batch over any number of tasks."""
        self.checkpoint_id += 1
        plan = key_plan(self.options, self.rng.randrange(1, 6), self.seen, ("integer",), now_ms)
        table = pa.record_batch({"id": pa.array(keys, pa.int64())})
        hashes = hashes_of(table.columns)
        if plan.partitions > 1:
            # A task that gets all rows hashes them itself.
            table = table.append_column("__partfile_high", pa.array(hashes.high.view(np.int64)))
            table = table.append_column("__partfile_low", pa.array(hashes.low.view(np.int64)))
        subtasks = ((hashes.high >> np.uint64(32)) * np.uint64(plan.partitions)) >> np.uint64(32)
        kept, answers = list[int | None](), []
        for subtask in range(plan.partitions):
            rows = table.filter(pa.array(subtasks == subtask))
            if self.rng.random() < 0.2:
                self.attempt(plan, subtask, rows)
            written, answer = self.attempt(plan, subtask, rows)
            kept += written
            answers.append(answer)
        if self.rng.random() < 0.2:
            # The driver dies before the checkpoint, and the batch comes again.
            return self.batch(keys, now_ms)
        seen = plan.after(answers, self.checkpoint_id)
        self.check_files(seen)
        self.seen = SeenKeys.model_validate_json(seen.model_dump_json())
        return kept

    def check_files(self, after: SeenKeys) -> None:
        """Each file that was named is named again, or unneeded from this checkpoint on: none goes early, none leaks."""
        if self.seen is None:
            return
        known = {one.path: one.since for one in self.seen.unneeded}
        unneeded = {one.path: one.since for one in after.unneeded}
        assert {since for path, since in unneeded.items() if path not in known} <= {self.checkpoint_id}
        assert {path: unneeded.get(path) for path in known} == known
        handles = [run.handle for run in (*self.seen.runs, *after.runs)]
        before, now = (
            {one.path for one in some if isinstance(one, FileHandle)}
            for some in (handles[: len(self.seen.runs)], handles[len(self.seen.runs) :])
        )
        assert before <= now | unneeded.keys()
        assert not now & unneeded.keys()

    def attempt(self, plan: KeyPlan, subtask: int, rows: pa.RecordBatch) -> tuple[list[int | None], KeyAnswer]:
        """One attempt of a task."""
        task, pieces = TaskKeys(plan, self.storage), [rows.slice(at, 7) for at in range(0, rows.num_rows, 7)]
        written = [key for piece in task.distinct(pieces) for key in piece["id"].to_pylist()]
        answer = task.answer(subtask, self.checkpoint_id)
        return written, KeyAnswer.model_validate_json(answer.model_dump_json())


@pytest.fixture(autouse=True)
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of run files lie below the test's directory."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.mark.fault("M9")
def test_a_task_that_meets_damage_says_whose_keys_they_are() -> None:
    """And how the query goes on without them, as plain Python and each start do."""
    storage = CheckpointStorage(MemoryMetadataStore(), "d", FileStreamSettings(inline_threshold_bytes=0))
    keys = pa.record_batch({"id": pa.array(range(500))})
    hashes = hashes_of(keys.columns)
    keys = keys.append_column("__partfile_high", pa.array(hashes.high.view(np.int64)))
    keys = keys.append_column("__partfile_low", pa.array(hashes.low.view(np.int64)))
    first = key_plan(BY_ID, 1, None, ("integer",), 0)
    task = TaskKeys(first, storage)
    assert sum(batch.num_rows for batch in task.distinct([keys])) == 500
    seen = first.after([task.answer(0, 1)], 1)
    (run,) = seen.runs
    assert isinstance(run.handle, FileHandle)
    storage.store.delete_file(storage.path(run.handle.path))
    plan = replace(key_plan(BY_ID, 1, seen, ("integer",), 1), sink="d", forget_command="partfile state X --forget")
    with pytest.raises(SnapshotCorrupt, match=r"keys of sink .d. cannot be read: .* is missing") as raised:
        list(TaskKeys(plan, storage).distinct([keys]))
    assert raised.value.hint.endswith("partfile state X --forget")


@pytest.mark.parametrize(("partitions", "kind"), [(50, InlineHandle), (200, FileHandle)])
def test_small_runs_of_many_tasks_are_files(partitions: int, kind: type) -> None:
    """What lies in the checkpoint itself is bounded over all tasks: the driver writes it with each batch."""
    storage = CheckpointStorage(MemoryMetadataStore(), "d")
    keys = pa.record_batch({"id": pa.array(range(500))})
    hashes = hashes_of(keys.columns)
    keys = keys.append_column("__partfile_high", pa.array(hashes.high.view(np.int64)))
    keys = keys.append_column("__partfile_low", pa.array(hashes.low.view(np.int64)))
    task = TaskKeys(key_plan(pf.Deduplicate("id"), partitions, None, ("integer",), 0), storage)
    assert sum(batch.num_rows for batch in task.distinct([keys])) == 500
    (run,) = task.answer(0, 1).fresh
    assert isinstance(run.handle, kind)


def model_batch(times: dict[int, int], options: pf.Deduplicate, keys: list[int | None], now_ms: int) -> Counter[Any]:
    """What a dictionary of keys and times would write."""
    kept = Counter[Any]()
    for key in keys:
        if key is None:
            kept[key] += options.on_null == "keep"
            continue
        is_seen = key in times and (options.ttl_ms is None or times[key] + options.ttl_ms > now_ms)
        kept[key] += not is_seen
        if not is_seen or (options.refresh == "read" and options.ttl_ms is not None):
            times[key] = now_ms
    return +kept


@pytest.mark.fault("M9")
def test_a_task_gives_no_damage_a_checksum_of_its_own(tmp_path: Path, rng: random.Random) -> None:
    """Runs that went bad since the query began fail the batch that would merge them."""
    job = Job(pf.Deduplicate("id"), rng)
    job.storage = CheckpointStorage(LocalStore(str(tmp_path)), "d", FileStreamSettings(inline_threshold_bytes=0))
    job.batch([*range(1000)], 0)
    job.batch([*range(1000, 2000)], 0)
    for path in tmp_path.rglob("shared/*"):
        data = path.read_bytes()
        path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    with pytest.raises(SnapshotCorrupt, match="is not the one the checkpoint names"):
        job.batch([*range(2000, 3000)], 0)


@pytest.mark.parametrize("ttl", [None, 1, 0.05])
@pytest.mark.parametrize("refresh", ["write", "read"])
def test_tasks_do_what_a_dictionary_would(
    ttl: float | None, refresh: Any, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random keys, times, numbers of tasks, lost attempts and batches; runs are spilled and merged all the time."""
    monkeypatch.setattr(deduplicate, "_MOST_KEYS_IN_MEMORY", 60)
    most = rng.choice([40, 300])
    for module in (run_file, deduplicate):
        monkeypatch.setattr(module, "MAX_KEYS", most)
    monkeypatch.setattr(distinct, "_ROWS_AT_ONCE", 16)
    options = pf.Deduplicate("id", ttl=ttl, refresh=refresh, on_null=rng.choice(["keep", "drop"]))
    job, times, clock_ms, now_ms = Job(options, rng), dict[int, int](), 1000, 0
    for _ in range(60):
        clock_ms += rng.randrange(-20, 60)
        now_ms = max(now_ms, clock_ms)
        keys = [rng.choice([None, rng.randrange(400), rng.randrange(20)]) for _ in range(rng.randrange(60))]
        assert Counter(job.batch(keys, clock_ms)) == model_batch(times, options, keys, now_ms)
    assert job.seen is not None
    assert len(job.seen.runs) < 60


def test_no_checkpoint_names_what_a_lost_attempt_has_written(rng: random.Random) -> None:
    """Nor does one keep the name of a run that was merged."""
    job = Job(BY_ID, rng)
    job.storage = CheckpointStorage(MemoryMetadataStore(), "d", FileStreamSettings(inline_threshold_bytes=0))
    ever = set[str]()
    for at in range(20):
        job.batch(list(range(at * 50, at * 50 + 50)), 1000)
        assert job.seen is not None
        named = [run.handle.path for run in job.seen.runs if run.handle.kind == "file"]
        ever |= set(named)
        assert len(set(named)) == len(named) == len(job.seen.runs) <= 5 + 10
        assert set(named) == ever - {run.path for run in job.seen.unneeded}
    assert job.seen is not None
    assert sum(run.keys for run in job.seen.runs) == 1000


# In Spark


@pytest.mark.spark
@pytest.mark.parametrize("format", ["json", "parquet"])
def test_each_key_is_in_the_files_once(spark: SparkSession, tmp_path: Path, format: str) -> None:
    """Rows come again in the same batch, in later ones, and in a later run."""
    progress: list[pf.BatchProgress] = []
    base = tmp_path / "out"
    for first in (0, 40):
        last = rows_again(tmp_path / "source", 4, first)
        sink = make_sink(base, format=format, deduplicate=BY_ID, on_progress=progress.append, **IN_FILES)
        run(sink, stream(spark, tmp_path / "source", files=2), tmp_path)
    found = pf.read(base).to_table()
    assert found.column_names == ["id", "bucket"]
    assert Counter(found["id"].to_pylist()) == expected(last)
    assert sum(one.rows for one in progress) == last
    assert sum(one.duplicates for one in progress) == 8 * 30 - last
    assert progress[-1].state_keys == last
    assert "errors=0" in told("verify", base)


@pytest.mark.spark
def test_a_batch_in_one_partition_is_not_shuffled(spark: SparkSession, tmp_path: Path) -> None:
    """One file is written by one task, if nothing else is asked for; a batch that was transformed is shuffled."""
    write_source(tmp_path / "source", 3)
    found: dict[int, list[bool]] = {}

    def look(batch: DataFrame, batch_id: int) -> None:
        plan = key_plan(BY_ID, 1, None, ("integer",), 0)
        frames = [batch, batch.filter("id >= 0")]
        planned = [by_key(one, plan)._jdf.queryExecution().executedPlan().toString() for one in frames]
        found[batch_id] = [*map(is_in_one_partition, frames), *("Exchange" in one for one in planned)]

    query = stream(spark, tmp_path / "source", files=2).writeStream.foreachBatch(look).trigger(**NOW)
    query.option("checkpointLocation", str(tmp_path / "look")).start().awaitTermination()
    # Two files, then one.
    assert found == {0: [False, False, True, True], 1: [True, False, False, True]}
    for partitions, runs in ((None, 1), (2, 2)):
        progress: list[pf.BatchProgress] = []
        options = {} if partitions is None else {"hash_partitions": partitions}
        sink = make_sink(
            tmp_path / f"out {runs}", deduplicate=BY_ID, on_progress=progress.append, **IN_FILES, **options
        )
        run(sink, stream(spark, tmp_path / "source"), tmp_path, f"spark {runs}")
        assert progress[0].state_runs == runs


@pytest.mark.spark
def test_keys_of_one_partition_are_those_of_several(spark: SparkSession, tmp_path: Path) -> None:
    """Of each type: the task hashes the rows of the first file, Spark those of the two that come later, and back."""
    columns = {
        "text": "CASE WHEN id % 3 = 0 THEN NULL ELSE concat('ä', id) END",
        "whole": "CAST(id % 7 AS SMALLINT)",
        "price": "CAST(id / 8 AS DECIMAL(9, 3))",
        "day": "date_add(DATE '1969-12-30', CAST(id AS INT))",
        "at": "timestamp_micros(id * 7919 - 50000)",
        "at_ntz": "CAST(timestamp_micros(id * 7919) AS TIMESTAMP_NTZ)",
        "raw": "unhex(lpad(hex(id), 4, '0'))",
        "flag": "id % 2 = 0",
    }
    rows = spark.range(0, 40, 1, 1).selectExpr("id", *(f"{how} AS {name}" for name, how in columns.items()))
    progress: list[pf.BatchProgress] = []
    keys = pf.Deduplicate(list(columns))
    for begin, files in ((0, 1), (10, 2), (20, 1)):
        for number in range(files):
            rows.filter(f"id >= {begin} AND id < {begin + 20} AND id % {files} = {number}").coalesce(1).write.mode(
                "append"
            ).parquet(str(tmp_path / "source"))
        sink = make_sink(
            tmp_path / "out",
            format="parquet",
            deduplicate=keys,
            on_progress=progress.append,
            bucketer=pf.BasePathBucketer(),
        )
        source = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "source"))
        run(sink, source, tmp_path)
    found = pf.read(tmp_path / "out").to_table()
    assert sorted(found["id"].to_pylist()) == list(range(40))
    assert [one.duplicates for one in progress if one.rows or one.duplicates] == [0, 10, 10]


@pytest.mark.spark
@pytest.mark.slow
def test_the_number_of_tasks_may_change_and_a_savepoint_moves(spark: SparkSession, tmp_path: Path) -> None:
    """1, 4, 3 and 2 of them; the third begins from a savepoint elsewhere."""
    where, base = None, tmp_path / "out"
    for turn, partitions in enumerate((1, 4, 3, 2)):
        last = rows_again(tmp_path / "source", 2, 20 * turn)
        if turn == 2:
            base = tmp_path / "moved"
        options = {"restore_from": where} if turn == 2 else {}
        sink = make_sink(base, deduplicate=BY_ID, hash_partitions=partitions, **IN_FILES, **options)
        query = sink.start(stream(spark, tmp_path / "source"), checkpoint_location=str(tmp_path / "spark"), trigger=NOW)
        query.awaitTermination()
        where = query.stop_with_savepoint(tmp_path / "savepoints")
    assert ids_by_duckdb(tmp_path / "out") + ids_by_duckdb(base) == expected(last)


@pytest.mark.spark
@pytest.mark.slow
def test_runs_are_merged_by_tasks_and_their_files_go(spark: SparkSession, tmp_path: Path) -> None:
    """Their number grows with the logarithm of the keys."""
    progress: list[pf.BatchProgress] = []
    last = write_source(tmp_path / "source", 12)
    base = tmp_path / "out"
    sink = make_sink(base, deduplicate=BY_ID, hash_partitions=3, on_progress=progress.append, **IN_FILES)
    run(sink, stream(spark, tmp_path / "source"), tmp_path)
    assert ids_by_duckdb(base) == expected(last)
    assert max(one.state_runs for one in progress) <= 3 + 4
    files = list((base / "_partfile" / "numbers" / "shared").iterdir())
    assert len(files) <= 3 * (3 + 4)
    assert "errors=0" in told("verify", base)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("deed", ["raise", "kill"])
def test_a_task_that_is_tried_again_writes_its_keys_once(spark: SparkSession, tmp_path: Path, deed: str) -> None:
    """The files of its first attempt are orphans, which the cleaner takes and no checkpoint names."""
    base = tmp_path / "out"
    last = rows_again(tmp_path / "source", 3)
    bucketer = Once(tmp_path / "flag", deed, 25)
    run(make_sink(base, deduplicate=BY_ID, bucketer=bucketer, **IN_FILES), stream(spark, tmp_path / "source"), tmp_path)
    assert (tmp_path / "flag").exists()
    assert ids_by_duckdb(base) == expected(last)
    told("clean", base, "--older-than", "0s", "--apply", "--delete")
    assert "errors=0" in told("verify", base)


@pytest.mark.spark
@pytest.mark.slow
def test_going_back_brings_keys_and_files_back_together(spark: SparkSession, tmp_path: Path) -> None:
    """Keys that came after the checkpoint count as new, and those before it as duplicates; parts are cut back to it.

    Spark's own checkpoint is put back to the same batch.
    """
    base, last = tmp_path / "out", rows_again(tmp_path / "source", 4)
    progress: list[pf.BatchProgress] = []
    make = partial(make_sink, base, deduplicate=BY_ID, retained_checkpoints=9, on_progress=progress.append, **IN_FILES)

    def then(batch_id: int) -> None:
        if batch_id == 1:
            copy_checkpoint(tmp_path / "spark", tmp_path / "before")

    run_without_end(make(), stream(spark, tmp_path / "source"), str(tmp_path / "spark"), then)
    (chosen,) = (one.checkpoint_id for one in progress if one.batch_id == 1)
    back = ("--restore-from", base / "_partfile" / "numbers" / f"chk-{chosen}", "--accept-newer")
    told("recover", base, *back, "--apply", "--fence")
    assert ids_by_duckdb(base) == expected(40)
    progress.clear()
    run(make(), stream(spark, tmp_path / "source"), tmp_path, checkpoint="before")
    assert ids_by_duckdb(base) == expected(last)
    written = {one.batch_id: (one.rows, one.duplicates) for one in progress if one.rows}
    assert written == {2: (10, 20), 3: (10, 20)}
    assert "errors=0" in told("verify", base)


@pytest.mark.spark
@pytest.mark.slow
def test_a_new_query_that_takes_the_place_of_another_knows_its_keys(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's checkpoint is lost, the stream is read from its beginning, and nothing is doubled."""
    base = tmp_path / "out"
    rows_again(tmp_path / "source", 2)
    run(make_sink(base, deduplicate=BY_ID), stream(spark, tmp_path / "source"), tmp_path)
    last = rows_again(tmp_path / "source", 2, 20)
    query_id = json.loads((tmp_path / "spark" / "metadata").read_text())["id"]
    sink = make_sink(base, deduplicate=BY_ID, on_new_query=f"adopt:{query_id}")
    run(sink, stream(spark, tmp_path / "source"), tmp_path, checkpoint="another")
    assert ids_by_duckdb(base) == expected(last)


@pytest.mark.spark
@pytest.mark.parametrize(("keep", "kept"), [(pf.Latest("bucket"), {1: 9, 2: 7}), (pf.Earliest("bucket"), {1: 3, 2: 7})])
def test_which_row_of_a_batch_is_written(spark: SparkSession, tmp_path: Path, keep: Any, kept: dict[int, int]) -> None:
    """The batch is Spark's, however many record batches and partitions its rows are in; a null is neither."""
    source = tmp_path / "source"
    source.mkdir()
    for at, (key, value) in enumerate([(1, 5), (1, 9), (2, None), (1, 3), (2, 7), (1, 4)]):
        (source / f"{at}.json").write_text(json.dumps({"id": key, "bucket": value}) + "\n")
    base = tmp_path / "out"
    sink = make_sink(base, deduplicate=pf.Deduplicate("id", keep=keep), bucketer=None)
    run(sink, stream(spark, source, files=10), tmp_path)
    rows = pf.read(base).to_table().to_pylist()
    assert {row["id"]: row["bucket"] for row in rows} == kept
    assert len(rows) == 2


@pytest.mark.spark
def test_what_is_no_number_is_not_the_latest(spark: SparkSession, tmp_path: Path) -> None:
    """As in plain Python, whose sort has it behind all numbers."""
    source = tmp_path / "source"
    source.mkdir()
    for at, value in enumerate([5, 9, 3]):
        (source / f"{at}.json").write_text(json.dumps({"id": 1, "bucket": value}) + "\n")
    frame = stream(spark, source, files=10).selectExpr("id", "if(bucket = 9, double('NaN'), double(bucket)) AS bucket")
    sink = make_sink(tmp_path / "out", deduplicate=pf.Deduplicate("id", keep=pf.Latest("bucket")), bucketer=None)
    run(sink, frame, tmp_path)
    assert pf.read(tmp_path / "out").to_table().to_pylist() == [{"id": 1, "bucket": 5.0}]


@pytest.mark.spark
def test_a_key_of_several_columns_with_nulls(spark: SparkSession, tmp_path: Path) -> None:
    """A row without a key is kept each time; a null beside a value is a key like others."""
    source = tmp_path / "source"
    source.mkdir()
    rows = [(1, None), (None, 1), (None, None), (1, 1)] * 3
    for at in range(3):
        lines = [json.dumps({"id": one, "bucket": other}) + "\n" for one, other in rows]
        (source / f"{at}.json").write_text("".join(lines))
    base = tmp_path / "out"
    run(make_sink(base, deduplicate=pf.Deduplicate(["id", "bucket"]), bucketer=None), stream(spark, source), tmp_path)
    found = Counter((row["id"], row["bucket"]) for row in pf.read(base).to_table().to_pylist())
    assert found == {(1, None): 1, (None, 1): 1, (1, 1): 1, (None, None): 9}


@pytest.mark.spark
def test_rows_without_a_key_can_be_refused(spark: SparkSession, tmp_path: Path) -> None:
    """The error says no place of the row, for Spark has moved it; its hint says how to find it."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "0.json").write_text('{"id": 1}\n{"bucket": 1}\n')
    sink = make_sink(tmp_path / "out", deduplicate=pf.Deduplicate("id", on_null="fail"))
    says = r"^a row of the batch has no key: column 'id' is null in it"
    with pytest.raises(ConfigError, match=says) as raised:
        run(sink, stream(spark, tmp_path / "source"), tmp_path)
    assert "df.filter('`id` IS NULL')" in raised.value.hint
    assert not ids_by_duckdb(tmp_path / "out")


@pytest.mark.spark
def test_what_cannot_be_a_key_is_refused_before_the_query_starts(spark: SparkSession, tmp_path: Path) -> None:
    """By the name of the column."""
    rows_again(tmp_path / "source", 1)
    frame = stream(spark, tmp_path / "source").selectExpr(
        "id", "bucket", "cast(id as double) as weight", "map('a', 2) as m", "struct(id) as s"
    )
    cases = [
        (pf.Deduplicate("weight"), "'weight' of type double can be no key"),
        (pf.Deduplicate("ident"), "no column 'ident'"),
        (pf.Deduplicate("id", keep=pf.Latest("m")), "have no order"),
        (pf.Deduplicate("id", keep=pf.Latest("s")), "have no order"),
    ]
    for options, says in cases:
        with pytest.raises(ConfigError, match=says):
            make_sink(tmp_path / "out", deduplicate=options).start(frame, checkpoint_location=str(tmp_path / "spark"))
    with pytest.raises(ConfigError, match="by their keys"):
        make_sink(tmp_path / "out", deduplicate=BY_ID, distribution="hash")
    assert not (tmp_path / "spark").exists()


@pytest.mark.spark
@pytest.mark.parametrize("name", ["__partfile_high", "__PARTFILE_LOW"])
def test_a_column_that_the_hashes_would_replace_is_refused(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Whatever its case, which means nothing to Spark."""
    rows_again(tmp_path / "source", 1)
    frame = stream(spark, tmp_path / "source").withColumn(name, F.lit(1))
    with pytest.raises(ConfigError, match=f"column '{name}' has a name that partfile needs"):
        run(make_sink(tmp_path / "out", deduplicate=BY_ID), frame, tmp_path)
    assert not ids_by_duckdb(tmp_path / "out")


@pytest.mark.spark
@pytest.mark.slow
def test_keys_that_do_not_fit_the_rows_before_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Other columns, another kind of values, none at all, or a run that is damaged: nothing is changed."""
    base, source = tmp_path / "out", tmp_path / "source"
    rows_again(source, 1)
    run(make_sink(base, deduplicate=BY_ID, **IN_FILES), stream(spark, source), tmp_path)
    rows_again(source, 1, 10)
    frame = stream(spark, source)
    as_text = frame.selectExpr("cast(id as string) as id", "bucket")
    before = everything(base)
    for options, rows in ((pf.Deduplicate("bucket"), frame), (None, frame), (BY_ID, as_text)):
        with pytest.raises(CheckpointMismatch, match=r"keys of|kinds"):
            run(make_sink(base, deduplicate=options, **IN_FILES), rows, tmp_path)
    (damaged, *_) = sorted((base / "_partfile" / "numbers" / "shared").iterdir())
    data = damaged.read_bytes()
    damaged.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    with pytest.raises(SnapshotCorrupt, match=damaged.name):
        run(make_sink(base, deduplicate=BY_ID, **IN_FILES), frame, tmp_path)
    damaged.write_bytes(data)
    assert everything(base) == before
    run(make_sink(base, deduplicate=BY_ID, **IN_FILES), frame, tmp_path)
    assert ids_by_duckdb(base) == expected(40)


def everything(base: Path) -> dict[str, bytes]:
    """All files below a base, but for the driver's marker."""
    paths = [path for path in base.rglob("*") if path.is_file() and path.name != "_marker"]
    return {str(path): path.read_bytes() for path in paths}
