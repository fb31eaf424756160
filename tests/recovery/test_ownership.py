"""Whose sink it is: live sinks, several sinks below one base, and a plan that is done as it was meant."""

from __future__ import annotations

import json
import os
import shutil
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import partfile.cli.recover as recovering
from partfile.recovery import clean as cleaning
from partfile.recovery.ownership import taken_over
from partfile.recovery.recover import recover
from support.processes.command_line import run, told, told_json, told_lines
from support.sinks.life_cycle import (
    assert_exactly_once,
    batch,
    everything,
    in_child,
    long_sink,
    seed_with_a_tail,
    staged_files,
)
from support.sinks.recovery import age, planned_recovery, seed_with_orphans

if TYPE_CHECKING:
    from pathlib import Path


# Whether a sink lives is seen by more than the age of its checkpoints (H4).


@pytest.mark.fault("H4")
@pytest.mark.parametrize("verb", [("recover",), ("clean",), ("savepoint", "create")], ids=" ".join)
def test_a_part_that_is_held_proves_a_job(tmp_path: Path, verb: tuple[str, ...]) -> None:
    """However old the newest checkpoint is, a sink in plain Python that is writing is not fenced without --fence."""
    base = tmp_path / "out"
    seed_with_orphans(base)
    words = (*verb, base, "--apply", *(("--to", tmp_path / "savepoints") if verb[0] == "savepoint" else ()))
    out = long_sink(base).local().open()
    out.write(batch(4, 4), position=8)
    out.checkpoint()
    out.write(batch(8, 2), position=10)
    age(base)
    refused = run(*words)
    assert refused.exit_code == 1
    assert "a task is writing its part 'bucket=b" in refused.stderr
    assert "--fence" in refused.stderr
    out.checkpoint()
    out.close()
    age(base)
    told(*words)
    told("recover", base, "--apply")
    assert_exactly_once(base, 10)


# Several sinks below one base: what is wrong with one of them is told, and holds up no other.

_UIDS = "abc"


def seed(tmp_path: Path) -> Path:
    """Three dead sinks, each with orphans of a first run and with open parts that its last checkpoint vouches for."""
    base = tmp_path / "out"

    def die(first: int) -> None:
        for uid in _UIDS:
            out = long_sink(base, uid=uid).local().open()
            out.write(batch(1, 2), position=2)  # The later bucket first.
            if first:
                out.checkpoint()
        os._exit(0)

    for first in (0, 1):
        assert in_child(partial(die, first)) == 0
        age(base)
    return base


def damage(base: Path, uid: str = "b") -> None:
    """Make the newest checkpoint of a sink unreadable."""
    metadata_files = (base / "_partfile" / uid).glob("chk-*/_metadata")
    max(metadata_files, key=lambda metadata: int(metadata.parent.name.removeprefix("chk-"))).write_bytes(b"garbage")


def test_a_sink_whose_parts_are_gone_does_not_hold_up_the_others(tmp_path: Path) -> None:
    """Each sink is tried; the document and the exit code tell of the one that failed."""
    base = seed(tmp_path)
    lost = planned_recovery(base, "b").jobs[0].parts[0].path.rpartition("/")[2]
    for staged in [path for path in base.rglob("*.in-progress") if lost in path.name]:
        staged.unlink()  # One of them is an orphan of the first run that would have had the same final name.
    report = told_json("recover", base, "--apply", code=1)
    assert [one["job"] for one in report["recovered"]] == ["a", "c"]
    assert [(one["job"], one["problem"]["error"]) for one in report["failed"]] == [("b", "PartMissing")]
    assert [one.job for one in planned_recovery(base).jobs] == ["b"]


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (OSError(5, "broken"), 3)])
def test_what_was_recovered_is_told_however_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    """Interrupted at the second sink: the document has the first one as recovered, and names those that are left."""
    base = seed(tmp_path)

    def interrupted(plan: Any, place: Any, job: Any, now_ms: int, **more: Any) -> Any:
        if job.name == "b":
            raise error
        return recover(plan, place, job, now_ms, **more)

    monkeypatch.setattr(recovering, "recover", interrupted)
    report = told_json("recover", base, "--apply", code=code)
    assert [one["job"] for one in report["recovered"]] == ["a"]
    assert report["unfinished"] == ["b", "c"]
    assert "not recovered to their end: sinks b, c" in run("recover", base, "--apply", "--fence").stderr
    monkeypatch.undo()
    assert [one.job for one in planned_recovery(base).jobs] == ["b", "c"]


