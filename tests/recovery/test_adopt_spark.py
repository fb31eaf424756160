"""``recover --adopt-layout spark``: what Spark's own file sink has committed, and what failed batches have left."""

from __future__ import annotations

import itertools
import json
import os
import signal
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from partfile.errors import SnapshotCorrupt, SnapshotVersionError
from partfile.recovery.adopt.apply import adopt, plan_adoption
from partfile.recovery.adopt.plan import AdoptionOptions
from partfile.recovery.adopt.spark import log_files, read_log
from partfile.stores.local.posix import CHANGING_CALLS, PosixCalls
from partfile.stores.local.store import LocalStore
from partfile.testing.faults import KillAt, intercept
from support.files.trees import put
from support.processes.command_line import run, told, told_json
from support.sinks.life_cycle import everything, in_child
from support.sinks.recovery import quarantined

if TYPE_CHECKING:
    from pathlib import Path


NOW_MS = 4_000_000_000_000
SPARK = ("--adopt-layout", "spark")
UUID = "e54e316f-8d8f-4e0a-9556-b37b0aa330c2"
STRAY = f"day=a b/part-00001-{UUID}.c000.snappy.parquet"
HIDDEN = f"day=a b/_part-00001-{UUID}.c000.snappy.parquet.not-committed"
"""A name that no glob for Parquet files finds."""


def part(number: int) -> str:
    """The name of a file as Spark calls it."""
    return f"part-{number:05d}-{UUID}-c000.json"


def entry(base: Path, path: str, size: int, **fields: Any) -> dict[str, Any]:
    """A line of the log."""
    return {
        "path": f"file://{quote(f'{base}/{path}')}",
        "size": size,
        "isDir": False,
        "modificationTime": 1,
        "blockReplication": 1,
        "blockSize": 33554432,
        "action": "add",
        **fields,
    }


def log(base: Path, name: str, *entries: Any, version: str = "v1") -> None:
    """One file of the log."""
    lines = [version, *(one if isinstance(one, str) else json.dumps(one) for one in entries)]
    put(base / "_spark_metadata" / name, "\n".join(lines).encode())


def tree(base: Path, *, compact: bool = False) -> None:
    """Two committed files, what a failed batch has left, and files of others."""
    for path in (part(0), f"day=a b/{part(1)}", STRAY):
        put(base / path, b"0123456789")
    put(base / "day=a b" / f".part-00001-{UUID}.c000.snappy.parquet.crc", b"crc")
    put(base / "notes.txt", b"not Spark's")
    put(base / "part-12345678-0-4.json", b"partfile's")
    log(base, "9.compact" if compact else "0", entry(base, part(0), 10))
    log(base, "10" if compact else "1", entry(base, f"day=a b/{part(1)}", 10))


@pytest.mark.parametrize("compact", [False, True])
def test_only_what_the_log_does_not_name_is_moved(tmp_path: Path, *, compact: bool) -> None:
    """Committed files and those of others stay; a stray goes to the quarantine with its checksum."""
    tree(tmp_path, compact=compact)
    before = everything(tmp_path)
    text = told("recover", tmp_path, *SPARK, code=1)
    assert "2 files are committed" in text
    assert f"quarantine: {STRAY}" in text
    assert everything(tmp_path) == before
    told("recover", tmp_path, *SPARK, "--apply")
    assert quarantined(tmp_path) == [f"day=a b/.part-00001-{UUID}.c000.snappy.parquet.crc", HIDDEN]
    assert {path.name for path in tmp_path.rglob("part-*") if "_partfile" not in path.parts} == {
        part(0),
        part(1),
        "part-12345678-0-4.json",
    }
    assert told_json("recover", tmp_path, *SPARK)["plan"]["items"] == []


def test_a_log_that_may_have_forgotten_a_file_does_not_condemn_it(tmp_path: Path) -> None:
    """Compacting drops what is beyond Spark's retention: older files are told and left."""
    tree(tmp_path)
    log(tmp_path, "9.compact", entry(tmp_path, part(0), 10, modificationTime=4_000_000_000_000))
    for number in (10, 11):
        log(tmp_path, str(number))
    items = told_json("recover", tmp_path, *SPARK, code=1)["plan"]["items"]
    assert {item["action"] for item in items} == {"leave"}
    assert any("retention" in item["why"] for item in items)


