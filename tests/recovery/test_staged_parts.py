"""Staged columnar parts and the command line: as the verbs show them, and as they change them."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

import partfile as pf
from partfile.recovery.clean import _named
from partfile.recovery.inspect.files import read_base
from partfile.recovery.inspect.places import Job, Place
from partfile.recovery.ownership import open_stores, settings_of, taken_over
from partfile.sink.clock import system_clock_ms
from partfile.sink.restore import RestoreTerms
from partfile.stores.local.store import LocalStore
from partfile.writers.parquet import ParquetFormat
from support.processes.command_line import ageless, run, told, told_json, told_lines
from support.sinks.dead import (
    crash_when_promised,
    die_with_an_unnamed_encode,
    die_with_closed_staging_files,
    die_with_open_staging_files,
    write_tail,
)
from support.sinks.life_cycle import ROWS, batch, continue_to, everything, finished_files, in_child, staged_files
from support.sinks.recovery import (
    age,
    broken_invariants,
    clean_all,
    planned_cleaning,
    planned_recovery,
    recover_all,
    save,
)
from support.sinks.staged_streams import (
    STAGED,
    StagingFiles,
    finished_rows,
    names,
    pending_in,
    staged_sink,
    staging_files_in,
)

if TYPE_CHECKING:
    from pathlib import Path


# Staged columnar parts as the verbs that read show them: status, list, checkpoints, verify and cat.


def stopped(tmp_path: Path) -> Path:
    """A sink that ended cleanly, with two files, and encoded staging files that its older checkpoints name."""
    base = tmp_path / "out"
    with staged_sink(base, retained_checkpoints=3).local() as out:
        out.write(batch(0, 4), position=4)
        out.checkpoint()
    return base


def counts(base: Path, code: int) -> dict[str, int]:
    """How many parts ``status`` counts in each state that has any."""
    (sink,) = told_json("status", base, code=code)["sinks"]
    return {state: total["count"] for state, total in sink["parts"].items() if total["count"]}


def states(base: Path) -> dict[str, int]:
    """How many files ``list`` shows in each state, those of checkpoints left out."""
    found = [one["state"] for one in told_lines("list", base)]
    return {state: found.count(state) for state in set(found)}


def errors(base: Path) -> set[str]:
    """What ``verify`` calls an error."""
    result = run("verify", base, "--json")
    return {one["code"] for one in json.loads(result.stdout)["findings"] if one["severity"] == "error"}


def test_open_staging_files_of_a_dead_sink_are_stuck(tmp_path: Path) -> None:
    """Status counts them, says that they are encoded at their valid length, and names the command."""
    die_with_open_staging_files(tmp_path)
    assert counts(tmp_path, 1) == {"staging-file": 2}
    (sink,) = told_json("status", tmp_path, code=1)["sinks"]
    assert [(part["state"], part["rows"]) for part in sink["stuck"]] == [("staging-file", 2)] * 2
    assert all(part["is_for_recover"] and "encodes its valid bytes" in part["outcome"] for part in sink["stuck"])
    assert "partfile recover" in told("status", tmp_path, code=1)


def test_staging_files_that_wait_for_their_encoding_are_stuck(tmp_path: Path) -> None:
    """They are told from open ones, with the checkpoint that rolled them, and recover mends them."""
    die_with_closed_staging_files(tmp_path)
    assert counts(tmp_path, 1) == {"closed-staging-file": 2}
    (sink,) = told_json("status", tmp_path, code=1)["sinks"]
    assert all("has it closed" in part["why"] and part["is_for_recover"] for part in sink["stuck"])
    assert all(part["age_s"] is not None for part in sink["stuck"])


def test_encoded_staging_files_are_counted_and_nothing_waits_for_them(tmp_path: Path) -> None:
    """After a clean end status finds nothing stuck, and says that no part is unfinished."""
    base = stopped(tmp_path)
    assert counts(base, 0) == {"encoded-staging-file": 2}
    text = told("status", base)
    assert "encoded-staging-file" in text
    assert "unfinished parts      none" in text
    assert "called stuck" not in text


def test_staging_files_of_a_sink_that_runs_are_fine(tmp_path: Path) -> None:
    """While its newest checkpoint is young, none is stuck."""
    with staged_sink(tmp_path, clock=system_clock_ms).local() as out:
        out.write(batch(0, 4), position=4)
        out.checkpoint()
        (sink,) = told_json("status", tmp_path, "--quiet-after", "1h")["sinks"]
        assert sink["parts"]["staging-file"]["count"] == 2
        assert sink["stuck"] == []


@pytest.mark.parametrize(
    ("make", "state"),
    [(die_with_open_staging_files, "staging-file"), (die_with_closed_staging_files, "closed-staging-file")],
    ids=["open", "rolled"],
)
def test_list_shows_staging_files_with_rows_and_valid_length(tmp_path: Path, make: Any, state: str) -> None:
    """Each is a file of its own with what counts of it; --state selects them."""
    make(tmp_path)
    found = told_lines("list", tmp_path, "--state", state)
    assert {one["path"] for one in found} == {str(path.relative_to(tmp_path)) for path in staging_files_in(tmp_path)}
    assert [one["rows"] for one in found] == [2, 2]
    assert all(0 < one["valid_length"] < one["size_bytes"] and one["is_current"] for one in found)
    assert states(tmp_path) == {state: 2}


def test_list_shows_encoded_staging_files_beside_their_files(tmp_path: Path) -> None:
    """They are not current, and the finished files are no staging files."""
    base = stopped(tmp_path)
    assert states(base) == {"finished": 2, "encoded-staging-file": 2}
    assert not any(one["is_current"] for one in told_lines("list", base))


def test_a_staging_file_that_is_gone_is_missing(tmp_path: Path) -> None:
    """List shows it under its own name, verify as missing, and status --scan too; a finished namesake is no help."""
    die_with_open_staging_files(tmp_path)
    gone, other = staging_files_in(tmp_path)
    gone.unlink()
    (missing,) = told_lines("list", tmp_path, "--state", "missing")
    assert missing["path"] == str(gone.relative_to(tmp_path))
    assert errors(tmp_path) == {"part-missing"}
    assert told_json("status", tmp_path, "--scan", code=1)["scan"]["missing"] != []
    final = gone.with_name(f"{gone.name[1:].partition('.parquet')[0]}.parquet")
    shutil.copy(other, final)
    assert errors(tmp_path) == {"part-missing", "published-early"}


def test_a_staging_file_that_is_too_short_is_found(tmp_path: Path) -> None:
    """Bytes that a checkpoint vouches for are gone."""
    die_with_closed_staging_files(tmp_path)
    with staging_files_in(tmp_path)[0].open("r+b") as file:
        file.truncate(100)
    assert errors(tmp_path) == {"part-short"}


def test_encoded_staging_files_may_be_gone(tmp_path: Path) -> None:
    """They are deleted before a checkpoint says so: nothing is missing, and no file is misjudged by their length."""
    base = stopped(tmp_path)
    for path in staging_files_in(base):
        path.unlink()
    assert errors(base) == set()
    assert told_lines("list", base, "--state", "missing") == []


@pytest.mark.parametrize("make", [die_with_open_staging_files, die_with_closed_staging_files, stopped])
def test_a_sink_that_stopped_or_died_breaks_no_invariant(tmp_path: Path, make: Any) -> None:
    """Staging files in every state, with tails or without, are as they have to be."""
    base = make(tmp_path) or tmp_path
    assert errors(base) == set()


def test_an_encoded_file_that_waits_is_a_pending_part(tmp_path: Path) -> None:
    """Its checkpoint is complete and its process died before it was published.

    It is pending, its staging file spent.
    """
    crash_when_promised(tmp_path, **STAGED)
    assert {state: count > 0 for state, count in counts(tmp_path, 1).items()} == {
        "pending": True,
        "encoded-staging-file": True,
    }
    assert errors(tmp_path) == set()
    for path in tmp_path.glob("bucket=*/_*.pending"):
        path.unlink()
    assert errors(tmp_path) == {"part-missing"}


def test_checkpoints_count_staging_files(tmp_path: Path) -> None:
    """Open ones are open parts; those to be encoded and spent ones have numbers of their own."""
    die_with_closed_staging_files(tmp_path, retained_checkpoints=9)
    continue_to(staged_sink(tmp_path, retained_checkpoints=9), 4)
    (log,) = told_json("checkpoints", tmp_path)["logs"]
    facts = [
        (
            checkpoint["kind"],
            checkpoint["open_parts"],
            checkpoint["pending_parts"],
            checkpoint["closed_staging_files"],
            checkpoint["encoded_staging_files"],
        )
        for checkpoint in log["checkpoints"]
    ]
    assert facts[1] == ("checkpoint", 2, 0, 0, 0)
    assert {("takeover", 0, 0, 2, 0), ("checkpoint", 0, 2, 0, 2)} < set(facts)
    assert "ENCODED" in told("checkpoints", tmp_path)


@pytest.mark.parametrize("make", [die_with_open_staging_files, die_with_closed_staging_files])
def test_cat_prints_a_staging_file_up_to_its_valid_length(tmp_path: Path, make: Any) -> None:
    """Rows as JSON lines by its own name and by the name of the file to come, without the tail; --raw its bytes."""
    make(tmp_path)
    path = staging_files_in(tmp_path)[0]
    name = str(path.relative_to(tmp_path))
    final = f"{name.replace('/_', '/').partition('.parquet')[0]}.parquet"
    for called in (name, final):
        lines = [json.loads(line) for line in told("cat", tmp_path, called).splitlines()]
        assert [line["row"] for line in lines] == ["row-0000", "row-0002"]
    (length,) = {one["valid_length"] for one in told_lines("list", tmp_path) if one["path"] == name}
    assert run("cat", tmp_path, name, "--raw").stdout_bytes == path.read_bytes()[:length]


def test_cat_tells_damage_of_a_staging_file(tmp_path: Path) -> None:
    """A staging file whose bytes were changed ends with 1 and its name."""
    die_with_open_staging_files(tmp_path)
    path = staging_files_in(tmp_path)[0]
    with path.open("r+b") as file:
        file.write(b"\0" * 64)
    result = run("cat", tmp_path, str(path.relative_to(tmp_path)))
    assert result.exit_code == 1
    assert f"staging file 'bucket=b0/{path.name}' does not hold" in result.stderr
    assert "unexpected" not in result.stderr


def test_cat_prints_orc_and_avro(tmp_path: Path) -> None:
    """Files of both are printed row by row, as Parquet is."""
    import fastavro  # noqa: PLC0415 - of the tests alone
    from pyarrow import orc, table  # noqa: PLC0415 - loads much

    orc.write_table(table({"id": [1, 2], "row": ["a", None]}), tmp_path / "x.orc")
    schema = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "int"}]}
    with (tmp_path / "x.avro").open("wb") as file:
        fastavro.writer(file, schema, [{"id": 1}, {"id": 2}])
    assert told("cat", tmp_path, "x.orc") == '{"id":1,"row":"a"}\n{"id":2,"row":null}\n'
    assert told("cat", tmp_path, "x.avro") == '{"id":1}\n{"id":2}\n'


def test_cat_says_what_reads_avro(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without fastavro the message has the command that installs it; --raw does not need it."""
    monkeypatch.setitem(__import__("sys").modules, "fastavro", None)
    (tmp_path / "x.avro").write_bytes(b"Obj\x01")
    result = run("cat", tmp_path, "x.avro")
    assert result.exit_code == 2
    assert "pip install 'partfile[avro]'" in result.stderr
    assert run("cat", tmp_path, "x.avro", "--raw").stdout_bytes == b"Obj\x01"


