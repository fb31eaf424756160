"""When a part is rolled: by size, age and inactivity, on three occasions. Pure; the clock is the batch time (S8)."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from partfile.sink.options import Options


@dataclass(frozen=True, slots=True)
class PartProgress:
    """What a rolling policy knows of an open part."""

    size_bytes: int
    """Bytes in the file so far, compressed where the format compresses."""
    rows: int
    created_at_ms: int
    """Batch time of its creation, in milliseconds since the epoch."""
    last_write_ms: int
    """Batch time of its last row, in milliseconds since the epoch."""


class RollingPolicy(Options):
    """Rolls a part when it is large enough, old enough or idle for long enough. Subclass it to decide otherwise.

    The three hooks are asked before rows are added, at a checkpoint, and when time has passed. They must be pure: the
    same part and time give the same answer in every process.
    """

    max_part_bytes: int = Field(default=128 << 20, gt=0)
    """A part that has reached this many bytes gets no more rows. It may exceed it by the rows of one record batch."""
    rollover_interval_s: float = Field(default=900, gt=0)
    """A part this many seconds old is rolled, so that readers see its rows; larger means fewer files, seen later."""
    inactivity_interval_s: float = Field(default=60, gt=0)
    """A part without new rows for this many seconds is rolled."""
    on_checkpoint: bool = False
    """Roll every part at every checkpoint: rows are seen at once, at the price of one file a part and checkpoint."""

    def should_roll_on_event(self, part: PartProgress) -> bool:
        """Whether to roll before adding the next rows."""
        return part.size_bytes >= self.max_part_bytes

    def should_roll_on_checkpoint(self, part: PartProgress) -> bool:
        """Whether to roll instead of keeping the part open over this checkpoint."""
        return self.on_checkpoint or part.size_bytes >= self.max_part_bytes

    def should_roll_on_time(self, part: PartProgress, now_ms: int) -> bool:
        """Whether the part is too old or has been idle for too long at ``now_ms``."""
        age_ms = now_ms - part.created_at_ms
        idle_ms = now_ms - part.last_write_ms
        return age_ms >= self.rollover_interval_s * 1000 or idle_ms >= self.inactivity_interval_s * 1000

    @property
    def check_interval_s(self) -> float:
        """How often a timer should ask, in seconds: often enough that a part overstays by a quarter at most."""
        return max(0.05, min(self.rollover_interval_s, self.inactivity_interval_s, 60.0) / 4)
