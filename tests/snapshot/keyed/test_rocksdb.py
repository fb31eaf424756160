"""The RocksDB backend: what it does otherwise than the heap. What both do is in the other files of this folder."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import pyarrow as pa
import pytest
import rocksdict

from partfile.errors import ConfigError, SnapshotCorrupt, StoreError, UnencodableState
from partfile.snapshot.keyed.codecs import BytesCodec, Float64Codec, Int64Codec, PairCodec
from partfile.snapshot.keyed.descriptors import Earlier, ValueStateDescriptor
from partfile.snapshot.keyed.heap import HeapBackend
from partfile.snapshot.keyed.keys import KeyCodec, KeyGroupRange, group_of_hash, subtask_of_group
from partfile.snapshot.keyed.rocksdb import backend as rocksdb_backend
from partfile.snapshot.keyed.rocksdb import database as rocksdb_database
from partfile.snapshot.keyed.rocksdb.backend import RocksDBBackend
from partfile.snapshot.keyed.rocksdb.database import RocksDBMemory, RocksDBOptions
from partfile.snapshot.keyed.states import ENTRIES_AT_ONCE
from partfile.snapshot.keyed.ttl import Ttl
from support.files.disks import small_disk
from support.processes.deadline import PATIENCE_S, ended
from support.sinks.life_cycle import in_child
from support.state.keyed import (
    MAX_PARALLELISM,
    ROCKSDB,
    TEXT_KEYS,
    backend_of,
    bytes_of,
    encode_keyed_state,
    file_of,
    list_of,
    map_of,
    value_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from partfile.snapshot.keyed.backend import KeyedStateBackend
    from partfile.snapshot.keyed.states import ValueState

MINUTE_MS = 60_000
MIB = 1 << 20


def opened(options: RocksDBOptions = ROCKSDB, memory: RocksDBMemory | None = None) -> RocksDBBackend:
    """A backend of all key groups, which is told that it is 1970."""
    groups = KeyGroupRange(0, MAX_PARALLELISM - 1)
    made = RocksDBBackend(TEXT_KEYS, groups, MAX_PARALLELISM, options=options, memory=memory or RocksDBMemory(8 * MIB))
    made.advance_time(0)
    return made


def directory_of(backend: RocksDBBackend) -> Path:
    return Path(backend.database.path)


def options_of(backend: RocksDBBackend, state: str) -> set[str]:
    """What the engine writes down about itself and about the column family of a state."""
    newest = max(directory_of(backend).glob("OPTIONS-*"))
    sections = [one.partition("]\n") for one in re.split(r"^\[", newest.read_text(), flags=re.MULTILINE)]
    chosen = [lines for head, _, lines in sections if head == "DBOptions" or head.endswith(f'"state-{state}"')]
    assert len(chosen) == 3
    return {line.strip() for lines in chosen for line in lines.splitlines()}


def file_bytes(backend: RocksDBBackend) -> int:
    """Of the rows of all states that are in files."""
    return sum(path.stat().st_size for path in directory_of(backend).glob("*.sst"))


def rows_in(backend: RocksDBBackend, state: str) -> list[tuple[bytes, bytes]]:
    """What lies in the column family of a state."""
    return list(backend.database.column(state).between(b"", b"\xff\xff"))


# The database.


@pytest.mark.item("SB-01", "SB-06", "RM-08")
def test_each_state_has_a_column_family_in_a_directory_of_the_backend(tmp_path: Path) -> None:
    """Below the one that was named, which is made. Two backends do not meet there."""
    options = RocksDBOptions(directory=str(tmp_path / "a" / "b"))
    one, other = opened(options), opened(options)
    one.value_state(ValueStateDescriptor("größe/[1]\n", BytesCodec()))
    one.list_state(list_of())
    one.value_state(ValueStateDescriptor("default", BytesCodec()))
    other.map_state(map_of())
    directories = sorted((tmp_path / "a" / "b").iterdir())
    assert directories == sorted(map(directory_of, (one, other)))
    names = rocksdict.Rdict.list_cf(str(directory_of(one)), rocksdict.Options(raw_mode=True))
    assert sorted(names) == ["default", "state-default", "state-gr%C3%B6%C3%9Fe%2F%5B1%5D%0A", "state-list"]
    one.close()
    one.close()
    assert list((tmp_path / "a" / "b").iterdir()) == [directory_of(other)]
    other.close()


def test_nothing_is_logged_ahead(tmp_path: Path) -> None:
    """The database is scratch, and a log of it would be written for nothing."""
    backend = opened(RocksDBOptions(directory=str(tmp_path)))
    state = backend.value_state(ValueStateDescriptor("bytes", BytesCodec()))
    for key in range(200):
        backend.set_current_key(f"key {key}")
        state.update(bytes(1000))
    logs = list(directory_of(backend).glob("*.log"))
    assert logs
    assert sum(log.stat().st_size for log in logs) < 2000
    backend.close()


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """A file stands there."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match=r"directory='.*/file/below' cannot hold a database"):
        opened(RocksDBOptions(directory=str(tmp_path / "file" / "below")))


def test_what_is_not_closed_goes_with_its_last_reference(tmp_path: Path) -> None:
    """So that a test or a notebook that forgets it leaves nothing behind. A state that is kept is refused."""
    backend = opened(RocksDBOptions(directory=str(tmp_path), write_buffer_bytes=64 << 10))
    state = backend.value_state(ValueStateDescriptor("bytes", BytesCodec()))
    for key in range(3000):
        backend.set_current_key(f"key {key}")
        state.update(os.urandom(100))
    view = backend.freeze()
    assert len(encode_keyed_state(view)) > 300_000
    del backend, view
    gc.collect()
    assert list(tmp_path.iterdir()) == []
    for call in (state.value, state.clear):
        with pytest.raises(ConfigError, match="the keyed state is closed"):
            call()


def test_a_relative_directory_is_found_from_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end as well, when the database goes."""
    monkeypatch.chdir(tmp_path)
    backend = opened(RocksDBOptions(directory="state"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    state = backend.value_state(value_of())
    backend.set_current_key("a")
    state.update(1)
    assert state.value() == 1
    backend.close()
    assert list((tmp_path / "state").iterdir()) == []


def test_a_view_that_cannot_be_taken_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend that is closed afterwards goes at once."""
    backend = opened(RocksDBOptions(directory=str(tmp_path)))
    backend.value_state(value_of())

    def fail() -> NoReturn:
        raise StoreError("no cursor")

    monkeypatch.setattr(backend.database.column("value"), "cursor", fail)
    with pytest.raises(StoreError, match="no cursor"):
        backend.freeze()
    backend.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.item("SS-04", "SS-24")
