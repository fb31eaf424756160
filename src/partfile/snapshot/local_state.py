"""Copies of a subtask's state on this machine, so that a restore need not read the checkpoint's storage.

A copy lies in ``chk-N`` of the subtask's directory, as ``<token>.state``. Beside it lies a document ``<token>.copy``,
with the token of the file that it is a copy of, so that another process on this machine finds it. A file that its maker
never changes has a link in place of a copy, as ``<token>.link``. A copy is never worth a failed checkpoint or restore:
what is wrong with it is logged, and the file itself is used.

Source: Flink's ``TaskLocalStateStoreImpl``, as of 1.20.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from partfile.errors import NotApplied, NotFound, PartfileError, SnapshotCorrupt
from partfile.snapshot import documents
from partfile.snapshot.documents import FileHandle, decode_document, encode_document, read_document
from partfile.snapshot.streams import FileStreamFactory, Scope
from partfile.stores.base import Persisted
from partfile.stores.checksums import crc32_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from partfile.snapshot.documents import StateHandle
    from partfile.snapshot.streams import CheckpointOutputStream
    from partfile.stores.base import MetadataStore


_SCHEMA = "local-copy"
logger = logging.getLogger("partfile")


class _LocalCopy(Persisted):
    primary: FileHandle
    """The file that the checkpoint names."""
    local: FileHandle
    """Its copy, relative to the subtask's directory. It may have another format than the file."""


