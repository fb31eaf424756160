"""What a subtask does with barriers: the aligner, the handler that lets them overtake, the tracker."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import pytest

from partfile.errors import PartfileError
from partfile.pipeline.barrier_handlers import MAX_TRACKED, begin, step
from partfile.pipeline.barriers import (
    AbortCheckpoint,
    AbortReason,
    AlignmentMetrics,
    AlignmentState,
    AllBarriersReceived,
    Barrier,
    BarrierAnnounced,
    BarrierReceived,
    BarrierRules,
    Block,
    BytesProcessed,
    CancelReceived,
    ChannelEnded,
    CheckpointingMode,
    PersistInputs,
    Phase,
    Prioritize,
    Resume,
    SetTimer,
    TakeSnapshot,
    Tick,
)

if TYPE_CHECKING:
    from partfile.pipeline.barriers import Action, Event

ALIGNED = BarrierRules()
UNALIGNED = BarrierRules(is_unaligned=True)
TIMEOUT_MS = 100
WITH_TIMEOUT = BarrierRules(is_unaligned=True, aligned_timeout_ms=TIMEOUT_MS)
TRACKED = BarrierRules(mode=CheckpointingMode.AT_LEAST_ONCE)
ALL_RULES = {"aligned": ALIGNED, "unaligned": UNALIGNED, "with timeout": WITH_TIMEOUT, "tracked": TRACKED}
TRIGGERED_MS = 1000

Kind = TypeVar("Kind")


class Subject:
    """A handler that is told one thing after the other; its barriers are as its rules say."""

    def __init__(self, rules: BarrierRules, *gates: int) -> None:
        self.rules = rules
        self.state = begin(rules, gates or (2,))
        self.now_ms = TRIGGERED_MS

    def tell(self, event: Event) -> tuple[Action, ...]:
        """What it does about an event."""
        self.state, actions = step(self.state, event, self.now_ms)
        return actions

    def barrier(self, checkpoint_id: int, *, is_savepoint: bool = False) -> Barrier:
        """The barrier that this job's sources send."""
        return self.rules.barrier(checkpoint_id, TRIGGERED_MS, is_savepoint=is_savepoint)

    def take(self, channel: int, checkpoint_id: int) -> tuple[Action, ...]:
        """It takes a checkpoint's barrier from a channel."""
        return self.tell(BarrierReceived(channel, self.barrier(checkpoint_id)))

    def alignment_phase(self) -> Phase | None:
        """Where its alignment is; None if there is none."""
        assert isinstance(self.state, AlignmentState)
        return None if self.state.alignment is None else self.state.alignment.phase


def only(kind: type[Kind], actions: tuple[Action, ...]) -> list[Kind]:
    """The actions of one kind."""
    return [action for action in actions if isinstance(action, kind)]


def aborted(actions: tuple[Action, ...]) -> list[tuple[int, AbortReason]]:
    """The checkpoints that are given up, and why."""
    return [(action.checkpoint_id, action.reason) for action in only(AbortCheckpoint, actions)]


def snapshots(actions: tuple[Action, ...]) -> list[int]:
    """The checkpoints whose snapshot is taken."""
    return [action.barrier.checkpoint_id for action in only(TakeSnapshot, actions)]


def whole(actions: tuple[Action, ...]) -> list[int]:
    """The checkpoints all of whose barriers are there."""
    return [action.checkpoint_id for action in only(AllBarriersReceived, actions)]


# The aligner.


@pytest.mark.item("UC-02")
def test_an_aligner_blocks_each_channel_until_the_last_barrier() -> None:
    """Then it takes the snapshot, and only then are the channels read again."""
    subject = Subject(ALIGNED, 3)
    assert subject.alignment_phase() is None
    assert subject.take(1, 5) == (Block(1),)
    assert subject.alignment_phase() is Phase.COLLECTING
    assert subject.take(0, 5) == (Block(0),)
    actions = subject.take(2, 5)
    assert [type(action) for action in actions] == [TakeSnapshot, AllBarriersReceived, Resume]
    assert snapshots(actions) == [5]
    assert only(Resume, actions) == [Resume((1, 0))]
    assert subject.alignment_phase() is None


