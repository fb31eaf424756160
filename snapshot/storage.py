"""Checkpoints of one job in a MetadataStore: links, state files, publication marks. Each verb is one file."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from partfile.filesystems.errors import AlreadyExists, NotFound, SnapshotCorrupt
from partfile.filesystems.tokens import new_token
from partfile.snapshot import layout
from partfile.snapshot.codec import MAX_DOCUMENT_BYTES, decode_document, encode_document
from partfile.snapshot.model import (
    CheckpointMetadata,
    FileHandle,
    InlineHandle,
    StateHandle,
    States,
)

if TYPE_CHECKING:
    from partfile.filesystems.port import MetadataStore

INLINE_THRESHOLD_BYTES = 20 * 1024
MAX_INLINE_THRESHOLD_BYTES = 1 << 20
_LINK_SCHEMA = "checkpoint"
_STATE_SCHEMA = "state"


class CheckpointStorage:
    """The directory of one job: ``chk-N/_metadata``, state files, ``shared/`` and ``taskowned/``.

    Args:
        store: Where the files are.
        job: The job's uid; also the directory below the base of ``store``.
        inline_threshold_bytes: State of at most this size travels inline, larger state gets a file of its own.
    """

    def __init__(self, store: MetadataStore, job: str, *, inline_threshold_bytes: int = INLINE_THRESHOLD_BYTES) -> None:
        if not 0 <= inline_threshold_bytes <= MAX_INLINE_THRESHOLD_BYTES:
            raise ValueError(
                f"inline_threshold_bytes is {inline_threshold_bytes}; allowed are 0 to {MAX_INLINE_THRESHOLD_BYTES}"
            )
        self.store = store
        self.job = job
        self._inline_threshold_bytes = inline_threshold_bytes

    def path(self, name: str) -> str:
        """A path of this job, relative to the base of the store."""
        return f"{self.job}/{name}"

    def write_state(self, checkpoint_id: int, states: States) -> StateHandle:
        """Keep ``states`` for one checkpoint: inline if small, else in a new file of its directory.

        Durability: a file is durable before its handle exists. Idempotence: none; each call writes a new file, and one
        that no link comes to name is deleted together with the directory.
        """
        inline = InlineHandle(states=states)
        data = encode_document(_STATE_SCHEMA, inline)
        if len(data) <= self._inline_threshold_bytes:
            return inline
        name = layout.state_path(checkpoint_id, new_token())
        self.store.create_file(self.path(name), data)
        return FileHandle(path=name, size_bytes=len(data), crc32=zlib.crc32(data))

    def read_state(self, handle: StateHandle) -> States:
        """Return the states behind a handle.

        Raises:
            SnapshotCorrupt: The file is missing, damaged or not the one that was written.
        """
        if isinstance(handle, InlineHandle):
            return handle.states
        path = self.path(handle.path)
        try:
            data = self.store.read_file(path, handle.size_bytes)
        except NotFound as error:
            raise SnapshotCorrupt(f"state file {path} is missing", path=path) from error
        if len(data) != handle.size_bytes or zlib.crc32(data) != handle.crc32:
            raise SnapshotCorrupt(f"state file {path} is not the one the checkpoint names", path=path)
        return decode_document(_STATE_SCHEMA, InlineHandle, data, path).states

    def create_link(self, metadata: CheckpointMetadata) -> None:
        """Create ``chk-N/_metadata``: the commit point (S1).

        Raises:
            AlreadyExists: Some link is there; it may be this very one, read it back.
            OutcomeUnknown: It may be there now.
        """
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
            data = self.store.read_file(path, MAX_DOCUMENT_BYTES)
        except NotFound:
            return None
        link = decode_document(_LINK_SCHEMA, CheckpointMetadata, data, path)
        if link.checkpoint_id != checkpoint_id or link.job != self.job:
            raise SnapshotCorrupt(
                f"{path} is checkpoint {link.checkpoint_id} of job {link.job!r}", path=path, checkpoint_id=checkpoint_id
            )
        return link

    def list_links(self) -> list[int]:
        """The ids that have a link, ascending. Lists the job's directory, which retention bounds."""
        ids = [layout.checkpoint_id_of(name) for name in self.store.list_names(self.job)]
        return sorted(
            number
            for number in ids
            if number is not None and self.store.file_exists(self.path(layout.metadata_path(number)))
        )

    def mark_published(self, checkpoint_id: int) -> None:
        """Record that every part of the checkpoint has its final name. Idempotent and durable."""
        try:
            self.store.create_file(self.path(layout.published_path(checkpoint_id)), b"")
        except AlreadyExists:
            return

    def is_published(self, checkpoint_id: int) -> bool:
        """Whether the checkpoint has been marked as published."""
        return self.store.file_exists(self.path(layout.published_path(checkpoint_id)))

    def delete_checkpoint(self, checkpoint_id: int) -> None:
        """Delete a checkpoint: its link first, so that it cannot be restored from once anything of it is gone.

        Idempotent. What rivals left in the same directory goes too: only this link could have named it (S11).
        """
        self.store.delete_file(self.path(layout.metadata_path(checkpoint_id)))
        self.store.delete_directory(self.path(layout.checkpoint_directory(checkpoint_id)))
