"""Events, actions, requests and state of the checkpoint machine."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from partfile.errors import ConfigError, OutcomeUnknown
from partfile.snapshot.documents import MAX_IDS_AHEAD, StateHandle, SubtaskState

if TYPE_CHECKING:
    from collections.abc import Mapping


class FailureReason(Enum):
    """Why a checkpoint was not completed."""

    STORAGE = "its data could not be written"
    ASYNC_PART = "the asynchronous part of a snapshot failed"
    DECLINED = "a task declined it"
    EXPIRED = "it took longer than the timeout"
    FINALIZE = "its metadata could not be written"
    SUBSUMED = "a later checkpoint was completed before it"
    TASK_FAILED = "a task failed"
    TASK_NOT_READY = "a task was not ready for it"
    TASK_CLOSING = "a task was closing"
    INPUT_ENDED = "the input ended"
    CANCELLED = "a task before it in the stream took no part"
    TRIGGER = "it could not be triggered"
    SUSPENDED = "periodic checkpoints were stopped"
    SHUTDOWN = "the coordinator was shut down"
    FENCED = "another coordinator has taken over"
    OUTCOME_UNKNOWN = "the store did not say whether it is complete"

    @property
    def is_counted(self) -> bool:
        """Whether it says that checkpoints do not work, rather than that this one was in the way of something."""
        return self in _COUNTED


_COUNTED = {
    FailureReason.STORAGE,
    FailureReason.ASYNC_PART,
    FailureReason.DECLINED,
    FailureReason.EXPIRED,
    FailureReason.FINALIZE,
}


@dataclass(frozen=True, slots=True)
class FailureTally:
    """Failures since the last completed checkpoint."""

    tolerable: int = 0
    """So many failures in a row are borne; the next one fails the job."""
    counted: frozenset[int] = frozenset()
    """Ids of the failed checkpoints, each counted once however many tasks report it."""
    last_completed: int = 0

    def failed(self, checkpoint_id: int, reason: FailureReason) -> tuple[FailureTally, bool]:
        """Count a failure, and say whether the job fails by it; then counting begins anew.

        A checkpoint older than the last completed one has failed too late to say anything.
        """
        if not reason.is_counted or checkpoint_id < self.last_completed:
            return self, False
        counted = self.counted | {checkpoint_id}
        is_over = len(counted) > self.tolerable
        return replace(self, counted=frozenset() if is_over else counted), is_over

    def completed(self, checkpoint_id: int) -> FailureTally:
        """A checkpoint was completed: earlier failures no longer count."""
        return replace(self, counted=frozenset(), last_completed=max(self.last_completed, checkpoint_id))


@dataclass(frozen=True, slots=True)
class Requested:
    """A checkpoint is asked for."""

    kind: RequestKind
    submission: str
    """Nonce of the trigger that comes of it."""
    is_forced: bool = False
    stops_job: bool = False
    """Whether nothing more is written after it."""


@dataclass(frozen=True, slots=True)
class PeriodicStarted:
    """From now on checkpoints are taken at intervals."""

    first_delay_ms: int
    """Until the first one; drawn between the minimum pause and the interval, so that jobs do not move in step."""


@dataclass(frozen=True, slots=True)
class PeriodicStopped:
    """No more checkpoints at intervals; those under way are given up."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed. May come at any time and as often as one likes."""

    submission: str
    """Nonce of the periodic trigger, if one comes of it."""


@dataclass(frozen=True, slots=True)
class Triggered:
    """The tasks have been told to take a checkpoint."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class TriggerFailed:
    """The tasks could not be told."""

    checkpoint_id: int
    reason: FailureReason = FailureReason.TRIGGER


@dataclass(frozen=True, slots=True)
class SubtasksKnown:
    """The number of subtasks of a checkpoint is known; Spark tells it only when the job has ended."""

    checkpoint_id: int
    subtasks: int


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A subtask has made its state durable."""

    checkpoint_id: int
    subtask: int
    submission: str
    """The nonce of the trigger that the subtask answers."""
    handle: StateHandle | None


