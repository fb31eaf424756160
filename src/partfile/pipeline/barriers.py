"""Barriers: what they say, which handler a subtask has for them, and that handler's events, actions and states.

A barrier parts the batches of a channel: those ahead of it belong to its checkpoint, those behind it to the next one.
Source: Flink's ``CheckpointOptions``, ``InputProcessorUtil`` and ``SingleCheckpointBarrierHandler``, as of 1.20.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from partfile.errors import ConfigError

if TYPE_CHECKING:
    from partfile.snapshot.events import RequestLimits

NO_CHECKPOINT = 0
"""Smaller than every id."""


class CheckpointingMode(Enum):
    """What a restore promises of each record."""

    EXACTLY_ONCE = "exactly once"
    AT_LEAST_ONCE = "at least once"


class Handler(Enum):
    """What a subtask does with barriers."""

    ALIGNER = "blocks each channel behind its barrier until all barriers are there"
    ALTERNATING = "lets barriers overtake batches, at once or after a timeout; aligns for savepoints"
    TRACKER = "counts barriers and blocks nothing"


class Phase(Enum):
    """Where the alignment of a checkpoint is."""

    WAITING = "no barrier of it has been taken yet"
    COLLECTING = "some of its barriers are missing"


class AbortReason(Enum):
    """Why a subtask gives up a checkpoint that its barriers have announced."""

    SUBSUMED = "a barrier of a newer checkpoint came first"
    CANCELLED = "a subtask before this one could not take part"
    INPUT_ENDED = "a channel ended before its barrier came"


@dataclass(frozen=True, slots=True)
class Barrier:
    """Sent by every source, and passed on by every subtask that it reaches."""

    checkpoint_id: int
    time_ms: int
    """When the coordinator triggered the checkpoint, in milliseconds since 1970."""
    is_unaligned: bool = False
    """Whether it goes ahead of the batches that wait."""
    timeout_ms: int | None = None
    """How long after its trigger it stays behind the batches ahead of it; None for ever."""
    is_savepoint: bool = False

    @property
    def due_ms(self) -> int | None:
        """When it overtakes what is still ahead of it; None for never."""
        return None if self.timeout_ms is None else self.time_ms + self.timeout_ms

    def is_timed_out(self, now_ms: int) -> bool:
        """Whether it has stayed in its place for long enough.

        The age counts from the trigger, not from the first barrier here, so that all subtasks switch at one time.
        A negative age counts as too old (R8).
        """
        return self.timeout_ms is not None and not 0 <= now_ms - self.time_ms < self.timeout_ms

    def unaligned(self) -> Barrier:
        """The same barrier, as it overtakes batches."""
        return Barrier(self.checkpoint_id, self.time_ms, is_unaligned=True, is_savepoint=self.is_savepoint)

    def aligned(self) -> Barrier:
        """The same barrier, as it never overtakes a batch."""
        return Barrier(self.checkpoint_id, self.time_ms, is_savepoint=self.is_savepoint)


@dataclass(frozen=True, slots=True)
class BarrierRules:
    """Rules of a job that its barriers follow.

    Raises:
        ConfigError: The rules contradict each other.
    """

    mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE
    is_unaligned: bool = False
    """Whether barriers may overtake batches."""
    aligned_timeout_ms: int = 0
    """How long barriers stay in their place before they overtake; 0: they overtake at once."""
    end_aborts: bool = False
    """Whether a channel that ends before its barrier comes aborts the checkpoint, as in Flink 1.11.

    Else its end counts as its barrier: it brings nothing more, so all of it is ahead of the barrier.
    """

    def __post_init__(self) -> None:
        if self.is_unaligned and self.mode is CheckpointingMode.AT_LEAST_ONCE:
            raise ConfigError(
                "unaligned barriers are for exactly once; at least once, no channel waits for a barrier anyhow",
                hint="Write is_unaligned=False, or mode=CheckpointingMode.EXACTLY_ONCE.",
            )
        if self.aligned_timeout_ms < 0:
            raise ConfigError(
                f"aligned_timeout_ms is {self.aligned_timeout_ms}; it must be at least 0",
                hint="To let barriers overtake batches at once, write aligned_timeout_ms=0.",
            )

    @property
    def handler(self) -> Handler:
        """The handler that each subtask has."""
        if self.mode is CheckpointingMode.AT_LEAST_ONCE:
            return Handler.TRACKER
        return Handler.ALTERNATING if self.is_unaligned else Handler.ALIGNER

    def barrier(self, checkpoint_id: int, time_ms: int, *, is_savepoint: bool = False) -> Barrier:
        """The barrier that sources send. A savepoint's is always aligned, so that it holds no channel state."""
        if not self.is_unaligned or is_savepoint:
            return Barrier(checkpoint_id, time_ms, is_savepoint=is_savepoint)
        if not self.aligned_timeout_ms:
            return Barrier(checkpoint_id, time_ms, is_unaligned=True)
        return Barrier(checkpoint_id, time_ms, timeout_ms=self.aligned_timeout_ms)

    def limits(self, limits: RequestLimits) -> RequestLimits:
        """The coordinator's limits under these rules.

        One unaligned checkpoint at a time: a channel persists its batches for one barrier only.
        """
        return replace(limits, max_concurrent=1) if self.is_unaligned else limits


