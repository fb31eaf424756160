"""One open in-progress part on S3: an upload, side objects, and what was written since."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from concurrent.futures import FIRST_COMPLETED, wait
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from partfile.errors import NotApplied, NotFound
from partfile.stores.parts import OpenStream, checked_for_publishing, part_refused
from partfile.stores.s3.client import this_process
from partfile.stores.s3.handle import (
    HIGHEST_NUMBER,
    PART_METADATA,
    Piece,
    S3Staging,
    group_bytes,
    part_id,
    piece_bytes,
)
from partfile.stores.s3.options import LEAST_PIECE_BYTES
from partfile.stores.s3.probe import ServerProbe
from partfile.stores.s3.sides import SideObjects

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from partfile.stores.base import PartHandle
    from partfile.stores.s3.handle import SideObject
    from partfile.stores.s3.requests import S3Access


class BufferBudget:
    """Limits the bytes that all streams of a store hold in memory.

    Bytes in flight count. Above the limit, a stream that holds more than an even share sends its bytes and waits. So
    all together hold at most twice the limit, besides the upload part that each thread is making. Thread safe.

    Args:
        max_bytes: The limit.
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
        """The number of streams."""
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


CLAIMED = "another process has claimed it"


class ClaimedPart(NamedTuple):
    """A part that this process goes on with, and what it takes to do so."""

    access: S3Access
    """The store's objects."""
    budget: BufferBudget
    """Shared by the streams of the store."""
    handle: PartHandle
    """The part, as created or as resumed."""
    staging: S3Staging
    """The staging of the part, as it goes into its handle."""
    is_claimed: bool = False
    """Whether the claim that it names has been won; a part that is just created needs none."""


class ClaimedStream(OpenStream, ABC):
    """An open part.

    Args:
        part: The part.
    """

    def __init__(self, part: ClaimedPart) -> None:
        handle, staging = part.handle, part.staging
        super().__init__(handle.path_of(handle.name))
        self._access = part.access
        self._sides = SideObjects(part.access)
        self._budget = part.budget
        self._given = staging
        """The staging in the last handle that was given out."""
        self._staging = staging.after_claim() if part.is_claimed else staging
        self._handle = handle.model_copy(update={"staging": handle.staging or staging.as_json()})
        self._is_ours = True
        """Whether only this stream can extend the part: a version that was given out has to be claimed."""
        self._buffer = HeldBytes(part.budget)

    @property
    def handle(self) -> PartHandle:
        """The part at the length of the last persist."""
        return self._handle

    @property
    @abstractmethod
    def position(self) -> int:
        """Bytes handed over so far, durable or not."""

    @abstractmethod
    def write(self, data: bytes | memoryview) -> None:
        """Append all of ``data``. A failure poisons the stream."""

    @abstractmethod
    def persist(self) -> PartHandle:
        """Make the bytes durable, unless they are. A failure poisons the stream."""

    @abstractmethod
    def close_for_commit(self) -> PartHandle:
        """Persist, and see to it that no attempt goes on from any handle that was given out."""

    def verify(self) -> None:
        """Nothing can take the part away: what S3 has acknowledged stays, and its claims until it is finished."""
        self._check_usable()

    def close(self) -> None:
        """Let go of what was not persisted; an upload stays open."""
        if self._is_ours_to_close:
            self._release()

    def _claim(self) -> None:
        """Win the claim of the version that was handed out last, if there is one, before anything is added to it."""
        if self._is_ours:
            return
        if not self._access.win_claim(self._handle, self._staging.claims):
            raise part_refused(self._handle, CLAIMED)
        self._staging = self._staging.after_claim()
        self._is_ours = True

    def _give_out(self) -> None:
        self._given = self._staging
        self._handle = self._handle.model_copy(
            update={"valid_length": self._staging.size_bytes, "staging": self._staging.as_json()}
        )

    def _release(self) -> None:
        self._is_closed = True
        self._buffer.give_back()


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
            data: Its bytes, which do not change any more.
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