@dataclass(frozen=True, slots=True)
class Declined:
    """A subtask could not take its part in a checkpoint."""

    checkpoint_id: int
    subtask: int
    submission: str
    reason: FailureReason = FailureReason.DECLINED


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """A subtask died."""

    subtask: int


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The owner does not want a checkpoint any more."""

    checkpoint_id: int
    reason: FailureReason


@dataclass(frozen=True, slots=True)
class CheckpointCreated:
    """``_metadata`` is durable, so the checkpoint is complete."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class CreationFailed:
    """``_metadata`` was not created, and this try will never create it."""

    checkpoint_id: int
    is_closed: bool = False
    """Whether a tombstone has taken the id already."""


@dataclass(frozen=True, slots=True)
class CreationUnknown:
    """The store does not say whether ``_metadata`` or a tombstone exists, and the log could not find out."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class CreationFenced:
    """Another coordinator holds the checkpoint log."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class IdClosed:
    """The tombstone of an aborted id is there."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class CloseFailed:
    """The tombstone could not be created; nothing has changed."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class DeletionFinished:
    """One round of deleting subsumed checkpoints is over."""


@dataclass(frozen=True, slots=True)
class Shutdown:
    """The job ends or goes elsewhere: nothing more is begun."""

    reason: FailureReason = FailureReason.SHUTDOWN


Event = (
    Requested
    | PeriodicStarted
    | PeriodicStopped
    | Tick
    | Triggered
    | TriggerFailed
    | SubtasksKnown
    | Acknowledged
    | Declined
    | TaskFailed
    | GivenUp
    | CheckpointCreated
    | CreationFailed
    | CreationUnknown
    | CreationFenced
    | IdClosed
    | CloseFailed
    | DeletionFinished
    | Shutdown
)


class Stray(Enum):
    """Why an acknowledged state is not needed."""

    ABORTED = "its checkpoint was aborted"
    UNKNOWN_SUBTASK = "its subtask takes no part in the checkpoint"
    LATE = "it came after its checkpoint was given up"
    UNKNOWN_CHECKPOINT = "no such checkpoint is pending"


@dataclass(frozen=True, slots=True)
class TriggerTasks:
    """Tell the tasks to take the checkpoint; answered by ``Triggered`` or ``TriggerFailed``."""

    pending: PendingCheckpoint


@dataclass(frozen=True, slots=True)
class CreateCheckpoint:
    """Create ``chk-N/_metadata`` after the newest entry.

    Answered by ``CheckpointCreated``, ``CreationFailed``, ``CreationUnknown`` or ``CreationFenced``.
    """

    pending: PendingCheckpoint


@dataclass(frozen=True, slots=True)
class CloseId:
    """Create the tombstone of an aborted id.

    Answered by ``IdClosed``, ``CloseFailed``, ``CreationUnknown`` or ``CreationFenced``.
    """

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class NotifyComplete:
    """Tell the tasks that this checkpoint and all before it are complete. Best effort."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class NotifyAborted:
    """Tell the tasks that a checkpoint will never be complete. Best effort."""

    checkpoint_id: int
    reason: FailureReason
    completed_id: int
    """The newest completed checkpoint."""


@dataclass(frozen=True, slots=True)
class FulfilRequest:
    """Tell the owner that the checkpoint of a request is complete."""

    pending: PendingCheckpoint


@dataclass(frozen=True, slots=True)
class RefuseRequest:
    """Tell the owner that there will be no checkpoint for a request."""

    request: CheckpointRequest
    reason: Refusal | FailureReason
    checkpoint_id: int | None = None
    """The aborted checkpoint; None if it was never triggered."""


@dataclass(frozen=True, slots=True)
class DiscardState:
    """Delete an acknowledged state that is not needed, unless that checkpoint's ``_metadata`` names it."""

    checkpoint_id: int
    handle: StateHandle | None
    stray: Stray


