"""Streams: small state inline, large state in the right directory, and nothing left of a stream that was given up."""

from __future__ import annotations

import threading
import zlib
from typing import TYPE_CHECKING

import pytest

from partfile.errors import ConfigError, NotApplied, SnapshotCancelled, SnapshotCorrupt, StateTooLarge
from partfile.snapshot.documents import FileHandle, InlineHandle
from partfile.snapshot.storage import CheckpointStorage
from partfile.snapshot.streams import CollectedBytes, FileStreamFactory, MemoryStreamFactory, Scope
from partfile.stores.local.store import LocalStore
from partfile.testing.faults import ActAt, FailAt, intercept

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from partfile.snapshot.streams import CheckpointOutputStream, CheckpointStreamFactory
    from partfile.stores.base import Store


KIB = 1024


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with LocalStore(str(tmp_path)) as store:
        yield store


def files(base: Path) -> list[str]:
    return sorted(path.relative_to(base).as_posix() for path in base.rglob("*") if path.is_file())


def written(streams: CheckpointStreamFactory, *pieces: bytes, scope: Scope = Scope.EXCLUSIVE) -> object:
    stream = streams.create(scope)
    for piece in pieces:
        stream.write(piece)
    assert stream.position == sum(map(len, pieces))
    return stream.close_and_get_handle()


@pytest.mark.item("ST-09", "ST-08")
def test_up_to_the_threshold_inline_beyond_in_a_file(store: Store, tmp_path: Path) -> None:
    """20 KiB travel inline, one byte more is a file of chk-N whose handle has its size and checksum."""
    streams = FileStreamFactory(store, "job", 7)
    assert written(streams, b"x" * 20 * KIB) == InlineHandle(data=b"x" * 20 * KIB)
    assert files(tmp_path) == []
    handle = written(streams, b"x" * 20 * KIB, b"y")
    data = b"x" * 20 * KIB + b"y"
    assert isinstance(handle, FileHandle)
    assert (handle.size_bytes, handle.crc32) == (len(data), zlib.crc32(data))
    assert files(tmp_path) == [f"job/{handle.path}"]
    assert (tmp_path / "job" / handle.path).read_bytes() == data
    assert len(handle.model_dump_json()) < 200


@pytest.mark.item("ST-09")
def test_a_threshold_above_a_mebibyte_is_refused(store: Store) -> None:
    """Metadata is read whole by every start, so inline state is bounded."""
    FileStreamFactory(store, "job", 1, inline_threshold_bytes=1 << 20)
    for threshold in (-1, (1 << 20) + 1):
        with pytest.raises(ConfigError, match="inline_threshold_bytes"):
            FileStreamFactory(store, "job", 1, inline_threshold_bytes=threshold)
    with pytest.raises(ConfigError, match="write_buffer_bytes"):
        FileStreamFactory(store, "job", 1, write_buffer_bytes=0)


@pytest.mark.item("ST-10")
def test_the_buffer_is_at_least_the_threshold(store: Store) -> None:
    """The larger of buffer and threshold is in effect; the default is 20 KiB, since the threshold is."""
    assert FileStreamFactory(store, "job", 1).buffer_bytes == 20 * KIB
    assert FileStreamFactory(store, "job", 1, inline_threshold_bytes=0).buffer_bytes == 4096
    assert FileStreamFactory(store, "job", 1, write_buffer_bytes=64 * KIB).buffer_bytes == 64 * KIB


def test_full_buffers_are_sealed_and_nothing_is_lost() -> None:
    """Writes of any size come back in order, whatever the size of the buffer."""
    collected = CollectedBytes(4)
    for piece in (b"a", b"bc", b"", b"defghij", b"k"):
        collected.add(piece)
    assert collected.position == 11
    assert collected.take() == b"abcdefghijk"
    assert collected.take() == b""


@pytest.mark.item("SS-22")
@pytest.mark.parametrize(
    ("scope", "directory"), [(Scope.EXCLUSIVE, "chk-7"), (Scope.SHARED, "shared"), (Scope.TASK_OWNED, "taskowned")]
)
def test_each_scope_has_its_directory(store: Store, scope: Scope, directory: str) -> None:
    """Whose a file is decides where it lies; two files of one directory have names of their own."""
    streams = FileStreamFactory(store, "job", 7, inline_threshold_bytes=0)
    handles = [written(streams, b"x", scope=scope) for _ in range(2)]
    assert {handle.path for handle in handles if isinstance(handle, FileHandle)} == {
        f"{directory}/{name}" for name in store.list_names(f"job/{directory}")
    }
    assert len(store.list_names(f"job/{directory}")) == 2


@pytest.mark.item("SS-23")
@pytest.mark.parametrize("kind", ["file", "memory"])
def test_an_empty_stream_has_no_handle(store: Store, tmp_path: Path, kind: str) -> None:
    """Nothing written is None, also if an empty piece was written."""
    streams = FileStreamFactory(store, "", 1, inline_threshold_bytes=0) if kind == "file" else MemoryStreamFactory()
    assert written(streams) is None
    assert written(streams, b"") is None
    assert files(tmp_path) == []


@pytest.mark.item("SS-23")
@pytest.mark.parametrize("kind", ["file", "memory"])
def test_a_closed_stream_leaves_nothing(store: Store, tmp_path: Path, kind: str) -> None:
    """Closing discards; after it the stream can be closed again, but not written or ended."""
    streams = FileStreamFactory(store, "", 1, inline_threshold_bytes=0) if kind == "file" else MemoryStreamFactory()
    stream = streams.create(Scope.EXCLUSIVE)
    stream.write(b"x" * 30_000)
    stream.close()
    stream.close()
    with pytest.raises(SnapshotCancelled):
        stream.write(b"y")
    with pytest.raises(SnapshotCancelled):
        stream.close_and_get_handle()
    assert files(tmp_path) == []


