"""Staged columnar parts as the verbs that read show them: status, list, checkpoints, verify and cat."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from command_line import run, told, told_json, told_lines
from dead_sinks import crash_when_promised
from dead_stages import die_with_open_stages, die_with_rolled_stages
from life_cycle import batch, continue_to, finished_files
from staged_streams import STAGED, staged_sink, stages_in

import partfile as pf
from partfile.sink.clock import system_clock_ms

if TYPE_CHECKING:
    from pathlib import Path


def stopped(tmp_path: Path) -> Path:
    """A sink that ended cleanly, with two files, and spent stages that its older checkpoints name."""
    base = tmp_path / "out"
    with staged_sink(base).local() as out:
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


def test_open_stages_of_a_dead_sink_are_stuck(tmp_path: Path) -> None:
    """Status counts them, says that they are encoded at their valid length, and names the command."""
    die_with_open_stages(tmp_path)
    assert counts(tmp_path, 1) == {"stage": 2}
    (sink,) = told_json("status", tmp_path, code=1)["sinks"]
    assert [(part["state"], part["rows"]) for part in sink["stuck"]] == [("stage", 2)] * 2
    assert all(part["is_for_recover"] and "encodes its first" in part["outcome"] for part in sink["stuck"])
    assert "partfile recover" in told("status", tmp_path, code=1)


def test_stages_that_wait_for_their_encoding_are_stuck(tmp_path: Path) -> None:
    """They are told from open ones, with the checkpoint that rolled them, and recover mends them."""
    die_with_rolled_stages(tmp_path)
    assert counts(tmp_path, 1) == {"rolled-stage": 2}
    (sink,) = told_json("status", tmp_path, code=1)["sinks"]
    assert all("has it rolled" in part["why"] and part["is_for_recover"] for part in sink["stuck"])
    assert all(part["age_s"] is not None for part in sink["stuck"])


def test_spent_stages_are_counted_and_nothing_waits_for_them(tmp_path: Path) -> None:
    """After a clean end status finds nothing stuck, and says that no part is unfinished."""
    base = stopped(tmp_path)
    assert counts(base, 0) == {"spent-stage": 2}
    text = told("status", base)
    assert "spent-stage" in text
    assert "unfinished parts   none" in text
    assert "called stuck" not in text


def test_stages_of_a_sink_that_runs_are_fine(tmp_path: Path) -> None:
    """While its newest checkpoint is young, none is stuck."""
    with staged_sink(tmp_path, clock=system_clock_ms).local() as out:
        out.write(batch(0, 4), position=4)
        out.checkpoint()
        (sink,) = told_json("status", tmp_path, "--quiet-after", "1h")["sinks"]
        assert sink["parts"]["stage"]["count"] == 2
        assert sink["stuck"] == []


@pytest.mark.parametrize(
    ("make", "state"),
    [(die_with_open_stages, "stage"), (die_with_rolled_stages, "rolled-stage")],
    ids=["open", "rolled"],
)
def test_list_shows_stages_with_rows_and_valid_length(tmp_path: Path, make: Any, state: str) -> None:
    """Each is a file of its own with what counts of it; --state selects them."""
    make(tmp_path)
    found = told_lines("list", tmp_path, "--state", state)
    assert {one["path"] for one in found} == {str(path.relative_to(tmp_path)) for path in stages_in(tmp_path)}
    assert [one["rows"] for one in found] == [2, 2]
    assert all(0 < one["valid_length"] < one["size_bytes"] and one["is_current"] for one in found)
    assert states(tmp_path) == {state: 2}


def test_list_shows_spent_stages_beside_their_files(tmp_path: Path) -> None:
    """They are not current, and the finished files are no stages."""
    base = stopped(tmp_path)
    assert states(base) == {"finished": 2, "spent-stage": 2}
    assert not any(one["is_current"] for one in told_lines("list", base))


def test_a_stage_that_is_gone_is_missing(tmp_path: Path) -> None:
    """List shows it under its own name, verify as missing, and status --scan too; a finished namesake is no help."""
    die_with_open_stages(tmp_path)
    gone, other = stages_in(tmp_path)
    gone.unlink()
    (missing,) = told_lines("list", tmp_path, "--state", "missing")
    assert missing["path"] == str(gone.relative_to(tmp_path))
    assert errors(tmp_path) == {"part-missing"}
    assert told_json("status", tmp_path, "--scan", code=1)["scan"]["missing"] != []
    final = gone.with_name(f"{gone.name[1:].partition('.parquet')[0]}.parquet")
    shutil.copy(other, final)
    assert errors(tmp_path) == {"part-missing", "published-early"}


def test_a_stage_that_is_too_short_is_found(tmp_path: Path) -> None:
    """Bytes that a checkpoint vouches for are gone."""
    die_with_rolled_stages(tmp_path)
    with stages_in(tmp_path)[0].open("r+b") as file:
        file.truncate(100)
    assert errors(tmp_path) == {"part-short"}


def test_spent_stages_may_be_gone(tmp_path: Path) -> None:
    """They are deleted before a checkpoint says so: nothing is missing, and no file is misjudged by their length."""
    base = stopped(tmp_path)
    for path in stages_in(base):
        path.unlink()
    assert errors(base) == set()
    assert told_lines("list", base, "--state", "missing") == []


@pytest.mark.parametrize("make", [die_with_open_stages, die_with_rolled_stages, stopped])
def test_a_sink_that_stopped_or_died_breaks_no_invariant(tmp_path: Path, make: Any) -> None:
    """Stages in every state, with tails or without, are as they have to be."""
    base = make(tmp_path) or tmp_path
    assert errors(base) == set()


def test_an_encoded_file_that_waits_is_a_pending_part(tmp_path: Path) -> None:
    """Its checkpoint is complete and its process died before it was published: it is pending, its stage spent."""
    crash_when_promised(tmp_path, **STAGED)
    assert {state: count > 0 for state, count in counts(tmp_path, 1).items()} == {"pending": True, "spent-stage": True}
    assert errors(tmp_path) == set()
    for path in tmp_path.glob("bucket=*/_*.pending"):
        path.unlink()
    assert errors(tmp_path) == {"part-missing"}


def test_checkpoints_count_stages(tmp_path: Path) -> None:
    """Open ones are open parts; those to be encoded and spent ones have numbers of their own."""
    die_with_rolled_stages(tmp_path, retained_checkpoints=9)
    continue_to(staged_sink(tmp_path, retained_checkpoints=9), 4)
    (chain,) = told_json("checkpoints", tmp_path)["chains"]
    facts = [
        (link["kind"], link["open_parts"], link["pending_parts"], link["rolled_stages"], link["spent_stages"])
        for link in chain["links"]
    ]
    assert facts[1] == ("checkpoint", 2, 0, 0, 0)
    assert {("fence", 0, 0, 2, 0), ("checkpoint", 0, 2, 0, 2)} < set(facts)
    assert "ROLLED" in told("checkpoints", tmp_path)


@pytest.mark.parametrize("make", [die_with_open_stages, die_with_rolled_stages])
def test_cat_prints_a_stage_up_to_its_valid_length(tmp_path: Path, make: Any) -> None:
    """Rows as JSON lines by its own name and by the name of the file to come, without the tail; --raw its bytes."""
    make(tmp_path)
    path = stages_in(tmp_path)[0]
    name = str(path.relative_to(tmp_path))
    final = f"{name.replace('/_', '/').partition('.parquet')[0]}.parquet"
    for called in (name, final):
        lines = [json.loads(line) for line in told("cat", tmp_path, called).splitlines()]
        assert [line["row"] for line in lines] == ["row-0000", "row-0002"]
    (length,) = {one["valid_length"] for one in told_lines("list", tmp_path) if one["path"] == name}
    assert run("cat", tmp_path, name, "--raw").stdout_bytes == path.read_bytes()[:length]


def test_cat_tells_damage_of_a_stage(tmp_path: Path) -> None:
    """A stage whose bytes were changed ends with 1 and its name."""
    die_with_open_stages(tmp_path)
    path = stages_in(tmp_path)[0]
    with path.open("r+b") as file:
        file.write(b"\0" * 64)
    result = run("cat", tmp_path, str(path.relative_to(tmp_path)))
    assert result.exit_code == 1
    assert f"stage 'bucket=b0/{path.name}' does not hold" in result.stderr
    assert "unexpected" not in result.stderr


def test_cat_prints_orc_and_avro(tmp_path: Path) -> None:
    """Files of both are printed row by row, as Parquet is."""
    import fastavro  # noqa: PLC0415 - of the tests alone
    from pyarrow import orc, table  # noqa: PLC0415 - loads much

    orc.write_table(table({"id": [1, 2], "row": ["a", None]}), tmp_path / "x.orc")
    schema = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "int"}]}
    with (tmp_path / "x.avro").open("wb") as file:
        fastavro.writer(file, schema, [{"id": 1}, {"id": 2}])
    assert told("cat", tmp_path, "x.orc") == '{"id": 1, "row": "a"}\n{"id": 2, "row": null}\n'
    assert told("cat", tmp_path, "x.avro") == '{"id": 1}\n{"id": 2}\n'


def test_cat_says_what_reads_avro(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without fastavro the message names it, and a tool; --raw needs neither."""
    monkeypatch.setitem(__import__("sys").modules, "fastavro", None)
    (tmp_path / "x.avro").write_bytes(b"Obj\x01")
    result = run("cat", tmp_path, "x.avro")
    assert result.exit_code == 2
    assert "fastavro" in result.stderr
    assert run("cat", tmp_path, "x.avro", "--raw").stdout_bytes == b"Obj\x01"


def test_readers_see_no_row_of_a_stage(tmp_path: Path) -> None:
    """Also with include="pending": only the file that a stage was encoded into is promised."""
    die_with_rolled_stages(tmp_path / "rolled")
    with pytest.raises(pf.ConfigError, match="no finished file"):
        pf.read(tmp_path / "rolled", include="pending")
    crash_when_promised(tmp_path / "promised", **STAGED)
    assert pf.read(tmp_path / "promised", include="pending").count_rows() == 8
    assert finished_files(tmp_path / "promised") == {}
