"""Task-local recovery: copies of keyed state on this machine, and restores that use them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from partfile.errors import NotApplied, SnapshotCorrupt
from partfile.snapshot.documents import FileHandle
from partfile.snapshot.keyed.heap import HeapBackend
from partfile.snapshot.keyed.restore import read_keyed_files
from partfile.snapshot.keyed.strategy import KeyedStateStrategy
from partfile.snapshot.local_state import LocalStateStore
from partfile.snapshot.storage import CheckpointStorage, FileStreamSettings
from partfile.snapshot.strategy import SnapshotOptions, StrategyRunner
from partfile.stores.local.store import LocalStore
from partfile.testing.faults import CrashAt, FailAt, Recorder, SimulatedCrash, intercept
from support.files.disks import small_disk
from support.state.keyed import BACKENDS, backend_of, bytes_of, filled, value_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from partfile.snapshot.keyed.restore import RestoredFile
    from partfile.snapshot.strategy import SnapshotResult
    from partfile.testing.faults import When

DIRECTORY = "job/operator/0"
SIDES: tuple[When, When] = ("before", "after")


@pytest.fixture(params=BACKENDS, ids=["heap", "rocksdb"])
def make(request: pytest.FixtureRequest) -> Any:
    """The class of a backend."""
    return request.param


class Subtask:
    """A subtask with keyed state, the storage of its job, and a disk of its machine."""

    def __init__(self, base: Path, make: Any) -> None:
        self.base = base
        self.make = make
        self.local_store = LocalStore(str(base / "local"))
        streams = FileStreamSettings(inline_threshold_bytes=0)
        self.storage = CheckpointStorage(LocalStore(str(base / "primary")), "job", streams)
        self.local = LocalStateStore(self.local_store, DIRECTORY)
        self.backend, self._change = filled(30, make)
        self._change(1)

    def snapshot(
        self, checkpoint_id: int, local: LocalStateStore | None = None, options: SnapshotOptions | None = None
    ) -> SnapshotResult:
        """Take a checkpoint of other state than the ones before."""
        self._change(checkpoint_id + 1)
        runner = StrategyRunner(KeyedStateStrategy(self.backend, local or self.local))
        streams = self.storage.stream_factory(checkpoint_id)
        return runner.snapshot(checkpoint_id, 0, streams, options or SnapshotOptions()).result()

    def files(self, where: str) -> list[str]:
        """All files of the primary storage or of this machine."""
        base = self.base / where
        return sorted(path.relative_to(base).as_posix() for path in base.rglob("*") if path.is_file())

    def damage(self, where: str, ending: str, data: bytes | None) -> None:
        """Overwrite the only file with this ending; None deletes it."""
        (path,) = (path for path in (self.base / where).rglob(f"*{ending}") if path.is_file())
        if data is None:
            path.unlink()
        else:
            path.write_bytes(data)

    def check(self, expected: bytes, *handles: Any, sources: tuple[str, ...]) -> None:
        """A restore gives the same state, and says from where it was read; so does another process."""
        with LocalStore(str(self.base / "local")) as store:
            for local in (self.local, LocalStateStore(store, DIRECTORY)):
                with read_keyed_files(self.storage, handles, local) as found:
                    assert tuple(one.source for one in found) == sources
                    assert {self.restored(one) for one in found} == {expected}

    def restored(self, found: RestoredFile) -> bytes:
        """What a subtask has that was restored from a file."""
        backend = backend_of(self.make, files=[found.file])
        try:
            backend.value_state(value_of())
            return bytes_of(backend)
        finally:
            backend.close()


@pytest.fixture
def subtask(make: Any, tmp_path: Path) -> Iterator[Subtask]:
    """A subtask on either backend."""
    made = Subtask(tmp_path, make)
    yield made
    made.backend.close()


@pytest.mark.item("LR-01", "LR-04", "LR-06", "LR-12")
def test_a_restore_reads_the_copy(subtask: Subtask, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is asked of the checkpoint's storage. The log says from where the state came."""
    result = subtask.snapshot(1)
    assert isinstance(result.primary, FileHandle)
    expected = subtask.storage.read_bytes(result.primary)
    assert result.primary.path in subtask.files("primary")[0]
    subtask.damage("primary", ".state", None)
    with caplog.at_level(logging.INFO, "partfile"):
        subtask.check(expected, result.primary, sources=("local",))
    assert f"restored from the local copy of {subtask.storage.shown(result.primary)}" in caplog.text


