"""What can happen to a checkpoint coordinator: the input of its state machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from partfile.snapshot.failures import FailureReason

if TYPE_CHECKING:
    from partfile.snapshot.model import StateHandle
    from partfile.snapshot.requests import RequestKind


@dataclass(frozen=True, slots=True)
class Requested:
    """Somebody wants a checkpoint."""

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
    """How many subtasks take part in a checkpoint; Spark tells only when the job has ended."""

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
class LinkCreated:
    """The link is durable: the checkpoint is complete."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class LinkFailed:
    """There is no link and there never will be one of this try."""

    checkpoint_id: int
    is_closed: bool = False
    """Whether a tombstone has taken the id already."""


@dataclass(frozen=True, slots=True)
class LinkUnknown:
    """The store does not say whether a link or tombstone is there, and the chain could not find out."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class LinkFenced:
    """Another coordinator holds the chain."""

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
    | LinkCreated
    | LinkFailed
    | LinkUnknown
    | LinkFenced
    | IdClosed
    | CloseFailed
    | DeletionFinished
    | Shutdown
)
