"""A savepoint is complete or none, belongs to the user, and can be moved."""

from __future__ import annotations

import json
import re
import shutil
import zlib
from typing import TYPE_CHECKING

import pytest

import partfile as pf
from partfile.errors import AlreadyExists, ConfigError, NotFound, SnapshotCorrupt, StoreError
from partfile.snapshot.documents import CheckpointRef, FileHandle, OperatorState, header_of
from partfile.snapshot.savepoints import (
    SavepointMetadata,
    complete_savepoint,
    delete_savepoint,
    read_savepoint,
    reserve_savepoint,
    savepoints_in,
)
from partfile.stores.local.store import LocalStore
from partfile.stores.paths import new_token
from partfile.testing.faults import FailAt, Recorder, intercept

if TYPE_CHECKING:
    from pathlib import Path


STATE = f"{'a' * 32}.state"


def metadata(*paths: str) -> SavepointMetadata:
    operators = {
        f"operator-{number}": OperatorState(
            parallelism=1, coordinator=FileHandle(path=path, size_bytes=4, crc32=zlib.crc32(b"data"))
        )
        for number, path in enumerate(paths)
    }
    return SavepointMetadata(
        savepoint_id=new_token(),
        job="flights",
        taken_by=CheckpointRef(checkpoint_id=7, nonce="n"),
        time_ms=1,
        writer="0",
        ends_the_job=False,
        operators=operators,
    )


def make(target: LocalStore, taken: SavepointMetadata | None = None) -> str:
    directory = reserve_savepoint(target, "flights")
    target.create_file(f"{directory}/{STATE}", b"data")
    complete_savepoint(target, directory, taken or metadata(STATE))
    return directory


@pytest.mark.item("SP-05")
def test_the_name_tells_the_job(tmp_path: Path) -> None:
    """savepoint-, six characters of the job, something random; two of one job differ."""
    target = LocalStore(str(tmp_path))
    first, second = make(target), make(target)
    assert re.fullmatch(r"savepoint-flight-[0-9a-f]{12}", first)
    assert first != second
    assert sorted(path.name for path in (tmp_path / first).iterdir()) == ["_metadata", STATE]


