"""The port to storage for the cleaner: take files away, and find what no listing shows (S6).

Every path is relative to the base of the store, with ``/`` between segments and no ``..``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from partfile.filesystems.port import PartHandle

LeftoverKind = Literal["upload", "side object", "claim"]


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something staged that is no file of a listing, as a store finds it."""

    kind: LeftoverKind
    path: str
    """Of the object; of an upload that of the file which it would become. Relative to the base."""
    name: str
    """Final name of the part that it belongs to; empty where nothing says."""
    size: int | None
    """In bytes; None where the store does not say."""
    modified_at_ms: int
    """By the store's clock, in milliseconds since the epoch; of an upload when it was begun."""
    upload: str | None = None
    """Id of the upload, if it is one."""


class CleaningStore(Protocol):
    """What a cleaner asks of a store. No other caller deletes anything by these."""

    @property
    def moves_files(self) -> bool:
        """Whether ``take_away`` can move a file instead of deleting it. Asks storage nothing."""

    def take_away(self, path: str, into: str | None) -> bool:
        """Delete one file that nobody needs, or move it to another directory; for the cleaner alone (S6).

        Literally this one name. Takes the lease first where there are leases, and then sees that the path still names
        what was leased. Idempotence: nothing there counts as done. After a crash it is under one of the two names.

        Args:
            path: What to take away.
            into: The directory that takes it, under the same name; its path has a token that nobody else knows. It is
                made if need be. None deletes the file.

        Returns:
            Whether it was there.

        Raises:
            LeaseUnavailable: Somebody is writing it.
            NotApplied: It is no regular file, or this store does not move files.
        """

    def is_being_written(self, path: str) -> bool | None:
        """Whether somebody has a staged file open now; None where files have no leases. For who must not fence him.

        Takes the lease from nobody who holds or renews it, and does not keep it. Nothing there is written by nobody.

        Raises:
            StoreError: Nobody can know, for instance without the right to write there.
        """

    def leftovers(self, parts: Iterable[PartHandle], before_ms: int) -> Iterator[Leftover]:
        """Yield what is staged and is no file that ``list`` shows, in no order; nothing where every part is one.

        Args:
            parts: What belongs to one of them is left out.
            before_ms: What was changed then or later is left out as well, by the store's clock, in milliseconds.
        """

    def drop_leftover(self, leftover: Leftover) -> bool:
        """Delete one of them for good; whether it was there. Idempotent."""
