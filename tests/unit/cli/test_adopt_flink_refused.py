"""``recover --adopt-layout flink``: what is refused, and what a command leaves that is killed."""

from __future__ import annotations

import shutil
import signal
from functools import partial
from typing import TYPE_CHECKING

import pytest
from changing import quarantined
from command_line import run, told, told_json
from flink_trees import FLINK, MOVE_OPEN, killed_job, put, rows, visible, write_utf
from life_cycle import everything, in_child

from partfile.errors import Fenced, RecoveryRefused
from partfile.recovery.adopt.apply import adopt, plan_adoption
from partfile.recovery.adopt.plan import AdoptionOptions
from partfile.stores.local.posix import CHANGING_CALLS, PosixCalls
from partfile.stores.local.store import LocalStore
from partfile.testing.faults import KillAt, Recorder, intercept

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

NOW_MS = 4_000_000_000_000


def adopt_all(base: Path, interceptor: Any = None, **options: Any) -> None:
    with LocalStore(str(base), calls=intercept(PosixCalls(), interceptor) if interceptor else None) as store:
        plan = plan_adoption(store, str(base), AdoptionOptions(layout="flink", **options), lambda _files: None)
        assert adopt(plan, store, str(base), NOW_MS).failed == ()


def test_a_young_tree_is_refused(tmp_path: Path) -> None:
    """A job that may be running is left alone unless somebody says that it is stopped."""
    killed_job(tmp_path)
    (tmp_path / "d=2" / "_part-0-3.in-progress").write_bytes(rows(60, 64))
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


@pytest.mark.drawn(1)
@pytest.mark.fault("H6")
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_any_call_and_run_again_it_ends_the_same(tmp_path: Path, when: Any) -> None:
    """Whatever system call it dies at, the same command ends the work, and no row is lost, doubled or changed (H6)."""
    seed, asked = tmp_path / "seed", {"publish_pending": True, "quarantine_in_progress": True}
    killed_job(seed)
    put(seed / "d=2" / "_part-1-7.in-progress", rows(60, 62))
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
