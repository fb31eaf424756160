"""Decisions of the coordinator and about staging files, without any I/O."""

from __future__ import annotations

import pytest

from partfile.errors import NotReady, PartMissing
from partfile.sink import plan
from partfile.sink.encode import EncodeResult
from partfile.sink.encoded_files import EncodedFile, target_of
from partfile.sink.plan import SinkSnapshot, after_encoding, disposable, learnt_ratio
from partfile.sink.policies import RollingPolicy
from partfile.sink.states import (
    ClosedStagingFile,
    EncodedStagingFile,
    OpenPart,
    PendingPart,
    StagingFile,
    StreamPosition,
    SubtaskSnapshot,
)
from partfile.stores.base import PartHandle

# Decisions of the coordinator, without any I/O.

POLICY = RollingPolicy(max_part_bytes=100, rollover_interval_s=10, inactivity_interval_s=5)


def handle(name: str, length: int = 10) -> PartHandle:
    return PartHandle(
        bucket="b", name=name, in_progress=f"_{name}.i", pending=f"_{name}.p", sidecar=f"_{name}.v", valid_length=length
    )


def part(name: str, *, created: int = 0, written: int = 0, epoch: int = 1) -> OpenPart:
    return OpenPart(
        part=handle(name),
        count=0,
        schema_fingerprint="s",
        epoch=epoch,
        created_at_ms=created,
        last_write_ms=written,
        rows=1,
    )


def owed(name: str, since: int) -> PendingPart:
    return PendingPart(part=handle(name), rows=1, since=since)


def state(
    opened: dict[int, tuple[OpenPart, ...]],
    *,
    pending: tuple[PendingPart, ...] = (),
    parallelism: int = 2,
    kept: bool = False,
) -> SinkSnapshot:
    return SinkSnapshot(StreamPosition(chain="c" * 8, parallelism=parallelism, kept=kept), opened, pending, 3)


def names(snapshot: SinkSnapshot) -> tuple[list[str], list[str]]:
    opened = sorted(part.part.name for parts in snapshot.open.values() for part in parts)
    return opened, sorted(part.part.name for part in snapshot.pending)


def batch(before: SinkSnapshot, *snapshots: SubtaskSnapshot, now_ms: int = 0, completed: int = 7) -> SinkSnapshot:
    return plan.after_batch(
        before,
        snapshots,
        position=before.position,
        policy=POLICY,
        now_ms=now_ms,
        checkpoint_id=8,
        completed_id=completed,
    )


def begin(restored: SinkSnapshot, *, published: bool = False) -> SinkSnapshot:
    return plan.begin_epoch(restored, published=published, epoch=5, checkpoint_id=9, may_keep=True)


def test_a_start_finalizes_every_open_part() -> None:
    """After a crash no restored part stays open: all are to be cut and published, beside what is owed."""
    after = begin(state({0: (part("a"),), 1: (part("b"),)}, pending=(owed("c", 8),)))
    assert names(after) == ([], ["a", "b", "c"])
    assert [p.abandoned for p in after.pending] == [False, True, True]


def test_a_start_does_not_look_for_published_parts_again() -> None:
    """Pending parts of a checkpoint that is marked as published may have been moved by consumers.

    Open ones are finalized.
    """
    assert names(begin(state({0: (part("a"),)}, pending=(owed("c", 8),)), published=True)) == ([], ["a"])


def test_a_start_after_a_clean_stop_hands_kept_parts_over() -> None:
    """Kept parts stay open under the new epoch, and the checkpoint says nothing of keeping any more."""
    after = begin(state({0: (part("a"),)}, kept=True))
    assert names(after) == (["a"], [])
    assert after.open[0][0].epoch == 5
    assert not after.position.kept


def test_parts_whose_subtask_did_not_run_are_carried() -> None:
    """A batch that only partition 0 took part in keeps the open parts of subtask 1, distributed over the one seen."""
    after = batch(state({0: (part("a"),), 1: (part("b"),)}), SubtaskSnapshot(subtask=0, open=(part("a"),)))
    assert names(after) == (["a", "b"], [])
    assert set(after.open) == {0}
    assert after.position.parallelism == 1


@pytest.mark.fault("D8")
def test_an_empty_batch_keeps_the_assignment() -> None:
    """A batch without partitions changes nothing about who has which part."""
    before = state({0: (part("a"),), 1: (part("b"),)})
    assert batch(before).open == before.open
    assert batch(before).position.parallelism == 2


def test_parts_of_subtasks_that_did_not_run_are_dealt_out_over_those_that_did() -> None:
    """From 4 partitions to 2: subtasks 0 and 1 keep what they have, the parts of 2 and 3 go one to each."""
    before = state({n: (part(f"p{n}"),) for n in range(4)}, parallelism=4)
    after = batch(before, *[SubtaskSnapshot(subtask=n, open=(part(f"p{n}"),)) for n in range(2)])
    assert {subtask: [p.part.name for p in parts] for subtask, parts in after.open.items()} == {
        0: ["p0", "p2"],
        1: ["p1", "p3"],
    }


def test_subtasks_that_ran_keep_their_parts_when_there_are_more_of_them() -> None:
    """From 2 partitions to 7 no part moves: what hashed to a subtask hashes there again."""
    before = state({n: (part(f"p{n}"),) for n in range(2)}, parallelism=2)
    after = batch(before, *[SubtaskSnapshot(subtask=n, open=(part(f"p{n}"),)) for n in range(7)])
    assert {subtask: [p.part.name for p in parts] for subtask, parts in after.open.items()} == {
        n: [f"p{n}"] for n in range(7)
    }


