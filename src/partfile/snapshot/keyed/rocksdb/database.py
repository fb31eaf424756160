"""The RocksDB database of one subtask: its options, its memory, and the end of its life.

This is the only module that knows the calls of the package ``rocksdict``. The database is scratch: nothing in it
outlives its process, so it has no write-ahead log. A checkpoint is what lasts.

Source: Flink's ``RocksDBResourceContainer`` and ``RocksDBMemoryControllerUtils``, as of 1.20.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn
from urllib.parse import quote

import rocksdict
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from partfile.errors import ConfigError, PartfileError, SnapshotCorrupt, StoreError, plain_words
from partfile.snapshot.documents import CORRUPT_HINT
from partfile.snapshot.keyed.shared_files import SORTED_FILES
from partfile.snapshot.keyed.states import closed
from partfile.stores.paths import new_token

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import TracebackType
    from typing import Self


_MIB = 1 << 20
DEFAULT_MEMORY_BYTES = 128 * _MIB
_LOOK_EACH_BYTES = _MIB
"""After so many bytes of rows, or a quarter of a small file, it is asked how large their file has become."""
_MOST_GATHERED_BYTES = _MIB // 4
_GATHERED_ROW_BYTES = 128
"""About what a row takes as two objects of Python beside its key and value."""
_ROW_BYTES = 64
"""About what a row takes in memory beside its key and value."""
MAX_STALL_S = 300
"""So long a write waits for the engine to write and merge files."""
_STALL_PAUSE_S = 0.001
_STALLED = "Result incomplete: Write stall"
"""The engine's error for a write that it would hold back."""
ANOTHER_DISK = "Restore on another disk, which has room: RocksDBOptions(directory='/var/tmp')"
"""What to do where the engine's disk fails."""
MORE_FILES = "Each state has files open. Let this process have more of them: ulimit -n 65536"
"""What to do where it may not open another file."""
_MOST_BYTES = 1 << 44
_LEAST_RATIO = 0.1
_ARENAS = 16
_MOST_LEVELS = 64
_MAX_ARENA_BYTES = _MIB
Profile = Literal["default", "spinning-disk", "spinning-disk-high-memory", "flash-ssd"]
Compression = Literal["none", "snappy", "lz4", "zstd"]
_COMPRESSIONS: dict[Compression, Callable[[], Any]] = {
    "none": rocksdict.DBCompressionType.none,
    "snappy": rocksdict.DBCompressionType.snappy,
    "lz4": rocksdict.DBCompressionType.lz4,
    "zstd": rocksdict.DBCompressionType.zstd,
}


class RocksDBMemory:
    """The memory of all databases that are given it: blocks that were read, and rows that are not in files yet.

    The ratio of the block cache's part for indexes and filters cannot be set, since the engine's package has no call
    for it; they share the cache with the blocks.

    Args:
        size_bytes: Of all of it.
        write_buffer_ratio: How much of it is for rows that are not in files yet. They count twice while they are
            written, so that a ratio of 0.5 gives them a third.

    Raises:
        ConfigError: There is too little, or the ratio is not from 0.1 to less than 1.
    """

    def __init__(self, size_bytes: int = DEFAULT_MEMORY_BYTES, write_buffer_ratio: float = 0.5) -> None:
        # Users without a type checker give anything.
        if type(size_bytes) is not int or not 8 * _MIB <= size_bytes <= _MOST_BYTES:
            raise ConfigError(
                f"RocksDBMemory: size_bytes={size_bytes!r} is no number of bytes from 8 MiB on",
                hint="Write size_bytes=128 << 20.",
            )
        is_number = type(write_buffer_ratio) in (int, float)
        if not is_number or not _LEAST_RATIO <= write_buffer_ratio < 1:
            raise ConfigError(
                f"RocksDBMemory: write_buffer_ratio={write_buffer_ratio!r} is not from 0.1 to less than 1",
                hint="Write write_buffer_ratio=0.5.",
            )
        self.size_bytes = size_bytes
        self.cache_bytes = int(size_bytes * (3 - write_buffer_ratio) / 3)
        """Of the cache, in which the write buffers have their room too."""
        self.write_buffer_bytes = int(size_bytes * 2 * write_buffer_ratio / 3)
        """So much is kept of rows that are not in files yet, before they are written."""
        self.unweighed_bytes = 0
        """So much was written since it was asked last whether there is room."""
        self.at_once_bytes = self.write_buffer_bytes // 16
        """So much may be written until that is asked again."""
        self._pid = os.getpid()
        self._cache = rocksdict.Cache(self.cache_bytes)
        self._buffers = rocksdict.WriteBufferManager.new_write_buffer_manager_with_cache(
            # The engine would hold a write back, and with it every thread of Python: also the one that writes a view,
            # which alone gives memory back. ``Column.put`` waits instead.
            self.write_buffer_bytes,
            allow_stall=False,
            cache=self._cache,
        )

    @property
    def usage_bytes(self) -> int:
        """What is in use now, of blocks and of rows; in a child of a fork unknown, and 0."""
        return 0 if self._pid != os.getpid() else int(self._cache.get_usage())

    @property
    def is_full(self) -> bool:
        """Whether there are more rows that are not in files yet than there is room for."""
        return bool(self._buffers.get_usage() > self.write_buffer_bytes)

    def limit(self, options: rocksdict.Options, blocks: rocksdict.BlockBasedOptions) -> None:
        """Have a database and the blocks of its files use this memory alone.

        Raises:
            ConfigError: It was made in another process.
        """
        if self._pid != os.getpid():
            raise ConfigError(
                f"RocksDBMemory was made by process {self._pid} and is used by {os.getpid()}",
                hint="Make it in the process that uses it: RocksDBMemory()",
            )
        options.set_write_buffer_manager(self._buffers)
        blocks.set_block_cache(self._cache)
        blocks.set_cache_index_and_filter_blocks(True)
        blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)


