"""How much of the full measurement a run does: all of it, or a share for a look."""

from __future__ import annotations

from dataclasses import dataclass

FULL_ROUNDS = 3
QUICK_ROUNDS = 2
QUICK_SHARE = 0.25
SPARE_ROUNDS = 2
"""A busy machine makes a longer benchmark, not an endless one."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The length of a run.

    Args:
        share: Which share of the batches and files of the full run; 1 is a measurement, less is a look.
        rounds: How many rounds of each suite have to count.
    """

    share: float = 1.0
    rounds: int = FULL_ROUNDS

    def of(self, full: int, least: int = 2) -> int:
        """The share of a number, rounded, but never less than ``least``."""
        return full if self.is_full else max(least, round(full * self.share))

    @property
    def spare_rounds(self) -> int:
        """How many rounds of one suite may be repeated because of others' load; a look points them out instead."""
        return SPARE_ROUNDS if self.is_full else 0

    @property
    def is_full(self) -> bool:
        """Whether nothing is left out."""
        return self.share >= 1
