"""Distinct rows in plain Python: which are left out, what the checkpoint holds, what is refused."""

from __future__ import annotations

import faulthandler
import itertools
import logging
import os
import re
import shlex
import shutil
import signal
import tempfile
import time
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import partfile as pf
from partfile.cli.exit_codes import FINDINGS
from partfile.errors import CheckpointMismatch, ConfigError, NotApplied, PartfileError, SnapshotCorrupt
from partfile.sink import deduplicate, restore_rules
from partfile.sink.newest_state import newest_state
from partfile.sink.plan import restored_state
from partfile.sink.publish import Publisher
from partfile.sink.states import OPERATOR, RunFile, SeenKeys
from partfile.snapshot import run_file
from partfile.snapshot.documents import HASH_VERSION, FileHandle
from partfile.snapshot.key_hash import hashes_of
from partfile.snapshot.operator_state import restored_operators
from partfile.snapshot.run_file import run_of
from partfile.snapshot.savepoints import read_savepoint
from partfile.snapshot.storage import CheckpointStorage, FileStreamSettings
from partfile.stores.local.store import LocalStore
from partfile.stores.memory import MemoryMetadataStore
from partfile.stores.registry import open_store
from support.processes.command_line import run, told, told_json
from support.sinks.life_cycle import everything, in_child
from support.sinks.recovery import DAY_S, broken_invariants, clean_all, go_back, planned_cleaning, recover_all

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

    from partfile.sink.file_sink import FileSink
    from partfile.snapshot.run_file import Run
    from partfile.snapshot.streams import CheckpointStreamFactory

HOUR_MS = 3_600_000
ALL_IN_FILES: dict[str, Any] = {"inline_threshold_bytes": 0}
VARIANT = pa.struct([pa.field("value", pa.binary()), pa.field("metadata", pa.binary(), metadata={"variant": "true"})])
"""As Spark hands its type over."""