def test_readers_see_no_row_of_a_staging_file(tmp_path: Path) -> None:
    """Also with include="pending": only the file that a staging file was encoded into is promised."""
    die_with_closed_staging_files(tmp_path / "rolled")
    with pytest.raises(pf.ConfigError, match="no finished file"):
        pf.read(tmp_path / "rolled", include="pending")
    crash_when_promised(tmp_path / "promised", **STAGED)
    assert pf.read(tmp_path / "promised", include="pending").count_rows() == 8
    assert finished_files(tmp_path / "promised") == {}


# Staged columnar parts and the verbs that change a sink: recover encodes them, clean knows what they are.

Make = Any
DEATHS = [die_with_open_staging_files, die_with_closed_staging_files, die_with_an_unnamed_encode]


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
    """Rows and bytes of each staging file; the digest is the same each time, and nothing is changed."""
    die(tmp_path)
    before = everything(tmp_path)
    first, second = (told("recover", tmp_path, code=1) for _ in range(2))
    assert ageless(first) == ageless(second)
    assert first.count("encode ") == 2
    assert "of a staging file (2 rows) and publish: bucket=b0/part-" in first
    (job,) = planned_recovery(tmp_path).jobs
    assert [(part.is_staged, part.found) for part in job.parts] == [(True, "staged")] * 2
    assert everything(tmp_path) == before