@pytest.mark.item("UC-02")
def test_a_closed_channel_counts_as_aligned() -> None:
    """Barriers and closed channels together make the number that the snapshot waits for."""
    subject = Subject(ALIGNED, 3)
    subject.take(0, 5)
    assert subject.tell(ChannelEnded(1)) == ()
    assert snapshots(subject.take(2, 5)) == [5]


@pytest.mark.item("UC-03")
def test_with_one_channel_the_snapshot_is_taken_at_once() -> None:
    """Nothing is blocked for it."""
    subject = Subject(ALIGNED, 1)
    actions = subject.take(0, 5)
    assert [type(action) for action in actions] == [TakeSnapshot, AllBarriersReceived]


@pytest.mark.item("UC-04", "UC-19")
@pytest.mark.parametrize("rules", [ALIGNED, UNALIGNED, WITH_TIMEOUT])
def test_a_newer_barrier_ends_the_checkpoint_before_it(rules: BarrierRules) -> None:
    """First the older one is given up and its channels are read again, then the new one begins."""
    subject = Subject(rules)
    blocked = only(Block, subject.take(0, 5))
    actions = subject.take(1, 6)
    assert actions[0] == AbortCheckpoint(5, AbortReason.SUBSUMED)
    assert only(Resume, actions) == ([Resume((0,))] if blocked else [])
    assert isinstance(subject.state, AlignmentState)
    assert subject.state.newest_id == 6
    assert snapshots(subject.take(0, 6) + actions) == [6]


@pytest.mark.item("UC-05", "UC-18")
@pytest.mark.parametrize("rules", [ALIGNED, UNALIGNED, WITH_TIMEOUT, TRACKED])
def test_a_late_barrier_is_dropped_and_its_channel_is_read_on(rules: BarrierRules) -> None:
    """It neither ends the newer checkpoint nor counts for it."""
    subject = Subject(rules)
    subject.take(0, 6)
    before = subject.state
    assert subject.take(1, 5) == ()
    assert subject.state == before
    assert whole(subject.take(1, 6)) == [6]


@pytest.mark.item("UC-05", "UC-18")
@pytest.mark.parametrize("rules", ALL_RULES.values(), ids=ALL_RULES)
def test_a_barrier_of_a_complete_checkpoint_is_dropped(rules: BarrierRules) -> None:
    """Of a checkpoint that is over nothing begins again."""
    subject = Subject(rules, 1)
    assert snapshots(subject.take(0, 5)) == [5]
    assert subject.take(0, 5) == ()


@pytest.mark.item("UC-06")
@pytest.mark.parametrize("rules", ALL_RULES.values(), ids=ALL_RULES)
def test_a_doubled_barrier_is_an_error(rules: BarrierRules) -> None:
    """The channel is damaged: it must not count twice in place of another channel's barrier."""
    subject = Subject(rules)
    subject.take(0, 5)
    with pytest.raises(PartfileError, match="channel 0 has sent one barrier twice") as raised:
        subject.take(0, 5)
    assert raised.value.checkpoint_id == 5


@pytest.mark.parametrize("rules", ALL_RULES.values(), ids=ALL_RULES)
def test_a_barrier_behind_the_end_of_its_channel_is_an_error(rules: BarrierRules) -> None:
    """It would count in place of an open channel's."""
    subject = Subject(rules)
    subject.tell(ChannelEnded(0))
    with pytest.raises(PartfileError, match="or one behind its end"):
        subject.take(0, 5)


@pytest.mark.item("UC-07")
@pytest.mark.parametrize("rules", [ALIGNED, UNALIGNED, WITH_TIMEOUT])
def test_a_cancellation_of_the_current_checkpoint_ends_it(rules: BarrierRules) -> None:
    """The blocked channels are read again, and its other barriers begin nothing."""
    subject = Subject(rules)
    blocked = only(Block, subject.take(0, 5))
    actions = subject.tell(CancelReceived(1, 5))
    assert aborted(actions) == [(5, AbortReason.CANCELLED)]
    assert only(Resume, actions) == ([Resume((0,))] if blocked else [])
    assert subject.tell(CancelReceived(0, 5)) == ()


