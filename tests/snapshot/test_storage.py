"""Where checkpoints go, and how a snapshot is named."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from partfile.errors import ConfigError, SnapshotCorrupt, StateTooLarge
from partfile.snapshot import storage
from partfile.snapshot.documents import FileHandle, InlineHandle, OperatorState, SubtaskState
from partfile.snapshot.events import CoordinatorRules
from partfile.snapshot.operator_state import ListStateDescriptor, OperatorStateStore, write_operator_state
from partfile.snapshot.state_file import JsonCodec
from partfile.snapshot.storage import (
    CheckpointStorage,
    DriverMemoryStorageSettings,
    FileStreamSettings,
    FileSystemStorageSettings,
    Pointer,
    StorageOptions,
    open_storage,
    pointer_to,
    select_storage,
)
from partfile.snapshot.streams import Scope
from partfile.stores.checksums import crc32_of
from partfile.stores.memory import MemoryMetadataStore
from support.state.checkpoint_owner import Owner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partfile.snapshot.documents import CheckpointMetadata, StateHandle
    from partfile.snapshot.storage import StorageSettings


# Where checkpoints go, and what each kind of storage does with state.

ITEMS = ListStateDescriptor("items", JsonCodec())


def holding(size_bytes: int) -> OperatorStateStore:
    states = OperatorStateStore()
    states.list_state(ITEMS).add("x" * size_bytes)
    return states


def operators(*handles: StateHandle | None) -> dict[str, OperatorState]:
    subtasks = tuple(SubtaskState(subtask=subtask, handle=handle) for subtask, handle in enumerate(handles))
    return {"o": OperatorState(parallelism=len(handles), subtasks=subtasks)}


def started(settings: StorageSettings) -> tuple[CheckpointStorage, Owner]:
    storage = open_storage(settings, "job")

    def restore(checkpoint: CheckpointMetadata | None, checkpoint_id: int) -> dict[str, OperatorState]:
        """Restored state is written again, for the checkpoint that holds it from now on (R11)."""
        subtasks = checkpoint.operators["o"].subtasks if checkpoint and checkpoint.operators else ()
        restored = [OperatorStateStore(storage.read_state(one.handle)) for one in subtasks]
        streams = storage.stream_factory(checkpoint_id)
        return operators(*(write_operator_state(states, streams) for states in restored))

    owner = Owner(storage, retained=1, rules=CoordinatorRules(tolerable_failures=9))
    owner.checkpoints.start(restore)
    return storage, owner


def tree(base: Path) -> Iterator[str]:
    return (path.relative_to(base).as_posix() for path in base.rglob("*") if path.is_file())


@pytest.mark.item("ST-01")
def test_a_checkpoint_directory_decides(tmp_path: Path) -> None:
    """With a directory it is the file system, without one the driver's memory."""
    url = tmp_path.as_uri()
    assert select_storage(None) == DriverMemoryStorageSettings()
    assert select_storage(None, StorageOptions(), StorageOptions()) == DriverMemoryStorageSettings()
    assert select_storage(None, StorageOptions(checkpoint_directory=url)) == FileSystemStorageSettings(url=url)


@pytest.mark.item("ST-11")
def test_instance_over_job_over_defaults() -> None:
    """Settings in code win as a whole; else each option of the job wins over the same default."""
    defaults = StorageOptions(checkpoint_directory="/all", inline_threshold_bytes=1, write_buffer_bytes=2)
    job = StorageOptions(inline_threshold_bytes=3, create_subdirectory=False)
    assert select_storage(None, job, defaults) == FileSystemStorageSettings(
        url="/all", inline_threshold_bytes=3, write_buffer_bytes=2, create_subdirectory=False
    )
    assert select_storage(None, None, defaults) == FileSystemStorageSettings(
        url="/all", inline_threshold_bytes=1, write_buffer_bytes=2
    )
    instance = DriverMemoryStorageSettings(max_state_bytes=9)
    assert select_storage(instance, job, defaults) is instance


@pytest.mark.item("ST-07")
@pytest.mark.parametrize("url", ["gopher://x/y", "file://otherhost/x", "file:relative", ""])
def test_a_url_that_no_store_serves_is_refused_at_once(url: str) -> None:
    """The error comes from the settings, before anything is opened."""
    with pytest.raises(ConfigError):
        FileSystemStorageSettings(url=url)
    with pytest.raises(ConfigError):
        select_storage(None, StorageOptions(checkpoint_directory=url))


