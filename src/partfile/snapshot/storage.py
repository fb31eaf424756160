"""Checkpoints of one job in a MetadataStore: metadata, state files, publication marks. Each verb is one file."""

from __future__ import annotations

import logging
import mmap
import os
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from partfile.errors import (
    AlreadyExists,
    ConfigError,
    FileTooLarge,
    NotApplied,
    NotFound,
    SnapshotCorrupt,
    SnapshotError,
    StateTooLarge,
    plain_words,
)
from partfile.snapshot import documents
from partfile.snapshot.documents import (
    CheckpointMetadata,
    FileHandle,
    InlineHandle,
    decode_document,
    encode_document,
    read_document,
    unreadable,
)
from partfile.snapshot.state_file import decode_states
from partfile.snapshot.streams import (
    DEFAULT_INLINE_THRESHOLD_BYTES,
    DEFAULT_MAX_ACKNOWLEDGEMENT_BYTES,
    DEFAULT_MAX_STATE_BYTES,
    DEFAULT_WRITE_BUFFER_BYTES,
    MAX_INLINE_THRESHOLD_BYTES,
    FileStreamFactory,
    MemoryStreamFactory,
    check_file_streams,
)
from partfile.stores.checksums import crc32_of
from partfile.stores.memory import MemoryMetadataStore
from partfile.stores.paths import new_token
from partfile.stores.registry import check_url, open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from partfile.snapshot.documents import StateHandle
    from partfile.snapshot.state_file import States
    from partfile.snapshot.streams import CheckpointStreamFactory
    from partfile.stores.base import MetadataStore


DEFAULT_MAX_TOTAL_BYTES = 100 << 20
_MISSING_HINT = "Put it back from a backup or a copy, then start again. See what else is amiss: partfile verify PATH"
logger = logging.getLogger("partfile")


class StreamSettings(Protocol):
    """The ways in which a checkpoint storage keeps state."""

    def factory(
        self, store: MetadataStore, directory: str, checkpoint_id: int, *, sharers: int = 1
    ) -> CheckpointStreamFactory:
        """The streams of one subtask for one checkpoint.

        Args:
            store: Where the files go.
            directory: The job's, below the base of ``store``.
            checkpoint_id: The checkpoint.
            sharers: Subtasks of the checkpoint that each keep a state of this kind.
        """

    def check_total(self, metadata: CheckpointMetadata) -> None:
        """Refuse a checkpoint that is more than the coordinator may hold.

        Raises:
            StateTooLarge: Names the size and the limit.
        """


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(f"{type(self).__name__}: {_problems(error)}") from error


def _problems(error: ValidationError) -> str:
    found = error.errors(include_url=False)
    return "; ".join(": ".join([*map(str, one["loc"]), plain_words(one)]) for one in found)


