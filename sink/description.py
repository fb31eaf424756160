"""What an operator is told: what to do with rows, and who it is in a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from partfile.sink.shared_stages import Sharing
from partfile.writers.arrow_stage import StageFormat
from partfile.writers.port import BulkFormat

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import JsonValue

    from partfile.bucketers.port import Bucketer
    from partfile.sink.naming import PartNaming
    from partfile.sink.rolling import RollingPolicy
    from partfile.writers.port import Format


@dataclass(frozen=True, slots=True)
class SinkDescription:
    """What an operator does with rows: everything that is the same for all subtasks and batches. Picklable."""

    format: Format
    bucketer: Bucketer
    rolling: RollingPolicy
    naming: PartNaming
    max_open_parts: int
    on_bad_bucket: str
    recipe: Mapping[str, JsonValue] | None = None
    """How a stage is encoded, where the parts of a columnar format are staged; None where they are not."""
    shared_recipe: Mapping[str, JsonValue] | None = None
    """How a stage is encoded that many buckets share; None where none do."""
    stage_compression: Literal["auto", "lz4", "zstd", "none"] = "auto"
    """What stages are compressed with; ``auto`` asks the store."""
    shared_stage_buckets: int = 0
    """Buckets in one batch of a subtask up to which none share a stage."""

    @property
    def sharing(self) -> Sharing:
        """When rows share a stage, where they may."""
        return Sharing(self.shared_stage_buckets, self.rolling.max_part_bytes, self.max_open_parts)

    def staged_in(self, *, travels: bool) -> StageFormat:
        """What rows are staged in, where they are: columns that the format can hold, or its encoded lines.

        Args:
            travels: Whether the store is one that stages go to over a network.
        """
        chosen = self.stage_compression
        if chosen == "auto":
            chosen = "lz4" if travels else "none"
        return StageFormat(self.format if isinstance(self.format, BulkFormat) else None, compression=chosen)


@dataclass(frozen=True, slots=True)
class SubtaskContext:
    """Who the operator is in this batch, as the coordinator says."""

    subtask: int
    attempt: int
    """0 for a first run; a hint, not a fence (S2)."""
    generation: int
    chain: str
    batch_time_ms: int
    """The coordinator's time, in milliseconds since the epoch (S8)."""
    may_keep: bool = True
    """Whether parts may stay open over the checkpoint; False where the store cannot append, as its coordinator has
    found out, or leases are not proven (S13)."""
    may_stage: bool = False
    """Whether the store reads stages back, as its coordinator has found out; else columnar parts roll at every
    checkpoint."""
    encoded_ratio: float | None = None
    """Bytes of encoded files for each byte of their stages, as far as the coordinator has seen some."""
