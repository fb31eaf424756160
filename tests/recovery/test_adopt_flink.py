"""``recover --adopt-layout flink``: what a BucketingSink has left, told and mended without losing a byte."""

from __future__ import annotations

import os
import shutil
import signal
from functools import partial
from time import time
from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pytest

import partfile as pf
from partfile.cli.recover import adoption_options
from partfile.errors import ConfigError, Fenced, RecoveryRefused, SnapshotCorrupt
from partfile.recovery.adopt.apply import adopt, plan_adoption
from partfile.recovery.adopt.flink_names import FlinkNames
from partfile.recovery.adopt.plan import AdoptionOptions
from partfile.stores.local.posix import CHANGING_CALLS, PosixCalls
from partfile.stores.local.store import LocalStore
from partfile.stores.parts import rewritten
from partfile.testing.faults import KillAt, Recorder, intercept
from support.files.trees import FLINK, MOVE_OPEN, flink_rows, killed_job, put, visible, write_utf
from support.processes.command_line import run, told, told_json
from support.sinks.life_cycle import everything, in_child
from support.sinks.recovery import quarantined

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any


# ``recover --adopt-layout flink``: what a BucketingSink has left, told honestly and mended without losing a byte.


def actions(base: Path, *words: str) -> dict[str, str]:
    """What would become of each file."""
    document = told_json("recover", base, *FLINK, *words, code=1)
    return {item["path"]: item["action"] for item in document["plan"]["items"]}


def test_each_file_has_a_verdict_and_nothing_is_changed(tmp_path: Path) -> None:
    """Without --apply the plan is told, twice the same, and not a byte changes."""
    killed_job(tmp_path)
    before = everything(tmp_path)
    assert actions(tmp_path) == {
        "d=1/part-0-1": "cut",
        "d=1/_part-1-0.pending": "publish",
        "d=2/_part-0-2.pending": "leave",
        "d=2/_part-0-3.in-progress": "leave",
    }
    first, second = (told("recover", tmp_path, *FLINK, code=1) for _ in range(2))
    assert first == second
    assert "1 files are finished" in first
    assert "is known to Flink's state alone" in first
    assert everything(tmp_path) == before


def test_what_is_vouched_for_is_cut_and_published(tmp_path: Path) -> None:
    """Valid lengths are kept to; pending and open parts stay until asked for, and are then whole in their new place."""
    killed_job(tmp_path)
    told("recover", tmp_path, *FLINK, "--apply", code=1)
    assert visible(tmp_path) == {
        "d=1/part-0-0": flink_rows(0, 20),
        "d=1/part-0-1": flink_rows(20, 40),
        "d=1/part-1-0": flink_rows(40, 50),
    }
    # It has just changed the tree itself.
    told("recover", tmp_path, *FLINK, "--apply", "--publish-pending", MOVE_OPEN, "--fence")
    assert b"".join(visible(tmp_path)[path] for path in sorted(visible(tmp_path))) == flink_rows(0, 60)
    assert quarantined(tmp_path) == [
        "d=1/.part-0-1.crc",
        "d=1/_part-0-1.valid-length",
        "d=1/_part-1-0.valid-length",
        "d=2/_part-0-3.in-progress",
    ]
    assert (tmp_path / "d=2" / "notes.txt").read_bytes() == b"not Flink's"
    assert told_json("recover", tmp_path, *FLINK, "--apply")["adopted"] is None


def test_any_reader_reads_what_was_adopted(tmp_path: Path) -> None:
    """After it no file needs a sidecar: a reader that knows none sees whole rows alone."""
    killed_job(tmp_path)
    (tmp_path / "d=2" / "notes.txt").unlink()
    told("recover", tmp_path, *FLINK, "--apply", "--publish-pending", MOVE_OPEN)
    table = ds.dataset(str(tmp_path), format=ds.CsvFileFormat()).to_table()
    assert table.num_rows == 60 - 4  # each file's first row is its header here


