"""Decisions about open parts, and what the operator does when a part is taken away from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from harness import Harness

from partfile.errors import LeaseUnavailable
from partfile.sink import plan
from partfile.sink.plan import Action
from partfile.sink.policies import PartProgress, RollingPolicy
from partfile.sink.states import OpenPart
from partfile.stores.base import PartHandle

if TYPE_CHECKING:
    from pathlib import Path

POLICY = RollingPolicy(max_part_bytes=100, rollover_interval_s=10, inactivity_interval_s=5)


def part(name: str = "p", bucket: str = "b", fingerprint: str = "f", *, length: int = 10) -> OpenPart:
    handle = PartHandle(bucket=bucket, name=name, in_progress="_i", pending="_p", sidecar="_v", valid_length=length)
    return OpenPart(
        part=handle, count=0, schema_fingerprint=fingerprint, generation=3, created_at_ms=0, last_write_ms=0, rows=1
    )


@pytest.mark.parametrize(
    ("generation", "attempt", "length", "may_keep", "action"),
    [
        (3, 0, 10, True, Action.KEEP),
        (4, 0, 10, True, Action.ABANDON),
        (2, 0, 10, True, Action.ABANDON),
        (3, 1, 10, True, Action.ABANDON),
        (3, 0, 10, False, Action.ABANDON),
        (3, 0, 100, True, Action.ROLL),
        (3, 1, 100, True, Action.ABANDON),
        (3, 0, 100, False, Action.ABANDON),
    ],
)
def test_only_the_first_attempt_of_the_owning_generation_resumes(
    generation: int, attempt: int, length: int, may_keep: bool, action: Action
) -> None:
    """A part of another generation, or any part in a retry or without leases, is left alone; a full one is rolled."""
    done = plan.before_resuming(part(length=length), POLICY, generation=generation, attempt=attempt, may_keep=may_keep)
    assert done is action


@pytest.mark.parametrize(
    ("may_keep", "now_ms", "action"), [(True, 1, Action.KEEP), (False, 1, Action.ROLL), (True, 10_000, Action.ROLL)]
)
def test_what_may_not_be_kept_rolls_at_the_checkpoint(may_keep: bool, now_ms: int, action: Action) -> None:
    """Without proven leases, or with time over, a part does not stay open over a checkpoint (S13)."""
    progress = PartProgress(10, 1, 0, 0)
    assert plan.at_checkpoint(progress, POLICY, now_ms=now_ms, may_keep=may_keep) is action


def test_one_open_part_a_bucket_and_schema() -> None:
    """Of two parts of one bucket and schema the second is surplus; another schema is another part."""
    parts = [part("1"), part("2"), part("3", fingerprint="g"), part("4", bucket="c")]
    kept, surplus = plan.one_per_key(parts)
    assert [one.part.name for one in kept.values()] == ["1", "3", "4"]
    assert [one.part.name for one in surplus] == ["2"]


def test_the_least_recently_used_parts_go_first() -> None:
    """Beyond the cap the oldest go, and none if there is room."""
    keys = [("a", ""), ("b", ""), ("c", "")]
    assert plan.beyond_cap(keys, 2) == [("a", "")]
    assert plan.beyond_cap(keys, 3) == []


@pytest.mark.parametrize("deed", ["unlink", "replace"])
def test_a_part_taken_away_is_noticed_before_it_is_acknowledged(tmp_path: Path, deed: str) -> None:
    """A task whose part is no longer under its name must not vouch for its rows (S2)."""
    job = Harness(tmp_path)
    job.write("a@1")
    (staged,) = tmp_path.rglob("*.in-progress")
    staged.unlink()
    if deed == "replace":
        staged.write_text("a@1\n")
    with pytest.raises(LeaseUnavailable, match="no longer under its in-progress name"):
        job.checkpoint()


def test_two_parts_of_one_bucket_after_rescaling_are_both_finished(tmp_path: Path) -> None:
    """When a subtask inherits a second open part of a bucket, that one is rolled, and no row of it is lost."""
    job = Harness(tmp_path, 2)
    job.write("a@0", subtask=0)
    job.write("a@1", subtask=1)
    job.checkpoint()
    pending = job.coordinator.trigger(0)
    snapshot = job.operators[0].snapshot(pending.checkpoint_id)
    job.coordinator.complete(pending, [snapshot], job.coordinator.state.position)
    assert [len(parts) for parts in job.coordinator.state.open.values()] == [2]
    job.coordinator.close_all(0, keep=True)
    job.restore(1)
    job.write("a@2")
    job.checkpoint()
    assert sorted(job.finished().values()) == ["a@1\n"]
    job.restore(1)
    assert sorted(job.finished().values()) == ["a@0\na@2\n", "a@1\n"]
