"""Incremental snapshots of keyed state in RocksDB: files that a snapshot before has written are not written again.

The synchronous part writes all rows to files and links these into a directory of the snapshot. The asynchronous part
writes those that are new to ``shared/``, and the engine's lists of them to ``chk-N``. The engine never changes a file,
and gives none of its files the name of another. So the file of a name is that which an earlier snapshot has written.

A file is written once. From then on each snapshot names the same handle for it, as long as the engine has it. So all
checkpoints from the first to the last that need a file name it, and none deletes it under another.

The snapshot's handle is that of one document, which names all files and says what is in them. A restore reads every
file, and of its rows the key groups that the new range covers; so any backend can be restored, with any parallelism.

Source: Flink's ``RocksIncrementalSnapshotStrategy``, as of 1.20.
"""

from __future__ import annotations

import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from partfile.errors import PartfileError, SnapshotCancelled, StoreError
from partfile.snapshot.documents import encode_document
from partfile.snapshot.keyed.backend import PLACE_BYTES
from partfile.snapshot.keyed.keyed_file import KeyedFile, KeyedSnapshotResources, encode_keyed_state
from partfile.snapshot.keyed.keys import KeyGroupRange, end_of_piece
from partfile.snapshot.keyed.rocksdb.backend import GROUP_BYTES, after, time_of
from partfile.snapshot.keyed.rocksdb.database import ANOTHER_DISK, LinkedFiles, new_directory, remove_files
from partfile.snapshot.keyed.shared_files import SCHEMA, SORTED_FILES, IncrementalDocument, NativeFile
from partfile.snapshot.keyed.strategy import writing_keyed_state
from partfile.snapshot.strategy import EMPTY, SnapshotResult
from partfile.snapshot.streams import Scope

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partfile.snapshot.documents import StateHandle
    from partfile.snapshot.keyed.backend import KeyedView
    from partfile.snapshot.keyed.keyed_file import Pairs
    from partfile.snapshot.keyed.rocksdb.backend import RocksDBBackend
    from partfile.snapshot.state_file import StateMetaInfo
    from partfile.snapshot.storage import CheckpointStorage
    from partfile.snapshot.strategy import CloseableRegistry, SnapshotOptions, Supplier
    from partfile.snapshot.streams import CheckpointStreamFactory


TRANSFER_THREADS = 4
"""So many files of a snapshot are written or read at once."""
_OF_NO_USE = ("OPTIONS-", "LOG")
logger = logging.getLogger("partfile")


class LinkedView:
    """What the synchronous part of an incremental snapshot has taken.

    Args:
        view: Says what the files are of. It is released already: its cursors would keep rows in memory.
        directory: Where the files are linked.
    """

    def __init__(self, view: KeyedView, directory: str) -> None:
        self.view = view
        self.directory = directory
        self._pid = os.getpid()

    def release(self) -> None:
        """Remove the links. A child of the process that made them does nothing."""
        if self._pid == os.getpid():
            remove_files(self.directory)

    def names(self) -> list[str]:
        """The files that a snapshot needs."""
        try:
            linked = [path.name for path in Path(self.directory).iterdir()]
        except OSError as error:
            raise StoreError(f"the links in {self.directory} cannot be read: {error}", hint=ANOTHER_DISK) from error
        return sorted(name for name in linked if not name.startswith(_OF_NO_USE))


class _Written:
    """A file in ``shared/``."""

    def __init__(self, handle: StateHandle) -> None:
        self.handle = handle
        self.undecided: set[int] = set()
        """The checkpoints that name it of which it is not known whether they will be complete."""
        self.may_be_named = False
        """Whether a complete checkpoint may name it; then its deletion is the registry's."""


