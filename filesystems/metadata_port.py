"""The port to storage for checkpoints: small whole files; the contract is in the docstrings.

Every path is relative to the base of the store, with ``/`` between segments and no ``..``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator


class MetadataStore(Protocol):
    """Checkpoint metadata and state: files that are created whole, read whole and deleted, and locked markers."""

    @property
    def base(self) -> str:
        """The base as a URL or an absolute path, for messages."""

    def create_file(self, path: str, data: bytes) -> None:
        """Create a file with ``data``, exclusively and whole or not at all, with its directories.

        The commit point of a checkpoint (S1). Atomicity: no reader ever sees a prefix. Durability: when it returns,
        the file and its name survive power loss. Local: temporary file, fsync, link, directory fsync.

        Raises:
            AlreadyExists: The name is taken; nothing was written. It may be our own earlier attempt: read it back.
            OutcomeUnknown: It may or may not be there now.
        """

    def read_file(self, path: str, max_bytes: int) -> bytes:
        """Read a whole file.

        Raises:
            NotFound: It is not there.
            FileTooLarge: It is longer than ``max_bytes``.
            StoreError: It cannot be read.
        """

    def file_exists(self, path: str) -> bool:
        """Whether a file is there now."""

    def list_names(self, directory: str) -> list[str]:
        """The names directly in a directory, files and directories alike; empty if it is not there.

        Durability: what is listed survives power loss, whoever created it: a start builds on the links that it finds.
        """

    def delete_file(self, path: str) -> None:
        """Delete one file by its literal name. Idempotence: absent counts as done."""

    def delete_directory(self, directory: str) -> None:
        """Delete a directory and the files directly in it. Idempotence: absent counts as done."""

    def hold_marker(self, path: str) -> bool:
        """Hold the lock of the marker file at ``path`` (created if need be) until the store is closed (S13).

        Returns:
            Whether this store holds it now; False when another process does.
        """

    def marker_is_held(self, path: str) -> bool:
        """Whether somebody holds the marker: proof that this process shares a file system with real locks.

        Raises:
            NotFound: The marker is not visible from here: this is not the coordinator's file system.
        """

    @property
    def markers_are_locks(self) -> bool:
        """Whether a marker that is held cannot be held by another process as well; else it only shows one place."""

    def hazards(self, *, now_ms: int, longest_open_s: float) -> Iterator[str]:
        """What about the place can hurt a sink that writes there, in sentences, for its start. May ask the store.

        Args:
            now_ms: This host's time, in milliseconds since the epoch.
            longest_open_s: How long a part can stay open, in seconds.
        """

    def close(self) -> None:
        """Release markers and connections; delete nothing."""
