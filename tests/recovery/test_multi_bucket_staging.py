"""Multi-bucket staging files and the command line: what becomes of each, also where one bucket is stuck."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import partfile as pf
from partfile.recovery.inspect import verify as verification
from partfile.recovery.inspect.tree import read_tree
from partfile.sink.policies import numbers_in
from partfile.testing.faults import SimulatedCrash
from support.processes.command_line import ageless, run, told, told_json, told_lines
from support.sinks.life_cycle import LONG, everything
from support.sinks.recovery import age, broken_invariants, clean_all, planned_cleaning, planned_recovery
from support.sinks.shared_streams import (
    BUCKETS,
    continue_sharing,
    counted,
    die_sharing,
    many,
    mark_some_buckets,
    rows_in,
    shared_in,
    sharing_sink,
)
from support.sinks.staged_streams import pending_in

if TYPE_CHECKING:
    from pathlib import Path


# Multi-bucket staging files, and the command line: how many share, what becomes of each, whose files there are.

EACH_FORMAT = pytest.mark.parametrize("format", ["parquet", "json", "csv", "avro"])
ROWS = 2 * BUCKETS


def die_rolled(base: Path, **options: Any) -> None:
    """The same staging file, which a start has taken over and has encoded in vain.

    It died before a checkpoint names it.
    """
    die_sharing(sharing_sink(base, **options))
    out = sharing_sink(base, **options).local()
    coordinator: Any = out._runtime.coordinator

    def die(*_arguments: object) -> None:
        raise SimulatedCrash("before the second checkpoint")

    coordinator._checkpoint_of_its_own = die
    with pytest.raises(SimulatedCrash):
        out.open()
    out.close()


DEATHS = [lambda base, **options: die_sharing(sharing_sink(base, **options)), die_rolled]
EACH_DEATH = pytest.mark.parametrize(
    ("die", "state"), list(zip(DEATHS, ["staging-file", "closed-staging-file"], strict=True))
)


@pytest.fixture
def some_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the files of a staging file some have its name, others one of their own."""
    mark_some_buckets(monkeypatch)


@pytest.mark.usefixtures("some_marked")
@EACH_DEATH
def test_status_and_list_say_how_many_buckets_share(tmp_path: Path, die: Any, state: str) -> None:
    """At least, for each batch tells only of its own; of anything else they say nothing."""
    die(tmp_path)
    (sink,) = told_json("status", tmp_path, code=1)["sinks"]
    total = sink["parts"][state]
    assert (total["count"], total["shared"], total["buckets"]) == (1, 1, BUCKETS)
    assert [(part["buckets"], part["rows"]) for part in sink["stuck"]] == [(BUCKETS, ROWS)]
    assert "a file for each of its buckets" in sink["stuck"][0]["outcome"]
    text = told("status", tmp_path, code=1)
    assert f"{ROWS} rows shared by {BUCKETS} buckets or more, " in text
    assert f"valid, 1 of them shared by {BUCKETS} buckets or more, " in text
    (listed,) = told_lines("list", tmp_path, "--state", state)
    assert (listed["buckets"], listed["rows"], listed["bucket"]) == (BUCKETS, ROWS, "")
    assert f"shared by {BUCKETS} buckets or more" in told("list", tmp_path, "--state", state)
    assert broken_invariants(tmp_path) == []


@pytest.mark.usefixtures("some_marked")
def test_the_most_buckets_of_a_batch_count(tmp_path: Path) -> None:
    """Over batches, and over the attempts that go on with a staging file."""
    for batches in ((5, 9), (7, 4)):
        with sharing_sink(tmp_path, on_stop="keep").local() as out:
            for buckets in batches:
                out.write(many(0, buckets, buckets=buckets))
    (sink,) = told_json("status", tmp_path, "--quiet-after", "0s")["sinks"]
    assert (sink["parts"]["staging-file"]["count"], sink["parts"]["staging-file"]["buckets"]) == (1, 9)


@pytest.mark.usefixtures("some_marked")
def test_nothing_else_is_shared(tmp_path: Path) -> None:
    """Parts of one bucket each, staging files or not."""
    out = sharing_sink(tmp_path, buckets_per_staging_file=None).local().open()
    out.write(many(0))
    out.checkpoint()
    out.close()
    (sink,) = told_json("status", tmp_path, "--quiet-after", "0s", code=1)["sinks"]
    assert (sink["parts"]["staging-file"]["shared"], sink["parts"]["staging-file"]["buckets"]) == (0, None)
    assert {part["buckets"] for part in sink["stuck"]} == {None}
    assert {one["buckets"] for one in told_lines("list", tmp_path)} == {None}
    assert "shared by" not in told("status", tmp_path, "--quiet-after", "0s", code=1)
    assert {part.buckets for job in planned_recovery(tmp_path).jobs for part in job.parts} == {None}