class Clock:
    """A clock that tests set."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        """The time that it was set to."""
        return self.now_ms


def sink_at(base: Path, *columns: str, clock: Clock | None = None, dedup: Any = None, **options: Any) -> FileSink:
    """A sink of JSON lines that deduplicates by ``id``, or by these columns."""
    keys = pf.Deduplicate(columns or "id") if dedup is None else dedup
    return pf.FileSink(base, uid="d", format="json", deduplicate=keys, clock=clock or Clock(), **options)


def rows_with(*ids: object) -> list[dict[str, object]]:
    return [{"id": one, "at": at} for at, one in enumerate(ids)]


def ids_in(base: Path) -> Counter[Any]:
    return Counter(pf.read(base).to_table()["id"].to_pylist())


def seen_keys(base: Path) -> SeenKeys:
    with open_store(f"{base}/_partfile", {}) as store:
        newest = newest_state(CheckpointStorage(store, "d"))
        assert newest is not None
        assert newest.state.position.seen_keys is not None
        return newest.state.position.seen_keys


def run_files(base: Path) -> list[Path]:
    return sorted((base / "_partfile" / "d" / "shared").glob("*"))


SCHEMA = {"id": "string", "at": "int64"}


def test_each_key_is_written_once(tmp_path: Path) -> None:
    """In one batch, over writes, over checkpoints and over runs; the first row of a key is the one."""
    with sink_at(tmp_path).local(schema=SCHEMA) as out:
        out.write(rows_with("a", "b", "a"))
        out.write(rows_with("b", "c"))
        progress = out.checkpoint()
        assert (progress.rows, progress.duplicates, progress.state_keys) == (3, 2, 3)
        out.write(rows_with("c", "d"))
        progress = out.checkpoint()
        assert (progress.rows, progress.duplicates, progress.state_keys) == (1, 1, 4)
        assert progress.state_runs >= 1
        assert progress.state_bytes > 0
    with sink_at(tmp_path).local(schema=SCHEMA) as out:
        out.write(rows_with("d", "a", "e"))
    rows = pf.read(tmp_path).to_table().to_pylist()
    assert sorted((row["id"], row["at"]) for row in rows) == [("a", 0), ("b", 1), ("c", 1), ("d", 1), ("e", 2)]


def test_rows_since_the_last_checkpoint_are_no_duplicates_after_a_crash(tmp_path: Path) -> None:
    """Keys and rows count together: what was not checkpointed may come again, and is written."""

    def crash() -> None:
        out = sink_at(tmp_path).local(schema=SCHEMA).open()
        out.write(rows_with("a"))
        out.checkpoint()
        out.write(rows_with("b"))
        os._exit(0)

    assert in_child(crash) == 0
    with sink_at(tmp_path).local(schema=SCHEMA) as out:
        out.write(rows_with("a", "b", "c"))
    assert ids_in(tmp_path) == Counter("abc")


@pytest.mark.parametrize(
    ("keep", "kept"),
    [("any", {"a": 2, "b": 1}), (pf.Earliest("at"), {"a": 1, "b": 1}), (pf.Latest("at"), {"a": 3, "b": 5})],
)
def test_which_row_of_a_batch_is_written(tmp_path: Path, keep: Any, kept: dict[str, int]) -> None:
    """The first, or that with the lowest or highest value; null comes last, and what was written is never replaced."""
    values = [("a", 2), ("b", 1), ("a", None), ("a", 3), ("b", 5), ("a", 1), (None, 7), (None, 6)]
    with sink_at(tmp_path, dedup=pf.Deduplicate("id", keep=keep)).local(schema=SCHEMA) as out:
        out.write([{"id": one, "at": at} for one, at in values])
        out.write([{"id": "a", "at": 0}, {"id": "a", "at": 9}])
    rows = pf.read(tmp_path).to_table().to_pylist()
    assert sorted(row["at"] for row in rows if row["id"] is None) == [6, 7]
    assert {row["id"]: row["at"] for row in rows if row["id"] is not None} == kept
    assert len(rows) == 4


def test_rows_are_chosen_by_values_that_have_an_order(tmp_path: Path) -> None:
    """The option and the column are named."""
    keys = pf.Deduplicate("id", keep=pf.Latest("tags"))
    says = r"keep=Latest\(column='tags'\): values of type list"
    with pytest.raises(ConfigError, match=says) as raised, sink_at(tmp_path / "a", dedup=keys).local() as out:
        out.write(pa.table({"tags": [["x"], ["y"]], "number": ["a", "a"], "id": ["a", "a"]}))
    assert raised.value.hint.endswith("keep=partfile.Latest('number')")
    with pytest.raises(ConfigError, match="no column 'tags'"), sink_at(tmp_path / "b", dedup=keys).local() as out:
        out.write(pa.table({"id": ["a", "a"]}))


@pytest.mark.parametrize("options", [{}, ALL_IN_FILES], ids=["small runs", "run files"])
def test_a_key_comes_again_after_its_time(tmp_path: Path, options: dict[str, Any]) -> None:
    """From the row that was written on; a duplicate does not prolong it. The file of an expired run goes."""
    clock = Clock()
    make = partial(sink_at, tmp_path, clock=clock, dedup=pf.Deduplicate("id", ttl="1h"), **options)
    with make().local(schema=SCHEMA) as out:
        out.write(rows_with("a"))
        out.checkpoint()
        clock.now_ms += HOUR_MS - 1
        out.write(rows_with("a", "b"))
        assert out.checkpoint().duplicates == 1
    clock.now_ms += 1
    with make().local(schema=SCHEMA) as out:
        out.write(rows_with("a", "b"))
        progress = out.checkpoint()
        assert progress.duplicates == 1
        clock.now_ms += HOUR_MS
        out.write(rows_with("c"))
        for _ in range(3):
            progress = out.checkpoint()
        assert progress.state_keys == 1
        assert len(run_files(tmp_path)) == (1 if options else 0)
    assert ids_in(tmp_path) == Counter({"a": 2, "b": 1, "c": 1})


def test_a_duplicate_prolongs_a_key_where_it_is_asked_for(tmp_path: Path) -> None:
    """With ``refresh="read"`` the time begins with the last row that came, over restarts too."""
    clock = Clock()
    make = partial(sink_at, tmp_path, clock=clock, dedup=pf.Deduplicate("id", ttl=timedelta(hours=1), refresh="read"))
    for _ in range(4):
        with make().local(schema=SCHEMA) as out:
            out.write(rows_with("a"))
            clock.now_ms += HOUR_MS - 1
            out.write(rows_with("a"))
        clock.now_ms += HOUR_MS - 1
    assert ids_in(tmp_path) == Counter({"a": 1})
    clock.now_ms += 1
    with make().local(schema=SCHEMA) as out:
        out.write(rows_with("a"))
    assert ids_in(tmp_path) == Counter({"a": 2})


def test_a_clock_that_is_set_back_brings_no_key_back(tmp_path: Path) -> None:
    """Neither is a duplicate written nor does a key that has expired count again (R8)."""
    clock = Clock()
    make = partial(sink_at, tmp_path, clock=clock, dedup=pf.Deduplicate("id", ttl="1h"))
    with make().local(schema=SCHEMA) as out:
        out.write(rows_with("a"))
        clock.now_ms += 2 * HOUR_MS
        out.write(rows_with("b"))
    clock.now_ms -= 24 * HOUR_MS
    with make().local(schema=SCHEMA) as out:
        out.write(rows_with("a", "b"))
        out.write(rows_with("a", "b"))
    assert ids_in(tmp_path) == Counter({"a": 2, "b": 1})


def test_a_clock_that_was_far_ahead_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """At the next start, with what ends it; a clock that is a little behind is no matter."""
    clock = Clock()
    for behind_ms, is_told in ((0, False), (1_800_000, False), (30 * 3_600_000, True)):
        caplog.clear()
        clock.now_ms -= behind_ms
        with sink_at(tmp_path, clock=clock, dedup=pf.Deduplicate("id", ttl="1 day")).local(schema=SCHEMA) as out:
            out.write(rows_with("a"))
        assert ("partfile state" in caplog.text) is is_told


@pytest.mark.parametrize(("on_null", "written"), [("keep", [None, None, "a"]), ("drop", ["a"])])
def test_rows_without_a_key(tmp_path: Path, on_null: Any, written: list[str | None]) -> None:
    """They are written each, or left out each."""
    with sink_at(tmp_path, dedup=pf.Deduplicate("id", on_null=on_null)).local(schema=SCHEMA) as out:
        out.write(rows_with(None, "a", None, "a"))
        assert out.checkpoint().duplicates == 4 - len(written)
    assert ids_in(tmp_path) == Counter(written)


def test_rows_without_a_key_can_be_refused(tmp_path: Path) -> None:
    """The row and its column are named, and nothing of its batch is written."""
    sink = sink_at(tmp_path, dedup=pf.Deduplicate("id", on_null="fail"))
    says = "row 1 of those that were handed over, counted from 0, has no key: column 'id' is null in it"
    with pytest.raises(ConfigError, match=says) as raised, sink.local(schema=SCHEMA) as out:
        out.write(rows_with("a", None))
    assert "on_null='keep'" in raised.value.hint
    recover_all(tmp_path)
    assert not [path for path in everything(tmp_path) if path.suffix == ".json"]


def test_a_row_without_a_key_is_counted_from_the_first_that_was_handed_over(tmp_path: Path) -> None:
    """Over the record batches of a table; of an iterable the rows are counted back from the item that is named."""
    make = partial(sink_at, tmp_path, dedup=pf.Deduplicate(["id", "at"], on_null="fail"))
    table = pa.table({"id": pa.chunked_array([["a", "b"], ["c", None]]), "at": pa.chunked_array([[1, 1], [1, None]])})
    says = r"^row 3 of those .* has no key: columns \['id', 'at'\] are null in it"
    with pytest.raises(ConfigError, match=says), make().local() as out:
        out.write(table)
    rows = [{"id": number} for number in range(30)] + [{"id": None}]
    says = r"row 10 of those .* \(of the 11 rows up to item 31 of the iterable\)$"
    with pytest.raises(ConfigError) as raised, make().local(schema={"id": "int64", "at": "int64"}) as out:
        out.write_all(rows, checkpoint_every=20)
    assert re.search(says, raised.value.message)


def test_a_key_of_several_columns(tmp_path: Path) -> None:
    """Values that change places are two keys, also where one is null."""
    rows = [{"id": one, "at": at} for one, at in (("1", 2), ("2", 1), (None, 1), ("1", None), ("1", 2), (None, 1))]
    with sink_at(tmp_path, "id", "at").local(schema=SCHEMA) as out:
        out.write(rows)
        assert out.checkpoint().duplicates == 2
    assert sum(ids_in(tmp_path).values()) == 4


def test_types_of_one_kind_are_one_key(tmp_path: Path) -> None:
    """An integer that became wider, a string that became a dictionary."""
    with sink_at(tmp_path).local() as out:
        out.write(pa.table({"id": pa.array([1, 2], pa.int32())}))
        out.write(pa.table({"id": pa.array([2, 3], pa.int64())}))
        assert out.checkpoint().duplicates == 1


# What is refused


@pytest.mark.parametrize(
    ("table", "says", "advice"),
    [
        ({"name": ["a"]}, "no column 'id'", "deduplicate=partfile.Deduplicate('name')"),
        ({"id": [1.5], "x": [1.5]}, "column 'id' of type double can be no key", "Cast it before"),
        ({"id": [1.5]}, "can be no key", "or name another column: deduplicate=partfile.Deduplicate('NAME')"),
        ({"id": [[1]]}, "column 'id' of type list", "Take a part of it; or name another"),
        ({"id": pa.array([{"value": b"", "metadata": b""}], VARIANT)}, "of type variant can be no key", "Take a part"),
    ],
)
def test_columns_that_are_no_key(tmp_path: Path, table: dict[str, Any], says: str, advice: str) -> None:
    """The message names the column and its type; nothing is written."""
    with pytest.raises(ConfigError, match=says) as raised, sink_at(tmp_path).local() as out:
        out.write(pa.table(table))
    assert advice in raised.value.hint


@pytest.mark.parametrize(
    ("keys", "columns", "instead"),
    [
        (pf.Deduplicate(["shop", "idd"], ttl="7 days"), {"shop": [1], "id": ["a"]}, "(['shop', 'id'], ttl=604800.0)"),
        (
            pf.Deduplicate(["shop", "id"], on_null="drop"),
            {"shop": [1], "id": [1.5]},
            "(['shop', 'NAME'], on_null='drop')",
        ),
        (
            pf.Deduplicate("id", keep=pf.Latest("t")),
            {"id": [1.5], "no": [1], "t": [1]},
            "('no', keep=partfile.Latest('t'))",
        ),
    ],
)
def test_a_hint_for_one_column_of_a_key_keeps_the_others(
    tmp_path: Path, keys: pf.Deduplicate, columns: dict[str, Any], instead: str
) -> None:
    """A key of fewer columns would leave out rows that are no duplicates, and so would another ttl."""
    with pytest.raises(ConfigError) as raised, sink_at(tmp_path, dedup=keys).local() as out:
        out.write(pa.table(columns))
    assert raised.value.hint.endswith(f": deduplicate=partfile.Deduplicate{instead}")


def test_a_first_batch_of_nulls_alone_asks_for_a_type(tmp_path: Path) -> None:
    """A cast to text, say, would make other keys than the values that come later. What is advised works."""
    rows = pa.table({"at": [1], "id": pa.nulls(1)})
    refused = pytest.raises(ConfigError, match="'id' of the key has no type")
    with refused as raised, sink_at(tmp_path).local() as out:
        out.write(rows)
    advice = raised.value.hint.rpartition("In Arrow: ")[2]
    with sink_at(tmp_path).local() as out:
        out.write(eval(advice, {"table": rows, "pyarrow": pa}))  # noqa: S307 - the advice is ours.
        out.write(pa.table({"at": [1, 1], "id": [7, 7]}))
    assert ids_in(tmp_path) == Counter([None, 7])


@pytest.mark.parametrize(
    "empty", [{"id": pa.array([], pa.null())}, {"id": pa.array([], pa.int64())}, {"at": pa.array([1][:0])}]
)
def test_a_batch_without_rows_says_nothing_of_keys(tmp_path: Path, empty: dict[str, Any]) -> None:
    """Whatever its columns are: first, later, and in a checkpoint of its own."""
    with sink_at(tmp_path).local() as out:
        out.write(pa.table(empty))
        out.checkpoint()
        out.write(pa.table({"id": ["a"]}))
        out.write(pa.table(empty))
    with sink_at(tmp_path).local() as out:
        out.write(pa.table(empty))
        out.write(pa.table({"id": ["a", "b"]}))
    assert ids_in(tmp_path) == Counter("ab")


def test_keys_may_be_of_another_kind_where_all_have_expired(tmp_path: Path) -> None:
    """There is none that a value could be compared with."""
    clock = Clock()
    make = partial(sink_at, tmp_path, clock=clock, dedup=pf.Deduplicate("id", ttl="1h"))
    with make().local() as out:
        out.write(pa.table({"id": [1]}))
        out.checkpoint()
        clock.now_ms += 2 * HOUR_MS
    with make().local() as out:
        out.write(pa.table({"id": ["1"]}))
        assert out.checkpoint().state_keys == 1


@pytest.mark.parametrize("keys", ["id", ("id", "at"), ("at", "id")])
def test_a_column_of_nulls_alone_has_nulls_of_the_kind_before(tmp_path: Path, keys: str | tuple[str, ...]) -> None:
    """A frame whose column is all null has no type for it; its rows are the keys that they would be with one."""
    for kind in (
        pa.string(),
        pa.int32(),
        pa.uint64(),
        pa.decimal128(25, 2),
        pa.timestamp("us", "UTC"),
        pa.timestamp("ns"),
    ):
        base = tmp_path / str(kind)
        at = pa.array([7, 8], pa.int64()).cast(kind) if kind != pa.string() else pa.array(["7", "8"])
        with sink_at(base, dedup=pf.Deduplicate(keys, on_null="drop")).local() as out:
            out.write(pa.table({"id": at, "at": [1, 1]}))
            out.write(pa.table({"id": pa.nulls(2, kind), "at": [1, 2]}))
            out.write(pa.table({"id": pa.nulls(3), "at": [1, 2, 3]}))
            progress = out.checkpoint()
        seen = (2, 5) if keys == "id" else (5, 2)
        assert (progress.rows, progress.duplicates) == seen, kind


def test_a_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    """The same values would be other keys; the checkpoint says of which kind they are."""
    with sink_at(tmp_path).local() as out:
        out.write(pa.table({"id": [1]}))
    says = r"kinds \['string'\], and before \['integer'\]"
    with pytest.raises(CheckpointMismatch, match=says), sink_at(tmp_path).local() as out:
        out.write(pa.table({"id": ["1"]}))


@pytest.mark.parametrize("dedup", [pf.Deduplicate("at"), pf.Deduplicate(["id", "at"]), False], ids=str)
def test_other_keys_are_refused_at_the_start(tmp_path: Path, dedup: Any) -> None:
    """Before there is a takeover, so that nothing has changed; the hint has what to pass."""
    with sink_at(tmp_path).local(schema=SCHEMA) as out:
        out.write(rows_with("a"))
    before = everything(tmp_path)
    other = sink_at(tmp_path, dedup=dedup) if dedup else pf.FileSink(tmp_path, uid="d", format="json", clock=Clock())
    with pytest.raises(CheckpointMismatch, match=r"sink 'd' holds keys of \['id'\]") as raised, other.local():
        pass
    assert "Deduplicate by ['id'] again" in raised.value.hint
    assert everything(tmp_path) == before
    command = raised.value.hint.rpartition(": ")[2].split()
    assert command == ["partfile", "state", str(tmp_path), "--uid", "d", "--forget"]
    told(*command[1:], "--apply", "--idle-for", "0s")
    with other.local(schema=SCHEMA) as out:
        out.write([{"id": "a", "at": 7}])
    assert ids_in(tmp_path) == Counter({"a": 2})


def test_keys_that_are_hashed_otherwise_are_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before there is a takeover: none of them would be found, and each row would be written again."""
    with sink_at(tmp_path).local(schema=SCHEMA) as out:
        out.write(rows_with("a"))
    before = everything(tmp_path)
    monkeypatch.setattr(restore_rules, "HASH_VERSION", HASH_VERSION + 1)
    says = rf"keys of \['id'\] \(hash version {HASH_VERSION}\)"
    with pytest.raises(CheckpointMismatch, match=says) as raised, sink_at(tmp_path).local():
        pass
    assert "the version of partfile that wrote them" in raised.value.hint
    assert raised.value.hint.endswith(f"partfile state {tmp_path} --uid d --forget")
    assert everything(tmp_path) == before