class RocksDBOptions(BaseModel):
    """How the database of one subtask is kept. What a profile says is overruled by options that are given.

    Raises:
        ConfigError: An option cannot be used.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, hide_input_in_errors=True)

    directory: str | None = Field(default=None, min_length=1)
    """Where each backend makes a directory of its own, on a disk of this machine; None is the one for temporary files.

    What a killed process left there is of no use and can be deleted.
    """
    profile: Profile = "default"
    """Options for a kind of disk, as Flink has them."""
    write_buffer_bytes: int = Field(default=64 * _MIB, ge=64 << 10, le=_MOST_BYTES)
    """Rows of one state that are gathered before they are written to a file."""
    write_buffers: int = Field(default=2, ge=2, le=1000)
    """Write buffers of one state, full ones too."""
    background_jobs: int = Field(default=2, ge=1, le=1000)
    """Threads that write files and merge them."""
    block_bytes: int = Field(default=4 << 10, ge=1 << 10, le=1 << 30)
    """Of the pieces in which files are read."""
    target_file_bytes: int = Field(default=64 * _MIB, ge=64 << 10, le=_MOST_BYTES)
    """Of files."""
    bloom_bits_per_key: int = Field(default=10, ge=0, le=1000)
    """Of the filters that say which files need not be read for a key; 0 has no filters."""
    compression: Compression = "lz4"
    """Of the files."""
    arena_block_bytes: int | None = Field(default=None, ge=4 << 10, le=_MOST_BYTES)
    """Pieces in which a write buffer takes memory; by default 1 MiB, or less where there is little memory."""
    customize: Callable[[rocksdict.Options], None] | None = None
    """Is given the options of the database and of each state last, to change any but those of blocks and memory."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            problems = "; ".join(
                ": ".join([*map(str, one["loc"]), plain_words(one)]) for one in error.errors(include_url=False)
            )
            raise ConfigError(
                f"RocksDBOptions: {problems}",
                hint=f"There are {', '.join(type(self).model_fields)}. Write for instance profile='flash-ssd'.",
            ) from error

    def with_profile(self) -> RocksDBOptions:
        """The same options, with those of the profile where none is given."""
        changed = _PROFILES[self.profile]
        return self.model_copy(update={name: changed[name] for name in changed.keys() - self.model_fields_set})


_PROFILES: dict[Profile, dict[str, Any]] = {
    "default": {},
    "spinning-disk": {"background_jobs": 4},
    "spinning-disk-high-memory": {
        "background_jobs": 4,
        "write_buffers": 4,
        "block_bytes": 128 << 10,
        "target_file_bytes": 256 * _MIB,
    },
    "flash-ssd": {"background_jobs": 4},
}


