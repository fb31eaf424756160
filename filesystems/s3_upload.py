"""Upload parts of one part on S3 that are on their way, several at a time."""

from __future__ import annotations

from collections import deque
from concurrent.futures import FIRST_COMPLETED, wait
from functools import partial
from typing import TYPE_CHECKING

from partfile.filesystems.s3_process import this_process
from partfile.filesystems.s3_staging import Piece

if TYPE_CHECKING:
    from concurrent.futures import Future

    from partfile.filesystems.s3_access import S3Access
    from partfile.filesystems.s3_staging import S3Staging

_AT_ONCE = 4


class PieceSender:
    """Sends upload parts in the background and gives them back in their order.

    Args:
        access: The store's objects.
        path: Final path of the part.
        upload: Id of its upload.
    """

    def __init__(self, access: S3Access, path: str, upload: str) -> None:
        self.upload = upload
        self._access = access
        self._path = path
        self._under_way: deque[Future[Piece]] = deque()
        self._sent: list[Piece] = []

    def send(self, number: int, data: bytes, staging: S3Staging) -> None:
        """Begin to send; waits for one of those under way while there are four, and raises what sending one raised.

        Args:
            number: Of the upload part.
            data: Its bytes, which nobody changes any more.
            staging: What the part is made of so far.
        """
        running = [future for future in self._under_way if not future.done()]
        if len(running) >= _AT_ONCE:
            wait(running, return_when=FIRST_COMPLETED)
        while self._under_way and self._under_way[0].done():
            self._sent.append(self._under_way.popleft().result())
        self._under_way.append(this_process().pool.submit(partial(self._send, number, data, staging)))

    def wait(self) -> list[Piece]:
        """Wait until all have been acknowledged, and hand them over."""
        while self._under_way:
            self._sent.append(self._under_way.popleft().result())
        sent, self._sent = self._sent, []
        return sent

    def abandon(self) -> None:
        """Send no more of what has not begun."""
        for future in self._under_way:
            future.cancel()

    def _send(self, number: int, data: bytes, staging: S3Staging) -> Piece:
        crc32 = staging.checksum_of(data, sends_checksums=self._access.options.sends_checksums)
        etag = self._access.upload_part(self._path, self.upload, number, data, crc32)
        return Piece(number=number, etag=etag, size_bytes=len(data), crc32=crc32)
