"""Incremental snapshots of keyed state in RocksDB: files that a snapshot before has written are not written again.

The synchronous part writes all rows to files and links these into a directory of the snapshot. The asynchronous part
writes those that are new to ``shared/``, and the engine's lists of them to ``chk-N``. The engine never changes a file,
and gives none of its files the name of another. So the file of a name is that which an earlier snapshot has written.

A file is written once. From then on each snapshot names the same handle for it, as long as the engine has it. So all
checkpoints from the first to the last that need a file name it, but for savepoints, and none deletes it under another.

The snapshot's handle is that of one document, which names all files and says what is in them.

Source: Flink's ``RocksIncrementalSnapshotStrategy``, as of 1.20.
"""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING

from partfile.errors import ConfigError, FileTooLarge, NotFound, SnapshotCancelled, StoreError
from partfile.snapshot.keyed.backend import ForkLock
from partfile.snapshot.keyed.keyed_file import KeyedSnapshotResources
from partfile.snapshot.keyed.pieces import DEFAULT_PIECE_BYTES, check_piece_bytes, keep_in_pieces
from partfile.snapshot.keyed.rocksdb.backend import RocksDBBackend
from partfile.snapshot.keyed.rocksdb.database import ANOTHER_DISK, remove_files
from partfile.snapshot.keyed.rocksdb.files import TRANSFER_THREADS
from partfile.snapshot.keyed.shared_files import SORTED_FILES, IncrementalDocument, NativeFile, encode_incremental
from partfile.snapshot.keyed.strategy import KeyedStateWriter, check_local, writing_keyed_state
from partfile.snapshot.storage import CheckpointStorage
from partfile.snapshot.strategy import EMPTY, SnapshotResult, abort_copies_with, discard_logged
from partfile.snapshot.streams import Scope

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partfile.snapshot.documents import FileHandle, StateHandle
    from partfile.snapshot.keyed.backend import KeyedView
    from partfile.snapshot.keyed.keyed_file import Pairs
    from partfile.snapshot.keyed.rocksdb.files import OpenedFiles
    from partfile.snapshot.local_state import LocalStateStore
    from partfile.snapshot.strategy import CloseableRegistry, SnapshotOptions, Supplier
    from partfile.snapshot.streams import CheckpointStreamFactory


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
        local: Where links to the files of each checkpoint stay on this machine, for a faster restore; None keeps none.
            It has to be on the disk of the database.
        piece_bytes: About the size of the canonical files of a savepoint, in bytes.
        claims: The storage of this job's checkpoints. Where the backend was opened from a checkpoint in it, the first
            snapshot names the files of that checkpoint, and does not write them again. Then every checkpoint of the
            subtask has to be this strategy's, and ``SharedFiles`` has to be told of the restored one. None claims
            nothing: the first snapshot writes all files.

    Raises:
        ConfigError: The backend is not on RocksDB, ``piece_bytes`` is not from 1 to less than 255 MiB, or an argument
            is of another kind.
    """

    def __init__(
        self,
        backend: RocksDBBackend,
        local: LocalStateStore | None = None,
        piece_bytes: int = DEFAULT_PIECE_BYTES,
        *,
        claims: CheckpointStorage | None = None,
    ) -> None:
        if not isinstance(backend, RocksDBBackend):
            raise ConfigError(
                f"{backend!r} is no backend on RocksDB, whose files incremental snapshots are",
                hint="Take full ones of it: KeyedStateStrategy(backend)",
            )
        place: object = claims
        if place is not None and not isinstance(place, CheckpointStorage):
            raise ConfigError(
                f"claims={claims!r:.50} is no storage of checkpoints",
                hint="Give that of this job: claims=CheckpointStorage(store, JOB)",
            )
        self._backend = backend
        self._local = check_local(local)
        self._piece_bytes = check_piece_bytes(piece_bytes)
        self._claimed = _claimable(backend.hand_over_files(), claims)
        """Of the restored checkpoint, until the first snapshot."""
        self._files: dict[str, _Written] = {}
        self._lock = ForkLock()
        # Two snapshots that write at the same time would each write the same file, and name another.
        self._is_writing = ForkLock()

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
            return writing_keyed_state(resources, self._piece_bytes, KeyedStateWriter(checkpoint_id, streams, options))
        if not resources.view.infos:
            return lambda _registry: EMPTY

        def write(registry: CloseableRegistry) -> SnapshotResult:
            with self._is_writing:
                names = set(resources.names())
                self._claim(names)
                known = self._known(names, streams)
                result, files = _Upload(streams, registry, self._piece_bytes).incremental(resources, known)
                with self._lock:
                    for name, handle in files.items():
                        if name.endswith(SORTED_FILES):
                            self._files.setdefault(name, _Written(handle)).undecided.add(checkpoint_id)
                if self._local is not None:
                    linked = Path(resources.directory)
                    self._local.link(checkpoint_id, [(handle, str(linked / name)) for name, handle in files.items()])
                    abort_copies_with(registry, self._local, checkpoint_id)
            logger.info(
                "checkpoint %d: of %d bytes of keyed state %d were written",
                checkpoint_id,
                result.full_bytes,
                result.written_bytes,
            )
            return result

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

    def _claim(self, names: set[str]) -> None:
        """Take over the files of the restored checkpoint that are whole in the storage that is claimed.

        The restore may have read links, or another storage whose address is the same.
        """
        opened, self._claimed = self._claimed, None
        if opened is None:
            return
        storage, handles = opened
        found = {
            name: _Written(handle) for name, handle in handles.items() if name in names and _is_in(storage, handle)
        }
        for file in found.values():
            # By the restored checkpoint.
            file.may_be_named = True
        with self._lock:
            self._files |= found

    def _known(self, names: set[str], streams: CheckpointStreamFactory) -> dict[str, StateHandle]:
        """The files that need not be written. Those that the engine has replaced are forgotten."""
        with self._lock:
            gone = {name: file for name, file in self._files.items() if name not in names and not file.undecided}
            for name in gone:
                del self._files[name]
            known = {name: file.handle for name, file in self._files.items()}
        for file in gone.values():
            if not file.may_be_named:
                discard_logged(streams, file.handle)
        return known


def _claimable(opened: OpenedFiles | None, claims: CheckpointStorage | None) -> OpenedFiles | None:
    if opened is None or claims is None:
        return None
    places = [(storage.store.base, storage.directory) for storage in (opened.storage, claims)]
    if places[0] != places[1]:
        logger.info(
            "the files of the restored checkpoint are written again: they are in %s/%s, not in %s/%s",
            *places[0],
            *places[1],
        )
        return None
    return opened._replace(storage=claims)


def _is_in(storage: CheckpointStorage, handle: FileHandle) -> bool:
    """Whether a file is there with all its bytes. None of them is read where it is: a store looks at the length first.

    A file is created whole under a name of its own, so that one of this name and length is this one.
    """
    path = storage.path(handle.path)
    here = storage.store.local_path(path)
    if here is not None:
        try:
            found = Path(here).stat()
        except OSError:
            # What cannot be looked at is written again.
            return False
        return S_ISREG(found.st_mode) and found.st_size == handle.size_bytes
    try:
        storage.store.read_file(path, handle.size_bytes - 1)
    except FileTooLarge:
        return True
    except NotFound:
        pass
    return False


class _Upload:
    """Writes the files of one snapshot; where it fails or is cancelled, what it has written is deleted.

    Args:
        streams: Keep what is written.
        registry: Says that the snapshot is cancelled.
        piece_bytes: About the size of the canonical files of states that are carried on, in bytes.
    """

    def __init__(self, streams: CheckpointStreamFactory, registry: CloseableRegistry, piece_bytes: int) -> None:
        self._streams = streams
        self._registry = registry
        self._piece_bytes = piece_bytes
        self._written: list[StateHandle] = []
        self._own: list[StateHandle] = []
        """Of these, what no other snapshot names."""

    def incremental(
        self, resources: LinkedView, known: dict[str, StateHandle]
    ) -> tuple[SnapshotResult, dict[str, StateHandle]]:
        """Write what is new.

        Returns:
            The result with the handle of the document, and those of all files by name.
        """
        try:
            return self._incremental(resources, known)
        except BaseException:
            self._discard()
            raise

    def _incremental(
        self, resources: LinkedView, known: dict[str, StateHandle]
    ) -> tuple[SnapshotResult, dict[str, StateHandle]]:
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
            carried=keep_in_pieces(carried, self._piece_bytes, self._keep_own) if carried.infos else None,
        )
        # What is in ``shared/`` stays for later snapshots, also where this one is given up from here on.
        pieces = tuple(self._own)
        beside_bytes = sum(handle.size_bytes for handle in self._written) - sum(one.size_bytes for one in pieces)
        known_bytes = sum(files[name].size_bytes for name in names if name in known)
        primary = self._keep_own(encode_incremental(document))
        result = SnapshotResult(primary, pieces=pieces, beside_bytes=beside_bytes, known_bytes=known_bytes)
        return result, {name: files[name] for name in names}

    def _keep_file(self, path: Path) -> StateHandle:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise StoreError(f"RocksDB's file {path} cannot be read: {error}", hint=ANOTHER_DISK) from error
        return self._keep(data, Scope.SHARED if path.suffix == SORTED_FILES else Scope.EXCLUSIVE)

    def _keep_own(self, data: bytes) -> StateHandle:
        return self._keep(data, Scope.EXCLUSIVE)

    def _keep(self, data: bytes, scope: Scope) -> StateHandle:
        self._check()
        handle = self._streams.keep(data, scope)
        self._written.append(handle)
        if scope is Scope.EXCLUSIVE:
            self._own.append(handle)
        # Once more, for the last one: what is cancelled from here on is aborted by its coordinator.
        self._check()
        return handle

    def _check(self) -> None:
        if self._registry.closed:
            raise SnapshotCancelled("the snapshot was cancelled while its files were written")

    def _discard(self) -> None:
        for handle in self._written:
            discard_logged(self._streams, handle)


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
