"""Subtasks of the simulated dataflow: they do what partfile's machines say, and nothing else for checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from partfile.pipeline import barriers, channel_state, subtask_checkpoint
from partfile.pipeline.barrier_handlers import begin, step
from partfile.pipeline.barriers import AlignmentState, Barrier, BarrierRules, Handler
from partfile.pipeline.channel_state import AddBatches, FinishSide, Side
from support.pipeline.channels import END, Announcement, Cancellation, End, batches_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partfile.pipeline.barrier_handlers import State
    from partfile.pipeline.barriers import Action, Event
    from partfile.pipeline.channel_state import WriterEvent
    from support.pipeline.channels import Channel, Item


class Violation(AssertionError):
    """The run has done what no run may do."""


@dataclass(frozen=True, slots=True)
class Frozen:
    """What a subtask's snapshot holds, and where it stood in its channels."""

    position: int
    seen: tuple[int, ...]
    sent: dict[int, int]
    """By the number of an output channel: how many batches had been sent into it."""
    taken: dict[int, int]
    """By the number of an input channel: how many batches had been processed."""


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """A subtask's part of a checkpoint, whole; None of both: the subtask declines."""

    checkpoint_id: int
    name: str
    frozen: Frozen | None = None
    file: tuple[AddBatches, ...] = ()


class Flow(Protocol):
    """What a subtask knows of the run that it is in."""

    now_ms: int
    copies: int
    """How many batches an operator sends for each one that it takes."""
    copy_step: int
    inbox: list[Acknowledgement]
    """Of the coordinator."""

    def chance(self, probability: float) -> bool:
        """Whether something happens that happens so often."""

    def ended(self, one: Subtask) -> None:
        """A subtask has taken all there is."""


Undone = (
    subtask_checkpoint.SendCancellation
    | subtask_checkpoint.AbortChannelState
    | subtask_checkpoint.CancelAsynchronousPart
    | subtask_checkpoint.Decline
)


UNOPENED = AlignmentState(BarrierRules(), frozenset())
"""Of a subtask whose channels are not there yet."""


def holds_channel_state(barrier: Barrier) -> bool:
    """Whether batches can be persisted for a barrier: it overtakes, or may do so later in a wire."""
    return barrier.is_unaligned or barrier.timeout_ms is not None