@dataclass(frozen=True, slots=True)
class BarrierReceived:
    """The subtask has taken a barrier from a channel: in its turn, or ahead of it if it overtakes."""

    channel: int
    """Counted over all channels of all gates of the subtask."""
    barrier: Barrier


@dataclass(frozen=True, slots=True)
class BarrierAnnounced:
    """A barrier with a timeout has arrived in a channel, behind batches that wait. It is taken later."""

    channel: int
    barrier: Barrier


@dataclass(frozen=True, slots=True)
class CancelReceived:
    """The subtask has taken from a channel, in its turn, that a checkpoint's barrier will not come."""

    channel: int
    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class ChannelEnded:
    """The subtask has taken everything that a channel will ever bring."""

    channel: int


@dataclass(frozen=True, slots=True)
class BytesProcessed:
    """The subtask has processed a batch. Needed only while a checkpoint is collecting, for its metrics."""

    nbytes: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed. May come at any time and as often as one likes."""


Event = BarrierReceived | BarrierAnnounced | CancelReceived | ChannelEnded | BytesProcessed | Tick


@dataclass(frozen=True, slots=True)
class Block:
    """Take nothing from a channel until it is resumed."""

    channel: int


@dataclass(frozen=True, slots=True)
class Resume:
    """Take from these channels again."""

    channels: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Prioritize:
    """Take the barriers that were announced in these channels before anything else."""

    channels: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PersistInputs:
    """Open the channel state of a checkpoint, and persist of each channel what is ahead of its barrier."""

    barrier: Barrier


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Send the barrier on and take the snapshot of this subtask, before another batch is processed."""

    barrier: Barrier


@dataclass(frozen=True, slots=True)
class AllBarriersReceived:
    """The input part of a checkpoint is whole: persist nothing more for it, and finish it."""

    checkpoint_id: int
    metrics: AlignmentMetrics


@dataclass(frozen=True, slots=True)
class AbortCheckpoint:
    """Persist nothing more for a checkpoint, drop what there is of it, decline it, and send a cancellation on."""

    checkpoint_id: int
    reason: AbortReason


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Send a ``Tick`` at this time; it replaces an earlier timer."""

    at_ms: int


Action = Block | Resume | Prioritize | PersistInputs | TakeSnapshot | AllBarriersReceived | AbortCheckpoint | SetTimer


@dataclass(frozen=True, slots=True)
class AlignmentMetrics:
    """What one checkpoint has cost a subtask, from its first barrier to its last."""

    start_delay_ms: int
    """From the trigger to the first barrier."""
    alignment_ms: int
    """From the first barrier to the last; no channel waits in it if the barriers overtake."""
    processed_bytes: int
    """Of the batches that were processed in that time."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """The barriers of one checkpoint, from the first sign of it until all are there."""

    barrier: Barrier
    target: int
    """How many channels it takes: those that were open at the first sign."""
    received: tuple[int, ...] = ()
    """Those whose barrier was taken, or that have ended since."""
    blocked: tuple[int, ...] = ()
    announced: frozenset[int] = frozenset()
    """Those in which the barrier waits behind batches."""
    has_overtaken: bool = False
    """Whether the snapshot was taken before all barriers were there."""
    first_ms: int = 0
    """When the first barrier was taken."""
    processed_bytes: int = 0

    @property
    def phase(self) -> Phase:
        """Where it is."""
        return Phase.COLLECTING if self.received else Phase.WAITING


@dataclass(frozen=True, slots=True)
class AlignmentState:
    """What an aligner and an alternating handler know."""

    rules: BarrierRules
    open_channels: frozenset[int]
    newest_id: int = NO_CHECKPOINT
    """The newest checkpoint that any channel has told of. Of older ones nothing counts any more."""
    alignment: Alignment | None = None
    """Of the newest checkpoint; None when it is over: complete, aborted or cancelled."""

    def is_late(self, checkpoint_id: int) -> bool:
        """Whether a checkpoint is older than the newest one, or is the newest one and over."""
        return checkpoint_id < self.newest_id or (checkpoint_id == self.newest_id and self.alignment is None)


@dataclass(frozen=True, slots=True)
class TrackedCheckpoint:
    """A checkpoint some of whose barriers a tracker has counted."""

    barrier: Barrier
    target: int
    received: tuple[int, ...]
    first_ms: int
    processed_bytes: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether every channel's barrier was counted."""
        return len(self.received) == self.target


@dataclass(frozen=True, slots=True)
class TrackerState:
    """What a tracker knows."""

    rules: BarrierRules
    open_channels: frozenset[int]
    newest_id: int = NO_CHECKPOINT
    """The newest checkpoint that any channel has told of."""
    pending: tuple[TrackedCheckpoint, ...] = ()
    """By ascending id."""