_TAKEN_BYTES = 1 << 20
"""Taken at once of what is written where an upload part is full and may not be sent."""


class S3PartStream(ClaimedStream):
    """An open part.

    Args:
        part: The part.
    """

    def __init__(self, part: ClaimedPart) -> None:
        super().__init__(part)
        self._is_fresh = not part.is_claimed
        """Whether no other process can know of anything in the upload: no version was given out."""
        self._has_moved = False
        """Whether the side objects of the last version have been moved into the upload, as far as they make it up."""
        self._sender: PieceSender | None = None
        self._number = part.staging.next_number
        self._uploaded = part.staging.uploaded_bytes
        self._has_sent = False

    @property
    def position(self) -> int:
        """Bytes handed over so far, durable or not."""
        return self._uploaded + self._staging.tail_bytes + len(self._buffer)

    def write(self, data: bytes | memoryview) -> None:
        """Append all of ``data``; sends what makes up whole upload parts. A failure poisons the stream."""
        self._check_usable()
        rest = memoryview(data).cast("B")
        if not rest:
            return
        self._failure = "a write failed"
        while rest:
            whole = piece_bytes(self._number, self._access.options.upload_part_bytes)
            taken = rest[: whole - self._waiting_bytes if self._waiting_bytes < whole else _TAKEN_BYTES]
            self._buffer.take(taken)
            rest = rest[len(taken) :]
            if self._waiting_bytes >= whole and self._may_send():
                self._send(whole)
            elif len(self._buffer) >= whole:
                self._store_beside()
        self._let_go()
        self._failure = ""

    def persist(self) -> PartHandle:
        """Make the bytes durable, unless they are. A failure poisons the stream."""
        self._check_usable()
        if self._has_changed:
            self._failure = "persisting it failed"
            self._store_rest()
            self._give_out()
            self._failure = ""
        self._is_ours = self._is_fresh = self._has_moved = False
        return self._handle

    def close_for_commit(self) -> PartHandle:
        """Persist, and see to it that no attempt goes on from any handle that was given out."""
        self._check_usable()
        self._failure = "it could not be made pending"
        self._claim()
        if not self._has_upload or (self._waiting_bytes and self._may_send()):
            # The last upload part may be as short as it is: the coordinator, which publishes, need not move the bytes.
            # An upload that begins here holds nothing that no checkpoint vouches for.
            self._send(self._waiting_bytes)
        elif self._buffer:
            self._store_rest()
        self._staging = self._with_sent().model_copy(update={"closed": True})
        self._give_out()
        self._release()
        return self._handle

    @property
    def _waiting_bytes(self) -> int:
        return self._staging.tail_bytes + len(self._buffer)

    @property
    def _has_upload(self) -> bool:
        return self._sender is not None or self._staging.upload is not None

    @property
    def _has_changed(self) -> bool:
        return bool(self._buffer) or self._has_sent or self._staging != self._given

    def _let_go(self) -> None:
        """Hold little in memory while the parts of the store together hold too much."""
        if self._sender is not None and self._budget.must_let_go(self._sender.under_way_bytes + len(self._buffer)):
            self._sender.let_go()
        if self._budget.must_let_go(len(self._buffer)):
            self._store_rest()
            if self._sender is not None:
                self._sender.let_go()

    def _store_rest(self) -> None:
        """Put what is in memory where it is durable: into the upload if it is enough for that, else beside it."""
        if not self._buffer:
            return
        if self._waiting_bytes >= LEAST_PIECE_BYTES and self._may_send():
            self._send(self._waiting_bytes)
        else:
            self._store_beside()

    def _store_beside(self) -> None:
        """Put what is in memory into a side object."""
        self._claim()
        if self._staging.names_all:
            self._move_committed()
            self._begin_upload_of_much()
        side = self._sides.write(self._handle, self._buffer.content())
        self._staging = self._staging.with_side(side)
        self._buffer.drop(len(self._buffer))

    def _may_send(self) -> bool:
        """Whether bytes may go into the upload that no checkpoint vouches for: a crash leaves them in it."""
        if not self._is_fresh and self._staging.names_all is None:
            self._staging = self._staging.model_copy(
                update={"names_all": not ServerProbe(self._access).learn_leaving_out()}
            )
        return self._is_fresh or not self._staging.names_all

    def _move_committed(self) -> None:
        """Move side objects of the version that is extended into the upload, as publishing it would.

        A task goes on from a version because its checkpoint is complete (R2), so this is never undone. If nothing
        comes of this stream, the coordinator publishes that version and sends the same bytes under the same numbers.
        """
        if self._has_moved:
            return
        self._has_moved = True
        for group in self._given.grouped_sides:
            size_bytes = sum(side.size_bytes for side in group)
            if size_bytes < group_bytes(self._number):
                break
            sender = self._begun_sender()
            sender.send(self._number, self._read(group), self._staging)
            self._staging = self._staging.with_sides_spent(sender.upload, len(group))
            self._count_sent(size_bytes)

    def _begin_upload_of_much(self) -> None:
        """Begin an upload for the coordinator, which would have to send it all in one request when it publishes."""
        if self._waiting_bytes >= group_bytes(self._number) and self._staging.upload is None:
            self._staging = self._staging.model_copy(update={"upload": self._begun_sender().upload})

    def _send(self, size_bytes: int) -> None:
        """Send so many of the bytes that wait as one upload part, those in side objects first."""
        if self._number >= HIGHEST_NUMBER:
            raise NotApplied(
                f"part {self._path!r} has all the upload parts that S3 takes",
                hint="Roll parts earlier: rolling=RollingPolicy(max_part_bytes=N)",
            )
        self._claim()
        sender = self._begun_sender()
        tail = self._read(self._staging.sides)
        sender.send(self._number, self._buffer.drop(size_bytes - len(tail), after=tail), self._staging)
        self._staging = self._staging.with_sides_spent(sender.upload, len(self._staging.sides))
        self._count_sent(size_bytes)

    def _count_sent(self, size_bytes: int) -> None:
        self._number += 1
        self._has_sent = True
        self._uploaded += size_bytes

    def _read(self, sides: Sequence[SideObject]) -> bytes:
        try:
            return self._sides.read(self._handle, sides)
        except NotFound as error:
            raise part_refused(self._handle, "a side object is gone") from error

    def _begun_sender(self) -> PieceSender:
        if self._sender is None:
            upload = self._staging.upload or self._access.create_upload(
                self._path, {PART_METADATA: part_id(self._handle)}
            )
            self._sender = PieceSender(self._access, self._path, upload, self._budget)
        return self._sender

    def _with_sent(self) -> S3Staging:
        if self._sender is None:
            return self._staging
        try:
            sent = self._sender.wait()
        except NotFound as error:
            raise part_refused(self._handle, "its upload was completed or aborted") from error
        self._has_sent = False
        return self._staging.with_pieces(sent)

    def _give_out(self) -> None:
        self._staging = self._with_sent()
        super()._give_out()

    def _release(self) -> None:
        if self._sender is not None:
            self._sender.abandon()
        super()._release()


