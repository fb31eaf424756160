"""Checkpoints of one job in a MetadataStore: links, state files, publication marks. Each verb is one file."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from partfile.filesystems.checksums import crc32_of
from partfile.filesystems.errors import AlreadyExists, FileTooLarge, NotApplied, NotFound, SnapshotCorrupt
from partfile.filesystems.memory import MemoryMetadataStore
from partfile.filesystems.opening import open_store
from partfile.snapshot import layout
from partfile.snapshot.codec import decode_document, encode_document, read_document
from partfile.snapshot.model import CheckpointMetadata, FileHandle, InlineHandle
from partfile.snapshot.state_file import decode_states
from partfile.snapshot.storage_settings import DriverMemoryStorageSettings, FileStreamSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from partfile.filesystems.metadata_port import MetadataStore
    from partfile.snapshot.model import StateHandle
    from partfile.snapshot.state_info import States
    from partfile.snapshot.storage_settings import StorageSettings, StreamSettings
    from partfile.snapshot.stream_factory import CheckpointStreamFactory

_LINK_SCHEMA = "checkpoint"


class ListedIds(NamedTuple):
    """The ids of a job, each list ascending."""

    linked: list[int]
    """Those with a link."""
    published_without_link: list[int]
    """Those whose parts have been published and whose link is gone."""


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

    def path(self, name: str) -> str:
        """A path of this job, relative to the base of the store."""
        return layout.below(self.directory, name)

    def stream_factory(self, checkpoint_id: int) -> CheckpointStreamFactory:
        """Opens the streams of one subtask for a checkpoint."""
        return self._streams.factory(self.store, self.directory, checkpoint_id)

    def read_state(self, handle: StateHandle | None) -> States:
        """Return the operator state behind a handle, its elements still encoded; none for None.

        Raises:
            SnapshotCorrupt: The file is missing, damaged or not the one that was written.
            SnapshotVersionError: A newer partfile wrote it.
        """
        if handle is None:
            return {}
        path = "inline state" if isinstance(handle, InlineHandle) else self._shown(handle)
        return decode_states(self.read_bytes(handle), path)

    def read_bytes(self, handle: StateHandle) -> bytes:
        """Return what was written to the stream that a handle came from.

        Raises:
            SnapshotCorrupt: The file is missing, damaged or not the one that was written, or something else is there.
        """
        if isinstance(handle, InlineHandle):
            return handle.data
        shown = self._shown(handle)
        try:
            data = self.store.read_file(self.path(handle.path), handle.size_bytes)
        except NotFound as error:
            raise SnapshotCorrupt(f"state file {shown} is missing", path=shown) from error
        except FileTooLarge as error:
            raise SnapshotCorrupt(f"state file {shown} is not the one the checkpoint names", path=shown) from error
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
            raise SnapshotCorrupt(f"state file {shown} is not the one the checkpoint names", path=shown)
        return data

    def _shown(self, handle: FileHandle) -> str:
        return f"{self.store.base}/{self.path(handle.path)}"

    def create_link(self, metadata: CheckpointMetadata) -> None:
        """Create ``chk-N/_metadata``: the commit point (S1).

        Raises:
            AlreadyExists: Some link is there; it may be this very one, read it back.
            StateTooLarge: Its state together is more than the coordinator may hold; nothing was created.
            OutcomeUnknown: It may be there now.
        """
        self._streams.check_total(metadata)
        path = self.path(layout.metadata_path(metadata.checkpoint_id))
        self.store.create_file(path, encode_document(_LINK_SCHEMA, metadata))

    def read_link(self, checkpoint_id: int) -> CheckpointMetadata | None:
        """Return the link with this id, or None if there is none.

        Raises:
            SnapshotCorrupt: It cannot be read, or belongs to another job or id.
            SnapshotVersionError: A newer partfile wrote it.
        """
        path = self.path(layout.metadata_path(checkpoint_id))
        try:
            data = read_document(self.store, path)
        except NotFound:
            return None
        path = f"{self.store.base}/{path}"
        link = decode_document(_LINK_SCHEMA, CheckpointMetadata, data, path)
        if link.checkpoint_id != checkpoint_id or link.job != self.job:
            raise SnapshotCorrupt(
                f"{path} is checkpoint {link.checkpoint_id} of job {link.job!r}", path=path, checkpoint_id=checkpoint_id
            )
        return link

    def list_links(self) -> list[int]:
        """The ids that have a link, ascending. Lists the job's directory, which retention bounds."""
        return self.list_ids().linked

    def list_ids(self) -> ListedIds:
        """The ids that have a link, and those that lost it. Lists the job's directory and those of its checkpoints."""
        found = ListedIds([], [])
        for number in self._ids():
            names = self._names_of(number)
            if layout.METADATA in names:
                found.linked.append(number)
            elif layout.PUBLISHED in names:
                found.published_without_link.append(number)
        return found

    def newest_linked_id(self) -> int:
        """The highest id that has a link, 0 if none has. Lists the job's directory and, as a rule, one in it."""
        ids = reversed(self._ids())
        return next((number for number in ids if layout.METADATA in self._names_of(number)), 0)

    def _ids(self) -> list[int]:
        ids = [layout.checkpoint_id_of(name) for name in self.store.list_names(self.directory)]
        return sorted(number for number in ids if number is not None)

    def _names_of(self, checkpoint_id: int) -> list[str]:
        # Not whether a file is there: a directory in its place takes the name as well, and must be told.
        return self.store.list_names(self.path(layout.checkpoint_directory(checkpoint_id)))

    def mark_published(self, checkpoint_id: int) -> None:
        """Record that every part of the checkpoint has its final name. Idempotent and durable."""
        try:
            self.store.create_file(self.path(layout.published_path(checkpoint_id)), b"")
        except AlreadyExists:
            return

    def is_published(self, checkpoint_id: int) -> bool:
        """Whether the checkpoint has been marked as published."""
        return self.store.file_exists(self.path(layout.published_path(checkpoint_id)))

    def mark_released(self, checkpoint_id: int) -> None:
        """Record that whoever created the link does no more with the chain. Idempotent and durable."""
        try:
            self.store.create_file(self.path(layout.released_path(checkpoint_id)), b"")
        except AlreadyExists:
            return

    def is_released(self, checkpoint_id: int) -> bool:
        """Whether somebody has recorded that."""
        return self.store.file_exists(self.path(layout.released_path(checkpoint_id)))

    def delete_checkpoint(self, checkpoint_id: int) -> None:
        """Delete a checkpoint: its link first, so that it cannot be restored from once anything of it is gone.

        Idempotent. What rivals left in the same directory goes too: only this link could have named it (S11).
        """
        self.store.delete_file(self.path(layout.metadata_path(checkpoint_id)))
        self.store.delete_directory(self.path(layout.checkpoint_directory(checkpoint_id)))


def open_storage(
    settings: StorageSettings,
    job: str,
    storage_options: Mapping[str, object] | None = None,
    *,
    opener: Callable[[str, Mapping[str, object]], MetadataStore] = open_store,
) -> CheckpointStorage:
    """Open the checkpoints of a job as ``select_storage`` decided.

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
