"""Runs cases round robin, and repeats a round during which others kept the machine busy. Knows nothing of sinks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from runs import Round, Run

NOISY_CORES = 0.3
"""Load of other processes, in cores, above which a round is repeated, or pointed out if it cannot be."""


@dataclass(slots=True)
class Rounds:
    """The rounds that count, and the runs of those that were repeated."""

    kept: list[Round] = field(default_factory=list)
    discarded: list[Run] = field(default_factory=list)

    @property
    def runs(self) -> list[Run]:
        """Everything that was run, for the record."""
        return [run for each in self.kept for run in each.values()] + self.discarded


def interleaved(
    cases: Mapping[str, Callable[[], Run]], rounds: int, *, spare: int, say: Callable[[str], None]
) -> Rounds:
    """Run every case once a round, the order turned round from one round to the next.

    Args:
        cases: What to run, by name.
        rounds: How many rounds have to count.
        spare: How many rounds may be repeated because of others' load.
        say: Told a line after each run.
    """
    done = Rounds()
    number = 0
    while len(done.kept) < rounds:
        number += 1
        names = in_turn(list(cases), number)
        found: Round = {}
        for name in names:
            found[name] = run = cases[name]()
            run.round = number
            say(line_of(number, run))
        busy = max(run.foreign_cores for run in found.values())
        if busy > NOISY_CORES and len(done.discarded) < spare * len(cases):
            say(f"  round {number} ran beside {busy:.2f} cores of others' load and is repeated")
            for run in found.values():
                run.discarded = True
            done.discarded += found.values()
        else:
            done.kept.append(found)
    return done


def in_turn(names: Sequence[str], number: int) -> list[str]:
    """The names, from the other end in each second round."""
    return list(names if number % 2 else reversed(names))


def line_of(number: int, run: Run) -> str:
    """One line about a run."""
    speed = f", {run.rows_per_s / 1000:.0f} k rows/s" if run.rows > run.seconds * 1000 else ""
    left = f", {run.files} files" if run.files else ""
    return f"  round {number} {run.case}: {run.seconds:.1f} s{speed}, {run.cpu_s:.1f} s of CPU{left}"