@pytest.mark.item("UC-07")
@pytest.mark.parametrize("rules", ALL_RULES.values(), ids=ALL_RULES)
def test_barriers_of_a_cancelled_checkpoint_never_begin_an_alignment(rules: BarrierRules) -> None:
    """The cancellation came first; what is sent on is told once."""
    subject = Subject(rules)
    assert aborted(subject.tell(CancelReceived(0, 5))) == [(5, AbortReason.CANCELLED)]
    assert subject.take(1, 5) == ()
    assert subject.tell(CancelReceived(1, 5)) == ()
    assert whole(subject.take(0, 6) + subject.take(1, 6)) == [6]


@pytest.mark.item("UC-07")
@pytest.mark.parametrize("rules", [ALIGNED, UNALIGNED, WITH_TIMEOUT])
def test_a_newer_cancellation_ends_the_current_checkpoint_too(rules: BarrierRules) -> None:
    """Both are given up: the channel that tells of the newer one sends no barrier of the older any more."""
    subject = Subject(rules)
    subject.take(0, 5)
    actions = subject.tell(CancelReceived(1, 6))
    assert aborted(actions) == [(5, AbortReason.SUBSUMED), (6, AbortReason.CANCELLED)]
    assert subject.take(0, 6) == ()
    assert subject.take(1, 5) == ()


@pytest.mark.item("UC-07")
@pytest.mark.parametrize("rules", ALL_RULES.values(), ids=ALL_RULES)
def test_an_older_cancellation_is_ignored(rules: BarrierRules) -> None:
    """The newer checkpoint goes on."""
    subject = Subject(rules)
    subject.take(0, 6)
    assert subject.tell(CancelReceived(1, 5)) == ()
    assert whole(subject.take(1, 6)) == [6]


@pytest.mark.item("UC-08")
@pytest.mark.parametrize("rules", [ALIGNED, WITH_TIMEOUT, TRACKED])
def test_the_end_of_a_channel_counts_as_its_barrier(rules: BarrierRules) -> None:
    """If it is the last that was missing, the snapshot is taken."""
    subject = Subject(rules)
    subject.take(0, 5)
    actions = subject.tell(ChannelEnded(1))
    assert snapshots(actions) == [5]
    assert whole(actions) == [5]
    assert only(Resume, actions) == ([] if rules is TRACKED else [Resume((0,))])
    assert snapshots(subject.take(0, 6)) == [6]


@pytest.mark.item("UC-08")
def test_the_end_of_a_channel_completes_what_is_persisted() -> None:
    """All that the channel has brought was persisted or processed."""
    subject = Subject(UNALIGNED)
    assert snapshots(subject.take(0, 5)) == [5]
    actions = subject.tell(ChannelEnded(1))
    assert snapshots(actions) == []
    assert whole(actions) == [5]


@pytest.mark.item("UC-08")
@pytest.mark.parametrize("timeout_ms", [0, TIMEOUT_MS])
@pytest.mark.parametrize("is_unaligned", [False, True])
def test_the_end_of_a_channel_aborts_if_the_rules_say_so(timeout_ms: int, is_unaligned: bool) -> None:
    """As in Flink 1.11: without a checkpoint under way it aborts nothing."""
    rules = BarrierRules(is_unaligned=is_unaligned, aligned_timeout_ms=timeout_ms, end_aborts=True)
    subject = Subject(rules, 3)
    assert subject.tell(ChannelEnded(2)) == ()
    subject.take(0, 5)
    assert aborted(subject.tell(ChannelEnded(1))) == [(5, AbortReason.INPUT_ENDED)]
    assert subject.take(0, 5) == ()
    assert whole(subject.take(0, 6)) == [6]


@pytest.mark.item("UC-08")
def test_the_end_of_a_channel_aborts_all_that_a_tracker_counts() -> None:
    """If the rules say so."""
    subject = Subject(BarrierRules(mode=CheckpointingMode.AT_LEAST_ONCE, end_aborts=True))
    subject.take(0, 5)
    subject.take(0, 6)
    reasons = [(5, AbortReason.INPUT_ENDED), (6, AbortReason.INPUT_ENDED)]
    assert aborted(subject.tell(ChannelEnded(1))) == reasons
    assert subject.take(0, 6) == ()


