"""What of a channel is persisted, and the life of what was written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from partfile.errors import PartfileError
from partfile.pipeline.channel_state import (
    MAX_RESULTS,
    Abort,
    AddBatches,
    ChannelPersister,
    ChannelStatus,
    CompleteResult,
    DropFile,
    FailResult,
    FinishSide,
    LossReason,
    Side,
    Start,
    TakeResult,
    WriteBatches,
    WriterState,
    step,
)

if TYPE_CHECKING:
    from partfile.pipeline.channel_state import WriterAction, WriterEvent

PENDING, RECEIVED, COMPLETED = (
    ChannelStatus.BARRIER_PENDING,
    ChannelStatus.BARRIER_RECEIVED,
    ChannelStatus.COMPLETED,
)


def arrived(persister: ChannelPersister, *batches: str) -> tuple[ChannelPersister, list[str]]:
    """Batches arrive; those that are persisted."""
    persisted = []
    for batch in batches:
        persister, is_persisted = persister.batch_arrived()
        persisted += [batch] * is_persisted
    return persister, persisted


@pytest.mark.item("UC-12")
def test_a_channel_persists_from_a_new_checkpoint_to_its_own_barrier() -> None:
    """Each new id begins anew."""
    persister = ChannelPersister()
    assert persister.status is COMPLETED
    for checkpoint_id in (5, 6):
        persister, _ = persister.start(checkpoint_id, [])
        assert (persister.status, persister.newest_id) == (PENDING, checkpoint_id)
        persister = persister.barrier_arrived(checkpoint_id)
        assert persister.status is RECEIVED
    assert persister.stop(6).status is COMPLETED


@pytest.mark.item("UC-13")
def test_what_waits_and_what_comes_before_the_barrier_is_persisted() -> None:
    """The queue at the snapshot, and every batch that arrives until the barrier; none behind it."""
    persister, _ = arrived(ChannelPersister(), "a", "b")
    persister, queued = persister.start(5, ["a", "b"])
    assert queued == ["a", "b"]
    persister, persisted = arrived(persister, "c", "d")
    assert persisted == ["c", "d"]
    persister = persister.barrier_arrived(5)
    _, persisted = arrived(persister, "e")
    assert persisted == []


@pytest.mark.item("UC-13")
def test_a_queue_is_persisted_up_to_its_barrier() -> None:
    """The barrier is here, taken ahead of its turn or not at all: what waits ahead of it is persisted, and no more."""
    persister, _ = arrived(ChannelPersister(), "a", "b", "c")
    persister, persisted = arrived(persister.barrier_arrived(5), "d", "e")
    assert persisted == []
    for queue, ahead in (("abcde", "abc"), ("cde", "c"), ("de", ""), ("e", ""), ("", "")):
        assert persister.start(5, [*queue])[1] == [*ahead]
    assert arrived(persister.start(5, [*"cde"])[0], "f")[1] == []


@pytest.mark.item("UC-14")
def test_a_channel_whose_barrier_came_in_its_turn_persists_nothing() -> None:
    """All that was ahead of the barrier has been processed."""
    persister = ChannelPersister().barrier_arrived(5)
    assert persister.start(5, ["a"])[1] == ["a"]
    persister, _ = arrived(persister, "a", "b")
    assert persister.start(5, ["a", "b"]) == (persister, [])


@pytest.mark.item("UC-18")
def test_an_older_barrier_changes_nothing() -> None:
    """Neither while a newer one is waited for, nor when that is here."""
    pending, _ = ChannelPersister().start(6, [])
    assert pending.barrier_arrived(5) == pending
    received = pending.barrier_arrived(6)
    assert received.barrier_arrived(5) == received
    assert received.stop(6).barrier_arrived(6) == received.stop(6)


@pytest.mark.item("UC-19")
def test_a_newer_barrier_ends_what_is_persisted_for_the_older() -> None:
    """What comes behind it is counted from it."""
    persister, _ = ChannelPersister().start(5, [])
    persister, _ = arrived(persister.barrier_arrived(6), "b")
    assert persister.start(6, ["a", "b"])[1] == ["a"]


@pytest.mark.item("UC-13", "UC-19")
def test_a_start_that_a_newer_barrier_has_passed_says_so() -> None:
    """Where that one's place is is all that the channel knows; the older checkpoint has no channel state."""
    persister = ChannelPersister().barrier_arrived(6)
    assert persister.start(5, ["a"]) == (persister, None)
    over = persister.stop(6)
    assert over.start(6, ["a"]) == (over, None)
    assert over.start(7, ["a"])[1] == ["a"]


@pytest.mark.item("UC-12")
def test_the_end_of_an_older_checkpoint_stops_nothing() -> None:
    """A newer one is being persisted."""
    persister, _ = ChannelPersister().start(6, [])
    assert persister.stop(5) == persister
    assert persister.stop(7).status is COMPLETED


# The writer.