def test_flinks_sidecars_are_honoured_as_they_are(tmp_path: Path) -> None:
    """A tree that is not mended is read up to its valid lengths by a reader that knows whose sidecars they are."""
    killed_job(tmp_path)
    (tmp_path / "d=2" / "notes.txt").unlink()
    (tmp_path / "d=1" / "_part-1-0.valid-length").unlink()
    files = pf.valid_length_filesystem(str(tmp_path), sidecars=pf.FlinkSidecars())
    assert files.cat_file(f"{tmp_path}/d=1/part-0-1") == flink_rows(20, 40)
    with pytest.raises(SnapshotCorrupt):
        pf.valid_length_filesystem(str(tmp_path)).cat_file(f"{tmp_path}/d=1/part-0-1")


@pytest.mark.parametrize("content", [b"100", b"\0\x03100 ", b"\0\x02100", b"\0\x04-100", b"", b"\0\0", b"\0\x0400100"])
def test_a_damaged_sidecar_is_left_with_its_part(tmp_path: Path, content: bytes) -> None:
    """Where the end of a part is unknown neither is touched, and both are told."""
    put(tmp_path / "part-0-1", flink_rows(0, 30))
    put(tmp_path / "_part-0-1.valid-length", content)
    assert actions(tmp_path) == {"part-0-1": "leave", "_part-0-1.valid-length": "leave"}
    before = everything(tmp_path)
    told("recover", tmp_path, *FLINK, "--apply", code=1)
    assert everything(tmp_path) == before


def test_a_part_shorter_than_its_valid_length_is_told_and_left(tmp_path: Path) -> None:
    """Missing data is never published as if it were whole."""
    put(tmp_path / "part-0-1", flink_rows(0, 3))
    put(tmp_path / "_part-0-1.valid-length", write_utf("100"))
    put(tmp_path / "_part-0-2.pending", flink_rows(0, 3))
    put(tmp_path / "_part-0-2.valid-length", write_utf("100"))
    assert set(actions(tmp_path, "--publish-pending").values()) == {"leave"}
    assert "data is missing" in told("recover", tmp_path, *FLINK, code=1)


@pytest.mark.parametrize("name", ["part-0-1", "_part-0-1.pending", "_part-0-1.in-progress"])
@pytest.mark.parametrize("size", [30, 8, 0])
def test_a_file_that_got_a_used_name_again_is_not_cut(tmp_path: Path, name: str, size: int) -> None:
    """Flink probes for parts, not for sidecars: a file younger than its sidecar is another one, and stays whole."""
    put(tmp_path / "_part-0-1.valid-length", write_utf("50"))
    put(tmp_path / name, flink_rows(0, size))
    newer = time() - 86_400
    os.utime(tmp_path / name, (newer, newer))
    before = everything(tmp_path)
    assert actions(tmp_path) == {name: "leave"}
    told("recover", tmp_path, *FLINK, "--apply", "--publish-pending", code=1)
    assert everything(tmp_path) == before
    assert "may have used the name again" in " ".join(told("recover", tmp_path, *FLINK, code=1).split())


def test_an_open_part_stays_for_flinks_own_restart(tmp_path: Path) -> None:
    """Flink's last checkpoint may vouch for its beginning, and Flink could not publish it from the quarantine."""
    put(tmp_path / "part-0-0", flink_rows(0, 20))
    put(tmp_path / "_part-0-1.in-progress", flink_rows(20, 40))
    before = everything(tmp_path)
    assert "Flink's state alone knows" in told("recover", tmp_path, *FLINK, "--apply", code=1)
    assert everything(tmp_path) == before


def test_nothing_is_ever_replaced(tmp_path: Path) -> None:
    """A staged part whose name is taken stays where it is, or goes to the quarantine; the finished one stays."""
    put(tmp_path / "part-0-1", flink_rows(0, 3))
    put(tmp_path / "_part-0-1.pending", flink_rows(50, 60))
    put(tmp_path / "part-0-2", flink_rows(3, 6))
    put(tmp_path / "_part-0-2.in-progress", flink_rows(60, 70))
    told("recover", tmp_path, *FLINK, "--apply", "--publish-pending", MOVE_OPEN, code=1)
    assert visible(tmp_path) == {"part-0-1": flink_rows(0, 3), "part-0-2": flink_rows(3, 6)}
    assert (tmp_path / "_part-0-1.pending").read_bytes() == flink_rows(50, 60)
    assert quarantined(tmp_path) == ["_part-0-2.in-progress"]


