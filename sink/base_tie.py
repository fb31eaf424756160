"""Which base a chain of checkpoints is of, so that nobody takes it over for another one and gives its parts up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from partfile.filesystems.errors import RecoveryRefused
from partfile.filesystems.opening import is_same_place, path_inside, resolved

if TYPE_CHECKING:
    from collections.abc import Mapping

    from partfile.sink.restore_settings import RestoreSettings


@dataclass(frozen=True, slots=True)
class BaseTie:
    """The base of whoever takes a chain over, beside what the chain says of its own."""

    base: str
    storage_options: Mapping[str, object]
    moved_from: str | None
    """Where the base was before its owner moved it, by his own word."""
    note: str | None
    """What a link says of its base, links resolved; None where the checkpoints lie below it and move with it."""

    @classmethod
    def of(cls, settings: RestoreSettings) -> Self:
        """The tie that the options of a sink make."""
        elsewhere = settings.checkpoint_dir is not None and (
            path_inside(settings.checkpoint_dir, settings.base, settings.storage_options) is None
        )
        return cls(
            base=settings.base,
            storage_options=settings.storage_options,
            moved_from=settings.moved_from,
            note=resolved(settings.base) if elsewhere else None,
        )

    def check(self, note: str | None, job: str) -> None:
        """Refuse a chain that is of another base.

        One that says nothing was begun below its base. Where it lies outside, it is of another one, and only its owner
        can say which.

        Args:
            note: What its newest link says; None if it says nothing.
            job: The name of the chain.

        Raises:
            RecoveryRefused: It is of another one; nothing was changed.
        """
        if note is None:
            is_ours = self.note is None or self.moved_from is not None
        else:
            is_ours = any(self._is(note, place) for place in (self.base, self.moved_from) if place is not None)
        if not is_ours:
            raise _refusal(note, self.base, job)

    def _is(self, note: str, place: str) -> bool:
        return is_same_place(note, place, self.storage_options)


def _refusal(note: str | None, base: str, job: str) -> RecoveryRefused:
    if note is None:
        return RecoveryRefused(
            f"the checkpoints of sink {job!r} are of a base that they lie below, not of {base!r}",
            hint="Nothing was changed. Check the base and checkpoint_dir: a base that has its checkpoints in _partfile "
            "needs no checkpoint_dir. If they were taken away from their base on purpose, run once with "
            "moved_from, which is where that base was.",
        )
    return RecoveryRefused(
        f"the checkpoints of sink {job!r} are of the base {note!r}, not of {base!r}",
        hint="Nothing was changed. Check the base and checkpoint_dir. If the base was moved on purpose, run once "
        f"with moved_from={note!r}.",
    )
