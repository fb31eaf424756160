"""Damaged checkpoints: refused by name, nothing is changed, and a user may go back over them."""

from __future__ import annotations

import json
import os
import shutil
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

import partfile as pf
from partfile.errors import (
    Fenced,
    NotApplied,
    OutcomeUnknown,
    PartfileError,
    PartMissing,
    SnapshotCorrupt,
    SnapshotError,
    SnapshotVersionError,
)
from partfile.snapshot.documents import FORMAT_VERSION, MAX_IDS_AHEAD, header_of
from partfile.snapshot.operator_state import ListStateDescriptor, OperatorStateStore, write_operator_state
from partfile.snapshot.savepoints import read_savepoint
from partfile.snapshot.state_file import JsonCodec
from partfile.snapshot.storage import CheckpointStorage, FileStreamSettings
from partfile.stores.local.posix import CHANGING_CALLS
from partfile.stores.local.store import LocalStore
from partfile.testing.faults import ActAt, FailAt, Recorder
from support.processes.command_line import run
from support.sinks.life_cycle import LONG, batch, everything, long_sink, make_sink, run_to_the_end
from support.state.checkpoint_owner import Owner, held, holding, storage, write_text
from support.state.tampered import newest_metadata as hostile_newest_metadata
from support.state.tampered import tamper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from partfile.snapshot.checkpoint_log import DamagedEnd
    from partfile.snapshot.documents import CheckpointMetadata, OperatorState


VERSIONS = f"checkpoint {FORMAT_VERSION} ".encode(), f"checkpoint {FORMAT_VERSION + 1} ".encode()


# Damaged and hostile snapshots on a real disk: refused by name, quickly, and nothing is changed (M1 to M8).

REFUSED = (SnapshotCorrupt, SnapshotVersionError)
STARTS = 40
"""Whole starts of a sink for each kind of damage; the reader alone meets every byte."""


def seed(base: Path) -> Path:
    """A sink that crashed with open parts; returns its newest checkpoint."""
    out = make_sink(base, rolling=LONG).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    out.close()
    return newest_metadata(base)


def newest_metadata(base: Path) -> Path:
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
def test_every_damaged_byte_of_a_checkpoint_is_refused(
    tmp_path: Path, damage: Callable[[bytes], Iterator[bytes]]
) -> None:
    """M1: cut at each offset, flipped in each byte; whole starts of a sink for a sample, and they change nothing."""
    metadata = seed(tmp_path)
    good = metadata.read_bytes()
    reader = CheckpointStorage(LocalStore(str(tmp_path / "_partfile")), "life")
    checkpoint_id = int(metadata.parent.name[4:])
    cases = list(damage(good))
    for number, data in enumerate(cases):
        metadata.write_bytes(data)
        with pytest.raises(REFUSED, match="_metadata"):
            reader.read_checkpoint(checkpoint_id)
        if number % (len(cases) // STARTS) == 0:
            before = everything(tmp_path)
            with pytest.raises(REFUSED, match="_metadata"):
                make_sink(tmp_path).local().open()
            assert everything(tmp_path) == before
    metadata.write_bytes(good)
    with make_sink(tmp_path).local() as out:
        assert out.position == 4


@pytest.mark.parametrize("damage", [truncated, flipped])
@pytest.mark.fault("F11", "M1")
def test_every_damaged_byte_of_a_state_file_is_refused(
    tmp_path: Path, damage: Callable[[bytes], Iterator[bytes]]
) -> None:
    """M1, for state in a file of its own, with the error naming it."""
    store = LocalStore(str(tmp_path))
    storage = CheckpointStorage(store, "job", FileStreamSettings(inline_threshold_bytes=0))
    states = OperatorStateStore()
    states.list_state(ListStateDescriptor("s", JsonCodec())).update([{"a": [1, "é"]}, "b"])
    handle = write_operator_state(states, storage.stream_factory(1))
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
    """M2: every checkpoint is damaged; refused, and no part is touched."""
    seed(tmp_path)
    for metadata in tmp_path.glob("_partfile/life/chk-*/_metadata"):
        metadata.write_bytes(b"")
    before = everything(tmp_path)
    with pytest.raises(SnapshotCorrupt, match="_metadata"):
        make_sink(tmp_path).local().open()
    assert everything(tmp_path) == before


def rewritten(good: bytes, change: Callable[[Any], Any]) -> bytes:
    """The same document with another body and a right checksum."""
    raw = change(json.loads(good.split(b"\n", 1)[1]))
    return with_header(raw if isinstance(raw, bytes) else json.dumps(raw).encode())


def with_header(body: bytes) -> bytes:
    return header_of("checkpoint", body) + body + b"\n"


def _nested(raw: Any) -> bytes:
    text = json.dumps(raw)
    return text.replace('"operators": {', '"operators": {"x": ' + "[" * 100_000 + "]" * 100_000 + ", ", 1).encode()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda raw: {**raw, "extra": 1}, id="extra key"),
        pytest.param(lambda raw: {key: raw[key] for key in raw if key != "nonce"}, id="missing key"),
        pytest.param(lambda raw: json.dumps(raw)[:-1].encode() + b', "nonce": "other"}', id="doubled key"),
        pytest.param(lambda raw: json.dumps(raw).replace('epoch": 1', 'epoch": NaN').encode(), id="NaN"),
        pytest.param(lambda raw: {**raw, "epoch": 10**400}, id="huge number"),
        pytest.param(lambda raw: json.dumps(raw).replace('epoch": 1', 'epoch": 1e999').encode(), id="inf"),
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
    metadata = seed(tmp_path)
    metadata.write_bytes(rewritten(metadata.read_bytes(), change))
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
    metadata = seed(tmp_path)
    good = metadata.read_bytes()
    os.truncate(metadata, 1 << 30)
    with pytest.raises(SnapshotCorrupt, match="longer than"):
        make_sink(tmp_path).local().open()
    metadata.write_bytes(good)
    with make_sink(tmp_path).local() as out:
        assert out.position == 4