@pytest.mark.item("LR-01")
def test_without_copies_a_restore_reads_the_storage(subtask: Subtask) -> None:
    """As it does where none are wanted."""
    runner = StrategyRunner(KeyedStateStrategy(subtask.backend))
    result = runner.snapshot(1, 0, subtask.storage.stream_factory(1), SnapshotOptions()).result()
    assert result.primary is not None
    assert subtask.files("local") == []
    subtask.check(subtask.storage.read_bytes(result.primary), result.primary, sources=("primary",))
    with read_keyed_files(subtask.storage, [result.primary]) as (found,):
        assert found.source == "primary"


DAMAGES: dict[str, tuple[str, bytes | None]] = {
    "the copy is gone": (".state", None),
    "the copy is cut": (".state", b"partfile keyed-state 1"),
    "the copy is empty": (".state", b""),
    "the document is gone": (".copy", None),
    "the document is cut": (".copy", b"partfile local-copy 1 7"),
    "the document is empty": (".copy", b""),
}


@pytest.mark.item("LR-06", "LR-09")
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_copy_is_not_used(subtask: Subtask, damage: str) -> None:
    """The storage has the file. Where that is gone too, the restore says so."""
    result = subtask.snapshot(1)
    assert result.primary is not None
    expected = subtask.storage.read_bytes(result.primary)
    subtask.damage("local", *DAMAGES[damage])
    subtask.check(expected, result.primary, sources=("primary",))
    subtask.damage("primary", ".state", None)
    restore = read_keyed_files(subtask.storage, [result.primary], subtask.local)
    with pytest.raises(SnapshotCorrupt, match="is missing"), restore:
        pass


@pytest.mark.item("LR-06")
def test_every_byte_of_a_copy_counts(subtask: Subtask, rng: Any) -> None:
    """One that is another: the storage is read."""
    result = subtask.snapshot(1)
    assert result.primary is not None
    data = subtask.storage.read_bytes(result.primary)
    for at in [0, len(data) - 1, *(rng.randrange(len(data)) for _ in range(20))]:
        subtask.damage("local", ".state", data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :])
        with read_keyed_files(subtask.storage, [result.primary], subtask.local) as (found,):
            assert found.source == "primary", at


@pytest.mark.item("LR-08")
def test_a_copy_is_of_the_file_that_its_document_names(subtask: Subtask) -> None:
    """A file with the same token, but of other bytes, has none here. A copy may have another format than its file."""
    result = subtask.snapshot(1)
    assert isinstance(result.primary, FileHandle)
    other = result.primary.model_copy(update={"crc32": result.primary.crc32 ^ 1})
    assert subtask.local.read(other) is None
    assert subtask.local.read(result.primary) is not None
    stream = subtask.local.create_stream(2)
    stream.write(b"another format")
    copy = stream.close_and_get_handle()
    assert copy is not None
    named = result.primary.model_copy(update={"path": "chk-2/" + "0" * 32 + ".state"})
    assert subtask.local.keep(2, named, copy)
    assert subtask.local.read(named) == b"another format"
    subtask.local.begin(2)
    subtask.damage("local", ".state", b"another f0rmat")
    assert subtask.local.read(named) is None


@pytest.mark.item("LR-06")
def test_a_whole_copy_that_is_no_keyed_state_is_not_used(subtask: Subtask, caplog: pytest.LogCaptureFixture) -> None:
    """Its checksum is right, and what is in it cannot be read."""
    result = subtask.snapshot(1)
    assert result.primary is not None
    subtask.local.abort(1)
    stream = subtask.local.create_stream(1)
    stream.write(b"something else")
    copy = stream.close_and_get_handle()
    assert copy is not None
    subtask.local.keep(1, result.primary, copy)
    subtask.check(subtask.storage.read_bytes(result.primary), result.primary, sources=("primary",))
    assert "is not used: the local copy of" in caplog.text


@pytest.mark.item("LR-07")
def test_some_files_have_copies_and_others_not(subtask: Subtask) -> None:
    """Each is read from where it is."""
    handles = [subtask.snapshot(at).primary for at in (1, 2, 3)]
    subtask.local.abort(2)
    with read_keyed_files(subtask.storage, [handle for handle in handles if handle], subtask.local) as found:
        assert [one.source for one in found] == ["local", "primary", "local"]


