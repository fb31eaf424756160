"""Local storage that fails, by injected faults and by real limits of the machine."""

from __future__ import annotations

import errno
import resource
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from partfile.errors import AlreadyExists, NotApplied, OutcomeUnknown, PartfileError, StoreError
from partfile.stores.local.posix import CHANGING_CALLS, PosixCalls
from partfile.stores.local.store import LocalStore
from partfile.testing.faults import FailAt, Recorder, TrackedCalls, intercept
from partfile.testing.store import (
    files_in,
    finished_bytes,
    neighbour,
    new_part,
    read_staging_file,
    write_part,
    write_staging_file,
)
from support.files.disks import small_disk

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.stores.base import Cut, PartStream, Store
    from partfile.testing.faults import Interceptor


# Storage that fails: full, read-only, out of descriptors, or lying about fsync.

DATA, TAIL = b"valid bytes", b"a tail"
EIO = OSError(errno.EIO, "")


def failing(base: Path, interceptor: Interceptor) -> LocalStore:
    """A store whose system calls are led through the interceptor."""
    return LocalStore(str(base), calls=intercept(PosixCalls(), interceptor))


@pytest.mark.fault("F1")
def test_a_failed_fsync_poisons_the_stream(tmp_path: Path) -> None:
    """After one EIO the stream never calls fsync again, which would succeed although bytes are lost (fsyncgate)."""
    recorder = Recorder({"sync"})
    calls = intercept(intercept(PosixCalls(), FailAt(1, EIO, only={"sync"})), recorder)
    with LocalStore(str(tmp_path), calls=calls) as store:
        stream = store.create(new_part())
        stream.write(DATA)
        with pytest.raises(OutcomeUnknown):
            stream.persist()
        for use in (stream.persist, stream.close_for_commit, stream.verify, lambda: stream.write(b"x")):
            with pytest.raises(NotApplied, match="lost"):
                use()
        assert recorder.count == 1
        assert stream.handle.valid_length == 0
        stream.close()


@pytest.mark.parametrize("call", ["sync_directory", "write", "rename"])
@pytest.mark.fault("F1", "F2")
def test_any_failure_of_a_stream_poisons_it(tmp_path: Path, call: str) -> None:
    """Whatever went wrong, the part is left to the coordinator, who cuts it to its last valid length."""
    with failing(tmp_path, FailAt(1, EIO, only={call})) as store:
        stream = store.create(new_part())
        with pytest.raises(OutcomeUnknown):
            _write_and_commit(stream)
        with pytest.raises(NotApplied, match="lost"):
            stream.persist()
        stream.close()
        stream.close()
        if call == "rename":
            store.publish(stream.handle, "auto")
            assert finished_bytes(store, stream.handle) == DATA


def _write_and_commit(stream: PartStream) -> None:
    stream.write(DATA)
    stream.close_for_commit()


@pytest.mark.fault("F2")
def test_a_failed_close_is_reported_once(tmp_path: Path) -> None:
    """A close that fails is an unknown outcome; the descriptor is gone, so the second close has nothing to do."""
    calls = intercept(PosixCalls(), FailAt(1, EIO, applied=True, only={"unlock"}))
    with LocalStore(str(tmp_path), calls=calls) as store:
        stream = store.create(new_part())
        with pytest.raises(OutcomeUnknown):
            stream.close()
        stream.close()


@pytest.mark.fault("K3")
def test_short_writes_are_continued(tmp_path: Path) -> None:
    """The kernel may take fewer bytes than it was given; every byte arrives all the same, in order."""

    class ShortWrites(PosixCalls):
        def write(self, descriptor: int, data: memoryview) -> int:
            return super().write(descriptor, data[:3])

    with LocalStore(str(tmp_path), calls=ShortWrites()) as store:
        stream = store.create(new_part())
        stream.write(DATA)
        handle = stream.close_for_commit()
        store.publish(handle, "auto")
        store.create_file("metadata", DATA)
        assert finished_bytes(store, handle) == store.read_file("metadata", 99) == DATA


@pytest.mark.fault("F11")
def test_a_short_read_is_continued_and_a_file_that_shrinks_is_noticed(tmp_path: Path) -> None:
    """Copies take every valid byte, however few a read returns."""

    class ShortReads(PosixCalls):
        def read(self, descriptor: int, count: int, offset: int) -> bytes:
            return super().read(descriptor, min(count, 3), offset)

    with LocalStore(str(tmp_path), calls=ShortReads()) as store:
        handle = write_part(store, DATA, tail=TAIL)
        store.publish(handle, "rewrite")
        assert finished_bytes(store, handle) == DATA