def engine_options(options: RocksDBOptions, memory: RocksDBMemory) -> rocksdict.Options:
    """The options of a database and of each of its states, as the engine has them.

    Raises:
        ConfigError: A write buffer would be written as soon as it had a piece of memory.
    """
    chosen = options.with_profile()
    made = rocksdict.Options(raw_mode=True)
    made.create_if_missing(create_if_missing=True)
    made.create_missing_column_families(create_missing_cfs=True)
    # Nothing here outlives the process: a checkpoint is what lasts.
    made.set_use_fsync(False)
    # A view that is being written keeps its files open while others replace them.
    made.set_max_open_files(-1)
    made.set_keep_log_file_num(1)
    made.set_write_buffer_size(chosen.write_buffer_bytes)
    made.set_max_write_buffer_number(chosen.write_buffers)
    made.set_max_background_jobs(chosen.background_jobs)
    made.set_target_file_size_base(chosen.target_file_bytes)
    made.set_compression_type(_COMPRESSIONS[chosen.compression]())
    if chosen.profile == "spinning-disk-high-memory":
        made.set_max_bytes_for_level_base(1 << 30)
        made.set_min_write_buffer_number_to_merge(3)
    made.set_arena_block_size(_arena_bytes(chosen, memory))
    blocks = rocksdict.BlockBasedOptions()
    blocks.set_block_size(chosen.block_bytes)
    if chosen.bloom_bits_per_key:
        blocks.set_bloom_filter(chosen.bloom_bits_per_key, block_based=False)
    if chosen.customize is not None:
        try:
            chosen.customize(made)
        except Exception as error:
            raise ConfigError(
                f"RocksDBOptions: the function customize raised {error!r}",
                hint="Have it call what the options of the engine's package have, or leave it out: customize=None",
            ) from error
    memory.limit(made, blocks)
    made.set_block_based_table_factory(blocks)
    return made


def _arena_bytes(chosen: RocksDBOptions, memory: RocksDBMemory) -> int:
    """The pieces of memory of a write buffer.

    The engine writes a buffer when seven eighths of all are in use. One piece that is as large would have it write
    files of a few rows without end.
    """
    most = memory.write_buffer_bytes * 7 // 8
    if chosen.arena_block_bytes is not None and chosen.arena_block_bytes > most:
        raise ConfigError(
            f"RocksDBOptions: arena_block_bytes={chosen.arena_block_bytes} is more than the {most} bytes that are "
            "kept of rows before they are written",
            hint=f"Write arena_block_bytes={min(_MAX_ARENA_BYTES, most)}, or give more: RocksDBMemory(size_bytes=...)",
        )
    # Each state has at least one piece, and there is room for sixteen.
    return chosen.arena_block_bytes or min(
        _MAX_ARENA_BYTES, chosen.write_buffer_bytes // 8, memory.write_buffer_bytes // _ARENAS
    )


class _Forks:
    """Whether this process has opened a database, and whether it is a child of one that had."""

    is_opened = False
    is_child = False


_forks = _Forks()


