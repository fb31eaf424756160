"""A shared stage that waits for one bucket, and the command line: what the other buckets have is theirs, and finished.

The base is one of the buckets, so that the file of that one has the final path of the stage.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from changing import broken_invariants, planned_recovery
from command_line import told, told_json, told_lines
from life_cycle import LONG, everything
from shared_streams import BUCKETS, many, shared_in, sharing_sink

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 2 * BUCKETS
STUCK = "k7"
AGED: dict[str, Any] = {"rolling": LONG.model_copy(update={"rollover_interval_s": 1e-3})}
"""Options that make the task roll its stage at each checkpoint."""


def _somewhere(batch: pa.RecordBatch) -> pa.Array[Any]:
    return pa.array(["" if key == 0 else f"k{key}" for key in batch["k"].to_pylist()])


def wait_for_one(base: Path, format: str = "json") -> Path:
    """Publish the files of all buckets but one by one checkpoint; returns that of the base."""
    out = sharing_sink(base, format=format, bucketer=_somewhere, **AGED).local().open()
    (base / STUCK).write_text("somebody's")
    out.write(many(0, ROWS), position=ROWS)
    out.checkpoint()
    out.close()
    assert len(list(base.rglob("part-*"))) == BUCKETS - 1
    return next(base.glob("part-*"))


def test_the_file_in_the_base_is_finished_like_any_other(tmp_path: Path) -> None:
    """It is its own rows and bytes that are shown and compared, whatever the stage of that path still waits for."""
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
    (stage,) = shared_in(tmp_path)
    assert len(told("cat", tmp_path, stage.name).splitlines()) == ROWS
    (waiting,) = told_json("status", tmp_path, "--quiet-after", "0s", code=1)["sinks"][0]["stuck"]
    assert (waiting["state"], waiting["path"]) == ("rolled-stage", path.name)


def test_the_file_in_the_base_is_missed_and_measured_like_any_other(tmp_path: Path) -> None:
    """The stage does not stand for it, nor it for the stage."""
    path = wait_for_one(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    assert [one.partition(":")[0] for one in broken_invariants(tmp_path)] == ["finished-length"]
    path.unlink()
    codes = {one["code"] for one in told_json("verify", tmp_path)["findings"]}
    assert "moved-away" in codes
    path.write_bytes(content)
    (stage,) = shared_in(tmp_path)
    stage.unlink()
    (problem,) = broken_invariants(tmp_path)
    assert problem.startswith(f"part-missing: {stage.name}")


def test_a_file_in_the_base_that_comes_too_early_is_found(tmp_path: Path) -> None:
    """While the base waits for its own; no such file keeps the stage from being shown by its final path before."""
    out = sharing_sink(tmp_path, format="json", bucketer=_somewhere).local().open()
    out.write(many(0, ROWS), position=ROWS)
    out.checkpoint()
    out.close()
    (stage,) = shared_in(tmp_path)
    name = f"{stage.name[1:].partition('.json')[0]}.json"
    assert len(told("cat", tmp_path, name).splitlines()) == ROWS
    shutil.copy(stage, tmp_path / name)
    (problem,) = broken_invariants(tmp_path)
    assert problem.startswith(f"published-early: {name}")


def test_status_and_recover_say_how_many_buckets_have_their_files(tmp_path: Path) -> None:
    """What the others have is not done again, and recovering comes to an end once the last one can have its own."""
    wait_for_one(tmp_path)
    (stuck,) = told_json("status", tmp_path, "--quiet-after", "0s", code=1)["sinks"][0]["stuck"]
    assert (stuck["buckets"], stuck["finished_buckets"]) == (BUCKETS, BUCKETS - 1)
    theirs = f"without a file yet ({BUCKETS - 1} have theirs)"
    assert theirs.replace("a file", "one") in told("status", tmp_path, "--quiet-after", "0s", code=1)
    ((part,),) = (job.parts for job in planned_recovery(tmp_path).jobs)
    assert (part.buckets, part.finished_buckets, part.found) == (BUCKETS, BUCKETS - 1, "staged")
    plan = told("recover", tmp_path, code=1)
    assert f"({ROWS} rows) and publish in those {theirs}: part-" in plan
    assert "theirs in files already" not in plan
    (tmp_path / STUCK).unlink()
    assert "sink life: 1 parts published" in told("recover", tmp_path, "--apply", "--fence")
    assert len(list(tmp_path.rglob("part-*"))) == BUCKETS


def test_giving_a_stage_up_is_told_with_what_stays(tmp_path: Path) -> None:
    """Only the rows of the bucket without a file are lost, whatever the stage held."""
    wait_for_one(tmp_path)
    (stage,) = shared_in(tmp_path)
    stage.unlink()
    finished = everything(tmp_path)
    stays = f"with their rows; but {BUCKETS - 1} buckets have theirs in files already"
    assert f"--accept-missing gives them up, {stays}" in told("recover", tmp_path, code=1)
    assert f"1 parts are given up, {stays}" in told("recover", tmp_path, "--accept-missing", code=1)
    assert everything(tmp_path) == finished
    assert "1 GIVEN UP" in told("recover", tmp_path, "--accept-missing", "--apply", "--fence", code=1)
    assert len(list(tmp_path.rglob("part-*"))) == BUCKETS - 1
    assert broken_invariants(tmp_path) == []