@pytest.mark.item("SP-05")
def test_a_taken_name_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that something lies under is left alone and another one taken; after ten it gives up."""
    target = LocalStore(str(tmp_path))
    drawn = iter(["0" * 32, "0" * 32, "1" * 32])
    monkeypatch.setattr("partfile.snapshot.savepoints.new_token", lambda: next(drawn))
    assert reserve_savepoint(target, "job") == "savepoint-job-" + "0" * 12
    assert reserve_savepoint(target, "job") == "savepoint-job-" + "1" * 12
    monkeypatch.setattr("partfile.snapshot.savepoints.new_token", lambda: "0" * 32)
    with pytest.raises(StoreError, match="10 names"):
        reserve_savepoint(target, "job")


@pytest.mark.item("SP-06")
@pytest.mark.parametrize("verb", ["create_file", "read_file"])
def test_a_target_that_cannot_be_used_is_found_out_first(tmp_path: Path, verb: str) -> None:
    """The name is reserved by writing and reading in the new directory: what cannot do that fails before any work."""
    target = intercept(LocalStore(str(tmp_path)), FailAt(1, StoreError("no access"), only=[verb]))
    with pytest.raises(StoreError, match="no access"):
        reserve_savepoint(target, "job")


@pytest.mark.item("SP-07", "SP-17")
def test_a_moved_copy_reads_the_same(tmp_path: Path) -> None:
    """All names are relative to the directory; the original may be deleted."""
    target = LocalStore(str(tmp_path / "target"))
    taken = metadata(STATE)
    directory = make(target, taken)
    shutil.move(tmp_path / "target" / directory, tmp_path / "elsewhere" / "by-another-name")
    moved = LocalStore(str(tmp_path / "elsewhere"))
    assert read_savepoint(moved, "by-another-name") == taken
    assert savepoints_in(target) == []


@pytest.mark.item("SP-07", "SP-17")
def test_a_savepoint_names_nothing_outside(tmp_path: Path) -> None:
    """A handle into another directory is refused when it is made and when it is read."""
    for path in ("../a.state", "chk-1/a.state", "shared/a", "/a"):
        with pytest.raises(ValueError, match=r"path|directory"):
            metadata(path)
    target = LocalStore(str(tmp_path))
    directory = make(target)
    raw = json.loads(metadata(STATE).model_dump_json())
    raw["operators"]["operator-0"]["coordinator"]["path"] = "shared/a"
    body = json.dumps(raw).encode()
    header = header_of("savepoint", body)
    (tmp_path / directory / "_metadata").write_bytes(header + body + b"\n")
    with pytest.raises(SnapshotCorrupt, match="not in its directory"):
        read_savepoint(target, directory)


@pytest.mark.item("SP-02")
def test_only_what_has_state_is_named(tmp_path: Path) -> None:
    """The content is a map from operator id to state."""
    target = LocalStore(str(tmp_path))
    directory = make(target, metadata(STATE))
    assert list(read_savepoint(target, directory).operators) == ["operator-0"]


@pytest.mark.item("SP-16")
def test_disposing_is_whole_at_every_crash(tmp_path: Path) -> None:
    """Metadata goes first: whichever call a crash comes before, it is whole or none, and disposing again ends it."""
    recorder = Recorder()
    delete_savepoint(intercept(LocalStore(str(tmp_path)), recorder), make(LocalStore(str(tmp_path))))
    assert list(tmp_path.iterdir()) == []
    assert recorder.names == ["delete_file", "list_names", "delete_directory"]
    for number in range(1, len(recorder.calls) + 1):
        target = LocalStore(str(tmp_path))
        directory = make(target)
        with pytest.raises(StoreError):
            delete_savepoint(intercept(target, FailAt(number, StoreError("crash"))), directory)
        if number == 1:
            assert read_savepoint(target, directory).job == "flights"
        else:
            with pytest.raises(NotFound, match="is not a savepoint"):
                read_savepoint(target, directory)
        delete_savepoint(target, directory)
        delete_savepoint(target, directory)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.item("SP-16", "SP-17")
def test_disposing_of_one_leaves_the_others(tmp_path: Path) -> None:
    """Nothing is shared, and only directories that are savepoints by name are ever deleted."""
    target = LocalStore(str(tmp_path))
    first, second = make(target), make(target)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("x")
    delete_savepoint(target, first)
    assert read_savepoint(target, second).job == "flights"
    for name in ("data", "..", "savepoint-x", f"{second}/..", f"a/{second}"):
        with pytest.raises(ConfigError, match=r"is not a savepoint|not a path"):
            delete_savepoint(target, name)
    assert (tmp_path / "data" / "file").exists()


@pytest.mark.item("SP-26")
def test_a_list_shows_the_unfinished_and_the_damaged(tmp_path: Path) -> None:
    """Every savepoint is listed by name, each of the others with its problem; other directories are not."""
    target = LocalStore(str(tmp_path))
    whole, damaged, unfinished = make(target), make(target), reserve_savepoint(target, "flights")
    path = tmp_path / damaged / "_metadata"
    path.write_bytes(path.read_bytes()[:-3])
    (tmp_path / "other").mkdir()
    found = {one.directory: one for one in savepoints_in(target)}
    assert set(found) == {whole, damaged, unfinished}
    assert found[whole].metadata is not None
    assert not found[whole].problem
    assert "damaged" in found[damaged].problem
    assert "never finished" in found[unfinished].problem


@pytest.mark.item("SP-05")
def test_a_savepoint_is_never_overwritten(tmp_path: Path) -> None:
    """Its metadata is created exclusively."""
    target = LocalStore(str(tmp_path))
    directory = make(target)
    with pytest.raises(AlreadyExists):
        complete_savepoint(target, directory, metadata(STATE))


@pytest.mark.item("SP-16", "SP-26")
def test_savepoints_by_their_location(tmp_path: Path) -> None:
    """List, show and dispose of as a user does: by path, also of one that was renamed; nothing else is deleted."""
    target = LocalStore(str(tmp_path / "target"))
    first, second = make(target), make(target)
    left = reserve_savepoint(target, "flights")
    assert {one.directory for one in pf.list_savepoints(tmp_path / "target")} == {first, second, left}
    renamed = (tmp_path / "target" / first).rename(tmp_path / "kept-for-audit")
    assert pf.show_savepoint(renamed / "_metadata").job == "flights"
    for location in (renamed, tmp_path / "target" / second, tmp_path / "target" / left):
        pf.dispose_savepoint(location)
        assert not location.exists()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "_metadata").write_text("something else")
    with pytest.raises(ConfigError, match="is not a savepoint"):
        pf.dispose_savepoint(tmp_path / "data")
    assert (tmp_path / "data" / "_metadata").exists()
    with pytest.raises(StoreError, match="nowhere"):
        pf.list_savepoints(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