@pytest.mark.fault("M3")
def test_a_later_version_is_refused_by_its_number(tmp_path: Path) -> None:
    """M3: the error names the version and says to upgrade; nothing is touched."""
    metadata = seed(tmp_path)
    metadata.write_bytes(metadata.read_bytes().replace(*VERSIONS, 1))
    before = everything(tmp_path)
    with pytest.raises(SnapshotVersionError, match=rf"(?s)version {FORMAT_VERSION + 1}.*upgrade this one"):
        make_sink(tmp_path).local().open()
    assert everything(tmp_path) == before


@pytest.mark.fault("M7")
def test_a_checkpoint_of_another_base_is_refused(tmp_path: Path) -> None:
    """M7: a checkpoint copied in from elsewhere is of another chain than the one before it, though job and id fit."""
    for name in ("here", "there"):
        seed(tmp_path / name)
    foreign = newest_metadata(tmp_path / "there")
    shutil.copy(foreign, newest_metadata(tmp_path / "here"))
    before = everything(tmp_path / "here")
    with pytest.raises(SnapshotCorrupt, match="does not belong to the checkpoint log"):
        make_sink(tmp_path / "here").local().open()
    assert everything(tmp_path / "here") == before


def test_a_damaged_older_checkpoint_does_not_stop_a_start(tmp_path: Path) -> None:
    """The newest checkpoint alone is what a restore needs (R12)."""
    metadata = seed(tmp_path)
    (older,) = [path for path in tmp_path.glob("_partfile/life/chk-*/_metadata") if path != metadata]
    older.write_bytes(b"garbage")
    with make_sink(tmp_path).local() as out:
        assert out.position == 4


@pytest.mark.parametrize("survivors", ["all others", "none"])
@pytest.mark.fault("M2")
def test_a_newest_checkpoint_that_was_deleted_is_missed(tmp_path: Path, survivors: str) -> None:
    """Its parts are published: going on from the one before, or from nothing, would write their rows again (M2)."""
    run_to_the_end(make_sink(tmp_path), 6)
    metadata_files = sorted(tmp_path.glob("_partfile/life/chk-*/_metadata"), key=lambda path: int(path.parent.name[4:]))
    good = {path: path.read_bytes() for path in metadata_files}
    published = [path.with_name("_published").exists() for path in metadata_files]
    newest = len(metadata_files) - 1 - published[::-1].index(True)
    for path in metadata_files if survivors == "none" else metadata_files[newest:]:
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
    """M5: a checkpoint that would leave no name for the next one."""
    metadata = seed(tmp_path)
    far = 10**18 - 1
    directory = metadata.parent.parent / f"chk-{far}"
    directory.mkdir()
    change = {"checkpoint_id": far, "predecessor": None}
    (directory / "_metadata").write_bytes(rewritten(metadata.read_bytes(), lambda raw: {**raw, **change}))
    before = everything(tmp_path)
    with pytest.raises(REFUSED, match="_metadata"):
        make_sink(tmp_path).local().open()
    assert everything(tmp_path) == before