def test_a_sink_may_begin_to_deduplicate(tmp_path: Path) -> None:
    """It knows no key of the rows before."""
    with pf.FileSink(tmp_path, uid="d", format="json").local(schema=SCHEMA) as out:
        out.write(rows_with("a"))
    with sink_at(tmp_path).local(schema=SCHEMA) as out:
        out.write(rows_with("a", "a"))
    assert ids_in(tmp_path) == Counter({"a": 2})


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        ((), {}, "it names no column"),
        ("", {}, "a list of names"),
        (["id", "id"], {}, "twice"),
        ([1], {}, "a list of names"),
        ("id", {"ttl": "soon"}, "no duration"),
        ("id", {"ttl": 0}, "must be more than 0"),
        ("id", {"on_null": "ignore"}, "on_null='ignore'"),
        ("id", {"refresh": "never"}, "refresh='never'"),
        ("id", {"keep": "newest"}, "it must be 'any', Earliest"),
        ("id", {"keep": {"column": "ts"}}, "it must be 'any', Earliest"),
    ],
)
def test_options_that_make_no_sense(columns: Any, options: dict[str, Any], says: str) -> None:
    """Each is named, with something to write instead."""
    with pytest.raises(ConfigError, match=says) as raised:
        pf.Deduplicate(columns, **options)
    assert raised.value.hint


def test_rows_go_to_tasks_by_their_keys_or_by_their_buckets() -> None:
    """Not by both; the number of tasks may be said for either."""
    with pytest.raises(ConfigError, match="by their keys, and distribution='hash' by their buckets"):
        pf.FileSink("x", uid="d", format="json", deduplicate=pf.Deduplicate("id"), distribution="hash")
    pf.FileSink("x", uid="d", format="json", deduplicate=pf.Deduplicate("id"), hash_partitions=3)
    with pytest.raises(ConfigError, match="no effect without distribution='hash' or deduplicate"):
        pf.FileSink("x", uid="d", format="json", hash_partitions=3)


# Run files


def test_runs_are_merged_and_their_files_go(tmp_path: Path) -> None:
    """Their number grows with the logarithm of the keys; a file goes when no retained checkpoint names it."""
    with sink_at(tmp_path, **ALL_IN_FILES).local() as out:
        for number in range(40):
            out.write(pa.table({"id": [f"{number}-{one}" for one in range(50)]}))
            progress = out.checkpoint()
            assert progress.state_runs <= 8
            # Of the checkpoint in force, and of the one retained before it.
            assert len(run_files(tmp_path)) <= 3 * 8
            assert number % 4 or broken_invariants(tmp_path) == []
        assert progress.state_keys == 2000
        assert progress.state_bytes < 24 * 2000
    seen = seen_keys(tmp_path)
    live = {run.handle.path for run in seen.runs if run.handle.kind == "file"}
    there = {f"shared/{path.name}" for path in run_files(tmp_path)}
    assert live <= there <= live | {one.path for one in seen.unneeded}
    with sink_at(tmp_path, **ALL_IN_FILES).local() as out:
        for number in range(40):
            out.write(pa.table({"id": [f"{number}-{one}" for one in range(50)]}))
        assert out.checkpoint().duplicates == 2000
    assert broken_invariants(tmp_path) == []


def test_the_cleaner_leaves_the_runs_of_each_retained_checkpoint(tmp_path: Path) -> None:
    """A run that was merged since is needed by the checkpoint before; a run file that none names is taken."""

    def crash() -> None:
        out = sink_at(tmp_path, **ALL_IN_FILES).local(schema=SCHEMA).open()
        for one in "ab":
            out.write(rows_with(one))
            out.checkpoint()
        os._exit(0)

    assert in_child(crash) == 0
    (merged,) = (run.handle.path for run in seen_keys(tmp_path).runs if run.handle.kind == "file")
    stray = run_files(tmp_path)[0].with_name(f"{'0' * 32}.state")
    stray.write_bytes(b"of a lost attempt")
    then = stray.stat().st_mtime - 2 * DAY_S
    for path in tmp_path.rglob("_metadata"):
        os.utime(path, (then, then))
    for path in run_files(tmp_path):
        os.utime(path, (then - DAY_S, then - DAY_S))
    assert [item.path for item in planned_cleaning(tmp_path).items] == [f"d/shared/{stray.name}"]
    clean_all(tmp_path)
    assert len(run_files(tmp_path)) == 2
    assert merged in {f"shared/{path.name}" for path in run_files(tmp_path)}
    assert broken_invariants(tmp_path) == []


def test_the_cleaner_leaves_the_runs_that_the_next_checkpoint_is_going_to_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However old they may be by its options, they are younger than the newest checkpoint."""
    monkeypatch.setattr(deduplicate, "_MOST_KEYS_IN_MEMORY", 10)
    with sink_at(tmp_path, **ALL_IN_FILES).local() as out:
        out.write(pa.table({"id": list(range(100))}))
        assert run_files(tmp_path)
        assert "run file" not in {item.kind for item in planned_cleaning(tmp_path).items}
        out.checkpoint()
        assert {f"shared/{path.name}" for path in run_files(tmp_path)} == {
            run.handle.path for run in seen_keys(tmp_path).runs if run.handle.kind == "file"
        }


def test_runs_of_other_times_are_not_merged(tmp_path: Path) -> None:
    """So that a file falls as a whole; at most two classes outlive their keys."""
    clock = Clock(0)
    with sink_at(tmp_path, clock=clock, dedup=pf.Deduplicate("id", ttl="8h"), **ALL_IN_FILES).local() as out:
        for number in range(100):
            clock.now_ms += HOUR_MS // 4
            out.write(pa.table({"id": [f"{number}"]}))
            progress = out.checkpoint()
            assert progress.state_keys <= 9 * 4
            assert progress.state_runs <= 9 * 3
    for one in seen_keys(tmp_path).runs:
        assert one.first_ms // HOUR_MS == one.last_ms // HOUR_MS


def test_memory_holds_some_keys_and_files_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More new keys than memory may have go to files before the checkpoint; merged ones leave no file behind."""
    monkeypatch.setattr(deduplicate, "_MOST_KEYS_IN_MEMORY", 100)
    monkeypatch.setattr(deduplicate, "_ROWS_AT_ONCE", 64)
    with sink_at(tmp_path, retained_checkpoints=1, **ALL_IN_FILES).local() as out:
        out.write(pa.table({"id": list(range(1000)) * 2}))
        assert run_files(tmp_path)
        progress = out.checkpoint()
        assert (progress.rows, progress.duplicates, progress.state_keys) == (1000, 1000, 1000)
        out.checkpoint()
        assert len(run_files(tmp_path)) == progress.state_runs
    assert ids_in(tmp_path) == Counter(range(1000))


