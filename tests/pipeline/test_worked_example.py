"""The worked example of docs/BARRIERS.md: an operator, two channels, a checkpoint, and what each handler makes of it.

Channel 0 brings 1, 2, the barrier, 3, and channel 1 brings 11, 12, 13, the barrier, 14. The operator has processed 1
and 11 when the barrier arrives in channel 0.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from partfile.pipeline.barriers import Barrier, BarrierRules
from partfile.pipeline.channel_state import Side
from support.pipeline.channels import Cancellation, Channel
from support.pipeline.dataflow import ALIGNED, TRACKED, UNALIGNED, persisted_of
from support.pipeline.subtasks import Acknowledgement, Subtask

if TYPE_CHECKING:
    from support.pipeline.channels import Item

TIMEOUT_MS = 100
WITH_TIMEOUT = BarrierRules(is_unaligned=True, aligned_timeout_ms=TIMEOUT_MS)


PAGE = (Path(__file__).parents[2] / "docs" / "BARRIERS.md").read_text()


def is_on_the_page(snapshot: tuple[list[int], list[int], list[int]]) -> bool:
    """Whether the document says the same of the example: the snapshot, and the channel state if there is any."""
    seen, *persisted = (" ".join(map(str, batches)) for batches in snapshot)
    state = ", ".join(f"channel {number}: {batches}" for number, batches in enumerate(persisted) if batches)
    section = re.search(rf"snapshot 5 = {seen}  .*?^## ", PAGE, flags=re.MULTILINE | re.DOTALL)
    return section is not None and (f"channel state 5 = {state}\n" in section[0] or not state)


class Example:
    """Two sources, an operator and a sink, which do nothing by themselves."""

    def __init__(self, rules: BarrierRules) -> None:
        self.now_ms = 0
        self.copies, self.copy_step = 1, 1000
        self.inbox: list[Acknowledgement] = []
        self.left, self.right, self.operator, self.sink = (
            Subtask(self, name, rules) for name in ("left", "right", "operator", "sink")
        )
        self.channels = [
            Channel(0, self.left, self.operator, 3),
            Channel(1, self.right, self.operator, 3),
            Channel(2, self.operator, self.sink, 1),
        ]
        for one in (self.operator, self.sink):
            one.opened()
        self.barrier = rules.barrier(5, 0)

    def chance(self, probability: float) -> bool:
        """Nothing happens by chance."""
        return probability >= 1

    def ended(self, one: Subtask) -> None:
        """Nothing waits for it."""

    def send(self, number: int, *items: Item) -> None:
        """The sender of a channel sends something."""
        for item in items:
            self.channels[number].send(item)

    def take(self, number: int, times: int = 1) -> None:
        """The receiver of a channel takes what comes next, so many times."""
        for _ in range(times):
            channel = self.channels[number]
            assert channel.receiver.take_from(channel)

    def can_take(self, number: int) -> bool:
        """Whether a channel would give something to its receiver."""
        channel = self.channels[number]
        return bool(channel.lane) or (bool(channel.queue) and not channel.is_blocked)

    def empty_sink(self) -> None:
        """The sink takes all that has come."""
        while self.can_take(2):
            self.take(2)

    def snapshot(self) -> tuple[list[int], list[int], list[int]]:
        """What the operator has seen at its snapshot, and what was persisted of its two channels."""
        (part,) = [one for one in self.inbox if one.name == "operator"]
        assert part.frozen is not None
        inputs: dict[int, list[int]] = {0: [], 1: []}
        for added in part.file:
            if added.side is Side.INPUT:
                inputs[added.channel] += added.batches
        return list(part.frozen.seen), inputs[0], inputs[1]


def begun(rules: BarrierRules) -> Example:
    """The example when the barrier has arrived in channel 0, behind or ahead of batch 2."""
    example = Example(rules)
    example.send(0, 1, 2)
    example.send(1, 11, 12)
    example.take(0)
    example.take(1)
    example.empty_sink()
    example.send(0, example.barrier, 3)
    return example


@pytest.mark.item("UC-02")
def test_the_aligner_waits_for_the_other_barrier() -> None:
    """Channel 0 is blocked behind its barrier; the snapshot holds all that is ahead of both."""
    example = begun(ALIGNED)
    example.take(0)
    example.empty_sink()
    example.take(0)
    assert not example.can_take(0)
    example.take(1)
    example.empty_sink()
    example.send(1, 13, example.barrier, 14)
    example.take(1)
    example.empty_sink()
    assert example.inbox == []
    example.take(1)
    assert example.snapshot() == ([1, 11, 2, 12, 13], [], [])
    assert is_on_the_page(example.snapshot())
    assert example.can_take(0)


@pytest.mark.item("UC-09")
def test_the_tracker_counts_a_batch_that_comes_again() -> None:
    """Batch 3 is processed before the snapshot, and the source will send it again."""
    example = begun(TRACKED)
    for number, times in ((0, 1), (0, 1), (0, 1), (1, 1)):
        example.take(number, times)
        example.empty_sink()
    example.send(1, 13, example.barrier, 14)
    example.take(1)
    example.empty_sink()
    example.take(1)
    assert example.snapshot() == ([1, 11, 2, 3, 12, 13], [], [])
    assert is_on_the_page(example.snapshot())


@pytest.mark.item("UC-10", "UC-13", "UC-14")
def test_the_unaligner_persists_what_the_barriers_overtake() -> None:
    """2 was overtaken in channel 0, 12 waited in channel 1, and 13 came there before the barrier."""
    example = begun(UNALIGNED)
    example.take(0)
    assert example.operator.frozen[5].seen == (1, 11)
    # The barrier goes on at once.
    assert [type(item) for item in example.channels[2].lane] == [Barrier]
    example.send(1, 13)
    example.take(0)
    example.empty_sink()
    example.send(1, example.barrier, 14)
    assert example.inbox[0].name == "sink"
    example.take(1)
    assert example.snapshot() == ([1, 11], [2], [12, 13])
    assert is_on_the_page(example.snapshot())


@pytest.mark.item("UC-35")
def test_after_the_timeout_the_aligner_becomes_the_unaligner() -> None:
    """Batch 2 was processed in time; channel 0 goes on before the barrier of channel 1 is there."""
    example = begun(WITH_TIMEOUT)
    # Its announcement, batch 2, the barrier.
    example.take(0, 2)
    example.empty_sink()
    example.take(0)
    assert not example.can_take(0)
    example.now_ms = TIMEOUT_MS
    example.operator.tick()
    assert example.can_take(0)
    example.send(1, 13, example.barrier, 14)
    example.empty_sink()
    # The announcement, and the barrier that it lets overtake.
    example.take(1, 2)
    assert example.snapshot() == ([1, 11, 2], [], [12, 13])
    assert is_on_the_page(example.snapshot())


@pytest.mark.item("UC-10", "UC-16")
@pytest.mark.parametrize("rules", [UNALIGNED, WITH_TIMEOUT])
def test_what_waits_to_be_sent_is_persisted_too(rules: BarrierRules) -> None:
    """The sink sees the barrier before the batches that waited. With a timeout the barrier waits for it, then jumps."""
    example = Example(rules)
    example.send(2, 1, 2, 3)
    example.operator.mail.append(example.barrier)
    example.operator.read_mail()
    if rules is WITH_TIMEOUT:
        assert example.inbox == []
        example.now_ms = TIMEOUT_MS
        example.operator.tick()
    (part,) = example.inbox
    parts = {"operator": part, "sink": Acknowledgement(5, "sink")}
    assert persisted_of(example.channels[2], parts) == ([], [2, 3])
    assert example.channels[2].lane == [example.barrier.unaligned()]
    assert [*example.channels[2].queue, *example.channels[2].wire] == [1, 2, 3]


@pytest.mark.item("UC-32")
def test_what_was_persisted_comes_before_anything_new() -> None:
    """What the receiver had goes first, then what the sender had, then what is sent from now on."""
    example = Example(UNALIGNED)
    example.channels[1].put_back([12, 13], [14, 15])
    example.send(1, 16)
    for _ in range(5):
        example.take(1)
        example.empty_sink()
    assert example.operator.seen == [12, 13, 14, 15, 16]


@pytest.mark.item("UC-07")
def test_a_cancellation_goes_on_behind_what_waits() -> None:
    """The operator gives up its alignment, tells the coordinator, and the sink."""
    example = begun(ALIGNED)
    example.take(0)
    example.empty_sink()
    example.take(0)
    example.send(1, Cancellation(5))
    example.take(1, 2)
    assert example.can_take(0)
    assert [one.frozen for one in example.inbox] == [None]
    example.take(2, 2)
    assert example.sink.checkpoints.newest_id == 5