# A start that its user sends back to an older checkpoint while the newest checkpoint cannot be read (R7, R12).

CREATE = ["create_file"]


def metadata_file(base: Path, checkpoint_id: int) -> Path:
    return base / "job" / f"chk-{checkpoint_id}" / "_metadata"


def damage(base: Path, *ids: int) -> None:
    for number in ids:
        metadata_file(base, number).write_bytes(metadata_file(base, number).read_bytes()[:-9])


def three_checkpoints(base: Path, retained: int = 9) -> Owner:
    """A takeover and two checkpoints, ``a`` and ``b``."""
    one = Owner(base, retained=retained)
    one.start()
    one.complete("a")
    one.complete("b")
    return one


def go_back(one: Owner, seen: Callable[[DamagedEnd | str | None], object] = lambda _: None) -> CheckpointMetadata:
    """Start with ``old`` where the newest state cannot be read."""

    def restore(checkpoint: CheckpointMetadata | None, _id: int) -> dict[str, OperatorState]:
        seen(held(checkpoint))
        return holding(held(checkpoint) or "fresh")

    def over(end: DamagedEnd, _id: int) -> dict[str, OperatorState]:
        seen(end)
        return holding("old")

    return one.checkpoints.start(restore, over)


@pytest.mark.item("DL-10")
def test_the_takeover_goes_above_the_damaged_checkpoint(tmp_path: Path) -> None:
    """The checkpoint after it names it by a digest, and no epoch of the checkpoint log can be as high.

    Nothing is deleted.
    """
    three_checkpoints(tmp_path)
    damage(tmp_path, 2, 3)
    bytes_before = metadata_file(tmp_path, 3).read_bytes()
    checkpoint = go_back(Owner(tmp_path, retained=9))
    assert (held(checkpoint), checkpoint.checkpoint_id, checkpoint.kind) == ("old", 6, "takeover")
    assert checkpoint.epoch == 1 + 2 + 1
    tombstone = storage(tmp_path).read_checkpoint(4)
    assert tombstone is not None
    assert tombstone.predecessor is not None
    assert tombstone.predecessor.checkpoint_id == 3
    assert tombstone.predecessor.nonce.startswith("damaged-")
    assert metadata_file(tmp_path, 3).read_bytes() == bytes_before
    assert storage(tmp_path).list_completed_ids() == [1, 2, 3, 4, 5, 6]
    first = storage(tmp_path).read_checkpoint(1)
    assert first is not None
    assert checkpoint.log_id == first.log_id


@pytest.mark.item("DL-10", "DL-11")
def test_the_next_start_passes_the_damaged_checkpoint_by(tmp_path: Path) -> None:
    """It needs no option; the damaged checkpoint does not count as retained, and goes when retention passes it."""
    three_checkpoints(tmp_path, retained=2)
    damage(tmp_path, 3)
    went_back = Owner(tmp_path, retained=2)
    go_back(went_back)
    assert storage(tmp_path).list_completed_ids() == [2, 3, 4, 5, 6]
    again = Owner(tmp_path, retained=9)
    assert held(again.start()) == "old"
    assert storage(tmp_path).list_completed_ids() == [2, 3, 4, 5, 6, 7, 8, 9]
    last = Owner(tmp_path, retained=2)
    assert held(last.start()) == "old"
    assert storage(tmp_path).list_completed_ids() == [9, 10, 11, 12]