@pytest.mark.parametrize("die", DEATHS)
def test_recover_encodes_and_publishes(tmp_path: Path, die: Make) -> None:
    """Rows up to the valid length are in finished files, no row of a tail is, and the sink goes on."""
    die(tmp_path)
    (done,) = told_json("recover", tmp_path, "--apply", "--fence")["recovered"]
    assert (done["published"], done["closed_staging_files"], done["given_up"]) == (2, 0, 0)
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
    """Each staging file is two steps: it is encoded, and its file is published."""
    die_with_open_staging_files(tmp_path)
    steps: list[int] = []
    place, job = Place(str(tmp_path)), Job.of("life")
    assert job is not None
    with taken_over(settings_of(place, job), job, RestoreTerms(keeps=False), 1, tried=steps.append) as (_, done):
        assert done.published == 2
    assert steps == [1] * 4


def test_staging_files_that_cannot_be_encoded_now_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sink is taken over, the staging files stay rolled, and it ends with 1; the same command ends it later."""
    die_with_open_staging_files(tmp_path)
    staging_files = StagingFiles()
    staging_files.are_readable = False
    with monkeypatch.context() as patch:
        patch.setattr(
            LocalStore, "open_staging_file", type(staging_files.open_store(str(tmp_path), {})).open_staging_file
        )
        patch.setattr(LocalStore, "_staging_files", staging_files, raising=False)
        report = told_json("recover", tmp_path, "--apply", "--fence", code=1)
    assert [(one["published"], one["closed_staging_files"]) for one in report["recovered"]] == [(0, 2)]
    assert finished_rows(tmp_path) == {}
    assert "2 parts published" in told("recover", tmp_path, "--apply", "--fence")
    ended(tmp_path)


def test_a_staging_file_that_is_gone_is_refused_or_given_up(tmp_path: Path) -> None:
    """Refused before anything is changed; with --accept-missing its rows are lost, and counted, and no other's."""
    die_with_open_staging_files(tmp_path)
    staging_files_in(tmp_path)[0].unlink()
    before = everything(tmp_path)
    assert "IS UNDER NONE OF ITS NAMES" in told("recover", tmp_path, code=1)
    refused = run("recover", tmp_path, "--apply", "--fence")
    assert refused.exit_code == 1
    assert "--accept-missing" in refused.stderr
    assert everything(tmp_path) == before
    report = told_json("recover", tmp_path, "--apply", "--fence", "--accept-missing", code=1)
    assert [(one["published"], one["given_up"]) for one in report["recovered"]] == [(1, 1)]
    assert finished_rows(tmp_path) == {"row-0001": 1, "row-0003": 1}


