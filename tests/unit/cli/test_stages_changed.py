"""Staged columnar parts and the verbs that change a sink: recover encodes them, clean knows what they are."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING, Any

import pytest
from changing import age, broken_invariants, clean_all, planned_cleaning, planned_recovery, recover_all, save
from command_line import ageless, run, told, told_json
from dead_sinks import crash_when_promised
from dead_stages import die_with_an_unnamed_encode, die_with_open_stages, die_with_rolled_stages, write_tail
from life_cycle import ROWS, batch, continue_to, everything, in_child, staged_files
from staged_streams import STAGED, Stages, finished_rows, names, pending_in, staged_sink, stages_in

from partfile.recovery.clean import _named
from partfile.recovery.inspect.files import read_base
from partfile.recovery.inspect.places import Job, Place
from partfile.recovery.ownership import open_stores, settings_of, taken_over
from partfile.sink.restore import StartTerms
from partfile.stores.local.store import LocalStore
from partfile.writers.parquet import ParquetFormat

if TYPE_CHECKING:
    from pathlib import Path

Make = Any
DEATHS = [die_with_open_stages, die_with_rolled_stages, die_with_an_unnamed_encode]


def orphans_of(base: Path) -> list[str]:
    """What ``clean`` would take away below the base."""
    return sorted(item.path for item in planned_cleaning(base).items if item.kind == "orphan")


def ended(base: Path) -> None:
    """The sink goes on to its end: each row is in one file."""
    assert continue_to(staged_sink(base), ROWS) in {4, 8}
    assert finished_rows(base) == names(0, ROWS)
    assert broken_invariants(base) == []


@pytest.mark.parametrize("die", DEATHS)
def test_the_plan_says_what_is_encoded(tmp_path: Path, die: Make) -> None:
    """Rows and bytes of each stage; the digest is the same each time, and nothing is changed."""
    die(tmp_path)
    before = everything(tmp_path)
    first, second = (told("recover", tmp_path, code=1) for _ in range(2))
    assert ageless(first) == ageless(second)
    assert first.count("encode ") == 2
    assert "of a stage (2 rows) and publish: bucket=b0/part-" in first
    (job,) = planned_recovery(tmp_path).jobs
    assert [(part.is_staged, part.found) for part in job.parts] == [(True, "staged")] * 2
    assert everything(tmp_path) == before


@pytest.mark.parametrize("die", DEATHS)
def test_recover_encodes_and_publishes(tmp_path: Path, die: Make) -> None:
    """Rows up to the valid length are in finished files, no row of a tail is, and the sink goes on."""
    die(tmp_path)
    (done,) = told_json("recover", tmp_path, "--apply", "--fence")["recovered"]
    assert (done["published"], done["rolled"], done["given_up"]) == (2, 0, 0)
    assert finished_rows(tmp_path) == names(0, 4)
    assert broken_invariants(tmp_path) == []
    assert "nothing to recover" in told("recover", tmp_path, "--apply")
    ended(tmp_path)


def test_what_is_promised_is_only_published(tmp_path: Path) -> None:
    """An encoded file that a checkpoint holds is not encoded again."""
    crash_when_promised(tmp_path, **STAGED)
    (job,) = planned_recovery(tmp_path).jobs
    assert job.to_encode == 0
    before = {path.stat().st_ino for path in pending_in(tmp_path)}
    recover_all(tmp_path)
    assert {path.stat().st_ino for path in tmp_path.glob("bucket=*/part-*")} == before
    ended(tmp_path)


def test_progress_counts_encodes_and_publications(tmp_path: Path) -> None:
    """Each stage is two steps: it is encoded, and its file is published."""
    die_with_open_stages(tmp_path)
    steps: list[int] = []
    place, job = Place(str(tmp_path)), Job.of("life")
    assert job is not None
    with taken_over(settings_of(place, job), job, StartTerms(keeps=False, tried=steps.append), 1) as (_, done):
        assert done.published == 2
    assert steps == [1] * 4


def test_stages_that_cannot_be_encoded_now_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sink is taken over, the stages stay rolled, and it ends with 1; the same command ends it later."""
    die_with_open_stages(tmp_path)
    stages = Stages()
    stages.are_readable = False
    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "open_stage", type(stages.open_store(str(tmp_path), {})).open_stage)
        patch.setattr(LocalStore, "_stages", stages, raising=False)
        report = told_json("recover", tmp_path, "--apply", "--fence", code=1)
    assert [(one["published"], one["rolled"]) for one in report["recovered"]] == [(0, 2)]
    assert finished_rows(tmp_path) == {}
    assert "2 parts published" in told("recover", tmp_path, "--apply", "--fence")
    ended(tmp_path)


