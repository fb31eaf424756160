"""Damaged and hostile snapshots on a real disk: refused by name, quickly, and nothing is changed (M1 to M8)."""

from __future__ import annotations

import json
import os
import shutil
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from life_cycle import LONG, batch, everything, make_sink, run_to_the_end

from partfile.errors import SnapshotCorrupt, SnapshotError, SnapshotVersionError
from partfile.snapshot.documents import FORMAT_VERSION, header_of
from partfile.snapshot.operator_state import ListStateDescriptor, OperatorStateStore
from partfile.snapshot.savepoints import read_savepoint
from partfile.snapshot.state_file import JsonCodec
from partfile.snapshot.storage import CheckpointStorage, FileStreamSettings
from partfile.snapshot.strategy import write_operator_state
from partfile.stores.local.store import LocalStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

REFUSED = (SnapshotCorrupt, SnapshotVersionError)
STARTS = 40
"""Whole starts of a sink for each kind of damage; the reader alone meets every byte."""


def seed(base: Path) -> Path:
    """A sink that crashed with open parts; returns its newest link."""
    out = make_sink(base, rolling=LONG).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    out.close()
    return newest_link(base)


def newest_link(base: Path) -> Path:
    return max(base.glob("_partfile/life/chk-*/_metadata"), key=lambda path: int(path.parent.name[4:]))


def truncated(data: bytes) -> Iterator[bytes]:
    return (data[:length] for length in range(len(data)))


def flipped(data: bytes) -> Iterator[bytes]:
    for place in range(len(data)):
        for bit in (0x01, 0x80):
            yield data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :]