def test_a_damaged_staging_file_is_named_and_the_others_are_encoded(tmp_path: Path) -> None:
    """The error has its path; nothing is lost until an operator moves it away and gives it up."""
    die_with_open_staging_files(tmp_path)
    damaged = staging_files_in(tmp_path)[0]
    with damaged.open("r+b") as file:
        file.write(b"\0" * 64)
    refused = run("recover", tmp_path, "--apply", "--fence")
    assert refused.exit_code == 1
    assert (
        f"staging file {str(damaged.relative_to(tmp_path))!r} is not what was written"
        in refused.stdout + refused.stderr
    )
    assert finished_rows(tmp_path) == {"row-0001": 1, "row-0003": 1}
    damaged.unlink()
    told("recover", tmp_path, "--apply", "--fence", "--accept-missing", code=1)
    assert "nothing to recover" in told("recover", tmp_path)


def test_a_staging_file_that_needs_keys_is_told_before(tmp_path: Path) -> None:
    """The command line has none: the plan says so, and --apply leaves the staging files to their sink."""
    options: dict[str, Any] = {"format": ParquetFormat(encryption=no_encryption)}
    die_with_open_staging_files(tmp_path, **options)
    assert told("recover", tmp_path, code=1).count("CANNOT BE ENCODED HERE: ") == 2
    assert "has no encryption" in run("recover", tmp_path, "--apply", "--fence").stderr
    assert finished_rows(tmp_path) == {}
    assert len(staging_files_in(tmp_path)) == 2
    assert counted(tmp_path) == {"closed-staging-file": 2}