@pytest.mark.item("LR-05")
def test_copies_go_when_a_later_checkpoint_is_complete(subtask: Subtask) -> None:
    """Those before it; those of an aborted one; and after a restore all but its own."""

    def ids() -> list[str]:
        return sorted(subtask.local_store.list_names(DIRECTORY))

    for at in (1, 2, 3, 10, 11):
        subtask.snapshot(at)
    subtask.local.confirm(3)
    assert ids() == ["chk-10", "chk-11", "chk-3"]
    subtask.local.abort(10)
    subtask.local.abort(10)
    assert ids() == ["chk-11", "chk-3"]
    subtask.local.begin(3)
    assert ids() == ["chk-3"]
    subtask.local.begin(None)
    assert ids() == []
    subtask.local.confirm(99)


@pytest.mark.item("LR-05")
def test_another_subtask_keeps_its_copies(subtask: Subtask) -> None:
    """What one confirms or begins concerns its own directory alone."""
    result = subtask.snapshot(1)
    other = LocalStateStore(subtask.local_store, "job/operator/1")
    other.confirm(5)
    other.begin(None)
    assert result.primary is not None
    assert other.read(result.primary) is None
    assert subtask.local.read(result.primary) is not None


@pytest.mark.item("LR-01", "SS-18")
def test_a_savepoint_has_no_copy(subtask: Subtask) -> None:
    """It is read where it lies, wherever it was moved."""
    assert subtask.snapshot(1, options=SnapshotOptions("savepoint")).local is None
    assert subtask.files("local") == []


def test_state_that_travels_inline_has_no_copy(make: Any, tmp_path: Path) -> None:
    """A restore has it in the metadata already."""
    subtask = Subtask(tmp_path, make)
    subtask.storage = CheckpointStorage(
        LocalStore(str(tmp_path / "primary")), "job", FileStreamSettings(inline_threshold_bytes=1 << 20)
    )
    result = subtask.snapshot(1)
    assert result.primary is not None
    assert result.local is None
    assert subtask.files("local") == []
    subtask.check(subtask.storage.read_bytes(result.primary), result.primary, sources=("primary",))
    subtask.backend.close()


@pytest.mark.item("LR-02")
def test_a_full_disk_of_this_machine_costs_the_copy_alone(make: Any, tmp_path: Path) -> None:
    """A real one."""
    with small_disk(tmp_path / "local", "4k"):
        subtask = Subtask(tmp_path, make)
        result = subtask.snapshot(1)
        assert result.primary is not None
        assert result.local is None
        subtask.check(subtask.storage.read_bytes(result.primary), result.primary, sources=("primary",))
        subtask.backend.close()
        subtask.local_store.close()


@pytest.mark.item("LR-02", "LR-05", "LR-06")
def test_whatever_fails_on_this_machine_fails_nothing(tmp_path: Path) -> None:
    """Each call in turn, alone and with all that follow: snapshots, restores and deletions go on."""
    subtask = Subtask(tmp_path, HeapBackend)
    recorder = Recorder()
    life(subtask, LocalStateStore(intercept(subtask.local_store, recorder), DIRECTORY))
    calls = len(recorder.calls)
    assert calls > 10
    for at in range(1, calls + 1):
        for persistent in (False, True):
            fault = FailAt(at, NotApplied("no room"), persistent=persistent)
            life(subtask, LocalStateStore(intercept(subtask.local_store, fault), DIRECTORY))


@pytest.mark.item("LR-06")
def test_a_kill_at_any_call_leaves_copies_that_are_right_or_not_used(tmp_path: Path) -> None:
    """The next process restores the newest checkpoint, and its copies go on."""
    subtask = Subtask(tmp_path, HeapBackend)
    recorder = Recorder()
    life(subtask, LocalStateStore(intercept(subtask.local_store, recorder), DIRECTORY))
    for at in range(1, len(recorder.calls) + 1):
        for when in SIDES:
            crash = LocalStateStore(intercept(subtask.local_store, CrashAt(at, when)), DIRECTORY)
            with pytest.raises(SimulatedCrash):
                life(subtask, crash)
            life(subtask, subtask.local)


def life(subtask: Subtask, local: LocalStateStore) -> None:
    """Take a checkpoint, restore it, take and confirm two more, abort a fourth."""
    for at in (1, 2, 3):
        handle = subtask.snapshot(at, local).primary
        assert handle is not None
        with read_keyed_files(subtask.storage, [handle], local) as (found,):
            assert subtask.restored(found) == bytes_of(subtask.backend)
        if at == 1:
            local.begin(1)
        else:
            local.confirm(at)
    subtask.snapshot(4, local)
    local.abort(4)