@pytest.mark.item("DL-08")
@pytest.mark.parametrize("damage", [truncated, flipped])
@pytest.mark.fault("M1")
def test_every_damaged_byte_of_a_link_is_refused(tmp_path: Path, damage: Callable[[bytes], Iterator[bytes]]) -> None:
    """M1: cut at each offset, flipped in each byte; whole starts of a sink for a sample, and they change nothing."""
    link = seed(tmp_path)
    good = link.read_bytes()
    reader = CheckpointStorage(LocalStore(str(tmp_path / "_partfile")), "life")
    checkpoint_id = int(link.parent.name[4:])
    cases = list(damage(good))
    for number, data in enumerate(cases):
        link.write_bytes(data)
        with pytest.raises(REFUSED, match="_metadata"):
            reader.read_link(checkpoint_id)
        if number % (len(cases) // STARTS) == 0:
            before = everything(tmp_path)
            with pytest.raises(REFUSED, match="_metadata"):
                make_sink(tmp_path).local().open()
            assert everything(tmp_path) == before
    link.write_bytes(good)
    with make_sink(tmp_path).local() as out:
        assert out.position == 4


@pytest.mark.parametrize("damage", [truncated, flipped])
@pytest.mark.fault("S11", "M1")
def test_every_damaged_byte_of_a_state_file_is_refused(
    tmp_path: Path, damage: Callable[[bytes], Iterator[bytes]]
) -> None:
    """M1, for state in a file of its own, with the error naming it."""
    store = LocalStore(str(tmp_path))
    storage = CheckpointStorage(store, "job", FileStreamSettings(inline_threshold_bytes=0))
    states = OperatorStateStore()
    states.list_state(ListStateDescriptor("s", JsonCodec())).update([{"a": [1, "é"]}, "b"])
    handle = write_operator_state(states, storage.stream_factory(1), 1, 0)
    assert handle is not None
    (path,) = (tmp_path / "job" / "chk-1").iterdir()
    good = path.read_bytes()
    assert storage.read_state(handle)["s"].elements[1] == b'"b"'
    for data in damage(good):
        path.write_bytes(data)
        with pytest.raises(SnapshotCorrupt, match=path.name):
            storage.read_state(handle)
    for data in (good + b"\n", good * 2):
        path.write_bytes(data)
        with pytest.raises(SnapshotCorrupt, match=path.name):
            storage.read_state(handle)
    path.unlink()
    with pytest.raises(SnapshotCorrupt, match=f"{path.name} is missing"):
        storage.read_state(handle)


@pytest.mark.parametrize("damage", [truncated, flipped])
@pytest.mark.fault("M1")
def test_every_damaged_byte_of_a_savepoint_is_refused(
    tmp_path: Path, damage: Callable[[bytes], Iterator[bytes]]
) -> None:
    """M1, for what a user keeps: an empty base stays empty."""
    out = make_sink(tmp_path / "out").local().open()
    out.write(batch(0, 4), position=4)
    where = out.stop_with_savepoint(tmp_path / "savepoints")
    (path,) = (tmp_path / "savepoints").glob("*/_metadata")
    good, target = path.read_bytes(), LocalStore(str(tmp_path / "savepoints"))
    for data in damage(good):
        path.write_bytes(data)
        with pytest.raises(REFUSED, match="_metadata"):
            read_savepoint(target, path.parent.name)
    with pytest.raises(SnapshotError, match="_metadata"):
        make_sink(tmp_path / "fresh", restore_from=where).local().open()
    assert not list((tmp_path / "fresh").rglob("_metadata"))


@pytest.mark.fault("M2")
def test_nothing_starts_fresh_over_unreadable_checkpoints(tmp_path: Path) -> None:
    """M2: every link is damaged; refused, and no part is touched."""
    seed(tmp_path)
    for link in tmp_path.glob("_partfile/life/chk-*/_metadata"):
        link.write_bytes(b"")
    before = everything(tmp_path)
    with pytest.raises(SnapshotCorrupt, match="_metadata"):
        make_sink(tmp_path).local().open()
    assert everything(tmp_path) == before


def rewritten(good: bytes, change: Callable[[Any], Any]) -> bytes:
    """The same document with another body and a right checksum."""
    raw = change(json.loads(good.split(b"\n", 1)[1]))
    return with_header(raw if isinstance(raw, bytes) else json.dumps(raw).encode())


def with_header(body: bytes, version: int = FORMAT_VERSION) -> bytes:
    return header_of("checkpoint", version, body) + body + b"\n"


def _nested(raw: Any) -> bytes:
    text = json.dumps(raw)
    return text.replace('"operators": {', '"operators": {"x": ' + "[" * 100_000 + "]" * 100_000 + ", ", 1).encode()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda raw: {**raw, "extra": 1}, id="extra key"),
        pytest.param(lambda raw: {key: raw[key] for key in raw if key != "nonce"}, id="missing key"),
        pytest.param(lambda raw: json.dumps(raw)[:-1].encode() + b', "nonce": "other"}', id="doubled key"),
        pytest.param(lambda raw: json.dumps(raw).replace('generation": 1', 'generation": NaN').encode(), id="NaN"),
        pytest.param(lambda raw: {**raw, "generation": 10**400}, id="huge number"),
        pytest.param(lambda raw: json.dumps(raw).replace('generation": 1', 'generation": 1e999').encode(), id="inf"),
        pytest.param(_nested, id="deep nesting"),
        pytest.param(lambda raw: {**raw, "operators": []}, id="wrong type"),
        pytest.param(lambda raw: {**raw, "checkpoint_id": "2"}, id="number as text"),
        pytest.param(lambda raw: {**raw, "nonce": "\ud800"}, id="lone surrogate"),
        pytest.param(lambda raw: {**raw, "kind": "other"}, id="unknown tag"),
        pytest.param(lambda raw: {**raw, "job": "other"}, id="another job"),
        pytest.param(lambda raw: {**raw, "checkpoint_id": 9}, id="another id"),
        pytest.param(lambda raw: {**raw, "ids_ahead": 10**15}, id="endless tombstones"),
        pytest.param(lambda raw: {**raw, "ids_ahead": -1}, id="reserved before its own"),
        pytest.param(lambda raw: {**raw, "ids_ahead": None}, id="reserved through nothing"),
        pytest.param(lambda _raw: b"\x80\x04N.", id="a pickle"),
        pytest.param(lambda _raw: b"\x81\xa1a\x01", id="msgpack"),
    ],
)
@pytest.mark.fault("M5", "M7")
def test_hostile_content_is_refused_in_bounded_time_and_memory(tmp_path: Path, change: Callable[[Any], Any]) -> None:
    """M5, M7: whatever the body says, with a right checksum; nothing is changed."""
    link = seed(tmp_path)
    link.write_bytes(rewritten(link.read_bytes(), change))
    before = everything(tmp_path)
    tracemalloc.start()
    try:
        with pytest.raises(REFUSED, match="_metadata"):
            make_sink(tmp_path).local().open()
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert everything(tmp_path) == before


