"""Limits of the machine, for real: a full or read-only disk, too large a file, too many open ones."""

from __future__ import annotations

import os
import resource
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from partfile.errors import NotApplied, StoreError
from partfile.stores.local.store import LocalStore
from partfile.testing.store import files_in, finished_bytes, neighbour, new_part, write_part

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partfile.stores.base import Store

DATA, TAIL = b"valid bytes", b"a tail"


@contextmanager
def small_disk(path: Path) -> Iterator[Path]:
    """A file system of one MiB; skips where it cannot be mounted."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "partfile-test", str(path)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("needs root and the right to mount a tmpfs")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


@pytest.mark.fault("S3")
def test_a_full_disk_is_determinate_and_can_be_recovered_from(tmp_path: Path) -> None:
    """ENOSPC: parts and metadata fail with a hint, nothing half is visible, and after freeing space it goes on."""
    with small_disk(tmp_path / "disk") as disk, LocalStore(str(disk)) as store:
        stream = store.create(new_part())
        stream.write(DATA)
        handle = stream.persist()
        with pytest.raises(NotApplied) as raised:
            stream.write(bytes(2 << 20))
        assert "Free space" in raised.value.hint
        with pytest.raises(NotApplied, match="lost"):
            stream.persist()
        with pytest.raises(NotApplied):
            store.create_file("_partfile/chk-1/_metadata", bytes(4096))
        assert not store.file_exists("_partfile/chk-1/_metadata")
        stream.close()
        store.publish(handle, "auto")
        assert finished_bytes(store, handle) == DATA
        store.create_file("_partfile/chk-1/_metadata", bytes(4096))


@pytest.mark.fault("S3")
def test_a_copy_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    """A publication that runs out of space while it copies does not fill the disk with each attempt."""
    with small_disk(tmp_path / "disk") as disk, LocalStore(str(disk)) as store:
        handle = write_part(store, bytes(600 << 10), tail=TAIL)
        for _ in range(3):
            with pytest.raises(NotApplied):
                store.publish(handle, "rewrite")
            assert len(files_in(store)) == 1
        store.publish(handle, "auto")
        assert files_in(store) == {handle.path_of(handle.name): 600 << 10}


@pytest.mark.fault("S4")
def test_a_read_only_file_system_is_refused_at_once(tmp_path: Path) -> None:
    """EROFS shows when the store is opened for writing, while reading stays possible."""
    with small_disk(tmp_path / "disk") as disk:
        (disk / "known").write_bytes(b"")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(NotApplied, match="written to"):
            LocalStore(str(disk))
        with LocalStore(str(disk), create_base=False) as store:
            assert list(files_in(store)) == ["known"]
            with pytest.raises(NotApplied):
                store.create_file("new", b"")


def test_too_large_a_file_is_determinate(tmp_path: Path) -> None:
    """EFBIG, by a limit on file size in a process of its own, fails the write with a hint."""

    def work(store: Store) -> str:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        stream = store.create(new_part())
        try:
            stream.write(bytes(8192))
        except NotApplied as error:
            return error.hint
        return "it worked"

    with neighbour(lambda: LocalStore(str(tmp_path)), work) as hint:
        assert "ulimit -f" in hint


@pytest.mark.fault("S13")
def test_too_many_open_files_leak_none(tmp_path: Path) -> None:
    """EMFILE fails the creation with a hint; after closing parts it goes on, and every part is still good."""

    def work(store: Store) -> list[object]:
        room = max(int(link.name) for link in Path("/proc/self/fd").iterdir()) + 40
        resource.setrlimit(resource.RLIMIT_NOFILE, (room, room))
        streams, hint = [], ""
        for number in range(1000):
            try:
                streams.append(store.create(new_part("a/b", f"part-{number}")))
            except StoreError as error:
                hint = error.hint
                break
        for stream in streams[:6]:
            stream.close()
        for stream in streams[6:]:
            stream.write(DATA)
            store.publish(stream.close_for_commit(), "auto")
        return [len(streams), hint, len(files_in(store))]

    with neighbour(lambda: LocalStore(str(tmp_path)), work) as (count, hint, files):
        assert 0 < count < 1000
        assert "ulimit -n" in hint
        assert files == count
