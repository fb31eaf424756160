"""Which stages a Spark job and each of its tasks encode; those of a job that failed are parted, until one is alone."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partfile.sink.states import RolledStage

MOST_FAILED_JOBS = 4
"""Of one call; each costs some tries of its tasks, while a batch waits."""
_TASK_BYTES = 128 << 20
"""Of stages for one task: enough to be worth it, and little enough to be done again when its worker dies."""
_STAGE_BYTES = 1 << 20
"""What opening a stage and creating a file cost, as bytes that could have been encoded meanwhile."""


class EncodeGroups:
    """Remembers the stages of jobs that failed, by the in-progress names that no other stage has."""

    def __init__(self) -> None:
        self._suspects: list[frozenset[str]] = []
        """Each is to be one job."""

    def of(self, stages: Sequence[RolledStage]) -> list[list[RolledStage]]:
        """The stages of each job, in the order of the jobs: all those that nothing is known of by the first.

        Args:
            stages: What is to be encoded now. Suspects that are not among them wait, and stay suspects.
        """
        suspected, asked = frozenset[str]().union(*self._suspects), frozenset(map(_name, stages))
        groups = [[stage for stage in stages if _name(stage) not in suspected]]
        groups += [[stage for stage in stages if _name(stage) in names] for names in self._suspects]
        self._suspects = [names - asked for names in self._suspects if names - asked]
        return [group for group in groups if group]

    def failed(self, group: Sequence[RolledStage]) -> None:
        """Note that the job of these has failed: next time its halves are jobs of their own."""
        names, half = [_name(stage) for stage in group], len(group) // 2
        self._suspects += [frozenset(part) for part in (names[:half], names[half:]) if part]

    def not_tried(self, group: Sequence[RolledStage]) -> None:
        """Note that these have had no job, since too many failed: next time they come before those."""
        self._suspects.insert(0, frozenset(map(_name, group)))


def shared_out(stages: Sequence[RolledStage], slots: int) -> list[list[int]]:
    """Places of stages, by the task that is to encode them: all slots busy for about as long, the longest tasks first.

    Args:
        stages: What is to be encoded.
        slots: How many tasks run at the same time, at least 1.
    """
    weights = [stage.part.valid_length + _STAGE_BYTES for stage in stages]
    tasks = min(len(stages), max(slots, -(-sum(weights) // _TASK_BYTES)))
    loads = [(0, task) for task in range(tasks)]
    shares: list[list[int]] = [[] for _ in range(tasks)]
    for place in sorted(range(len(stages)), key=lambda place: -weights[place]):
        load, task = heapq.heappop(loads)
        shares[task].append(place)
        heapq.heappush(loads, (load + weights[place], task))
    return [shares[task] for _, task in sorted(loads, key=lambda load: (-load[0], load[1]))]


def _name(stage: RolledStage) -> str:
    return stage.part.in_progress