def test_a_carried_part_is_rolled_when_its_time_has_come() -> None:
    """Parts of subtasks without rows are closed by age and inactivity too."""
    before = state({0: (part("a"),), 1: (part("b", created=4000, written=6000),)})
    after = batch(before, SubtaskSnapshot(subtask=5), now_ms=10_000)
    assert names(after) == (["b"], ["a"])


def test_pending_parts_an_operator_repeats_are_counted_once() -> None:
    """What an operator repeats because a notification was lost is dropped once its checkpoint is complete."""
    ack = SubtaskSnapshot(subtask=0, pending=(owed("old", 7), owed("new", 8)))
    assert names(batch(state({}), ack))[1] == ["new"]
    assert names(batch(state({}), ack, completed=6))[1] == ["new", "old"]


def test_owed_parts_stay_in_the_snapshot() -> None:
    """A part whose publication failed is in every later checkpoint until it is done."""
    assert names(batch(state({}, pending=(owed("x", 3),)), SubtaskSnapshot(subtask=0)))[1] == ["x"]


def test_the_counter_is_a_union_maximum() -> None:
    """The counter goes on from the highest any subtask has used."""
    assert (
        batch(state({}), SubtaskSnapshot(subtask=0, max_count=9), SubtaskSnapshot(subtask=1, max_count=4)).max_count
        == 9
    )
    assert batch(state({}), SubtaskSnapshot(subtask=0)).max_count == 3


def test_the_timer_closes_only_what_is_due_and_else_does_nothing() -> None:
    """Idle and aged parts are rolled; without any the very same state comes back, so no checkpoint is made."""
    before = state({0: (part("idle", created=0, written=0), part("busy", created=0, written=4000))})
    assert plan.roll_due(before, POLICY, 4999, 8) is before
    assert names(plan.roll_due(before, POLICY, 5000, 8)) == (["busy"], ["idle"])
    assert names(plan.roll_due(before, POLICY, 10_000, 8)) == ([], ["busy", "idle"])


def test_a_clean_end_publishes_or_keeps_everything() -> None:
    """on_stop decides between two states: nothing open, or everything open and marked as kept."""
    before = state({0: (part("a"),)}, pending=(owed("c", 3),))
    assert names(plan.at_clean_end(before, keep=False, checkpoint_id=8)) == ([], ["a", "c"])
    kept = plan.at_clean_end(before, keep=True, checkpoint_id=8)
    assert names(kept) == (["a"], ["c"])
    assert kept.position.kept


# Decisions about staging files, without a store: what is learnt of sizes, and when a staging file is needed no more.

MIB = 1 << 20


def staging_file(name: str, length: int = MIB) -> PartHandle:
    return PartHandle(
        bucket="b",
        name=name,
        in_progress=f"_{name}.{'0' * 32}.in-progress",
        pending=f"_{name}.{'0' * 32}.pending",
        sidecar=f"_{name}.valid-length",
        valid_length=length,
        is_staging_file=True,
    )


def closed(name: str, length: int = MIB) -> ClosedStagingFile:
    return ClosedStagingFile(
        part=staging_file(name, length), staging_file=StagingFile(spec={"format": "parquet"}), rows=1, since=3
    )


def result_of(one: ClosedStagingFile, length: int) -> EncodeResult:
    return EncodeResult(one, (EncodedFile(part=target_of(one.part).at(length), rows=one.rows, crc32=7),))


@pytest.mark.parametrize(
    ("known", "staged", "files", "learnt"),
    [
        (None, MIB, MIB // 2, 0.5),
        (1.0, MIB, MIB // 2, 0.75),
        (None, MIB - 1, MIB // 2, None),
        (0.3, MIB - 1, MIB, 0.3),
        (None, MIB, 100 * MIB, 4.0),
        (None, 1000 * MIB, 1, 0.01),
    ],
)
def test_the_ratio_follows_what_encodes_showed(
    known: float | None, staged: int, files: int, learnt: float | None
) -> None:
    """Half of what was known and half of what is new; too little says nothing, and no freak makes parts of any size."""
    file = PendingPart(part=target_of(staging_file("p")).at(files), rows=1, since=4)
    other = PendingPart(part=target_of(staging_file("row-part")).at(7 * MIB), rows=1, since=4)
    assert learnt_ratio(known, [file, other], [EncodedStagingFile(part=staging_file("p", staged), since=4)]) == learnt


def test_what_was_encoded_is_promised_and_encoded_and_the_rest_waits() -> None:
    """A file, a store that failed, and a staging file that is gone and given up."""
    done, waits, gone = (closed(name) for name in "abc")
    before = SinkSnapshot.fresh("0" * 8)
    before = SinkSnapshot(before.position, {}, (), -1, closed=(done, waits, gone))
    after = after_encoding(
        before,
        [
            result_of(done, MIB // 4),
            EncodeResult(waits, problem=NotReady("later")),
            EncodeResult(gone, problem=PartMissing("gone"), is_given_up=True),
        ],
        7,
    )
    (file,), (encoded,) = after.pending, after.encoded
    assert (file.part.name, file.part.is_staging_file, file.part.valid_length, file.since) == ("a", False, MIB // 4, 7)
    assert (file.rows, file.crc32) == (1, 7)
    assert file.part.pending != done.part.pending
    assert (encoded.part, encoded.since) == (done.part, 7)
    assert after.closed == (waits,)
    assert after.position.encoded_ratio == 0.25


def test_an_encoded_staging_file_is_needed_by_the_checkpoints_before_the_one_that_holds_its_file() -> None:
    """From the moment on that the oldest checkpoint is that one, none needs it."""
    encoded = [EncodedStagingFile(part=staging_file(str(since)), since=since) for since in (3, 4, 5)]
    assert [one.since for one in disposable(encoded, 4)] == [3, 4]
