"""A checkpoint between its trigger and its completion: who asked for it, and which subtasks have acknowledged. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from partfile.filesystems.errors import OutcomeUnknown
from partfile.snapshot.model import StateHandle, SubtaskState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from partfile.snapshot.requests import CheckpointRequest


@dataclass(frozen=True, slots=True)
class PendingCheckpoint:
    """One triggered checkpoint. Frozen: an acknowledgement makes a new one."""

    checkpoint_id: int
    request: CheckpointRequest
    time_ms: int
    """The coordinator's batch time at the trigger, in milliseconds since the epoch."""
    deadline_ms: int
    """When it is given up, in milliseconds since the epoch."""
    expected: int | None = None
    """How many subtasks have to acknowledge, 0 to n-1; None while that is not known."""
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
            OutcomeUnknown: The subtasks are not exactly 0 to n-1: somebody's rows are missing.
        """
        if sorted(self.acknowledged) != list(range(len(self.acknowledged))):
            raise OutcomeUnknown(
                f"subtasks {sorted(self.acknowledged)} acknowledged; expected 0 to n-1 without a gap",
                checkpoint_id=self.checkpoint_id,
            )
        return tuple(
            SubtaskState(subtask=subtask, handle=self.acknowledged[subtask]) for subtask in sorted(self.acknowledged)
        )
