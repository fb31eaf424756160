"""One open stage on S3: side objects alone, since nobody can read an upload before it is complete."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.filesystems.errors import NotFound
from partfile.filesystems.part_errors import part_refused
from partfile.filesystems.s3_claimed_stream import ClaimedStream, claimed_part, new_part
from partfile.filesystems.s3_merging import merged_count
from partfile.filesystems.s3_sides import read_sides, write_side
from partfile.filesystems.s3_stages import staging_of_stage
from partfile.filesystems.stages import checked_for_publishing

if TYPE_CHECKING:
    from partfile.filesystems.port import PartHandle
    from partfile.filesystems.s3_access import S3Access
    from partfile.filesystems.s3_buffers import BufferBudget


def create_stage(access: S3Access, budget: BufferBudget, handle: PartHandle) -> S3StageStream:
    """Begin a stage; see ``PartStore.create``."""
    return S3StageStream(new_part(access, budget, handle))


def resume_stage(access: S3Access, budget: BufferBudget, handle: PartHandle) -> S3StageStream:
    """Go on with a stage as the only one who ever does so from this handle; see ``PartStore.resume``."""
    return S3StageStream(claimed_part(access, budget, handle, staging_of_stage(handle)))


class S3StageStream(ClaimedStream):
    """An open stage. What a persist adds is one object, into which earlier ones go as ``s3_merging`` says.

    An object that was merged stays: an older checkpoint may name it until the whole stage is discarded.
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
            before = read_sides(self._access, self._handle, sides[kept:]) if sides[kept:] else b""
        except NotFound as error:
            raise part_refused(self._handle, "a side object is gone") from error
        data = self._buffer.drop(len(self._buffer), after=before)
        side = write_side(self._access, self._handle, data)
        self._staging = self._staging.model_copy(update={"sides": (*sides[:kept], side)})