@pytest.mark.drawn
@pytest.mark.usefixtures("some_marked")
@EACH_DEATH
@EACH_FORMAT
def test_recover_tells_of_buckets_and_publishes_in_each(tmp_path: Path, die: Any, state: str, format: str) -> None:
    """Its plan changes nothing and stays the same; done, each bucket has its rows, and no base path has a file."""
    die(tmp_path, format=format)
    before = everything(tmp_path)
    first, second = (told("recover", tmp_path, code=1) for _ in range(2))
    assert ageless(first) == ageless(second)
    assert f"of a staging file that {BUCKETS} buckets or more share ({ROWS} rows) and publish in each: part-" in first
    assert everything(tmp_path) == before
    (done,) = told_json("recover", tmp_path, "--apply", "--fence")["recovered"]
    assert (done["published"], done["closed_staging_files"], done["given_up"]) == (BUCKETS, 0, 0)
    assert rows_in(tmp_path, format) == counted(0, ROWS)
    assert list(tmp_path.glob("part-*")) == []
    assert broken_invariants(tmp_path) == []
    continue_sharing(sharing_sink(tmp_path, format=format), 3 * BUCKETS)
    assert rows_in(tmp_path, format) == counted(0, 3 * BUCKETS)
    assert broken_invariants(tmp_path) == [], state


@pytest.mark.usefixtures("some_marked")
@pytest.mark.parametrize("is_last_first", [False, True])
def test_files_of_one_name_in_many_buckets_are_no_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_last_first: bool
) -> None:
    """Nor are they once no checkpoint knows of their staging file any more.

    What has another name is one, listed as it may.
    """
    monkeypatch.setattr(
        verification,
        "read_tree",
        lambda files, known: read_tree(sorted(files, key=lambda one: one.file.path, reverse=is_last_first), known),
    )
    for rows in (BUCKETS, 2 * BUCKETS, 5 * BUCKETS):
        continue_sharing(sharing_sink(tmp_path, retained_checkpoints=1), rows)
        assert broken_invariants(tmp_path) == []
    assert shared_in(tmp_path) == []
    for bucket in (0, BUCKETS - 1):
        path = min(tmp_path.glob(f"k={bucket}/part-*"))
        copy = path.with_name(f"copy-of-{path.name}")
        shutil.copy(path, copy)
        (problem,) = broken_invariants(tmp_path)
        assert problem.startswith(f"name-twice: k={bucket}/copy-of-part-")
        copy.unlink()


@pytest.mark.usefixtures("some_marked")
def test_before_buckets_share_a_number_is_one_files_alone(tmp_path: Path) -> None:
    """A copy in another directory is found, whatever came later."""
    with sharing_sink(tmp_path, buckets_per_staging_file=None).local() as out:
        out.write(many(0))
    continue_sharing(sharing_sink(tmp_path), BUCKETS)
    path = next(tmp_path.glob("k=3/part-*-0-*"))
    first = min(tmp_path.glob("k=*/part-*"), key=lambda one: numbers_in(one.name)[0].count)
    shutil.copy(first, path.parent)
    (problem,) = broken_invariants(tmp_path)
    assert problem.startswith("name-twice: k=")


@pytest.mark.usefixtures("some_marked")
def test_a_file_that_comes_before_its_staging_file_is_encoded_is_found(tmp_path: Path) -> None:
    """In whichever bucket; it stands in the way of the sink's own."""
    die_rolled(tmp_path)
    (staging_file,) = shared_in(tmp_path)
    pending = next(one for one in pending_in(tmp_path) if one.parent.name == "k=4")
    final = pending.with_name(f"{staging_file.name[1:].partition('.parquet')[0]}.parquet")
    shutil.copy(pending, final)
    (problem,) = broken_invariants(tmp_path)
    assert problem.startswith("published-early: k=4/part-")


@pytest.mark.usefixtures("some_marked")
def test_a_multi_bucket_staging_file_that_is_gone_or_short_is_found(tmp_path: Path) -> None:
    """By verify and by recover, which changes nothing before it has been told to give it up."""
    die_rolled(tmp_path)
    (staging_file,) = shared_in(tmp_path)
    content = staging_file.read_bytes()
    staging_file.write_bytes(content[:100])
    assert [one.partition(":")[0] for one in broken_invariants(tmp_path)] == ["part-short"]
    assert "SHORTER" in told("recover", tmp_path, code=1)
    staging_file.unlink()
    assert [one.partition(":")[0] for one in broken_invariants(tmp_path)] == ["part-missing"]
    before = everything(tmp_path)
    assert run("recover", tmp_path, "--apply", "--fence").exit_code == 1
    assert everything(tmp_path) == before
    staging_file.write_bytes(content)
    assert f"{BUCKETS} parts published" in told("recover", tmp_path, "--apply", "--fence")