class LocalStateStore:
    """The copies of one subtask's state, by checkpoint. Off unless a strategy is given one.

    Keyed state has them, operator state has not: its elements go to other subtasks at a restore. A machine that is lost
    loses its copies, which is of no consequence. None of the calls raises for what this machine cannot do.

    Args:
        store: On a disk of this machine.
        directory: Of the subtask, below the base of ``store``. Two subtasks, jobs or operators never share one.
    """

    def __init__(self, store: MetadataStore, directory: str) -> None:
        self._store = store
        self._directory = directory
        self._may_link = True
        """False once it is known that the files to link are on another disk."""

    def create_stream(self, checkpoint_id: int) -> CheckpointOutputStream:
        """Open the stream of a copy."""
        return self._streams(checkpoint_id).create(Scope.EXCLUSIVE)

    def keep(self, checkpoint_id: int, primary: StateHandle | None, local: StateHandle) -> bool:
        """Keep the copy that a stream has ended with.

        Durability: what is found after a loss of power is compared with its checksum before it is used.

        Args:
            checkpoint_id: The checkpoint.
            primary: Of what the copy is; one of state that travels inline is of no use, and deleted.
            local: The copy.

        Returns:
            Whether it is kept.
        """
        if isinstance(primary, FileHandle) and isinstance(local, FileHandle):
            document = encode_document(_SCHEMA, _LocalCopy(primary=primary, local=local))
            try:
                self._store.create_file(self._path_of_document(checkpoint_id, primary), document)
            except PartfileError as error:
                logger.warning("the snapshot has no local copy: %s", error)
            else:
                return True
        try:
            self._streams(checkpoint_id).discard(local)
        except PartfileError as error:
            logger.warning("a local copy without use could not be deleted, and will be with the next: %s", error)
        return False

    def link(self, checkpoint_id: int, files: Iterable[tuple[StateHandle, str]]) -> bool:
        """Keep links to files of this machine, which their maker never changes, as copies. No byte is copied.

        Durability: as of ``keep``.

        Args:
            checkpoint_id: The checkpoint.
            files: What the checkpoint names, and where it lies here; state that travels inline needs no link.

        Returns:
            Whether all are kept; else none of this checkpoint is.
        """
        if not self._may_link:
            return False
        try:
            for primary, path in files:
                if isinstance(primary, FileHandle):
                    self._link(path, self._path_of_link(checkpoint_id, primary))
        except (OSError, PartfileError) as error:
            if getattr(error, "errno", None) == errno.EXDEV:
                self._may_link = False
                error = NotApplied(
                    f"{self._store.base} is on another disk than the files, so there are no links to them",
                    hint="Give both one disk: RocksDBOptions(directory='/data/rocksdb') and LocalStore('/data/local')",
                )
            logger.warning("the snapshot has no local copy: %s", error)
            self.abort(checkpoint_id)
            return False
        return True

    def linked(self, primary: StateHandle) -> Path | None:
        """Where the link to a file lies; None if there is none that is whole.

        Args:
            primary: The file, as the checkpoint names it.
        """
        if not isinstance(primary, FileHandle):
            return None
        try:
            for checkpoint_id in self._ids():
                here = self._here(self._path_of_link(checkpoint_id, primary))
                if here.is_file():
                    if _is_whole(here, primary):
                        return here
                    logger.warning("%s is damaged: length or checksum is wrong", here)
        except (OSError, ValueError, PartfileError) as error:
            logger.warning("the link to state file %s is not used: %s", primary.path, error)
        return None

    def read(self, primary: StateHandle) -> bytes | None:
        """The copy of a file; None if there is none that is whole.

        Args:
            primary: The file, as the checkpoint names it.
        """
        if not isinstance(primary, FileHandle):
            return None
        try:
            for checkpoint_id in self._ids():
                data = self._read(checkpoint_id, primary)
                if data is not None:
                    return data
        except PartfileError as error:
            logger.warning("the local copy of state file %s is not used: %s", primary.path, error)
        return None

    def confirm(self, checkpoint_id: int) -> None:
        """Delete the copies of all checkpoints before this one, which is complete. Idempotent."""
        self._delete(lambda number: number < checkpoint_id)

    def abort(self, checkpoint_id: int) -> None:
        """Delete the copies of a checkpoint that will never be complete. Idempotent."""
        self._delete(lambda number: number == checkpoint_id)

    def begin(self, checkpoint_id: int | None) -> None:
        """Delete all but the copies of the checkpoint that was restored; all if none was. Idempotent.

        A subtask calls it after its restore: copies of attempts that died are of no use to it.
        """
        self._delete(lambda number: number != checkpoint_id)

    def _read(self, checkpoint_id: int, primary: FileHandle) -> bytes | None:
        path = self._path_of_document(checkpoint_id, primary)
        try:
            copy = decode_document(_SCHEMA, _LocalCopy, read_document(self._store, path), path)
        except NotFound:
            return None
        if copy.primary != primary:
            raise SnapshotCorrupt(f"{path} tells of a copy of another file", path=path)
        local = documents.below(self._directory, copy.local.path)
        data = self._store.read_file(local, copy.local.size_bytes)
        if len(data) != copy.local.size_bytes or crc32_of(data) != copy.local.crc32:
            raise SnapshotCorrupt(f"{local} is damaged: length or checksum is wrong", path=local)
        return data

    def _link(self, path: str, link: str) -> None:
        here = self._here(link)
        here.parent.mkdir(parents=True, exist_ok=True)
        # A checkpoint that is tried again names the same file.
        with suppress(FileExistsError):
            os.link(path, here)

    def _here(self, path: str) -> Path:
        here = self._store.local_path(path)
        if here is None:
            raise NotApplied(
                f"{self._store.base} is not on a disk of this machine",
                hint="Give copies another place: LocalStateStore(LocalStore('/data/local-state'), DIRECTORY)",
            )
        return Path(here)

    def _delete(self, is_superseded: Callable[[int], bool]) -> None:
        try:
            for checkpoint_id in filter(is_superseded, self._ids()):
                self._store.delete_directory(self._path_of(checkpoint_id))
        except PartfileError as error:
            logger.warning("local copies of state could not be deleted, and will be with the next: %s", error)

    def _ids(self) -> list[int]:
        """The checkpoints that have copies here, ascending."""
        ids = map(documents.checkpoint_id_of, self._store.list_names(self._directory))
        return sorted(checkpoint_id for checkpoint_id in ids if checkpoint_id is not None)

    def _streams(self, checkpoint_id: int) -> FileStreamFactory:
        return FileStreamFactory(self._store, self._directory, checkpoint_id, inline_threshold_bytes=0)

    def _path_of(self, checkpoint_id: int) -> str:
        return documents.below(self._directory, documents.checkpoint_directory(checkpoint_id))

    def _path_of_document(self, checkpoint_id: int, primary: FileHandle) -> str:
        return f"{self._path_of(checkpoint_id)}/{PurePosixPath(primary.path).stem}.copy"

    def _path_of_link(self, checkpoint_id: int, primary: FileHandle) -> str:
        return f"{self._path_of(checkpoint_id)}/{PurePosixPath(primary.path).stem}.link"


def _is_whole(path: Path, primary: FileHandle) -> bool:
    """Whether a file has the length and the checksum of another one. It is mapped, so that no byte is copied."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size != primary.size_bytes:
            return False
        with (
            mmap.mmap(file.fileno(), primary.size_bytes, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as data,
        ):
            return crc32_of(data) == primary.crc32
