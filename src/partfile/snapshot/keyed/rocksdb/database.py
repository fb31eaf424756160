"""The RocksDB database of one subtask: its options, its memory, and the end of its life.

This is the only module that knows the calls of the package ``rocksdict``. The database is scratch: nothing in it
outlives its process, so it has no write-ahead log and no fsync. A checkpoint is what lasts.

Source: Flink's ``RocksDBResourceContainer`` and ``RocksDBMemoryControllerUtils``, as of 1.20.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
import weakref
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn
from urllib.parse import quote

import rocksdict
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from partfile.errors import ConfigError, PartfileError, StoreError, plain_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_MIB = 1 << 20
DEFAULT_MEMORY_BYTES = 128 * _MIB
_WRITES_AT_ONCE = 1000
"""A larger batch would keep other threads of Python waiting, since the engine writes it without letting them run."""
_UNWEIGHED_BYTES = _MIB
"""So much is written to a state before its memory is looked at."""
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
        ConfigError: There is too little, or the ratio is not between 0 and 1.
    """

    def __init__(self, size_bytes: int = DEFAULT_MEMORY_BYTES, write_buffer_ratio: float = 0.5) -> None:
        if size_bytes < 8 * _MIB:
            raise ConfigError(
                f"RocksDBMemory: size_bytes={size_bytes} is less than 8 MiB", hint="Write size_bytes=128 << 20."
            )
        if not 0 < write_buffer_ratio < 1:
            raise ConfigError(
                f"RocksDBMemory: write_buffer_ratio={write_buffer_ratio} is not between 0 and 1",
                hint="Write write_buffer_ratio=0.5.",
            )
        self.size_bytes = size_bytes
        self.cache_bytes = int(size_bytes * (3 - write_buffer_ratio) / 3)
        """Of the cache, in which the write buffers have their room too."""
        self.write_buffer_bytes = int(size_bytes * 2 * write_buffer_ratio / 3)
        """So much is kept of rows that are not in files yet, before they are written."""
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
        """What is in use now, of blocks and of rows."""
        return int(self._cache.get_usage())

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

    directory: str | None = None
    """Where each backend makes a directory of its own, on a disk of this machine; None is the one for temporary files.

    What a killed process left there is of no use and can be deleted.
    """
    profile: Profile = "default"
    """Options for a kind of disk, as Flink has them."""
    write_buffer_bytes: int = Field(default=64 * _MIB, ge=64 << 10)
    """Rows of one state that are gathered before they are written to a file."""
    write_buffers: int = Field(default=2, ge=2)
    """Write buffers of one state, full ones too."""
    background_jobs: int = Field(default=2, ge=1)
    """Threads that write files and merge them."""
    block_bytes: int = Field(default=4 << 10, ge=1 << 10)
    """Of the pieces in which files are read."""
    target_file_bytes: int = Field(default=64 * _MIB, ge=64 << 10)
    """Of files."""
    bloom_bits_per_key: int = Field(default=10, ge=0)
    """Of the filters that say which files need not be read for a key; 0 has no filters."""
    compression: Compression = "lz4"
    """Of the files."""
    arena_block_bytes: int | None = Field(default=None, ge=4 << 10)
    """Pieces in which a write buffer takes memory; an eighth of it, and at most 1 MiB by default."""
    customize: Callable[[rocksdict.Options], None] | None = None
    """Is given the options of the database and of each state last, to change any but the memory."""

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
    if chosen.profile != "default":
        made.set_level_compaction_dynamic_level_bytes(True)
    if chosen.profile == "spinning-disk-high-memory":
        made.set_max_bytes_for_level_base(1 << 30)
        made.set_min_write_buffer_number_to_merge(3)
    made.set_arena_block_size(_arena_bytes(chosen, memory))
    blocks = rocksdict.BlockBasedOptions()
    blocks.set_block_size(chosen.block_bytes)
    if chosen.bloom_bits_per_key:
        blocks.set_bloom_filter(chosen.bloom_bits_per_key, block_based=False)
    if chosen.customize is not None:
        chosen.customize(made)
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
    return chosen.arena_block_bytes or min(_MAX_ARENA_BYTES, chosen.write_buffer_bytes // 8, most)


class Column:
    """The rows of one state in a database. Each call raises StoreError for what the engine cannot do."""

    def __init__(self, database: rocksdict.Rdict, name: str, memory: RocksDBMemory) -> None:
        rows = database.get_column_family(name)
        unlogged = rocksdict.WriteOptions()
        # An attribute, though the package's stub says that it is a method.
        unlogged.disable_wal = True  # type: ignore[assignment, method-assign]
        rows.set_write_options(unlogged)
        database.set_write_options(unlogged)
        self._handle = database.get_column_family_handle(name)
        self._get: Callable[[bytes], bytes | None] = rows.get
        self._put: Callable[[bytes, bytes], None] = rows.put
        self._delete: Callable[[bytes], None] = rows.delete
        # Not a snapshot of the engine: the cursors that its package makes of one show what was written later.
        self._iter: Callable[..., rocksdict.RdictIter] = rows.iter
        self._write: Callable[[rocksdict.WriteBatch], None] = database.write
        self._flush: Callable[[], None] = rows.flush
        self._memory = memory
        self._written_bytes = 0

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
            self._written_bytes += len(value)
            if self._written_bytes > _UNWEIGHED_BYTES:
                self._weigh()
        except Exception as error:
            raise _failed(error) from error

    def delete(self, key: bytes) -> None:
        """Remove a key; one that is absent counts as removed."""
        try:
            self._delete(key)
        except Exception as error:
            raise _failed(error) from error

    def fill(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """Set many rows."""
        left = iter(pairs)
        while some := tuple(islice(left, _WRITES_AT_ONCE)):
            batch = rocksdict.WriteBatch(raw_mode=True)
            batch.set_default_column_family(self._handle)
            for key, value in some:
                batch.put(key, value)
            try:
                self._write(batch)
                self._weigh()
            except Exception as error:
                raise _failed(error) from error

    def cursor(self, options: rocksdict.ReadOptions | None = None) -> rocksdict.RdictIter:
        """What goes through the rows of this instant, whatever changes afterwards; ``rows_between`` drives it."""
        try:
            return self._iter(options)
        except Exception as error:
            raise _failed(error) from error

    def between(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Go through the rows of this instant from a key to another, which is left out."""
        # With a bound, rows behind it that were removed cost nothing. The engine reads it where ``end`` has it, which
        # is held here. The lower bound is of no use: the engine's package sets the upper one by that call.
        options = rocksdict.ReadOptions()
        options.set_iterate_upper_bound(end)
        yield from rows_between(self.cursor(options), begin, end)

    def _weigh(self) -> None:
        """Wait until the rows of this state are in files, if there is no room for more of them.

        The engine begins to write files in time, and lets rows come in however long that takes.
        """
        self._written_bytes = 0
        if self._memory.is_full:
            self._flush()

    def lose(self, refuse: Callable[..., NoReturn]) -> tuple[object, ...]:
        """Have every call refused from now on; return what held the database open."""
        held = (self._get, self._put, self._delete, self._iter, self._write, self._flush, self._handle)
        self._get = self._put = self._delete = self._iter = self._write = self._flush = refuse
        del self._handle
        return held


def rows_between(cursor: rocksdict.RdictIter, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Go through rows from a key to another, which is left out.

    Args:
        cursor: Of a column.
        begin: The first key.
        end: Behind the last one.

    Raises:
        StoreError: The engine cannot read a row.
    """
    try:
        cursor.seek(begin)
        while cursor.valid():
            key = cursor.key()
            if key >= end:
                return
            yield key, cursor.value()
            cursor.next()
        # A cursor that cannot read on looks like one at its end.
        cursor.status()
    except Exception as error:
        raise _failed(error) from error


def _failed(error: Exception) -> PartfileError:
    if isinstance(error, PartfileError):
        return error
    return StoreError(
        f"RocksDB failed: {error}",
        hint="Restore on another disk: RocksDBOptions(directory='/var/tmp')",
    )


class Database:
    """One database in a directory of its own, which goes with it.

    A database does not outlive a fork: its threads are missing in the child, and the first call that waits for them
    waits for ever. So every call in the child is refused, and the child never closes it.

    Args:
        options: How it is kept.
        memory: What it may use.

    Raises:
        ConfigError: The directory cannot be made, or the options contradict each other.
    """

    def __init__(self, options: RocksDBOptions, memory: RocksDBMemory) -> None:
        self._engine_options = engine_options(options, memory)
        # The memory must not go while the database uses it.
        self._memory = memory
        try:
            # Absolute, so that it is found again from another working directory.
            above = Path(tempfile.gettempdir() if options.directory is None else options.directory).absolute()
            above.mkdir(parents=True, exist_ok=True)
            self.path = tempfile.mkdtemp(prefix="partfile-state-", dir=above)
        except OSError as error:
            raise ConfigError(
                f"RocksDBOptions: directory={options.directory!r} cannot hold a database: {error}",
                hint="Name a directory on a disk of this machine: RocksDBOptions(directory='/var/tmp')",
            ) from error
        self._columns: dict[str, Column] = {}
        self._refuse: Callable[..., NoReturn] = refuse_closed
        self._remove = weakref.finalize(self, _remove, self.path, os.getpid())
        self._engine: rocksdict.Rdict | None = rocksdict.Rdict(self.path, self._engine_options)
        _databases.add(self)

    def column(self, state: str) -> Column:
        """The rows of a state, made with the first call."""
        if state not in self._columns:
            name = quote(state, safe="")
            if self._engine is None:
                self._refuse()
            self._engine.create_column_family(name, self._engine_options)
            self._columns[state] = Column(self._engine, name, self._memory)
        return self._columns[state]

    def close(self) -> None:
        """Close the database and remove its directory; may be called twice. Views keep their rows until they go."""
        for column in self._columns.values():
            column.lose(self._refuse)
        self._columns = {}
        engine, self._engine = self._engine, None
        if engine is not None:
            # It writes what it has not written yet, which is of no use any more.
            with suppress(Exception):
                engine.close()
        self._remove()

    def abandon(self) -> None:
        """Never close it, and refuse every call: this is the child of the process that has it."""
        held: list[object] = [self._engine]
        self._refuse = refuse_forked
        for column in self._columns.values():
            held += column.lose(refuse_forked)
        self._columns = {}
        self._engine = None
        for one in held:
            # The engine's destructor would wait for its threads.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))


_databases: weakref.WeakSet[Database] = weakref.WeakSet()


def refuse_closed(*_arguments: object, **_options: object) -> NoReturn:
    """Raise the error of a call to a database that is closed."""
    raise ConfigError("the keyed state is closed", hint="Open it again from a checkpoint: restored=[KeyedFile(...)]")


def refuse_forked(*_arguments: object, **_options: object) -> NoReturn:
    """Raise the error of a call in a child of the process that opened the database."""
    raise ConfigError(
        f"process {os.getpid()} was forked from the one that opened this keyed state in RocksDB",
        hint="Open it in the process that uses it: RocksDBBackend(...)",
    )


def _abandon_all() -> None:
    for database in list(_databases):
        database.abandon()


def _remove(path: str, pid: int) -> None:
    # A child that ends must not take the directory of its parent away.
    if os.getpid() == pid:
        with suppress(OSError):
            # The engine makes no directories here, and no tree is deleted.
            for file in Path(path).iterdir():
                file.unlink()
            Path(path).rmdir()


os.register_at_fork(after_in_child=_abandon_all)