def test_a_database_is_closed_after_the_last_view(tmp_path: Path) -> None:
    """Views are written though the backend is closed, and its directory goes with the last one."""
    backend = opened(RocksDBOptions(directory=str(tmp_path)))
    state = backend.value_state(value_of())
    backend.set_current_key("a")
    state.update(1)
    expected = bytes_of(backend)
    views = [backend.freeze(), backend.freeze()]
    backend.close()
    assert list(tmp_path.iterdir()) == [directory_of(backend)]
    for view in views:
        assert encode_keyed_state(view) == expected
        view.release()
    assert list(tmp_path.iterdir()) == []


def test_a_child_of_a_fork_waits_for_no_lock_of_its_parent(tmp_path: Path) -> None:
    """Another thread of the parent may have been closing the database when it was forked."""
    backend = opened(RocksDBOptions(directory=str(tmp_path)))
    held = backend.database._opened

    def close() -> None:
        # A process that waits is killed.
        signal.alarm(10)
        held.end()

    with held._lock:
        assert in_child(close) == 0
    backend.close()


def test_a_child_of_a_fork_is_refused_and_does_not_hang(tmp_path: Path) -> None:
    """Neither when it uses the state, nor when it ends as a program does. The parent goes on."""
    backend = opened(RocksDBOptions(directory=str(tmp_path)))
    state = backend.value_state(value_of())
    backend.set_current_key("a")
    state.update(1)
    views = [backend.freeze()]
    child = os.fork()
    if child == 0:
        code = 1
        try:
            refused = 0
            view = next(iter(views))
            for call in (
                state.value,
                lambda: state.update(2),
                backend.freeze,
                lambda: backend.map_state(map_of()),
                lambda: encode_keyed_state(view),
                opened,
            ):
                try:
                    call()
                except ConfigError as error:
                    refused += f"process {os.getpid()} was forked" in error.message
            backend.memory.usage_bytes  # noqa: B018 - it does not wait for a lock of the parent.
            backend.close()
            del backend, state, view
            views.clear()
            gc.collect()
            code = 0 if refused == 6 else 2
        finally:
            os._exit(code)
    assert ended(child) == 0
    assert directory_of(backend).exists()
    state.update(3)
    assert state.value() == 3
    views.pop().release()
    backend.close()


def test_a_child_that_ends_as_a_program_does_leaves_the_directory(tmp_path: Path) -> None:
    """Its own end of the interpreter removes nothing of the parent's, and does not wait for missing threads."""
    program = f"""
import os, sys
from partfile.snapshot.keyed.descriptors import ValueStateDescriptor
from partfile.snapshot.keyed.codecs import Int64Codec
from partfile.snapshot.keyed.keys import KeyCodec, KeyGroupRange, group_of_hash
from partfile.snapshot.keyed.rocksdb.backend import RocksDBBackend
from partfile.snapshot.keyed.rocksdb.database import RocksDBOptions
options = RocksDBOptions(directory={str(tmp_path)!r})
backend = RocksDBBackend(KeyCodec("string"), KeyGroupRange(0, 1), 2, options=options)
state = backend.value_state(ValueStateDescriptor("value", Int64Codec()))
backend.set_current_key("a")
state.update(1)
if os.fork() == 0:
    sys.exit()
os.wait()
state.update(2)
print(state.value(), len(os.listdir({str(tmp_path)!r})))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "2 1\n"
    assert list(tmp_path.iterdir()) == []


def test_a_child_of_a_fork_gives_up_no_cursor(tmp_path: Path) -> None:
    """Also one that has moved, of which it would ask for locks that a thread of the parent may have held."""
    program = f"""
import gc, os, sys
from partfile.snapshot.keyed.rocksdb.database import Cursor, Database, LinkedFiles, RocksDBMemory, RocksDBOptions
made, begin = [], Cursor.__init__
def record(cursor, rows):
    made.append(rows)
    begin(cursor, rows)
Cursor.__init__ = record
database = Database(RocksDBOptions(directory={str(tmp_path)!r}), RocksDBMemory(8 << 20))
column = database.column("value")
column.change((str(key).encode(), b"value") for key in range(1000))
files = LinkedFiles(database.checkpoint(), "files")
moved = [column.between(b"1", b"9"), files.between("value", b"1", b"9")]
for rows in moved:
    next(rows)
before = [sys.getrefcount(one) for one in made]
if os.fork() == 0:
    del rows
    moved.clear()
    gc.collect()
    # The generator and its cursor gave up one each, and one came that stays for ever.
    after = [sys.getrefcount(one) for one in made]
    print([old - new for old, new in zip(before, after)], flush=True)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.wait()[1]))
for rows in moved:
    rows.close()