_ALIKE = 8
"""So many objects of one size become one."""
_SMALLEST_BITS = 12
"""All objects below 4 KiB count as of one size, those of up to eight times that as of the next one, and so on."""
_BITS_A_SIZE = 3
_LARGE_BYTES = 4 << 20
"""Objects of so many bytes stay as they are, in a staging file of up to 512 MiB; twice as many with each doubling of
it."""
_SMALL_STAGING_FILE_BYTES = 512 << 20
_MOST_DOUBLINGS = 3
"""Since merging holds all of it in memory."""


def merged_count(sizes_bytes: Sequence[int], new_bytes: int) -> int:
    """The number of the last side objects that go into one object with the new bytes.

    Args:
        sizes_bytes: Of the side objects, in their order.
        new_bytes: Of what comes after them.

    Returns:
        The number of objects to read: at most 12 MiB together, and up to eight times that in a staging file of GiBs.
    """
    large = _large_bytes(sum(sizes_bytes) + new_bytes)
    last, held = list[int](), 0
    for size in reversed(sizes_bytes):
        if size >= large or held >= 2 * large:
            break
        last.append(size)
        held += size
    if new_bytes >= large or held >= 2 * large:
        return len(last)
    return _alike_count(last, new_bytes)


def _alike_count(last: Sequence[int], new_bytes: int) -> int:
    """The number of these, newest first, that become one with the new bytes.

    Smaller ones do, so that what stays is in the order of its sizes; and those of the same size if they are enough.
    """
    taken, merged = 0, new_bytes
    while True:
        size = _size(merged)
        smaller = _leading(last[taken:], size - 1)
        alike = _leading(last[taken:], size)
        more = alike if alike - smaller + 1 >= _ALIKE else smaller
        if not more:
            return taken
        merged += sum(last[taken : taken + more])
        taken += more


