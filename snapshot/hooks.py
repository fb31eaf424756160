"""What the owner of a checkpoint coordinator does for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from partfile.snapshot.failures import FailureReason
    from partfile.snapshot.model import OperatorState
    from partfile.snapshot.pending import PendingCheckpoint
    from partfile.snapshot.requests import CheckpointRequest, Refusal


class CheckpointHooks(Protocol):
    """Called in order, one at a time, with the coordinator's lock held. They may report events; these wait their turn.

    What the notifications raise is logged, and changes nothing about the checkpoint. They are best effort: after a
    crash or an error the next one, or the next start, tells the same again.
    """

    def trigger_tasks(self, pending: PendingCheckpoint) -> None:
        """Tell the tasks to take a checkpoint. Raises if that is impossible; then the checkpoint is aborted."""

    def finalise(self, pending: PendingCheckpoint) -> Mapping[str, OperatorState]:
        """Make the state of each operator of what was acknowledged. Raises to abort the checkpoint."""

    def notify_complete(self, checkpoint_id: int) -> None:
        """The checkpoint and all before it are complete and durable."""

    def notify_aborted(self, checkpoint_id: int, reason: FailureReason, completed_id: int) -> None:
        """The checkpoint will never be complete; ``completed_id`` is the newest that is."""

    def fulfilled(self, pending: PendingCheckpoint) -> None:
        """A request has become a completed checkpoint."""

    def refused(
        self,
        request: CheckpointRequest,
        reason: Refusal | FailureReason,
        checkpoint_id: int | None,
        cause: Exception | None,
    ) -> None:
        """There will be no checkpoint for a request.

        Args:
            request: What was asked for.
            reason: Why there is none.
            checkpoint_id: The aborted checkpoint, if it had been triggered.
            cause: The error behind the reason, if there was one.
        """

    def fail_job(self, checkpoint_id: int, reason: FailureReason) -> None:
        """Too many checkpoints have failed, or one that had to succeed."""