@pytest.mark.item("DL-10")
def test_a_tombstone_above_the_damaged_checkpoint_is_the_predecessor(tmp_path: Path) -> None:
    """It can be read, but holds no state; so the newest state is still the one that cannot be."""
    one = three_checkpoints(tmp_path)
    one.checkpoints.abort(one.trigger().checkpoint_id)
    damage(tmp_path, 3)
    with pytest.raises(SnapshotCorrupt, match="chk-3/_metadata"):
        Owner(tmp_path).start()
    checkpoint = go_back(Owner(tmp_path, retained=9))
    tombstone, after = (storage(tmp_path).read_checkpoint(number) for number in (4, 5))
    assert tombstone is not None
    assert after is not None
    assert after.predecessor == tombstone.ref
    assert (checkpoint.checkpoint_id, checkpoint.epoch) == (tombstone.reserved_through + 1, 2)


def test_a_damaged_checkpoint_that_is_put_back_meanwhile_is_believed(tmp_path: Path) -> None:
    """The digest tells: the takeover does not count, and the start begins again."""
    three_checkpoints(tmp_path)
    good = metadata_file(tmp_path, 3).read_bytes()
    damage(tmp_path, 3)
    seen: list[DamagedEnd | str | None] = []
    put_back = ActAt(1, lambda: metadata_file(tmp_path, 3).write_bytes(good), "after", only=CREATE)
    checkpoint = go_back(Owner(tmp_path, put_back, retained=9), seen.append)
    assert [isinstance(one, str) for one in seen] == [False, True]
    assert checkpoint.checkpoint_id == 6


@pytest.mark.parametrize("batches", [0, 3])
def test_a_start_that_slept_while_a_rival_went_back_begins_again(tmp_path: Path, batches: int) -> None:
    """The rival took the checkpoint, or used its name and freed it.

    It begins with the rival's state, without an error.
    """
    three_checkpoints(tmp_path, retained=2)
    damage(tmp_path, 3)

    def rival() -> None:
        one = Owner(tmp_path, retained=2)
        go_back(one)
        for number in range(batches):
            one.complete(f"r{number}")

    seen: list[DamagedEnd | str | None] = []
    checkpoint = go_back(Owner(tmp_path, ActAt(1, rival, only=CREATE)), seen.append)
    assert seen[1:] == [f"r{batches - 1}" if batches else "old"]
    assert checkpoint.checkpoint_id == batches + 9


def test_the_coordinator_of_the_damaged_checkpoint_is_fenced_by_it(tmp_path: Path) -> None:
    """It is alive and knows the state that no start can read; only one of the two wins the next checkpoint."""
    one = three_checkpoints(tmp_path)
    damage(tmp_path, 3)
    go_back(Owner(tmp_path))
    with pytest.raises(Fenced, match="taken over"):
        one.complete("c")
    assert held(Owner(tmp_path).checkpoints.look()) == "old"


def test_damage_under_a_live_coordinator_is_told(tmp_path: Path) -> None:
    """Its own newest checkpoint cannot be read any more: no reason to believe that another has taken over."""
    one = three_checkpoints(tmp_path)
    damage(tmp_path, 3)
    with pytest.raises(SnapshotCorrupt, match="chk-3/_metadata"):
        one.complete("c")
    assert held(Owner(tmp_path).start()) == "c"


def test_nothing_is_known_where_no_checkpoint_can_be_read(tmp_path: Path) -> None:
    """There is no chain to go on from, and nothing is created."""
    three_checkpoints(tmp_path)
    damage(tmp_path, 1, 2, 3)
    with pytest.raises(SnapshotCorrupt, match="chk-3/_metadata"):
        go_back(Owner(tmp_path))
    assert storage(tmp_path).list_completed_ids() == [1, 2, 3]


def test_checkpoints_of_two_logs_are_refused(tmp_path: Path) -> None:
    """One was copied here; it cannot be told which chain the damaged checkpoint was of."""
    for name in ("here", "there"):
        three_checkpoints(tmp_path / name)
    metadata_file(tmp_path / "here", 1).write_bytes(metadata_file(tmp_path / "there", 1).read_bytes())
    damage(tmp_path / "here", 3)
    with pytest.raises(SnapshotCorrupt, match="chk-3/_metadata"):
        go_back(Owner(tmp_path / "here"))


