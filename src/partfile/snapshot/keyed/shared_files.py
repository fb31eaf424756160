"""Files of incremental snapshots, which several checkpoints may name: their document, and when they are deleted.

Source: Flink's ``IncrementalRemoteKeyedStateHandle`` and ``SharedStateRegistryImpl``, as of 1.20.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, model_validator

from partfile.errors import StateTooLarge
from partfile.snapshot.documents import (
    SHARED,
    FileHandle,
    StateHandle,
    check_handles,
    decode_document,
    encode_document,
)
from partfile.snapshot.keyed.descriptors import is_keyed_state
from partfile.snapshot.keyed.keys import MAX_PARALLELISM
from partfile.snapshot.piece_list import INCREMENTAL
from partfile.snapshot.state_file import MAX_STATES, StateMetaInfo
from partfile.stores.base import Persisted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from partfile.snapshot.storage import CheckpointStorage


_HEAD = f"partfile {INCREMENTAL} ".encode()
MAX_INCREMENTAL_BYTES = 16 << 20
"""Of a document: some 60 000 files."""
SORTED_FILES = ".sst"
"""The ending of files with rows; the engine never changes one."""


class NativeFile(Persisted):
    """One file of the engine."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,100}$")]
    """That the engine gave it."""
    handle: StateHandle


class IncrementalDocument(Persisted):
    """All files of one subtask's keyed state in RocksDB, and what is in them."""

    key: Annotated[tuple[str, ...], Field(min_length=1)]
    """The kinds of the keys."""
    max_parallelism: Annotated[int, Field(ge=1, le=MAX_PARALLELISM)]
    first_group: Annotated[int, Field(ge=0, lt=MAX_PARALLELISM)]
    last_group: Annotated[int, Field(ge=0, lt=MAX_PARALLELISM)]
    states: Annotated[tuple[StateMetaInfo, ...], Field(max_length=MAX_STATES)]
    """Of the column families. Each has the rows of one state."""
    expired_ms: dict[str, int]
    """Of states that expire, by name: values of this time or before had expired, and are not of the snapshot."""
    files: tuple[NativeFile, ...]
    carried: StateHandle | None
    """The canonical file of the states that were restored and are not registered; None if there are none."""

    @model_validator(mode="after")
    def _is_of_one_subtask(self) -> Self:
        if not self.first_group <= self.last_group < self.max_parallelism:
            raise ValueError("its key groups are not those of one subtask")
        if len({info.name for info in self.states}) < len(self.states) or not all(map(is_keyed_state, self.states)):
            raise ValueError("its states are not those of one subtask")
        if self.expired_ms.keys() != {info.name for info in self.states if info.options["expires"] == "yes"}:
            raise ValueError("it does not say of which states values expire")
        if len({file.name for file in self.files}) < len(self.files):
            raise ValueError("it names a file twice")
        if elsewhere := [file.path for file in self.shared_files() if not file.path.startswith(f"{SHARED}/")]:
            raise ValueError(f"it names {elsewhere[0]} as a file of several checkpoints (R11)")
        return self

    def shared_files(self) -> tuple[FileHandle, ...]:
        """The files in ``shared/``, which other checkpoints may name too."""
        handles = (file.handle for file in self.files if file.name.endswith(SORTED_FILES))
        return tuple(handle for handle in handles if isinstance(handle, FileHandle))


def is_incremental(data: bytes) -> bool:
    """Whether bytes are those of the document of an incremental snapshot."""
    return data.startswith(_HEAD)


def encode_incremental(document: IncrementalDocument) -> bytes:
    """The document as bytes.

    Raises:
        StateTooLarge: The database has so many files that the document is larger than any reader takes for one.
    """
    data = encode_document(INCREMENTAL, document)
    if len(data) > MAX_INCREMENTAL_BYTES:
        raise StateTooLarge(
            f"the list of {len(document.files)} files of RocksDB has {len(data)} bytes, more than "
            f"{MAX_INCREMENTAL_BYTES}",
            hint="Have the engine write larger files: RocksDBOptions(target_file_bytes=256 << 20)",
        )
    return data


def decode_incremental(data: bytes, path: str) -> IncrementalDocument:
    """The document of an incremental snapshot.

    Raises:
        SnapshotCorrupt: It is damaged.
        SnapshotVersionError: It was written in another format version.
    """
    return decode_document(INCREMENTAL, IncrementalDocument, data, path)


class SharedFiles:
    """Which checkpoint named each file in ``shared/`` last.

    A file is deleted when no retained checkpoint names it, and a later incremental one does without it (R11). Until
    such a one is complete, the next may name the file again: savepoints between the two are checkpoints of the log and
    name no file of the engine. Where a job takes no incremental snapshot any more, the last files stay until it ends.

    A file that no checkpoint was registered with is never deleted here (R6): a snapshot under way may name it. After a
    restart, register all retained checkpoints first.

    Args:
        storage: Of the job.
    """

    def __init__(self, storage: CheckpointStorage) -> None:
        self._storage = storage
        self._named_last: dict[str, int] = {}
        self._newest_incremental = 0
        """Files that this one does not name are named by none that comes."""

    def register(self, checkpoint_id: int, handles: Iterable[StateHandle]) -> None:
        """Take note of the files that a checkpoint names. Idempotent, and in any order of ids.

        All subtasks' handles have to be known before the next release. What is larger than a document of an incremental
        snapshot is not read. Where this raises, nothing of the call is known.

        Args:
            checkpoint_id: A checkpoint that is complete.
            handles: What it names as keyed state.

        Raises:
            SnapshotCorrupt: A document is missing or damaged.
            SnapshotVersionError: It was written in another format version.
            StoreError: It cannot be read.
            ConfigError: A handle is none.
        """
        found = [
            decode_incremental(data, self._storage.shown(handle))
            for handle in check_handles(handles)
            if handle.size_bytes <= MAX_INCREMENTAL_BYTES and is_incremental(data := self._storage.read_bytes(handle))
        ]
        for document in found:
            self._newest_incremental = max(checkpoint_id, self._newest_incremental)
            for file in document.shared_files():
                self._named_last[file.path] = max(checkpoint_id, self._named_last.get(file.path, 0))

    def release(self, oldest_id: int) -> list[str]:
        """Delete the files that neither a retained checkpoint nor the newest incremental one names. Idempotent.

        Args:
            oldest_id: The oldest retained checkpoint; those before it are deleted already.

        Returns:
            Their paths, relative to the job's directory.

        Raises:
            StoreError: One cannot be deleted; the next call deletes it.
        """
        deleted = []
        # Without the second number a savepoint would free the files that the next checkpoint names again.
        first_kept_id = min(oldest_id, self._newest_incremental)
        for path in [path for path, checkpoint_id in self._named_last.items() if checkpoint_id < first_kept_id]:
            self._storage.store.delete_file(self._storage.path(path))
            del self._named_last[path]
            deleted.append(path)
        return deleted