@pytest.mark.item("ST-03", "ST-09", "ST-10")
def test_values_that_cannot_be_used_are_refused() -> None:
    """Each wrong size, unknown option and wrong type is a ConfigError that names it."""
    with pytest.raises(ConfigError, match="inline_threshold_bytes"):
        FileSystemStorageSettings(url="/x", inline_threshold_bytes=(1 << 20) + 1)
    with pytest.raises(ConfigError, match="write_buffer_bytes"):
        FileSystemStorageSettings(url="/x", write_buffer_bytes=0)
    for name in ("max_state_bytes", "max_acknowledgement_bytes", "max_total_bytes"):
        with pytest.raises(ConfigError, match=name):
            DriverMemoryStorageSettings(**{name: 0})
    with pytest.raises(ConfigError, match="checkpoint_dir"):
        StorageOptions(checkpoint_dir="/x")  # type: ignore[call-arg]


@pytest.mark.item("ST-09", "ST-10")
def test_the_options_reach_the_streams(tmp_path: Path) -> None:
    """Threshold and buffer of the settings are those of the streams."""
    settings = FileSystemStorageSettings(url=str(tmp_path), inline_threshold_bytes=300, write_buffer_bytes=7000)
    storage = open_storage(settings, "job")
    assert getattr(storage.stream_factory(1), "buffer_bytes", None) == 7000
    assert isinstance(write_operator_state(holding(10), storage.stream_factory(1)), InlineHandle)
    assert isinstance(write_operator_state(holding(301), storage.stream_factory(1)), FileHandle)


@pytest.mark.item("DL-09")
def test_without_a_subdirectory_everything_lies_under_the_url(tmp_path: Path) -> None:
    """create_subdirectory=False: checkpoints and state files stand directly below the base, and are found again."""
    settings = FileSystemStorageSettings(url=str(tmp_path), create_subdirectory=False, inline_threshold_bytes=0)
    storage, coordinator = started(settings)
    coordinator.trigger()
    handle = write_operator_state(holding(10), storage.stream_factory(2))
    assert isinstance(handle, FileHandle)
    coordinator.complete_with(handle)
    assert sorted(tree(tmp_path)) == sorted(["chk-2/_metadata", handle.path])
    newest = started(settings)[1].checkpoints.newest
    assert newest.checkpoint_id == 5
    assert (
        coordinator.storage.read_state(newest.operators["o"].subtasks[0].handle)["items"].elements[0] == b'"xxxxxxxxxx"'
    )
    with_subdirectory = FileSystemStorageSettings(url=str(tmp_path / "other"))
    started(with_subdirectory)
    assert list(tree(tmp_path / "other")) == ["job/chk-1/_metadata"]


@pytest.mark.item("ST-13", "SS-01")
def test_another_coordinator_restores_from_the_file_system(tmp_path: Path) -> None:
    """After the first one is gone, a second opens the same URL and has the completed state."""
    settings = FileSystemStorageSettings(url=tmp_path.as_uri())
    storage, coordinator = started(settings)
    pending = coordinator.trigger()
    coordinator.complete_with(write_operator_state(holding(30_000), storage.stream_factory(pending.checkpoint_id)))
    storage.store.close()
    again, second = started(settings)
    restored = OperatorStateStore(again.read_state(second.checkpoints.newest.operators["o"].subtasks[0].handle))
    assert restored.list_state(ITEMS).get() == ("x" * 30_000,)