class IncrementalStrategy:
    """Snapshots that write what no snapshot before has written. A savepoint is the canonical file.

    Its owner tells it what becomes of checkpoints. A file that only checkpoints without success name is deleted by a
    later snapshot, once the engine has replaced it; all others are deleted by ``SharedFiles``.

    Args:
        backend: The live state.
    """

    def __init__(self, backend: RocksDBBackend) -> None:
        self._backend = backend
        self._files: dict[str, _Written] = {}
        self._lock = threading.Lock()
        # Two snapshots that write at the same time would each write the same file, and name another.
        self._is_writing = threading.Lock()

    def sync_prepare_resources(self, options: SnapshotOptions) -> LinkedView | KeyedView:
        """Write the rows to files, and link them: as long as it takes to write what is in memory.

        A savepoint is a view of the rows, which costs nothing.
        """
        view = self._backend.freeze()
        if options.is_savepoint:
            return view
        try:
            return LinkedView(view, self._backend.database.checkpoint())
        finally:
            view.release()

    def async_snapshot(
        self,
        resources: LinkedView | KeyedView,
        checkpoint_id: int,
        timestamp_ms: int,  # noqa: ARG002 - of the protocol.
        streams: CheckpointStreamFactory,
        options: SnapshotOptions,
    ) -> Supplier:
        """Return what writes the new files, and the document that names all."""
        if not isinstance(resources, LinkedView):
            return writing_keyed_state(resources, checkpoint_id, streams, options)
        if not resources.view.infos:
            return lambda _registry: EMPTY

        def write(registry: CloseableRegistry) -> SnapshotResult:
            with self._is_writing:
                known = self._known(set(resources.names()), streams)
                primary, files = _Upload(streams, registry).incremental(resources, known)
                with self._lock:
                    for name, handle in files.items():
                        self._files.setdefault(name, _Written(handle)).undecided.add(checkpoint_id)
            return SnapshotResult(primary)

        return write

    def confirm(self, checkpoint_id: int) -> None:
        """A checkpoint is complete, and so may be those before it that were not aborted. Idempotent."""
        with self._lock:
            for file in self._files.values():
                decided = {number for number in file.undecided if number <= checkpoint_id}
                file.undecided -= decided
                file.may_be_named |= bool(decided)

    def abort(self, checkpoint_id: int) -> None:
        """A checkpoint will never be complete. Idempotent."""
        with self._lock:
            for file in self._files.values():
                file.undecided.discard(checkpoint_id)

    def _known(self, names: set[str], streams: CheckpointStreamFactory) -> dict[str, StateHandle]:
        """The files that need not be written. Those that the engine has replaced are forgotten."""
        with self._lock:
            gone = {name: file for name, file in self._files.items() if name not in names and not file.undecided}
            for name in gone:
                del self._files[name]
            known = {name: file.handle for name, file in self._files.items()}
        for file in gone.values():
            if not file.may_be_named:
                _delete(streams, file.handle)
        return known


class _Upload:
    """Writes the files of one snapshot; where it fails or is cancelled, what it has written is deleted.

    Args:
        streams: Keep what is written.
        registry: Says that the snapshot is cancelled.
    """

    def __init__(self, streams: CheckpointStreamFactory, registry: CloseableRegistry) -> None:
        self._streams = streams
        self._registry = registry
        self._written: list[StateHandle] = []

    def incremental(
        self, resources: LinkedView, known: dict[str, StateHandle]
    ) -> tuple[StateHandle, dict[str, StateHandle]]:
        """Write what is new.

        Returns:
            The handle of the document, and those of all files in ``shared/`` by name.
        """
        try:
            return self._incremental(resources, known)
        except BaseException:
            self._discard()
            raise

    def _incremental(
        self, resources: LinkedView, known: dict[str, StateHandle]
    ) -> tuple[StateHandle, dict[str, StateHandle]]:
        view, names = resources.view, resources.names()
        missing = [name for name in names if name not in known]
        with ThreadPoolExecutor(TRANSFER_THREADS) as pool:
            written = pool.map(lambda name: self._keep_file(Path(resources.directory, name)), missing)
            files = known | dict(zip(missing, written, strict=True))
        carried = _CarriedRows(view)
        document = IncrementalDocument(
            key=view.key_codec.kinds,
            max_parallelism=view.max_parallelism,
            first_group=view.groups.first,
            last_group=view.groups.last,
            states=tuple(info for info in view.infos if info not in carried.infos),
            expired_ms=view.expired_ms,
            files=tuple(NativeFile(name=name, handle=files[name]) for name in names),
            carried=self._keep(encode_keyed_state(carried), Scope.EXCLUSIVE) if carried.infos else None,
        )
        primary = self._keep(encode_document(SCHEMA, document), Scope.EXCLUSIVE)
        return primary, {name: files[name] for name in names if name.endswith(SORTED_FILES)}

    def _keep_file(self, path: Path) -> StateHandle:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise StoreError(f"RocksDB's file {path} cannot be read: {error}", hint=ANOTHER_DISK) from error
        return self._keep(data, Scope.SHARED if path.suffix == SORTED_FILES else Scope.EXCLUSIVE)

    def _keep(self, data: bytes, scope: Scope) -> StateHandle:
        self._check()
        handle = self._streams.keep(data, scope)
        self._written.append(handle)
        # Once more, for the last one: what is cancelled from here on is aborted by its coordinator.
        self._check()
        return handle

    def _check(self) -> None:
        if self._registry.closed:
            raise SnapshotCancelled("the snapshot was cancelled while its files were written")

    def _discard(self) -> None:
        for handle in self._written:
            _delete(self._streams, handle)