files.close()
database.close()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[1, 1]\n0\n"


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "on_exit"), reason="libc has no on_exit")
def test_a_child_whose_parent_has_another_thread_ends_with_its_code(tmp_path: Path) -> None:
    """The engine would join its threads, which the child lacks; what the child wrote to its files is not lost."""
    program = f"""
import ctypes, os, sys
from concurrent.futures import ThreadPoolExecutor
from partfile.snapshot.keyed.keys import KeyCodec, KeyGroupRange
from partfile.snapshot.keyed.rocksdb.backend import RocksDBBackend
from partfile.snapshot.keyed.rocksdb.database import RocksDBOptions
options = RocksDBOptions(directory={str(tmp_path)!r})
backend = RocksDBBackend(KeyCodec("string"), KeyGroupRange(0, 1), 2, options=options)
pool = ThreadPoolExecutor(1)
pool.submit(int).result()
libc = ctypes.CDLL(None)
child = os.fork()
if child == 0:
    print("of Python")
    libc.puts(b"of C")
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
backend.close()
pool.shutdown()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert sorted(done.stdout.splitlines()) == ["7", "of C", "of Python"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.item("SS-27")
def test_rows_that_cannot_be_read_are_no_end_of_the_rows(tmp_path: Path) -> None:
    """A damaged file of the database fails the snapshot, which would be short of rows otherwise."""

    def customize(options: rocksdict.Options) -> None:
        # Otherwise the engine may put whole files in the place of those that are damaged here.
        options.set_disable_auto_compactions(True)

    scratch = RocksDBOptions(
        directory=str(tmp_path), compression="none", write_buffer_bytes=64 << 10, customize=customize
    )
    backend = opened(scratch)
    state = backend.value_state(ValueStateDescriptor("bytes", BytesCodec()))
    for key in range(3000):
        backend.set_current_key(f"key {key}")
        state.update(os.urandom(1000))
    files = sorted(directory_of(backend).glob("*.sst"), key=lambda path: path.stat().st_mtime)
    assert files
    for path in files:
        with path.open("r+b") as file:
            file.seek(path.stat().st_size // 3)
            file.write(os.urandom(5000))
    with pytest.raises(StoreError, match="RocksDB failed: Corruption"):
        bytes_of(backend)
    keys = backend.key_batch(pa.array([f"key {key}" for key in range(3000)]))
    with pytest.raises(StoreError, match="RocksDB failed: Corruption"):
        state.value_batch(keys)
    backend.close()


def test_a_state_whose_rows_are_refused_leaves_none() -> None:
    """Those before the first one that is refused were written under its new name, where nothing is left of them."""
    heap = backend_of()
    texts = heap.value_state(ValueStateDescriptor("value", PairCodec("text", str.encode, bytes.decode)))
    numbers = PairCodec("text", lambda value: b"%d" % value, int)
    # Of the last key group, so that two thousand rows are written before it.
    refused = max(range(3000), key=lambda key: group_of_hash(TEXT_KEYS.locate(f"key {key}")[1], MAX_PARALLELISM))
    for key in range(3000):
        heap.set_current_key(f"key {key}")
        texts.update("no number" if key == refused else f"{key}")
    backend = backend_of(RocksDBBackend, files=[file_of(heap)])
    expected = bytes_of(backend)
    with pytest.raises(SnapshotCorrupt, match=r"state 'value', key group [0-9]+"):
        backend.value_state(ValueStateDescriptor("value", numbers))
    assert bytes_of(backend) == expected
    with pytest.raises(SnapshotCorrupt, match=r"state 'number', key group [0-9]+"):
        backend.value_state(ValueStateDescriptor("number", numbers, formerly="value"))
    assert isinstance(backend, RocksDBBackend)
    assert "number" not in backend.database._opened.columns
    assert bytes_of(backend) == expected
    backend.drop_state("value")
    assert rows_in(backend, "value") == []
    state = backend.value_state(ValueStateDescriptor("number", numbers))
    backend.set_current_key("key 1")
    assert state.value() is None
    backend.close()


def test_a_list_lives_as_long_as_its_newest_element() -> None:
    """Also where the last one is older: a restored subtask is told an earlier time than the one before."""
    first = backend_of()
    first.advance_time(1_000_000)
    first.set_current_key("k")
    first.list_state(list_of(Ttl(60))).add_all("ab")
    for make in (HeapBackend, RocksDBBackend):
        backend = backend_of(make, files=[file_of(first)])
        state = backend.list_state(list_of(Ttl(60)))
        backend.advance_time(950_000)
        backend.set_current_key("k")
        state.add("c")
        backend.advance_time(1_010_000)
        backend.tables()["list"].pay(100)  # type: ignore[attr-defined]
        assert [len(rows) for _, (rows, _) in file_of(backend).rows(group_of_hash(TEXT_KEYS.locate("k")[1], 16))] == [2]
        assert state.get() == ("a", "b")
        backend.close()


# Writes that the engine holds back.


def held_back() -> tuple[RocksDBBackend, ValueState[bytes]]:
    """A backend that is seconds behind on a disk of 2 KB a second, so takes no row now, and a state that has one."""

    def slow(options: rocksdict.Options) -> None:
        options.set_ratelimiter(2_000, 100_000, 10)

    backend = opened(RocksDBOptions(customize=slow, write_buffer_bytes=64 << 10, compression="none"))
    state = backend.value_state(ValueStateDescriptor("state", BytesCodec()))
    backend.set_current_key("k")
    state.update(b"first")
    for name in ("replaced", "removed", "moved"):
        backend.database.column(name).put(b"k", b"as it was")
    ((row, _),) = rows_in(backend, "state")

    def fill() -> NoReturn:
        while True:
            backend.database.column("state")._put(row, os.urandom(10_000))

    with pytest.raises(Exception, match="Write stall"):
        fill()
    return backend, state


def test_writes_that_are_held_back_are_done_once_files_were_merged() -> None:
    """Each kind of write; other threads run while it waits."""
    backend, _ = held_back()
    column = backend.database.column
    writes: dict[str, Callable[[], None]] = {
        "replaced": lambda: column("replaced").put(b"k", b"later"),
        "removed": lambda: column("removed").delete(b"k"),
        "moved": lambda: column("moved").change([(b"l", b"later")], [b"k"]),
    }
    writers = [threading.Thread(target=write, daemon=True) for write in writes.values()]
    for writer in writers:
        writer.start()
    assert [rows_in(backend, name) for name in writes] == [[(b"k", b"as it was")]] * 3
    assert all(writer.is_alive() for writer in writers)
    for writer in writers:
        writer.join(PATIENCE_S)
    assert [rows_in(backend, name) for name in writes] == [[(b"k", b"later")], [], [(b"l", b"later")]]
    backend.close()


def test_a_write_that_is_held_back_for_too_long_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so, and the state is as it was: it can be read and snapshotted."""
    monkeypatch.setattr(rocksdb_database, "MAX_STALL_S", 0)
    backend, state = held_back()
    known = state.value()
    with pytest.raises(StoreError, match=r"behind with writing and merging its files for 0 s") as raised:
        state.update(b"later")
    assert "RocksDBOptions(directory=" in raised.value.hint
    assert state.value() == known
    assert [rows for _, (_, rows) in file_of(backend).rows(group_of_hash(TEXT_KEYS.locate("k")[1], 16))] == [[known]]
    backend.close()