def _leading(sizes_bytes: Sequence[int], size: int) -> int:
    """The number of the first ones that are of this size or smaller."""
    return sum(1 for _ in takewhile(lambda size_bytes: _size(size_bytes) <= size, sizes_bytes))


def _large_bytes(staging_bytes: int) -> int:
    doublings = (staging_bytes // _SMALL_STAGING_FILE_BYTES).bit_length()
    return _LARGE_BYTES << min(doublings, _MOST_DOUBLINGS)


def _size(size_bytes: int) -> int:
    bits = max(size_bytes.bit_length() - _SMALLEST_BITS, 0)
    return -(-bits // _BITS_A_SIZE)


class S3StagingStream(ClaimedStream):
    """An open staging file. What a persist adds is one object, into which earlier ones go as ``merged_count`` says.

    An object that was merged stays: an older checkpoint may name it until the whole staging file is discarded.
    """

    @property
    def position(self) -> int:
        """Bytes handed over so far, durable or not."""
        return self._staging.size_bytes + len(self._buffer)

    def write(self, data: bytes | memoryview) -> None:
        """Append all of ``data``; what is more than memory should hold is stored. A failure poisons the stream."""
        self._check_usable()
        rest, most = memoryview(data).cast("B"), self._access.options.upload_part_bytes
        self._failure = "a write failed"
        while rest:
            taken = rest[: most - len(self._buffer)]
            self._buffer.take(taken)
            rest = rest[len(taken) :]
            if len(self._buffer) >= most:
                self._store()
        if self._buffer and self._budget.must_let_go(len(self._buffer)):
            self._store()
        self._failure = ""

    def persist(self) -> PartHandle:
        """Make the bytes durable, unless they are. A failure poisons the stream."""
        self._check_usable()
        self._failure = "persisting it failed"
        if self._buffer:
            self._store()
        if self._staging != self._given:
            self._give_out()
        self._failure = ""
        self._is_ours = False
        return self._handle

    def close_for_commit(self) -> PartHandle:
        """Always refused."""
        self._check_usable()
        return checked_for_publishing(self._handle)

    def _store(self) -> None:
        """Put what is in memory into an object, and with it what becomes one with it."""
        self._claim()
        sides = self._staging.sides
        kept = len(sides) - merged_count([side.size_bytes for side in sides], len(self._buffer))
        try:
            before = self._sides.read(self._handle, sides[kept:]) if sides[kept:] else b""
        except NotFound as error:
            raise part_refused(self._handle, "a side object is gone") from error
        data = self._buffer.drop(len(self._buffer), after=before)
        side = self._sides.write(self._handle, data)
        self._staging = self._staging.model_copy(update={"sides": (*sides[:kept], side)})
