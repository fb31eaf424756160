"""``partfile savepoint create`` and ``dispose``: of a sink that does not run, by the code that the sink itself uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from partfile.errors import RecoveryRefused
from partfile.recovery.inspect.places import Place, jobs_in
from partfile.recovery.ownership import open_stores
from partfile.recovery.recover import RecoveryOptions
from partfile.recovery.savepoints import create_savepoint, plan_creation
from partfile.snapshot.savepoints import reserve_savepoint
from partfile.stores.local.store import LocalStore
from support.processes.command_line import run, told, told_json
from support.sinks.life_cycle import (
    assert_exactly_once,
    batch,
    continue_to,
    everything,
    finished_files,
    long_sink,
    rows_of,
    seed_with_a_tail,
)
from support.sinks.recovery import age


def seeded(tmp_path: Path) -> Path:
    base = tmp_path / "out"
    seed_with_a_tail(base)
    age(base)
    return base


def test_a_savepoint_holds_where_the_sink_stands(tmp_path: Path) -> None:
    """Everything is published first; a fresh sink that is restored from it goes on there, and so does the old one."""
    base = seeded(tmp_path)
    target = tmp_path / "savepoints"
    before = everything(tmp_path)
    told("savepoint", "create", base, "--to", target, code=1)
    assert everything(tmp_path) == before
    location = told_json("savepoint", "create", base, "--to", target, "--apply")["location"]
    assert sum(rows_of(finished_files(base)).values()) == 4
    assert told_json("savepoint", "show", location)["job"] == "life"
    with long_sink(tmp_path / "fresh", restore_from=location).local() as out:
        assert out.position == 4
        out.write(batch(4, 2), position=6)
    assert continue_to(long_sink(base, restore_from=location), 9) == 4
    assert_exactly_once(base, 9)


@pytest.mark.fault("H4")
def test_no_savepoint_beside_a_live_job(tmp_path: Path) -> None:
    """A sink that moved a moment ago is refused without --fence, and nothing is made."""
    base = tmp_path / "out"
    seed_with_a_tail(base)
    before = everything(tmp_path)
    refused = run("savepoint", "create", base, "--to", tmp_path / "savepoints", "--apply")
    assert refused.exit_code == 1
    assert "--fence" in refused.stderr
    assert everything(tmp_path) == before
    told("savepoint", "create", base, "--to", tmp_path / "savepoints", "--apply", "--fence")


def test_no_savepoint_where_a_part_is_missing(tmp_path: Path) -> None:
    """R12: what cannot be published is in no savepoint; nothing of one is left behind."""
    base = seeded(tmp_path)
    min(base.rglob("*.in-progress")).unlink()
    refused = run("savepoint", "create", base, "--to", tmp_path / "savepoints", "--apply")
    assert refused.exit_code == 1
    assert [*(tmp_path / "savepoints").iterdir()] == []


def test_a_savepoint_over_a_missing_part_says_what_was_given_up(tmp_path: Path) -> None:
    """--accept-missing takes it all the same; document and exit code tell of the rows that are gone."""
    base = seeded(tmp_path)
    min(base.rglob("*.in-progress")).unlink()
    words = ("savepoint", "create", base, "--to", tmp_path / "savepoints", "--accept-missing")
    plan = told_json(*words, code=1)
    assert (plan["published"], plan["given_up"], plan["location"]) == (None, None, None)
    done = told_json(*words, "--apply", code=1)
    assert (done["published"], done["given_up"]) == (1, 1)
    assert told_json("savepoint", "show", done["location"])["job"] == "life"
    assert "GIVEN UP" not in told(*words, "--apply", "--fence"), "what is gone is given up once"


@pytest.mark.fault("H8")
def test_a_plan_of_another_state_is_refused(tmp_path: Path) -> None:
    """H8: the digest is of this sink at this checkpoint."""
    base = seeded(tmp_path)
    words = ("savepoint", "create", base, "--to", tmp_path / "savepoints")
    digest = told_json(*words, code=1)["digest"]
    told("recover", base, "--apply")
    assert run(*words, "--apply", "--plan", digest).exit_code == 1
    assert not (tmp_path / "savepoints").exists()
    told(*words, "--apply", "--plan", told_json(*words, code=1)["digest"])


@pytest.mark.parametrize("words", [("other",), ("life", "--to", "{base}/_partfile/life")])
def test_what_cannot_be_saved(tmp_path: Path, words: tuple[str, ...]) -> None:
    """A uid that is not there, or a place inside the sink's own checkpoints: 2, with nothing changed."""
    base = seeded(tmp_path)
    before = everything(tmp_path)
    uid, *more = (word.format(base=base) for word in words)
    more = more or ["--to", str(tmp_path / "savepoints")]
    assert run("savepoint", "create", base, "--uid", uid, *more, "--apply").exit_code == 2
    assert everything(tmp_path) == before


@pytest.mark.parametrize("words", [(), ("--json",), ("--apply",)])
@pytest.mark.parametrize("target", ["{file}", "{file}/savepoints", "file://{file}"])
def test_a_file_in_the_place_of_the_directory_is_refused_in_the_plan(
    tmp_path: Path, target: str, words: tuple[str, ...]
) -> None:
    """With 1; it says what is there and what to type, and changes nothing. A directory that is not there is made."""
    base, file = seeded(tmp_path), tmp_path / "savepoints"
    file.write_text("a file")
    before = everything(tmp_path)
    refused = run("savepoint", "create", base, "--to", target.format(file=file), *words)
    said = refused.stderr + refused.stdout
    assert refused.exit_code == 1
    assert f"{str(file)!r} is a file, not a directory" in said
    assert "--to DIR" in said
    assert everything(tmp_path) == before
    told("savepoint", "create", base, "--to", tmp_path / "new" / "deeper", code=1)
    assert everything(tmp_path) == before