@pytest.mark.item("UC-08")
@pytest.mark.parametrize("rules", ALL_RULES.values(), ids=ALL_RULES)
def test_a_channel_that_ends_behind_its_barrier_counts_once(rules: BarrierRules) -> None:
    """Nor does it count again if its end is told twice."""
    subject = Subject(rules, 3)
    subject.take(0, 5)
    for _ in range(2):
        assert subject.tell(ChannelEnded(0)) == ()
    assert whole(subject.take(1, 5)) == []
    assert whole(subject.take(2, 5)) == [5]


# The tracker.


@pytest.mark.item("UC-09")
def test_a_tracker_counts_and_blocks_nothing() -> None:
    """The snapshot is taken at the last barrier, over all channels of all gates."""
    subject = Subject(TRACKED, 1, 2)
    assert subject.take(0, 5) == ()
    assert subject.take(2, 5) == ()
    actions = subject.take(1, 5)
    assert [type(action) for action in actions] == [TakeSnapshot, AllBarriersReceived]


@pytest.mark.item("UC-09")
def test_a_complete_checkpoint_drops_those_before_it() -> None:
    """Their last barriers are late."""
    subject = Subject(TRACKED)
    for checkpoint_id in (5, 6, 7):
        assert subject.take(0, checkpoint_id) == ()
    assert snapshots(subject.take(1, 6)) == [6]
    assert subject.take(1, 5) == ()
    assert snapshots(subject.take(1, 7)) == [7]


@pytest.mark.item("UC-09")
def test_a_tracker_remembers_a_limited_number_of_checkpoints() -> None:
    """The oldest is forgotten, and stays so."""
    subject = Subject(TRACKED)
    for checkpoint_id in range(1, MAX_TRACKED + 2):
        subject.take(0, checkpoint_id)
    assert subject.take(1, 1) == ()
    assert snapshots(subject.take(1, 2)) == [2]


@pytest.mark.item("UC-09")
def test_the_end_of_a_channel_completes_the_newest_of_a_tracker() -> None:
    """Both checkpoints waited for this channel alone; the older one is not needed."""
    subject = Subject(TRACKED)
    subject.take(0, 5)
    subject.take(0, 6)
    assert snapshots(subject.tell(ChannelEnded(1))) == [6]
    assert snapshots(subject.take(0, 7)) == [7]


@pytest.mark.item("UC-07", "UC-09")
def test_a_cancellation_ends_what_a_tracker_counts_up_to_it() -> None:
    """Later ones go on."""
    subject = Subject(TRACKED)
    for checkpoint_id in (5, 6, 7):
        subject.take(0, checkpoint_id)
    assert aborted(subject.tell(CancelReceived(1, 6))) == [(6, AbortReason.CANCELLED)]
    assert subject.take(1, 6) == ()
    assert subject.take(1, 5) == ()
    assert snapshots(subject.take(1, 7)) == [7]


# Barriers that overtake.


@pytest.mark.item("UC-10", "UC-11", "UC-17")
def test_the_first_barrier_takes_the_snapshot_and_blocks_nothing() -> None:
    """The inputs are whole with the last barrier."""
    subject = Subject(UNALIGNED, 3)
    first = subject.take(1, 5)
    barrier = subject.barrier(5)
    assert first == (PersistInputs(barrier), TakeSnapshot(barrier))
    assert subject.alignment_phase() is Phase.COLLECTING
    assert subject.take(0, 5) == ()
    last = subject.take(2, 5)
    assert [type(action) for action in last] == [AllBarriersReceived]


@pytest.mark.item("UC-17", "UC-30")
@pytest.mark.parametrize("rules", ALL_RULES.values(), ids=ALL_RULES)
def test_the_inputs_are_whole_when_those_of_both_gates_are(rules: BarrierRules) -> None:
    """An operator with two inputs waits for both, and is told once."""
    subject = Subject(rules, 1, 2)
    assert whole(subject.take(1, 5) + subject.take(2, 5)) == []
    assert whole(subject.take(0, 5)) == [5]


@pytest.mark.item("UC-17", "UC-19")
def test_what_was_persisted_is_dropped_at_a_newer_barrier() -> None:
    """The older checkpoint is given up before the newer one is begun, and is never whole."""
    subject = Subject(UNALIGNED)
    subject.take(0, 5)
    actions = subject.take(0, 6)
    assert [type(action) for action in actions] == [AbortCheckpoint, PersistInputs, TakeSnapshot]
    assert whole(subject.take(1, 5)) == []
    assert whole(subject.take(1, 6)) == [6]


