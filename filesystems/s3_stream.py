"""One open in-progress part on S3: an upload, side objects, and what was written since."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.filesystems.errors import NotApplied, NotFound
from partfile.filesystems.part_errors import part_refused
from partfile.filesystems.s3_claimed_stream import ClaimedStream, claimed_part, new_part
from partfile.filesystems.s3_options import LEAST_PIECE_BYTES
from partfile.filesystems.s3_probe import learn_leaving_out
from partfile.filesystems.s3_sides import read_sides, write_side
from partfile.filesystems.s3_staging import HIGHEST_NUMBER, PART_METADATA, S3Staging, group_bytes, part_id, piece_bytes
from partfile.filesystems.s3_upload import PieceSender

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partfile.filesystems.port import PartHandle
    from partfile.filesystems.s3_access import S3Access
    from partfile.filesystems.s3_buffers import BufferBudget
    from partfile.filesystems.s3_claimed_stream import ClaimedPart
    from partfile.filesystems.s3_staging import SideObject

_TAKEN_BYTES = 1 << 20
"""Taken at once of what is written where an upload part is full and may not be sent."""


def create_part(access: S3Access, budget: BufferBudget, handle: PartHandle) -> S3PartStream:
    """Begin a part; see ``PartStore.create``."""
    return S3PartStream(new_part(access, budget, handle))


def resume_part(access: S3Access, budget: BufferBudget, handle: PartHandle) -> S3PartStream:
    """Go on with a part as the only one who ever does so from this handle; see ``PartStore.resume``."""
    return S3PartStream(claimed_part(access, budget, handle, S3Staging.of(handle)))


class S3PartStream(ClaimedStream):
    """An open part.

    Args:
        part: The part.
    """

    def __init__(self, part: ClaimedPart) -> None:
        super().__init__(part)
        self._is_fresh = not part.is_claimed
        """Whether nobody can know of anything that is in the upload: no version was given out."""
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
        """Persist, and see to it that nobody goes on from any handle that was given out."""
        self._check_usable()
        self._failure = "it could not be made pending"
        if self._has_upload and self._waiting_bytes and self._may_send():
            # The last upload part may be as short as it is: who publishes need not move the bytes.
            self._send(self._waiting_bytes)
        elif self._buffer:
            self._store_rest()
        self._claim()
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
        side = write_side(self._access, self._handle, self._buffer.content())
        self._staging = self._staging.with_side(side)
        self._buffer.drop(len(self._buffer))

    def _may_send(self) -> bool:
        """Whether bytes may go into the upload that no checkpoint vouches for: a crash leaves them in it."""
        if not self._is_fresh and self._staging.names_all is None:
            self._staging = self._staging.model_copy(update={"names_all": not learn_leaving_out(self._access)})
        return self._is_fresh or not self._staging.names_all

    def _move_committed(self) -> None:
        """Move side objects of the version that is extended into the upload, as who publishes it would.

        Who goes on from a version does so because its checkpoint is complete (S2): so this is never undone, and if
        nothing comes of this stream, who publishes that version sends the same bytes under the same numbers.
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
        """Begin an upload for who publishes, who would have to send it all in one request otherwise."""
        if self._waiting_bytes >= group_bytes(self._number) and self._staging.upload is None:
            self._staging = self._staging.model_copy(update={"upload": self._begun_sender().upload})

    def _send(self, size_bytes: int) -> None:
        """Send so many of the bytes that wait as one upload part, those in side objects first."""
        if self._number >= HIGHEST_NUMBER:
            raise NotApplied(f"part {self._path!r} has all the upload parts that S3 takes", hint="Roll parts earlier.")
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
            return read_sides(self._access, self._handle, sides)
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