@pytest.mark.usefixtures("some_marked")
def test_clean_knows_every_file_of_an_encode_that_no_checkpoint_names(tmp_path: Path) -> None:
    """One a bucket; the staging file stays, and what it becomes later too."""
    die_rolled(tmp_path)
    orphans = sorted(str(path.relative_to(tmp_path)) for path in pending_in(tmp_path))
    assert len(orphans) == BUCKETS
    age(tmp_path)
    found = sorted(item.path for item in planned_cleaning(tmp_path).items if item.kind == "orphan")
    assert found == orphans
    clean_all(tmp_path, delete=True)
    assert pending_in(tmp_path) == []
    assert len(shared_in(tmp_path)) == 1
    continue_sharing(sharing_sink(tmp_path), 3 * BUCKETS)
    assert rows_in(tmp_path) == counted(0, 3 * BUCKETS)


@pytest.mark.usefixtures("some_marked")
@EACH_DEATH
def test_cat_prints_rows_with_their_buckets(tmp_path: Path, die: Any, state: str) -> None:
    """Those that count, whichever state the staging file is in."""
    die(tmp_path)
    lines = printed(tmp_path)
    assert sorted((line["row"], line["bucket"]) for line in lines) == in_buckets(), state


@pytest.mark.usefixtures("some_marked")
@pytest.mark.parametrize("format", ["json", "csv", "avro"])
def test_cat_prints_what_rows_of_a_row_format_have_become(tmp_path: Path, format: str) -> None:
    """Text as text, Avro decoded; encoded staging files as well."""
    die_sharing(sharing_sink(tmp_path, format=format))
    lines = printed(tmp_path)
    rows = [row_of(line["line"], format) for line in lines]
    assert sorted(zip(rows, (line["bucket"] for line in lines), strict=True)) == in_buckets()
    told("recover", tmp_path, "--apply", "--fence")
    assert len(told_lines("list", tmp_path, "--state", "encoded-staging-file")) == 1
    assert printed(tmp_path) == lines


@pytest.mark.usefixtures("some_marked")
@pytest.mark.parametrize(("format", "suffix"), [("avro", ".rec"), ("json", ".avro.json")])
def test_cat_goes_by_the_format_of_a_staging_file_not_by_its_name(tmp_path: Path, format: str, suffix: str) -> None:
    """The affixes of parts are the user's; it is told as long as a retained checkpoint needs the staging file."""
    die_sharing(sharing_sink(tmp_path, format=format, naming=pf.PartNaming(part_suffix=suffix)))
    lines = printed(tmp_path)
    assert sorted((row_of(line["line"], format), line["bucket"]) for line in lines) == in_buckets()
    told("recover", tmp_path, "--apply", "--fence")
    assert len(told_lines("list", tmp_path, "--state", "encoded-staging-file")) == 1
    assert printed(tmp_path) == lines


def row_of(line: Any, format: str) -> int:
    """The number in what a row has become."""
    if format == "csv":
        return int(line)
    row: int = (json.loads(line) if format == "json" else line)["row"]
    return row


def in_buckets() -> list[tuple[int, str]]:
    """The rows that the checkpoint vouches for, each with its bucket."""
    return [(row, f"k={row % BUCKETS}") for row in range(ROWS)]


def printed(base: Path) -> list[dict[str, Any]]:
    """What ``cat`` prints of the one multi-bucket staging file."""
    (staging_file,) = shared_in(base)
    return [json.loads(line) for line in told("cat", base, staging_file.name).splitlines()]


# A multi-bucket staging file that waits for one bucket, and the command line: what the other buckets have is theirs,
# and finished.
#
# The base is one of the buckets, so that the file of that one has the final path of the staging file.

STUCK = "k7"
AGED: dict[str, Any] = {"rolling": LONG.model_copy(update={"rollover_interval_s": 1e-3})}
"""Options that make the task roll its staging file at each checkpoint."""


def _somewhere(batch: pa.RecordBatch) -> pa.Array[Any]:
    return pa.array(["" if key == 0 else f"k{key}" for key in batch["k"].to_pylist()])


def wait_for_one(base: Path, format: str = "json") -> Path:
    """Publish the files of all buckets but one by one checkpoint; returns that of the base."""
    out = sharing_sink(base, format=format, bucketer=_somewhere, **AGED).local().open()
    (base / STUCK).write_text("foreign")
    out.write(many(0, ROWS), position=ROWS)
    out.checkpoint()
    out.close()
    assert len(list(base.rglob("part-*"))) == BUCKETS - 1
    return next(base.glob("part-*"))