@pytest.mark.parametrize("success", ["_SUCCESS", "day=a b/_SUCCESS"])
def test_what_a_batch_job_may_have_written_is_left(tmp_path: Path, success: str) -> None:
    """df.write.mode("append") calls its files as the stream does, and their rows never come again."""
    tree(tmp_path)
    put(tmp_path / success, b"")
    before = everything(tmp_path)
    (item,) = told_json("recover", tmp_path, *SPARK, code=1)["plan"]["items"]
    assert (item["path"], item["action"]) == (STRAY, "leave")
    assert success in item["why"]
    told("recover", tmp_path, *SPARK, "--apply", code=1)
    assert everything(tmp_path) == before


def test_where_no_job_has_left_its_mark_the_doubt_is_told(tmp_path: Path) -> None:
    """A batch job may be told to leave none, so the reason names what else it may be; one elsewhere is no mark."""
    tree(tmp_path)
    put(tmp_path / "day=b" / "_SUCCESS", b"")
    (item,) = told_json("recover", tmp_path, *SPARK, code=1)["plan"]["items"]
    assert item["action"] == "quarantine"
    assert "mode('append')" in item["why"]


def test_missing_and_changed_files_are_told(tmp_path: Path) -> None:
    """What is committed and not there, or of another size, is a finding that nothing mends."""
    tree(tmp_path)
    (tmp_path / part(0)).unlink()
    put(tmp_path / "day=a b" / part(1), b"cut off")
    items = {item["path"]: item for item in told_json("recover", tmp_path, *SPARK, code=1)["plan"]["items"]}
    assert (items[part(0)]["kind"], items[part(0)]["action"]) == ("missing", "leave")
    assert (items[f"day=a b/{part(1)}"]["kind"], items[f"day=a b/{part(1)}"]["action"]) == ("finished", "leave")


def test_files_that_the_log_deleted_are_not_committed(tmp_path: Path) -> None:
    """A line may take a file back."""
    tree(tmp_path)
    log(tmp_path, "2", entry(tmp_path, part(0), 10, action="delete"))
    items = told_json("recover", tmp_path, *SPARK, code=1)["plan"]["items"]
    assert part(0) in {item["path"] for item in items}


@pytest.mark.parametrize(
    "url",
    [
        "file:///elsewhere/part",
        "../../x",
        "/etc/passwd",
        "http://[bad",
        "hdfs://other/x",
        "",
    ],
)
def test_a_log_of_another_directory_changes_nothing(tmp_path: Path, url: str) -> None:
    """A moved tree, or a log that another program has tampered with, condemns no file (H1)."""
    tree(tmp_path)
    log(tmp_path, "2", {**entry(tmp_path, "x", 1), "path": url})
    before = everything(tmp_path)
    assert run("recover", tmp_path, *SPARK, "--apply").exit_code == 1
    assert everything(tmp_path) == before


@pytest.mark.fault("H1")
def test_a_committed_path_that_leaves_the_base_reaches_nothing(tmp_path: Path) -> None:
    """A path through ``..`` is compared with the listing and never opened: it is one that is missing (H1)."""
    base, victim = tmp_path / "base", tmp_path / "victim"
    tree(base)
    put(victim, b"0123456789")
    log(base, "2", entry(base, "../victim", 10))
    items = told_json("recover", base, *SPARK, code=1)["plan"]["items"]
    assert [(item["kind"], item["action"]) for item in items if item["path"] == "../victim"] == [("missing", "leave")]
    told("recover", base, *SPARK, "--apply", code=1)
    assert victim.read_bytes() == b"0123456789"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"v1x\n",
        b"V1\n",
        b"v1\n{",
        b"v1\nnull",
        b"v1\n[]",
        b'v1\n{"path":"file:///x","path":"file:///y","size":1,"modificationTime":1,"action":"add"}',
        b'v1\n{"path":"file:///x","size":-1,"modificationTime":1,"action":"add"}',
        b'v1\n{"path":"file:///x","size":NaN,"modificationTime":1,"action":"add"}',
        b'v1\n{"path":"file:///x","size":1e3,"modificationTime":1,"action":"add"}',
        b'v1\n{"path":"file:///x","size":' + b"9" * 5000 + b',"modificationTime":1,"action":"add"}',
        b'v1\n{"path":"file:///x","size":1,"modificationTime":1,"action":"forget"}',
        b'v1\n{"path":"\\ud800","size":1,"modificationTime":1,"action":"add"}',
        b"v1\n" + b"[" * 100_000,
        b'v1\n{"path":' + b'{"a":' * 100_000,
        b"v1\n\xff\xfe",
    ],
)
def test_a_damaged_log_is_refused(tmp_path: Path, data: bytes) -> None:
    """Whatever is in the log: one error that names the file, no traceback, nothing changed (M5)."""
    tree(tmp_path)
    put(tmp_path / "_spark_metadata" / "2", data)
    before = everything(tmp_path)
    result = run("recover", tmp_path, *SPARK, "--apply")
    assert (result.exit_code, result.exception.__class__) == (1, SystemExit)
    assert "_spark_metadata/2" in result.stderr
    assert everything(tmp_path) == before