@dataclass(frozen=True, slots=True)
class Subsume:
    """Delete the checkpoints beyond the retained ones; answered by ``DeletionFinished``, also when that failed."""


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Send a ``Tick`` at this time; it replaces an earlier timer."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class FailJob:
    """Checkpoints do not work, or the last one failed: the job must fail."""

    checkpoint_id: int
    reason: FailureReason


@dataclass(frozen=True, slots=True)
class Stop:
    """This coordinator must not go on: another one may hold the checkpoint log."""

    reason: FailureReason


Action = (
    TriggerTasks
    | CreateCheckpoint
    | CloseId
    | NotifyComplete
    | NotifyAborted
    | FulfilRequest
    | RefuseRequest
    | DiscardState
    | Subsume
    | SetTimer
    | FailJob
    | Stop
)


MAX_QUEUED = 1000


class RequestKind(Enum):
    """The origin of a request for a checkpoint."""

    SAVEPOINT = "savepoint"
    USER = "user"
    PERIODIC = "periodic"


class Refusal(Enum):
    """Why a request does not become a checkpoint."""

    TOO_MANY_REQUESTS = "too many checkpoint requests are waiting"
    MINIMUM_PAUSE = "the minimum pause since the last completed checkpoint is not over"


@dataclass(frozen=True, slots=True)
class CheckpointRequest:
    """A checkpoint is asked for."""

    number: int
    """Tells requests apart; later ones have higher numbers."""
    kind: RequestKind
    time_ms: int
    """When it was made, in milliseconds since 1970."""
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
        """Savepoints before all others, then the forced, then those that a caller waits for, then the oldest."""
        is_periodic = self.kind is RequestKind.PERIODIC
        return self.kind is not RequestKind.SAVEPOINT, not self.is_forced, is_periodic, self.time_ms, self.number


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits on the frequency of checkpoints."""

    max_concurrent: int = 1
    min_pause_ms: int = 0
    """From a completion to the next periodic checkpoint."""


@dataclass(frozen=True, slots=True)
class Situation:
    """The facts, besides the queue, by which the next request is chosen."""

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
    """The next step for the queue."""

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
        be taken at once: where deletion is slow, checkpoints must not pile up.
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


TIMEOUT_MS = 10 * 60 * 1000
MAX_PAUSE_MS = 365 * 24 * 60 * 60 * 1000
REMEMBERED = 16


@dataclass(frozen=True, slots=True)
class CoordinatorRules:
    """Rules that the owner of a coordinator chooses."""

    limits: RequestLimits = field(default_factory=RequestLimits)
    timeout_ms: int = TIMEOUT_MS
    """From the trigger of a checkpoint until it is given up."""
    interval_ms: int = TIMEOUT_MS
    """Between two periodic requests; never less than the minimum pause."""
    tolerable_failures: int = 0
    """So many failed checkpoints in a row are borne."""
    is_unaligned: bool = False
    """Whether barriers overtake data; then a savepoint waits for the checkpoints under way."""

    spare_ids: int = 1
    """Ids beyond ``max_concurrent`` that may be triggered before the next checkpoint: for forced requests, and while
    the tombstone of an aborted id cannot be created. Each start closes as many more ids."""

    def __post_init__(self) -> None:
        if not 1 <= self.ids_ahead <= MAX_IDS_AHEAD:
            raise ConfigError(
                f"max_concurrent {self.limits.max_concurrent} and spare_ids {self.spare_ids} make {self.ids_ahead} "
                f"checkpoints ahead of the newest; it must be 1 to {MAX_IDS_AHEAD}"
            )

    @property
    def ids_ahead(self) -> int:
        """The number of ids beyond the newest checkpoint that may be triggered.

        A successor closes as many, seen or not (R7).
        """
        return self.limits.max_concurrent + self.spare_ids

    @property
    def min_pause_ms(self) -> int:
        """The minimum pause, at most one year."""
        return min(self.limits.min_pause_ms, MAX_PAUSE_MS)

    @property
    def period_ms(self) -> int:
        """The time between two periodic requests, with the minimum pause."""
        return max(self.interval_ms, self.min_pause_ms)


@dataclass(frozen=True, slots=True)
class CoordinatorState:
    """Everything a coordinator knows. Ids rise by one with each trigger and are never used again."""

    rules: CoordinatorRules
    newest_checkpoint: int
    """Id of the newest checkpoint of the checkpoint log; the next one takes the id after it, whatever it holds (R7)."""
    completed_id: int
    """Id of the newest checkpoint that holds state."""
    next_id: int
    tally: FailureTally
    next_request: int = 1
    queue: RequestQueue = field(default_factory=RequestQueue)
    pending: tuple[PendingCheckpoint, ...] = ()
    """By ascending id."""
    triggering: int | None = None
    """The checkpoint whose tasks are being told."""
    creating: int | None = None
    """The id whose ``_metadata`` or tombstone is being created: one at a time, and it cannot be aborted any more."""
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
        """Whether the next id is among those that the newest checkpoint reserves."""
        return self.next_id <= self.newest_checkpoint + self.rules.ids_ahead

    def situation(self, now_ms: int) -> Situation:
        """The facts by which the next request is chosen."""
        return Situation(
            now_ms=now_ms,
            is_triggering=self.triggering is not None,
            pending=len(self.pending),
            cleaning=self.cleaning,
            last_completion_ms=self.last_completion_ms,
        )

    def due_ms(self) -> int | None:
        """When time alone changes something next."""
        times = [one.deadline_ms for one in self.pending if one.checkpoint_id != self.creating]
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


@dataclass(frozen=True, slots=True)
class PendingCheckpoint:
    """One triggered checkpoint. Frozen: an acknowledgement makes a new one."""

    checkpoint_id: int
    request: CheckpointRequest
    time_ms: int
    """The coordinator's batch time at the trigger, in milliseconds since 1970."""
    deadline_ms: int
    """When it is given up, in milliseconds since 1970."""
    expected: int | None = None
    """The number of subtasks that have to acknowledge, 0 to n-1; None while it is not known."""
    acknowledged: Mapping[int, StateHandle | None] = field(default_factory=dict)

    @property
    def submission(self) -> str:
        """Nonce of this trigger; an acknowledgement that echoes another one belongs to another try."""
        return self.request.submission

    @property
    def is_acknowledged(self) -> bool:
        """Whether every subtask has acknowledged; never before their number is known."""
        return self.expected is not None and len(self.acknowledged) == self.expected

    def waits_for(self, subtask: int) -> bool:
        """Whether this subtask takes part and has not acknowledged."""
        return self.has_place_for(subtask) and subtask not in self.acknowledged

    def has_place_for(self, subtask: int) -> bool:
        """Whether this subtask takes part, as far as is known."""
        return subtask >= 0 and (self.expected is None or subtask < self.expected)

    def with_acknowledgement(self, subtask: int, handle: StateHandle | None) -> PendingCheckpoint:
        """The same checkpoint with one subtask's state."""
        return replace(self, acknowledged={**self.acknowledged, subtask: handle})

    def expecting(self, subtasks: int) -> PendingCheckpoint:
        """The same checkpoint with the number of its subtasks; what others acknowledged is left out."""
        kept = {subtask: handle for subtask, handle in self.acknowledged.items() if subtask < subtasks}
        return replace(self, expected=subtasks, acknowledged=kept)

    def subtasks(self) -> tuple[SubtaskState, ...]:
        """The acknowledged states in the order of their subtasks.

        Raises:
            OutcomeUnknown: The subtasks are not exactly 0 to n-1: rows of one are missing.
        """
        if sorted(self.acknowledged) != list(range(len(self.acknowledged))):
            raise OutcomeUnknown(
                f"subtasks {sorted(self.acknowledged)} acknowledged; expected 0 to n-1 without a gap",
                checkpoint_id=self.checkpoint_id,
            )
        return tuple(
            SubtaskState(subtask=subtask, handle=self.acknowledged[subtask]) for subtask in sorted(self.acknowledged)
        )