def test_a_finished_part_is_not_cut_while_another_file_has_its_staged_name(tmp_path: Path) -> None:
    """Cutting goes through the pending name, which is a foreign file's here: the finished file stays as it is."""
    put(tmp_path / "part-0-1", flink_rows(0, 30))
    put(tmp_path / "_part-0-1.valid-length", write_utf("50"))
    put(tmp_path / "_part-0-1.pending", flink_rows(50, 60))
    assert actions(tmp_path, "--publish-pending")["part-0-1"] == "leave"
    told("recover", tmp_path, *FLINK, "--apply", "--publish-pending", code=1)
    assert visible(tmp_path) == {"part-0-1": flink_rows(0, 30)}
    assert (tmp_path / "_part-0-1.valid-length").read_bytes() == write_utf("50")


@pytest.mark.fault("H2")
def test_a_file_with_a_name_elsewhere_is_not_cut(tmp_path: Path) -> None:
    """A hard link may be another program's file: not a byte of it changes."""
    base = tmp_path / "base"
    put(base / "part-0-1", flink_rows(0, 30))
    put(base / "_part-0-1.valid-length", write_utf("50"))
    os.link(base / "part-0-1", tmp_path / "elsewhere")
    assert actions(base)["part-0-1"] == "leave"
    told("recover", base, *FLINK, "--apply", code=1)
    assert (tmp_path / "elsewhere").read_bytes() == flink_rows(0, 30)


@pytest.mark.fault("H2")
def test_links_and_pipes_in_a_parts_place_are_passed_over(tmp_path: Path) -> None:
    """What is no regular file is not opened, not moved, and blocks nothing."""
    base, victim = tmp_path / "base", tmp_path / "victim"
    put(victim, flink_rows(0, 9))
    base.mkdir()
    (base / "_part-0-1.in-progress").symlink_to(victim)
    (base / "part-0-2").symlink_to(victim)
    os.mkfifo(base / "_part-0-3.pending")
    os.mkfifo(base / "_part-0-2.valid-length")
    (base / "_part-0-4.pending").mkdir()
    told("recover", base, *FLINK, "--apply", "--publish-pending")
    assert victim.read_bytes() == flink_rows(0, 9)
    assert (base / "_part-0-1.in-progress").is_symlink()
    assert quarantined(base) == []


def test_parts_of_partfile_are_none_of_flinks(tmp_path: Path) -> None:
    """A sink that writes to the same base is left alone, however its checkpoint log's id looks."""
    token = "0123456789abcdef" * 2
    for name in (
        "part-12345678-0-4.json",
        f"_part-12345678-0-4.json.{token}.pending",
        "_part-12345678-0-4.valid-length",
    ):
        put(tmp_path / name, b"{}\n")
    assert told_json("recover", tmp_path, *FLINK)["plan"]["ignored"]["files"] == 3


def test_where_files_can_only_be_moved_the_rest_is_told(tmp_path: Path) -> None:
    """A file system of fsspec cuts no file of others: what would need it is left with the reason."""
    killed_job(tmp_path)
    url = f"dir::file://{tmp_path}"
    items = told_json("recover", url, *FLINK, MOVE_OPEN, code=1)["plan"]["items"]
    assert sorted(item["action"] for item in items) == ["leave", "leave", "leave", "quarantine"]
    told("recover", url, *FLINK, MOVE_OPEN, "--apply", code=1)
    assert quarantined(tmp_path) == ["d=2/_part-0-3.in-progress"]
    assert visible(tmp_path)["d=1/part-0-1"] == flink_rows(20, 40) + b"tail of a dead attempt"