def test_a_later_version_is_no_damage(tmp_path: Path) -> None:
    """What a newer partfile wrote can be read by it: upgrade."""
    three_checkpoints(tmp_path)
    path = metadata_file(tmp_path, 3)
    path.write_bytes(path.read_bytes().replace(*VERSIONS, 1))
    with pytest.raises(SnapshotVersionError, match=f"version {FORMAT_VERSION + 1}"):
        go_back(Owner(tmp_path))


def test_a_checkpoint_that_cannot_be_read_now_is_no_damage(tmp_path: Path) -> None:
    """A failing store says nothing about the checkpoint."""
    three_checkpoints(tmp_path)
    damage(tmp_path, 3)
    with pytest.raises(NotApplied, match="deliberate"):
        go_back(Owner(tmp_path, FailAt(2, NotApplied("deliberate"), only=["read_file"])))
    unread = FailAt(6, NotApplied("deliberate"), only=["read_file"])
    with pytest.raises(OutcomeUnknown, match="does not say"):
        go_back(Owner(tmp_path, unread, retained=9))
    assert held(go_back(Owner(tmp_path, retained=9))) == "old"


def test_a_huge_checkpoint_is_not_read(tmp_path: Path) -> None:
    """It is larger than any that was written; that is all that has to be known of it."""
    three_checkpoints(tmp_path)
    with metadata_file(tmp_path, 3).open("ab") as file:
        file.truncate(1 << 30)
    assert held(go_back(Owner(tmp_path, retained=9))) == "old"


@pytest.mark.item("CC-06", "DL-10")
@pytest.mark.parametrize("tried", [0, 9])
def test_no_id_that_may_have_been_triggered_is_used_again(tmp_path: Path, tried: int) -> None:
    """How many ids the damaged checkpoint reserves only it says.

    As many as any other, and each that has a directory.
    """
    three_checkpoints(tmp_path)
    damage(tmp_path, 3)
    if tried:
        write_text(storage(tmp_path, inline_threshold_bytes=0), tried, "x")
    first = storage(tmp_path).read_checkpoint(1)
    assert first is not None
    ahead = first.ids_ahead
    assert go_back(Owner(tmp_path, retained=9)).checkpoint_id == max(3 + ahead, tried) + 1


@pytest.mark.item("CC-06")
@pytest.mark.fault("M5")
def test_a_directory_that_no_coordinator_made_closes_no_ids(tmp_path: Path) -> None:
    """M5: it would take tombstones without end; the damage is told instead, and nothing is created."""
    three_checkpoints(tmp_path)
    damage(tmp_path, 3)
    (metadata_file(tmp_path, 3).parent.parent / f"chk-{3 + MAX_IDS_AHEAD + 1}").mkdir()
    checkpoints = storage(tmp_path).list_completed_ids()
    with pytest.raises(SnapshotCorrupt):
        go_back(Owner(tmp_path, retained=9))
    assert storage(tmp_path).list_completed_ids() == checkpoints


# State inside a checkpoint that was changed, checksums and all: refused before storage is asked (H1, M5).


OPEN, POSITION = "assigned-parts", "stream-position"
OUTSIDE = ["../../x", "..", "/etc/x", "a/../../x", "file:///x", "s3://bucket/x", "a\x00b", "\ud800", "x" * 300, ""]
TREE_CALLS = CHANGING_CALLS - {"sync", "sync_directory"}
"""A start syncs the directories that it reads, since a crash may have left that out: no change of the tree."""
VERBS = ("recover", "recover --apply --fence", "clean", "clean --apply --fence", "status --scan", "verify")


def hostile_seed(base: Path) -> Path:
    """A sink that crashed with open parts; returns its newest checkpoint."""
    out = long_sink(base).local().open()
    out.write(batch(0, 8), position=8)
    out.checkpoint()
    out.close()
    return hostile_newest_metadata(base)


def part_with(**fields: object) -> Callable[[Any], Any]:
    """Changes names of an open part."""
    return lambda raw: {**raw, "open": {**raw["open"], "part": {**raw["open"]["part"], **fields}}}


def assert_refused(base: Path) -> None:
    """No start and no verb goes by the state or changes anything, and each tells what is wrong."""
    before, recorder = everything(base), Recorder(only=TREE_CALLS)
    with pytest.raises(SnapshotCorrupt):
        make_sink(base, interceptor=recorder).local().open()
    assert recorder.count == 0
    assert everything(base) == before
    for verb in VERBS:
        result = run(verb.split()[0], base, *verb.split()[1:])
        assert result.exit_code in {1, 2}, f"{verb}: {result.stdout}{result.stderr}"
        assert isinstance(result.exception, SystemExit)
    with pytest.raises(PartfileError):
        pf.read(base, format="text", include="pending")
    assert everything(base) == before


