"""How many bytes the open parts of one S3 store hold in memory."""

from __future__ import annotations

import threading


class BufferBudget:
    """Bytes that all streams of a store hold, against what they may.

    What is on its way to S3 counts until S3 has it. Who is over an even share while all together hold too much has to
    let go of what he holds, and to wait until it has gone, so that together they never hold more than twice as much as
    they may, besides the upload part that is being made of what each thread writes. Thread safe.

    Args:
        max_bytes: How many bytes all may hold.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._held_bytes = 0
        self._streams = 0

    def join(self) -> None:
        """One more stream shares."""
        with self._lock:
            self._streams += 1

    def leave(self, held_bytes: int) -> None:
        """A stream that holds so many bytes, besides those on their way, gives them and its share back."""
        with self._lock:
            self._streams -= 1
            self._held_bytes -= held_bytes

    def change(self, by_bytes: int) -> None:
        """A stream holds more, or fewer, than before."""
        with self._lock:
            self._held_bytes += by_bytes

    def must_let_go(self, own_bytes: int) -> bool:
        """Whether a stream that holds ``own_bytes`` is one that holds too many."""
        with self._lock:
            return self._held_bytes > self._max_bytes and own_bytes > self._max_bytes // max(self._streams, 1)