def test_what_a_store_that_copies_has_left_is_gone_on_with(tmp_path: Path) -> None:
    """After a crash the copy may be all there is of a part: it is published; what is left of another one is moved."""
    part = FlinkNames().part("", "part-0-1", 50)
    put(tmp_path / rewritten(part).pending, flink_rows(0, 10))
    put(tmp_path / "_part-0-1.valid-length", write_utf("50"))
    put(tmp_path / "part-0-2", flink_rows(10, 20))
    put(tmp_path / f"_part-0-2.pending.{'0' * 32}", flink_rows(10, 20) + b"tail")
    assert actions(tmp_path) == {
        rewritten(part).pending: "publish",
        f"_part-0-2.pending.{'0' * 32}": "quarantine",
    }
    told("recover", tmp_path, *FLINK, "--apply")
    assert visible(tmp_path) == {"part-0-1": flink_rows(0, 10), "part-0-2": flink_rows(10, 20)}
    (tmp_path / "part-0-1").unlink()
    put(tmp_path / "_part-0-1.valid-length", write_utf("50"))
    put(tmp_path / rewritten(part).pending, flink_rows(0, 9))
    assert actions(tmp_path)["_part-0-1.valid-length"] == "leave"


# ``recover --adopt-layout flink``: what is refused, and what a command leaves that is killed.

NOW_MS = 4_000_000_000_000


def adopt_all(base: Path, interceptor: Any = None, **options: Any) -> None:
    with LocalStore(str(base), calls=intercept(PosixCalls(), interceptor) if interceptor else None) as store:
        plan = plan_adoption(store, str(base), AdoptionOptions(layout="flink", **options), lambda _files: None)
        assert adopt(plan, store, str(base), NOW_MS).failed == ()


def test_a_young_tree_is_refused(tmp_path: Path) -> None:
    """A job that may be running is left alone unless the operator says that it is stopped."""
    killed_job(tmp_path)
    (tmp_path / "d=2" / "_part-0-3.in-progress").write_bytes(flink_rows(60, 64))
    before = everything(tmp_path)
    result = run("recover", tmp_path, *FLINK, "--apply")
    assert result.exit_code == 1
    assert "may be running" in result.stderr
    assert everything(tmp_path) == before
    assert not (tmp_path / "_partfile").exists(), "a refusal has left a directory"
    told("recover", tmp_path, *FLINK, MOVE_OPEN, "--apply", "--fence", code=1)
    assert "d=2/_part-0-3.in-progress" in quarantined(tmp_path)


@pytest.mark.fault("H8")
def test_another_plan_is_refused(tmp_path: Path) -> None:
    """--plan does the plan that was printed, or nothing (H8)."""
    killed_job(tmp_path)
    digest = told_json("recover", tmp_path, *FLINK, code=1)["digest"]
    put(tmp_path / "d=3" / "_part-9-9.in-progress", b"late")
    before = everything(tmp_path)
    result = run("recover", tmp_path, *FLINK, "--apply", "--plan", digest)
    assert (result.exit_code, "is not what would be done any more" in result.stderr) == (1, True)
    assert everything(tmp_path) == before
    put(tmp_path / "d=3" / "_part-9-9.in-progress", b"later")
    with LocalStore(str(tmp_path)) as store:
        plan = plan_adoption(store, str(tmp_path), AdoptionOptions(layout="flink"), lambda _files: None)
        put(tmp_path / "d=3" / "_part-9-9.in-progress", b"latest")
        with pytest.raises(RecoveryRefused):
            adopt(plan, store, str(tmp_path), NOW_MS)


@pytest.mark.fault("H5")
def test_of_two_commands_one_is_refused(tmp_path: Path) -> None:
    """While one adopts a tree, another changes nothing (H5)."""
    killed_job(tmp_path)
    with LocalStore(str(tmp_path)) as first:
        assert first.hold_marker("_partfile/_adoption.marker")
        before = visible(tmp_path)
        with pytest.raises(Fenced):
            adopt_all(tmp_path)
        assert visible(tmp_path) == before
    adopt_all(tmp_path)


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.fault("H6")
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_any_call_and_run_again_it_ends_the_same(tmp_path: Path, when: Any) -> None:
    """Whatever system call it dies at, the same command ends the work, and no row is lost, doubled or changed (H6)."""
    seed, asked = tmp_path / "seed", {"publish_pending": True, "quarantine_in_progress": True}
    killed_job(seed)
    put(seed / "d=2" / "_part-1-7.in-progress", flink_rows(60, 62))
    put(seed / "d=2" / "_part-1-7.valid-length", write_utf("5"))
    recorder = Recorder(only=CHANGING_CALLS)
    shutil.copytree(seed, tmp_path / "counted")
    adopt_all(tmp_path / "counted", recorder, **asked)
    assert recorder.count > 20
    for number in range(1, recorder.count + 1):
        base = tmp_path / f"{number}"
        shutil.copytree(seed, base)
        killer = KillAt(number, when, only=CHANGING_CALLS)
        assert in_child(partial(adopt_all, base, killer, **asked)) == -signal.SIGKILL
        adopt_all(base, **asked)
        assert visible(base) == visible(tmp_path / "counted"), f"call {number}"
        assert len(quarantined(base)) == 5
        shutil.rmtree(base)


