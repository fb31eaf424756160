"""The coordinator of one job, one checkpoint at a time: start, trigger, acknowledge, complete, abort, subsume."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.filesystems.errors import PartfileError
from partfile.filesystems.tokens import new_token
from partfile.snapshot.chain import Chain
from partfile.snapshot.model import CheckpointMetadata
from partfile.snapshot.pending import PendingCheckpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from partfile.snapshot.model import OperatorState
    from partfile.snapshot.storage import CheckpointStorage

Operators = dict[str, "OperatorState"]


class CheckpointCoordinator:
    """Completes the checkpoints of one job.

    Knows which state a link holds, never what it means: the owner passes operator states in and gets them back.

    Args:
        storage: The job's checkpoints.
        writer: Version of the program, written into every link.
        retained: Links holding state that are kept, at least 1.
    """

    def __init__(self, storage: CheckpointStorage, *, writer: str, retained: int = 2) -> None:
        self.storage = storage
        self._writer = writer
        self._chain = Chain(storage, retained=retained)
        self._pending: PendingCheckpoint | None = None

    @property
    def newest(self) -> CheckpointMetadata:
        """The newest link, created by this coordinator."""
        return self._chain.newest

    @property
    def completed_id(self) -> int:
        """Id of the newest completed checkpoint; an aborted id's tombstone is none."""
        return self._chain.newest_state_id

    @property
    def pending(self) -> PendingCheckpoint | None:
        """The triggered checkpoint, if there is one."""
        return self._pending

    def look(self) -> CheckpointMetadata | None:
        """The newest link that holds state, without changing anything."""
        return self._chain.look()[1]

    def start(
        self, restore: Callable[[CheckpointMetadata | None, int], Mapping[str, OperatorState]], time_ms: int
    ) -> CheckpointMetadata:
        """Begin a generation: create the fence link, and only then own the job (S7).

        Args:
            restore: From the newest link that holds state (None for a fresh job) and the id of the link to come,
                makes the operator states to begin with. It is called again if another coordinator was faster, and
                may raise to refuse; then nothing has been created.
            time_ms: The coordinator's time, in milliseconds since the epoch.
        """

        def successor(restored: CheckpointMetadata | None, checkpoint_id: int) -> CheckpointMetadata:
            generation = restored.generation + 1 if restored else 1
            operators = dict(restore(restored, checkpoint_id))
            return self._link("fence", checkpoint_id, generation, time_ms, operators)

        self._pending = None
        return self._chain.start(successor)

    def trigger(self, time_ms: int) -> PendingCheckpoint:
        """Begin the next checkpoint. An older one that is still pending is aborted without a tombstone.

        Its id has not been used by a link, so the new trigger takes it, under a submission nonce of its own.
        """
        self._pending = PendingCheckpoint(
            checkpoint_id=self.newest.checkpoint_id + 1, time_ms=time_ms, submission=new_token()
        )
        return self._pending

    def acknowledge(self, pending: PendingCheckpoint) -> None:
        """Keep the pending checkpoint with the acknowledgements that have come in."""
        if self._pending is None or pending.submission != self._pending.submission:
            raise PartfileError("this checkpoint is not pending any more", checkpoint_id=pending.checkpoint_id)
        self._pending = pending

    def complete(self, operators: Mapping[str, OperatorState]) -> CheckpointMetadata:
        """Make the pending checkpoint durable: create its link.

        Raises:
            Fenced: Another coordinator has taken over.
            OutcomeUnknown: It may be complete; begin a new generation to find out.
        """
        if self._pending is None:
            raise PartfileError("no checkpoint is pending; trigger one first")
        pending, self._pending = self._pending, None
        link = self._link("checkpoint", pending.checkpoint_id, self.newest.generation, pending.time_ms, dict(operators))
        return self._chain.extend(link)

    def abort(self) -> None:
        """Give the pending checkpoint up and close its id with a tombstone, so that it is never used again."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._chain.close_id(pending.checkpoint_id, pending.time_ms, self._writer)

    def subsume(self) -> list[int]:
        """Delete the checkpoints beyond the retained ones, oldest first; return their ids."""
        return self._chain.subsume()

    def _link(
        self, kind: str, checkpoint_id: int, generation: int, time_ms: int, operators: Operators
    ) -> CheckpointMetadata:
        return CheckpointMetadata.model_validate(
            {
                "checkpoint_id": checkpoint_id,
                "kind": kind,
                "job": self.storage.job,
                "generation": generation,
                "nonce": new_token(),
                "predecessor": None,
                "time_ms": time_ms,
                "writer": self._writer,
                "operators": operators,
            }
        )