def test_what_was_taken_over_is_told_when_cleaning_ends_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second sink starts again meanwhile: nothing is taken away, and the document names the one that was fenced."""
    base = seed(tmp_path)

    def rival(settings: Any, job: Any, terms: Any, now_ms: int, **more: Any) -> Any:
        if job.name == "b":
            long_sink(base, uid="b").local().open().close()
        return taken_over(settings, job, terms, now_ms, **more)

    monkeypatch.setattr(cleaning, "taken_over", rival)
    result = run("clean", base, "--older-than", "1h", "--apply", "--json")
    assert result.exit_code == 1
    assert "has gone on since the plan" in result.stderr
    report = json.loads(result.stdout)
    assert report["is_unfinished"] is True
    assert (report["cleaned"]["taken_over"], report["cleaned"]["done"]) == (["a"], 0)
    assert not list(base.rglob("_quarantine"))
    assert "Sinks taken over: a." in run("clean", base, "--older-than", "1h", "--apply", "--fence").stderr


def test_an_unreadable_sink_does_not_hold_up_the_recovery_of_the_others(tmp_path: Path) -> None:
    """The plan names it and what is wrong; --apply publishes the others, ends with 1, and leaves it as it was."""
    base = seed(tmp_path)
    damage(base)
    report = told_json("recover", base, code=1)
    assert [one["job"] for one in report["plan"]["jobs"]] == ["a", "c"]
    assert [(one["job"], one["problem"]["error"]) for one in report["plan"]["failed"]] == [("b", "SnapshotCorrupt")]
    before = everything(base / "_partfile" / "b")
    shown = run("recover", base, "--apply", "--plan", report["digest"])
    assert shown.exit_code == 1
    assert "sink b is left" in shown.stderr
    assert "Hint: " in shown.stderr
    assert shown.stdout.count("parts published") == 2
    assert everything(base / "_partfile" / "b") == before
    assert planned_recovery(base).jobs == ()
    alone = run("recover", base, "--uid", "b")
    assert alone.exit_code == 1
    assert "checkpoint" in alone.stderr


def test_an_unreadable_sink_does_not_hold_up_the_cleaning_of_the_others(tmp_path: Path) -> None:
    """What is an orphan of a readable sink goes; nothing of the other is touched, since what it names is unknown."""
    base = seed(tmp_path)
    orphans = {item["path"]: item["job"] for item in told_json("clean", base, code=1)["plan"]["items"]}
    assert {*orphans.values()} == {*_UIDS}
    damage(base)
    age(base)
    plan = told_json("clean", base, code=1)["plan"]
    assert {item["job"] for item in plan["items"]} == {"a", "c"}
    assert [one["job"] for one in plan["failed"]] == ["b"]
    before = everything(base / "_partfile" / "b")
    shown = run("clean", base, "--apply")
    assert shown.exit_code == 1
    assert "sink b is left" in shown.stderr
    assert everything(base / "_partfile" / "b") == before
    assert {job for path, job in orphans.items() if (base / path).exists()} == {"b"}
    assert run("clean", base, "--uid", "b").exit_code == 1


@pytest.mark.parametrize("verb", ["status", "checkpoints", "list", "verify"])
def test_an_unreadable_sink_does_not_hide_the_others(tmp_path: Path, verb: str) -> None:
    """Verbs that read tell what they know of each sink."""
    base = seed(tmp_path)
    damage(base)
    if verb == "list":
        listed = {one["job"] for one in told_lines(verb, base) if one["is_current"]}
        assert listed == {"a", "c"}
        return
    report = told_json(verb, base, code=1)
    if verb == "status":
        seen = [(one["job"], len(one["stuck"]), one["problem"] is None) for one in report["sinks"]]
        assert seen == [("a", 2, True), ("b", 0, False), ("c", 2, True)]
    elif verb == "checkpoints":
        assert [bool(one["problem"]) for one in report["logs"]] == [False, True, False]
    else:
        assert report["jobs"] == [*_UIDS]
        assert {one["job"] for one in report["findings"] if one["severity"] == "error"} == {"b"}


def test_parts_are_planned_in_one_order(tmp_path: Path) -> None:
    """By their paths, however the state holds them, so that a plan has one digest; and read by a human."""
    base = seed(tmp_path)
    for job in planned_recovery(base).jobs:
        paths = [part.path for part in job.parts]
        assert paths == sorted(paths)
    assert len({told_json("recover", base, code=1)["digest"] for _ in range(2)}) == 1
    told("recover", base, "--apply")
    assert not [path for path in staged_files(base) if not path.endswith(".in-progress")]


# A plan that was meant is done, or nothing is: also where there is nothing to do, and on a copy (H8).


@pytest.mark.parametrize("verb", ["recover", "clean"])
def test_a_plan_is_refused_where_nothing_is_to_do(tmp_path: Path, verb: str) -> None:
    """Neither a digest that was never printed nor one that was done before ends as if it had been done now."""
    base = tmp_path / "out"
    seed_with_orphans(base)
    age(base)
    digest = told_json(verb, base, code=1)["digest"]
    told(verb, base, "--plan", digest, "--apply")
    for meant in (digest, "deadbeefdeadbeef"):
        result = run(verb, base, "--plan", meant, "--apply")
        assert result.exit_code == 1
        assert "nothing to do" in result.stderr
    assert told(verb, base, "--apply").startswith("nothing to")


def test_the_plan_of_a_base_is_not_that_of_its_copy(tmp_path: Path) -> None:
    """A digest names the base, so one that was printed for another place changes nothing here."""
    seed_with_a_tail(tmp_path / "out")
    shutil.copytree(tmp_path / "out", tmp_path / "copy")
    age(tmp_path)
    digest = told_json("recover", tmp_path / "out", code=1)["digest"]
    before = everything(tmp_path / "copy")
    assert run("recover", tmp_path / "copy", "--plan", digest, "--apply").exit_code == 1
    assert everything(tmp_path / "copy") == before
    told("recover", tmp_path / "out", "--plan", digest, "--apply")