def test_large_runs_are_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they lie, or from a copy without a name where the store has no file on this host."""
    monkeypatch.setattr(deduplicate, "_MAPPED_BYTES", 0)
    for base in ("memory://distinct", tmp_path):
        keys = pf.Deduplicate("id")
        for _ in range(2):
            sink = pf.FileSink(base, uid="d", format="json", deduplicate=keys, **ALL_IN_FILES)
            with sink.local() as out:
                out.write(pa.table({"id": list(range(100))}))
                duplicates = out.checkpoint().duplicates
        assert duplicates == 100
    assert str(tmp_path) not in Path("/proc/self/maps").read_text(), "a sink that is closed lets go of them"


@pytest.mark.fault("M10")
@pytest.mark.parametrize("mapped_bytes", [0, 1 << 20])
def test_damage_to_a_copy_is_none_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mapped_bytes: int
) -> None:
    """The file is read again, and the copy made again; damage to both is told."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(deduplicate, "_MAPPED_BYTES", mapped_bytes)
    remote = CheckpointStorage(MemoryMetadataStore(), "d", FileStreamSettings(inline_threshold_bytes=0))
    words = np.arange(100, dtype=np.uint64)
    file = deduplicate.kept_run(run_of(words, words, np.zeros(100, np.int64)), remote.stream_factory(1))
    deduplicate.held_run(remote, file)
    (copy,) = (tmp_path / f"partfile-{os.getuid()}").iterdir()
    data = copy.read_bytes()
    for damaged, is_checked in ((data[:-9] + b"?" + data[-8:], False), (b"?" * len(data), True)):
        copy.write_bytes(damaged)
        run = deduplicate.held_run(remote, file, is_checked=is_checked)
        assert run.high.tolist() == run.low.tolist() == words.tolist()
        assert copy.read_bytes() == data
        copy.write_bytes(damaged)
        assert deduplicate.opened_run(remote, file).low.tolist() == words.tolist()
    assert isinstance(file.handle, FileHandle)
    remote.store.delete_file(remote.path(file.handle.path))
    remote.store.create_file(remote.path(file.handle.path), damaged)
    copy.write_bytes(damaged)
    with pytest.raises(SnapshotCorrupt, match=f"{file.handle.path} is not the one the checkpoint names"):
        deduplicate.held_run(remote, file)


@pytest.mark.fault("M11")
def test_a_run_that_is_cut_where_it_is_mapped_ends_the_process_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel kills it at the next look, starts are refused, and with the file back no row is lost or doubled."""
    monkeypatch.setattr(deduplicate, "_MAPPED_BYTES", 0)
    kept = tmp_path / "kept"

    def meet_the_cut() -> None:
        # What it would print of the signal that is meant to kill is long.
        faulthandler.disable()
        out = sink_at(tmp_path / "out", **ALL_IN_FILES).local(schema=SCHEMA).open()
        out.write(rows_with("a", "b"))
        out.checkpoint()
        (run_file,) = run_files(tmp_path / "out")
        kept.write_bytes(run_file.read_bytes())
        os.truncate(run_file, 0)
        out.write(rows_with("b", "c"))

    assert in_child(meet_the_cut) == -signal.SIGBUS
    (run_file,) = run_files(tmp_path / "out")
    before = everything(tmp_path / "out")
    with pytest.raises(SnapshotCorrupt, match=run_file.name), sink_at(tmp_path / "out").local():
        pass
    assert everything(tmp_path / "out") == before
    run_file.write_bytes(kept.read_bytes())
    with sink_at(tmp_path / "out").local(schema=SCHEMA) as out:
        out.write(rows_with("b", "c"))
    assert ids_in(tmp_path / "out") == Counter("abc")


@pytest.mark.fault("M9")
@pytest.mark.parametrize("damage", ["gone", "cut", "flipped"])
def test_a_damaged_run_changes_nothing(tmp_path: Path, damage: str) -> None:
    """The start says which file it is, before there is a takeover; the parts can be recovered all the same."""

    def crash() -> None:
        out = sink_at(tmp_path, **ALL_IN_FILES).local(schema=SCHEMA).open()
        out.write(rows_with("a", "b"))
        out.checkpoint()
        os._exit(0)

    assert in_child(crash) == 0
    (path,) = run_files(tmp_path)
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(data[:-1] if damage == "cut" else data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    before = everything(tmp_path)
    with pytest.raises(SnapshotCorrupt, match=path.name), sink_at(tmp_path, **ALL_IN_FILES).local():
        pass
    assert everything(tmp_path) == before
    assert any("run-file" in one for one in broken_invariants(tmp_path))
    recover_all(tmp_path)
    assert ids_in(tmp_path) == Counter("ab")


@pytest.mark.fault("M9")
def test_a_damaged_run_whose_keys_are_forgotten_does_not_matter(tmp_path: Path) -> None:
    """Once its time is over the sink starts without it; until then the start is refused."""
    clock = Clock()
    make = partial(sink_at, tmp_path, clock=clock, dedup=pf.Deduplicate("id", ttl=timedelta(hours=1)), **ALL_IN_FILES)
    with make().local(schema=SCHEMA) as out:
        out.write(rows_with("a"))
    (path,) = run_files(tmp_path)
    path.unlink()
    clock.now_ms += HOUR_MS - 1
    with pytest.raises(SnapshotCorrupt, match=path.name), make().local():
        pass
    clock.now_ms += 1
    with make().local(schema=SCHEMA) as out:
        out.write(rows_with("a", "a"))
        assert out.checkpoint().duplicates == 1
    assert ids_in(tmp_path) == Counter({"a": 2})


def test_damage_to_keys_that_are_forgotten_is_told_as_what_it_is(tmp_path: Path) -> None:
    """No command advises to forget the other keys for it, and a savepoint does without it."""
    base, now_ms = tmp_path / "out", time.time_ns() // 1_000_000
    clock = Clock(now_ms - 3 * HOUR_MS)
    keys = pf.Deduplicate("id", ttl=timedelta(hours=2))
    out = sink_at(base, clock=clock, dedup=keys, **ALL_IN_FILES).local(schema=SCHEMA).open()
    out.write(rows_with("a"))
    out.checkpoint()
    # Both are remembered then, and the first one is not any more.
    clock.now_ms += HOUR_MS * 5 // 3
    out.write(rows_with("b"))
    saved = Path(out.stop_with_savepoint(tmp_path / "saved"))
    gone = min(run_files(base), key=lambda path: path.stat().st_mtime_ns)
    gone.unlink()
    assert told_json("state", base)["sinks"][0]["keys"] == 2
    (found,) = (one for one in told_json("verify", base)["findings"] if one["code"] == "run-file")
    assert (found["severity"], found["path"]) == ("note", f"d/shared/{gone.name}")
    assert "--forget" not in found["hint"]
    told("savepoint", "create", base, "--to", tmp_path / "again", "--apply", "--idle-for", "0s")
    assert told_json("savepoint", "show", saved)["problem"] == ""
    exported = told_json("state", base, "--export", tmp_path / "keys.parquet")
    assert (exported["exported"], exported["left_out"]) == (1, 1)
    assert "1 keys left out" in told("state", base, "--export", tmp_path / "again.parquet")


def test_an_idle_run_after_all_keys_expired_is_where_the_savepoint_stands(tmp_path: Path) -> None:
    """What merely was forgotten is no row that came since."""
    clock = Clock()
    keys = pf.Deduplicate("id", ttl=timedelta(hours=1))
    make = partial(sink_at, tmp_path / "out", clock=clock, dedup=keys)
    out = make().local(schema=SCHEMA).open()
    out.write(rows_with("a"))
    saved = out.stop_with_savepoint(tmp_path / "saved")
    clock.now_ms += 2 * HOUR_MS
    with make().local(schema=SCHEMA):
        pass
    with make(restore_from=saved).local(schema=SCHEMA) as out:
        out.write(rows_with("a"))
    assert ids_in(tmp_path / "out") == Counter({"a": 2})


def test_a_restore_that_is_refused_leaves_nothing_behind(tmp_path: Path) -> None:
    """Not even the runs before the one that is damaged: a supervisor may try again and again."""
    out = sink_at(tmp_path / "out", **ALL_IN_FILES).local(schema=SCHEMA).open()
    for size in (20_000, 3000):
        out.write(rows_with(*(f"{size} {one}" for one in range(size))))
        out.checkpoint()
    saved = Path(out.stop_with_savepoint(tmp_path / "saved"))
    runs = [path for path in saved.glob("*.state") if path.read_bytes().startswith(b"partfile run")]
    assert len(runs) == 2
    for path in runs:
        data = path.read_bytes()
        path.unlink()
        with pytest.raises(SnapshotCorrupt), sink_at(tmp_path / "new", restore_from=saved, **ALL_IN_FILES).local():
            pass
        assert run_files(tmp_path / "new") == []
        path.write_bytes(data)


def test_a_file_that_cannot_be_read_hides_no_other_savepoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own entry says why."""
    for first in (0, 3000):
        out = sink_at(tmp_path / "out").local(schema=SCHEMA).open()
        out.write(rows_with(*(f"{first + one}" for one in range(3000))))
        out.stop_with_savepoint(tmp_path / "saved")
    unreadable = min((tmp_path / "saved").iterdir())
    look_at = LocalStore.look_at

    def refuse(store: LocalStore, path: str) -> Any:
        if path.startswith(unreadable.name) and path.endswith(".state"):
            raise NotApplied(f"{path} may not be read")
        return look_at(store, path)

    monkeypatch.setattr(LocalStore, "look_at", refuse)
    found = told_json("savepoint", "list", tmp_path / "saved", code=FINDINGS)["savepoints"]
    assert [("may not be read" in one["problem"], one["problem"] == "") for one in found] == [
        (True, False),
        (False, True),
    ]


