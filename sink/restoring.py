"""What a start begins with when it is told to restore a savepoint or an older checkpoint. Pure (S12)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from partfile.filesystems.errors import RecoveryRefused
from partfile.sink.shared_names import unmarked

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from partfile.filesystems.port import PartHandle
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
    """Whether all that came after it in the sink's own chain holds what it holds, perhaps published since."""
    was_restored: bool = False
    """Whether the sink's own chain has gone back to it before."""


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
    if current.position.restored_from == point.token:
        return Choice.GO_ON
    return Choice.GO_ON if point.is_newest or _nothing_came_after(current, point.state) else Choice.REFUSE


def _nothing_came_after(current: SinkSnapshot, point: SinkSnapshot) -> bool:
    """Whether a sink stands where a savepoint left it: every row since then would have made a new part."""
    is_closed = not current.open and not current.rolled and not point.open
    return is_closed and current.max_count == point.max_count and _stand_alike(current, point)


def adds_nothing(later: SinkSnapshot, point: SinkSnapshot) -> bool:
    """Whether a later link of the chain holds no row that an older one does not: a fence, or a clean end without rows.

    Each of its parts is one of the older link's, at the same valid length. Parts that are missing in it have been
    published; had rows been added to one of them before, a link between the two would show it.

    Args:
        later: What the later link holds.
        point: What the older one holds.
    """
    known = _lengths(point)
    return (
        all(known.get(name, set()) & lengths for name, lengths in _lengths(later).items())
        and later.max_count == point.max_count
        and _stand_alike(later, point)
    )


def _stand_alike(one: SinkSnapshot, other: SinkSnapshot) -> bool:
    first, second = one.position, other.position
    return (first.chain, first.query, first.user_position) == (second.chain, second.query, second.user_position)


def _parts(state: SinkSnapshot) -> list[PartHandle]:
    """Every part of a state that is not known to be finished."""
    opened = [part.part for parts in state.open.values() for part in parts]
    return [*opened, *(pending.part for pending in state.pending), *(stage.part for stage in state.rolled)]


def _lengths(state: SinkSnapshot) -> dict[str, set[int]]:
    """How long each part of a state is, by its unmarked final name; for an encoded one also how long its stage was.

    That is one part's alone, whichever directory it is in, or that of the files that one shared stage became.
    """
    lengths: dict[str, set[int]] = {}
    for part in _parts(state):
        lengths.setdefault(unmarked(part.name), set()).add(part.valid_length)
    for stage in state.spent:
        name = unmarked(stage.part.name)
        if name in lengths:
            lengths[name].add(stage.part.valid_length)
    return lengths


def onto_an_empty_chain(point: RestorePoint, chain: str) -> SinkSnapshot:
    """The state that a savepoint gives to a sink without any checkpoint.

    Args:
        point: The savepoint.
        chain: The new chain's id, so that part names never meet those of the sink it was taken of.
    """
    position = point.state.position.model_copy(
        update={"chain": chain, "kept": False, "shared_from": None, **origin(point)}
    )
    return replace(point.state, position=position, open={}, pending=(), max_count=-1, rolled=(), spent=())


def noted(current: SinkSnapshot, point: RestorePoint) -> SinkSnapshot:
    """The state of a sink that stands at the point or came from there, and will know so at its next start."""
    return replace(current, position=current.position.model_copy(update=origin(point)))


def is_as_noted(current: SinkSnapshot, restored: SinkSnapshot) -> bool:
    """Whether what is restored is the state that is in force already, but for where it says that it came from."""
    where = {field: getattr(current.position, field) for field in ("restored_from", "restored_location")}
    return replace(restored, position=restored.position.model_copy(update=where)) == current


def origin(point: RestorePoint) -> dict[str, str]:
    """The fields of a position that say where it came from."""
    return {"restored_from": point.token, "restored_location": point.location}


def open_since(current: SinkSnapshot, point: SinkSnapshot) -> list[PartHandle]:
    """What the point holds of the parts that were open at it and still are, or are stages that wait to be encoded."""
    names = {part.part.name for parts in current.open.values() for part in parts}
    names |= {stage.part.name for stage in current.rolled}
    return [part.part for parts in point.open.values() for part in parts if part.part.name in names]