class Column:
    """The rows of one state in a database. Each call raises StoreError for what the engine cannot do.

    Args:
        engine: The database.
        name: Of the column family.
        memory: What the database may use.
        make_room: Writes the rows of all states to files, and waits for it.
    """

    def __init__(
        self, engine: rocksdict.Rdict, name: str, memory: RocksDBMemory, make_room: Callable[[], None]
    ) -> None:
        rows = engine.get_column_family(name)
        options = rocksdict.WriteOptions()
        # An attribute, though the package's stub says that it is a method.
        options.disable_wal = True  # type: ignore[assignment, method-assign]
        # The engine would hold a write back without letting other threads of Python run, on a full disk for ever.
        options.no_slowdown = True
        rows.set_write_options(options)
        engine.set_write_options(options)
        self._handle: rocksdict.ColumnFamily | None = engine.get_column_family_handle(name)
        self._get: Callable[[bytes], bytes | None] = rows.get
        self._put: Callable[[bytes, bytes], None] = rows.put
        self._delete: Callable[[bytes], None] = rows.delete
        # Not a snapshot of the engine: the cursors that its package makes of one show what was written later.
        self._iter: Callable[..., rocksdict.RdictIter] = rows.iter
        self._write: Callable[[rocksdict.WriteBatch], None] = engine.write
        self._flush: Callable[[], None] = rows.flush
        self._ingest: Callable[[list[str], rocksdict.IngestExternalFileOptions], None] = rows.ingest_external_file
        self._make_room = make_room
        self._memory = memory

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None if there is none."""
        try:
            return self._get(key)
        except Exception as error:
            raise _failed(error) from error

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value of a key."""
        try:
            self._put(key, value)
        except Exception as error:
            if str(error) != _STALLED:
                raise _failed(error) from error
            self._write_again(self._put, key, value)
        self._weigh(len(key) + len(value) + _ROW_BYTES)

    def delete(self, key: bytes) -> None:
        """Remove a key; one that is absent counts as removed."""
        try:
            self._delete(key)
        except Exception as error:
            if str(error) != _STALLED:
                raise _failed(error) from error
            self._write_again(self._delete, key)
        self._weigh(len(key) + _ROW_BYTES)

    def change(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = ()) -> None:
        """Remove keys and set the values of others, all of it or nothing."""
        set_rows, removed = list(puts), list(deletes)
        try:
            self._write_batch(set_rows, removed)
        except Exception as error:
            if str(error) != _STALLED:
                raise _failed(error) from error
            self._write_again(self._write_batch, set_rows, removed)
        self._weigh(
            sum(len(key) + len(value) + _ROW_BYTES for key, value in set_rows)
            + sum(len(key) + _ROW_BYTES for key in removed)
        )

    def _write_again(self, write: Callable[..., None], *rows: Any) -> None:
        """Do a write once the engine has caught up with its files; other threads run meanwhile."""
        ends_s = time.monotonic() + MAX_STALL_S
        while True:
            time.sleep(_STALL_PAUSE_S)
            try:
                return write(*rows)
            except Exception as error:
                if str(error) != _STALLED:
                    raise _failed(error) from error
                if time.monotonic() > ends_s:
                    raise StoreError(
                        f"RocksDB was behind with writing and merging its files for {MAX_STALL_S} s",
                        hint=ANOTHER_DISK,
                    ) from error

    def _write_batch(self, puts: list[tuple[bytes, bytes]], deletes: list[bytes]) -> None:
        batch = rocksdict.WriteBatch(raw_mode=True)
        if self._handle is not None:
            batch.set_default_column_family(self._handle)
        for key in deletes:
            batch.delete(key)
        for key, value in puts:
            batch.put(key, value)
        self._write(batch)

    def take_file(self, path: str) -> None:
        """Have the engine take a file of its own form with sorted rows; it goes with its name."""
        options = rocksdict.IngestExternalFileOptions()
        options.set_move_files(True)
        try:
            self._ingest([path], options)
        except Exception as error:
            raise _failed(error) from error

    def cursor(self, options: rocksdict.ReadOptions | None = None) -> Cursor:
        """What goes through the rows of this instant, whatever changes afterwards; ``rows_between`` drives it."""
        try:
            return Cursor(self._iter(options))
        except Exception as error:
            raise _failed(error) from error

    def between(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Go through the rows of this instant from a key to another, which is left out."""
        # With a bound, rows behind it that were removed cost nothing. The engine reads it where ``end`` has it, which
        # is held here. The lower bound is of no use: the engine's package sets the upper one by that call.
        options = rocksdict.ReadOptions()
        options.set_iterate_upper_bound(end)
        yield from rows_between(self.cursor(options), begin, end)

    def _weigh(self, size_bytes: int) -> None:
        """Count what was written, and wait for files if there is no room for more.

        The engine begins to write files in time, and lets rows come in however long that takes.
        """
        memory = self._memory
        memory.unweighed_bytes += size_bytes
        if memory.unweighed_bytes > memory.at_once_bytes:
            memory.unweighed_bytes = 0
            if memory.is_full:
                self._make_room()

    def flush(self) -> None:
        """Write the rows of this state to a file, and wait for it."""
        try:
            self._flush()
        except Exception as error:
            raise _failed(error) from error

    def let_go(self, refuse: Callable[..., NoReturn]) -> tuple[object, ...]:
        """Have every call refused from now on; return what held the database open."""
        held = (self._get, self._put, self._delete, self._iter, self._write, self._flush, self._ingest, self._handle)
        self._get = self._put = self._delete = self._iter = self._write = self._flush = self._ingest = refuse
        self._handle = None
        return held


class SortedRows:
    """Brings rows into a column that has none of their keys: many in files, past the rows that are in memory.

    At the end of the block the rows are in the column; if it ends by an error, those of whole files alone.

    Args:
        column: Of the rows.
        path: Of a file on the disk of the database, which is not there yet.
        options: Of the engine.
        file_bytes: About the size of one file, in bytes.
        gather_bytes: Of rows in memory, before a file is opened for them: a restore of many small states opens one
            after the other.
    """

    def __init__(
        self, column: Column, path: str, options: rocksdict.Options, file_bytes: int, gather_bytes: int
    ) -> None:
        self._column = column
        self._path = path
        self._options = options
        self._file_bytes = file_bytes
        self._file: rocksdict.SstFileWriter | None = None
        self._gather_bytes = gather_bytes
        self._gathered: list[tuple[bytes, bytes]] = []
        self._gathered_bytes = 0
        self._unseen_bytes = 0
        """So much was written since the size of the file was asked for."""
        self._look_each = min(_LOOK_EACH_BYTES, file_bytes // 4)

    def write(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """Write rows behind those before, in the order of their keys.

        Raises:
            StoreError: The disk has no room, or the keys are not in order.
        """
        for key, value in pairs:
            if self._file is None:
                self._gathered.append((key, value))
                self._gathered_bytes += len(key) + len(value) + _GATHERED_ROW_BYTES
                if self._gathered_bytes < self._gather_bytes:
                    continue
            try:
                if self._file is None:
                    self._file = self._begun_file()
                else:
                    self._file[key] = value
                    self._unseen_bytes += len(key) + len(value)
                    if self._unseen_bytes < self._look_each:
                        continue
                self._unseen_bytes = 0
                is_full = self._file.file_size() >= self._file_bytes
            except Exception as error:
                raise _failed(error) from error
            if is_full:
                self._hand_over()

    def _begun_file(self) -> rocksdict.SstFileWriter:
        """Open a file, and write the rows to it that were gathered."""
        file = rocksdict.SstFileWriter(self._options)
        file.open(self._path)
        for key, value in self._gathered:
            file[key] = value
        self._gathered, self._gathered_bytes = [], 0
        return file

    def _hand_over(self) -> None:
        """Bring what was written into the column."""
        try:
            file, self._file = self._file, None
            if self._gathered:
                file = self._begun_file()
            if file is None:
                return
            file.finish()
        except Exception as error:
            raise _failed(error) from error
        self._column.take_file(self._path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if _forks.is_child:
            # The file is the parent's, which writes on.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._file))
            return
        try:
            if kind is None:
                self._hand_over()
        finally:
            self._file = None
            # The engine has the file under a name of its own.
            with suppress(OSError):
                Path(self._path).unlink()


class Cursor:
    """The engine's cursor. A child of a fork never gives it up: its destructor asks for locks of the engine.

    Another thread of the parent may have held one at the fork. The child lacks that thread, and would wait for ever.

    Args:
        rows: The engine's.
    """

    __slots__ = ("rows",)

    def __init__(self, rows: rocksdict.RdictIter) -> None:
        self.rows = rows

    # By then the interpreter may have taken the module's names away, so that they are held here.
    def __del__(
        self,
        forks: _Forks = _forks,
        keep: Callable[..., Any] = ctypes.pythonapi.Py_IncRef,
        pointer: type[ctypes.py_object[Any]] = ctypes.py_object,
    ) -> None:
        """In a child, hold it for ever."""
        if forks.is_child:
            keep(pointer(self.rows))


def rows_between(cursor: Cursor, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Go through rows from a key to another, which is left out.

    Args:
        cursor: Of a column.
        begin: The first key.
        end: Behind the last one.

    Raises:
        StoreError: The engine cannot read a row.
    """
    if _forks.is_child:
        refuse_forked()
    rows = cursor.rows
    try:
        rows.seek(begin)
        while rows.valid():
            key = rows.key()
            if key >= end:
                return
            yield key, rows.value()
            rows.next()
        # A cursor that cannot read on looks like one at its end.
        rows.status()
    except Exception as error:
        raise _failed(error) from error


def _failed(error: Exception) -> PartfileError:
    if isinstance(error, PartfileError):
        return error
    many_files = "Too many open files" in str(error)
    return StoreError(f"RocksDB failed: {error}", hint=MORE_FILES if many_files else ANOTHER_DISK)


class _Opened:
    """What a database has open, apart from it: it is let go of in order also where the database is not closed."""

    def __init__(self, engine: rocksdict.Rdict, path: str) -> None:
        self.engine: rocksdict.Rdict | None = engine
        self.columns: dict[str, Column] = {}
        self._path = path
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def write_files(self) -> None:
        """Write the rows of all states to files, and wait for it."""
        for column in list(self.columns.values()):
            column.flush()

    def end(self) -> None:
        """Close the database, and remove its directory, where no view has its rows any more."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            engine, self.engine = self.engine, None
            columns, self.columns = self.columns, {}
            if engine is None:
                return
            for name, column in columns.items():
                column.let_go(refuse_closed)
                # What is dropped is not written to files first. A failure is of no consequence to what goes anyway.
                with suppress(Exception):
                    engine.drop_column_family(_family(name))
            with suppress(Exception):
                engine.close()
            remove_files(self._path)

    def abandon(self) -> None:
        """Never close it, and refuse every call: this is a child of the process that has it."""
        held: list[object] = [self.engine]
        for column in self.columns.values():
            held += column.let_go(refuse_forked)
        self.engine, self.columns = None, {}
        for one in held:
            # The engine's destructor would wait for its threads.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))


class Database:
    """One database in a directory of its own, which goes with it.

    A database does not outlive a fork, and none can be opened after one: the threads of the engine are one set for a
    process and missing in the child, where the first call that waits for them waits for ever. So every call in the
    child of a process that opened one is refused, and the child never closes it.

    Args:
        options: How it is kept.
        memory: What it may use.
        files: Those of ``checkpoint``, with which it begins; they stay as they are.
        states: Those that are made with it. Each that is made later takes the longer the more there are.

    Raises:
        ConfigError: The directory cannot be made, the options contradict each other, or do not fit the files, or are
            refused by the engine, or the process was forked from one that had opened a database.
    """

    def __init__(
        self, options: RocksDBOptions, memory: RocksDBMemory, files: Sequence[str] = (), states: Iterable[str] = ()
    ) -> None:
        if _forks.is_child:
            refuse_forked()
        self._options = engine_options(options, memory)
        self._file_bytes = options.with_profile().target_file_bytes
        self._memory = memory
        self.path = new_directory(options.directory)
        _forks.is_opened = True
        try:
            self._families = list(dict.fromkeys([*self._families_of(files), *map(_family, states)]))
            families = dict.fromkeys(self._families, self._options)
            engine = rocksdict.Rdict(self.path, self._options, column_families=families or None)
        except Exception as error:
            remove_files(self.path)
            raise ConfigError(
                f"RocksDB cannot open a database in {self.path}: {error}",
                hint="Leave customize and sizes out, or name another disk: RocksDBOptions(directory='/var/tmp')",
            ) from error
        self._opened = _Opened(engine, self.path)
        weakref.finalize(self, self._opened.end)
        _databases.add(self)

    def column(self, state: str) -> Column:
        """The rows of a state, made with the first call.

        Raises:
            StoreError: The engine cannot make them.
        """
        engine, columns = self._opened.engine, self._opened.columns
        if engine is None:
            (refuse_forked if _forks.is_child else refuse_closed)()
        if state not in columns:
            try:
                if _family(state) not in self._families:
                    engine.create_column_family(_family(state), self._options)
                columns[state] = Column(engine, _family(state), self._memory, self._opened.write_files)
            except Exception as error:
                raise _failed(error) from error
        return columns[state]

    def sorted_rows(self, state: str, states: int = 1) -> SortedRows:
        """What brings the rows of a restore into the column of a state, which has none of them.

        Args:
            state: Its name.
            states: The number of states that are restored at one time.

        Raises:
            StoreError: The engine cannot make the column.
        """
        path = str(Path(self.path, f"{new_token()}.rows"))
        # The rows that are gathered have the room of those that are not in files yet, of which a restore has none.
        gather_bytes = min(_MOST_GATHERED_BYTES, self._file_bytes // 4, self._memory.write_buffer_bytes // 2 // states)
        return SortedRows(self.column(state), path, self._options, self._file_bytes, gather_bytes)

    def _families_of(self, files: Sequence[str]) -> list[str]:
        """Bring files into the directory, and return the column families that they have."""
        for path in map(Path, files):
            made = Path(self.path, path.name)
            if path.suffix == SORTED_FILES:
                with suppress(OSError):
                    made.hardlink_to(path)
                    continue
            made.write_bytes(path.read_bytes())
        return rocksdict.Rdict.list_cf(self.path, self._options) if files else []

    def keep_states(self, states: Iterable[str]) -> None:
        """Remove the rows of all other states that the files have which it began with.

        Raises:
            SnapshotCorrupt: The files have nothing of one of the states.
        """
        kept = {_family(state): state for state in states}
        missing = kept.keys() - set(self._families)
        if missing:
            name = kept[min(missing)]
            raise SnapshotCorrupt(
                f"the snapshot names the state {name!r}, of which its files have nothing", hint=CORRUPT_HINT
            )
        for family in set(self._families) - kept.keys() - {_DEFAULT}:
            self._families.remove(family)
            if self._opened.engine is not None:
                self._opened.engine.drop_column_family(family)

    def checkpoint(self) -> str:
        """Write all rows to files, and link the files into a new directory beside that of the database.

        The links share the bytes of the files, and stay when the database replaces its own. No other thread writes
        meanwhile. Nothing is left where it fails.

        Returns:
            The directory, which the caller removes with ``remove_files``.

        Raises:
            StoreError: The engine cannot write a file or make a link.
        """
        engine = self._opened.engine
        if engine is None:
            (refuse_forked if _forks.is_child else refuse_closed)()
        # Here, because other threads run meanwhile; the engine's own call would write what is not in files alone.
        self._opened.write_files()
        made = f"{self.path}-{new_token()}"
        try:
            rocksdict.Checkpoint(engine).create_checkpoint(made)
        except Exception as error:
            remove_files(f"{made}.tmp")
            remove_files(made)
            raise _failed(error) from error
        return made

    def metric(self, name: str) -> dict[str, int]:
        """What the engine counts, by state.

        Args:
            name: Of the engine's property, without its ``rocksdb.``.

        Raises:
            ConfigError: The engine counts nothing of that name.
            StoreError: The engine cannot read it.
        """
        engine = self._opened.engine
        if engine is None:
            (refuse_forked if _forks.is_child else refuse_closed)()
        found = {}
        for state in self._opened.columns:
            try:
                number = engine.get_column_family(_family(state)).property_int_value(f"rocksdb.{name}")
            except Exception as error:
                raise _failed(error) from error
            if number is None:
                raise ConfigError(
                    f"RocksDB has no number of the name {name!r}",
                    hint="Ask for instance for backend.metric('estimate-num-keys').",
                )
            found[state] = int(number)
        return found

    def drop(self, state: str) -> None:
        """Remove all rows of a state; one that has none counts as removed."""
        column = self._opened.columns.pop(state, None)
        if column is not None and self._opened.engine is not None:
            column.let_go(refuse_closed)
            with suppress(ValueError):
                self._families.remove(_family(state))
            with suppress(Exception):
                self._opened.engine.drop_column_family(_family(state))

    def close(self) -> None:
        """Close the database and remove its directory; may be called twice, and by any thread."""
        self._opened.end()

    def abandon(self) -> None:
        """Never close it, and refuse every call: this is a child of the process that has it."""
        self._opened.abandon()


class LinkedFiles:
    """Copies of the files that ``Database.checkpoint`` has linked, opened to be read.

    Args:
        directory: Where they are; it goes with them.
        shown: What they are called in messages.

    Raises:
        StoreError: The engine cannot open them.
        ConfigError: The process was forked from one that had opened a database.
    """

    def __init__(self, directory: str, shown: str) -> None:
        if _forks.is_child:
            refuse_forked()
        _forks.is_opened = True
        self._directory = directory
        self._pid = os.getpid()
        self._shown = shown
        options = rocksdict.Options(raw_mode=True)
        # As many as a database may have had that was made with other options.
        options.set_num_levels(_MOST_LEVELS)
        try:
            families = rocksdict.Rdict.list_cf(directory, options)
            self._engine: rocksdict.Rdict | None = rocksdict.Rdict(
                directory,
                options,
                column_families=dict.fromkeys(families, options),
                access_type=rocksdict.AccessType.read_only(),
            )
        except Exception as error:
            raise StoreError(
                f"{shown}: RocksDB cannot open its files, which are whole: {error}",
                hint="See that this process may have more files open (ulimit -n), and that its RocksDB is not older "
                "than the one that wrote them: pip install --upgrade rocksdict",
            ) from error
        _databases.add(self)

    def between(self, state: str, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Go through the rows of a state from a key to another, which is left out.

        Raises:
            SnapshotCorrupt: There is no such state.
            StoreError: The engine cannot read a row.
        """
        if self._engine is None:
            (refuse_forked if _forks.is_child else refuse_closed)()
        try:
            cursor = Cursor(self._engine.get_column_family(_family(state)).iter())
        except Exception as error:
            raise SnapshotCorrupt(
                f"{self._shown} names the state {state!r}, of which its files have nothing",
                hint=CORRUPT_HINT,
                path=self._shown,
            ) from error
        yield from rows_between(cursor, begin, end)

    def close(self) -> None:
        """Close and remove them; may be called twice. A child of the process that has them does nothing."""
        if self._pid != os.getpid():
            return
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()
        remove_files(self._directory)

    def abandon(self) -> None:
        """Never close them, and refuse every call: this is a child of the process that has them."""
        # The engine's destructor would wait for its threads.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._engine))
        self._engine = None


_DEFAULT = "default"
"""The column family that the engine has of its own."""


def _family(state: str) -> str:
    """The column family of a state."""
    return f"state-{quote(state, safe='')}"


def new_directory(above: str | None) -> str:
    """Make a directory for a database or its files.

    Args:
        above: In which; None is that for temporary files.

    Raises:
        ConfigError: It cannot be made.
    """
    try:
        # Absolute, so that it is found again from another working directory.
        base = Path(tempfile.gettempdir() if above is None else above).absolute()
        base.mkdir(parents=True, exist_ok=True)
        made = tempfile.mkdtemp(prefix="partfile-state-", dir=base)
        made.encode()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"RocksDBOptions: directory={above!r} cannot hold a database: {error}",
            hint="Name a directory on a disk of this machine: RocksDBOptions(directory='/var/tmp')",
        ) from error
    return made