def no_encryption() -> None:
    """What encrypts nothing."""


def counted(base: Path) -> dict[str, int]:
    """How many parts ``status`` counts in each state that has any."""
    (sink,) = told_json("status", base, "--quiet-after", "0s", code=1)["sinks"]
    return {state: total["count"] for state, total in sink["parts"].items() if total["count"]}


def test_a_staging_file_that_is_too_short_is_told(tmp_path: Path) -> None:
    """It lacks bytes that a checkpoint vouches for."""
    die_with_closed_staging_files(tmp_path)
    with staging_files_in(tmp_path)[0].open("r+b") as file:
        file.truncate(100)
    assert "IS SHORTER THAN THAT" in told("recover", tmp_path, code=1)


@pytest.mark.parametrize("is_gone", [True, False])
@pytest.mark.parametrize("verb", ["encode", "set aside"])
def test_the_plan_promises_nothing_of_a_staging_file_that_lacks_bytes(
    tmp_path: Path, verb: str, *, is_gone: bool
) -> None:
    """Neither a file nor Arrow files: it names the part, the way out, and refuses --apply before anything changes."""
    die_with_closed_staging_files(tmp_path)
    lacking = staging_files_in(tmp_path)[0]
    (job,) = planned_recovery(tmp_path).jobs
    path = next(part.path for part in job.parts if part.path.rpartition("/")[2] in lacking.name)
    if is_gone:
        lacking.unlink()
    else:
        os.truncate(lacking, 100)
    words = ("recover", tmp_path, *(() if verb == "encode" else ("--set-aside", path)))
    said = told(*words, code=1)
    assert said.count(f"  cannot {verb} ") == 1
    assert f": {path}, IS {'UNDER NONE OF ITS NAMES' if is_gone else 'SHORTER THAN THAT'}" in said
    assert said.count("  encode ") == 1
    assert "set aside: keep" not in said
    assert "#13-a-columnar-part-is-stuck-as-a-staging-file" in said
    before = everything(tmp_path)
    assert run(*words, "--apply", "--fence").exit_code == 1
    assert everything(tmp_path) == before
    (done,) = told_json(*words, "--apply", "--fence", "--accept-missing", code=1)["recovered"]
    assert (done["published"], done["given_up"], done["set_aside"]) == (1, 1, [])


def test_the_plan_says_what_reads_the_bytes_of_a_staging_file(tmp_path: Path) -> None:
    """Of damage that has left the length as it was a plan knows nothing, and says what does."""
    die_with_closed_staging_files(tmp_path)
    assert told("recover", tmp_path, code=1).count(f"partfile verify {tmp_path} --checksums") == 1
    for path in staging_files_in(tmp_path):
        path.unlink()
    assert "--checksums" not in told("recover", tmp_path, code=1)


def test_verify_says_what_to_do_about_a_staging_file_that_is_too_short(tmp_path: Path) -> None:
    """To put it back, or to give its rows up."""
    die_with_closed_staging_files(tmp_path)
    os.truncate(staging_files_in(tmp_path)[0], 100)
    (short,) = (one for one in told_json("verify", tmp_path, code=1)["findings"] if one["code"] == "part-short")
    assert short["hint"].endswith("#13-a-columnar-part-is-stuck-as-a-staging-file")