def test_dispose_shows_first_and_then_deletes_that_one(tmp_path: Path) -> None:
    """Without --apply nothing goes; with it this savepoint alone; run again it has nothing to do."""
    base = seeded(tmp_path)
    words = ("savepoint", "create", base, "--to", tmp_path / "savepoints", "--apply")
    first, second = (told_json(*words)["location"] for _ in range(2))
    digest = told_json("savepoint", "dispose", first, code=1)["digest"]
    assert Path(first).exists()
    assert run("savepoint", "dispose", first, "--apply", "--plan", "0" * 16).exit_code == 1
    assert "deleted " in told("savepoint", "dispose", first, "--apply", "--plan", digest)
    assert not Path(first).exists()
    assert "nothing is at" in told("savepoint", "dispose", first, "--apply")
    assert Path(second, "_metadata").exists()


def test_dispose_deletes_nothing_but_savepoints(tmp_path: Path) -> None:
    """A checkpoint, a bucket and a name that is not there are no savepoints: 2, and all stay."""
    base = seeded(tmp_path)
    before = everything(tmp_path)
    for place in (base / "_partfile" / "life" / "chk-2", base / "bucket=b0", tmp_path / "typo"):
        assert run("savepoint", "dispose", place, "--apply").exit_code == 2
    assert everything(tmp_path) == before


def test_dispose_leaves_files_of_the_user(tmp_path: Path) -> None:
    """H3: what another program has put beside the savepoint's files stays, is named first, and keeps its directory."""
    base = seeded(tmp_path)
    place = Path(told_json("savepoint", "create", base, "--to", tmp_path / "savepoints", "--apply")["location"])
    (place / "notes.txt").write_text("mine")
    assert "leave: notes.txt" in told("savepoint", "dispose", place, code=1)
    told("savepoint", "dispose", place, "--apply")
    assert [path.name for path in place.iterdir()] == ["notes.txt"]
    assert "nothing is at" in told("savepoint", "dispose", place, "--apply")


def test_a_savepoint_that_cannot_be_read_is_called_one(tmp_path: Path) -> None:
    """A damaged one was whole once: it is no rest, and while it is young only --older-than lets it go."""
    base = seeded(tmp_path)
    place = Path(told_json("savepoint", "create", base, "--to", tmp_path / "savepoints", "--apply")["location"])
    metadata = place / "_metadata"
    metadata.write_bytes(metadata.read_bytes()[:-1])
    refused = run("savepoint", "dispose", place, "--apply")
    assert refused.exit_code == 1
    assert "a savepoint that cannot be read, and is young" in refused.stderr
    assert metadata.exists()
    age(place)
    assert "delete the unreadable savepoint" in told("savepoint", "dispose", place, code=1)
    told("savepoint", "dispose", place, "--apply")
    assert not place.exists()


def test_a_savepoint_of_a_newer_partfile_is_refused(tmp_path: Path) -> None:
    """It may be whole, and only what wrote it can tell: nothing is deleted, whatever its age."""
    base = seeded(tmp_path)
    place = Path(told_json("savepoint", "create", base, "--to", tmp_path / "savepoints", "--apply")["location"])
    metadata = place / "_metadata"
    schema, _, rest = metadata.read_bytes().partition(b" savepoint ")
    metadata.write_bytes(schema + b" savepoint 99 " + rest.partition(b" ")[2])
    age(place)
    before = everything(place)
    refused = run("savepoint", "dispose", place, "--apply", "--older-than", "1s")
    assert refused.exit_code == 1
    assert "for the partfile that wrote it" in refused.stderr
    assert everything(place) == before


def test_dispose_leaves_a_savepoint_that_is_being_written(tmp_path: Path) -> None:
    """Before its metadata it cannot be told from what a crash left, but by its age."""
    place = tmp_path / reserve_savepoint(LocalStore(str(tmp_path)), "life")
    refused = run("savepoint", "dispose", place, "--apply")
    assert refused.exit_code == 1
    assert "--older-than" in refused.stderr
    assert place.exists()
    age(place)
    told("savepoint", "dispose", place, "--apply")
    assert not place.exists()


@pytest.mark.fault("H8")
def test_a_sink_that_moves_on_after_the_plan_is_left(tmp_path: Path) -> None:
    """H8: the sink is not taken over for another state than was printed, and nothing is made."""
    base, target = seeded(tmp_path), tmp_path / "savepoints"
    place = Place(str(base))
    with open_stores(place) as stores:
        (job,) = jobs_in(stores.checkpoints)
        plan = plan_creation(place, job, str(target), RecoveryOptions(), stores)
    told("recover", base, "--apply")
    before = everything(base)
    with pytest.raises(RecoveryRefused):
        create_savepoint(plan, place, job, 1)
    assert everything(base) == before
    assert [*target.iterdir()] == []


def test_an_empty_directory_of_a_savepoint_goes(tmp_path: Path) -> None:
    """What a crash left before its first file is listed as unfinished, and disposed of; the list is clean then."""
    (tmp_path / "savepoint-s1-0123456789ab").mkdir()
    assert run("savepoint", "list", tmp_path).exit_code == 1
    told("savepoint", "dispose", tmp_path / "savepoint-s1-0123456789ab", "--apply", "--older-than", "0s")
    assert list(tmp_path.iterdir()) == []
    assert run("savepoint", "list", tmp_path).exit_code == 0