def remove_files(path: str) -> None:
    """Remove the directory of a database or of its files; one that is absent counts as removed."""
    with suppress(OSError):
        # No tree is deleted: the engine makes no directories here.
        for file in Path(path).iterdir():
            file.unlink()
        Path(path).rmdir()


_databases: weakref.WeakSet[Database | LinkedFiles] = weakref.WeakSet()


def refuse_closed(*_arguments: object, **_options: object) -> NoReturn:
    """Raise the error of a call to a database that is closed."""
    raise closed()


def refuse_forked(*_arguments: object, **_options: object) -> NoReturn:
    """Raise the error of a call in a child of a process that had opened a database."""
    raise ConfigError(
        f"process {os.getpid()} was forked from one that had opened keyed state in RocksDB, whose threads it lacks",
        hint="Start the process anew: multiprocessing.get_context('spawn')",
    )


_libc = ctypes.CDLL(None)
# Found here, since another thread may hold the lock of the search at a fork.
_exit_calls = [_libc["_exit"], _libc["fcloseall"]] if hasattr(_libc, "on_exit") and hasattr(_libc, "fcloseall") else []
_on_exit = _libc["on_exit"] if _exit_calls else None


def _enter_child() -> None:
    _forks.is_child = _forks.is_opened or _forks.is_child
    for database in list(_databases):
        database.abandon()
    if _forks.is_child:
        _end_without_engine()


def _end_without_engine() -> None:
    """Have this process end with its code before the engine waits for threads that it lacks, which ends by a signal.

    What C libraries registered in the parent to be called at the exit is left out with it, except that the buffers of
    their files are written. Python has ended by then, and written its own. Where libc has no ``on_exit``, as on macOS
    and with musl, the engine waits.
    """
    if _on_exit is None:
        return
    for call in _exit_calls:
        # The last one is called first.
        _on_exit(ctypes.cast(call, ctypes.c_void_p), None)


os.register_at_fork(after_in_child=_enter_child)
