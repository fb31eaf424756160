"""How many failed checkpoints a job bears."""

from __future__ import annotations

import pytest

from partfile.snapshot.events import FailureReason, FailureTally

COUNTED = {"STORAGE", "ASYNC_PART", "DECLINED", "EXPIRED", "FINALIZE"}


@pytest.mark.item("CC-05")
@pytest.mark.parametrize("reason", FailureReason)
def test_only_failures_of_checkpointing_itself_count(reason: FailureReason) -> None:
    """Being in the way of something else is no failure of the job."""
    _, fails = FailureTally().failed(1, reason)
    assert fails is (reason.name in COUNTED)


@pytest.mark.item("CC-05")
@pytest.mark.parametrize("tolerable", [0, 1, 3])
def test_so_many_failures_in_a_row_are_borne_and_one_more_is_not(tolerable: int) -> None:
    """And then counting begins anew."""
    tally = FailureTally(tolerable=tolerable)
    for checkpoint_id in range(1, tolerable + 1):
        tally, fails = tally.failed(checkpoint_id, FailureReason.EXPIRED)
        assert not fails
    tally, fails = tally.failed(tolerable + 1, FailureReason.DECLINED)
    assert fails
    assert tally.counted == frozenset()


@pytest.mark.item("CC-05")
def test_an_id_counts_once_and_a_completion_begins_anew() -> None:
    """However many tasks report one checkpoint."""
    tally = FailureTally(tolerable=1)
    tally, _ = tally.failed(1, FailureReason.DECLINED)
    tally, fails = tally.failed(1, FailureReason.DECLINED)
    assert not fails
    tally, fails = tally.completed(2).failed(3, FailureReason.STORAGE)
    assert not fails
    assert tally.counted == {3}


@pytest.mark.item("CC-05")
def test_a_failure_older_than_the_last_completion_says_nothing() -> None:
    """Completions may be told in any order."""
    tally = FailureTally().completed(5).completed(4)
    assert tally.failed(4, FailureReason.EXPIRED) == (tally, False)
    assert tally.failed(6, FailureReason.EXPIRED)[1]