@pytest.mark.item("SS-23")
def test_an_ended_stream_stays_ended(store: Store, tmp_path: Path) -> None:
    """Closing after the handle was given out deletes nothing; ending twice is refused."""
    stream = FileStreamFactory(store, "job", 1, inline_threshold_bytes=0).create(Scope.EXCLUSIVE)
    stream.write(b"x")
    handle = stream.close_and_get_handle()
    stream.close()
    assert isinstance(handle, FileHandle)
    assert files(tmp_path) == [f"job/{handle.path}"]
    with pytest.raises(SnapshotCancelled):
        stream.close_and_get_handle()


@pytest.mark.item("SS-07")
def test_a_stream_closed_while_its_file_is_created_leaves_none(tmp_path: Path) -> None:
    """A cancellation that comes between the last write and the handle: no handle, and the file is deleted."""
    opened: list[CheckpointOutputStream] = []
    cancellation = ActAt(1, lambda: opened.pop().close(), only={"create_file"})
    store = intercept(LocalStore(str(tmp_path)), cancellation)
    stream = FileStreamFactory(store, "job", 1, inline_threshold_bytes=0).create(Scope.EXCLUSIVE)
    opened.append(stream)
    stream.write(b"x")
    with pytest.raises(SnapshotCancelled, match="while"):
        stream.close_and_get_handle()
    assert files(tmp_path) == []
    assert opened == []


@pytest.mark.item("SS-07")
def test_a_storage_error_comes_out(tmp_path: Path) -> None:
    """What the store says of the file is what the snapshot says."""
    store = intercept(LocalStore(str(tmp_path)), FailAt(1, NotApplied("disk full"), only={"create_file"}))
    with pytest.raises(NotApplied, match="disk full"):
        written(FileStreamFactory(store, "job", 1, inline_threshold_bytes=0), b"x")


@pytest.mark.item("ST-02", "ST-03")
def test_memory_takes_five_mebibytes_and_writes_no_file(tmp_path: Path) -> None:
    """5 MiB of state are inline; one byte more is an error that names the limit, and the next stream works."""
    streams = MemoryStreamFactory()
    assert written(streams, b"x" * (5 << 20)) == InlineHandle(data=b"x" * (5 << 20))
    with pytest.raises(StateTooLarge, match="max_state_bytes=5242880"):
        written(MemoryStreamFactory(), b"x" * (5 << 20), b"y")
    assert written(MemoryStreamFactory(max_state_bytes=3), b"abc") == InlineHandle(data=b"abc")
    assert files(tmp_path) == []


@pytest.mark.item("ST-04")
def test_an_acknowledgement_is_capped_whatever_the_state_may_be() -> None:
    """100 MiB of state are allowed and 10 MiB travel at most: the write fails before they are collected."""
    stream = MemoryStreamFactory(max_state_bytes=100 << 20).create(Scope.EXCLUSIVE)
    stream.write(b"x" * (10 << 20))
    with pytest.raises(StateTooLarge, match="max_acknowledgement_bytes=10485760"):
        stream.write(b"y")


@pytest.mark.item("ST-04")
def test_the_streams_of_one_acknowledgement_count_together() -> None:
    """Two streams share the cap, also when both were open at once; what was discarded counts no more."""
    streams = MemoryStreamFactory(max_acknowledgement_bytes=10)
    one, other = streams.create(Scope.EXCLUSIVE), streams.create(Scope.SHARED)
    one.write(b"x" * 6)
    other.write(b"y" * 6)
    handle = one.close_and_get_handle()
    assert handle is not None
    with pytest.raises(StateTooLarge, match="acknowledgement"):
        other.close_and_get_handle()
    streams.discard(handle)
    assert written(streams, b"z" * 10) is not None


def test_many_threads_may_close_one_stream(store: Store, tmp_path: Path) -> None:
    """Whichever thread is first, there is either a handle with its file or neither."""
    for _ in range(50):
        stream = FileStreamFactory(store, "job", 1, inline_threshold_bytes=0).create(Scope.EXCLUSIVE)
        stream.write(b"x")
        thread = threading.Thread(target=stream.close)
        thread.start()
        try:
            handle = stream.close_and_get_handle()
        except SnapshotCancelled:
            handle = None
        thread.join()
        found = files(tmp_path)
        assert found == ([f"job/{handle.path}"] if isinstance(handle, FileHandle) else [])
        for path in found:
            store.delete_file(path)


@pytest.mark.item("ST-08")
def test_a_state_file_that_is_not_the_one_is_refused(store: Store, tmp_path: Path) -> None:
    """Another file of the same size, and a missing one, are SnapshotCorrupt, named by their path."""
    storage = CheckpointStorage(store, "job")
    stream = storage.stream_factory(7).create(Scope.EXCLUSIVE)
    stream.write(b"x" * 30_000)
    handle = stream.close_and_get_handle()
    assert isinstance(handle, FileHandle)
    assert storage.read_bytes(handle) == b"x" * 30_000
    (tmp_path / "job" / handle.path).write_bytes(b"y" * 30_000)
    with pytest.raises(SnapshotCorrupt, match="not the one"):
        storage.read_bytes(handle)
    (tmp_path / "job" / handle.path).unlink()
    with pytest.raises(SnapshotCorrupt, match="missing"):
        storage.read_bytes(handle)