@pytest.mark.fault("M5")
def test_a_huge_file_is_refused_without_being_read(tmp_path: Path) -> None:
    """M5: a gigabyte that looks like a document from its header is more than any that was written."""
    link = seed(tmp_path)
    good = link.read_bytes()
    os.truncate(link, 1 << 30)
    with pytest.raises(SnapshotCorrupt, match="longer than"):
        make_sink(tmp_path).local().open()
    link.write_bytes(good)
    with make_sink(tmp_path).local() as out:
        assert out.position == 4


@pytest.mark.fault("M3")
def test_a_later_version_is_refused_by_its_number(tmp_path: Path) -> None:
    """M3: the error names the version and says to upgrade; nothing is touched."""
    link = seed(tmp_path)
    link.write_bytes(with_header(link.read_bytes().split(b"\n", 1)[1].rstrip(b"\n"), version=FORMAT_VERSION + 1))
    before = everything(tmp_path)
    with pytest.raises(SnapshotVersionError, match=rf"version {FORMAT_VERSION + 1}.*Upgrade"):
        make_sink(tmp_path).local().open()
    assert everything(tmp_path) == before


@pytest.mark.fault("M7")
def test_a_link_of_another_base_is_refused(tmp_path: Path) -> None:
    """M7: a checkpoint copied in from elsewhere is of another chain than the one before it, though job and id fit."""
    for name in ("here", "there"):
        seed(tmp_path / name)
    foreign = newest_link(tmp_path / "there")
    shutil.copy(foreign, newest_link(tmp_path / "here"))
    before = everything(tmp_path / "here")
    with pytest.raises(SnapshotCorrupt, match="does not belong to the chain"):
        make_sink(tmp_path / "here").local().open()
    assert everything(tmp_path / "here") == before


def test_a_damaged_older_link_does_not_stop_a_start(tmp_path: Path) -> None:
    """The newest link alone is what a restore needs (S12)."""
    link = seed(tmp_path)
    (older,) = [path for path in tmp_path.glob("_partfile/life/chk-*/_metadata") if path != link]
    older.write_bytes(b"garbage")
    with make_sink(tmp_path).local() as out:
        assert out.position == 4


@pytest.mark.parametrize("survivors", ["all others", "none"])
@pytest.mark.fault("M2")
def test_a_newest_link_that_was_deleted_is_missed(tmp_path: Path, survivors: str) -> None:
    """Its parts are published: going on from the one before, or from nothing, would write their rows again (M2)."""
    run_to_the_end(make_sink(tmp_path), 6)
    links = sorted(tmp_path.glob("_partfile/life/chk-*/_metadata"), key=lambda path: int(path.parent.name[4:]))
    good = {path: path.read_bytes() for path in links}
    published = [path.with_name("_published").exists() for path in links]
    newest = len(links) - 1 - published[::-1].index(True)
    for path in links if survivors == "none" else links[newest:]:
        path.unlink()
    before = everything(tmp_path)
    with pytest.raises(SnapshotCorrupt, match="_metadata is gone"):
        make_sink(tmp_path).local().open()
    assert everything(tmp_path) == before
    for path, data in good.items():
        path.write_bytes(data)
    with make_sink(tmp_path).local() as out:
        assert out.position == 6


@pytest.mark.item("CC-06")
@pytest.mark.fault("M5")
def test_an_id_that_no_job_reaches_is_refused(tmp_path: Path) -> None:
    """M5: a link that would leave no name for the next one."""
    link = seed(tmp_path)
    far = 10**18 - 1
    directory = link.parent.parent / f"chk-{far}"
    directory.mkdir()
    change = {"checkpoint_id": far, "predecessor": None}
    (directory / "_metadata").write_bytes(rewritten(link.read_bytes(), lambda raw: {**raw, **change}))
    before = everything(tmp_path)
    with pytest.raises(REFUSED, match="_metadata"):
        make_sink(tmp_path).local().open()
    assert everything(tmp_path) == before
