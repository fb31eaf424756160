"""What a sink does for its checkpoint coordinator: its own thread runs the job, and learns here what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.filesystems.errors import PartfileError
from partfile.snapshot.requests import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from partfile.snapshot.failures import FailureReason
    from partfile.snapshot.model import OperatorState
    from partfile.snapshot.pending import PendingCheckpoint
    from partfile.snapshot.requests import CheckpointRequest


class CommitHooks:
    """The hooks of a sink that takes one checkpoint at a time and waits for it.

    Args:
        finalise: Makes the operator states of a checkpoint.
        publish: Publishes the parts of a completed checkpoint.
    """

    def __init__(
        self,
        finalise: Callable[[PendingCheckpoint], Mapping[str, OperatorState]],
        publish: Callable[[], None],
    ) -> None:
        self._finalise = finalise
        self._publish = publish
        self._failure: Exception | None = None

    def raise_failure(self) -> None:
        """Raise what has gone wrong since the last call, if anything has."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def forget_failure(self) -> None:
        """Whoever gave a checkpoint up need not be told."""
        self._failure = None

    def trigger_tasks(self, pending: PendingCheckpoint) -> None:
        """The caller of ``trigger`` runs the tasks."""

    def finalise(self, pending: PendingCheckpoint) -> Mapping[str, OperatorState]:
        """Write the state."""
        return self._finalise(pending)

    def notify_complete(self, checkpoint_id: int) -> None:  # noqa: ARG002 - the sink has the state of the newest one
        """Publish; an error waits for the thread that asked for the checkpoint, which is complete all the same."""
        try:
            self._publish()
        except Exception as error:  # noqa: BLE001 - raised again by raise_failure
            self._failure = error

    def notify_aborted(self, checkpoint_id: int, reason: FailureReason, completed_id: int) -> None:
        """The tasks have ended by then."""

    def fulfilled(self, pending: PendingCheckpoint) -> None:
        """The caller of ``complete`` sees it."""

    def refused(
        self,
        request: CheckpointRequest,  # noqa: ARG002 - there is only one at a time
        reason: Refusal | FailureReason,
        checkpoint_id: int | None,
        cause: Exception | None,
    ) -> None:
        """Keep the error for the thread that asked. Nobody asked for a periodic checkpoint that comes too soon."""
        if reason is Refusal.MINIMUM_PAUSE:
            return
        self._failure = cause or PartfileError(f"no checkpoint: {reason.value}", checkpoint_id=checkpoint_id)

    def fail_job(self, checkpoint_id: int, reason: FailureReason) -> None:
        """The thread that asked fails by the error."""
