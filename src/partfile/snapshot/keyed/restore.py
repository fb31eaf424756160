"""What a restore of keyed state reads: files of any kind of snapshot, from copies on this machine where it has them."""

from __future__ import annotations

import logging
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Literal, Protocol

from partfile.errors import SnapshotError
from partfile.snapshot.documents import check_handles
from partfile.snapshot.keyed.keyed_file import KeyedFile
from partfile.snapshot.keyed.pieces import read_canonical
from partfile.snapshot.keyed.shared_files import decode_incremental, is_incremental
from partfile.snapshot.piece_list import is_piece_list

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from partfile.snapshot.documents import StateHandle
    from partfile.snapshot.keyed.keyed_file import RestoredRows
    from partfile.snapshot.local_state import LocalStateStore
    from partfile.snapshot.storage import CheckpointStorage


logger = logging.getLogger("partfile")


class Reads(Protocol):
    """Counts from where files are read."""

    from_storage: int
    """So many were read from the checkpoint's storage."""
    from_here: int
    """So many were read from copies or links on this machine."""


class RestoredFile:
    """The keyed state of one old subtask, and from where it was read.

    Args:
        file: What was read, for a backend.
        reads: Counts what is read.
    """

    def __init__(self, file: RestoredRows, reads: Reads) -> None:
        self.file = file
        self._reads = reads

    @property
    def source(self) -> Literal["local", "primary"]:
        """local: copies on this machine, or links to all files of RocksDB. primary: the checkpoint or its storage.

        State in several files is read piece by piece, when a backend is made: it is primary once any of them was. Of an
        incremental snapshot neither its document counts nor what travels inline in it, unless there is nothing else.
        """
        return "local" if self._reads.from_here and not self._reads.from_storage else "primary"


class _Reads:
    """Reads state files, each from its copy on this machine if that is whole.

    Args:
        storage: Of the checkpoint.
        local: The copies; None has none.
    """

    def __init__(self, storage: CheckpointStorage, local: LocalStateStore | None) -> None:
        self._storage = storage
        self._local = local
        self.from_storage = 0
        """So many were read from the storage, or from the metadata."""
        self.from_here = 0
        """So many copies were read."""

    def copy(self, handle: StateHandle) -> tuple[bytes, str] | None:
        """The copy of a file and what it is called; None if there is none that is whole."""
        data = None if self._local is None else self._local.read(handle)
        return None if data is None else (data, f"the local copy of {self._storage.shown(handle)}")

    def primary(self, handle: StateHandle) -> tuple[bytes, str]:
        """The file itself and what it is called."""
        self.from_storage += 1
        return self._storage.read_shown(handle)

    def piece(self, handle: StateHandle) -> KeyedFile:
        """One of several files, from its copy if there is one that can be used."""
        if (copy := self.copy(handle)) is not None:
            try:
                found = KeyedFile(*copy)
            except SnapshotError as error:
                self.warn(handle, error)
            else:
                self.from_here += 1
                logger.info("keyed state is restored from %s", found.path)
                return found
        found = KeyedFile(*self.primary(handle))
        logger.info("keyed state is restored from %s", found.path)
        return found

    def warn(self, handle: StateHandle, error: SnapshotError) -> None:
        """Say that a copy cannot be used."""
        logger.warning("the local copy of state file %s is not used: %s", self._storage.shown(handle), error)


@contextmanager
def read_keyed_files(
    storage: CheckpointStorage,
    handles: Iterable[StateHandle],
    local: LocalStateStore | None = None,
    directory: str | None = None,
) -> Iterator[list[RestoredFile]]:
    """Read what snapshots of keyed state have written, of any backend, each from its copy if that is whole.

    Make the backends within the block: at its end the files of RocksDB are closed and removed. Of state in several
    files a backend reads those that have its key groups, one after the other.

    Args:
        storage: Of the checkpoint.
        handles: What the checkpoint names.
        local: The copies on this machine; None has none.
        directory: Where files of RocksDB are read to, on a disk of this machine; None is that for temporary files.

    Raises:
        SnapshotCorrupt: A file is missing or damaged, and there is no copy of it.
        SnapshotVersionError: It was written in another format version.
        StoreError: It cannot be read.
        ConfigError: It is of RocksDB, whose package is not installed, or a handle is none.
    """
    handles = check_handles(handles)
    with ExitStack() as opened:
        yield [_read_keyed_file(storage, handle, local, directory, opened) for handle in handles]


def _read_keyed_file(
    storage: CheckpointStorage,
    handle: StateHandle,
    local: LocalStateStore | None,
    directory: str | None,
    opened: ExitStack,
) -> RestoredFile:
    reads = _Reads(storage, local)
    if (copy := reads.copy(handle)) is not None:
        try:
            restored = RestoredFile(read_canonical(*copy, reads.piece), reads)
        except SnapshotError as error:
            reads.warn(handle, error)
        else:
            reads.from_here += 1
            logger.info("keyed state is restored from %s", copy[1])
            return restored
    data, shown = reads.primary(handle)
    logger.info("keyed state is restored from %s", shown)
    if is_piece_list(data):
        # What is large is in the pieces.
        reads.from_storage = 0
    if not is_incremental(data):
        return RestoredFile(read_canonical(data, shown, reads.piece), reads)
    # Here, because the engine's package may be absent.
    from partfile.snapshot.keyed.rocksdb.files import IncrementalFiles  # noqa: PLC0415

    document = decode_incremental(data, shown)
    files = IncrementalFiles(document, storage, shown, directory, local)
    opened.callback(files.close)
    logger.info(
        "of the %d files of %s, %d are from this machine",
        len(document.files),
        shown,
        files.from_here,
    )
    return RestoredFile(files, files)