@pytest.mark.fault("F11")
def test_a_staging_file_is_read_on_after_a_short_read(tmp_path: Path) -> None:
    """Every valid byte is read, however few the kernel returns at a time."""

    class ShortReads(PosixCalls):
        def read_into(self, descriptor: int, buffer: memoryview, offset: int) -> int:
            return super().read_into(descriptor, buffer[:3], offset)

    with LocalStore(str(tmp_path), calls=ShortReads()) as store:
        handle = write_staging_file(store, DATA)
        assert read_staging_file(store, handle) == DATA


@pytest.mark.parametrize("error", [EIO, OSError(errno.ENOENT, "")])
@pytest.mark.parametrize("call", ["rename", "link"])
@pytest.mark.fault("F16")
def test_a_rename_or_link_that_was_done_but_reported_as_failed(tmp_path: Path, call: str, error: OSError) -> None:
    """NFS repeats a request whose reply was lost: at the latest the next attempt finds that it was done."""
    with LocalStore(str(tmp_path)) as store:
        handle = write_part(store, DATA, tail=TAIL)
        with failing(tmp_path, FailAt(1, error, applied=True, only={call})) as liar, suppress(OutcomeUnknown):
            liar.publish(handle, "auto")
        store.publish(handle, "auto")
        assert files_in(store) == {handle.path_of(handle.name): len(DATA)}


@pytest.mark.fault("F8", "F16")
def test_a_commit_whose_rename_reply_was_lost_succeeds(tmp_path: Path) -> None:
    """The names tell that the part is pending, whatever rename reported."""
    with failing(tmp_path, FailAt(1, EIO, applied=True, only={"rename"})) as store:
        stream = store.create(new_part())
        stream.write(DATA)
        store.publish(stream.close_for_commit(), "auto")
        assert finished_bytes(store, stream.handle) == DATA


def test_a_creation_whose_reply_was_lost_is_unknown_and_then_found(tmp_path: Path) -> None:
    """The outcome of a link that reports EIO is unknown; creating again says AlreadyExists, reading says whose."""
    with failing(tmp_path, FailAt(1, EIO, applied=True, only={"link"})) as store:
        with pytest.raises(OutcomeUnknown):
            store.create_file("metadata", DATA)
        with pytest.raises(AlreadyExists):
            store.create_file("metadata", DATA)
        assert store.read_file("metadata", 99) == DATA
        assert store.list_names("") == ["metadata"]


@pytest.mark.parametrize("call", ["open_directory", "stat_open", "sync_directory"])
def test_after_the_link_every_failure_of_a_creation_is_unknown(tmp_path: Path, call: str) -> None:
    """Once the name is there, no error may claim that nothing happened, not even running out of descriptors."""
    recorder = Recorder()
    (tmp_path / "counted").mkdir()
    with failing(tmp_path / "counted", recorder) as store:
        store.create_file("a/metadata", DATA)
    after_link = recorder.names[: recorder.names.index("link")].count(call) + 1
    (tmp_path / "base").mkdir()
    with failing(tmp_path / "base", FailAt(after_link, OSError(errno.EMFILE, ""), only={call})) as store:
        with pytest.raises(OutcomeUnknown):
            store.create_file("a/metadata", DATA)
        assert store.file_exists("a/metadata")


@pytest.mark.parametrize("cut", ["auto", "truncate"])
@pytest.mark.fault("F9")
def test_a_truncate_that_is_refused(tmp_path: Path, cut: Cut) -> None:
    """Auto falls back to rewriting; truncate on its own raises, and the part stays as it is."""
    for state in ("in-progress", "pending"):
        base = tmp_path / state
        with failing(base, FailAt(1, PermissionError(errno.EPERM, ""), only={"truncate"})) as store:
            handle = write_part(store, DATA, tail=TAIL, state="pending" if state == "pending" else "in-progress")
            if cut == "truncate":
                with pytest.raises(NotApplied):
                    store.publish(handle, cut)
                assert not store.file_exists(handle.path_of(handle.name))
                store.publish(handle, cut)
            else:
                store.publish(handle, cut)
            assert finished_bytes(store, handle) == DATA


@pytest.mark.fault("F9")
def test_a_truncate_that_does_nothing_is_noticed(tmp_path: Path) -> None:
    """The length is checked after the cut; nothing is published with a tail."""

    class NoTruncate(PosixCalls):
        def truncate(self, descriptor: int, length: int) -> None:
            """Report success."""

    with LocalStore(str(tmp_path), calls=NoTruncate()) as store:
        handle = write_part(store, DATA, tail=TAIL)
        with pytest.raises(OutcomeUnknown):
            store.publish(handle, "truncate")
        assert not store.file_exists(handle.path_of(handle.name))