def over_later_parts(current: SinkSnapshot, point: RestorePoint, stuck: Collection[str] = ()) -> SinkSnapshot:
    """The state of a rollback whose user accepts that later parts stay.

    No finished file is touched. Parts that were open at the point and still are go back to what they held then, and so
    do stages that no file has been promised for; what has been promised or published since is left as it is, with the
    rows of before and after, and so is what cannot go back. What was opened since then is left behind.

    Args:
        current: What the newest link holds.
        point: What to go back to.
        stuck: Names of open parts that the store cannot publish at the length that they had at the point.
    """
    still_open = {handle.name for handle in open_since(current, point.state)} - set(stuck)
    left_as_is = {part.part.name: part for parts in current.open.values() for part in parts if part.part.name in stuck}
    promised = {stage.part.name: stage.stage.finished_buckets for stage in current.rolled}
    opened = {
        subtask: tuple(
            left_as_is.get(part.part.name, _less(part, promised.get(part.part.name, ())))
            for part in parts
            if part.part.name in still_open or part.part.name in left_as_is
        )
        for subtask, parts in point.state.open.items()
    }
    waiting = {stage.part.name for stage in point.state.rolled} | set(stuck)
    position = point.state.position.model_copy(
        update={
            "chain": current.position.chain,
            "kept": False,
            "retired_queries": current.position.retired_queries,
            "shared_from": current.position.shared_from,
            **origin(point),
        }
    )
    return replace(
        point.state,
        position=position,
        open={subtask: parts for subtask, parts in opened.items() if parts},
        pending=current.pending,
        max_count=max(current.max_count, point.state.max_count),
        rolled=tuple(stage for stage in current.rolled if stage.part.name in waiting),
        spent=current.spent,
    )


def _less(part: OpenPart, buckets: tuple[str, ...]) -> OpenPart:
    """An open shared stage less the rows of buckets whose files have been promised since."""
    if part.stage is None or not buckets:
        return part
    return part.model_copy(update={"stage": part.stage.model_copy(update={"finished_buckets": buckets})})


def later_parts(finished: Iterable[FinishedPart], current: SinkSnapshot | None, point: SinkSnapshot) -> list[str]:
    """The files that hold, or will hold, rows that restoring the point would write again, by their final paths.

    Args:
        finished: The finished files below the base that are parts of the point's chain or of the sink's own.
        current: What the newest link holds; None in an empty chain.
        point: What was to be restored.
    """
    # By name, for the files of a stage that was shared then are elsewhere.
    opened = {unmarked(part.part.name) for parts in point.open.values() for part in parts}
    paths = {
        part.path
        for part in finished
        if part.number.chain != point.position.chain
        or part.number.count > point.max_count
        or unmarked(part.path.rpartition("/")[2]) in opened
    }
    if current is not None:
        known = {unmarked(part.name) for part in _parts(replace(point, open={}))}
        paths |= {part.path_of(part.name) for part in _parts(current) if unmarked(part.name) not in known}
    return sorted(paths)


def doubled_parts(
    finished: Iterable[FinishedPart], current: SinkSnapshot | None, point: SinkSnapshot, stuck: Collection[str]
) -> list[str]:
    """The files whose rows come twice once the point is restored over later parts, by their final paths.

    What is finished or promised since then stays. Open parts are cut to what the point holds of them, and those that
    were opened since are left behind, so none of their later rows is in a finished file.

    Args:
        finished: As ``later_parts``.
        current: What the newest link holds; None where there is none, or it cannot be read.
        point: What is restored.
        stuck: Names of open parts that cannot go back.
    """
    paths = set(later_parts(finished, None, point))
    if current is not None:
        known, stays = _lengths(point), staying(current, stuck)
        later = {name for name, lengths in _lengths(stays).items() if not known.get(name, set()) & lengths}
        paths |= {part.path_of(part.name) for part in _parts(stays) if unmarked(part.name) in later}
    return sorted(paths)


def staying(current: SinkSnapshot, stuck: Collection[str]) -> SinkSnapshot:
    """What of a state a rollback leaves as it is: what has been promised, and what cannot go back."""
    return replace(
        current,
        open={
            subtask: tuple(part for part in parts if part.part.name in stuck) for subtask, parts in current.open.items()
        },
        rolled=tuple(stage for stage in current.rolled if stage.part.name in stuck),
    )


def refusal(uid: str, point: RestorePoint, later: Sequence[str]) -> RecoveryRefused:
    """The error that says which parts would be doubled."""
    return RecoveryRefused(
        f"sink {uid!r} has gone on since {point.location!r}, or never came from it: {len(later)} later parts hold rows "
        f"that restoring it may write again: {shown(later) or 'none, but its position has moved'}",
        hint="Restore onto another base path; or leave restore_from out to go on. With accept_newer=True for one run "
        "these parts stay and their rows come twice. Do not delete them: they may hold rows of before as well.",
    )


def shown(paths: Sequence[str]) -> str:
    """The first of some paths and the number of the others, for a message."""
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(map(repr, paths[:_SHOWN])) + more