def test_a_stage_that_is_gone_is_refused_or_given_up(tmp_path: Path) -> None:
    """Refused before anything is changed; with --accept-missing its rows are lost, and counted, and no other's."""
    die_with_open_stages(tmp_path)
    stages_in(tmp_path)[0].unlink()
    before = everything(tmp_path)
    assert "IS UNDER NONE OF ITS NAMES" in told("recover", tmp_path, code=1)
    refused = run("recover", tmp_path, "--apply", "--fence")
    assert refused.exit_code == 1
    assert "--accept-missing" in refused.stderr
    assert everything(tmp_path) == before
    report = told_json("recover", tmp_path, "--apply", "--fence", "--accept-missing", code=1)
    assert [(one["published"], one["given_up"]) for one in report["recovered"]] == [(1, 1)]
    assert finished_rows(tmp_path) == {"row-0001": 1, "row-0003": 1}


def test_a_damaged_stage_is_named_and_the_others_are_encoded(tmp_path: Path) -> None:
    """The error has its path; nothing is lost until somebody moves it away and gives it up."""
    die_with_open_stages(tmp_path)
    damaged = stages_in(tmp_path)[0]
    with damaged.open("r+b") as file:
        file.write(b"\0" * 64)
    refused = run("recover", tmp_path, "--apply", "--fence")
    assert refused.exit_code == 1
    assert f"stage {str(damaged.relative_to(tmp_path))!r} is not what was written" in refused.stdout + refused.stderr
    assert finished_rows(tmp_path) == {"row-0001": 1, "row-0003": 1}
    damaged.unlink()
    told("recover", tmp_path, "--apply", "--fence", "--accept-missing", code=1)
    assert "nothing to recover" in told("recover", tmp_path)


def test_a_stage_that_needs_keys_is_told_before(tmp_path: Path) -> None:
    """The command line has none: the plan says so, and --apply leaves the stages to their sink."""
    options: dict[str, Any] = {"format": ParquetFormat(encryption=no_encryption)}
    die_with_open_stages(tmp_path, **options)
    assert told("recover", tmp_path, code=1).count("CANNOT BE ENCODED HERE: ") == 2
    assert "has no encryption" in run("recover", tmp_path, "--apply", "--fence").stderr
    assert finished_rows(tmp_path) == {}
    assert len(stages_in(tmp_path)) == 2
    assert counted(tmp_path) == {"rolled-stage": 2}


def no_encryption() -> None:
    """What encrypts nothing."""


def counted(base: Path) -> dict[str, int]:
    """How many parts ``status`` counts in each state that has any."""
    (sink,) = told_json("status", base, "--quiet-after", "0s", code=1)["sinks"]
    return {state: total["count"] for state, total in sink["parts"].items() if total["count"]}


def test_a_stage_that_is_too_short_is_told(tmp_path: Path) -> None:
    """It lacks bytes that a checkpoint vouches for."""
    die_with_rolled_stages(tmp_path)
    with stages_in(tmp_path)[0].open("r+b") as file:
        file.truncate(100)
    assert "IS SHORTER THAN THAT" in told("recover", tmp_path, code=1)


def test_going_back_to_an_older_checkpoint_encodes_less(tmp_path: Path) -> None:
    """An open stage goes back to the valid length that it had then; no row comes twice, and the plan says so."""

    def begin() -> None:
        out = staged_sink(tmp_path, retained_checkpoints=9).local().open()
        for first in (0, 4):
            out.write(batch(first, 4), position=first + 4)
            out.checkpoint()
        write_tail(out)
        os._exit(0)

    assert in_child(begin) == 0
    older = tmp_path / "_partfile" / "life" / "chk-2"
    words = ("recover", tmp_path, "--restore-from", older, "--accept-newer")
    plan = told_json(*words, code=1)["plan"]
    assert [(part["is_staged"], part["rows"]) for part in plan["jobs"][0]["parts"]] == [(True, 2)] * 2
    assert plan["jobs"][0]["doubled"] == []
    told(*words, "--apply", "--fence")
    assert finished_rows(tmp_path) == names(0, 4)
    ended(tmp_path)


