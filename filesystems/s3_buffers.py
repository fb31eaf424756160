"""What the open parts of one S3 store hold in memory, and how much they may."""

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


class HeldBytes:
    """The bytes of one stream that wait in memory, counted against what all streams may hold.

    Args:
        budget: Shared by the streams of the store; this one joins it.
    """

    def __init__(self, budget: BufferBudget) -> None:
        self._budget = budget
        self._bytes = bytearray()
        budget.join()

    def __len__(self) -> int:
        """How many they are."""
        return len(self._bytes)

    def content(self) -> bytes:
        """A copy of all of them."""
        return bytes(self._bytes)

    def take(self, data: memoryview) -> None:
        """Hold more."""
        self._bytes += data
        self._budget.change(len(data))

    def drop(self, count: int, *, after: bytes = b"") -> bytes:
        """Let go of the first bytes, and return them behind others.

        Args:
            count: How many.
            after: What comes before them in what is returned.
        """
        self._budget.change(-count)
        with memoryview(self._bytes) as view:
            data = b"".join((after, view[:count]))
        del self._bytes[:count]
        return data

    def give_back(self) -> None:
        """Let go of everything, and of the stream's share; for once."""
        self._budget.leave(len(self._bytes))
        self._bytes = bytearray()