class FileStreamSettings(_Settings):
    """State in files, small state inline."""

    inline_threshold_bytes: int = DEFAULT_INLINE_THRESHOLD_BYTES
    """State of at most this size travels inline and lies in the metadata; at most 1 MiB."""
    write_buffer_bytes: int = DEFAULT_WRITE_BUFFER_BYTES
    """Size of a stream's buffer; at least the threshold is used."""

    def model_post_init(self, _context: object, /) -> None:
        """Refuse sizes that cannot be used."""
        check_file_streams(self.inline_threshold_bytes, self.write_buffer_bytes)

    def factory(
        self, store: MetadataStore, directory: str, checkpoint_id: int, *, sharers: int = 1
    ) -> CheckpointStreamFactory:
        """Streams to files below the job's directory; inline states of all sharers take at most 1 MiB together."""
        return FileStreamFactory(
            store,
            directory,
            checkpoint_id,
            inline_threshold_bytes=min(self.inline_threshold_bytes, MAX_INLINE_THRESHOLD_BYTES // sharers),
            write_buffer_bytes=self.write_buffer_bytes,
        )

    def check_total(self, metadata: CheckpointMetadata) -> None:
        """Nothing to refuse: large state is in files."""


class FileSystemStorageSettings(FileStreamSettings):
    """Checkpoints on a file system, where another coordinator finds them after this one is lost."""

    url: str
    """Base of the checkpoints: a path or a URL that some store serves."""
    create_subdirectory: bool = True
    """False puts ``chk-N``, ``shared`` and ``taskowned`` directly under the URL, which then serves one job."""

    def model_post_init(self, context: object, /) -> None:
        """Refuse sizes and URLs that cannot be used."""
        super().model_post_init(context)
        check_url(self.url)


class DriverMemoryStorageSettings(_Settings):
    """Checkpoints in the coordinator's memory, lost with its process: for development and very small state.

    For the pipeline. A sink cannot have them: its staged parts outlive the process.
    """

    max_state_bytes: int = DEFAULT_MAX_STATE_BYTES
    """A larger piece of state fails its checkpoint."""
    max_acknowledgement_bytes: int = DEFAULT_MAX_ACKNOWLEDGEMENT_BYTES
    """More state in one acknowledgement fails its checkpoint, whatever ``max_state_bytes`` is."""
    max_total_bytes: int = DEFAULT_MAX_TOTAL_BYTES
    """More state in all acknowledgements together fails the checkpoint, before ``_metadata`` is created."""

    def model_post_init(self, _context: object, /) -> None:
        """Refuse limits that would fail every checkpoint."""
        for name in type(self).model_fields:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")

    def factory(
        self,
        store: MetadataStore,  # noqa: ARG002 - of the protocol, as the other two.
        directory: str,  # noqa: ARG002
        checkpoint_id: int,  # noqa: ARG002
        *,
        sharers: int = 1,  # noqa: ARG002
    ) -> CheckpointStreamFactory:
        """Streams into acknowledgements."""
        return MemoryStreamFactory(
            max_state_bytes=self.max_state_bytes, max_acknowledgement_bytes=self.max_acknowledgement_bytes
        )

    def check_total(self, metadata: CheckpointMetadata) -> None:
        """Refuse a checkpoint whose state together is more than ``max_total_bytes``.

        Raises:
            StateTooLarge: Names the size and the limit.
        """
        total = sum(handle.size_bytes for handle in metadata.handles())
        if total > self.max_total_bytes:
            raise StateTooLarge(
                f"the checkpoint has {total} bytes of state, more than max_total_bytes={self.max_total_bytes}",
                hint=(
                    "Raise the limit, as max_total_bytes=BYTES; or keep the checkpoints on a file system: "
                    "FileSystemStorageSettings(url=URL)"
                ),
                checkpoint_id=metadata.checkpoint_id,
            )


StorageSettings = FileSystemStorageSettings | DriverMemoryStorageSettings


class StorageOptions(_Settings):
    """Options of checkpoint storage, of a job or of the configuration for all jobs; None is not set.

    For the pipeline. A sink always has files, and makes their settings itself.
    """

    checkpoint_directory: str | None = None
    inline_threshold_bytes: int | None = None
    write_buffer_bytes: int | None = None
    create_subdirectory: bool | None = None


def select_storage(
    instance: StorageSettings | None, job: StorageOptions | None = None, defaults: StorageOptions | None = None
) -> StorageSettings:
    """Decide where checkpoints go: a file system if a checkpoint directory is configured, else the driver's memory.

    For the pipeline, as ``StorageOptions`` are.

    Args:
        instance: Settings passed in code, which win as a whole.
        job: The job's options; each that says something wins over the same of ``defaults``.
        defaults: Options of all jobs.

    Raises:
        ConfigError: A URL or a size cannot be used.
    """
    if instance is not None:
        return instance
    options = {
        name: value
        for level in (defaults, job)
        if level is not None
        for name, value in level.model_dump(exclude_none=True).items()
    }
    url = options.pop("checkpoint_directory", None)
    return DriverMemoryStorageSettings() if url is None else FileSystemStorageSettings(url=url, **options)


_METADATA_SCHEMA = "checkpoint"


class ListedIds(NamedTuple):
    """The ids of a job, each list ascending."""

    completed: list[int]
    """Ids with a ``_metadata``."""
    published_without_metadata: list[int]
    """Those whose parts have been published and whose metadata is gone."""


class HostCopies:
    """Copies of state files on this host, so that its tasks need not read each file from its storage in every batch.

    A copy is made durable and then given its name, which tells the file by token, checksum and length: so what has the
    name was right, whichever process looks. Each process compares a copy with its checksum before it uses it for the
    first time. A process that makes a copy deletes those that no task has used for a day. Beyond 16 GiB it deletes
    those that were used the longest time ago. A process that has mapped a copy keeps it. Where there is no room for a
    copy, the process deletes all others. Where there is none even then, it keeps the bytes that it has read in memory.
    """

    def mapped(self, handle: FileHandle) -> mmap.mmap | None:
        """The copy of a file, mapped; None if this host has none that is whole."""
        directory = _copies_directory()
        try:
            with (directory / _copy_name(handle)).open("rb") as file:
                if not _is_own(directory.lstat()):
                    return None
                os.utime(file.fileno())
                return _mapped_whole(file, handle)
        except (OSError, ValueError):
            return None

    def made(self, handle: FileHandle, data: bytes) -> bytes | mmap.mmap:
        """Make a copy and map it; ``data`` where that cannot be. Atomic: another process sees all of it or nothing.

        Args:
            handle: The file.
            data: Its bytes, which have been compared with the handle.
        """
        directory = _copies_directory()
        try:
            directory.mkdir(mode=0o700, exist_ok=True)
            if not _is_own(directory.lstat()):
                raise PermissionError(f"{directory} belongs to another user, or others may write in it")
            try:
                path = self._write(directory, handle, data)
            except OSError:
                _drop_copies(directory, most_bytes=0)
                path = self._write(directory, handle, data)
            _drop_copies(directory, most_bytes=_MOST_COPIED_BYTES, newest=path)
        except OSError as error:
            logger.warning(
                "no copy of state file %s can be kept in %s, so it is read again with each batch, and held in memory: "
                "%s. Give Spark's workers another place: spark.executorEnv.TMPDIR=DIRECTORY",
                handle.path,
                directory,
                error,
            )
            return data
        return self.mapped(handle) or data

    @staticmethod
    def _write(directory: Path, handle: FileHandle, data: bytes) -> Path:
        unnamed, path = directory / f"{_UNNAMED}{new_token()}", directory / _copy_name(handle)
        try:
            with unnamed.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            # Durable before it has the name: after a loss of power the name must not stand for other bytes.
            unnamed.replace(path)
        finally:
            unnamed.unlink(missing_ok=True)
        return path


_MOST_LOOKS = 100
"""So often a log may change while it is listed before what was seen counts."""
_UNNAMED = "_tmp."
_MOST_COPIED_BYTES = 16 << 30
_UNUSED_COPY_S = 24 * 60 * 60


_CHECKED: dict[tuple[str, int, int, int], None] = {}
"""Files that this process has compared with their checksums, the latest last: path, checksum, device, inode."""
_MOST_CHECKED = 4096
"""A process that has used more files compares again those that it used the longest time ago."""


def _mapped_whole(file: BinaryIO, handle: FileHandle) -> mmap.mmap | None:
    """An open file, mapped; None if it is not the one that a handle names. This process reads all of it once."""
    status = os.fstat(file.fileno())
    if status.st_size != handle.size_bytes:
        return None
    data = mmap.mmap(file.fileno(), handle.size_bytes, access=mmap.ACCESS_READ)
    told = (handle.path, handle.crc32, status.st_dev, status.st_ino)
    if told not in _CHECKED and crc32_of(memoryview(data)) != handle.crc32:
        return None
    _CHECKED.pop(told, None)
    _CHECKED[told] = None
    if len(_CHECKED) > _MOST_CHECKED:
        # Another thread may have been faster.
        _CHECKED.pop(next(iter(_CHECKED), told), None)
    return data


def _copies_directory() -> Path:
    return Path(tempfile.gettempdir(), f"partfile-{os.getuid()}")


def _copy_name(handle: FileHandle) -> str:
    return f"{Path(handle.path).name}-{handle.crc32:08x}-{handle.size_bytes}"


def _is_own(status: os.stat_result) -> bool:
    """Whether a directory is this user's alone to change."""
    return status.st_uid == os.getuid() and not stat.S_ISLNK(status.st_mode) and not status.st_mode & 0o022


def _drop_copies(directory: Path, *, most_bytes: int, newest: Path | None = None) -> None:
    """Delete the copies that were not used for a day, and the oldest of the rest beyond a size.

    Args:
        directory: Where they are.
        most_bytes: Of those that stay, besides the newest.
        newest: Was made just now, and stays. Its time is the present one: the clock may have been set back since others
            were used (R8).
    """
    found = []
    for path in directory.iterdir():
        with suppress(OSError):  # Another process has deleted it.
            status = path.stat()
            found.append((status.st_mtime, status.st_size, path))
    now_s = next((used_s for used_s, _, path in found if path == newest), None)
    left_bytes = most_bytes
    for used_s, size_bytes, path in sorted(found, reverse=True):
        is_unused = now_s is not None and abs(now_s - used_s) > _UNUSED_COPY_S
        if path == newest or (path.name.startswith(_UNNAMED) and not is_unused):
            continue
        left_bytes -= size_bytes
        if left_bytes < 0 or is_unused:
            path.unlink(missing_ok=True)


class CheckpointStorage:
    """The directory of one job: ``chk-N/_metadata``, state files, ``shared/`` and ``taskowned/``.

    Args:
        store: Where the files are.
        job: The job's uid; also the directory below the base of ``store``.
        streams: Where the state of its checkpoints goes.
        create_subdirectory: False puts everything directly under the base of ``store``, which then serves one job.
    """

    def __init__(
        self,
        store: MetadataStore,
        job: str,
        streams: StreamSettings | None = None,
        *,
        create_subdirectory: bool = True,
    ) -> None:
        self.store = store
        self.job = job
        self.directory = job if create_subdirectory else ""
        """Of the job, below the base of the store."""
        self._streams = streams or FileStreamSettings()
        self._copies = HostCopies()

    def path(self, name: str) -> str:
        """A path of this job, relative to the base of the store."""
        return documents.below(self.directory, name)

    def stream_factory(self, checkpoint_id: int, *, sharers: int = 1) -> CheckpointStreamFactory:
        """Opens the streams of one subtask for a checkpoint.

        Args:
            checkpoint_id: The checkpoint.
            sharers: Subtasks that each keep such a state: what lies inline of it is bounded over all of them.
        """
        return self._streams.factory(self.store, self.directory, checkpoint_id, sharers=sharers)

    def read_state(self, handle: StateHandle | None) -> States:
        """Return the operator state behind a handle, its elements still encoded; none for None.

        Raises:
            SnapshotCorrupt: The file is missing, damaged or not the one that was written.
            SnapshotVersionError: A newer partfile wrote it.
        """
        if handle is None:
            return {}
        return decode_states(self.read_bytes(handle), self.shown(handle))

    def read_bytes(self, handle: StateHandle) -> bytes:
        """Return what was written to the stream that a handle came from.

        Raises:
            SnapshotCorrupt: The file is missing, damaged or not the one that was written, or something else is there.
        """
        if isinstance(handle, InlineHandle):
            return handle.data
        shown = self.shown(handle)
        try:
            data = self.store.read_file(self.path(handle.path), handle.size_bytes)
        except NotFound as error:
            raise SnapshotCorrupt(f"state file {shown} is missing", hint=_MISSING_HINT, path=shown) from error
        except FileTooLarge as error:
            raise _not_this_one(shown) from error
        except NotApplied as error:
            # A store that cannot be read proves nothing of the checkpoint.
            if self.store.file_exists(self.path(handle.path)):
                raise
            raise SnapshotCorrupt(
                f"in the place of state file {shown} is something else than a file",
                hint="Find out what it is and who put it there, move it away, and put the file back from a copy.",
                path=shown,
            ) from error
        if len(data) != handle.size_bytes or crc32_of(data) != handle.crc32:
            raise _not_this_one(shown)
        return data

    def map_bytes(self, handle: StateHandle) -> bytes | mmap.mmap:
        """As ``read_bytes``, but a file stays on disk: it is mapped where it lies, or a copy of it on this host.

        A copy that has been damaged is made again.

        Raises:
            SnapshotCorrupt: As of ``read_bytes``.
            StoreError: It cannot be read.
        """
        data = self.read_bytes(handle)
        if isinstance(handle, InlineHandle):
            return data
        if (here := self._mapped_here(handle)) is not None:
            return here
        copy = self._copies.mapped(handle)
        # It may have been damaged since this process compared it first.
        is_whole = copy is not None and crc32_of(memoryview(copy)) == handle.crc32
        return copy if copy is not None and is_whole else self._copies.made(handle, data)

    def map_held(self, handle: StateHandle) -> bytes | mmap.mmap:
        """As ``map_bytes``, but what this process has read and checked as a whole before is not read again.

        That is a file on this host, or a copy that was made here.

        Raises:
            SnapshotCorrupt: As of ``read_bytes``.
            StoreError: As of ``map_bytes``.
        """
        if isinstance(handle, InlineHandle):
            return handle.data
        return self._mapped_here(handle) or self._copies.mapped(handle) or self.map_bytes(handle)

    def _mapped_here(self, handle: FileHandle) -> mmap.mmap | None:
        """The file of a handle, mapped; None if the store has no files on this host."""
        here = self.store.local_path(self.path(handle.path))
        if here is None:
            return None
        shown = self.shown(handle)
        try:
            with Path(here).open("rb") as file:
                data = _mapped_whole(file, handle)
        except FileNotFoundError as error:
            raise SnapshotCorrupt(f"state file {shown} is missing", hint=_MISSING_HINT, path=shown) from error
        except (OSError, ValueError) as error:
            raise NotApplied(
                f"state file {shown} cannot be mapped: {error}",
                hint="See that this process can read it, and may have more files open: ulimit -n",
                path=shown,
            ) from error
        if data is None:
            raise _not_this_one(shown)
        return data

    def read_shown(self, handle: StateHandle) -> tuple[bytes, str]:
        """As ``read_bytes``, with what the handle is called in messages."""
        return self.read_bytes(handle), self.shown(handle)

    def shown(self, handle: StateHandle) -> str:
        """What a handle is called in messages: the address of its file."""
        if isinstance(handle, InlineHandle):
            return "inline state"
        return f"{self.store.base}/{self.path(handle.path)}"

    def create_checkpoint(self, metadata: CheckpointMetadata) -> None:
        """Create ``chk-N/_metadata``: the commit point (R1).

        Raises:
            AlreadyExists: The id has an entry; it may be this very one, read it back.
            StateTooLarge: Its state together is more than the coordinator may hold; nothing was created.
            UnencodableState: ``read_checkpoint`` would refuse it; nothing was created.
            OutcomeUnknown: It may be there now.
        """
        self._streams.check_total(metadata)
        path = self.path(documents.metadata_path(metadata.checkpoint_id))
        data = encode_document(_METADATA_SCHEMA, metadata)
        try:
            # Before it is created: no checkpoint may exist that its reader refuses (R1).
            self._decoded(data, metadata.checkpoint_id, path)
        except SnapshotError as error:
            raise unreadable(f"checkpoint {metadata.checkpoint_id} of job {self.job!r}", error) from error
        self.store.create_file(path, data)

    def read_checkpoint(self, checkpoint_id: int) -> CheckpointMetadata | None:
        """Return the checkpoint with this id, or None if there is none.

        Raises:
            SnapshotCorrupt: It cannot be read, or belongs to another job or id.
            SnapshotVersionError: A newer partfile wrote it.
        """
        path = self.path(documents.metadata_path(checkpoint_id))
        try:
            data = read_document(self.store, path)
        except NotFound:
            return None
        return self._decoded(data, checkpoint_id, f"{self.store.base}/{path}")

    def _decoded(self, data: bytes, checkpoint_id: int, path: str) -> CheckpointMetadata:
        checkpoint = decode_document(_METADATA_SCHEMA, CheckpointMetadata, data, path)
        if checkpoint.checkpoint_id != checkpoint_id or checkpoint.job != self.job:
            raise SnapshotCorrupt(
                f"{path} is checkpoint {checkpoint.checkpoint_id} of job {checkpoint.job!r}",
                path=path,
                checkpoint_id=checkpoint_id,
            )
        return checkpoint

    def list_completed_ids(self) -> list[int]:
        """The ids that have a ``_metadata``, ascending. Lists the job's directory, which retention bounds."""
        return self.list_ids().completed

    def list_ids(self) -> ListedIds:
        """The ids that have a ``_metadata``, and those that lost it.

        Lists the job's directory and those of its checkpoints.
        """
        for ids in self._looks():
            found = ListedIds([], [])
            for number in ids:
                names = self._names_of(number)
                if documents.METADATA in names:
                    found.completed.append(number)
                elif documents.PUBLISHED in names:
                    found.published_without_metadata.append(number)
            if found.completed:
                break
        return found

    def newest_completed_id(self) -> int:
        """The highest id that has a checkpoint, 0 if none has. Lists the job's directory and, as a rule, one in it."""
        newest = 0
        for ids in self._looks():
            newest = next((number for number in reversed(ids) if documents.METADATA in self._names_of(number)), 0)
            if newest:
                break
        return newest

    def _looks(self) -> Iterator[list[int]]:
        """The ids that have a directory; again as long as they change, for a caller that finds no checkpoint in them.

        A coordinator that goes on may have deleted all of them since they were listed, and made others.
        """
        ids = self._ids()
        for _ in range(_MOST_LOOKS):
            yield ids
            before, ids = ids, self._ids() if ids else []
            if ids == before:
                return

    def _ids(self) -> list[int]:
        ids = [documents.checkpoint_id_of(name) for name in self.store.list_names(self.directory)]
        return sorted(number for number in ids if number is not None)

    def _names_of(self, checkpoint_id: int) -> list[str]:
        # Not whether a file is there: a directory in its place takes the name as well, and must be told.
        return self.store.list_names(self.path(documents.checkpoint_directory(checkpoint_id)))

    def mark_published(self, checkpoint_id: int) -> None:
        """Record that every part of the checkpoint has its final name. Idempotent and durable."""
        try:
            self.store.create_file(self.path(documents.published_path(checkpoint_id)), b"")
        except AlreadyExists:
            return

    def is_published(self, checkpoint_id: int) -> bool:
        """Whether the checkpoint has been marked as published."""
        return self.store.file_exists(self.path(documents.published_path(checkpoint_id)))

    def mark_released(self, checkpoint_id: int) -> None:
        """Record that the coordinator that created the checkpoint does no more with the log. Idempotent and durable."""
        try:
            self.store.create_file(self.path(documents.released_path(checkpoint_id)), b"")
        except AlreadyExists:
            return

    def is_released(self, checkpoint_id: int) -> bool:
        """Whether that has been recorded."""
        return self.store.file_exists(self.path(documents.released_path(checkpoint_id)))

    def delete_checkpoint(self, checkpoint_id: int) -> None:
        """Delete a checkpoint: its ``_metadata`` first, so that it cannot be restored from once anything of it is gone.

        Idempotent. What rivals left in the same directory goes too: only this checkpoint could have named it (R11).
        """
        # In this order: a kill in between leaves no entry whose state is gone.
        self.store.delete_file(self.path(documents.metadata_path(checkpoint_id)))
        self.store.delete_directory(self.path(documents.checkpoint_directory(checkpoint_id)))


def open_storage(
    settings: StorageSettings,
    job: str,
    storage_options: Mapping[str, object] | None = None,
    *,
    opener: Callable[[str, Mapping[str, object]], MetadataStore] = open_store,
) -> CheckpointStorage:
    """Open the checkpoints of a job where its settings say.

    Args:
        settings: Where they go.
        job: The job's uid.
        storage_options: What the client of the store needs; none for memory.
        opener: Opens the store of a URL.

    Returns:
        The storage; the caller closes its ``store``.

    Raises:
        NotApplied: The base cannot be written to.
    """
    if isinstance(settings, DriverMemoryStorageSettings):
        return CheckpointStorage(MemoryMetadataStore(), job, settings)
    store = opener(settings.url, storage_options or {})
    return CheckpointStorage(store, job, settings, create_subdirectory=settings.create_subdirectory)


@dataclass(frozen=True, slots=True)
class Pointer:
    """The place of a snapshot."""

    parent: str
    """URL or path of the directory that its directory is in."""
    directory: str
    """The name of its directory."""

    @property
    def checkpoint_id(self) -> int | None:
        """The id, if it is the directory of a checkpoint."""
        return documents.checkpoint_id_of(self.directory)


def pointer_to(location: str) -> Pointer:
    """Split the location of a snapshot; both ``DIR`` and ``DIR/_metadata`` mean the snapshot in DIR.

    Raises:
        ConfigError: It names no directory.
    """
    path = location.rstrip("/")
    parent, slash, name = path.rpartition("/")
    if name == documents.METADATA:
        parent, slash, name = parent.rstrip("/").rpartition("/")
    if not slash:
        parent = "."
    if not name or name in {".", ".."} or parent.endswith(":/"):
        raise ConfigError(
            f"{location!r} does not name the directory of a savepoint or a checkpoint",
            hint="Give its path or URL, with or without /_metadata at the end, as s3://bucket/savepoints/NAME.",
        )
    return Pointer(parent or "/", name)


def _not_this_one(shown: str) -> SnapshotCorrupt:
    return SnapshotCorrupt(f"state file {shown} is not the one the checkpoint names", hint=_MISSING_HINT, path=shown)
