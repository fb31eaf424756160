"""A checkpoint between its trigger and its completion."""

from __future__ import annotations

import pytest

from partfile.errors import OutcomeUnknown
from partfile.snapshot.documents import InlineHandle
from partfile.snapshot.events import CheckpointRequest, PendingCheckpoint, RequestKind

PENDING = PendingCheckpoint(4, CheckpointRequest(1, RequestKind.USER, 0, submission="this"), time_ms=0, deadline_ms=9)
HANDLE = InlineHandle(data=b"")


def acknowledged_by(*subtasks: int) -> PendingCheckpoint:
    pending = PENDING
    for subtask in subtasks:
        pending = pending.with_acknowledgement(subtask, HANDLE)
    return pending


@pytest.mark.item("CC-01")
def test_it_is_acknowledged_when_all_have_and_their_number_is_known() -> None:
    """Without the number it never is, not even with none expected for certain."""
    assert not acknowledged_by(0, 1).is_acknowledged
    assert not acknowledged_by(0).expecting(2).is_acknowledged
    assert acknowledged_by(0, 1).expecting(2).is_acknowledged
    assert PENDING.expecting(0).is_acknowledged


@pytest.mark.item("CC-13")
def test_who_takes_no_part_is_left_out_when_the_number_becomes_known() -> None:
    """A third subtask of two cannot stand in for a missing one."""
    pending = acknowledged_by(0, 2).expecting(2)
    assert sorted(pending.acknowledged) == [0]
    assert not pending.is_acknowledged
    assert (pending.waits_for(0), pending.waits_for(1), pending.waits_for(2)) == (False, True, False)
    assert not pending.has_place_for(-1)


@pytest.mark.parametrize("ran", [[0, 2], [1], [0, 1, 3]])
def test_a_missing_partition_is_never_taken_for_an_empty_one(ran: list[int]) -> None:
    """The subtasks must be 0 to n-1; a gap is somebody's rows missing."""
    with pytest.raises(OutcomeUnknown, match="without a gap"):
        acknowledged_by(*ran).subtasks()


@pytest.mark.fault("D15")
def test_acknowledgements_come_in_any_order() -> None:
    """Sorted by subtask, and none at all is a checkpoint without partitions."""
    assert PENDING.subtasks() == ()
    assert [one.subtask for one in acknowledged_by(2, 0, 1).subtasks()] == [0, 1, 2]
