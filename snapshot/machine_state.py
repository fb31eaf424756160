"""The state of a checkpoint coordinator between two events, and what a decision is made of. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from partfile.filesystems.errors import ConfigError
from partfile.snapshot.layout import MAX_IDS_AHEAD
from partfile.snapshot.requests import RequestLimits, RequestQueue, Situation

if TYPE_CHECKING:
    from partfile.snapshot.actions import Action
    from partfile.snapshot.failures import FailureReason, FailureTally
    from partfile.snapshot.pending import PendingCheckpoint

TIMEOUT_MS = 10 * 60 * 1000
MAX_PAUSE_MS = 365 * 24 * 60 * 60 * 1000
REMEMBERED = 16


@dataclass(frozen=True, slots=True)
class CoordinatorRules:
    """What the owner of a coordinator may choose."""

    limits: RequestLimits = field(default_factory=RequestLimits)
    timeout_ms: int = TIMEOUT_MS
    """From the trigger of a checkpoint until it is given up."""
    interval_ms: int = TIMEOUT_MS
    """Between two periodic requests; never less than the minimum pause."""
    tolerable_failures: int = 0
    """So many failed checkpoints in a row are borne."""
    is_unaligned: bool = False
    """Whether barriers overtake data; then a savepoint waits for the checkpoints under way (CC-12)."""

    spare_ids: int = 1
    """Ids beyond ``max_concurrent`` that may be triggered before the next link: for forced requests, and while the
    tombstone of an aborted id cannot be created. Each start closes as many more ids."""

    def __post_init__(self) -> None:
        if not 1 <= self.ids_ahead <= MAX_IDS_AHEAD:
            raise ConfigError(
                f"max_concurrent {self.limits.max_concurrent} and spare_ids {self.spare_ids} make {self.ids_ahead} "
                f"checkpoints ahead of the newest; it must be 1 to {MAX_IDS_AHEAD}"
            )

    @property
    def ids_ahead(self) -> int:
        """How far a triggered id may lie beyond the newest link: a successor closes as many, seen or not (CC-06)."""
        return self.limits.max_concurrent + self.spare_ids

    @property
    def min_pause_ms(self) -> int:
        """The minimum pause, at most one year."""
        return min(self.limits.min_pause_ms, MAX_PAUSE_MS)

    @property
    def period_ms(self) -> int:
        """What really passes between two periodic requests."""
        return max(self.interval_ms, self.min_pause_ms)


@dataclass(frozen=True, slots=True)
class CoordinatorState:
    """Everything a coordinator knows. Ids rise by one with each trigger and are never used again."""

    rules: CoordinatorRules
    newest_link: int
    """Id of the newest link of the chain; the next one takes the id after it, whatever it holds (S7)."""
    completed_id: int
    """Id of the newest link that holds state."""
    next_id: int
    tally: FailureTally
    next_request: int = 1
    queue: RequestQueue = field(default_factory=RequestQueue)
    pending: tuple[PendingCheckpoint, ...] = ()
    """By ascending id."""
    triggering: int | None = None
    """The checkpoint whose tasks are being told."""
    linking: int | None = None
    """The id whose link or tombstone is being created: one at a time, and it cannot be aborted any more."""
    unclosed: frozenset[int] = frozenset()
    """Aborted ids without a tombstone."""
    given_up: tuple[str, ...] = ()
    """The submissions of the last aborted checkpoints, oldest first: what answers them is late, not unknown.

    Not their ids: a coordinator that is fenced may not know yet which ones are its rival's.
    """
    cleaning: int = 0
    """Rounds of deletion under way."""
    last_completion_ms: int | None = None
    next_periodic_ms: int | None = None
    retry_ms: int | None = None
    """When a tombstone that could not be created is tried again."""
    timer_ms: int | None = None
    stopped: FailureReason | None = None

    def find(self, checkpoint_id: int) -> PendingCheckpoint | None:
        """The pending checkpoint with this id, if there is one."""
        return next((one for one in self.pending if one.checkpoint_id == checkpoint_id), None)

    @property
    def has_id(self) -> bool:
        """Whether the next id is among those that the newest link reserves."""
        return self.next_id <= self.newest_link + self.rules.ids_ahead

    def situation(self, now_ms: int) -> Situation:
        """What the choice of the next request depends on."""
        return Situation(
            now_ms=now_ms,
            is_triggering=self.triggering is not None,
            pending=len(self.pending),
            cleaning=self.cleaning,
            last_completion_ms=self.last_completion_ms,
        )

    def due_ms(self) -> int | None:
        """When time alone changes something next."""
        times = [one.deadline_ms for one in self.pending if one.checkpoint_id != self.linking]
        times += [time for time in (self.next_periodic_ms, self.retry_ms) if time is not None]
        return min(times, default=None)


@dataclass(frozen=True, slots=True)
class Decision:
    """The state after an event, and what is to be done, in order."""

    state: CoordinatorState
    actions: tuple[Action, ...] = ()

    def having(self, **changes: Any) -> Decision:
        """The same decision with some fields of the state changed."""
        return Decision(replace(self.state, **changes), self.actions)

    def doing(self, *actions: Action) -> Decision:
        """The same decision with more to do."""
        return Decision(self.state, (*self.actions, *actions))

    def with_pending(self, changed: PendingCheckpoint) -> Decision:
        """The same decision with one pending checkpoint in place of the one with its id."""
        same = changed.checkpoint_id
        return self.having(pending=tuple(changed if one.checkpoint_id == same else one for one in self.state.pending))

    def without_pending(self, checkpoint_id: int) -> Decision:
        """The same decision with one checkpoint no longer pending."""
        return self.having(pending=tuple(one for one in self.state.pending if one.checkpoint_id != checkpoint_id))
