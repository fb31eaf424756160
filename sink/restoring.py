"""What a start begins with when it is told to restore a savepoint or an older checkpoint. Pure (S12)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from partfile.filesystems.errors import RecoveryRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from partfile.sink.naming import PartNumber
    from partfile.sink.planning import SinkSnapshot
    from partfile.sink.states import OpenPart

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """A snapshot that a user asked for, read and checked."""

    token: str
    """What tells it from any other: the savepoint's id, or the nonce of the checkpoint's link."""
    location: str
    """Where it was found, for messages."""
    state: SinkSnapshot
    is_newest: bool = False
    """Whether it is the newest checkpoint of the sink's own chain, fences left aside."""


class Choice(Enum):
    """What a start does about a restore point."""

    RESTORE = "restore"
    """Begin with its state."""
    GO_ON = "go on"
    """Begin with the newest link: it holds what the point holds, or what has come of it since."""
    REFUSE = "refuse"
    """The sink has gone on from it, or never came from it."""


class FinishedPart(NamedTuple):
    """A finished file of the sink."""

    path: str
    number: PartNumber


def choose(current: SinkSnapshot | None, point: RestorePoint) -> Choice:
    """Decide which state a start begins with.

    The option stays set over restarts, so a sink that was restored from this point already goes on.

    Args:
        current: What the newest link holds; None in an empty chain.
        point: What the user asked for.
    """
    if current is None:
        return Choice.RESTORE
    if current.position.restored_from == point.token or point.is_newest or _nothing_came_after(current, point.state):
        return Choice.GO_ON
    return Choice.REFUSE


def _nothing_came_after(current: SinkSnapshot, point: SinkSnapshot) -> bool:
    """Whether a sink stands where a savepoint left it: every row since then would have made a new part."""
    before, now = point.position, current.position
    return (
        not current.open
        and not point.open
        and current.max_count == point.max_count
        and (now.chain, now.query, now.user_position) == (before.chain, before.query, before.user_position)
    )


def onto_an_empty_chain(point: RestorePoint, chain: str) -> SinkSnapshot:
    """The state that a savepoint gives to a sink without any checkpoint.

    Args:
        point: The savepoint.
        chain: The new chain's id, so that part names never meet those of the sink it was taken of.
    """
    position = point.state.position.model_copy(update={"chain": chain, "kept": False, "restored_from": point.token})
    return replace(point.state, position=position, open={}, pending=(), max_count=-1)


def noted(current: SinkSnapshot, point: RestorePoint) -> SinkSnapshot:
    """The state of a sink that stands at the point or came from there, and will know so at its next start."""
    return replace(current, position=current.position.model_copy(update={"restored_from": point.token}))


def over_later_parts(
    current: SinkSnapshot, point: RestorePoint, is_finished: Callable[[OpenPart], bool]
) -> SinkSnapshot:
    """The state of a rollback whose user accepts that later parts stay.

    No finished file is touched. Parts that were open at the point and are still unpublished go back to what they held
    then; what has been completed since is still published; what is open since then alone is left behind.

    Args:
        current: What the newest link holds.
        point: What to go back to.
        is_finished: Whether a part has its final name.
    """
    promised = {part.part.name for part in current.pending}
    opened = {
        subtask: tuple(part for part in parts if part.part.name not in promised and not is_finished(part))
        for subtask, parts in point.state.open.items()
    }
    position = point.state.position.model_copy(
        update={
            "chain": current.position.chain,
            "kept": False,
            "restored_from": point.token,
            "retired_queries": current.position.retired_queries,
        }
    )
    return replace(
        point.state,
        position=position,
        open={subtask: parts for subtask, parts in opened.items() if parts},
        pending=current.pending,
        max_count=max(current.max_count, point.state.max_count),
    )


def later_parts(finished: Iterable[FinishedPart], current: SinkSnapshot, point: SinkSnapshot) -> list[str]:
    """The finished files that hold rows of after the point, by path.

    Args:
        finished: Every finished file below the base whose name says that a sink wrote it.
        current: What the newest link holds; only files of its chain count.
        point: What was to be restored.
    """
    same_chain = point.position.chain == current.position.chain
    opened = {part.part.path_of(part.part.name) for parts in point.open.values() for part in parts}
    return sorted(
        part.path
        for part in finished
        if part.number.chain == current.position.chain
        and (not same_chain or part.number.count > point.max_count or part.path in opened)
    )


def refusal(uid: str, point: RestorePoint, later: Sequence[str]) -> RecoveryRefused:
    """The error that says which parts would be doubled."""
    shown = ", ".join(map(repr, later[:_SHOWN])) + (f" and {len(later) - _SHOWN} more" if len(later) > _SHOWN else "")
    return RecoveryRefused(
        f"sink {uid!r} has gone on since {point.location!r}: restoring that would write again what "
        f"{len(later)} later parts hold: {shown or 'none is finished yet'}",
        hint="Restore onto an empty base path or under another uid; or remove these parts yourself, or bear that their "
        "rows are doubled, and set accept_newer=True for one run; or leave restore_from out to go on.",
    )
