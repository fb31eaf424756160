"""What every open part on S3 is: bytes in memory, a version that was given out, and the claim to extend it."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from partfile.filesystems.errors import AlreadyExists, NotApplied
from partfile.filesystems.part_errors import part_lost, part_of_another_process, part_refused
from partfile.filesystems.s3_buffers import HeldBytes
from partfile.filesystems.s3_claims import win_claim

if TYPE_CHECKING:
    from partfile.filesystems.port import PartHandle
    from partfile.filesystems.s3_access import S3Access
    from partfile.filesystems.s3_buffers import BufferBudget
    from partfile.filesystems.s3_staging import S3Staging

_CLAIMED = "somebody else has claimed it"


def check_new(access: S3Access, handle: PartHandle) -> None:
    """Refuse to create what has been created, or has no place. Asks nothing of S3: a token makes it nobody else's.

    Raises:
        ConfigError: No object can have its path.
        AlreadyExists, NotApplied: It has been created already.
    """
    path = handle.path_of(handle.in_progress)
    access.check_path(handle.path_of(handle.name))
    if handle.staging:
        raise AlreadyExists(f"part {path!r} has been created already", path=path)
    if handle.valid_length:
        raise NotApplied(f"a new part cannot have {handle.valid_length} valid bytes", path=path)


def claim_part(access: S3Access, handle: PartHandle, staging: S3Staging | None) -> S3Staging:
    """Win the right to go on from a handle, which is won once, and return what the part is made of.

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
    return staging


class ClaimedStream(ABC):
    """An open part.

    Args:
        access: The store's objects.
        budget: Shared by the streams of the store.
        handle: The part, as created or as resumed.
        staging: What it is made of.
        claimed: Whether the claim that it names has been won; a part that is just created needs none.
    """

    def __init__(
        self,
        access: S3Access,
        budget: BufferBudget,
        handle: PartHandle,
        staging: S3Staging,
        *,
        claimed: bool = False,
    ) -> None:
        self._access = access
        self._budget = budget
        self._path = handle.path_of(handle.name)
        self._given = staging
        """What the last handle that was given out is made of."""
        self._staging = staging.after_claim() if claimed else staging
        self._handle = handle.model_copy(update={"staging": handle.staging or staging.as_json()})
        self._is_ours = True
        """Whether nobody else can extend what the part is made of: a version that was given out has to be claimed."""
        self._buffer = HeldBytes(budget)
        self._process = os.getpid()
        self._is_closed = False
        self._failure = ""

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
        if not self._is_closed and os.getpid() == self._process:
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

    def _check_usable(self) -> None:
        if os.getpid() != self._process:
            raise part_of_another_process(self._path, self._process, os.getpid())
        if self._failure:
            raise part_lost(self._path, self._failure)
        if self._is_closed:
            raise NotApplied(f"part {self._path!r} is closed", path=self._path)