def test_going_back_tells_what_was_encoded_since(tmp_path: Path) -> None:
    """A stage of then is a finished file by now: it stays, and its later rows come twice."""
    with staged_sink(tmp_path, retained_checkpoints=9).local() as out:
        for first in (0, 4):
            out.write(batch(first, 4), position=first + 4)
            out.checkpoint()
    older = tmp_path / "_partfile" / "life" / "chk-2"
    plan = told_json("recover", tmp_path, "--restore-from", older, "--accept-newer", code=1)["plan"]
    (job,) = plan["jobs"]
    assert sorted(job["doubled"]) == sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("bucket=*/part*"))
    assert job["parts"] == []


def test_a_savepoint_of_a_dead_sink_encodes_first(tmp_path: Path) -> None:
    """It names no staged file: everything is finished before it is written."""
    base = tmp_path / "out"
    die_with_open_stages(base)
    location = save(base)
    assert finished_rows(base) == names(0, 4)
    fresh = tmp_path / "fresh"
    assert continue_to(staged_sink(fresh, restore_from=location), 8) == 4
    assert finished_rows(fresh) == names(4, 8)


@pytest.mark.parametrize("retained", [1, 2])
@pytest.mark.parametrize("die", [die_with_open_stages, die_with_rolled_stages])
def test_a_stage_that_a_checkpoint_names_is_no_orphan(tmp_path: Path, die: Make, retained: int) -> None:
    """However old it is, open or waiting to be encoded, also where no older checkpoint names it as open."""
    die(tmp_path, retained_checkpoints=retained)
    age(tmp_path, days=9)
    assert orphans_of(tmp_path) == []
    assert clean_all(tmp_path, delete=True) is None
    ended(tmp_path)


@pytest.mark.parametrize("die", [die_with_open_stages, die_with_rolled_stages, crash_when_promised])
def test_stores_are_told_every_stage_that_is_named(tmp_path: Path, die: Make) -> None:
    """Where a stage is no file, the store keeps the objects of those that it is told."""
    die(tmp_path, retained_checkpoints=1, **STAGED)
    place = Place(str(tmp_path))
    with open_stores(place) as stores:
        assert stores is not None
        told_of = _named(read_base(place, stores.checkpoints), {})
    paths = {part.path_of(part.in_progress) for part in told_of if part.is_stage}
    assert paths == {str(path.relative_to(tmp_path)) for path in stages_in(tmp_path)}


def test_a_spent_stage_that_a_checkpoint_names_is_no_orphan(tmp_path: Path) -> None:
    """An older checkpoint needs it to go back to; once none names it, it is one."""
    with staged_sink(tmp_path, retained_checkpoints=9).local() as out:
        out.write(batch(0, 4), position=4)
        out.checkpoint()
    age(tmp_path)
    spent = stages_in(tmp_path)
    assert len(spent) == 2
    assert orphans_of(tmp_path) == []
    # A copy of one under a token that no checkpoint knows.
    stray = spent[0].with_name(spent[0].name.replace(spent[0].name.split(".")[2], "d" * 32))
    stray.write_bytes(spent[0].read_bytes())
    age(tmp_path)
    assert orphans_of(tmp_path) == [str(stray.relative_to(tmp_path))]


def test_what_crashes_leave_of_stages_is_cleaned(tmp_path: Path) -> None:
    """A stage that no checkpoint ever named, and files of an encode that none came to name, and nothing else."""

    def die_early() -> None:
        out = staged_sink(tmp_path).local().open()
        out.write(batch(0, 4), position=4)
        os._exit(0)

    assert in_child(die_early) == 0
    early = stages_in(tmp_path)
    die_with_an_unnamed_encode(tmp_path)
    encoded, named = pending_in(tmp_path), [path for path in stages_in(tmp_path) if path not in early]
    assert (len(early), len(encoded), len(named)) == (2, 2, 2)
    age(tmp_path)
    assert orphans_of(tmp_path) == sorted(str(path.relative_to(tmp_path)) for path in (*early, *encoded))
    clean_all(tmp_path, delete=True)
    assert staged_files(tmp_path) == sorted(str(path.relative_to(tmp_path)) for path in named)
    ended(tmp_path)


def test_clean_keeps_what_it_cannot_lease_of_a_stage(tmp_path: Path) -> None:
    """A zombie still holds an orphan stage: it is left and told."""

    def die_early() -> None:
        out = staged_sink(tmp_path).local().open()
        out.write(batch(0, 1), position=1)
        os._exit(0)

    assert in_child(die_early) == 0
    die_with_open_stages(tmp_path)
    age(tmp_path)
    (orphan,) = orphans_of(tmp_path)
    with (tmp_path / orphan).open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        done = clean_all(tmp_path, delete=True)
        assert done is not None
        assert done.busy == (orphan,)
    assert (tmp_path / orphan).exists()