@pytest.mark.fault("H1")
@pytest.mark.parametrize("field", ["bucket", "name", "in_progress", "pending", "sidecar"])
def test_a_part_that_is_not_below_the_base_is_refused(tmp_path: Path, field: str) -> None:
    """Absolute paths, other schemes, ``..``, NUL: no file outside is touched, none below the base changes."""
    base = tmp_path / "base"
    metadata = hostile_seed(base)
    good, victim = metadata.read_bytes(), tmp_path / "x"
    victim.write_bytes(b"not ours")
    for name in OUTSIDE[:-1] if field == "bucket" else OUTSIDE:
        metadata.write_bytes(good)
        tamper(metadata, OPEN, part_with(**{field: name}))
        with pytest.raises(SnapshotCorrupt):
            make_sink(base).local().open()
    assert_refused(base)
    assert victim.read_bytes() == b"not ours"


@pytest.mark.fault("H1")
@pytest.mark.parametrize("chain", ["../../x", "a/b", "", "0123456", "012345678", "0123456G", "0123456\n"])
def test_a_chain_that_would_lead_elsewhere_is_refused(tmp_path: Path, chain: str) -> None:
    """It is in the name of every part that comes."""
    tamper(hostile_seed(tmp_path), POSITION, lambda raw: {**raw, "chain": chain})
    assert_refused(tmp_path)


def _in(raw: Any, name: str, text: str) -> bytes:
    """JSON with a field that ``json.dumps`` would not write."""
    return json.dumps({**raw, name: "?"}).replace('"?"', text).encode()


@pytest.mark.fault("M5")
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda raw: _in(raw, "user_position", "NaN"), id="NaN"),
        pytest.param(lambda raw: _in(raw, "user_position", "-Infinity"), id="infinity"),
        pytest.param(lambda raw: _in(raw, "user_position", "[1e999]"), id="overflow"),
        pytest.param(lambda raw: _in(raw, "user_position", "9" * 5000), id="endless number"),
        pytest.param(lambda raw: _in(raw, "user_position", "[" * 100_000 + "]" * 100_000), id="deep nesting"),
        pytest.param(lambda raw: _in(raw, "user_position", '{"a": 1, "a": 2}'), id="doubled name inside"),
        pytest.param(lambda raw: json.dumps(raw)[:-1].encode() + b', "kept": true}', id="doubled name"),
        pytest.param(lambda raw: {**raw, "more": 1}, id="extra name"),
        pytest.param(lambda raw: {**raw, "parallelism": -1}, id="negative"),
        pytest.param(lambda _raw: b"", id="nothing"),
        pytest.param(lambda _raw: b"\x80\x04N.", id="a pickle"),
    ],
)
def test_hostile_elements_are_refused(tmp_path: Path, change: Callable[[Any], Any]) -> None:
    """Whatever an element of state says: one error, in bounded time, and nothing is changed."""
    tamper(hostile_seed(tmp_path), POSITION, change)
    assert_refused(tmp_path)


@pytest.mark.fault("M5")
def test_what_was_only_written_otherwise_is_taken(tmp_path: Path) -> None:
    """Spaces and the order of fields are no damage: the check is about what is said."""
    tamper(hostile_seed(tmp_path), POSITION, lambda raw: dict(reversed(raw.items())))
    with make_sink(tmp_path).local() as out:
        assert out.position == 8


@pytest.mark.fault("F10", "H1")
def test_a_part_that_claims_more_bytes_than_it_has_is_not_published(tmp_path: Path) -> None:
    """A valid length beyond the file, as after losing acknowledged bytes: missing data is told, nothing is made up."""
    metadata = hostile_seed(tmp_path)
    tamper(metadata, OPEN, part_with(valid_length=10**15))
    with pytest.raises(PartMissing):
        make_sink(tmp_path).local().open()
    assert not [path for path in tmp_path.rglob("part-*") if path.is_file()]