@pytest.mark.item("UC-20")
def test_a_savepoint_is_aligned_and_ends_the_unaligned_checkpoint() -> None:
    """And the other way round; a barrier of an older one is late in both."""
    subject = Subject(UNALIGNED)
    subject.take(0, 5)
    actions = subject.tell(BarrierReceived(0, subject.barrier(6, is_savepoint=True)))
    assert aborted(actions) == [(5, AbortReason.SUBSUMED)]
    assert only(Block, actions) == [Block(0)]
    assert snapshots(actions) == []
    assert subject.take(1, 5) == ()
    actions = subject.take(1, 7)
    assert aborted(actions) == [(6, AbortReason.SUBSUMED)]
    assert only(Resume, actions) == [Resume((0,))]
    assert snapshots(actions) == [7]


@pytest.mark.item("UC-35")
def test_within_the_timeout_barriers_are_aligned() -> None:
    """The timer is for the time of the trigger plus the timeout; when it comes too late, it changes nothing."""
    subject = Subject(WITH_TIMEOUT)
    assert subject.take(0, 5) == (SetTimer(TRIGGERED_MS + TIMEOUT_MS), Block(0))
    subject.now_ms += TIMEOUT_MS - 1
    actions = subject.take(1, 5)
    assert [type(action) for action in actions] == [TakeSnapshot, AllBarriersReceived, Resume]
    assert not only(TakeSnapshot, actions)[0].barrier.is_unaligned
    subject.now_ms += TIMEOUT_MS
    assert subject.tell(Tick()) == ()


@pytest.mark.item("UC-35", "UC-11")
def test_after_the_timeout_the_snapshot_is_taken_and_no_channel_waits_any_more() -> None:
    """The blocked channel is read again although other barriers are missing, and the next barrier blocks none."""
    subject = Subject(WITH_TIMEOUT, 3)
    subject.take(0, 5)
    subject.now_ms += TIMEOUT_MS
    actions = subject.tell(Tick())
    unaligned = subject.barrier(5).unaligned()
    assert actions == (PersistInputs(unaligned), TakeSnapshot(unaligned), Resume((0,)))
    assert subject.take(1, 5) == ()
    assert whole(subject.take(2, 5)) == [5]


@pytest.mark.item("UC-35")
def test_the_timeout_is_looked_at_with_each_barrier() -> None:
    """A timer that comes late delays nothing. With the last barrier there is nothing to overtake."""
    subject = Subject(WITH_TIMEOUT, 3)
    subject.take(0, 5)
    subject.now_ms += TIMEOUT_MS
    actions = subject.take(1, 5)
    assert only(Block, actions) == []
    assert only(TakeSnapshot, actions) == [TakeSnapshot(subject.barrier(5).unaligned())]
    subject = Subject(WITH_TIMEOUT, 1)
    subject.now_ms += TIMEOUT_MS
    assert only(TakeSnapshot, subject.take(0, 5)) == [TakeSnapshot(subject.barrier(5))]


@pytest.mark.item("UC-35")
def test_a_barrier_that_was_announced_overtakes_after_the_timeout() -> None:
    """It waits behind batches: the time runs from its announcement on, before any barrier was taken."""
    subject = Subject(WITH_TIMEOUT)
    assert subject.tell(BarrierAnnounced(1, subject.barrier(5))) == (SetTimer(TRIGGERED_MS + TIMEOUT_MS),)
    assert subject.alignment_phase() is Phase.WAITING
    subject.now_ms += TIMEOUT_MS
    actions = subject.tell(Tick())
    assert [type(action) for action in actions] == [Prioritize, PersistInputs, TakeSnapshot]
    assert only(Prioritize, actions) == [Prioritize((1,))]
    assert subject.tell(BarrierAnnounced(0, subject.barrier(5))) == (Prioritize((0,)),)
    unaligned = subject.barrier(5).unaligned()
    assert subject.tell(BarrierReceived(1, unaligned)) == ()
    assert whole(subject.tell(BarrierReceived(0, unaligned))) == [5]