def test_options_of_sinks_do_not_go_with_it(tmp_path: Path) -> None:
    """What would be about a sink of partfile's is refused, as is what is only for Flink's without it."""
    for words in (
        (*FLINK, "--uid", "x"),
        ("--publish-pending",),
        (MOVE_OPEN,),
        ("--adopt-layout", "hive"),
        ("--affix", "a=b"),
    ):
        assert run("recover", tmp_path, *words).exit_code == 2


# ``recover --adopt-layout`` while another program changes the tree: each file is looked at once more before its turn.


@pytest.mark.fault("H8")
@pytest.mark.parametrize("late", ["d=1/_part-1-0.pending", "d=2/_part-0-2.pending", "d=2/_part-0-3.in-progress"])
def test_a_file_that_grows_while_others_are_done_is_left(tmp_path: Path, late: str) -> None:
    """It is not what was planned, so not a byte of it changes; the others are done, and the report names it."""
    killed_job(tmp_path)
    options = AdoptionOptions(layout="flink", publish_pending=True, quarantine_in_progress=True)
    grown = (tmp_path / late).read_bytes() + b"late rows"

    def grow(_items: int) -> None:
        (tmp_path / late).write_bytes(grown)

    with LocalStore(str(tmp_path)) as store:
        plan = plan_adoption(store, str(tmp_path), options, lambda _files: None)
        others = [item.path for item in plan.to_do][1:]
        assert late in others
        done = adopt(plan, store, str(tmp_path), NOW_MS, grow)
    assert [one.path for one in done.failed] == [late]
    assert (tmp_path / late).read_bytes() == grown
    assert done.published + done.cut + len(quarantined(tmp_path)) > 2


# The names of Flink's files: read as they are made, and with other affixes where those are told.


def test_affixes_can_be_told(tmp_path: Path) -> None:
    """A sink that called its files otherwise is understood when that is said, and not before."""
    put(tmp_path / "out-0-1.csv.waiting", b"")
    put(tmp_path / ".out-0-2.csv.waiting", flink_rows(0, 3))
    assert told_json("recover", tmp_path, *FLINK)["plan"]["items"] == []
    words = ("--affix", "part-prefix=out", "--affix", "pending-prefix=.", "--affix", "pending-suffix=.waiting")
    assert actions(tmp_path, *words) == {".out-0-2.csv.waiting": "leave"}
    told("recover", tmp_path, *FLINK, *words, "--publish-pending", "--apply")
    assert (tmp_path / "out-0-2.csv").read_bytes() == flink_rows(0, 3)


@pytest.mark.parametrize(
    "pair", ["pending-suffix", "colour=red", "pending-prefix=", "pending-suffix=.in-progress", "pending-prefix=_/x"]
)
def test_affixes_that_tell_nothing_apart_are_refused(pair: str) -> None:
    """Unknown, visible or equal names could make a finished file of a staged one."""
    with pytest.raises(ConfigError):
        adoption_options("flink", [pair], publish_pending=False, quarantine_in_progress=False)


@pytest.mark.parametrize("role", ["in-progress", "pending", "sidecar", "finished"])
@pytest.mark.parametrize("name", ["part-0-0", "part-11-12.json", "part-0-3.pending", "part-1-2_x"])
def test_names_are_read_as_they_are_made(role: Any, name: str) -> None:
    """What a file of a part is called says whose it is and what."""
    names = FlinkNames()
    found = names.role_of(names.name_of(role, name))
    assert found is not None
    assert (found.role, found.final_name) == (role, name)
