"""``partfile state`` shows the keys of sinks that deduplicate, and writes them to a file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import partfile as pf
from partfile.recovery.inspect import keys, verify
from partfile.sink import deduplicate
from partfile.snapshot.key_hash import hashes_of
from support.processes.command_line import run, told, told_json
from support.sinks.life_cycle import everything

if TYPE_CHECKING:
    from pathlib import Path

TIME_MS = 1_700_000_000_000


def refused(*words: str | Path, code: int) -> str:
    """What a command says that ends with this code."""
    result = run(*words)
    assert result.exit_code == code, f"{result.stdout}\n{result.stderr}"
    return result.stderr


def run_files(base: Path) -> list[Path]:
    return sorted((base / "_partfile" / "d" / "shared").iterdir())


def write(base: Path, *ids: str, uid: str = "d", ttl: str | None = "7 days", **options: Any) -> None:
    keys = pf.Deduplicate("id", ttl=ttl)
    sink = pf.FileSink(
        base, uid=uid, format="json", deduplicate=keys, clock=lambda: TIME_MS, on_used_base="accept", **options
    )
    with sink.local() as out:
        out.write(pa.table({"id": list(ids)}))


def test_it_says_what_is_remembered_and_for_how_long(tmp_path: Path) -> None:
    """Columns, keys, bytes, and when each run falls; a sink without keys is not shown."""
    write(tmp_path, "a", "b", "a")
    pf.FileSink(tmp_path, uid="plain", on_used_base="accept").local().open().finish()
    shown = told("state", tmp_path)
    assert "sink d" in shown
    assert "key: id (string); remembered 7d" in shown
    assert "2 keys" in shown
    assert "2023-11-14T22:13:20Z" in shown
    assert "2023-11-21T22:13:20Z" in shown
    assert "plain" not in shown
    (one,) = told_json("state", tmp_path)["sinks"]
    assert (one["uid"], one["columns"], one["keys"], one["ttl_ms"]) == ("d", ["id"], 2, 7 * 86_400_000)
    assert one["runs"][0]["path"] is None
    assert one["runs"][0]["expires_ms"] == TIME_MS + one["ttl_ms"]


def test_keys_are_exported(tmp_path: Path) -> None:
    """The hashes that ``key_hash`` makes of the values, and their times; a file that is there is left alone."""
    write(tmp_path, "a", "b", inline_threshold_bytes=0)
    file = tmp_path / "keys.parquet"
    assert "2 keys written" in told("state", tmp_path, "--export", file)
    table = pq.read_table(file)
    meta = {name.decode(): json.loads(value) for name, value in table.schema.metadata.items()}
    assert meta == {"partfile.hash_version": 1, "partfile.columns": ["id"], "partfile.kinds": ["string"]}
    hashes = hashes_of([pa.array(["a", "b"])])
    words = zip(hashes.high.tolist(), hashes.low.tolist(), strict=True)
    assert sorted(table["hash"].to_pylist()) == sorted((high << 64 | low).to_bytes(16, "big") for high, low in words)
    assert {time.timestamp() * 1000 for time in table["time"].to_pylist()} == {TIME_MS}
    assert told_json("state", tmp_path, "--export", tmp_path / "again.parquet")["exported"] == 2
    before = file.read_bytes()
    assert "is there already" in refused("state", tmp_path, "--export", file, code=2)
    assert file.read_bytes() == before


def test_an_export_is_of_one_sink(tmp_path: Path) -> None:
    """Several are named; one is chosen by --uid."""
    write(tmp_path, "a")
    write(tmp_path, "b", "c", uid="e")
    said = refused("state", tmp_path, "--export", tmp_path / "x.parquet", code=2)
    assert "d, e" in said
    assert "--uid NAME" in said
    assert not (tmp_path / "x.parquet").exists()
    assert "2 keys written" in told("state", tmp_path, "--uid", "e", "--export", tmp_path / "x.parquet")


def test_nothing_deduplicates(tmp_path: Path) -> None:
    """It says so, and ends well; a place without a sink is none."""
    pf.FileSink(tmp_path, uid="plain").local().open().finish()
    assert "no sink here deduplicates" in told("state", tmp_path)
    for words in (("--export", tmp_path / "x"), ("--forget",)):
        said = refused("state", tmp_path, *words, code=2)
        assert "no sink that is meant deduplicates" in said
        assert f"partfile status {tmp_path}" in said
    assert "is not there" in refused("state", tmp_path / "nowhere", code=2)


def test_an_export_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """Neither a half file nor a traceback."""
    write(tmp_path, "a", inline_threshold_bytes=0, ttl=None)
    missing = tmp_path / "missing" / "keys.parquet"
    assert "cannot be written" in refused("state", tmp_path, "--export", missing, code=2)
    (run,) = run_files(tmp_path)
    run.write_bytes(run.read_bytes()[:-1])
    said = refused("state", tmp_path, "--export", tmp_path / "k", code=1)
    assert f"{run} is not the one the checkpoint names" in said
    assert said.endswith(f"partfile state {tmp_path} --uid d --forget\n")
    assert not (tmp_path / "k").exists()


@pytest.mark.parametrize("is_export", [False, True])
def test_a_run_that_a_running_sink_has_merged_is_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_export: bool
) -> None:
    """The run that the newest checkpoint named is gone when it is read: the newer state is read instead."""
    base, file = tmp_path / "out", tmp_path / "keys.parquet"
    reader = "opened_run" if is_export else "check_run"
    read = getattr(deduplicate, reader)
    keys = pf.Deduplicate("id")
    with pf.FileSink(base, uid="d", format="json", deduplicate=keys, inline_threshold_bytes=0).local() as out:

        def read_late(*arguments: Any) -> Any:
            monkeypatch.setattr(deduplicate, reader, read)
            for number in range(1, 7):
                out.write(pa.table({"id": range(10 * number, 10 * number + 10)}))
                out.checkpoint()
            return read(*arguments)

        out.write(pa.table({"id": range(10)}))
        out.checkpoint()
        monkeypatch.setattr(deduplicate, reader, read_late)
        report = told_json("state", base, "--export", file) if is_export else told_json("state", base)
    assert (report["exported"] if is_export else report["sinks"][0]["keys"]) == 70
    assert not is_export or len(pq.read_table(file)) == 70


def test_a_damaged_run_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which one it is, what to do, and the exit code of ``verify``; the other one is shown as before."""
    for module in (keys, verify):
        monkeypatch.setattr(module, "system_clock_ms", lambda: TIME_MS)
    write(tmp_path, "a", inline_threshold_bytes=0)
    write(tmp_path, *map(str, range(100)), inline_threshold_bytes=0)
    large = max(run_files(tmp_path), key=lambda path: path.stat().st_size)
    large.write_bytes(large.read_bytes()[:-1])
    shown = told("state", tmp_path, code=1)
    assert f"DAMAGED  keys of sink 'd' cannot be read: state file {large} is not the one" in shown
    assert f"partfile state {tmp_path} --uid d --forget\n" in shown
    assert [line.split()[0] for line in shown.splitlines() if line.endswith("  DAMAGED")] == ["100"]
    (one,) = told_json("state", tmp_path, code=1)["sinks"]
    assert {run["keys"]: bool(run["problem"]) for run in one["runs"]} == {1: False, 100: True}
    large.unlink()
    assert f"{large} is missing" in told("state", tmp_path, code=1)
    told("verify", tmp_path, code=1)
    told("state", tmp_path, "--forget", code=1)


