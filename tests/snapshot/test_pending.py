"""A checkpoint between its trigger and its completion."""

from __future__ import annotations

import pytest

from partfile.filesystems.errors import OutcomeUnknown
from partfile.snapshot.model import InlineHandle, SubtaskState
from partfile.snapshot.pending import AckResult, PendingCheckpoint

PENDING = PendingCheckpoint(checkpoint_id=4, time_ms=0, submission="this")


def ack(subtask: int) -> SubtaskState:
    return SubtaskState(subtask=subtask, handle=InlineHandle(data=b""))


def test_the_first_acknowledgement_of_a_subtask_counts() -> None:
    """A second one changes nothing, and one of an earlier submission is not known."""
    once, result = PENDING.acknowledge(ack(0), "this")
    assert result is AckResult.ACCEPTED
    again, result = once.acknowledge(ack(0), "this")
    assert (again, result) == (once, AckResult.DUPLICATE)
    other, result = once.acknowledge(ack(1), "earlier")
    assert (other, result) == (once, AckResult.UNKNOWN)


@pytest.mark.parametrize("ran", [[0, 2], [1], [0, 1, 3]])
def test_a_missing_partition_is_never_taken_for_an_empty_one(ran: list[int]) -> None:
    """The subtasks must be 0 to n-1; a gap is somebody's rows missing."""
    pending = PENDING
    for subtask in ran:
        pending, _ = pending.acknowledge(ack(subtask), "this")
    with pytest.raises(OutcomeUnknown, match="without a gap"):
        pending.subtasks()


def test_acknowledgements_come_in_any_order() -> None:
    """Sorted by subtask, and none at all is a checkpoint without partitions."""
    pending = PENDING
    assert pending.subtasks() == ()
    for subtask in (2, 0, 1):
        pending, _ = pending.acknowledge(ack(subtask), "this")
    assert [one.subtask for one in pending.subtasks()] == [0, 1, 2]