def test_damage_that_the_newest_checkpoint_does_not_need_is_a_note(tmp_path: Path) -> None:
    """After the keys were forgotten, ``verify`` sends its user in no circle."""
    with sink_at(tmp_path, **ALL_IN_FILES).local(schema=SCHEMA) as out:
        out.write(rows_with("a"))
    (path,) = run_files(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    told("state", tmp_path, "--forget", "--apply", "--idle-for", "0s")
    found = [one for one in told_json("verify", tmp_path)["findings"] if one["code"] == "run-file"]
    assert [(one["severity"], one["path"]) for one in found] == [("note", f"d/shared/{path.name}")]
    assert "--forget" not in found[0]["hint"]


@pytest.mark.fault("M9")
def test_a_merge_gives_no_damage_a_checksum_of_its_own(tmp_path: Path) -> None:
    """A run that went bad after the start fails the checkpoint that would merge it, and is told at the next start."""
    out = sink_at(tmp_path, **ALL_IN_FILES).local(schema=SCHEMA).open()
    out.write(rows_with(*(f"{one}" for one in range(100))))
    out.checkpoint()
    (path,) = run_files(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    out.write(rows_with(*(f"{one}" for one in range(100, 200))))
    with pytest.raises(SnapshotCorrupt, match=f"{path.name} is not the one the checkpoint names") as raised:
        out.checkpoint()
    assert raised.value.hint.endswith(f"partfile state {tmp_path} --uid d --forget")
    with suppress(PartfileError):
        out.close()
    with pytest.raises(SnapshotCorrupt, match=path.name), sink_at(tmp_path, **ALL_IN_FILES).local(schema=SCHEMA):
        pass


def test_the_hint_for_a_column_to_keep_by_keeps_the_key(tmp_path: Path) -> None:
    """It names the option that is wrong, with the column of the rows that was meant."""
    keys = pf.Deduplicate("id", keep=pf.Latest("At"))
    with sink_at(tmp_path, dedup=keys).local() as out, pytest.raises(ConfigError, match="no column 'At'") as refused:
        out.write(pa.record_batch({"id": ["a"], "at": [1]}))
    assert refused.value.hint == "Name a column of theirs: keep=partfile.Latest('at')"


@pytest.mark.parametrize("limit", ["_ROWS_AT_ONCE", "MAX_KEYS"])
def test_of_a_large_record_batch_the_latest_row_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """Also where its keys are looked up in several pieces, or fill several runs."""
    monkeypatch.setattr(deduplicate, limit, 4)
    if limit == "MAX_KEYS":
        runs_of(4, monkeypatch)
    keys = pf.Deduplicate("id", keep=pf.Latest("at"))
    with sink_at(tmp_path, dedup=keys).local() as out:
        out.write(pa.record_batch({"id": ["a", *"bcdefghij", "a", "k"], "at": list(range(12))}))
        out.checkpoint()
    rows = {row["id"]: row["at"] for row in pf.read(tmp_path).to_table().to_pylist()}
    assert rows == {one: at for at, one in enumerate("bcdefghijak", 1)}


# Savepoints, going back, recovery


def test_a_savepoint_has_the_keys(tmp_path: Path) -> None:
    """It can be moved; the sink that begins with it knows them, and shares no file with the savepoint."""
    out = sink_at(tmp_path / "out", **ALL_IN_FILES).local(schema=SCHEMA).open()
    out.write(pa.table({"id": [f"{one}" for one in range(3000)]}))
    out.write(rows_with("a", "b"))
    saved = Path(out.stop_with_savepoint(tmp_path / "saved"))
    moved = saved.rename(tmp_path / saved.name)
    shutil.rmtree(tmp_path / "out" / "_partfile")
    with sink_at(tmp_path / "new", restore_from=moved, **ALL_IN_FILES).local(schema=SCHEMA) as out:
        shutil.rmtree(moved)
        out.write(rows_with("b", "c"))
        assert out.checkpoint().duplicates == 1
    assert ids_in(tmp_path / "new") == Counter("c")
    with sink_at(tmp_path / "new", **ALL_IN_FILES).local(schema=SCHEMA) as out:
        out.write(rows_with("a", "b", "c"))
        assert out.checkpoint().duplicates == 3
    assert broken_invariants(tmp_path / "new") == []


def test_a_savepoint_lists_no_files_that_its_log_does_not_need(tmp_path: Path) -> None:
    """They are the log's to delete: neither the savepoint names them nor a sink that begins with it."""
    with sink_at(tmp_path / "out", retained_checkpoints=9, **ALL_IN_FILES).local(schema={"id": "int64"}) as out:
        for first in (0, 10, 20):
            out.write(pa.table({"id": list(range(first, first + 10))}))
            out.checkpoint()
        saved = Path(out.savepoint(tmp_path / "saved"))
    assert seen_keys(tmp_path / "out").unneeded
    with open_store(str(saved.parent), {}) as store:
        operators = restored_operators(read_savepoint(store, saved.name).operators, {OPERATOR})
        state = restored_state(operators, CheckpointStorage(store, saved.name).read_state)
    assert state.position.seen_keys is not None
    assert state.position.seen_keys.unneeded == ()
    with sink_at(tmp_path / "new", restore_from=saved, **ALL_IN_FILES).local():
        assert seen_keys(tmp_path / "new").unneeded == ()


def test_a_savepoint_without_one_of_its_runs_is_refused(tmp_path: Path) -> None:
    """Nothing is begun with it."""
    out = sink_at(tmp_path / "out", **ALL_IN_FILES).local(schema=SCHEMA).open()
    out.write(pa.table({"id": [f"{one}" for one in range(3000)]}))
    saved = Path(out.stop_with_savepoint(tmp_path / "saved"))
    (run,) = (path for path in saved.glob("*.state") if path.read_bytes().startswith(b"partfile run"))
    damaged = run.read_bytes()[:-9] + b"?" + run.read_bytes()[-8:]
    for says in ("is not the one", "is missing"):
        run.write_bytes(damaged)
        if says == "is missing":
            run.unlink()
        assert says in told("savepoint", "show", saved, code=FINDINGS)
        assert told_json("savepoint", "show", saved, code=FINDINGS)["keys"] == 3000
        with (
            pytest.raises(SnapshotCorrupt, match=says) as raised,
            sink_at(tmp_path / "new", restore_from=saved, **ALL_IN_FILES).local(),
        ):
            pass
        assert "back from a copy of the savepoint" in raised.value.hint
        assert not list((tmp_path / "new").rglob("_metadata"))
    (entry,) = told_json("savepoint", "list", tmp_path / "saved", code=FINDINGS)["savepoints"]
    assert f"{run.name} is missing" in entry["problem"]


def test_a_savepoint_of_damaged_keys_is_refused_before_a_takeover(tmp_path: Path) -> None:
    """The command changes nothing, and says how the sink goes on without them; then there is one."""
    with sink_at(tmp_path / "out", **ALL_IN_FILES).local(schema=SCHEMA) as out:
        out.write(rows_with("a"))
    (path,) = run_files(tmp_path / "out")
    path.write_bytes(path.read_bytes()[:-1])
    before = everything(tmp_path / "out")
    words = ("savepoint", "create", tmp_path / "out", "--to", tmp_path / "saved", "--apply", "--idle-for", "0s")
    refused = run(*words)
    assert refused.exit_code == FINDINGS
    assert everything(tmp_path / "out") == before
    assert not (tmp_path / "saved").exists()
    forget = f"partfile state {tmp_path / 'out'} --uid d --forget"
    assert forget in " ".join(refused.stderr.split())
    told(*forget.split()[1:], "--apply", "--idle-for", "0s")
    told(*words)


def test_plans_tell_of_keys_that_are_not_there(tmp_path: Path) -> None:
    """Of an older checkpoint, of a savepoint to be made, and of one to begin with; what is not needed is not told."""
    base = tmp_path / "out"
    with sink_at(base, retained_checkpoints=9, **ALL_IN_FILES).local(schema=SCHEMA) as out:
        for begin in (0, 3000):
            out.write(rows_with(*(f"{one}" for one in range(begin, begin + 3000))))
            out.checkpoint()
        saved = Path(out.savepoint(tmp_path / "saved"))
        out.write(rows_with("later"))
    first, merged, _ = sorted(run_files(base), key=lambda path: path.stat().st_mtime_ns)
    data = first.read_bytes()
    back = ("recover", base, "--restore-from", "2", "--accept-newer")
    assert told_json(*back, code=FINDINGS)["plan"]["jobs"][0]["keys_problem"] is None
    digest = told_json(*back, code=FINDINGS)["digest"]
    for wrong in (None, data[:-1]):
        first.unlink(missing_ok=True)
        if wrong is not None:
            first.write_bytes(wrong)
        plan = told_json(*back, code=FINDINGS)
        assert plan["digest"] == digest
        (job,) = plan["plan"]["jobs"]
        assert f"{first} {'is missing' if wrong is None else 'has another length'}" in job["keys_problem"]["message"]
        assert job["keys_problem"]["hint"].endswith(f"partfile state {base} --uid d --forget")
        shown = told(*back, code=FINDINGS)
        assert "the sink does not start like that" in shown
        assert f"Choose another checkpoint; see which there are: partfile checkpoints {base} --uid d. Or" in shown
        assert told_json("status", base)["sinks"][0]["problem"] is None
    create = ("savepoint", "create", base, "--to", tmp_path / "again", "--idle-for", "0s")
    assert "--apply is refused" not in told(*create, code=FINDINGS)
    merged.unlink()
    assert "--apply is refused, since the keys cannot be read" in told(*create, code=FINDINGS)
    refused = run(*create, "--apply")
    assert refused.exit_code == FINDINGS
    assert f"{merged} is missing" in refused.stderr
    assert "Nothing was changed." in refused.stderr
    assert not (tmp_path / "again").exists()
    # Nothing waits for a command, and the sink does not start all the same.
    for words in (("recover", base), ("status", base, "--quiet-after", "0s")):
        result = run(*words)
        assert result.exit_code == FINDINGS
        assert f"{merged} is missing" in result.stdout + result.stderr
        assert "partfile state" in result.stdout + result.stderr
    (left,) = told_json("recover", base, code=FINDINGS)["plan"]["failed"]
    assert left["problem"]["message"] == told_json("status", base, code=FINDINGS)["sinks"][0]["problem"]["message"]
    merged.mkdir()
    assert "is something else than a file" in run("recover", base).stderr
    (run_file,) = (path for path in saved.glob("*.state") if path.read_bytes().startswith(b"partfile run"))
    run_file.unlink()
    refused = run("recover", base, "--restore-from", saved, "--accept-newer")
    assert refused.exit_code == FINDINGS
    assert f"{run_file} is missing" in refused.stderr
    assert f"partfile savepoint list {saved.parent}" in refused.stderr


def test_keys_that_may_not_be_looked_at_hold_no_part_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``status`` and the plan tell of it, and what waits is published."""
    base = tmp_path / "out"

    def crash() -> None:
        out = sink_at(base, **ALL_IN_FILES).local(schema=SCHEMA).open()
        out.write(rows_with("a", "b"))
        out.checkpoint()
        os._exit(0)

    assert in_child(crash) == 0
    look_at = LocalStore.look_at

    def refuse(store: LocalStore, path: str) -> Any:
        if "/shared/" in path:
            raise NotApplied(f"{path} may not be read")
        return look_at(store, path)

    monkeypatch.setattr(LocalStore, "look_at", refuse)
    (sink,) = told_json("status", base, code=FINDINGS)["sinks"]
    assert "may not be read" in sink["problem"]["message"]
    assert sink["parts"]["in-progress"]["count"] == 1
    (job,) = told_json("recover", base, code=FINDINGS)["plan"]["jobs"]
    assert "may not be read" in job["keys_problem"]["message"]
    told("recover", base, "--apply", "--idle-for", "0s")
    assert ids_in(base) == Counter("ab")


def test_a_plan_looks_whether_the_sink_has_gone_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has merged since the plan began is not missing, neither to ``recover`` nor to ``status``."""
    base = tmp_path / "out"
    out = sink_at(base, retained_checkpoints=2, **ALL_IN_FILES).local(schema=SCHEMA).open()

    def write_on() -> None:
        for number in range(6):
            out.write(rows_with(*(f"{time.monotonic_ns()} {number} {one}" for one in range(10))))
            out.checkpoint()

    write_on()
    for words in (("recover", base), ("status", base, "--quiet-after", "1h")):
        look_at, looked = LocalStore.look_at, list[str]()

        def look_late(store: LocalStore, path: str, look_at: Any = look_at, looked: list[str] = looked) -> Any:
            if "/shared/" in path and not looked:
                looked.append(path)
                write_on()
            return look_at(store, path)

        monkeypatch.setattr(LocalStore, "look_at", look_late)
        result = run(*words)
        monkeypatch.setattr(LocalStore, "look_at", look_at)
        assert looked
        assert "cannot be read" not in result.stdout + result.stderr
    out.finish()


def test_a_savepoint_whose_state_cannot_be_read_says_what_is_to_be_done(tmp_path: Path) -> None:
    """A start says where others are, and ``savepoint show`` does not tell that there are no keys."""
    out = sink_at(tmp_path / "out", bucketer=pf.HiveBucketer("id")).local(schema=SCHEMA).open()
    out.write(rows_with(*(f"{one}" for one in range(1000))))
    saved = Path(out.savepoint(tmp_path / "saved"))
    out.finish()
    (state,) = (path for path in saved.glob("*.state") if not path.read_bytes().startswith(b"partfile run"))
    state.write_bytes(state.read_bytes()[:-1])
    with pytest.raises(SnapshotCorrupt) as raised, sink_at(tmp_path / "new", restore_from=saved).local():
        pass
    assert raised.value.hint.endswith(f"partfile savepoint list {saved.parent}")
    assert told_json("savepoint", "show", saved, code=FINDINGS)["keys"] is None
    assert "unknown" in told("savepoint", "show", saved, code=FINDINGS)


def test_a_running_sink_tells_of_damage_that_a_savepoint_meets(tmp_path: Path) -> None:
    """It goes on, and there is no savepoint."""
    out = sink_at(tmp_path / "out", **ALL_IN_FILES).local(schema=SCHEMA).open()
    out.write(rows_with("a"))
    out.checkpoint()
    (path,) = run_files(tmp_path / "out")
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(SnapshotCorrupt, match="keys of sink 'd' cannot be read") as raised:
        out.savepoint(tmp_path / "saved")
    assert raised.value.hint.endswith(f"partfile state {tmp_path / 'out'} --uid d --forget")
    assert list((tmp_path / "saved").iterdir()) == []
    path.write_bytes(data)
    out.savepoint(tmp_path / "saved")
    out.finish()


def test_keys_of_a_savepoint_are_forgotten_after_it(tmp_path: Path) -> None:
    """The hint says when: a log that has not begun has no keys to forget."""
    out = sink_at(tmp_path / "out").local(schema=SCHEMA).open()
    out.write(rows_with("a"))
    saved = out.stop_with_savepoint(tmp_path / "saved")
    new = partial(sink_at, tmp_path / "new", restore_from=saved)
    with pytest.raises(CheckpointMismatch) as raised, new("at").local(schema=SCHEMA):
        pass
    says, _, command = raised.value.hint.rpartition(": ")
    assert "Deduplicate by ['id'] again" in says
    assert "once the sink goes on from there" in says
    with new().local(schema=SCHEMA):
        pass
    told(*shlex.split(command)[1:], "--apply", "--idle-for", "0s")
    with new("at").local(schema=SCHEMA) as out:
        out.write(rows_with("a"))
    assert ids_in(tmp_path / "new") == Counter("a")


def write_abc_and_die(make: Callable[[], FileSink]) -> None:
    """Three rows with a checkpoint after each, by a process that ends without a clean end."""

    def crash() -> None:
        out = make().local(schema=SCHEMA).open()
        for one in "abc":
            out.write(rows_with(one))
            out.checkpoint()
        os._exit(0)

    assert in_child(crash) == 0


def test_going_back_brings_keys_and_parts_back_together(tmp_path: Path) -> None:
    """Rows of parts that are cut back can be written again."""
    rolling = pf.RollingPolicy(rollover_interval_s=1e6, inactivity_interval_s=1e6)
    make = partial(sink_at, tmp_path, rolling=rolling, retained_checkpoints=9, **ALL_IN_FILES)

    write_abc_and_die(make)
    go_back(tmp_path, tmp_path / "_partfile" / "d" / "chk-2")
    with make().local(schema=SCHEMA) as out:
        out.write(rows_with("a", "b", "c", "d"))
        assert out.checkpoint().duplicates == 1
    assert ids_in(tmp_path) == Counter("abcd")
    assert broken_invariants(tmp_path) == []


def damage_newest(base: Path) -> None:
    """Cut the newest checkpoint, so that no start can read it."""
    newest = max(base.glob("_partfile/d/chk-*/_metadata"), key=lambda path: int(path.parent.name[4:]))
    newest.write_bytes(newest.read_bytes()[:-9])


def test_going_back_over_damage_brings_keys_and_parts_back_together(tmp_path: Path) -> None:
    """Those of the checkpoint that is gone back to, for nothing of the newest one can be read."""
    rolling = pf.RollingPolicy(rollover_interval_s=1e6, inactivity_interval_s=1e6)
    make = partial(sink_at, tmp_path, rolling=rolling, retained_checkpoints=9, **ALL_IN_FILES)

    write_abc_and_die(make)
    damage_newest(tmp_path)
    go_back(tmp_path, tmp_path / "_partfile" / "d" / "chk-2")
    with make().local(schema=SCHEMA) as out:
        out.write(rows_with("a", "b", "c", "d"))
        assert out.checkpoint().duplicates == 1
    assert ids_in(tmp_path) == Counter("abcd")


def test_going_back_over_damage_keeps_the_runs_of_each_checkpoint(tmp_path: Path) -> None:
    """A run that the older checkpoint did not need any more is named again by one in between."""
    make = partial(sink_at, tmp_path, **ALL_IN_FILES)
    with make(retained_checkpoints=20).local(schema={"id": "int64"}) as out:
        for first, last in ((0, 100), (100, 130), (130, 300)):
            out.write(pa.table({"id": list(range(first, last))}))
            newest = out.checkpoint().checkpoint_id
    assert seen_keys(tmp_path).unneeded
    go_back(tmp_path, tmp_path / "_partfile" / "d" / f"chk-{newest - 1}")
    with make(retained_checkpoints=20).local() as out:
        out.write(pa.table({"id": [1000]}))
        between = out.checkpoint().checkpoint_id
        out.write(pa.table({"id": [1001]}))
    damage_newest(tmp_path)
    go_back(tmp_path, tmp_path / "_partfile" / "d" / f"chk-{newest}")
    with make(retained_checkpoints=7).local() as out:
        out.write(pa.table({"id": [2000]}))
    go_back(tmp_path, tmp_path / "_partfile" / "d" / f"chk-{between}")
    with make(retained_checkpoints=7).local() as out:
        out.write(pa.table({"id": [0, 1000, 299]}))
        assert out.checkpoint().duplicates == 2


def test_a_fenced_driver_takes_no_run_that_a_rollback_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It publishes its checkpoint while another process goes back to an older one, whose runs it has merged."""
    make = partial(sink_at, tmp_path, **ALL_IN_FILES)
    out = make().local(schema={"id": "int64"}).open()
    for first, last in ((0, 100), (100, 300)):
        out.write(pa.table({"id": list(range(first, last))}))
        out.checkpoint()
    publish = Publisher.publish

    def slow(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(Publisher, "publish", publish)
        go_back(tmp_path, tmp_path / "_partfile" / "d" / "chk-2")
        return publish(*arguments, **options)

    monkeypatch.setattr(Publisher, "publish", slow)
    with suppress(PartfileError):
        out.finish()
    assert broken_invariants(tmp_path) == []
    with make().local() as again:
        again.write(pa.table({"id": list(range(300))}))
        assert again.checkpoint().duplicates == 100


def test_a_start_looks_again_where_a_running_sink_has_merged_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run that the newest checkpoint named is gone when it is read, because the sink went on: that is no damage."""
    make = partial(sink_at, tmp_path, **ALL_IN_FILES)
    first = make().local(schema={"id": "int64"}).open()
    first.write(pa.table({"id": list(range(10))}))
    first.checkpoint()
    read = deduplicate.opened_run

    def slow(*arguments: Any) -> Any:
        monkeypatch.setattr(deduplicate, "opened_run", read)
        for number in range(10, 16):
            first.write(pa.table({"id": list(range(number * 10, number * 10 + 10))}))
            first.checkpoint()
        return read(*arguments)

    monkeypatch.setattr(deduplicate, "opened_run", slow)
    with make().local() as second:
        second.write(pa.table({"id": [0, 159, 160]}))
        assert second.checkpoint().duplicates == 2
    first.close()


def test_going_back_and_on_again_keeps_the_runs_of_each_checkpoint(tmp_path: Path) -> None:
    """A run that an older checkpoint did not need any more is named again by one in between."""
    make = partial(sink_at, tmp_path, **ALL_IN_FILES)
    with make(retained_checkpoints=20).local(schema={"id": "int64"}) as out:
        for first, last in ((0, 100), (100, 130), (130, 300)):
            out.write(pa.table({"id": list(range(first, last))}))
            newest = out.checkpoint().checkpoint_id
    go_back(tmp_path, tmp_path / "_partfile" / "d" / f"chk-{newest - 1}")
    with make(retained_checkpoints=20).local() as out:
        out.write(pa.table({"id": [1000]}))
        between = out.checkpoint().checkpoint_id
    go_back(tmp_path, tmp_path / "_partfile" / "d" / f"chk-{newest}")
    with make(retained_checkpoints=7).local() as out:
        out.write(pa.table({"id": [2000]}))
    assert broken_invariants(tmp_path) == []
    go_back(tmp_path, tmp_path / "_partfile" / "d" / f"chk-{between}")
    with make(retained_checkpoints=7).local() as out:
        out.write(pa.table({"id": [0, 1000, 299]}))
        assert out.checkpoint().duplicates == 2


def test_going_back_over_forgotten_keys_brings_them_back(tmp_path: Path) -> None:
    """A takeover without keys is no repeat of the checkpoint before it."""
    make = partial(sink_at, tmp_path, retained_checkpoints=9)
    with make().local(schema=SCHEMA) as out:
        out.write(rows_with("a"))
        out.checkpoint()
    told("state", tmp_path, "--forget", "--apply", "--idle-for", "0s")
    go_back(tmp_path, tmp_path / "_partfile" / "d" / "chk-2")
    with make().local(schema=SCHEMA) as out:
        out.write(rows_with("a"))
        assert out.checkpoint().duplicates == 1


def test_a_run_without_rows_over_forgotten_keys_is_not_where_a_savepoint_stands(tmp_path: Path) -> None:
    """It knows the column of the keys again, and none of the keys; going back brings them."""
    base = tmp_path / "out"
    make = partial(sink_at, base)
    out = make().local(schema=SCHEMA).open()
    out.write(rows_with("a"))
    saved = out.stop_with_savepoint(tmp_path / "saved")
    told("state", base, "--forget", "--apply", "--idle-for", "0s")
    with make(dedup=pf.Deduplicate("id", on_null="drop")).local(schema=SCHEMA) as out:
        out.write(rows_with(None))
    assert seen_keys(base).runs == ()
    go_back(base, Path(saved))
    with make().local(schema=SCHEMA) as out:
        out.write(rows_with("a"))
        assert out.checkpoint().duplicates == 1


def test_writers_of_one_sink_forget_their_own_keys(tmp_path: Path) -> None:
    """The hint names the writer, and its name means that one alone."""
    for subtask in (0, 7):
        with sink_at(tmp_path).local(subtask_index=subtask, schema=SCHEMA) as out:
            out.write(rows_with("a"))
    for subtask, name in ((7, "d~7"), (0, "d")):
        with pytest.raises(CheckpointMismatch) as raised, sink_at(tmp_path, "at").local(subtask_index=subtask):
            pass
        command = shlex.split(raised.value.hint.rpartition(": ")[2])
        assert command == ["partfile", "state", str(tmp_path), "--uid", name, "--forget"]
        told(*command[1:], "--apply", "--idle-for", "0s")
        with sink_at(tmp_path, "at").local(subtask_index=subtask, schema=SCHEMA) as out:
            out.write(rows_with("a"))


def test_columns_that_arrow_cannot_filter(tmp_path: Path) -> None:
    """Views, as polars hands them over, and run-end encoded columns: rows and types stay what they are."""
    view, ids = pa.array(["x", "y", "z", "w"], pa.string_view()), ["a", "a", "b", "a"]
    for column in (view, pa.array([[one] for one in "xyzw"], pa.list_(pa.string_view()))):
        batch = pa.record_batch({"id": ids, "v": column})
        for mask in itertools.product([False, True], repeat=4):
            found = deduplicate.rows_of(batch, np.array(mask))
            assert found.schema == batch.schema
            assert found.to_pylist() == list(itertools.compress(batch.to_pylist(), mask))
    with sink_at(tmp_path).local() as out:
        out.write(pl.DataFrame({"id": ids, "v": list("xyzw")}))
        assert out.checkpoint().duplicates == 2
    assert sorted(pf.read(tmp_path).to_table()["v"].to_pylist()) == ["x", "z"]


def test_duplicates_count_for_the_next_checkpoint(tmp_path: Path) -> None:
    """Otherwise an input that comes again would never move its position."""
    progress: list[Any] = []
    with sink_at(tmp_path, on_progress=progress.append).local(schema=SCHEMA) as out:
        out.write_all(rows_with(*(["a"] * 1000)), checkpoint_every=100)
    assert len(progress) >= 10


@pytest.mark.parametrize("options", [{"refresh": "read"}, {"refresh": "write", "ttl": 1}])
def test_state_does_not_grow_with_rows(tmp_path: Path, options: dict[str, Any]) -> None:
    """Neither without a ttl, where nothing is to be refreshed, nor between two checkpoints of a short one."""
    clock = Clock()
    with sink_at(tmp_path, clock=clock, dedup=pf.Deduplicate("id", **options)).local() as out:
        for number in range(50):
            clock.now_ms += 500
            out.write(pa.table({"id": list(range(number % 2 * 10, number % 2 * 10 + 10))}))
        held = out._deduplicator
        assert held is not None
        assert sum(one.run.keys for one in held._keys._runs) <= 40
        assert out.checkpoint().state_keys <= 40


def runs_of(keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run hold so many keys at most."""
    for module in (run_file, deduplicate):
        monkeypatch.setattr(module, "MAX_KEYS", keys)


@pytest.mark.parametrize("hot", [150, 1000])
def test_state_does_not_grow_with_rows_of_more_keys_than_a_run_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hot: int
) -> None:
    """Of an expiry class it has each key four times or so, and writes each that comes eight times at most."""
    runs_of(100, monkeypatch)
    written = 0
    keep = deduplicate.kept_run

    def counted(run: Run, streams: CheckpointStreamFactory) -> RunFile:
        nonlocal written
        written += run.keys
        return keep(run, streams)

    monkeypatch.setattr(deduplicate, "kept_run", counted)
    keys = pf.Deduplicate("id", ttl="1 day", refresh="read")
    with sink_at(tmp_path, dedup=keys, retained_checkpoints=1, **ALL_IN_FILES).local() as out:
        for number in range(100):
            out.write(pa.table({"id": [(number * 90 + one) % hot for one in range(90)]}))
            progress = out.checkpoint()
            assert progress.state_keys <= 4 * hot + 300
        out.write(pa.table({"id": list(range(hot))}))
        assert out.checkpoint().duplicates == hot
        assert len(run_files(tmp_path)) <= progress.state_runs + 30
    assert written <= 8 * 9000
    assert broken_invariants(tmp_path) == []


def large_runs(*ranges: tuple[float, float], size: float = 0.75, first_ms: int = 0) -> list[RunFile]:
    """Runs of so much of the most keys, each of a range of all hashes."""
    handle = FileHandle(path="shared/x", size_bytes=1, crc32=0)
    return [
        RunFile(
            handle=handle,
            keys=round(run_file.MAX_KEYS * size),
            first_ms=first_ms,
            last_ms=first_ms,
            first_hash=int(begin * 2**32) + 1,
            last_hash=int(end * 2**32) - 1,
        )
        for begin, end in ranges
    ]


@pytest.mark.parametrize("refresh", ["read", "write"])
def test_large_runs_are_merged_by_halves_where_keys_are_entered_again(refresh: Any) -> None:
    """Two of one class whose hashes have the same first bits; never more, and small ones as ever."""
    options = pf.Deduplicate("id", ttl="1 day", refresh=refresh)

    def groups(held: list[RunFile], tasks: int = 1) -> list[tuple[int, ...]]:
        return deduplicate.groups_to_merge(held, options, tasks)

    def only_read(*found: tuple[int, ...]) -> list[tuple[int, ...]]:
        return list(found) if refresh == "read" else []

    halves = large_runs((0, 0.5), (0.5, 1), (0, 1))
    assert groups(halves) == []
    assert groups([*halves, *large_runs((0, 1))]) == only_read((2, 3))
    assert groups([*halves, *large_runs((0, 0.5), (0.5, 1))], 2) == only_read((0, 3), (1, 4))
    assert groups([*halves, *large_runs((0, 0.5), (0.5, 1))]) == only_read((0, 3))
    assert groups([*large_runs((0, 0.25)), *large_runs((0.25, 0.5)), *halves]) == []
    assert groups([*halves, *large_runs((0, 1), first_ms=HOUR_MS * 20)]) == []
    # These are not large enough for two of them to be more than one run holds.
    smaller = large_runs((0, 0.5), (0, 0.5), (0.5, 1), (0.5, 1), size=0.3)
    assert groups(smaller) == (only_read((0, 1), (2, 3)) or [(0, 1, 2)])
    # Of these the range is chance.
    assert groups(large_runs((0, 0.1), (0.9, 1), size=0.01)) == [(0, 1)]
    many = [run for at in range(32) for run in large_runs((at / 32, (at + 1) / 32), (at / 32, (at + 1) / 32))]
    assert len(groups(many)) == len(only_read(*[()] * 8))


def test_the_halves_of_large_runs_are_not_in_memory_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its file before the next one is made."""
    runs_of(100, monkeypatch)
    deeds = list[str]()
    merge, keep = run_file.merged, deduplicate.kept_run

    def merged_one_by_one(runs: list[Run]) -> Iterator[Run]:
        for one in merge(runs):
            deeds.append("made")
            yield one

    def kept(run: Run, streams: CheckpointStreamFactory) -> RunFile:
        deeds.append("kept")
        return keep(run, streams)

    keys = pf.Deduplicate("id", ttl="1 day", refresh="read")
    with sink_at(tmp_path, dedup=keys, **ALL_IN_FILES).local() as out:
        for first in (0, 90):
            out.write(pa.table({"id": list(range(first, first + 90))}))
            if first:
                monkeypatch.setattr(deduplicate, "merged", merged_one_by_one)
                monkeypatch.setattr(deduplicate, "kept_run", kept)
            out.checkpoint()
        assert deeds == ["made", "kept"] * 2
        out.write(pa.table({"id": list(range(180))}))
        assert out.checkpoint().duplicates == 180


def test_a_run_in_memory_has_the_range_that_its_file_says() -> None:
    """So that it is merged with the same runs before and after."""
    storage = CheckpointStorage(MemoryMetadataStore(), "d", FileStreamSettings())
    hashes = hashes_of([pa.array(range(100))])
    run = run_of(np.sort(hashes.high), hashes.low, np.zeros(100, np.int64))
    held, file = deduplicate.HeldRun.opened(run), deduplicate.kept_run(run, storage.stream_factory(1))
    assert (held.first_hash, held.last_hash) == (file.first_hash, file.last_hash)
    assert 0 < held.first_hash < held.last_hash < 2**32


ENCODINGS: dict[str, Any] = {
    "view": lambda values: values.cast(pa.string_view()),
    "dictionary": lambda values: values.dictionary_encode(),
    "dictionary of views": lambda values: values.cast(pa.string_view()).dictionary_encode(),
    "run ends": pc.run_end_encode,
    "run ends of views": lambda values: pa.RunEndEncodedArray.from_arrays(
        pa.array(range(1, len(values) + 1), pa.int32()), values.cast(pa.string_view())
    ),
}
"""Of text, as polars and pandas hand it over. Arrow sorts and takes few of these itself."""


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_text_is_the_same_key_however_it_is_encoded(encoding: str) -> None:
    """Also where it is a piece of something longer."""
    plain = pa.array(["z", "b", None, "b", "a"])
    for begin in (0, 1, 3):
        found, known = (hashes_of([values.slice(begin)]) for values in (ENCODINGS[encoding](plain), plain))
        assert found.high.tolist() == known.high.tolist()
        assert found.is_null.tolist() == known.is_null.tolist()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_rows_are_chosen_by_text_however_it_is_encoded(tmp_path: Path, encoding: str) -> None:
    """The latest one by its value, and none without a value."""
    at = ENCODINGS[encoding](pa.array(["z", "b", None, "c", "a"])).slice(1)
    keys = pf.Deduplicate("id", keep=pf.Latest("at"))
    with sink_at(tmp_path, dedup=keys).local() as out:
        out.write(pa.record_batch({"id": ["x"] * 4, "n": [0, 1, 2, 3], "at": at}))
        out.checkpoint()
    assert pf.read(tmp_path).to_table()["n"].to_pylist() == [2]


@pytest.mark.parametrize("kind", [pl.Categorical, pl.Enum(["a", "b"]), pl.String])
def test_a_column_of_polars_is_a_key_as_any_text(tmp_path: Path, kind: Any) -> None:
    """Its categories are views, of which Arrow takes no values by itself."""
    rows = pl.DataFrame({"id": ["a", "b", "a", None], "n": [1, 2, 3, 4]})
    with sink_at(tmp_path).local() as out:
        out.write(rows.with_columns(pl.col("id").cast(kind)))
        out.write(pa.table({"id": ["b"], "n": [5]}))
        assert out.checkpoint().duplicates == 2


def test_values_that_no_key_can_have(tmp_path: Path) -> None:
    """A time beyond what a timestamp holds: what to type casts its column."""
    table = pa.table({"name": ["a"], "at": pa.array([2**60], pa.timestamp("s"))})
    says = "column 'at' of the key has a value that no key can have"
    with pytest.raises(ConfigError, match=says) as raised, sink_at(tmp_path, "name", "at").local() as out:
        out.write(table)
    cast = eval(raised.value.hint.rpartition(": ")[2], {"table": table, "pyarrow": pa})  # noqa: S307 - what a user would type.
    with sink_at(tmp_path, "name", "at").local() as out:
        out.write(cast)
    assert pf.read(tmp_path).to_table()["at"].to_pylist() == [2**60]


def test_a_column_of_a_similar_name_is_meant(tmp_path: Path) -> None:
    """The hint has it."""
    with pytest.raises(ConfigError, match="no column 'id'") as raised, sink_at(tmp_path).local() as out:
        out.write(pa.table({"ID": [1], "x": [1.5]}))
    assert "Deduplicate('ID')" in raised.value.hint


# A model


class Model:
    """What a dictionary of keys and times would do."""

    def __init__(self, options: pf.Deduplicate) -> None:
        self._options = options
        self._times: dict[int, int] = {}
        self.now_ms = 0

    def kept(self, keys: list[int | None], now_ms: int) -> list[int | None]:
        """The keys of the rows that are written."""
        self.now_ms = max(self.now_ms, now_ms)
        ttl_ms, kept = self._options.ttl_ms, list[int | None]()
        for key in keys:
            if key is None:
                kept += [key] if self._options.on_null == "keep" else []
                continue
            time_ms = self._times.get(key)
            is_seen = time_ms is not None and (ttl_ms is None or time_ms + ttl_ms > self.now_ms)
            kept += [] if is_seen else [key]
            if not is_seen or (self._options.refresh == "read" and ttl_ms is not None):
                self._times[key] = self.now_ms
        return kept


@pytest.mark.parametrize("ttl", [None, 1, 0.05])
@pytest.mark.parametrize("refresh", ["write", "read"])
def test_it_does_what_a_dictionary_would(
    tmp_path: Path, ttl: float | None, refresh: Any, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random keys, times, checkpoints and restores, with runs spilled and merged all the time."""
    monkeypatch.setattr(deduplicate, "_MOST_KEYS_IN_MEMORY", 60)
    monkeypatch.setattr(deduplicate, "_ROWS_AT_ONCE", 16)
    runs_of(rng.choice([40, 300]), monkeypatch)
    settings = sink_at(tmp_path).settings
    options = pf.Deduplicate("id", ttl=ttl, refresh=refresh, on_null=rng.choice(["keep", "drop"]))
    storage = CheckpointStorage(MemoryMetadataStore(), "d")
    found, model = deduplicate.Deduplicator(settings, options, storage, None), Model(options)
    seen: SeenKeys | None = None
    now_ms = 1000
    for checkpoint_id in range(1, 60):
        for _ in range(rng.randrange(4)):
            now_ms += rng.randrange(-20, 60)
            keys = [rng.choice([None, rng.randrange(400), rng.randrange(20)]) for _ in range(rng.randrange(50))]
            batch = pa.record_batch({"id": pa.array(keys, pa.int64())})
            if keys:
                assert found.kept(batch, now_ms)["id"].to_pylist() == model.kept(keys, now_ms)
        seen = found.snapshot(seen, checkpoint_id, now_ms)
        model.now_ms = max(model.now_ms, now_ms)
        if rng.random() < 0.3:
            seen = None if seen is None else SeenKeys.model_validate_json(seen.model_dump_json())
            found = deduplicate.Deduplicator(settings, options, storage, seen)


def test_the_log_says_how_many_rows_were_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In the line of each checkpoint."""
    with caplog.at_level(logging.INFO, "partfile"), sink_at(tmp_path).local(schema=SCHEMA) as out:
        out.write(rows_with("a", "a"))
        out.checkpoint()
    assert "1 duplicates, 1 keys" in caplog.text