@pytest.mark.item("UC-35")
def test_an_announcement_after_the_timeout_overtakes_at_once() -> None:
    """There is no timer for what is due."""
    subject = Subject(WITH_TIMEOUT)
    subject.now_ms += TIMEOUT_MS
    actions = subject.tell(BarrierAnnounced(1, subject.barrier(5)))
    assert [type(action) for action in actions] == [Prioritize, PersistInputs, TakeSnapshot]


@pytest.mark.item("UC-35", "UC-04")
def test_an_announcement_of_a_newer_checkpoint_ends_the_older() -> None:
    """One of an older or of a complete checkpoint begins nothing."""
    subject = Subject(WITH_TIMEOUT)
    subject.take(0, 5)
    actions = subject.tell(BarrierAnnounced(1, subject.barrier(6)))
    assert aborted(actions) == [(5, AbortReason.SUBSUMED)]
    assert only(Resume, actions) == [Resume((0,))]
    assert subject.tell(BarrierAnnounced(0, subject.barrier(5))) == ()
    subject.take(0, 6)
    assert whole(subject.take(1, 6)) == [6]
    assert subject.tell(BarrierAnnounced(1, subject.barrier(6))) == ()


@pytest.mark.item("UC-35")
def test_a_barrier_that_overtook_elsewhere_overtakes_here() -> None:
    """The subtask before this one ran out of time first."""
    subject = Subject(WITH_TIMEOUT)
    subject.take(0, 5)
    actions = subject.tell(BarrierReceived(1, subject.barrier(5).unaligned()))
    assert [type(action) for action in actions] == [PersistInputs, TakeSnapshot, Resume, AllBarriersReceived]


@pytest.mark.item("UC-35")
def test_a_clock_that_was_set_back_delays_the_timeout_once() -> None:
    """A tick before the time sets the timer again; a trigger that lies ahead is too old (R8)."""
    subject = Subject(WITH_TIMEOUT, 3)
    subject.take(0, 5)
    subject.now_ms += 10
    assert subject.tell(Tick()) == (SetTimer(TRIGGERED_MS + TIMEOUT_MS),)
    subject.now_ms = TRIGGERED_MS - 1
    assert snapshots(subject.tell(Tick())) == [5]


@pytest.mark.parametrize("rules", [ALIGNED, TRACKED])
def test_who_never_overtakes_asks_for_no_time(rules: BarrierRules) -> None:
    """Announcements, ticks and what a barrier says of overtaking change nothing."""
    subject = Subject(rules)
    assert subject.tell(Tick()) == ()
    assert subject.tell(BarrierAnnounced(0, Barrier(5, TRIGGERED_MS, timeout_ms=1))) == ()
    actions = subject.tell(BarrierReceived(0, Barrier(5, TRIGGERED_MS, is_unaligned=True)))
    assert snapshots(actions) == []
    assert subject.tell(Tick()) == ()
    assert snapshots(subject.take(1, 5)) == [5]


@pytest.mark.item("UC-37", "LT-02")
@pytest.mark.parametrize("rules", [ALIGNED, UNALIGNED, WITH_TIMEOUT, TRACKED])
def test_an_alignment_is_measured(rules: BarrierRules) -> None:
    """Time to the first barrier, from the first to the last, and the bytes that were processed in between."""
    subject = Subject(rules, 3)
    subject.tell(BytesProcessed(1000))
    subject.now_ms += 20
    subject.take(0, 5)
    subject.tell(BytesProcessed(3))
    subject.now_ms += 30
    subject.take(1, 5)
    subject.tell(BytesProcessed(4))
    subject.now_ms += 10
    (told,) = only(AllBarriersReceived, subject.take(2, 5))
    assert told.metrics == AlignmentMetrics(start_delay_ms=20, alignment_ms=40, processed_bytes=7)


@pytest.mark.item("UC-37")
def test_a_clock_that_was_set_back_measures_nothing_negative() -> None:
    """Metrics are of no use for anything else."""
    subject = Subject(ALIGNED)
    subject.now_ms -= 50
    subject.take(0, 5)
    subject.now_ms -= 50
    (told,) = only(AllBarriersReceived, subject.take(1, 5))
    assert told.metrics == AlignmentMetrics(start_delay_ms=0, alignment_ms=0, processed_bytes=0)
