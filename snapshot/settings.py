"""How a checkpoint coordinator is set up."""

from __future__ import annotations

from collections.abc import Callable  # noqa: TC003 - a default of the dataclass uses it
from dataclasses import dataclass, field

from partfile.filesystems.tokens import number_between
from partfile.snapshot.machine_state import CoordinatorRules


def at_once(work: Callable[[], None]) -> None:
    """Do the work here and now."""
    work()


def no_timer(at_ms: int) -> None:
    """Whoever calls ``tick`` learns the time from what it returns."""


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """What the owner of a coordinator chooses."""

    writer: str
    """Version of the program, written into every link."""
    retained: int = 2
    """Links holding state that are kept, at least 1."""
    rules: CoordinatorRules = field(default_factory=CoordinatorRules)
    draw: Callable[[int, int], int] = number_between
    """Draws the delay of the first periodic checkpoint, in milliseconds, both ends included."""
    submit_deletion: Callable[[Callable[[], None]], object] = at_once
    """Runs the deletion of subsumed checkpoints, for instance the ``submit`` of an executor."""
    set_timer: Callable[[int], object] = no_timer
    """Told when to call ``tick`` next, in milliseconds since the epoch; it replaces the time told before."""
