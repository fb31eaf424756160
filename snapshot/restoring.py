"""Which operators of a snapshot a job takes over, by their ids. Source: Flink's allow-non-restored rule. Pure."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from partfile.filesystems.errors import RecoveryRefused

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from partfile.snapshot.model import OperatorState

logger = logging.getLogger("partfile")


def restored_operators(
    snapshot: Mapping[str, OperatorState], registered: Collection[str], *, allow_non_restored: bool
) -> dict[str, OperatorState]:
    """The states that the operators of a job begin with; one that the snapshot does not know begins with none.

    Args:
        snapshot: The states by operator id.
        registered: The ids of the job's operators.
        allow_non_restored: Whether state that no operator takes may be left behind, which is logged.

    Raises:
        RecoveryRefused: The snapshot holds state of operators that the job does not have.
    """
    left = sorted(name for name, state in snapshot.items() if name not in registered and not is_empty(state))
    if left and not allow_non_restored:
        raise RecoveryRefused(
            f"the snapshot holds state of {', '.join(map(repr, left))}, which this job does not have",
            hint="Restore the job that wrote it, or set allow_non_restored=True to leave that state behind.",
        )
    for name in left:
        logger.warning("the state of operator %r in the snapshot is left behind: this job has no such operator", name)
    return {name: state for name, state in snapshot.items() if name in registered}


def is_empty(state: OperatorState) -> bool:
    """Whether an operator has no state at all."""
    return state.coordinator is None and not state.subtasks