@pytest.mark.parametrize("write_buffer_bytes", [64 << 10, 256 << 10])
def test_on_a_full_disk_a_write_fails_and_stops_no_other_thread(tmp_path: Path, write_buffer_bytes: int) -> None:
    """Rows are written over and over, so that files are merged while the disk runs full."""
    script = dedent("""
        import os, random, sys, threading, time
        from partfile.errors import StoreError
        from partfile.snapshot.keyed.rocksdb import database

        def tick():
            while True:
                print("tick", time.monotonic(), flush=True)
                time.sleep(0.1)

        database.MAX_STALL_S = 2
        threading.Thread(target=tick, daemon=True).start()
        options = database.RocksDBOptions(
            directory=sys.argv[1], write_buffer_bytes=int(sys.argv[2]), compression="none"
        )
        opened = database.Database(options, database.RocksDBMemory(16 << 20))
        column = opened.column("state")
        chosen = random.Random(1)
        try:
            while True:
                column.put(b"%08d" % chosen.randrange(2000), os.urandom(1000))
        except StoreError as error:
            print("told", error, flush=True)
        column.get(b"00000001")
        os._exit(0)
    """)
    with small_disk(tmp_path / "disk", "6m") as disk:
        command = [sys.executable, "-c", script, str(disk), str(write_buffer_bytes)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    ticks = [float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("tick")]
    assert max((b - a for a, b in pairwise(ticks)), default=0) < 20, ticks
    assert "told RocksDB" in done.stdout


def test_a_list_is_changed_as_a_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Appended to, replaced or removed by one write."""
    backend = opened()
    state = backend.list_state(list_of())
    backend.set_current_key("a")
    state.add_all("12")
    column = backend.database.column("list")

    def fail(_batch: object) -> NoReturn:
        raise OSError("No space left on device")

    changes: tuple[Callable[[], None], ...] = (lambda: state.add_all("abc"), lambda: state.update("3"), state.clear)
    with monkeypatch.context() as broken:
        broken.setattr(column, "_write", fail)
        for change in changes:
            with pytest.raises(StoreError, match="No space left"):
                change()
    assert state.get() == ("1", "2")
    state.add("x")
    assert state.get() == ("1", "2", "x")
    backend.close()


# Options and memory.


@pytest.mark.item("RM-02", "RM-03")
def test_memory_is_parted_as_flink_parts_it() -> None:
    """The cache holds the buffers too, which count twice while they are written."""
    memory = RocksDBMemory(600 * MIB)
    assert (memory.cache_bytes, memory.write_buffer_bytes) == (500 * MIB, 200 * MIB)
    memory = RocksDBMemory(600 * MIB, write_buffer_ratio=0.1)
    assert (memory.cache_bytes, memory.write_buffer_bytes) == (580 * MIB, 40 * MIB)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: RocksDBMemory(1000), "size_bytes=1000 is no number of bytes from 8 MiB on"),
        (lambda: RocksDBMemory(write_buffer_ratio=1), "write_buffer_ratio=1 is not from 0.1"),
        (lambda: RocksDBMemory(write_buffer_ratio=0), "write_buffer_ratio=0 is not from 0.1"),
        (lambda: RocksDBMemory("128 MiB"), "size_bytes='128 MiB' is no number of bytes"),  # type: ignore[arg-type]
        (lambda: RocksDBOptions(write_buffer_bytes=1 << 70), "RocksDBOptions: write_buffer_bytes"),
        (lambda: RocksDBOptions(directory=""), "RocksDBOptions: directory"),
        (lambda: opened(RocksDBOptions(directory="\0")), "cannot hold a database"),
        (
            lambda: opened(RocksDBOptions(customize=lambda options: options.create_if_missing(False))),  # noqa: FBT003 - the engine's.
            "RocksDB cannot open a database",
        ),
        (lambda: RocksDBOptions(profile="tape"), "RocksDBOptions: profile"),
        (lambda: RocksDBOptions(write_buffers=1), "RocksDBOptions: write_buffers"),
        (lambda: RocksDBOptions(cache_bytes=1), "RocksDBOptions: cache_bytes"),
    ],
)
def test_options_that_cannot_be_used_are_refused(make: Callable[[], object], problem: str) -> None:
    """By name, with what to write."""
    with pytest.raises(ConfigError, match=problem) as refused:
        make()
    assert refused.value.hint


@pytest.mark.item("RM-01", "RM-15")
def test_several_states_and_backends_stay_within_one_budget() -> None:
    """Two databases of four states each, of more rows than the memory has room for."""
    memory = RocksDBMemory(24 * MIB)
    backends = [opened(memory=memory) for _ in range(2)]
    states = [
        (backend, [backend.value_state(ValueStateDescriptor(f"state {at}", BytesCodec())) for at in range(4)])
        for backend in backends
    ]
    most = 0
    for key in range(1500):
        for backend, values in states:
            backend.set_current_key(f"key {key}")
            for state in values:
                state.update(os.urandom(8000))
        most = max(most, memory.usage_bytes)
    for backend in backends:
        bytes_of(backend)
        most = max(most, memory.usage_bytes)
        backend.close()
    assert 2 * memory.size_bytes < 3000 * 8 * 3000
    assert 4 * MIB < most <= 1.1 * memory.size_bytes


@pytest.mark.parametrize("is_full", [False, True])
def test_a_write_waits_for_files_where_there_is_no_room(monkeypatch: pytest.MonkeyPatch, is_full: bool) -> None:
    """The engine itself begins to write files, and takes rows in faster than it writes them."""
    monkeypatch.setattr(RocksDBMemory, "is_full", property(lambda _memory: is_full))
    backend = opened(memory=RocksDBMemory(64 * MIB))
    state = backend.value_state(ValueStateDescriptor("bytes", BytesCodec()))
    for key in range(30):
        backend.set_current_key(f"key {key}")
        state.update(bytes(MIB // 10))
    assert len(list(directory_of(backend).glob("*.sst"))) == 2 * is_full
    backend.close()


@pytest.mark.item("RM-11")
@pytest.mark.parametrize(
    ("profile", "numbers"),
    [
        ("default", (2, 2, 4 << 10, 64 * MIB, 256 * MIB, 1)),
        ("spinning-disk", (4, 2, 4 << 10, 64 * MIB, 256 * MIB, 1)),
        ("spinning-disk-high-memory", (4, 4, 128 << 10, 256 * MIB, 1 << 30, 3)),
        ("flash-ssd", (4, 2, 4 << 10, 64 * MIB, 256 * MIB, 1)),
    ],
)
def test_a_profile_is_what_the_engine_works_with(tmp_path: Path, profile: Any, numbers: tuple[int, ...]) -> None:
    """As Flink has it, with Flink's own sizes where it says nothing."""
    backend = opened(RocksDBOptions(directory=str(tmp_path), profile=profile))
    backend.value_state(value_of())
    names = (
        "max_background_jobs",
        "max_write_buffer_number",
        "block_size",
        "target_file_size_base",
        "max_bytes_for_level_base",
        "min_write_buffer_number_to_merge",
    )
    wanted = {f"{name}={number}" for name, number in zip(names, numbers, strict=True)}
    assert wanted - options_of(backend, "value") == set()
    backend.close()


@pytest.mark.item("RM-05", "RM-06", "RM-12")
def test_options_reach_the_engine(tmp_path: Path) -> None:
    """A profile gives way to options that are given, these to ``customize``, and all of them to the memory."""

    def customize(options: rocksdict.Options) -> None:
        options.set_max_background_jobs(7)
        blocks = rocksdict.BlockBasedOptions()
        blocks.disable_cache()
        options.set_block_based_table_factory(blocks)

    chosen = RocksDBOptions(
        directory=str(tmp_path),
        profile="spinning-disk-high-memory",
        write_buffers=6,
        write_buffer_bytes=2 * MIB,
        customize=customize,
    )
    backend = opened(chosen)
    backend.value_state(value_of())
    wanted = {
        "max_background_jobs=7",
        "max_write_buffer_number=6",
        "write_buffer_size=2097152",
        "arena_block_size=174762",
        "level_compaction_dynamic_level_bytes=true",
        "block_size=131072",
        "no_block_cache=false",
        "cache_index_and_filter_blocks=true",
        "pin_l0_filter_and_index_blocks_in_cache=true",
        "filter_policy=bloomfilter",
        "use_fsync=false",
        "max_open_files=-1",
        "keep_log_file_num=1",
    }
    assert wanted - options_of(backend, "value") == set()
    backend.close()


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({}, "kLZ4Compression"),
        ({"compression": "none"}, "kNoCompression"),
        ({"compression": "snappy"}, "kSnappyCompression"),
        ({"compression": "lz4"}, "kLZ4Compression"),
        ({"compression": "zstd"}, "kZSTD"),
    ],
)
def test_files_are_compressed_as_was_said(tmp_path: Path, given: dict[str, Any], name: str) -> None:
    """The engine has the method built in, and writes a megabyte of zeros with it."""
    backend = opened(RocksDBOptions(directory=str(tmp_path), **given))
    state = backend.value_state(ValueStateDescriptor("bytes", BytesCodec()))
    for key in range(1000):
        backend.set_current_key(f"key {key}")
        state.update(bytes(1000))
    backend.database.column("bytes").flush()
    assert f"compression={name}" in options_of(backend, "bytes")
    assert (file_bytes(backend) > 1_000_000) == (name == "kNoCompression")
    backend.close()


