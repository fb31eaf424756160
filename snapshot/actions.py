"""What a checkpoint coordinator does: the output of its state machine, to be done in order."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from partfile.snapshot.failures import FailureReason
    from partfile.snapshot.model import StateHandle
    from partfile.snapshot.pending import PendingCheckpoint
    from partfile.snapshot.requests import CheckpointRequest, Refusal


class Stray(Enum):
    """Why nobody needs an acknowledged state."""

    ABORTED = "its checkpoint was aborted"
    UNKNOWN_SUBTASK = "its subtask takes no part in the checkpoint"
    LATE = "it came after its checkpoint was given up"
    UNKNOWN_CHECKPOINT = "no such checkpoint is pending"


@dataclass(frozen=True, slots=True)
class TriggerTasks:
    """Tell the tasks to take the checkpoint; answered by ``Triggered`` or ``TriggerFailed``."""

    pending: PendingCheckpoint


@dataclass(frozen=True, slots=True)
class CreateLink:
    """Make the checkpoint durable as the successor of the newest link; answered by one of the ``Link`` events."""

    pending: PendingCheckpoint


@dataclass(frozen=True, slots=True)
class CloseId:
    """Create the tombstone of an aborted id.

    Answered by ``IdClosed``, ``CloseFailed``, ``LinkUnknown`` or ``LinkFenced``.
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
    """Tell whoever asked that the checkpoint is complete."""

    pending: PendingCheckpoint


@dataclass(frozen=True, slots=True)
class RefuseRequest:
    """Tell whoever asked that there will be no checkpoint."""

    request: CheckpointRequest
    reason: Refusal | FailureReason
    checkpoint_id: int | None = None
    """The aborted checkpoint; None if it was never triggered."""


@dataclass(frozen=True, slots=True)
class DiscardState:
    """Delete an acknowledged state that nobody needs, unless the link of its checkpoint names it."""

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
    """This coordinator must not go on: another one may hold the chain."""

    reason: FailureReason


Action = (
    TriggerTasks
    | CreateLink
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
