"""One client of an S3 server: whose turn it is, and when a request that is under way is given up.

A request runs on the client's event loop while its caller waits. Where nothing moves any more it is cancelled there,
which closes its connection: it is not done later, and keeps no connection from others.
"""

from __future__ import annotations

import asyncio
import io
import threading
import time
from concurrent.futures import wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from s3fs import S3FileSystem

    from partfile.filesystems.backoff import Backoff
    from partfile.filesystems.s3_options import S3Options

Result = TypeVar("Result")
LEAST_BYTES_A_S = 32 << 10
"""A request that moves bytes more slowly than this is given up as if it moved none."""


BUFFERED_BYTES = 4 << 20
"""What the sockets of one connection hold, at most."""


class GivenUp(Exception):
    """Nothing moved for too long, or too little. The request has been cancelled, and may have been done."""


class NoTurn(Exception):
    """As many other requests as may be are under way, and none of them gets on."""


class Progress:
    """Bytes of one request that have moved; noted by the event loop's thread, read by the one that waits.

    Args:
        timeout_s: How long nothing may move, in seconds.
        on_move: Gets the time of each move.
    """

    def __init__(self, timeout_s: float, on_move: Callable[[float], object]) -> None:
        self._timeout_s = timeout_s
        self._on_move = on_move
        self._first_s = self._began_s = self._moved_at_s = time.monotonic()
        self._moved_bytes = 0

    def moved(self, count_bytes: int) -> None:
        """Note that so many bytes have been sent or received."""
        self._moved_bytes += count_bytes
        self._moved_at_s = time.monotonic()
        self._on_move(self._moved_at_s)

    def begin_again(self) -> None:
        """Count from zero: so far the body was only looked at, to sign it."""
        self._began_s, self._moved_bytes = time.monotonic(), 0

    @property
    def moving_s(self) -> float:
        """Seconds between the beginning and the last byte that moved, what the client repeats by itself included."""
        return self._moved_at_s - self._first_s

    @property
    def left_s(self) -> float:
        """Seconds until the request is given up if nothing more moves, never negative."""
        # What seems to have been sent stands in buffers in part, for as long as that many bytes have taken before.
        share = min(1.0, BUFFERED_BYTES / max(1, self._moved_bytes))
        drained_at_s = self._moved_at_s + share * max(0.0, self._moved_at_s - self._began_s)
        slowest_s = self._began_s + self._moved_bytes / LEAST_BYTES_A_S
        return max(0.0, min(drained_at_s, slowest_s) + self._timeout_s - time.monotonic())


class MovingBody(io.BytesIO):
    """A body that tells how much of it the client has taken.

    Args:
        data: The bytes.
        progress: Told.
    """

    def __init__(self, data: bytes, progress: Progress) -> None:
        super().__init__(data)
        self._progress = progress

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """See ``io.BytesIO.seek``."""
        if (offset, whence) == (0, 0):
            self._progress.begin_again()
        return super().seek(offset, whence)

    def read(self, size: int | None = -1, /) -> bytes:
        """See ``io.BytesIO.read``."""
        data = super().read(size)
        if data:
            self._progress.moved(len(data))
        return data


class S3Client:
    """Requests of one process with the same settings. May be shared between threads.

    Args:
        files: The client of s3fs, on an event loop of ours.
        options: How long to wait, and how many requests may be under way.
    """

    def __init__(self, files: S3FileSystem, options: S3Options) -> None:
        self.files = files
        self._slots = threading.BoundedSemaphore(options.max_parallel_requests)
        self._mine = threading.local()
        self._moved_at_s = time.monotonic()

    @contextmanager
    def turn(self, backoff: Backoff, timeout_s: float) -> Iterator[None]:
        """Wait until one more request may be under way; this thread's requests then end with the deadline.

        While other requests get on, waiting for them does not count; nor does, for a few attempts, the time in which
        bytes of this one have moved.

        Args:
            backoff: Its deadline is that of the call; one attempt ends before it if nothing moves.
            timeout_s: Longest time without a byte of an attempt, in seconds.

        Raises:
            NoTurn: The others do not get on either.
        """
        began_s, limit_s = time.monotonic(), _limit_s(backoff, timeout_s)
        while not self._slots.acquire(timeout=limit_s):
            if time.monotonic() - self._moved_at_s > limit_s:
                raise NoTurn
        try:
            if self._moved_at_s > began_s:
                backoff.postpone(time.monotonic() - began_s)
            self._mine.timeout_s, self._mine.moving_s = _limit_s(backoff, timeout_s), 0.0
            yield
        finally:
            self._slots.release()
            backoff.excuse(self._mine.moving_s)

    def run(self, ask: Callable[[Progress], Coroutine[Any, Any, Result]]) -> Result:
        """Run a request on the event loop and wait for it.

        Args:
            ask: Makes the request, and notes what moves.

        Raises:
            GivenUp: As it says.
        """
        progress = Progress(self._mine.timeout_s, self._note)
        future = asyncio.run_coroutine_threadsafe(ask(progress), self.files.loop)
        try:
            while not wait([future], progress.left_s).done:
                if progress.left_s <= 0:
                    raise GivenUp
        finally:
            # Whoever interrupts the wait gives the request up as well.
            future.cancel()
            self._mine.moving_s += progress.moving_s
        result = future.result()
        self._note(time.monotonic())
        return result

    def _note(self, moved_at_s: float) -> None:
        self._moved_at_s = moved_at_s


def _limit_s(backoff: Backoff, timeout_s: float) -> float:
    return max(0.001, min(backoff.left_s, timeout_s))