@pytest.mark.item("RM-01", "RM-06")
def test_blocks_that_are_read_are_kept_in_the_memory_that_is_shared(tmp_path: Path) -> None:
    """Those of both databases, and not in a cache that the engine makes for itself."""
    memory = RocksDBMemory(64 * MIB)
    backends = [opened(RocksDBOptions(directory=str(tmp_path)), memory) for _ in range(2)]
    for backend in backends:
        state = backend.value_state(ValueStateDescriptor("bytes", BytesCodec()))
        for key in range(1000):
            backend.set_current_key(f"key {key}")
            state.update(os.urandom(4000))
        backend.database.column("bytes").flush()
    for backend in backends:
        before = memory.usage_bytes
        bytes_of(backend)
        assert memory.usage_bytes - before > 3_900_000
        backend.close()


@pytest.mark.item("RM-01")
def test_a_restore_stays_within_the_memory() -> None:
    """Though it sets many more rows than there is room for, some thousand at a time."""
    heap = backend_of()
    written = heap.value_state(ValueStateDescriptor("bytes", PairCodec("bytes", bytes, bytes)))
    for key in range(6000):
        heap.set_current_key(f"key {key}")
        written.update(os.urandom(4000))
    memory, used = RocksDBMemory(8 * MIB), []

    def read(data: bytes) -> bytes:
        used.append(memory.usage_bytes)
        return data

    groups = KeyGroupRange(0, MAX_PARALLELISM - 1)
    backend = RocksDBBackend(TEXT_KEYS, groups, MAX_PARALLELISM, [file_of(heap)], options=ROCKSDB, memory=memory)
    backend.value_state(ValueStateDescriptor("bytes", PairCodec("bytes", bytes, read)))
    assert len(used) == 6000
    assert max(used) <= 1.1 * memory.size_bytes
    backend.close()


