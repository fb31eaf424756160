"""Channels of the simulated dataflow: first in, first out, with a lane for what overtakes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from partfile.pipeline.barriers import Barrier
from partfile.pipeline.channel_state import ChannelPersister

if TYPE_CHECKING:
    from support.pipeline.subtasks import Subtask


@dataclass(frozen=True, slots=True)
class Cancellation:
    """Says that a checkpoint's barrier will not come."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class End:
    """The last thing that comes through a channel."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """Goes ahead of a barrier that waits behind batches."""

    barrier: Barrier


END = End()
Item = int | Barrier | Cancellation | End | Announcement
"""A batch is a number."""


class Channel:
    """One sender, one receiver. What the receiver has no room for waits on the sender's side."""

    __slots__ = (
        "capacity",
        "index",
        "is_blocked",
        "lane",
        "log",
        "number",
        "persister",
        "queue",
        "receiver",
        "sender",
        "taken",
        "wire",
    )

    def __init__(self, number: int, sender: Subtask, receiver: Subtask, capacity: int) -> None:
        self.number = number
        self.sender, self.receiver, self.capacity = sender, receiver, capacity
        self.index = len(receiver.inputs)
        self.queue: list[Item] = []
        """What has arrived, in the order in which it was sent."""
        self.lane: list[Item] = []
        """What is taken before anything of the queue, from a blocked channel too."""
        self.wire: list[Item] = []
        """What waits on the sender's side."""
        self.persister = ChannelPersister()
        self.is_blocked = False
        self.log: list[int] = []
        """Every batch that was sent since the last restore, after those that the restore put back."""
        self.taken = 0
        """How many of them the receiver has processed."""
        sender.outputs.append(self)
        receiver.inputs.append(self)

    def put_back(self, inputs: list[int], outputs: list[int]) -> None:
        """Restore what was under way: outputs into the wire first, then inputs, which are older, into the queue."""
        self.wire.extend(outputs)
        self.queue.extend(inputs)
        self.log = [*inputs, *outputs]
        self.refill()

    def send(self, item: Item) -> None:
        """Send something behind everything else; a barrier that overtakes goes ahead of it."""
        if type(item) is int:
            self.log.append(item)
        if type(item) is Barrier and item.is_unaligned:
            self.arrive(item)
        elif self.wire or len(self.queue) >= self.capacity:
            self.wire.append(item)
        else:
            self.arrive(item)

    def arrive(self, item: Item) -> None:
        """Something reaches the receiver's side."""
        if type(item) is int:
            self.persister, is_persisted = self.persister.batch_arrived()
            if is_persisted:
                self.receiver.persist_input(self.persister.newest_id, self.index, [item])
        elif type(item) is Barrier:
            self.persister = self.persister.barrier_arrived(item.checkpoint_id)
            if item.is_unaligned:
                self.lane.append(item)
                return
            if item.timeout_ms is not None:
                if self.queue or self.is_blocked:
                    self.lane.append(Announcement(item))
                self.sender.barrier_left(item.checkpoint_id, self.number)
        self.queue.append(item)

    def take(self) -> Item | None:
        """What the receiver takes next, None if there is nothing or it may not."""
        if self.lane:
            return self.lane.pop(0)
        if self.is_blocked or not self.queue:
            return None
        item = self.queue.pop(0)
        self.refill()
        return item

    def refill(self) -> None:
        """Let in what waits on the sender's side, as far as there is room."""
        while self.wire and len(self.queue) < self.capacity:
            self.arrive(self.wire.pop(0))

    def prioritize(self, checkpoint_id: int) -> None:
        """Let a barrier in the queue overtake what is ahead of it."""
        for place, item in enumerate(self.queue):
            if type(item) is Barrier and item.checkpoint_id == checkpoint_id:
                self.lane.append(item.unaligned())
                del self.queue[place]
                self.refill()
                return

    def jump_wire(self, checkpoint_id: int) -> list[int] | None:
        """Let a barrier in the wire overtake; returns the batches ahead of it there, None if it is not there."""
        for place, item in enumerate(self.wire):
            if type(item) is Barrier and item.checkpoint_id == checkpoint_id:
                ahead = batches_of(self.wire[:place])
                del self.wire[place]
                self.arrive(item.unaligned())
                return ahead
        return None


def batches_of(items: list[Item]) -> list[int]:
    """The batches among things in a channel."""
    return [item for item in items if type(item) is int]
