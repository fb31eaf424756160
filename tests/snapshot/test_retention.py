"""Which checkpoints go at the end of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from partfile.errors import Fenced, StoreError
from partfile.snapshot.events import RequestKind
from partfile.snapshot.retention import JobEnd, Retention, end_job
from partfile.testing.faults import FailAt
from support.state.checkpoint_owner import Owner, storage

if TYPE_CHECKING:
    from pathlib import Path


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


# The three policies over the four ends of a job, on real directories.


def run_a_job(base: Path) -> Owner:
    """A job, and a file in each place."""
    one = Owner(base)
    one.start()
    for name in ("shared/a", "taskowned/a", "chk-1/a"):
        one.storage.store.create_file(f"job/{name}", b"x")
    return one


def files(base: Path) -> set[str]:
    return {str(path.relative_to(base / "job")) for path in base.rglob("*") if path.is_file()}


@pytest.mark.item("DL-01", "DL-02", "DL-03", "DL-06")
@pytest.mark.parametrize("retention", Retention)
@pytest.mark.parametrize("end", JobEnd)
def test_the_policy_decides_at_each_end(tmp_path: Path, retention: Retention, end: JobEnd) -> None:
    """Kept checkpoints stay whole and readable; deleted ones leave nothing but what tasks own."""
    run_a_job(tmp_path)
    before = files(tmp_path)
    deleted = end_job(storage(tmp_path), end, retention)
    if (retention, end) in KEPT:
        assert deleted == []
        assert files(tmp_path) == before
        assert storage(tmp_path).read_checkpoint(1) is not None
    else:
        assert deleted == [1]
        assert files(tmp_path) == {"taskowned/a"}


@pytest.mark.item("DL-01")
def test_a_crash_on_the_way_can_be_gone_on_from(tmp_path: Path) -> None:
    """Whichever deletion fails, doing it again ends it."""
    for number in (1, 2, 3):
        base = tmp_path / str(number)
        run_a_job(base)
        failing = FailAt(number, StoreError("crash"), only=["delete_file", "delete_directory"])
        with pytest.raises(StoreError, match="crash"):
            end_job(storage(base, failing), JobEnd.FINISHED, Retention.NEVER)
        end_job(storage(base), JobEnd.FINISHED, Retention.NEVER)
        assert files(base) == {"taskowned/a"}


@pytest.mark.item("DL-01")
def test_a_coordinator_that_still_runs_is_fenced(tmp_path: Path) -> None:
    """Its predecessor is gone.

    The checkpoint that it creates next does not count, and stays until the job is ended again.
    """
    one = run_a_job(tmp_path)
    end_job(storage(tmp_path), JobEnd.FINISHED, Retention.NEVER)
    with pytest.raises(Fenced):
        one.complete("a")
    assert end_job(storage(tmp_path), JobEnd.FINISHED, Retention.NEVER) == [2]
    assert files(tmp_path) == {"taskowned/a"}
    assert Owner(tmp_path).checkpoints.look() is None


@pytest.mark.item("DL-01")
def test_a_coordinator_that_was_shut_down_leaves_nothing(tmp_path: Path) -> None:
    """The right order: then the next start begins a fresh job."""
    one = run_a_job(tmp_path)
    one.checkpoints.shut_down()
    end_job(storage(tmp_path), JobEnd.FINISHED, Retention.NEVER)
    one.checkpoints.request(RequestKind.USER)
    assert files(tmp_path) == {"taskowned/a"}
    assert Owner(tmp_path).start().checkpoint_id == 1


@pytest.mark.item("DL-01")
def test_the_newest_goes_last(tmp_path: Path) -> None:
    """Wherever it stops, what is left begins with whole checkpoints that can be restored from, or is nothing."""
    for number in range(1, 10):
        base = tmp_path / str(number)
        one = Owner(base, retained=3)
        one.start()
        for text in "ab":
            one.complete(text)
        failing = FailAt(number, StoreError("crash"), only=["delete_file", "delete_directory"])
        try:
            end_job(storage(base, failing), JobEnd.FINISHED, Retention.NEVER)
        except StoreError:
            ids = storage(base).list_completed_ids()
            assert ids == list(range(4 - len(ids), 4))
            assert not ids or storage(base).read_checkpoint(3) is not None
