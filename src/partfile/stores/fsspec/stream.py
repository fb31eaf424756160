"""One part that is being written on a file system of fsspec: on local disk until it is persisted, then sent whole."""

from __future__ import annotations

import os
from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING

from partfile.errors import NotApplied
from partfile.stores.checksums import crc32_of
from partfile.stores.parts import FsspecStaging, OpenStream, part_refused, with_fresh_token

if TYPE_CHECKING:
    from partfile.stores.base import PartHandle
    from partfile.stores.fsspec.client import FsspecAccess


_MEMORY_BYTES = 8 << 20
"""Bytes of a part in memory, before they go to the local disk."""


class FsspecPartStream(OpenStream):
    """An open part.

    A staged file is never written to again. So a part that goes on after a persist is sent once more, under a staged
    name of its own, with all its bytes; a sink rolls instead.

    Args:
        access: The store's files.
        handle: The part, as created.
    """

    def __init__(self, access: FsspecAccess, handle: PartHandle) -> None:
        super().__init__(handle.path_of(handle.name))
        self._access = access
        self._handle = handle
        self._staging: FsspecStaging | None = None
        self._spool = SpooledTemporaryFile(max_size=_MEMORY_BYTES)  # noqa: SIM115 - closed with the stream.
        self._position = 0
        self._crc32 = 0

    @property
    def handle(self) -> PartHandle:
        """The part at the length of the last persist."""
        return self._handle

    @property
    def position(self) -> int:
        """Bytes handed over so far, durable or not."""
        return self._position

    def write(self, data: bytes | memoryview) -> None:
        """Append all of ``data``. A failure poisons the stream."""
        self._check_usable()
        self._failure = "a write failed"
        view = memoryview(data).cast("B")
        try:
            self._spool.seek(0, os.SEEK_END)
            self._spool.write(view)
        except OSError as error:
            raise NotApplied(
                f"part {self._path!r} does not fit on the local disk: {error}",
                hint="Free space in the directory for temporary files, or take another: export TMPDIR=DIRECTORY",
                path=self._path,
            ) from error
        self._crc32 = crc32_of(view, self._crc32)
        self._position += view.nbytes
        self._failure = ""

    def persist(self) -> PartHandle:
        """Send the part, unless that is done. A failure poisons the stream."""
        self._check_usable()
        if self._staging is None or self._position != self._handle.valid_length:
            self._send(self._handle.in_progress)
        return self._handle

    def close_for_commit(self) -> PartHandle:
        """Persist and end. The staged file of an earlier persist stays under its name, for no task ever opens one."""
        self._check_usable()
        if self._staging is None:
            self._send(self._handle.pending)
        elif self._position != self._handle.valid_length:
            self._send(self._handle.in_progress)
        else:
            self.verify()
        self._release()
        return self._handle

    def verify(self) -> None:
        """Check that the staged file is still there."""
        self._check_usable()
        if self._staging is not None and self._access.info(self._handle.path_of(self._staging.file)) is None:
            raise part_refused(self._handle, "its staged file is gone")

    def close(self) -> None:
        """Let go of what was not persisted."""
        if self._is_ours_to_close:
            self._release()

    def _send(self, name: str) -> None:
        self._failure = "persisting it failed"
        handle, spent = self._handle, tuple[str, ...]()
        if self._staging is not None:
            handle = with_fresh_token(handle)
            name = handle.in_progress
            spent = (*self._staging.spent, self._staging.file)
        self._access.upload(handle.path_of(name), self._spool)
        self._staging = FsspecStaging(file=name, crc32=self._crc32, spent=spent)
        self._handle = self._staging.added_to(handle, self._position)
        self._failure = ""

    def _release(self) -> None:
        self._is_closed = True
        self._spool.close()