def test_keys_are_forgotten_by_a_plan(tmp_path: Path) -> None:
    """Without --apply nothing changes; a plan of another checkpoint is refused; rows come again afterwards."""
    write(tmp_path, "a", "b", inline_threshold_bytes=0)
    before = everything(tmp_path)
    plan = told_json("state", tmp_path, "--forget", code=1)
    assert plan["plan"]["keys"] == 2
    assert everything(tmp_path) == before
    write(tmp_path, "c", inline_threshold_bytes=0)
    applied = ("--apply", "--idle-for", "0s")
    said = refused("state", tmp_path, "--forget", "--plan", plan["digest"], *applied, code=1)
    assert "is not what would be done" in said
    assert "knows no keys any more" in told("state", tmp_path, "--forget", *applied)
    assert told_json("state", tmp_path)["sinks"] == []
    write(tmp_path, "a", "c", inline_threshold_bytes=0)
    assert sorted(pf.read(tmp_path).to_table()["id"].to_pylist()) == ["a", "a", "b", "c", "c"]
    assert "does not deduplicate" not in told("verify", tmp_path)
    for words in (("--apply",), ("--forget", "--export", "x"), ("--plan", "1")):
        refused("state", tmp_path, *words, code=2)


def test_a_sink_that_runs_keeps_its_keys(tmp_path: Path) -> None:
    """It is fenced only where that is asked for."""
    write(tmp_path, "a")
    sink = pf.FileSink(tmp_path, uid="d", format="json", deduplicate=pf.Deduplicate("id"))
    out = sink.local().open()
    out.write(pa.table({"id": ["b"]}))
    out.checkpoint()
    assert "is not taken over" in refused("state", tmp_path, "--forget", "--apply", code=1)
    out.checkpoint()
    told("state", tmp_path, "--forget", "--apply", "--fence")
    with pytest.raises(pf.Fenced):
        out.checkpoint()