def test_a_newer_log_is_refused() -> None:
    """An unknown format is not guessed at (M3)."""
    with pytest.raises(SnapshotVersionError):
        read_log({"0": b"v2\n"})


@pytest.mark.parametrize("names", [[], ["junk"], ["1"], ["0", "2"], ["9.compact", "11"], ["0", "1", "3"], [".0.crc"]])
def test_a_log_with_a_hole_is_refused(names: list[str]) -> None:
    """A batch that is missing may have committed any file."""
    with pytest.raises(SnapshotCorrupt):
        log_files(names)


def test_the_log_begins_with_its_newest_compacted_file() -> None:
    """Older files beside it say nothing any more; whatever is no batch is passed over."""
    names = ["0", "9.compact", "19.compact", "20", "18", ".20.crc", "21", "019", "21.tmp", ".22.0f.tmp"]
    assert log_files(names) == ["19.compact", "20", "21"]


def test_a_tree_without_a_log_is_not_sparks(tmp_path: Path) -> None:
    """Without one everything would look as if it were not committed; a log that is a link is none."""
    put(tmp_path / part(0), b"0123456789")
    assert run("recover", tmp_path, *SPARK, "--apply").exit_code == 2
    other = tmp_path / "other"
    tree(other)
    os.rename(other / "_spark_metadata", tmp_path / "log")  # noqa: PTH104 - as an attacker would.
    (other / "_spark_metadata").symlink_to(tmp_path / "log")
    assert run("recover", other, *SPARK, "--apply").exit_code != 0
    assert (other / STRAY).exists()


def test_a_young_log_is_refused(tmp_path: Path) -> None:
    """The files of a batch that is being written are not committed yet: a query that may run is left alone."""
    tree(tmp_path)
    (tmp_path / "_spark_metadata" / "2").write_bytes(b"v1")
    result = run("recover", tmp_path, *SPARK, "--apply")
    assert (result.exit_code, "may be running" in result.stderr) == (1, True)
    assert (tmp_path / STRAY).exists()


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.fault("H6")
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_any_call_and_run_again_it_ends_the_same(tmp_path: Path, when: Any) -> None:
    """Whatever system call it dies at, the same command ends the work (H6); a glob sees the stray under no name."""
    for number in itertools.count(1):
        base = tmp_path / f"{number}"
        tree(base)
        killer = KillAt(number, when, only=CHANGING_CALLS)
        code = in_child(partial(adopt_all, base, killer))
        assert code in {0, -signal.SIGKILL}
        adopt_all(base)
        assert quarantined(base) == [f"day=a b/.part-00001-{UUID}.c000.snappy.parquet.crc", HIDDEN], f"call {number}"
        assert [path.name for path in base.glob("**/*.parquet")] == []
        if code == 0:
            assert number > 5
            return


@pytest.mark.fault("H2")
def test_a_stray_with_a_name_elsewhere_is_left(tmp_path: Path) -> None:
    """A hard link may be another program's file (H2)."""
    base = tmp_path / "base"
    tree(base)
    os.link(base / STRAY, tmp_path / "elsewhere")
    (item,) = told_json("recover", base, *SPARK, code=1)["plan"]["items"]
    assert (item["action"], "another name" in item["why"]) == ("leave", True)


def adopt_all(base: Path, interceptor: Any = None) -> None:
    with LocalStore(str(base), calls=intercept(PosixCalls(), interceptor) if interceptor else None) as store:
        plan = plan_adoption(store, str(base), AdoptionOptions(layout="spark"), lambda _files: None)
        assert adopt(plan, store, str(base), NOW_MS).failed == ()
