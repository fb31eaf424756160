"""Which checkpoints go: at the end of a job, and when newer ones come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partfile.snapshot.retention import Completed, JobEnd, Retention, subsumed

KEPT = {
    (Retention.ON_FAILURE, JobEnd.FAILED),
    (Retention.ON_CANCELLATION, JobEnd.FAILED),
    (Retention.ON_CANCELLATION, JobEnd.CANCELLED),
    (Retention.ON_CANCELLATION, JobEnd.SUSPENDED),
}


@pytest.mark.item("DL-01", "DL-02", "DL-03")
@pytest.mark.parametrize("retention", Retention)
@pytest.mark.parametrize("end", JobEnd)
def test_what_outlives_its_job(retention: Retention, end: JobEnd) -> None:
    """The whole table of policies and ends."""
    assert retention.keeps_after(end) is ((retention, end) in KEPT)


def row(*shown: str) -> list[Completed]:
    """Checkpoints by their ids; ``5s`` is a savepoint, ``5e`` one that ends the job."""
    return [Completed(int(one.rstrip("se")), one[-1] in "se", one[-1] == "e") for one in shown]


@pytest.mark.item("DL-11")
@pytest.mark.parametrize(
    ("completed", "retained", "going"),
    [
        ([], 2, []),
        (["1"], 1, []),
        (["1", "2", "3", "4"], 3, [1]),
        (["1", "2", "3", "4"], 1, [1, 2, 3]),
        (["1", "2", "3"], 0, [1, 2]),
        (["1s", "2"], 1, [1]),
        (["1", "2s"], 1, []),
        (["1", "2s", "3s"], 2, [2]),
        (["1", "2", "3s"], 1, [1]),
        (["1", "2", "3e"], 1, [1, 2]),
    ],
)
def test_the_oldest_go_but_never_the_newest_nor_what_later_ones_need(
    completed: list[str], retained: int, going: list[int]
) -> None:
    """Savepoints leave the row; the last checkpoint stays until the job ends."""
    assert [one.checkpoint_id for one in subsumed(row(*completed), retained)] == going


@pytest.mark.item("DL-11")
@given(marks=st.lists(st.sampled_from(["", "s"]), min_size=1, max_size=8), retained=st.integers(1, 4))
def test_no_more_go_than_are_too_many(marks: list[str], retained: int) -> None:
    """The newest stays, and so does the newest checkpoint that is no savepoint."""
    completed = row(*(f"{number}{mark}" for number, mark in enumerate(marks)))
    going = subsumed(completed, retained)
    left = [one for one in completed if one not in going]
    assert left[-1] == completed[-1]
    assert retained <= len(left) <= retained + 1 or len(completed) < retained
    checkpoints = [one for one in completed if not one.is_savepoint]
    assert not checkpoints or checkpoints[-1] in left