@pytest.mark.item("ST-02", "ST-03")
def test_state_that_memory_does_not_take_fails_its_checkpoint_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too large a state raises; the coordinator aborts that checkpoint and completes the next. No file is written."""
    monkeypatch.chdir(tmp_path)
    storage, coordinator = started(DriverMemoryStorageSettings(max_state_bytes=1000))
    coordinator.trigger()
    with pytest.raises(StateTooLarge, match="max_state_bytes=1000"):
        write_operator_state(holding(1000), storage.stream_factory(2))
    coordinator.checkpoints.abort(2)
    pending = coordinator.trigger()
    handle = write_operator_state(holding(10), storage.stream_factory(pending.checkpoint_id))
    assert isinstance(handle, InlineHandle)
    coordinator.complete_with(handle)
    assert coordinator.checkpoints.completed_id == 3
    assert list(tree(tmp_path)) == []


@pytest.mark.item("ST-05")
def test_the_sum_of_all_state_is_capped() -> None:
    """Acknowledgements that each are small enough are too much together; nothing was created, the next one works."""
    storage, coordinator = started(DriverMemoryStorageSettings(max_total_bytes=700))
    handles = [write_operator_state(holding(300), storage.stream_factory(2)) for _ in range(2)]
    coordinator.trigger()
    with pytest.raises(StateTooLarge, match="max_total_bytes=700"):
        coordinator.complete_with(*handles)
    closed = storage.read_checkpoint(2)
    assert closed is not None
    assert not closed.holds_state
    coordinator.trigger()
    coordinator.complete_with(handles[0])
    assert coordinator.checkpoints.completed_id == 3


# A snapshot is named by its directory or by the metadata in it.


@pytest.mark.item("DL-10", "SP-14")
@pytest.mark.parametrize("end", ["", "/", "/_metadata"])
@pytest.mark.parametrize(
    ("location", "parent", "directory"),
    [
        ("/data/savepoint-a-0", "/data", "savepoint-a-0"),
        ("/savepoint-a-0", "/", "savepoint-a-0"),
        ("savepoint-a-0", ".", "savepoint-a-0"),
        ("file:///data/chk-7", "file:///data", "chk-7"),
        ("s3://bucket/chk-7", "s3://bucket", "chk-7"),
    ],
)
def test_directory_and_file_mean_the_same(location: str, parent: str, directory: str, end: str) -> None:
    """With or without a slash or _metadata at the end, as a path or as a URL."""
    assert pointer_to(location + end) == Pointer(parent, directory)


@pytest.mark.item("DL-10")
def test_a_checkpoint_is_known_by_its_name() -> None:
    """A directory called chk-N is a checkpoint's, any other may hold a savepoint."""
    assert pointer_to("/data/chk-7").checkpoint_id == 7
    assert pointer_to("/data/savepoint-a-0").checkpoint_id is None


@pytest.mark.parametrize("location", ["", "/", "_metadata", "s3://bucket", "..", "/data/..", "/_metadata"])
def test_what_names_no_directory_is_refused(location: str) -> None:
    """The error shows what was given and says what to give."""
    with pytest.raises(ConfigError, match="does not name the directory"):
        pointer_to(location)


# Copies of state files on this host


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CheckpointStorage:
    """A storage without files on this host, whose copies lie below the test's directory."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return CheckpointStorage(MemoryMetadataStore(), "job", FileStreamSettings(inline_threshold_bytes=0))


def kept(remote: CheckpointStorage, data: bytes) -> FileHandle:
    handle = remote.stream_factory(1).keep(data, Scope.SHARED)
    assert isinstance(handle, FileHandle)
    return handle


def copies(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / f"partfile-{os.getuid()}").iterdir())


def test_a_host_reads_a_file_once(remote: CheckpointStorage, tmp_path: Path) -> None:
    """What has a copy is mapped from it, by any process; a start reads the file itself all the same."""
    handle = kept(remote, b"keys")
    assert bytes(remote.map_held(handle)) == b"keys"
    remote.store.delete_file(remote.path(handle.path))
    assert bytes(CheckpointStorage(remote.store, "job").map_held(handle)) == b"keys"
    with pytest.raises(SnapshotCorrupt, match="is missing"):
        remote.map_bytes(handle)
    (copy,) = copies(tmp_path)
    copy.unlink()
    with pytest.raises(SnapshotCorrupt, match="is missing"):
        remote.map_held(handle)


def test_a_copy_of_another_length_is_not_used(remote: CheckpointStorage, tmp_path: Path) -> None:
    """The file is read again, and the copy replaced."""
    handle = kept(remote, b"keys")
    remote.map_held(handle)
    (copy,) = copies(tmp_path)
    copy.write_bytes(b"others")
    assert bytes(remote.map_held(handle)) == b"keys"
    assert copies(tmp_path) == [copy]
    assert copy.read_bytes() == b"keys"


def test_a_damaged_copy_is_made_again_when_the_file_is_read(remote: CheckpointStorage, tmp_path: Path) -> None:
    """It has the name and the length of the file, and other bytes."""
    handle = kept(remote, b"keys")
    remote.map_held(handle)
    (copy,) = copies(tmp_path)
    copy.write_bytes(b"kexs")
    assert bytes(remote.map_bytes(handle)) == b"keys"
    assert copies(tmp_path) == [copy]
    assert copy.read_bytes() == b"keys"


@pytest.mark.parametrize("is_replaced", [False, True])
def test_each_process_compares_a_copy_before_it_uses_it(
    remote: CheckpointStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_replaced: bool
) -> None:
    """A disk may have changed it since another process made it; and what has replaced it is another file."""
    handle = kept(remote, b"keys")
    remote.map_held(handle)
    (copy,) = copies(tmp_path)
    if is_replaced:
        other = tmp_path / "other"
        other.write_bytes(b"kexs")
        other.replace(copy)
    else:
        copy.write_bytes(b"kexs")
        monkeypatch.setattr(storage, "_CHECKED", {})
    assert bytes(remote.map_held(handle)) == b"keys"
    assert copy.read_bytes() == b"keys"


def test_each_process_compares_a_file_on_its_host_before_it_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And does so once: the tasks that come to it later read nothing of a file but what they look for."""
    local = open_storage(FileSystemStorageSettings(url=str(tmp_path), inline_threshold_bytes=0), "job")
    handle = kept(local, b"keys")
    computed = []

    def noted(data: memoryview) -> int:
        computed.append(bytes(data))
        return crc32_of(data)

    monkeypatch.setattr(storage, "crc32_of", noted)
    assert [bytes(local.map_held(handle)) for _ in range(3)] == [b"keys"] * 3
    assert computed == [b"keys"]
    (tmp_path / local.path(handle.path)).write_bytes(b"kexs")
    monkeypatch.setattr(storage, "_CHECKED", {})
    with pytest.raises(SnapshotCorrupt, match="is not the one the checkpoint names"):
        local.map_held(handle)