class Subtask:
    """One operator's copy: it notes each batch that it sees, and sends on what its kind makes of it."""

    __slots__ = (
        "checkpoints",
        "files",
        "flow",
        "frozen",
        "handler",
        "has_ended",
        "in_wires",
        "inputs",
        "mail",
        "name",
        "outputs",
        "position",
        "records",
        "rules",
        "seen",
        "timer_ms",
        "whole",
        "writer",
    )

    def __init__(self, flow: Flow, name: str, rules: BarrierRules) -> None:
        self.flow, self.name, self.rules = flow, name, rules
        self.handler: State = UNOPENED
        self.inputs: list[Channel] = []
        self.outputs: list[Channel] = []
        self.checkpoints = subtask_checkpoint.SubtaskState()
        self.writer = channel_state.WriterState()
        self.frozen: dict[int, Frozen] = {}
        self.files: dict[int, list[AddBatches]] = {}
        self.whole: set[int] = set()
        """Checkpoints whose channel state is whole, or that have none."""
        self.in_wires: dict[int, set[int]] = {}
        """By checkpoint: the output channels in whose wire its barrier waits."""
        self.timer_ms: int | None = None
        self.mail: list[Barrier | int] = []
        """What the coordinator has told: barriers to send, for sources, and ids of aborted checkpoints."""
        self.seen: list[int] = []
        self.position = 0
        self.records: list[int] = []
        """What a source reads."""
        self.has_ended = False

    # What the scheduler asks for.

    def is_free(self) -> bool:
        """Whether what was sent has left; if not, the subtask waits with the next batch."""
        return not any(channel.wire for channel in self.outputs)

    def emit(self) -> bool:
        """A source sends its next batch; after the last one it ends."""
        if self.has_ended or not self.is_free():
            return False
        if self.position < len(self.records):
            record = self.records[self.position]
            self.position += 1
            self.outputs[record % len(self.outputs)].send(record)
        else:
            self.end()
        return True

    def take_from(self, channel: Channel) -> bool:
        """Take the next thing from a channel; batches only when there is room for what comes of them."""
        if not channel.lane and channel.queue and type(channel.queue[0]) is int and not self.is_free():
            return False
        item = channel.take()
        if item is None:
            return False
        self.process(channel, item)
        return True

    def process(self, channel: Channel, item: Item) -> None:
        """Do what one thing from a channel asks for."""
        if type(item) is int:
            channel.taken += 1
            self.seen.append(item)
            for number in range(self.flow.copies if self.outputs else 0):
                self.outputs[0].send(item + number * self.flow.copy_step)
            if not isinstance(self.handler, AlignmentState) or self.handler.alignment is not None:
                self.tell(barriers.BytesProcessed(1))
        elif type(item) is Barrier:
            self.tell(barriers.BarrierReceived(channel.index, item))
        elif type(item) is Announcement:
            self.tell(barriers.BarrierAnnounced(channel.index, item.barrier))
        elif type(item) is Cancellation:
            self.tell(barriers.CancelReceived(channel.index, item.checkpoint_id))
        elif type(item) is End:
            self.tell(barriers.ChannelEnded(channel.index))
            if not self.handler.open_channels:
                self.end()

    def tick(self) -> bool:
        """Time has passed, in the handler and for the barriers that wait in wires."""
        is_due = self.timer_ms is not None and self.timer_ms <= self.flow.now_ms
        if is_due:
            self.timer_ms = None
            self.tell(barriers.Tick())
        for checkpoint_id in list(self.in_wires):
            self._jump_wires(checkpoint_id)
        return is_due

    def read_mail(self) -> bool:
        """Do the next thing that the coordinator has told."""
        if not self.mail:
            return False
        told = self.mail.pop(0)
        if isinstance(told, int):
            self._do(*subtask_checkpoint.aborted_by_coordinator(self.checkpoints, told))
        elif self.has_ended:
            self.flow.inbox.append(Acknowledgement(told.checkpoint_id, self.name, self.freeze()))
        elif self.flow.chance(0.02):
            self._abort(told.checkpoint_id, barriers.AbortReason.CANCELLED)
        else:
            self._take_snapshot(told)
        return True

    # What the machines ask for.

    def tell(self, event: Event) -> None:
        """Tell the handler, and do what it says."""
        self.handler, actions = step(self.handler, event, self.flow.now_ms)
        for action in actions:
            self._act(action)

    def _act(self, action: Action) -> None:
        match action:
            case barriers.PersistInputs():
                self._persist_inputs(action.barrier)
            case barriers.TakeSnapshot():
                self._take_snapshot(action.barrier)
            case barriers.AllBarriersReceived():
                self._finish_inputs(action)
            case barriers.AbortCheckpoint():
                self._stop_inputs(action.checkpoint_id)
                self._abort(action.checkpoint_id, action.reason)
            case barriers.SetTimer():
                self.timer_ms = action.at_ms
            case _:
                self._let(action)

    def _let(self, action: barriers.Block | barriers.Resume | barriers.Prioritize) -> None:
        """What is taken next from the channels."""
        match action:
            case barriers.Block():
                self._block(action.channel)
            case barriers.Resume():
                for number in action.channels:
                    self.inputs[number].is_blocked = False
            case barriers.Prioritize():
                for number in action.channels:
                    self.inputs[number].prioritize(self._current_id())

    def _abort(self, checkpoint_id: int, reason: barriers.AbortReason) -> None:
        self._do(*subtask_checkpoint.aborted_by_barriers(self.checkpoints, checkpoint_id, reason))

    def _current_id(self) -> int:
        if not isinstance(self.handler, AlignmentState):
            raise Violation("a tracker lets no barrier overtake")
        return self.handler.newest_id

    def _block(self, number: int) -> None:
        alignment = self.handler.alignment if isinstance(self.handler, AlignmentState) else None
        if alignment is None or alignment.has_overtaken:
            raise Violation(f"{self.name} waits where no channel waits")
        if self.rules.is_unaligned and alignment.barrier.timeout_ms is None and not alignment.barrier.is_savepoint:
            raise Violation(f"{self.name} waits although barriers overtake at once")
        self.inputs[number].is_blocked = True

    def _persist_inputs(self, barrier: Barrier) -> None:
        self.write(channel_state.Start(barrier.checkpoint_id))
        for channel in self.inputs:
            queued = batches_of(channel.queue)
            channel.persister, ahead = channel.persister.start(barrier.checkpoint_id, queued)
            if ahead is None:
                self.write(channel_state.Abort(barrier.checkpoint_id))
            else:
                self.persist_input(barrier.checkpoint_id, channel.index, ahead)

    def persist_input(self, checkpoint_id: int, channel: int, batches: Sequence[int]) -> None:
        """Persist batches of an input channel."""
        if batches:
            self.write(AddBatches(checkpoint_id, Side.INPUT, channel, batches, len(batches)))

    def _finish_inputs(self, action: barriers.AllBarriersReceived) -> None:
        checkpoint_id = action.checkpoint_id
        ongoing = self.writer.ongoing
        if ongoing is not None and ongoing.checkpoint_id == checkpoint_id and Side.INPUT in ongoing.open_sides:
            self.write(FinishSide(checkpoint_id, Side.INPUT))
        self._stop_inputs(checkpoint_id)

    def _stop_inputs(self, checkpoint_id: int) -> None:
        for channel in self.inputs:
            channel.persister = channel.persister.stop(checkpoint_id)

    def _take_snapshot(self, barrier: Barrier) -> None:
        checkpoint_id = barrier.checkpoint_id
        if checkpoint_id > self.writer.newest_id and holds_channel_state(barrier):
            # The inputs bring nothing: a source has none, and aligned barriers overtake none.
            self.write(channel_state.Start(checkpoint_id))
            self.write(FinishSide(checkpoint_id, Side.INPUT))
        self._do(*subtask_checkpoint.take(self.checkpoints, barrier))

    def _do(self, state: subtask_checkpoint.SubtaskState, actions: tuple[subtask_checkpoint.Action, ...]) -> None:
        self.checkpoints = state
        for action in actions:
            if not self._done(action):
                return

    def _done(self, action: subtask_checkpoint.Action) -> bool:
        """Do one thing; False if it has failed."""
        match action:
            case subtask_checkpoint.SendBarrier():
                for channel in self.outputs:
                    channel.send(action.barrier)
            case subtask_checkpoint.PersistOutputs():
                self._persist_outputs(action.barrier)
            case subtask_checkpoint.SynchronousPart():
                return self._synchronous_part(action.barrier.checkpoint_id)
            case subtask_checkpoint.AsynchronousPart():
                if not holds_channel_state(action.barrier):
                    self.whole.add(action.barrier.checkpoint_id)
                self._acknowledge(action.barrier.checkpoint_id)
            case subtask_checkpoint.PrepareBarrier():
                pass
            case _:
                self._undo(action)
        return True

    def _undo(self, action: Undone) -> None:
        """Give something of a checkpoint up."""
        match action:
            case subtask_checkpoint.SendCancellation():
                for channel in self.outputs:
                    channel.send(Cancellation(action.checkpoint_id))
            case subtask_checkpoint.AbortChannelState():
                self.write(channel_state.Abort(action.checkpoint_id))
                self.in_wires.pop(action.checkpoint_id, None)
            case subtask_checkpoint.CancelAsynchronousPart():
                self.frozen.pop(action.checkpoint_id, None)
            case subtask_checkpoint.Decline():
                self.flow.inbox.append(Acknowledgement(action.checkpoint_id, self.name))

    def _synchronous_part(self, checkpoint_id: int) -> bool:
        if self.flow.chance(0.005):
            self._do(*subtask_checkpoint.synchronous_part_failed(self.checkpoints, checkpoint_id))
            return False
        self.frozen[checkpoint_id] = self.freeze()
        return True

    def _persist_outputs(self, barrier: Barrier) -> None:
        checkpoint_id = barrier.checkpoint_id
        if barrier.is_unaligned:
            for channel in self.outputs:
                self._persist_output(checkpoint_id, channel, batches_of(channel.wire))
            self.write(FinishSide(checkpoint_id, Side.OUTPUT))
        elif barrier.timeout_ms is not None:
            waiting = {channel.number for channel in self.outputs if barrier in channel.wire}
            if waiting:
                self.in_wires[checkpoint_id] = waiting
            else:
                self.write(FinishSide(checkpoint_id, Side.OUTPUT))

    def _persist_output(self, checkpoint_id: int, channel: Channel, batches: list[int]) -> None:
        if batches:
            self.write(AddBatches(checkpoint_id, Side.OUTPUT, channel.number, batches, len(batches)))

    def _jump_wires(self, checkpoint_id: int) -> None:
        """Barriers that still wait in wires when their time is over overtake the batches there."""
        for channel in self.outputs:
            waiting = [item for item in channel.wire if type(item) is Barrier and item.checkpoint_id == checkpoint_id]
            if waiting and waiting[0].is_timed_out(self.flow.now_ms):
                ahead = channel.jump_wire(checkpoint_id)
                self._persist_output(checkpoint_id, channel, ahead or [])
                self.barrier_left(checkpoint_id, channel.number)

    def barrier_left(self, checkpoint_id: int, number: int) -> None:
        """A barrier with a timeout has left the wire of an output channel."""
        waiting = self.in_wires.get(checkpoint_id)
        if waiting is None:
            return
        waiting.discard(number)
        if not waiting:
            del self.in_wires[checkpoint_id]
            self.write(FinishSide(checkpoint_id, Side.OUTPUT))

    def write(self, event: WriterEvent) -> None:
        """Tell the writer of the channel state, and do what it says."""
        self.writer, actions = channel_state.step(self.writer, event)
        for action in actions:
            match action:
                case channel_state.WriteBatches():
                    self.files.setdefault(action.added.checkpoint_id, []).append(action.added)
                case channel_state.CompleteResult():
                    self.whole.add(action.checkpoint_id)
                    self._acknowledge(action.checkpoint_id)
                case channel_state.DropFile():
                    self.files.pop(action.checkpoint_id, None)
                    self.whole.discard(action.checkpoint_id)
                case channel_state.FailResult():
                    self.frozen.pop(action.checkpoint_id, None)
                    self.flow.inbox.append(Acknowledgement(action.checkpoint_id, self.name))

    def _acknowledge(self, checkpoint_id: int) -> None:
        """Acknowledge when both the snapshot and the channel state are there."""
        if checkpoint_id in self.whole and checkpoint_id in self.frozen:
            self.whole.discard(checkpoint_id)
            file = tuple(self.files.pop(checkpoint_id, ()))
            self.flow.inbox.append(Acknowledgement(checkpoint_id, self.name, self.frozen.pop(checkpoint_id), file))
            self.write(channel_state.TakeResult(checkpoint_id))

    def freeze(self) -> Frozen:
        """The state as it is now."""
        return Frozen(
            self.position,
            tuple(self.seen),
            {channel.number: len(channel.log) for channel in self.outputs},
            {channel.number: channel.taken for channel in self.inputs},
        )

    def end(self) -> None:
        """Nothing more comes of this subtask."""
        self.has_ended = True
        for channel in self.outputs:
            channel.send(END)
        self.flow.ended(self)

    def opened(self) -> None:
        """All channels are there: make the handler."""
        self.handler = begin(self.rules, (len(self.inputs),))
        if self.rules.handler is Handler.TRACKER and isinstance(self.handler, AlignmentState):
            raise Violation("a tracker was asked for")
