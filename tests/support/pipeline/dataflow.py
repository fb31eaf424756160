"""A dataflow of sources, operators and a sink under one seeded schedule, with a coordinator, crashes and restores.

One thread runs everything, so that a seed is a whole run. Batches are numbers, one a record. The rules of barriers are
partfile's own; what stands around them here is as simple as it can be, and checks what it sees:

* of a completed checkpoint the batches that were persisted are, channel by channel, exactly those between the sender's
  snapshot and the receiver's: no less, no more, in their order (at least once: none is missing);
* no channel waits where barriers overtake;
* when nothing is triggered any more, the run comes to its end;
* then each record was counted exactly once by its operator and by the sink, whatever crashed (at least once: counted).
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from partfile.pipeline.barriers import Barrier, BarrierRules, CheckpointingMode
from partfile.pipeline.channel_state import Side
from support.pipeline.channels import Channel
from support.pipeline.subtasks import Acknowledgement, Subtask, Violation

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.pipeline.channels import Item

ALIGNED = BarrierRules()
UNALIGNED = BarrierRules(is_unaligned=True)
TRACKED = BarrierRules(mode=CheckpointingMode.AT_LEAST_ONCE)
SINK = "sink"
SHAPES = ((1, 1), (1, 2), (1, 2), (1, 2), (1, 3), (2, 1), (2, 2))
"""How many operators there are, and how many sources."""
ABORTS = 0.006
"""How often a step is that the coordinator gives up what is pending."""
CRASHES, CRASHES_LATER = 0.004, 0.06
"""How often a step is a crash of everything: until a checkpoint has completed in this life, and afterwards."""


def alternating(timeout_ms: int) -> BarrierRules:
    """Rules of barriers that overtake after a time."""
    return BarrierRules(is_unaligned=True, aligned_timeout_ms=timeout_ms)


@dataclass(frozen=True, slots=True)
class Completed:
    """A completed checkpoint."""

    checkpoint_id: int
    parts: dict[str, Acknowledgement]


class Dataflow:
    """One run. The seed chooses the graph, the records, and everything that happens."""

    def __init__(self, seed: int, rules: BarrierRules) -> None:
        self.seed, self.rules = seed, rules
        self.rng = random.Random(seed)
        self.draw = self.rng.random
        self.now_ms = 0
        self.copies = 1 + self.chance(0.3)
        self.copy_step = 1000
        self.capacity = self.rng.randint(1, 3)
        operators, sources = self.rng.choice(SHAPES)
        self.operators = [f"operator {number}" for number in range(operators)]
        self.reads: dict[str, list[int]] = {}
        for number in range(sources):
            self.reads[f"source {number}"] = list(range(10 * number, 10 * number + self.rng.randint(0, 5)))
        self.next_id = 1
        self.completed: Completed | None = None
        self.completed_ids: list[int] = []
        self.persisted = 0
        """Batches in the channel state of all completed checkpoints."""
        self.crashes = 0
        self.pending: dict[int, dict[str, Acknowledgement]] = {}
        self.inbox: list[Acknowledgement] = []
        self._restore()

    def chance(self, probability: float) -> bool:
        """Whether something happens that happens so often."""
        return self.draw() < probability

    # The graph, new or restored.

    def _restore(self) -> None:
        self.pending = {}
        self.inbox = []
        self.sources = [Subtask(self, name, self.rules) for name in self.reads]
        inner = [Subtask(self, name, self.rules) for name in self.operators]
        sink = Subtask(self, SINK, self.rules)
        self.subtasks = [*self.sources, *inner, sink]
        self.by_name = {one.name: one for one in self.subtasks}
        self.channels: list[Channel] = []
        for sender, receiver in [*((one, to) for one in self.sources for to in inner), *((one, sink) for one in inner)]:
            self.channels.append(Channel(len(self.channels), sender, receiver, self.capacity))
        for source in self.sources:
            source.records = self.reads[source.name]
        for one in self.subtasks:
            one.opened()
        if self.completed is not None:
            self._put_back(self.completed)
        self.crash_chance = CRASHES
        self.steps = self._steps()

    def _put_back(self, completed: Completed) -> None:
        """State and batches under way come back before anything new is read."""
        for name, part in completed.parts.items():
            if part.frozen is not None:
                self.by_name[name].position = part.frozen.position
                self.by_name[name].seen = list(part.frozen.seen)
        for channel in self.channels:
            channel.put_back(*persisted_of(channel, completed.parts))

    def _steps(self) -> list[Callable[[], bool]]:
        """What the scheduler draws from; what is there twice is drawn twice as often."""
        steps: list[Callable[[], bool]] = []
        for channel in self.channels:
            steps += [self._taking(channel)] * 2
        steps += [source.emit for source in self.sources]
        steps += [self._hear, self._read_mail] * 3
        steps += [self._trigger, self._trigger, self._tick]
        return steps

    def _taking(self, channel: Channel) -> Callable[[], bool]:
        receiver = channel.receiver
        return lambda: receiver.take_from(channel)

    # What may happen.

    def run(self) -> Dataflow:
        """Run until every subtask has ended, and look at what was counted.

        Raises:
            Violation: The run has done what no run may do.
        """
        try:
            for _ in range(30 + int(70 * self.draw())):
                self.now_ms += 1
                self._happen()
            self._drain()
            self._look_at_the_end()
        except Exception as error:
            raise Violation(f"seed {self.seed}, {self.rules}: {error}") from error
        return self

    def _happen(self) -> None:
        drawn = self.draw()
        if drawn < self.crash_chance:
            self.crashes += 1
            self._restore()
        elif drawn > 1 - ABORTS:
            self._abort_pending()
        else:
            # What is left of the number is as random as the number was.
            place = (drawn - self.crash_chance) / (1 - ABORTS - self.crash_chance)
            self.steps[int(place * len(self.steps))]()

    def _trigger(self) -> bool:
        limit = 1 if self.rules.is_unaligned else 2
        if len(self.pending) >= limit or all(one.has_ended for one in self.subtasks):
            return False
        checkpoint_id, self.next_id = self.next_id, self.next_id + 1
        self.pending[checkpoint_id] = {}
        barrier = self.rules.barrier(checkpoint_id, self.now_ms, is_savepoint=self.chance(0.1))
        for source in self.sources:
            source.mail.append(barrier)
        for one in self.subtasks:
            if one.has_ended and one not in self.sources:
                self.inbox.append(Acknowledgement(checkpoint_id, one.name, one.freeze()))
        return True

    def ended(self, one: Subtask) -> None:
        """A subtask that has ended is in every later checkpoint with its last state."""
        if one not in self.sources:
            for checkpoint_id in self.pending:
                if checkpoint_id > one.checkpoints.newest_id:
                    self.inbox.append(Acknowledgement(checkpoint_id, one.name, one.freeze()))

    def _abort_pending(self) -> None:
        """The coordinator gives a checkpoint up, and tells some of the subtasks."""
        for checkpoint_id in list(self.pending):
            self._give_up(checkpoint_id)

    def _give_up(self, checkpoint_id: int) -> None:
        if self.pending.pop(checkpoint_id, None) is None:
            return
        for one in self.subtasks:
            if self.chance(0.5):
                # A trigger that never came: this source sends neither a barrier nor a cancellation.
                one.mail = [
                    told for told in one.mail if not (type(told) is Barrier and told.checkpoint_id == checkpoint_id)
                ]
            if self.chance(0.7):
                one.mail.append(checkpoint_id)

    def _tick(self) -> bool:
        for one in self.subtasks:
            one.tick()
        return True

    def _read_mail(self) -> bool:
        waiting = [one for one in self.subtasks if one.mail]
        return bool(waiting) and waiting[int(self.draw() * len(waiting))].read_mail()

    def _hear(self) -> bool:
        """The coordinator hears of one subtask's part."""
        if not self.inbox:
            return False
        part = self.inbox.pop(int(self.draw() * len(self.inbox)))
        parts = self.pending.get(part.checkpoint_id)
        if parts is None:
            return True
        if part.frozen is None:
            self._give_up(part.checkpoint_id)
            return True
        if part.name in parts:
            raise Violation(f"{part.name} has acknowledged {part.checkpoint_id} twice")
        parts[part.name] = part
        if len(parts) == len(self.subtasks):
            self._complete(Completed(part.checkpoint_id, parts))
        return True

    def _complete(self, completed: Completed) -> None:
        for checkpoint_id in [one for one in self.pending if one <= completed.checkpoint_id]:
            del self.pending[checkpoint_id]
        self._look_at_the_cut(completed)
        self.completed = completed
        self.crash_chance = CRASHES_LATER
        self.completed_ids.append(completed.checkpoint_id)

    # What must hold.

    def _look_at_the_cut(self, completed: Completed) -> None:
        """What was persisted of a channel is what its sender had sent and its receiver had not processed."""
        for channel in self.channels:
            sender, receiver = completed.parts[channel.sender.name], completed.parts[channel.receiver.name]
            if sender.frozen is None or receiver.frozen is None:
                raise Violation("a part without state is no part")
            sent, taken = sender.frozen.sent[channel.number], receiver.frozen.taken[channel.number]
            inputs, outputs = persisted_of(channel, completed.parts)
            self.persisted += len(inputs) + len(outputs)
            if self.rules.mode is CheckpointingMode.AT_LEAST_ONCE and taken > sent:
                taken = sent
            if taken > sent or [*inputs, *outputs] != channel.log[taken:sent]:
                raise Violation(
                    f"checkpoint {completed.checkpoint_id}, {channel.sender.name} to {channel.receiver.name}: "
                    f"persisted {inputs} + {outputs}, sent {channel.log[:sent]}, processed {channel.log[:taken]}"
                )

    def _drain(self) -> None:
        """Nothing is triggered or lost any more: everything that was begun comes to its end."""
        steps = [self._taking(channel) for channel in self.channels]
        steps += [source.emit for source in self.sources]
        steps += [self._hear, self._read_mail]
        while not all(one.has_ended for one in self.subtasks):
            self.now_ms += 1
            if not sum(step() for step in steps):
                stuck = [one.name for one in self.subtasks if not one.has_ended]
                raise Violation(f"nothing goes on, and these have not ended: {', '.join(stuck)}")

    def _look_at_the_end(self) -> None:
        left: list[Item] = [item for channel in self.channels for item in (*channel.queue, *channel.wire)]
        if left:
            raise Violation(f"left in channels: {left}")
        records = [record for read in self.reads.values() for record in read]
        expected = Counter(record + copy * self.copy_step for record in records for copy in range(self.copies))
        self._compare(SINK, expected, self.by_name[SINK].seen)
        for number, name in enumerate(self.operators):
            own = Counter(record for record in records if record % len(self.operators) == number)
            self._compare(name, own, self.by_name[name].seen)

    def _compare(self, name: str, expected: Counter[int], seen: list[int]) -> None:
        counted = Counter(seen)
        if self.rules.mode is CheckpointingMode.AT_LEAST_ONCE:
            counted = Counter(dict.fromkeys(counted, 1))
        if counted != expected:
            raise Violation(f"{name} has counted {sorted(seen)} of {sorted(expected)}")

    @property
    def history(self) -> tuple[int, int, int, tuple[int, ...], tuple[int, ...]]:
        """What a run has done, for comparison with another one."""
        return self.now_ms, self.crashes, self.persisted, tuple(self.completed_ids), tuple(self.by_name[SINK].seen)


def persisted_of(channel: Channel, parts: dict[str, Acknowledgement]) -> tuple[list[int], list[int]]:
    """What a checkpoint holds of one channel: of the receiver's side, and of the sender's."""
    receiver, sender = parts[channel.receiver.name].file, parts[channel.sender.name].file
    inputs = [added for added in receiver if added.side is Side.INPUT and added.channel == channel.index]
    outputs = [added for added in sender if added.side is Side.OUTPUT and added.channel == channel.number]
    return [one for added in inputs for one in added.batches], [one for added in outputs for one in added.batches]