def test_a_process_remembers_a_number_of_files(remote: CheckpointStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that runs for months has used many; those that it used last stay."""
    monkeypatch.setattr(storage, "_CHECKED", {})
    monkeypatch.setattr(storage, "_MOST_CHECKED", 2)
    first, second, third = (kept(remote, name) for name in (b"first", b"second", b"third"))
    for handle in (first, second, first, third):
        remote.map_held(handle)
    assert [path for path, *_ in storage._CHECKED] == [first.path, third.path]


def test_a_file_that_is_not_the_one_of_its_handle_leaves_no_copy(remote: CheckpointStorage, tmp_path: Path) -> None:
    """It is compared before there is one."""
    handle = kept(remote, b"keys")
    with pytest.raises(SnapshotCorrupt, match="is not the one"):
        remote.map_held(handle.model_copy(update={"crc32": handle.crc32 ^ 1}))
    assert not (tmp_path / f"partfile-{os.getuid()}").exists()


def test_copies_go_by_quota_and_age(remote: CheckpointStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were not used for the longest time first; what is mapped stays readable."""
    monkeypatch.setattr(storage, "_MOST_COPIED_BYTES", 150)
    handles = [kept(remote, bytes([at]) * 100) for at in range(3)]
    mapped = [remote.map_held(handle) for handle in handles[:2]]
    first, second = copies(tmp_path)
    if not first.name.startswith(Path(handles[0].path).name):
        first, second = second, first
    os.utime(first, (1, 1))
    os.utime(second, (2, 2))
    remote.map_held(handles[0])
    remote.map_held(handles[2])
    assert len(copies(tmp_path)) == 2
    assert not second.exists()
    monkeypatch.setattr(storage, "_MOST_COPIED_BYTES", 10_000)
    for time_s in (3, 4e9):
        # R8: a copy with a time ahead of the clock's keeps no other from being used.
        os.utime(first, (time_s, time_s))
        remote.map_held(handles[1])
        assert not first.exists(), "nothing has used it for a day"
        (copy,) = [path for path in copies(tmp_path) if path.name.startswith(Path(handles[1].path).name)]
        copy.unlink()
        remote.map_held(handles[0])
    assert [bytes(one) for one in mapped] == [b"\0" * 100, b"\1" * 100]


def test_a_host_without_room_for_copies_reads_the_file_each_time(
    remote: CheckpointStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Other copies make room first; where that is not enough, the log says what would give some."""
    first, second = kept(remote, b"first"), kept(remote, b"second")
    remote.map_held(first)
    fsync, failures = os.fsync, [2]

    def full(descriptor: int) -> None:
        failures[0] -= 1
        if failures[0] >= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    assert bytes(remote.map_held(second)) == b"second"
    assert copies(tmp_path) == []
    assert "spark.executorEnv.TMPDIR" in caplog.text
    failures[0] = 1
    assert bytes(remote.map_held(second)) == b"second"
    assert len(copies(tmp_path)) == 1


def test_a_directory_for_copies_that_others_can_write_is_not_used(
    remote: CheckpointStorage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another user could put other keys there."""
    handle = kept(remote, b"keys")
    remote.map_held(handle)
    (tmp_path / f"partfile-{os.getuid()}").chmod(0o777)
    for path in copies(tmp_path):
        path.write_bytes(b"evil")
    assert bytes(remote.map_held(handle)) == b"keys"
    assert "belongs to another user, or others may write in it" in caplog.text