def test_the_file_in_the_base_is_finished_like_any_other(tmp_path: Path) -> None:
    """Its own rows and bytes are shown and compared, whatever the staging file of that path still waits for."""
    path = wait_for_one(tmp_path)
    assert broken_invariants(tmp_path) == []
    assert [json.loads(line)["row"] for line in told("cat", tmp_path, path.name).splitlines()] == [0, BUCKETS]
    (listed,) = (one for one in told_lines("list", tmp_path) if one["path"] == path.name)
    size = path.stat().st_size
    assert (listed["state"], listed["valid_length"], listed["rows"], listed["size_bytes"]) == (
        "finished",
        size,
        2,
        size,
    )
    report = told_json("verify", tmp_path, "--checksums")
    (checkpoint,) = report["checkpoints"]
    assert sorted(checkpoint["files"]) == sorted(str(one.relative_to(tmp_path)) for one in tmp_path.rglob("part-*"))
    assert report["checksums_compared"] == BUCKETS
    (staging_file,) = shared_in(tmp_path)
    assert len(told("cat", tmp_path, staging_file.name).splitlines()) == ROWS
    (waiting,) = told_json("status", tmp_path, "--quiet-after", "0s", code=1)["sinks"][0]["stuck"]
    assert (waiting["state"], waiting["path"]) == ("closed-staging-file", path.name)


def test_the_file_in_the_base_is_missed_and_measured_like_any_other(tmp_path: Path) -> None:
    """The staging file does not stand for it, nor it for the staging file."""
    path = wait_for_one(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    assert [one.partition(":")[0] for one in broken_invariants(tmp_path)] == ["finished-length"]
    path.unlink()
    codes = {one["code"] for one in told_json("verify", tmp_path)["findings"]}
    assert "moved-away" in codes
    path.write_bytes(content)
    (staging_file,) = shared_in(tmp_path)
    staging_file.unlink()
    (problem,) = broken_invariants(tmp_path)
    assert problem.startswith(f"part-missing: {staging_file.name}")


def test_a_file_in_the_base_that_comes_too_early_is_found(tmp_path: Path) -> None:
    """While the base waits for its own.

    No such file keeps the staging file from being shown by its final path before.
    """
    out = sharing_sink(tmp_path, format="json", bucketer=_somewhere).local().open()
    out.write(many(0, ROWS), position=ROWS)
    out.checkpoint()
    out.close()
    (staging_file,) = shared_in(tmp_path)
    name = f"{staging_file.name[1:].partition('.json')[0]}.json"
    assert len(told("cat", tmp_path, name).splitlines()) == ROWS
    shutil.copy(staging_file, tmp_path / name)
    (problem,) = broken_invariants(tmp_path)
    assert problem.startswith(f"published-early: {name}")


def test_status_and_recover_say_how_many_buckets_have_their_files(tmp_path: Path) -> None:
    """What the others have is not done again, and recovering comes to an end once the last one can have its own."""
    wait_for_one(tmp_path)
    (stuck,) = told_json("status", tmp_path, "--quiet-after", "0s", code=1)["sinks"][0]["stuck"]
    assert (stuck["buckets"], stuck["finished_buckets"]) == (BUCKETS, BUCKETS - 1)
    theirs = f"without a file yet ({BUCKETS - 1} have theirs)"
    assert "each of its buckets without one yet" in told("status", tmp_path, "--quiet-after", "0s", code=1)
    ((part,),) = (job.parts for job in planned_recovery(tmp_path).jobs)
    assert (part.buckets, part.finished_buckets, part.found) == (BUCKETS, BUCKETS - 1, "staged")
    plan = told("recover", tmp_path, code=1)
    assert f"({ROWS} rows) and publish in those {theirs}: part-" in plan
    assert "theirs in files already" not in plan
    (tmp_path / STUCK).unlink()
    assert "sink life: 1 part published" in told("recover", tmp_path, "--apply", "--fence")
    assert len(list(tmp_path.rglob("part-*"))) == BUCKETS


def test_giving_a_staging_file_up_is_told_with_what_stays(tmp_path: Path) -> None:
    """Only the rows of the bucket without a file are lost, whatever the staging file held."""
    wait_for_one(tmp_path)
    (staging_file,) = shared_in(tmp_path)
    staging_file.unlink()
    finished = everything(tmp_path)
    stays = f"with their rows; but {BUCKETS - 1} buckets have theirs in files already"
    assert f"--accept-missing gives them up, {stays}" in told("recover", tmp_path, code=1)
    assert f"given up: 1 part, {stays}" in told("recover", tmp_path, "--accept-missing", code=1)
    assert everything(tmp_path) == finished
    assert "1 GIVEN UP" in told("recover", tmp_path, "--accept-missing", "--apply", "--fence", code=1)
    assert len(list(tmp_path.rglob("part-*"))) == BUCKETS - 1
    assert broken_invariants(tmp_path) == []
