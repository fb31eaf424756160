"""The command line over staged columnar parts on a real S3 server, where a stage is no file but side objects."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from command_line import run, told, told_json, told_lines
from life_cycle import batch, continue_to
from s3_commands import A_SECOND_S, at
from s3_life import Stream
from s3_store_support import options_of, store_options
from staged_streams import STAGED, names

import partfile as pf
from partfile.recovery.clean import _named
from partfile.recovery.inspect.files import read_base
from partfile.recovery.inspect.places import Place
from partfile.stores.s3.store import S3Store

if TYPE_CHECKING:
    from pathlib import Path

    from s3_server import S3Server


@pytest.fixture
def stream(moto: S3Server) -> Stream:
    """A base of its own."""
    return Stream(f"s3://{moto.bucket()}/base", options_of(moto))


@pytest.fixture
def place(moto: S3Server, stream: Stream, tmp_path: Path) -> tuple[Any, ...]:
    """The words that name it and what opens it."""
    return at(moto, stream.base, tmp_path)


def crash(stream: Stream, *, checkpoints: int = 2) -> None:
    """Two open stages of two rows a checkpoint, with a tail; the process has gone."""
    out = stream.sink(**STAGED).local().open()
    for number in range(checkpoints):
        out.write(batch(4 * number, 4), position=4 * (number + 1))
        out.checkpoint()
    out.write(batch(4 * checkpoints, 4), position=4 * (checkpoints + 1))
    for part in out._operator._active.values():
        part.persist()
    out.close()


def rows(stream: Stream, moto: S3Server) -> dict[str, int]:
    """How often each row is in a finished file."""
    found = pf.read(stream.base, storage_options=store_options(moto)).to_table(columns=["row"])["row"].to_pylist()
    return {row: found.count(row) for row in found}


def side_objects(stream: Stream) -> set[str]:
    """The paths of all side objects."""
    with S3Store(stream.base, stream.options) as store:
        return {one.path for one in store.leftovers((), 1 << 50) if one.kind == "side object"}


def test_stages_are_seen_and_read_up_to_their_valid_length(stream: Stream, place: tuple[Any, ...]) -> None:
    """Status, list and verify know them by their handles alone; cat prints the rows that count."""
    crash(stream)
    (sink,) = told_json("status", *place, "--quiet-after", "0s", code=1)["sinks"]
    assert sink["parts"]["stage"]["count"] == 2
    listed = told_lines("list", *place, "--state", "stage")
    assert [(one["rows"], one["size_bytes"]) for one in listed] == [(4, None)] * 2
    assert told_json("verify", *place)["findings"] == []
    lines = [json.loads(line)["row"] for line in told(*cat_of(place, listed[0]["path"])).splitlines()]
    assert lines == ["row-0000", "row-0002", "row-0004", "row-0006"]
    assert run(*cat_of(place, listed[0]["path"]), "--raw").exit_code == 0


def cat_of(place: tuple[Any, ...], path: str) -> tuple[Any, ...]:
    """The words that print a part."""
    return "cat", place[0], path, *place[1:]


def test_a_dead_sink_is_recovered_and_goes_on(stream: Stream, place: tuple[Any, ...], moto: S3Server) -> None:
    """Stages are encoded at their valid length; the tail counts nowhere, and each row comes once."""
    crash(stream)
    assert told("recover", *place, code=1).count("of a stage (4 rows) and publish") == 2
    assert "2 parts published" in told("recover", *place, "--apply", "--fence")
    assert rows(stream, moto) == names(0, 8)
    assert continue_to(stream.sink(**STAGED), 12) == 8
    assert rows(stream, moto) == names(0, 12)
    assert told_json("verify", *place)["findings"] == []


def test_a_stage_whose_object_is_gone_is_missing(stream: Stream, place: tuple[Any, ...]) -> None:
    """Recover refuses before it takes the sink over."""
    crash(stream, checkpoints=1)
    with S3Store(stream.base, stream.options) as store:
        for path in side_objects(stream):
            store.take_away(path, None)
    assert {one["code"] for one in told_json("verify", *place, code=1)["findings"]} == {"part-missing"}
    assert run("recover", *place, "--apply", "--fence").exit_code == 1
    (sink,) = told_json("status", *place, "--quiet-after", "0s", code=1)["sinks"]
    assert sink["parts"]["stage"]["count"] == 2


@pytest.mark.parametrize("has_recovered", [False, True], ids=["open", "spent"])
def test_what_a_checkpoint_names_is_no_leftover(
    stream: Stream, place: tuple[Any, ...], moto: S3Server, *, has_recovered: bool
) -> None:
    """Side objects of open and of spent stages stay, whatever their age; those of an orphan stage go."""
    out = stream.sink(**STAGED).local().open()
    out.write(batch(0, 4), position=4)
    for part in out._operator._active.values():
        part.persist()
    out.close()
    orphans = side_objects(stream)
    crash(stream)
    if has_recovered:
        told("recover", *place, "--apply", "--fence")
    kept = side_objects(stream) - orphans
    assert orphans
    assert kept
    time.sleep(A_SECOND_S)
    clean = ("clean", *place, "--older-than", "0s", "--delete")
    planned = {item["path"] for item in told_json(*clean, code=1)["plan"]["items"] if item["kind"] == "side object"}
    assert orphans <= planned
    assert not planned & named(stream)
    told(*clean, "--apply", "--fence")
    assert named(stream) <= side_objects(stream)
    assert not orphans & side_objects(stream)
    assert continue_to(stream.sink(**STAGED), 12) == 8
    assert rows(stream, moto) == names(0, 12)


def named(stream: Stream) -> set[str]:
    """The side objects of every stage that a retained checkpoint names, however many objects it is."""
    place = Place(stream.base, opener=stream.process().open_store)
    with stream.process().open_store(f"{stream.base}/_partfile", {}) as checkpoints:
        handles = _named(read_base(place, checkpoints), {})
    with S3Store(stream.base, stream.options) as store:
        others = {one.path for one in store.leftovers(handles, 1 << 50) if one.kind == "side object"}
    return side_objects(stream) - others


@pytest.mark.fault("S18")
def test_a_changed_bit_of_an_object_is_found(stream: Stream, place: tuple[Any, ...]) -> None:
    """By the object's own checksum; without the option no object is read. Finished files are read as well."""
    crash(stream)
    assert told_json("verify", *place, "--checksums")["checksums_compared"] == 2
    with S3Store(stream.base, stream.options) as store:
        before = {path: store.read_file(path, 1 << 20) for path in side_objects(stream)}
        for path, data in before.items():
            store.delete_file(path)
            store.create_file(path, data[:-1] + bytes([data[-1] ^ 1]))
        assert told_json("verify", *place)["findings"] == []
        report = told_json("verify", *place, "--checksums", code=1)
        assert [finding["code"] for finding in report["findings"]] == ["checksum-differs"] * 2
        assert all("is not what was written" in finding["message"] for finding in report["findings"])
        for path, data in before.items():
            store.delete_file(path)
            store.create_file(path, data)
    told("recover", *place, "--apply", "--fence")
    assert told_json("verify", *place, "--checksums")["checksums_compared"] == 2