@pytest.mark.item("RM-01")
def test_many_values_at_once_stay_within_the_memory() -> None:
    """As one by one: what is written is weighed before the next."""
    memory = RocksDBMemory(8 * MIB)
    backend = opened(memory=memory)
    state, used = backend.value_state(ValueStateDescriptor("bytes", BytesCodec())), []
    column = backend.database.column("bytes")
    real = column._weigh

    def weigh(size_bytes: int) -> None:
        used.append(memory.usage_bytes)
        real(size_bytes)

    column._weigh = weigh  # type: ignore[method-assign]
    keys = backend.key_batch(pa.array([f"key {at}" for at in range(64)]))
    state.update_batch(keys, [os.urandom(MIB // 2) for _ in range(64)])
    assert len(used) == 64
    assert max(used) <= 1.1 * memory.size_bytes
    backend.close()


@pytest.mark.item("RM-01", "SP-12")
def test_a_restore_of_many_states_gathers_within_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that wait for a file have the room of those that are not in files yet. All states are made at once."""
    states, memory = 40, RocksDBMemory(8 * MIB)
    heap = backend_of()
    for key in range(1000):
        heap.set_current_key(f"key {key}")
        for at in range(states):
            heap.value_state(ValueStateDescriptor(f"state {at}", Int64Codec())).update(key)
    made: list[rocksdb_database.SortedRows] = []
    gathered = [0]
    real_make, real_write = rocksdb_database.Database.sorted_rows, rocksdb_database.SortedRows.write

    def make(*arguments: Any) -> rocksdb_database.SortedRows:
        made.append(real_make(*arguments))
        return made[-1]

    def write(rows: rocksdb_database.SortedRows, pairs: Any) -> None:
        real_write(rows, pairs)
        gathered.append(sum(one._gathered_bytes for one in made))

    monkeypatch.setattr(rocksdb_database.Database, "sorted_rows", make)
    monkeypatch.setattr(rocksdb_database.SortedRows, "write", write)
    options = RocksDBOptions(directory=str(tmp_path))
    groups = KeyGroupRange(0, MAX_PARALLELISM - 1)
    backend = RocksDBBackend(TEXT_KEYS, groups, MAX_PARALLELISM, [file_of(heap)], options=options, memory=memory)
    assert memory.write_buffer_bytes // 10 < max(gathered) <= memory.write_buffer_bytes // 2
    # The engine writes its options anew with each column family that is made later, under the next number.
    numbers = [int(path.name.removeprefix("OPTIONS-")) for path in directory_of(backend).glob("OPTIONS-*")]
    assert max(numbers) < states
    assert bytes_of(backend) == bytes_of(heap)
    backend.close()


@pytest.mark.item("SS-33")
def test_a_damaged_value_among_many_is_named_with_its_key_group(tmp_path: Path) -> None:
    """As one that is read alone; no key is current afterwards."""
    backend = opened(RocksDBOptions(directory=str(tmp_path)))
    state = backend.value_state(value_of())
    keys = backend.key_batch(pa.array(["a", "b"]))
    state.update_batch(keys, [1, 2])
    damaged = state._rows._keys_of(keys)[1]  # type: ignore[attr-defined]
    backend.database.column("value").put(damaged, b"two")
    group = group_of_hash(TEXT_KEYS.locate("b")[1], MAX_PARALLELISM)
    with pytest.raises(SnapshotCorrupt, match=f"state 'value', key group {group}, codec 'int64': a value of 3 bytes"):
        state.value_batch(keys)
    with pytest.raises(ConfigError, match="without a key"):
        state.value()
    backend.close()


def test_a_child_of_a_fork_ends_no_file_of_a_restore(tmp_path: Path) -> None:
    """It is the parent's, which writes on."""
    backend = opened(RocksDBOptions(directory=str(tmp_path)))
    rows = [(b"key %04d" % at, b"x" * 1000) for at in range(1000)]
    with backend.database.sorted_rows("state") as written:
        written.write(rows[:500])
        assert list(directory_of(backend).glob("*.rows"))

        def leave() -> None:
            signal.alarm(60)
            written.__exit__(None, None, None)

        assert in_child(leave) == 0
        written.write(rows[500:])
    assert list(backend.database.column("state").between(b"", b"z")) == rows
    backend.close()


def test_a_restore_that_fails_hands_over_no_rows_of_an_unended_file(tmp_path: Path) -> None:
    """Only whole files are in the column then."""
    backend = opened(RocksDBOptions(directory=str(tmp_path)))
    rows = [(b"key %04d" % at, b"x" * 1000) for at in range(1000)]

    def failing(size: int) -> Iterator[tuple[bytes, bytes]]:
        yield from rows[:size]
        raise ZeroDivisionError

    for size in (10, 1000):
        with pytest.raises(ZeroDivisionError), backend.database.sorted_rows(f"state {size}") as written:
            written.write(failing(size))
        assert list(backend.database.column(f"state {size}").between(b"", b"z")) == []
    assert not list(directory_of(backend).glob("*.rows"))
    backend.close()


@pytest.mark.item("SP-12")
def test_a_restore_hands_the_engine_whole_files(tmp_path: Path) -> None:
    """Of the size of all its files, past the rows that are in memory, whatever the order of the old subtasks."""
    heaps = [backend_of(HeapBackend, subtask, 3) for subtask in range(3)]
    for key in range(3000):
        group = group_of_hash(TEXT_KEYS.locate(f"key {key}")[1], MAX_PARALLELISM)
        heap = heaps[subtask_of_group(group, 3, MAX_PARALLELISM)]
        heap.set_current_key(f"key {key}")
        heap.value_state(value_of()).update(key)
        heap.list_state(list_of()).add_all("xyz")
        heap.map_state(map_of()).put(1, key)
    options = RocksDBOptions(directory=str(tmp_path), target_file_bytes=64 << 10, compression="none")
    files = [file_of(heap) for heap in reversed(heaps)]
    whole = backend_of(HeapBackend, files=files)
    groups = KeyGroupRange(0, MAX_PARALLELISM - 1)
    backend = RocksDBBackend(TEXT_KEYS, groups, MAX_PARALLELISM, files, options=options)
    made = sorted(path.stat().st_size for path in directory_of(backend).glob("*.sst"))
    assert sum(made) > 3000 * 5 * 12
    assert len(made) > 3
    assert made[-1] < 128 << 10
    assert not list(directory_of(backend).glob("*.rows"))
    assert bytes_of(backend) == bytes_of(whole)
    converted = ValueStateDescriptor("value", Float64Codec(), earlier=(Earlier(Int64Codec(), float),))
    backend.value_state(converted)
    assert max(backend.metric("cur-size-active-mem-table").values()) < 10_000
    assert not list(directory_of(backend).glob("*.rows"))
    whole.value_state(converted)
    assert bytes_of(backend) == bytes_of(whole)
    backend.close()
    assert list(tmp_path.iterdir()) == []


class Writer:
    """The engine's writer of a file, which fails when it is told to, and counts how many are open.

    Args:
        options: Of the engine.
    """

    fails: ClassVar[dict[str, int]] = {}
    """Calls that fail, and how many of them go well first."""
    calls: ClassVar[Counter[str]] = Counter()
    is_open: ClassVar[Counter[str]] = Counter()
    most_open = 0

    def __init__(self, options: rocksdict.Options) -> None:
        self._call("make")
        self._real = REAL_WRITER(options)
        self._path = ""

    def open(self, path: str) -> None:
        """Open the file."""
        self._call("open")
        self._real.open(path)
        self._path = path
        Writer.is_open[path] += 1
        Writer.most_open = max(Writer.most_open, Writer.is_open.total())

    def __setitem__(self, key: bytes, value: bytes) -> None:
        self._call("put")
        self._real[key] = value

    def file_size(self) -> int:
        """What was written so far."""
        self._call("size")
        return self._real.file_size()

    def finish(self) -> None:
        """End the file."""
        self._call("finish")
        self._real.finish()
        Writer.is_open[self._path] -= 1

    @classmethod
    def _call(cls, kind: str) -> None:
        cls.calls[kind] += 1
        if cls.calls[kind] == cls.fails.get(kind, 0):
            raise OSError("IO error: No space left on device")


REAL_WRITER = rocksdict.SstFileWriter


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> type[Writer]:
    """Takes the place of the engine's writer."""
    monkeypatch.setattr(rocksdict, "SstFileWriter", Writer)
    for counter in (Writer.calls, Writer.is_open):
        counter.clear()
    monkeypatch.setattr(Writer, "most_open", 0)
    monkeypatch.setattr(Writer, "fails", {})
    return Writer


def test_an_engine_that_fails_within_a_restore_leaves_nothing(
    tmp_path: Path, writer: type[Writer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first and the last call of each kind, when files are taken in and when values are converted."""
    heap = backend_of()
    for key in range(1500):
        heap.set_current_key(f"key {key}")
        heap.value_state(value_of()).update(key)
        heap.map_state(map_of()).put(1, key)
    groups, file = KeyGroupRange(0, MAX_PARALLELISM - 1), file_of(heap)
    options = RocksDBOptions(directory=str(tmp_path), target_file_bytes=64 << 10, compression="none")
    converted = ValueStateDescriptor("value", Float64Codec(), earlier=(Earlier(Int64Codec(), float),))
    real_take = rocksdb_database.Column.take_file

    def take_file(column: rocksdb_database.Column, path: str) -> None:
        try:
            Writer._call("take")
        except OSError as error:
            raise rocksdb_database._failed(error) from error
        real_take(column, path)

    monkeypatch.setattr(rocksdb_database.Column, "take_file", take_file)

    def restore() -> RocksDBBackend:
        return RocksDBBackend(TEXT_KEYS, groups, MAX_PARALLELISM, [file], options=options)

    whole = restore()
    at_first = dict(writer.calls)
    whole.value_state(converted)
    calls = dict(writer.calls)
    expected = bytes_of(whole)
    whole.close()
    assert calls.keys() == {"make", "open", "put", "size", "finish", "take"}
    for kind, count in calls.items():
        for fails in {1, at_first[kind], count}:
            writer.calls.clear()
            writer.fails = {kind: fails}
            if fails <= at_first[kind]:
                with pytest.raises(StoreError, match="No space left on device"):
                    restore()
                assert list(tmp_path.iterdir()) == []
                continue
            backend = restore()
            with pytest.raises(StoreError, match="No space left on device"):
                backend.value_state(converted)
            writer.fails = {}
            assert not list(directory_of(backend).glob("*.rows"))
            backend.value_state(converted)
            assert bytes_of(backend) == expected
            backend.close()
            assert list(tmp_path.iterdir()) == []


def test_a_restore_of_small_states_writes_one_file_at_a_time(tmp_path: Path, writer: type[Writer]) -> None:
    """So many states as a job may have would need more files than a process may have open."""
    heap = backend_of()
    for key in range(40):
        heap.set_current_key(f"key {key}")
        for at in range(20):
            heap.value_state(ValueStateDescriptor(f"state {at}", Int64Codec())).update(key)
    groups = KeyGroupRange(0, MAX_PARALLELISM - 1)
    options = RocksDBOptions(directory=str(tmp_path))
    backend = RocksDBBackend(TEXT_KEYS, groups, MAX_PARALLELISM, [file_of(heap)], options=options)
    assert (writer.calls["open"], writer.most_open) == (20, 1)
    assert bytes_of(backend) == bytes_of(heap)
    backend.close()


def test_a_limit_of_open_files_is_told_with_what_raises_it(tmp_path: Path) -> None:
    """Another disk would be of no help."""
    script = f"""
        import resource
        from partfile.errors import StoreError
        from partfile.snapshot.keyed.codecs import Int64Codec
        from partfile.snapshot.keyed.descriptors import ValueStateDescriptor
        from partfile.snapshot.keyed.keys import KeyCodec, KeyGroupRange
        from partfile.snapshot.keyed.rocksdb.backend import RocksDBBackend
        from partfile.snapshot.keyed.rocksdb.database import RocksDBOptions
        backend = RocksDBBackend(
            KeyCodec("string"), KeyGroupRange(0, 0), 1, options=RocksDBOptions(directory={str(tmp_path)!r})
        )
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        backend.set_current_key("a")
        try:
            for at in range(100):
                backend.value_state(ValueStateDescriptor(f"state {{at}}", Int64Codec())).update(at)
                backend.database.column(f"state {{at}}").flush()
        except StoreError as error:
            print(error.hint)
        backend.close()
    """
    told = subprocess.run(
        [sys.executable, "-c", dedent(script)], check=True, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert "ulimit -n" in told.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.item("RM-14")
def test_an_arena_that_fills_the_buffer_by_itself_is_refused() -> None:
    """Each row would be written to a file of its own."""
    with pytest.raises(ConfigError, match="arena_block_bytes=4194304 is more than the 2446676 bytes"):
        opened(RocksDBOptions(arena_block_bytes=4 * MIB))
    opened(RocksDBOptions(arena_block_bytes=MIB, directory=ROCKSDB.directory)).close()


def test_small_rows_count_as_well() -> None:
    """Most of what a number takes in memory is not the number."""
    memory = RocksDBMemory(8 * MIB)
    backend = opened(memory=memory)
    states = [backend.value_state(ValueStateDescriptor(f"state {at}", Int64Codec())) for at in range(8)]
    most = 0
    for key in range(20_000):
        backend.set_current_key(f"key {key}")
        for state in states:
            state.update(key)
        most = max(most, memory.usage_bytes)
    assert most <= 1.1 * memory.size_bytes
    backend.close()


def test_memory_of_another_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its locks are those of threads that are not here."""
    memory = RocksDBMemory(8 * MIB)
    monkeypatch.setattr(memory, "_pid", 1)
    with pytest.raises(ConfigError, match="RocksDBMemory was made by process 1"):
        opened(memory=memory)


# Rows.


@pytest.mark.item("SB-05")
def test_a_value_that_the_engine_does_not_take_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is set, and not when it is read."""
    monkeypatch.setattr(rocksdb_backend, "_MAX_VALUE_BYTES", 10)
    backend = opened()
    state = backend.value_state(ValueStateDescriptor("bytes", BytesCodec()))
    backend.set_current_key("a")
    state.update(bytes(10))
    with pytest.raises(UnencodableState, match="a value has 11 bytes, and RocksDB takes 10 at most"):
        state.update(bytes(11))
    assert state.value() == bytes(10)
    backend.close()


@pytest.mark.item("TT-17")
@pytest.mark.parametrize("kind", ["value", "list", "map"])
def test_accesses_look_through_as_many_rows_as_they_pay_for(kind: str) -> None:
    """In the order of the rows, from where the last look ended; a list that has expired goes as a whole."""
    ttl, keys = Ttl(60), 1000
    backend = opened()
    writes: dict[str, Callable[[], Any]] = {
        "value": lambda: backend.value_state(value_of(ttl)).update(1),
        "list": lambda: backend.list_state(list_of(ttl)).add_all("xyz"),
        "map": lambda: backend.map_state(map_of(ttl)).put(1, 1),
    }
    write, rows = writes[kind], keys * {"value": 1, "list": 4, "map": 1}[kind]
    for key in range(keys + 1):
        backend.set_current_key(f"key {key}")
        write()
    own = backend.context.row

    def others() -> int:
        return sum(not key[2:].startswith(own) for key, _ in rows_in(backend, kind))

    backend.advance_time(MINUTE_MS)
    paid = ENTRIES_AT_ONCE // 5 * 5
    assert others() == rows
    for _ in range(2 * ENTRIES_AT_ONCE // 5):
        write()
    # Each look may have met the rows of the key that pays, and a list is removed to its end.
    assert 2 * (paid - 4) <= rows - others() <= 2 * (paid + 3)
    for _ in range(2 * rows // 5):
        write()
    assert others() == 0
    backend.close()


@pytest.mark.item("TT-19")
@pytest.mark.parametrize("kind", ["value", "list", "map"])
def test_rows_that_have_expired_leave_the_files(tmp_path: Path, kind: str) -> None:
    """Reads of a key that has nothing pay for it, and after the next merge the engine has no file any more."""
    ttl, keys = Ttl(60), 1000
    backend = opened(RocksDBOptions(directory=str(tmp_path)))
    calls: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "value": (
            lambda: backend.value_state(value_of(ttl)).update(1),
            lambda: backend.value_state(value_of(ttl)).value(),
        ),
        "list": (lambda: backend.list_state(list_of(ttl)).add("x"), lambda: backend.list_state(list_of(ttl)).get()),
        "map": (lambda: backend.map_state(map_of(ttl)).put(1, 1), lambda: backend.map_state(map_of(ttl)).get(1)),
    }
    write, read = calls[kind]
    for key in range(keys):
        backend.set_current_key(f"key {key}")
        write()
    backend.database.column(kind).flush()
    assert file_bytes(backend) > 10 * keys
    backend.advance_time(MINUTE_MS)
    backend.set_current_key("nothing")
    for _ in range(3 * keys // 5):
        read()
    backend.database.column(kind).flush()
    engine: Any = backend.database._opened.engine
    engine.get_column_family(f"state-{kind}").compact_range(None, None)
    assert engine.live_files() == []
    backend.close()


@pytest.mark.item("TT-14")
def test_rows_are_not_looked_through_while_none_can_have_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their oldest time is known from the last time that they were."""
    backend = opened()
    state = backend.value_state(value_of(Ttl(60)))
    column = backend.database.column("value")
    looks: list[bytes] = []
    between = column.between

    def counted(begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        looks.append(begin)
        return between(begin, end)

    monkeypatch.setattr(column, "between", counted)
    backend.advance_time(MINUTE_MS)
    for key in range(2000):
        backend.set_current_key(f"key {key}")
        state.update(1)
    looked = len(looks)
    assert looked <= 4
    backend.advance_time(2 * MINUTE_MS - 1)
    for key in range(2000):
        backend.set_current_key(f"key {key}")
        state.update(2)
    assert len(looks) == looked
    backend.advance_time(3 * MINUTE_MS)
    for _ in range(2000):
        state.update(3)
    assert len(rows_in(backend, "value")) == 1
    backend.close()


def test_a_row_that_is_written_behind_a_look_is_met_by_the_next() -> None:
    """Though the look that had passed its place ended without meeting anything that lives."""
    backend = opened()
    state = backend.value_state(value_of(Ttl(60)))
    for key in range(20):
        backend.set_current_key(f"key {key}")
        state.update(1)
    first = min(range(20), key=lambda key: (group_of_hash(TEXT_KEYS.locate(f"key {key}")[1], MAX_PARALLELISM), key))
    table: Any = backend.tables()["value"]
    backend.advance_time(MINUTE_MS)
    table.pay(5)
    backend.set_current_key(f"key {first}")
    state.update(2)
    table.pay(100)
    assert len(rows_in(backend, "value")) == 1
    backend.advance_time(2 * MINUTE_MS)
    table.pay(100)
    assert rows_in(backend, "value") == []
    backend.close()


def test_a_list_goes_on_where_elements_in_front_have_expired() -> None:
    """Their places stay free in the database. A view numbers what lives from 0, also of a list that begins anew."""
    backend = opened()
    ttl = Ttl(60)
    state = backend.list_state(list_of(ttl))
    backend.set_current_key("a")
    state.add_all("ab")
    backend.advance_time(MINUTE_MS // 2)
    state.add_all("cd")
    backend.advance_time(MINUTE_MS)
    table: Any = backend.tables()["list"]
    table.pay(100)
    assert [key[-8:] for key, _ in rows_in(backend, "list")][1:] == [(2).to_bytes(8, "big"), (3).to_bytes(8, "big")]
    state.add("e")
    assert state.get() == ("c", "d", "e")
    twin = backend_of()
    twin_state = twin.list_state(list_of(ttl))
    twin.set_current_key("a")
    twin.advance_time(MINUTE_MS // 2)
    twin_state.add_all("cd")
    twin.advance_time(MINUTE_MS)
    twin_state.add("e")
    assert bytes_of(backend) == bytes_of(twin)
    backend.advance_time(2 * MINUTE_MS)
    table.pay(1)
    table.pay(1)
    assert rows_in(backend, "list") == []
    state.add("f")
    assert state.get() == ("f",)
    backend.close()


def test_namespaces_that_end_with_the_largest_byte_are_parted() -> None:
    """What lies behind all rows of a key is found also where its last bytes cannot grow."""
    backend = opened()
    spaces = backend.map_state(map_of(namespace=KeyCodec("binary")))
    backend.set_current_key("a")
    for space in (b"\xff", b"\xff\xff", b"\xfe"):
        spaces.set_namespace(space)
        spaces.put(1, space.hex())
    spaces.set_namespace(b"\xff")
    assert spaces.entries() == ((1, "ff"),)
    spaces.clear()
    for space, expected in ((b"\xff", ()), (b"\xff\xff", ((1, "ffff"),)), (b"\xfe", ((1, "fe"),))):
        spaces.set_namespace(space)
        assert spaces.entries() == expected
    backend.close()


def test_rows_that_were_removed_behind_those_of_a_key_are_not_gone_through() -> None:
    """As windows leave them that have ended: the engine keeps a mark of each until files are merged."""
    kept: list[rocksdict.Options] = []

    def count(options: rocksdict.Options) -> None:
        options.enable_statistics()
        kept.append(options)

    backend = opened(RocksDBOptions(directory=ROCKSDB.directory, customize=count))
    pairs = backend.map_state(map_of(namespace=KeyCodec("integer")))
    backend.set_current_key("a")
    for hour, entries in ((1, 1), (2, 1000)):
        pairs.set_namespace(hour)
        pairs.put_all({at: at for at in range(entries)})
    pairs.clear()
    pairs.set_namespace(1)
    before = _skipped(kept[0])
    assert pairs.entries() == ((0, 0),)
    assert _skipped(kept[0]) == before
    backend.close()


def _skipped(options: rocksdict.Options) -> int:
    """The marks of removed rows that the engine has gone through."""
    found = re.search(r"^rocksdb\.number\.iter\.skip COUNT : (\d+)$", options.get_statistics() or "", re.MULTILINE)
    assert found
    return int(found.group(1))


def test_rows_in_files_that_are_merged_meanwhile_are_what_they_were_last(tmp_path: Path) -> None:
    """Written again and again, and removed, with buffers so small that the engine writes and merges files."""
    small = RocksDBOptions(directory=str(tmp_path), write_buffer_bytes=64 << 10, target_file_bytes=64 << 10)
    both: tuple[KeyedStateBackend, ...] = (opened(small), backend_of())
    for backend in both:
        value, rows, pairs = backend.value_state(value_of()), backend.list_state(list_of()), backend.map_state(map_of())
        for step in range(12):
            for key in range(300):
                backend.set_current_key(f"key {key}")
                value.update(step)
                rows.add(f"{step}" * 10)
                pairs.put(step % 5, "x" * 50)
                if (key + step) % 7 == 0:
                    rows.clear()
                    pairs.clear()
    assert len(list(tmp_path.glob("*/*.sst"))) > 1
    assert bytes_of(both[0]) == bytes_of(both[1])
    both[0].close()


def test_the_package_that_is_missing_is_named() -> None:
    """With the command that installs it."""
    program = "import sys; sys.modules['rocksdict'] = None; import partfile.snapshot.keyed.rocksdb"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "keyed state in RocksDB needs the package rocksdict, which is not installed" in done.stderr
    assert "Hint: pip install 'partfile[rocksdb]'" in done.stderr


@pytest.mark.item("RM-10")
def test_what_the_engine_counts_is_read_by_name() -> None:
    """By state; a name that it does not have is refused, and every one once the backend is closed."""
    backend = backend_of(RocksDBBackend)
    assert isinstance(backend, RocksDBBackend)
    assert backend.metric("estimate-num-keys") == {}
    value, rows = backend.value_state(value_of()), backend.list_state(list_of())
    for key in range(7):
        backend.set_current_key(f"key {key}")
        value.update(key)
    backend.set_current_key("key 1")
    rows.add("one")
    # A list has a row in front.
    assert backend.metric("estimate-num-keys") == {"value": 7, "list": 2}
    assert min(backend.metric("cur-size-all-mem-tables").values()) > 0
    with pytest.raises(ConfigError, match="no number of the name 'keys'"):
        backend.metric("keys")
    backend.close()
    with pytest.raises(ConfigError, match="closed"):
        backend.metric("estimate-num-keys")
