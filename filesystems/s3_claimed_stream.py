"""What every open part on S3 is: bytes in memory, a version that was given out, and the claim to extend it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

from partfile.filesystems.open_streams import OpenStream, check_new
from partfile.filesystems.part_errors import part_refused
from partfile.filesystems.s3_buffers import HeldBytes
from partfile.filesystems.s3_claims import win_claim
from partfile.filesystems.s3_staging import S3Staging

if TYPE_CHECKING:
    from partfile.filesystems.port import PartHandle
    from partfile.filesystems.s3_access import S3Access
    from partfile.filesystems.s3_buffers import BufferBudget

_CLAIMED = "somebody else has claimed it"


class ClaimedPart(NamedTuple):
    """A part that this process goes on with, and what it takes to do so."""

    access: S3Access
    """The store's objects."""
    budget: BufferBudget
    """Shared by the streams of the store."""
    handle: PartHandle
    """The part, as created or as resumed."""
    staging: S3Staging
    """What it is made of."""
    is_claimed: bool = False
    """Whether the claim that it names has been won; a part that is just created needs none."""


def new_part(access: S3Access, budget: BufferBudget, handle: PartHandle) -> ClaimedPart:
    """A part to be created. Asks nothing of S3: a token makes it nobody else's.

    Raises:
        ConfigError: No object can have its path.
        AlreadyExists, NotApplied: It has been created already.
    """
    access.check_path(handle.path_of(handle.name))
    check_new(handle)
    return ClaimedPart(access, budget, handle, S3Staging())


def claimed_part(access: S3Access, budget: BufferBudget, handle: PartHandle, staging: S3Staging | None) -> ClaimedPart:
    """Win the right to go on from a handle, which is won once.

    Raises:
        LeaseUnavailable: Nobody may go on from it, or somebody has.
    """
    if staging is None:
        raise part_refused(handle, "it was never created")
    if staging.size_bytes != handle.valid_length:
        raise part_refused(handle, f"it has {staging.size_bytes} bytes instead of {handle.valid_length}")
    if staging.why_full:
        raise part_refused(handle, staging.why_full)
    if not win_claim(access, handle, staging.claims):
        raise part_refused(handle, _CLAIMED)
    return ClaimedPart(access, budget, handle, staging, is_claimed=True)


class ClaimedStream(OpenStream, ABC):
    """An open part.

    Args:
        part: The part.
    """

    def __init__(self, part: ClaimedPart) -> None:
        handle, staging = part.handle, part.staging
        super().__init__(handle.path_of(handle.name))
        self._access = part.access
        self._budget = part.budget
        self._given = staging
        """What the last handle that was given out is made of."""
        self._staging = staging.after_claim() if part.is_claimed else staging
        self._handle = handle.model_copy(update={"staging": handle.staging or staging.as_json()})
        self._is_ours = True
        """Whether nobody else can extend what the part is made of: a version that was given out has to be claimed."""
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
        """Persist, and see to it that nobody goes on from any handle that was given out."""

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
        if not win_claim(self._access, self._handle, self._staging.claims):
            raise part_refused(self._handle, _CLAIMED)
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
