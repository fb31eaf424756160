"""Upload parts of one part on S3 that are on their way, several at a time."""

from __future__ import annotations

from collections import deque
from concurrent.futures import FIRST_COMPLETED, wait
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from partfile.filesystems.s3_process import this_process
from partfile.filesystems.s3_staging import Piece

if TYPE_CHECKING:
    from concurrent.futures import Future

    from partfile.filesystems.s3_access import S3Access
    from partfile.filesystems.s3_buffers import BufferBudget
    from partfile.filesystems.s3_staging import S3Staging

_AT_ONCE = 4


class _Sending(NamedTuple):
    future: Future[Piece]
    size_bytes: int


class PieceSender:
    """Sends upload parts in the background and gives them back in their order.

    Args:
        access: The store's objects.
        path: Final path of the part.
        upload: Id of its upload.
        budget: What is on its way counts in it.
    """

    def __init__(self, access: S3Access, path: str, upload: str, budget: BufferBudget) -> None:
        self.upload = upload
        self._access = access
        self._path = path
        self._budget = budget
        self._under_way: deque[_Sending] = deque()
        self._sent: list[Piece] = []

    def send(self, number: int, data: bytes, staging: S3Staging) -> None:
        """Begin to send; waits for one of those under way while there are four, and raises what sending one raised.

        Waits for all of them while too many bytes are held.

        Args:
            number: Of the upload part.
            data: Its bytes, which nobody changes any more.
            staging: What the part is made of so far.
        """
        self._budget.change(len(data))
        try:
            self._make_room(len(data))
            future = this_process().pool.submit(partial(self._send, number, data, staging))
        except BaseException:
            self._budget.change(-len(data))
            raise
        # Done is also what was cancelled.
        future.add_done_callback(partial(_give_back, self._budget, len(data)))
        self._under_way.append(_Sending(future, len(data)))

    @property
    def under_way_bytes(self) -> int:
        """Bytes that S3 does not have yet."""
        return sum(sending.size_bytes for sending in self._running)

    def let_go(self) -> None:
        """Wait until nothing is on its way; what sending it raised is raised later."""
        wait([sending.future for sending in self._under_way])

    def wait(self) -> list[Piece]:
        """Wait until all have been acknowledged, and hand them over."""
        while self._under_way:
            self._sent.append(self._under_way.popleft().future.result())
        sent, self._sent = self._sent, []
        return sent

    def abandon(self) -> None:
        """Send no more of what has not begun."""
        for sending in self._under_way:
            sending.future.cancel()

    @property
    def _running(self) -> list[_Sending]:
        return [sending for sending in self._under_way if not sending.future.done()]

    def _make_room(self, size_bytes: int) -> None:
        if self._budget.must_let_go(self.under_way_bytes + size_bytes):
            self.let_go()
        elif len(running := self._running) >= _AT_ONCE:
            wait([sending.future for sending in running], return_when=FIRST_COMPLETED)
        while self._under_way and self._under_way[0].future.done():
            self._sent.append(self._under_way.popleft().future.result())

    def _send(self, number: int, data: bytes, staging: S3Staging) -> Piece:
        crc32 = staging.checksum_of(data, sends_checksums=self._access.options.sends_checksums)
        etag = self._access.upload_part(self._path, self.upload, number, data, crc32)
        return Piece(number=number, etag=etag, size_bytes=len(data), crc32=crc32)


def _give_back(budget: BufferBudget, size_bytes: int, _sent: Future[Piece]) -> None:
    budget.change(-size_bytes)
