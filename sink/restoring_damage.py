"""What a start begins with that goes back to an older checkpoint while the newest state cannot be read. Pure (S12)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from partfile.filesystems.errors import RecoveryRefused, SnapshotCorrupt
from partfile.sink.restoring import origin, shown
from partfile.sink.shared_names import unmarked
from partfile.sink.states import OpenPart, RolledStage

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from partfile.filesystems.port import PartHandle
    from partfile.sink.planning import SinkSnapshot
    from partfile.sink.restoring import RestorePoint
    from partfile.sink.states import Stage


Staged = TypeVar("Staged", OpenPart, RolledStage)


class WentBack(NamedTuple):
    """A state to begin with, and what is not in it although the checkpoint vouches for it."""

    state: SinkSnapshot
    gone: tuple[str, ...]
    """The final paths of parts that are under none of their names: published later and moved, or lost."""


def paths_of(point: SinkSnapshot) -> set[str]:
    """Every path that a part of the checkpoint may have by now."""
    return {path for part in _vouched(point) for path in (_final(part), *_staged(part))}


def unfinished(point: SinkSnapshot, there: Collection[str]) -> list[PartHandle]:
    """The parts of the checkpoint that are not under their final name, by the paths that are there."""
    shared = names_of_shared(point)
    return [part for part in _vouched(point) if not _is_finished(part, shared, there)]


def over_unreadable(point: RestorePoint, there: Collection[str], chain: str, *, published: bool) -> WentBack:
    """The state of a rollback that does not know what came later.

    A part that was open at the point goes back to what it held then if it is still staged; a finished one is left as it
    is, with the rows of before and after. What was opened since is named by nobody and left behind.

    Args:
        point: What to go back to.
        there: Those of its parts' paths that are there now.
        chain: A new chain id for part names: the counter that the unreadable link holds is not known, and a finished
            part of a name that is used again would be taken for the new one.
        published: Whether the pending parts of the point have their final names already.
    """
    finished = _finished_buckets(point.state, there)
    shared = set(finished)
    kept = {
        subtask: tuple(
            _without(part, finished)
            for part in parts
            if not _is_finished(part.part, shared, there) and any(path in there for path in _staged(part.part))
        )
        for subtask, parts in point.state.open.items()
    }
    owed = () if published else point.state.pending
    pending = tuple(part for part in owed if {_final(part.part), *_staged(part.part)} & set(there))
    vouched = [part.part for parts in point.state.open.values() for part in parts] + [part.part for part in owed]
    waiting = tuple(
        _without(stage, finished)
        for stage in point.state.rolled
        if not _is_finished(stage.part, shared, there) and any(path in there for path in _staged(stage.part))
    )
    vouched += [stage.part for stage in point.state.rolled]
    gone = sorted(
        _final(part)
        for part in vouched
        if not _is_finished(part, shared, there) and not any(path in there for path in _staged(part))
    )
    position = point.state.position.model_copy(
        update={"chain": chain, "kept": False, "shared_from": None, **origin(point)}
    )
    opened = {subtask: parts for subtask, parts in kept.items() if parts}
    return WentBack(
        replace(point.state, position=position, open=opened, pending=pending, rolled=waiting, max_count=-1),
        tuple(gone),
    )


def unknown_since(uid: str, point: RestorePoint, damage: SnapshotCorrupt, later: Sequence[str]) -> str:
    """What a message says of the parts that came later."""
    return (
        f"the newest checkpoint of sink {uid!r} cannot be read, so what came after {point.location!r} cannot be known: "
        f"{damage.message}. Finished parts that hold later rows: {shown(later) or 'none is there'}; others may have "
        "been moved away"
    )


def refusal_over_damage(
    uid: str, point: RestorePoint, damage: SnapshotCorrupt, later: Sequence[str]
) -> RecoveryRefused:
    """The error that says that nobody knows which parts would be doubled."""
    return RecoveryRefused(
        unknown_since(uid, point, damage, later),
        hint="Put the file back from a backup or a copy. Or stop every run of the sink and set accept_newer=True for "
        "one run: finished parts stay, and their later rows come twice.",
        path=damage.path,
    )


def refusal_of_missing(uid: str, point: RestorePoint, gone: Sequence[str]) -> RecoveryRefused:
    """The error that says which parts the checkpoint vouches for and nobody can find."""
    return RecoveryRefused(
        f"{len(gone)} parts that {point.location!r} of sink {uid!r} vouches for are under none of their names, or "
        f"cannot be published any more at the length that they had then: {shown(gone)}",
        hint="If a consumer moved them after they were published, set accept_missing=True; else their rows are lost. "
        "Or choose a later checkpoint that can be read.",
    )


def with_the_way_back(damage: SnapshotCorrupt) -> SnapshotCorrupt:
    """The same error with what a user of a sink can do besides."""
    return SnapshotCorrupt(
        damage.message,
        hint=f"{damage.hint or 'Put the file back from a backup or a copy.'} Without one, go back to an older "
        "checkpoint by restore_from and accept_newer=True: see docs/SNAPSHOTS.md.",
        path=damage.path,
        checkpoint_id=damage.checkpoint_id,
    )


def applied_before(uid: str, point: RestorePoint, damage: SnapshotCorrupt) -> RecoveryRefused:
    """The error that says that the options are left over from a rollback before the damage."""
    return RecoveryRefused(
        f"the newest checkpoint of sink {uid!r} cannot be read: {damage.message}. restore_from={point.location!r} was "
        "applied before that, and says nothing of what came since",
        hint="Put the file back from a backup or a copy; or choose a later checkpoint that can be read.",
        path=damage.path,
    )


def names_of_shared(point: SinkSnapshot) -> set[str]:
    """The unmarked final names of the files that shared stages of the checkpoint become, in whichever buckets."""
    stages = [(part.part, part.stage) for parts in point.open.values() for part in parts]
    stages += [(stage.part, stage.stage) for stage in point.rolled]
    return {unmarked(part.name) for part, stage in stages if stage is not None and stage.shared}


def _finished_buckets(point: SinkSnapshot, there: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The buckets of each shared stage whose file is there, by its name."""
    found: dict[str, tuple[str, ...]] = dict.fromkeys(names_of_shared(point), ())
    for path in sorted(there):
        name = unmarked(path.rpartition("/")[2])
        if name in found:
            found[name] = (*found[name], path.rpartition("/")[0])
    return found


def _without(part: Staged, finished: Mapping[str, tuple[str, ...]]) -> Staged:
    """A shared stage less the rows of buckets whose file is there, which stays as it is."""
    return part.model_copy(update={"stage": _less(part.stage, finished.get(unmarked(part.part.name), ()))})


def _less(stage: Stage | None, buckets: tuple[str, ...]) -> Stage | None:
    if stage is None or not stage.shared:
        return stage
    return stage.model_copy(update={"finished_buckets": tuple(dict.fromkeys((*stage.finished_buckets, *buckets)))})


def _is_finished(part: PartHandle, shared: Collection[str], there: Collection[str]) -> bool:
    """Whether a part has its final name. Never so for a shared stage, whose path there is that of one of its files."""
    return _final(part) in there and not (part.is_stage and unmarked(part.name) in shared)


def _vouched(point: SinkSnapshot) -> list[PartHandle]:
    opened = [part.part for parts in point.open.values() for part in parts]
    return [*opened, *(part.part for part in point.pending), *(stage.part for stage in point.rolled)]


def _final(part: PartHandle) -> str:
    return part.path_of(part.name)


def _staged(part: PartHandle) -> tuple[str, str]:
    return part.path_of(part.in_progress), part.path_of(part.pending)