class Writer:
    """A writer that is told one thing after the other."""

    def __init__(self) -> None:
        self.state = WriterState()

    def tell(self, *events: WriterEvent) -> list[WriterAction]:
        """What it does about them."""
        done: list[WriterAction] = []
        for event in events:
            self.state, actions = step(self.state, event)
            done += actions
        return done

    def whole(self, checkpoint_id: int) -> list[WriterAction]:
        """It writes a checkpoint that holds nothing."""
        sides = (FinishSide(checkpoint_id, side) for side in Side)
        return self.tell(Start(checkpoint_id), *sides)


def of(checkpoint_id: int, side: Side = Side.INPUT, nbytes: int = 10) -> AddBatches:
    """Two batches of channel 1."""
    return AddBatches(checkpoint_id, side, 1, ("a", "b"), nbytes)


@pytest.mark.item("UC-27", "UC-36")
def test_a_result_is_whole_when_both_sides_are() -> None:
    """It tells its batches and bytes, and holds what was added in that order."""
    writer = Writer()
    inputs, outputs = of(5), of(5, Side.OUTPUT, 7)
    assert writer.tell(Start(5), inputs, FinishSide(5, Side.INPUT)) == [WriteBatches(inputs)]
    assert writer.tell(outputs) == [WriteBatches(outputs)]
    assert writer.tell(FinishSide(5, Side.OUTPUT)) == [CompleteResult(5, batches=4, nbytes=17)]
    assert writer.state.results == {5}
    assert writer.tell(TakeResult(5)) == []
    assert writer.state.results == frozenset()


@pytest.mark.item("UC-27")
def test_a_result_without_batches_has_no_file() -> None:
    """Nothing is written for it."""
    nothing = AddBatches(5, Side.INPUT, 0, (), 0)
    assert Writer().tell(Start(5), nothing, *(FinishSide(5, side) for side in Side)) == [CompleteResult(5, 0, 0)]


@pytest.mark.item("UC-27")
def test_an_abort_drops_what_was_written() -> None:
    """At any time; what comes later for it is dropped as well, and it fails if it is started afterwards."""
    writer = Writer()
    writer.tell(Start(5), of(5))
    assert writer.tell(Abort(5)) == [DropFile(5), FailResult(5, LossReason.ABORTED)]
    assert writer.tell(of(5), FinishSide(5, Side.INPUT), FinishSide(5, Side.OUTPUT), Abort(5)) == []
    assert writer.tell(Abort(7), Start(6)) == [FailResult(6, LossReason.ABORTED)]
    assert writer.tell(Start(7)) == [FailResult(7, LossReason.ABORTED)]
    assert writer.whole(8) == [CompleteResult(8, 0, 0)]


@pytest.mark.item("UC-27")
def test_an_abort_drops_a_result_that_no_checkpoint_has_taken() -> None:
    """Up to its id, and not the one that is being written for a newer checkpoint."""
    writer = Writer()
    writer.whole(5)
    writer.whole(6)
    writer.tell(Start(7))
    assert writer.tell(Abort(5)) == [DropFile(5)]
    assert writer.state.results == {6}
    assert writer.tell(FinishSide(7, Side.INPUT), FinishSide(7, Side.OUTPUT)) == [CompleteResult(7, 0, 0)]


@pytest.mark.item("UC-19", "UC-27")
def test_a_newer_start_ends_the_older() -> None:
    """Its file is dropped, and its checkpoint is told."""
    writer = Writer()
    writer.tell(Start(5), of(5))
    assert writer.tell(Start(6)) == [DropFile(5), FailResult(5, LossReason.SUBSUMED)]
    assert writer.tell(of(5)) == []


@pytest.mark.item("UC-28")
@pytest.mark.parametrize("checkpoint_id", [4, 5])
def test_a_second_start_is_an_error(checkpoint_id: int) -> None:
    """Of the same checkpoint, and of an older one."""
    writer = Writer()
    writer.tell(Start(5))
    with pytest.raises(PartfileError, match="started for checkpoint 5 already"):
        writer.tell(Start(checkpoint_id))


@pytest.mark.item("UC-28")
def test_results_that_are_not_taken_are_limited() -> None:
    """A leak shows itself; taking one makes room."""
    writer = Writer()
    for checkpoint_id in range(1, MAX_RESULTS + 1):
        writer.whole(checkpoint_id)
    with pytest.raises(PartfileError, match="not taken"):
        writer.tell(Start(MAX_RESULTS + 1))
    writer.tell(TakeResult(1))
    assert writer.tell(Start(MAX_RESULTS + 1)) == []


@pytest.mark.item("UC-27")
@pytest.mark.parametrize("late", [of(5), FinishSide(5, Side.INPUT)])
def test_what_comes_before_the_start_or_after_the_end_is_an_error(late: WriterEvent) -> None:
    """It would be lost, or never whole."""
    writer = Writer()
    with pytest.raises(PartfileError, match="no channel state"):
        writer.tell(late)
    writer.tell(Start(5), FinishSide(5, Side.INPUT))
    with pytest.raises(PartfileError, match="input side has been finished"):
        writer.tell(late)
    writer.tell(FinishSide(5, Side.OUTPUT))
    with pytest.raises(PartfileError, match="no channel state"):
        writer.tell(late)