def test_going_back_to_an_older_checkpoint_encodes_less(tmp_path: Path) -> None:
    """An open staging file goes back to the valid length that it had then; no row comes twice, and the plan says so."""

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
    """A staging file of then is a finished file by now: it stays, and its later rows come twice."""
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
    die_with_open_staging_files(base)
    location = save(base)
    assert finished_rows(base) == names(0, 4)
    fresh = tmp_path / "fresh"
    assert continue_to(staged_sink(fresh, restore_from=location), 8) == 4
    assert finished_rows(fresh) == names(4, 8)


@pytest.mark.parametrize("retained", [1, 2])
@pytest.mark.parametrize("die", [die_with_open_staging_files, die_with_closed_staging_files])
def test_a_staging_file_that_a_checkpoint_names_is_no_orphan(tmp_path: Path, die: Make, retained: int) -> None:
    """However old it is, open or waiting to be encoded, also where no older checkpoint names it as open."""
    die(tmp_path, retained_checkpoints=retained)
    age(tmp_path, days=9)
    assert orphans_of(tmp_path) == []
    assert clean_all(tmp_path, delete=True) is None
    ended(tmp_path)


@pytest.mark.parametrize("die", [die_with_open_staging_files, die_with_closed_staging_files, crash_when_promised])
def test_stores_are_told_every_staging_file_that_is_named(tmp_path: Path, die: Make) -> None:
    """Where a staging file is no file, the store keeps the objects of those that it is told."""
    die(tmp_path, retained_checkpoints=1, **STAGED)
    place = Place(str(tmp_path))
    with open_stores(place) as stores:
        told_of = _named(read_base(place, stores.checkpoints), {})
    paths = {part.path_of(part.in_progress) for part in told_of if part.is_staging_file}
    assert paths == {str(path.relative_to(tmp_path)) for path in staging_files_in(tmp_path)}


def test_an_encoded_staging_file_that_a_checkpoint_names_is_no_orphan(tmp_path: Path) -> None:
    """An older checkpoint needs it to go back to; once none names it, it is one."""
    with staged_sink(tmp_path, retained_checkpoints=9).local() as out:
        out.write(batch(0, 4), position=4)
        out.checkpoint()
    age(tmp_path)
    encoded = staging_files_in(tmp_path)
    assert len(encoded) == 2
    assert orphans_of(tmp_path) == []
    # A copy of one under a token that no checkpoint knows.
    stray = encoded[0].with_name(encoded[0].name.replace(encoded[0].name.split(".")[2], "d" * 32))
    stray.write_bytes(encoded[0].read_bytes())
    age(tmp_path)
    assert orphans_of(tmp_path) == [str(stray.relative_to(tmp_path))]


def test_what_crashes_leave_of_staging_files_is_cleaned(tmp_path: Path) -> None:
    """A staging file that no checkpoint ever named, and files of an encode that none came to name, and nothing else."""

    def die_early() -> None:
        out = staged_sink(tmp_path).local().open()
        out.write(batch(0, 4), position=4)
        os._exit(0)

    assert in_child(die_early) == 0
    early = staging_files_in(tmp_path)
    die_with_an_unnamed_encode(tmp_path)
    encoded, named = pending_in(tmp_path), [path for path in staging_files_in(tmp_path) if path not in early]
    assert (len(early), len(encoded), len(named)) == (2, 2, 2)
    age(tmp_path)
    assert orphans_of(tmp_path) == sorted(str(path.relative_to(tmp_path)) for path in (*early, *encoded))
    clean_all(tmp_path, delete=True)
    assert staged_files(tmp_path) == sorted(str(path.relative_to(tmp_path)) for path in named)
    ended(tmp_path)


def test_clean_keeps_what_it_cannot_lease_of_a_staging_file(tmp_path: Path) -> None:
    """A zombie still holds an orphan staging file: it is left and told."""

    def die_early() -> None:
        out = staged_sink(tmp_path).local().open()
        out.write(batch(0, 1), position=1)
        os._exit(0)

    assert in_child(die_early) == 0
    die_with_open_staging_files(tmp_path)
    age(tmp_path)
    (orphan,) = orphans_of(tmp_path)
    with (tmp_path / orphan).open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        done = clean_all(tmp_path, delete=True)
        assert done is not None
        assert done.busy == (orphan,)
    assert (tmp_path / orphan).exists()
