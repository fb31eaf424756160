"""Which request for a checkpoint goes next, and which waits or is refused: Flink's request decider. Pure.

Source: Flink's ``CheckpointRequestDecider``, as of 1.20.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

MAX_QUEUED = 1000


class RequestKind(Enum):
    """Who asks for a checkpoint."""

    SAVEPOINT = "savepoint"
    USER = "user"
    PERIODIC = "periodic"


class Refusal(Enum):
    """Why a request does not become a checkpoint."""

    TOO_MANY_REQUESTS = "too many checkpoint requests are waiting"
    MINIMUM_PAUSE = "the minimum pause since the last completed checkpoint is not over"


@dataclass(frozen=True, slots=True)
class CheckpointRequest:
    """Somebody wants a checkpoint."""

    number: int
    """Tells requests apart; later ones have higher numbers."""
    kind: RequestKind
    time_ms: int
    """When it was made, in milliseconds since the epoch."""
    is_forced: bool = False
    """Whether it may exceed the number of concurrent checkpoints and the pause between them."""
    submission: str = ""
    """Nonce of the trigger that comes of it."""
    stops_job: bool = False
    """Whether nothing more is written after it: stop with a savepoint."""

    @property
    def commits(self) -> bool:
        """Whether its completion is told to the tasks and subsumes what came before it.

        A savepoint beside the running job does neither: it is the user's, and others may delete it at any time.
        """
        return self.kind is not RequestKind.SAVEPOINT or self.stops_job

    @property
    def rank(self) -> tuple[bool, bool, bool, int, int]:
        """Savepoints before all others, then the forced, then those that somebody waits for, then the oldest."""
        is_periodic = self.kind is RequestKind.PERIODIC
        return self.kind is not RequestKind.SAVEPOINT, not self.is_forced, is_periodic, self.time_ms, self.number


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """How often checkpoints may be taken."""

    max_concurrent: int = 1
    min_pause_ms: int = 0
    """From a completion to the next periodic checkpoint."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What the choice depends on besides the queue."""

    now_ms: int
    is_triggering: bool = False
    """Whether a request has been taken whose checkpoint is not pending yet."""
    pending: int = 0
    """Checkpoints between trigger and completion."""
    cleaning: int = 0
    """Subsumed checkpoints that are not deleted yet."""
    last_completion_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """What to do about the queue."""

    queue: RequestQueue
    request: CheckpointRequest | None = None
    """The request to trigger now."""
    refused: CheckpointRequest | None = None
    reason: Refusal | None = None
    periodic_in_ms: int | None = None
    """When the next periodic request is to be made instead of the refused one."""


@dataclass(frozen=True, slots=True)
class RequestQueue:
    """The requests that wait, the first to go in front."""

    waiting: tuple[CheckpointRequest, ...] = ()
    capacity: int = field(default=MAX_QUEUED)

    def submit(self, request: CheckpointRequest) -> Choice:
        """Queue a request.

        A full queue refuses the new one, unless a periodic request is last: that one gives way, for another will come.
        """
        waiting, refused = self.waiting, None
        if len(waiting) >= self.capacity:
            if waiting[-1].kind is not RequestKind.PERIODIC:
                return Choice(self, refused=request, reason=Refusal.TOO_MANY_REQUESTS)
            waiting, refused = waiting[:-1], waiting[-1]
        queue = replace(self, waiting=tuple(sorted((*waiting, request), key=lambda one: one.rank)))
        return Choice(queue, refused=refused, reason=Refusal.TOO_MANY_REQUESTS if refused else None)

    def choose(self, situation: Situation, limits: RequestLimits) -> Choice:
        """Take the first request, if one may go now.

        None goes while another is being triggered, or while more subsumed checkpoints wait for their deletion than may
        be taken at once: who deletes slowly must not make ever more.
        """
        if situation.is_triggering or not self.waiting or situation.cleaning > limits.max_concurrent:
            return Choice(self)
        first, rest = self.waiting[0], replace(self, waiting=self.waiting[1:])
        if situation.pending >= limits.max_concurrent:
            return Choice(rest, request=first) if first.is_forced else Choice(self)
        pause_ms = _pause_left_ms(situation, limits)
        if pause_ms > 0 and first.kind is RequestKind.PERIODIC and not first.is_forced:
            return Choice(rest, refused=first, reason=Refusal.MINIMUM_PAUSE, periodic_in_ms=pause_ms)
        return Choice(rest, request=first)


def _pause_left_ms(situation: Situation, limits: RequestLimits) -> int:
    if situation.last_completion_ms is None:
        return 0
    return situation.last_completion_ms + limits.min_pause_ms - situation.now_ms