@pytest.mark.parametrize("cut", ["auto", "rewrite", "valid-length"])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EMFILE])
def test_every_failing_call_of_a_publication(tmp_path: Path, cut: Cut, number: int, *, persistent: bool) -> None:
    """Fail the n-th call, for every n, once or from then on: no descriptor leaks, and the next publish succeeds."""
    n = 0
    while True:
        n += 1
        base, calls = tmp_path / str(n), TrackedCalls()
        with LocalStore(str(base)) as store:
            handle = write_part(store, DATA, tail=TAIL)
            fault = FailAt(n, OSError(number, ""), persistent=persistent, only=CHANGING_CALLS)
            publisher = LocalStore(str(base), calls=intercept(calls, fault))
            with suppress(PartfileError):
                publisher.publish(handle, cut)
            publisher.close()
            assert not calls.open_descriptors
            store.publish(handle, cut)
            assert finished_bytes(store, handle) == DATA
        if fault.count < n:
            break
    assert n > 5


def test_every_failing_call_of_a_creation(tmp_path: Path) -> None:
    """Fail the n-th call, for every n: the file is there whole or absent, as the error says, and nothing leaks."""
    n = 0
    while True:
        n += 1
        base, calls = tmp_path / str(n), TrackedCalls()
        base.mkdir()
        fault = FailAt(n, OSError(errno.ENOSPC, ""), only=CHANGING_CALLS | {"stat_name", "open_directory"})
        with LocalStore(str(base), calls=intercept(calls, fault)) as store:
            try:
                store.create_file("a/metadata", DATA)
            except OutcomeUnknown:
                pass
            except NotApplied:
                assert not (base / "a" / "metadata").exists()
            else:
                assert (base / "a" / "metadata").read_bytes() == DATA
        assert not calls.open_descriptors
        if fault.count < n:
            break
    assert n > 10


@pytest.mark.fault("F2")
def test_every_failing_call_of_a_read_is_told_and_closes_what_it_opened(tmp_path: Path) -> None:
    """Also where the file that was opened cannot be looked at, as one that NFS has lost."""
    with LocalStore(str(tmp_path)) as store:
        store.create_file("a/state", DATA)
    only = {"open_directory", "stat_name", "open_existing", "stat_open", "read"}
    recorder = Recorder(only)
    with failing(tmp_path, recorder) as store:
        begin = recorder.count
        assert store.read_file("a/state", 99) == DATA
    assert set(recorder.names[begin:]) == only
    for at in range(begin + 1, recorder.count + 1):
        calls = TrackedCalls()
        fault = FailAt(at, OSError(errno.ESTALE, ""), only=only)
        with LocalStore(str(tmp_path), calls=intercept(calls, fault)) as store:
            opened = set(calls.open_descriptors)
            with pytest.raises(StoreError):
                store.read_file("a/state", 99)
            assert calls.open_descriptors == opened
            assert store.read_file("a/state", 99) == DATA


@pytest.mark.parametrize(
    "verb",
    [
        lambda store: store.create(new_part()),
        lambda store: store.create_file("x/y", b""),
        lambda store: store.hold_marker("x/y"),
    ],
)
@pytest.mark.fault("F4")
def test_permission_denied_names_path_and_remedy(tmp_path: Path, verb: Callable[[LocalStore], object]) -> None:
    """EACCES on any way of creating arrives as NotApplied, with the path and a hint."""
    with failing(tmp_path, FailAt(1, PermissionError(errno.EACCES, ""), only={"create"})) as store:
        with pytest.raises(NotApplied) as raised:
            verb(store)
        assert str(tmp_path) in str(raised.value)
        assert "permission" in raised.value.hint


# Limits of the machine, for real: a full or read-only disk, too large a file, too many open ones.


@pytest.mark.fault("F3")
def test_a_full_disk_is_determinate_and_can_be_recovered_from(tmp_path: Path) -> None:
    """ENOSPC: parts and metadata fail with a hint, nothing half is visible, and after freeing space it goes on."""
    with small_disk(tmp_path / "disk", "1m") as disk, LocalStore(str(disk)) as store:
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


@pytest.mark.fault("F3")
def test_a_copy_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    """A publication that runs out of space while it copies does not fill the disk with each attempt."""
    with small_disk(tmp_path / "disk", "1m") as disk, LocalStore(str(disk)) as store:
        handle = write_part(store, bytes(600 << 10), tail=TAIL)
        for _ in range(3):
            with pytest.raises(NotApplied):
                store.publish(handle, "rewrite")
            assert len(files_in(store)) == 1
        store.publish(handle, "auto")
        assert files_in(store) == {handle.path_of(handle.name): 600 << 10}


@pytest.mark.fault("F4")
def test_a_read_only_file_system_is_refused_at_once(tmp_path: Path) -> None:
    """EROFS shows when the store is opened for writing, while reading stays possible."""
    with small_disk(tmp_path / "disk", "1m") as disk:
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


@pytest.mark.fault("F13")
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