def _delete(streams: CheckpointStreamFactory, handle: StateHandle) -> None:
    try:
        streams.discard(handle)
    except PartfileError as error:
        logger.warning("a state file that no checkpoint names could not be deleted: %s", error)


class _CarriedRows(KeyedSnapshotResources):
    """Of a view, the states that were restored and are not registered: no file of the engine has them."""

    def __init__(self, view: KeyedView) -> None:
        self.infos = view.carried_infos
        self.key_codec = view.key_codec
        self.groups = view.groups
        self.max_parallelism = view.max_parallelism
        self._view = view

    def rows(self, group: int) -> Iterator[tuple[int, Pairs]]:
        """The states that have rows in a key group."""
        for state_id, info in enumerate(self.infos):
            pairs = self._view.carried_rows(info.name, group)
            if pairs[0]:
                yield state_id, pairs

    def release(self) -> None:
        """The view is its owner's."""


class IncrementalFiles:
    """Keyed state in files of RocksDB, as a restore reads it. Close it when the backend has been made.

    Args:
        document: What names the files.
        storage: Of the checkpoint.
        path: Where the document came from, for messages.
        directory: Where the files are read to, on a disk of this machine; None is that for temporary files.

    Raises:
        SnapshotCorrupt: A file is missing or damaged, or they are not those of one database.
        StoreError: A file cannot be read.
        ConfigError: The directory cannot be made.
    """

    def __init__(
        self, document: IncrementalDocument, storage: CheckpointStorage, path: str, directory: str | None = None
    ) -> None:
        self.path = path
        self.key_kinds = document.key
        self.max_parallelism = document.max_parallelism
        self.groups = KeyGroupRange(document.first_group, document.last_group)
        self._native = document.states
        self._expired_ms = document.expired_ms
        self._carried = None
        if document.carried is not None:
            self._carried = KeyedFile(storage.read_bytes(document.carried), storage.shown(document.carried))
        self.infos = document.states + (() if self._carried is None else self._carried.infos)
        """Name, kind and codecs of each state."""
        read_to = new_directory(directory)
        try:
            with ThreadPoolExecutor(TRANSFER_THREADS) as pool:
                list(pool.map(lambda file: self._fetch(storage, file, read_to), document.files))
            self._files = LinkedFiles(read_to, path)
        except BaseException:
            remove_files(read_to)
            raise

    def rows(self, group: int) -> Iterator[tuple[str, Pairs]]:
        """The states that have rows in a key group: name, rows and values, encoded as in the canonical file.

        Raises:
            SnapshotCorrupt: A row is none of keyed state.
            StoreError: The engine cannot read a row.
        """
        for info in self._native:
            pairs = self._elements(info, group) if info.options["kind"] == "list" else self._cells(info, group)
            if pairs[0]:
                yield info.name, pairs
        if self._carried is not None:
            yield from self._carried.rows(group)

    def close(self) -> None:
        """Close the files and remove them; may be called twice."""
        self._files.close()

    @staticmethod
    def _fetch(storage: CheckpointStorage, file: NativeFile, directory: str) -> None:
        data = storage.read_bytes(file.handle)
        try:
            Path(directory, file.name).write_bytes(data)
        except OSError as error:
            raise StoreError(
                f"state file {storage.shown(file.handle)} cannot be written to {directory}: {error}",
                hint="Name a directory on a disk that has room: read_keyed_files(..., directory='/var/tmp')",
            ) from error

    def _all(self, info: StateMetaInfo, group: int) -> Iterator[tuple[bytes, bytes]]:
        head = group.to_bytes(GROUP_BYTES, "big")
        return ((key[GROUP_BYTES:], data) for key, data in self._files.between(info.name, head, after(head)))

    def _is_live(self, info: StateMetaInfo, data: bytes) -> bool:
        expired_ms = self._expired_ms.get(info.name)
        return expired_ms is None or time_of(data) > expired_ms

    def _cells(self, info: StateMetaInfo, group: int) -> Pairs:
        rows: list[bytes] = []
        values: list[bytes] = []
        for row, data in self._all(info, group):
            if self._is_live(info, data):
                rows.append(row)
                values.append(data)
        return rows, values

    def _elements(self, info: StateMetaInfo, group: int) -> Pairs:
        """The elements of lists, numbered anew, without the rows in front of the lists."""
        rows: list[bytes] = []
        values: list[bytes] = []
        place = 0
        for row, data in self._all(info, group):
            end = end_of_piece(row, end_of_piece(row, 0)[1])[1]
            if end == len(row):
                place = 0
                continue
            if not self._is_live(info, data):
                continue
            rows.append(row[:end] + place.to_bytes(PLACE_BYTES, "big"))
            values.append(data)
            place += 1
        return rows, values
