"""Which file of tests a process takes next, where several share them: what starts servers is kept to few processes.

Each process that takes a file of ``tests/hdfs`` starts an HDFS of its own, and so with the servers of ``tests/s3`` and
with Spark; then it goes on with files of that kind. Kinds run beside each other, so that what waits for servers runs
beside what computes.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from collections.abc import Iterable

    from xdist.workermanage import WorkerController


KINDS = (("test_savepoints.py", "faults"), ("spark",), ("hdfs",), ("s3",), ("repo",))
"""Folders and files, of what takes longest. What forks at every call is first: processes that share the tests grow
beyond a gigabyte, and forks slow down."""
OTHERS = len(KINDS)
"""The kind of all other files. They take seconds, and fill the time in which the last long ones end."""


def kind_of(file: str) -> int:
    """The kind of a file of tests: its place in KINDS.

    Args:
        file: Its path in the repository, with slashes; more may follow after ``::``.
    """
    parts = file.partition("::")[0].split("/")
    return max((place for place, names in enumerate(KINDS) if not {*parts}.isdisjoint(names)), default=OTHERS)


def next_file(waiting: Iterable[str], last: str | None, others: Iterable[str]) -> str:
    """The file that a process takes next: one like its last; else one of the kind that the fewest others are at.

    Args:
        waiting: Those that no process has taken, in their order.
        last: What the process has taken last, if anything.
        others: What each of the others has taken last.
    """
    first: dict[int, str] = {}
    for file in waiting:
        first.setdefault(kind_of(file), file)
    if last is not None and kind_of(last) in first:
        return first[kind_of(last)]
    taken = Counter(map(kind_of, others))
    return first[min(first, key=lambda kind: (kind == OTHERS, taken[kind], kind))]


class ByKind(LoadFileScheduling):  # type: ignore[misc]
    """Gives each process files of one kind for as long as there are any."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        latest = {one: next(reversed(files)) for one, files in self.assigned_work.items() if files}
        last = latest.pop(node, None)
        self.workqueue.move_to_end(next_file(self.workqueue, last, latest.values()), last=False)
        super()._assign_work_unit(node)
