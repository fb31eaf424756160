"""The rules of a start: what is restored, what is refused in which words, which batches are replays (R12). Pure."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from partfile.errors import CheckpointMismatch, RecoveryRefused, SnapshotCorrupt, SnapshotVersionError, joined_hints
from partfile.sink.plan import needed_runs
from partfile.sink.policies import ADOPT, HIDING_PREFIXES, ReplayRules, unmarked
from partfile.sink.states import ClosedStagingFile, OpenPart
from partfile.snapshot.documents import HASH_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from partfile.sink.plan import SinkSnapshot
    from partfile.sink.policies import Deduplicate, PartNumber
    from partfile.sink.settings import RestoreSettings
    from partfile.sink.states import QueryPosition, SeenKeys, StagingFile, StreamPosition
    from partfile.stores.base import PartHandle


_SHOWN = 20


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """A snapshot that a user asked for, read and checked."""

    token: str
    """Its identity: the savepoint's id, or the nonce of the checkpoint's metadata."""
    location: str
    """Its location, for messages."""
    state: SinkSnapshot
    is_newest: bool = False
    """True if every later entry of the sink's own log holds the same rows, perhaps published since."""
    was_restored: bool = False
    """Whether the sink's own checkpoint log has gone back to it before."""


class Choice(Enum):
    """The ways in which a start treats a restore point."""

    RESTORE = "restore"
    """Begin with its state."""
    GO_ON = "go on"
    """Begin with the newest checkpoint: it holds what the point holds, or what has come of it since."""
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
        current: What the newest checkpoint holds; None in an empty checkpoint log.
        point: What the user asked for.
    """
    if current is None:
        return Choice.RESTORE
    if current.position.restored_from == point.token:
        return Choice.GO_ON
    return Choice.GO_ON if point.is_newest or _nothing_came_after(current, point.state) else Choice.REFUSE


def _nothing_came_after(current: SinkSnapshot, point: SinkSnapshot) -> bool:
    """Whether a sink stands where a savepoint left it: every row since then would have made a new part."""
    is_closed = not current.open and not current.closed and not point.open
    return is_closed and current.max_count == point.max_count and _stand_alike(current, point)


def adds_nothing(later: SinkSnapshot, point: SinkSnapshot) -> bool:
    """Whether a later checkpoint of the checkpoint log holds no row that an older one does not.

    A takeover, or a clean end without rows.

    Each of its parts is one of the older checkpoint's, at the same valid length. Parts that are missing in it have been
    published; had rows been added to one of them before, a checkpoint between the two would show it.

    Args:
        later: What the later checkpoint holds.
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
    # Keys that were forgotten are as if there had been none, whatever rows came or did not come since.
    both = [seen for seen in (first.seen_keys, second.seen_keys) if seen is not None]
    time_ms = max((seen.time_ms for seen in both), default=0)
    keys = [
        (seen.columns, bool(needed_runs(seen, seen.ttl_ms, time_ms))) if seen is not None else None
        for seen in (first.seen_keys, second.seen_keys)
    ]
    stands = [(position.chain, position.query, position.user_position) for position in (first, second)]
    return stands[0] == stands[1] and keys[0] == keys[1]


def _parts(state: SinkSnapshot) -> list[PartHandle]:
    """Every part of a state that is not known to be finished."""
    opened = [part.part for parts in state.open.values() for part in parts]
    return [
        *opened,
        *(pending.part for pending in state.pending),
        *(staging_file.part for staging_file in state.closed),
    ]


def _lengths(state: SinkSnapshot) -> dict[str, set[int]]:
    """The lengths that a state knows of each part, by its unmarked final name.

    For an encoded part also the length that its staging file had. In any directory one such name belongs to one part,
    or to the files of one multi-bucket staging file.
    """
    lengths: dict[str, set[int]] = {}
    for part in _parts(state):
        lengths.setdefault(unmarked(part.name), set()).add(part.valid_length)
    for staging_file in state.encoded:
        name = unmarked(staging_file.part.name)
        if name in lengths:
            lengths[name].add(staging_file.part.valid_length)
    return lengths


def onto_an_empty_log(point: RestorePoint, chain: str) -> SinkSnapshot:
    """The state that a savepoint gives to a sink without any checkpoint.

    Args:
        point: The savepoint.
        chain: The new chain's id, so that part names never meet those of the sink it was taken of.
    """
    position = point.state.position.model_copy(
        update={"chain": chain, "kept": False, "shared_from": None, **origin(point)}
    )
    return replace(point.state, position=position, open={}, pending=(), max_count=-1, closed=(), encoded=())


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
    """The handles, as of the point, of parts that were open then and still are, or are not encoded yet."""
    names = {part.part.name for parts in current.open.values() for part in parts}
    names |= {staging_file.part.name for staging_file in current.closed}
    return [part.part for parts in point.open.values() for part in parts if part.part.name in names]


def over_later_parts(current: SinkSnapshot, point: RestorePoint, stuck: Collection[str] = ()) -> SinkSnapshot:
    """The state of a rollback whose user accepts that later parts stay.

    Finished files stay. Parts open then and now go back to their length at the point; so do staging files without a
    promised file. Everything promised or published since stays, and so do the parts in ``stuck``. Parts opened later
    are left behind.

    Args:
        current: What the newest checkpoint holds.
        point: What to go back to.
        stuck: Names of open parts that the store cannot publish at the length that they had at the point.
    """
    still_open = {handle.name for handle in open_since(current, point.state)} - set(stuck)
    left_as_is = {part.part.name: part for parts in current.open.values() for part in parts if part.part.name in stuck}
    promised = {staging_file.part.name: staging_file.staging_file.finished_buckets for staging_file in current.closed}
    opened = {
        subtask: tuple(
            left_as_is.get(part.part.name, _less(part, promised.get(part.part.name, ())))
            for part in parts
            if part.part.name in still_open or part.part.name in left_as_is
        )
        for subtask, parts in point.state.open.items()
    }
    waiting = {staging_file.part.name for staging_file in point.state.closed} | set(stuck)
    position = point.state.position.model_copy(
        update={
            "chain": current.position.chain,
            "kept": False,
            "retired_queries": current.position.retired_queries,
            "shared_from": current.position.shared_from,
            # Later finished files stay, and readers need the types of their rows.
            "row_schema": current.position.row_schema,
            "seen_keys": _keys_of(point),
            **origin(point),
        }
    )
    return replace(
        point.state,
        position=position,
        open={subtask: parts for subtask, parts in opened.items() if parts},
        pending=current.pending,
        max_count=max(current.max_count, point.state.max_count),
        closed=tuple(staging_file for staging_file in current.closed if staging_file.part.name in waiting),
        encoded=current.encoded,
    )


def _less(part: OpenPart, buckets: tuple[str, ...]) -> OpenPart:
    """An open multi-bucket staging file less the rows of buckets whose files have been promised since."""
    if part.staging_file is None or not buckets:
        return part
    return part.model_copy(update={"staging_file": part.staging_file.model_copy(update={"finished_buckets": buckets})})


def later_parts(finished: Iterable[FinishedPart], current: SinkSnapshot | None, point: SinkSnapshot) -> list[str]:
    """The files that hold, or will hold, rows that restoring the point would write again, by their final paths.

    Args:
        finished: The finished files below the base that are parts of the point's chain or of the sink's own.
        current: What the newest checkpoint holds; None in an empty checkpoint log.
        point: What was to be restored.
    """
    # By name, for the files of a staging file that was shared then are elsewhere.
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
        current: What the newest checkpoint holds; None where there is none, or it cannot be read.
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
    """The part of a state that a rollback leaves as it is: promised parts, and parts that cannot go back."""
    return replace(
        current,
        open={
            subtask: tuple(part for part in parts if part.part.name in stuck) for subtask, parts in current.open.items()
        },
        closed=tuple(staging_file for staging_file in current.closed if staging_file.part.name in stuck),
    )


def refusal_of_a_log(settings: RestoreSettings, location: str) -> RecoveryRefused:
    """The error for a sink that has checkpoints and is told to begin with something else."""
    return RecoveryRefused(
        f"sink {settings.uid!r} has checkpoints of its own, and restore_from={location!r} begins a sink without any",
        hint="Nothing was changed. Leave restore_from out to go on, or restore onto another base path. To go back, "
        f"stop the sink and type: {settings.recover_command('--restore-from', location)}",
    )


def is_job(name: str) -> bool:
    """Whether a directory beside checkpoint logs may be one; those of partfile's own begin with an underscore."""
    return not name.startswith(HIDING_PREFIXES)


def is_of_sink(job: str, uid: str) -> bool:
    """Whether a checkpoint log is that of a sink, or of one of its writers in plain Python."""
    return job.partition("~")[0] == uid


def refusal_of_used_base(settings: RestoreSettings, found: str) -> RecoveryRefused:
    """The error of a start that has no checkpoint, at a base where a sink has written before."""
    return RecoveryRefused(
        f"sink {settings.uid!r} has no checkpoint in {settings.checkpoint_url!r}, and its base {settings.base!r} is "
        f"used already: {found}",
        hint="Nothing was changed. If it is the same sink, give it the uid and checkpoint_dir that it had: begun anew, "
        "it would write its rows again. If another sink is to write here as well, say on_used_base='accept'.",
    )


def refusal(uid: str, point: RestorePoint, later: Sequence[str], *, has_log: bool) -> RecoveryRefused:
    """The error that says which parts would be doubled; a sink without a checkpoint log of its own cannot go back."""
    ways = (
        "Restore onto another base path; or leave restore_from out to go on. With --accept-newer it goes back: parts "
        "that can be cut back are, and later rows of the others come twice."
        if has_log
        else "Restore onto another base path."
    )
    since = f"sink {uid!r} has gone on since {point.location!r}, or never came from it"
    if not later:
        return RecoveryRefused(
            f"{since}: its position has moved, and no later part is there",
            hint=f"{ways} See what is there: partfile list PATH",
        )
    return RecoveryRefused(
        f"{since}: {len(later)} later parts hold rows that restoring it may write again: {shown(later)}",
        hint=(
            f"{ways} Do not delete these parts: they may hold rows of before as well. See which there are: "
            "partfile list PATH"
        ),
    )


@contextmanager
def damage_told(sink: str, forget_command: str, stands: str = "Nothing was changed.") -> Iterator[None]:
    """Say of damage to a run whose keys they are, and how the sink goes on without them.

    Args:
        sink: Its name.
        forget_command: What forgets its keys.
        stands: What became of the sink.

    Raises:
        SnapshotCorrupt, SnapshotVersionError: What was raised inside, in these words.
    """
    try:
        yield
    except SnapshotVersionError as error:
        raise SnapshotVersionError(
            f"keys of sink {sink!r} cannot be read: {error.message}",
            hint="Go on with the version of partfile that wrote them; or forget the keys, so that rows with them are "
            f"written again: {forget_command}",
            path=error.path,
        ) from error
    except SnapshotCorrupt as error:
        raise damage_of_keys(sink, error, forget_command, stands) from error


def damage_of_keys(sink: str, error: SnapshotCorrupt, forget_command: str, stands: str = "") -> SnapshotCorrupt:
    """The error of a start that needs a run which is missing or damaged.

    Args:
        sink: Its name.
        error: What is wrong with the run.
        forget_command: What forgets the keys of the sink.
        stands: What became of the sink; empty where nothing was tried.
    """
    return SnapshotCorrupt(
        f"keys of sink {sink!r} cannot be read: {error.message}",
        hint=joined_hints(
            error.hint or f"{stands} Put the file back from a backup or a copy",
            f"Without one, forget the keys, so that rows with them are written again: {forget_command}",
        ),
        path=error.path,
    )


def damage_to_go_back_to(sink: str, error: SnapshotCorrupt, list_command: str, forget_command: str) -> SnapshotCorrupt:
    """The same of a checkpoint that a sink is to go back to, whose own keys may be whole.

    Args:
        sink: Its name.
        error: What is wrong with the run.
        list_command: What shows its checkpoints.
        forget_command: What forgets the keys of the sink.
    """
    return SnapshotCorrupt(
        f"keys of sink {sink!r} cannot be read once it has gone back: {error.message}",
        hint=f"Choose another checkpoint; see which there are: {list_command}. Or put the file back from a backup or a "
        f"copy. Or go back, and forget the keys after it, so that rows with them are written again: {forget_command}",
        path=error.path,
    )


def shown(paths: Sequence[str]) -> str:
    """The first of some paths and the number of the others, for a message."""
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(map(repr, paths[:_SHOWN])) + more


Staged = TypeVar("Staged", OpenPart, ClosedStagingFile)


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
    is, with the rows of before and after. No checkpoint names what was opened since; it is left behind.

    Args:
        point: What to go back to.
        there: Those of its parts' paths that are there now.
        chain: A new chain id for part names: the counter that the unreadable checkpoint holds is not known, and a
            finished part of a name that is used again would be taken for the new one.
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
        _without(staging_file, finished)
        for staging_file in point.state.closed
        if not _is_finished(staging_file.part, shared, there)
        and any(path in there for path in _staged(staging_file.part))
    )
    vouched += [staging_file.part for staging_file in point.state.closed]
    gone = sorted(
        _final(part)
        for part in vouched
        if not _is_finished(part, shared, there) and not any(path in there for path in _staged(part))
    )
    position = point.state.position.model_copy(
        update={
            "chain": chain,
            "kept": False,
            "shared_from": None,
            "seen_keys": _keys_of(point),
            **origin(point),
        }
    )
    opened = {subtask: parts for subtask, parts in kept.items() if parts}
    return WentBack(
        replace(point.state, position=position, open=opened, pending=pending, closed=waiting, max_count=-1),
        tuple(gone),
    )


def _keys_of(point: RestorePoint) -> SeenKeys | None:
    """The keys of the point. What they did not need any more a checkpoint since may name again: the cleaner looks."""
    seen = point.state.position.seen_keys
    return None if seen is None else seen.model_copy(update={"unneeded": ()})


def unknown_since(uid: str, point: RestorePoint, damage: SnapshotCorrupt, later: Sequence[str]) -> str:
    """The text of a message about the parts that came later."""
    return (
        f"the newest checkpoint of sink {uid!r} cannot be read, so what came after {point.location!r} cannot be known: "
        f"{damage.message}. Finished parts that hold later rows: {shown(later) or 'none is there'}; others may have "
        "been moved away"
    )


def refusal_over_damage(
    uid: str, point: RestorePoint, damage: SnapshotCorrupt, later: Sequence[str]
) -> RecoveryRefused:
    """The error for a start that might double parts which are unknown."""
    return RecoveryRefused(
        unknown_since(uid, point, damage, later),
        hint="Put the file back from a backup or a copy. Or stop every run of the sink and go back with "
        "--accept-newer: finished parts stay, and their later rows come twice.",
        path=damage.path,
    )


def refusal_of_missing(uid: str, point: RestorePoint, gone: Sequence[str]) -> RecoveryRefused:
    """The error that names parts which the checkpoint holds and storage does not have."""
    return RecoveryRefused(
        f"{len(gone)} parts that {point.location!r} of sink {uid!r} vouches for are under none of their names, or "
        f"cannot be published any more at the length that they had then: {shown(gone)}",
        hint="Choose a later checkpoint that can be read. Or, if a consumer moved them after they were published, add "
        "--accept-missing; else their rows are lost.",
    )


def with_the_way_back(settings: RestoreSettings, damage: SnapshotCorrupt) -> SnapshotCorrupt:
    """The same error with what a user of a sink can do besides."""
    command = settings.recover_command("--restore-from", "ID", "--accept-newer")
    return SnapshotCorrupt(
        damage.message,
        hint=joined_hints(
            damage.hint or "Put the file back from a backup or a copy.",
            f"Without one, go back to an older checkpoint, whose ID partfile checkpoints prints: {command}",
        ),
        path=damage.path,
        checkpoint_id=damage.checkpoint_id,
    )


def applied_before(uid: str, point: RestorePoint, damage: SnapshotCorrupt) -> RecoveryRefused:
    """The error that says that the options are left over from a rollback before the damage."""
    return RecoveryRefused(
        f"the newest checkpoint of sink {uid!r} cannot be read: {damage.message}. restore_from={point.location!r} was "
        "applied before that, and says nothing of what came since",
        hint=(
            "Put the file back from a backup or a copy; or choose a later checkpoint that can be read. See which "
            "there are: partfile checkpoints PATH"
        ),
        path=damage.path,
    )


def names_of_shared(point: SinkSnapshot) -> set[str]:
    """The unmarked final names of the files that multi-bucket staging files become, in whichever buckets."""
    staging_files = [(part.part, part.staging_file) for parts in point.open.values() for part in parts]
    staging_files += [(staging_file.part, staging_file.staging_file) for staging_file in point.closed]
    return {
        unmarked(part.name) for part, staging_file in staging_files if staging_file is not None and staging_file.shared
    }


def _finished_buckets(point: SinkSnapshot, there: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The buckets of each multi-bucket staging file whose file is there, by its name."""
    found: dict[str, tuple[str, ...]] = dict.fromkeys(names_of_shared(point), ())
    for path in sorted(there):
        name = unmarked(path.rpartition("/")[2])
        if name in found:
            found[name] = (*found[name], path.rpartition("/")[0])
    return found


def _without(part: Staged, finished: Mapping[str, tuple[str, ...]]) -> Staged:
    """A multi-bucket staging file less the rows of buckets whose file is there, which stays as it is."""
    return part.model_copy(
        update={"staging_file": _less_damaged(part.staging_file, finished.get(unmarked(part.part.name), ()))}
    )


def _less_damaged(staging_file: StagingFile | None, buckets: tuple[str, ...]) -> StagingFile | None:
    if staging_file is None or not staging_file.shared:
        return staging_file
    return staging_file.model_copy(
        update={"finished_buckets": tuple(dict.fromkeys((*staging_file.finished_buckets, *buckets)))}
    )


def _is_finished(part: PartHandle, shared: Collection[str], there: Collection[str]) -> bool:
    """Whether a part has its final name.

    Never so for a multi-bucket staging file, whose path there is that of one of its files.
    """
    return _final(part) in there and not (part.is_staging_file and unmarked(part.name) in shared)


def _vouched(point: SinkSnapshot) -> list[PartHandle]:
    opened = [part.part for parts in point.open.values() for part in parts]
    return [*opened, *(part.part for part in point.pending), *(staging_file.part for staging_file in point.closed)]


def _final(part: PartHandle) -> str:
    return part.path_of(part.name)


def _staged(part: PartHandle) -> tuple[str, str]:
    return part.path_of(part.in_progress), part.path_of(part.pending)


class ReplayDecision(Enum):
    """The ways to treat a batch."""

    WRITE = "write"
    REPLAY = "replay"


def check_replay(
    uid: str,
    stands: StreamPosition,
    batch: QueryPosition,
    rules: ReplayRules,
    is_copied: Callable[[int], bool] = lambda _batch_id: False,
) -> ReplayDecision:
    """Decide about a batch.

    Args:
        uid: The sink's uid, for messages.
        stands: Where the stream stands by the newest checkpoint.
        batch: The query, batch id and digest that came.
        rules: What the user allows.
        is_copied: Whether the engine has made the entry of a batch by copying the one before it, without running a
            batch: such an entry holds no rows. Asked only where a batch id skips others.

    Returns:
        WRITE for the next batch, REPLAY for the last one come again in a later run.

    Raises:
        CheckpointMismatch: It does not continue; the message names both sides and the choices.
    """
    if batch.query_id in stands.retired_queries:
        raise CheckpointMismatch(
            f"query {batch.query_id} has been replaced on uid {uid!r}: another query adopted its place",
            hint="Stop this query by query.stop(), or give it a uid of its own: uid=NAME",
        )
    last = stands.query
    if last is None and stands.user_position is not None:
        raise CheckpointMismatch(
            f"uid {uid!r} has been written by plain Python up to the position {stands.user_position!r}, which Spark's "
            f"query {batch.query_id} knows nothing of",
            hint="Use another uid=NAME.",
        )
    if last is None:
        return _first(uid, batch, rules)
    if batch.query_id != last.query_id:
        return _unknown_query(uid, last, batch, rules)
    return _next(uid, last, batch, rules, is_copied)


def check_same_keys(
    settings: RestoreSettings,
    job: str,
    seen: SeenKeys | None,
    options: Deduplicate | None,
    restore_from: str | None = None,
) -> None:
    """Refuse to go on with keys that are formed otherwise: duplicates of rows before would be written.

    Args:
        settings: The sink's options.
        job: The name of the checkpoint log.
        seen: The keys of its rows so far; None if there are none.
        options: What this run deduplicates by; None if it does not.
        restore_from: The savepoint or checkpoint that may hold the keys, for messages; None if none was named.

    Raises:
        CheckpointMismatch: Names both; nothing was changed.
    """
    if seen is None or (options is not None and (options.columns, HASH_VERSION) == (seen.columns, seen.hash_version)):
        return
    asked, again = "does not deduplicate", f"Deduplicate by {list(seen.columns)} again"
    if options is not None:
        asked = f"deduplicates by {list(options.columns)} (hash version {HASH_VERSION})"
    if seen.hash_version != HASH_VERSION:
        again = "Go on with the version of partfile that wrote them"
    when = "" if restore_from is None else ", once the sink goes on from there,"
    raise CheckpointMismatch(
        f"sink {settings.uid!r} holds keys of {list(seen.columns)} (hash version {seen.hash_version}), and this run "
        f"{asked}",
        hint=f"Nothing was changed. {again}; or{when} forget the keys, so that rows with them are written again: "
        f"{settings.forget_command(job)}",
    )


def position_after(stands: StreamPosition, batch: QueryPosition) -> StreamPosition:
    """The position of the stream once ``batch`` is complete: adopting a place retires the query that had it."""
    retired = stands.retired_queries
    if stands.query is not None and stands.query.query_id != batch.query_id:
        retired = (*retired, stands.query.query_id)
    return stands.model_copy(update={"query": batch, "retired_queries": retired})


def is_no_others(left: SinkSnapshot | None, query_id: str) -> bool:
    """Whether a query that ends may end the sink too: nothing was written yet, or by this query alone.

    Args:
        left: What the newest checkpoint holds; None if there is none.
        query_id: The query.
    """
    last = left.position.query if left is not None else None
    return last is None or last.query_id == query_id


def has_pending_output(left: SinkSnapshot | None, query_id: str) -> bool:
    """Whether a query was the last that wrote, and has left parts that are not finished.

    Args:
        left: What the newest checkpoint holds; None if there is none.
        query_id: The query.
    """
    query = left.position.query if left is not None else None
    if left is None or query is None or query.query_id != query_id:
        return False
    return bool(left.open or left.pending or left.closed)


def second_call(uid: str, batch: QueryPosition) -> CheckpointMismatch:
    """The error of a second DataFrame of one batch, which must not pass for a repetition of the batch."""
    return CheckpointMismatch(
        f"batch {batch.batch_id} of query {batch.query_id} is complete on uid {uid!r}, and the same run calls "
        "foreach_batch for it a second time: nothing of this second DataFrame was written",
        hint="The batch counts as complete with the rows of its first call. Give each DataFrame a sink with a uid of "
        "its own, or call it once a batch with one DataFrame: first.unionByName(second)",
    )


def _first(uid: str, batch: QueryPosition, rules: ReplayRules) -> ReplayDecision:
    if batch.batch_id > 0 and rules.on_gap == "fail":
        raise CheckpointMismatch(
            f"uid {uid!r} has no checkpoint yet, but query {batch.query_id} comes with batch {batch.batch_id}: "
            "its earlier batches went elsewhere",
            hint="Check the base path, uid and checkpoint_dir; if the earlier batches are meant to be elsewhere, "
            "set on_gap='accept'.",
        )
    return ReplayDecision.WRITE


def check_new_query(uid: str, last: QueryPosition | None, rules: ReplayRules) -> None:
    """Refuse a query that is about to begin with a checkpoint location of its own, unless it adopts the last one.

    Raises:
        CheckpointMismatch: Another query has written the sink.
    """
    if last is not None and rules.on_new_query != f"{ADOPT}{last.query_id}":
        raise CheckpointMismatch(
            f"uid {uid!r} has been written by query {last.query_id} up to batch {last.batch_id}; a query whose "
            "checkpoint_location is new is another one, and was not started",
            hint=_how_to_adopt(last),
        )


def _unknown_query(uid: str, last: QueryPosition, batch: QueryPosition, rules: ReplayRules) -> ReplayDecision:
    if rules.on_new_query == f"{ADOPT}{last.query_id}":
        return ReplayDecision.WRITE
    raise CheckpointMismatch(
        f"uid {uid!r} has been written by query {last.query_id} up to batch {last.batch_id}; "
        f"query {batch.query_id} (batch {batch.batch_id}) is another one",
        hint=f"{_how_to_adopt(last)} Spark has noted in its checkpoint where this query begins: to let it begin "
        "elsewhere, pass a new checkpoint_location as well.",
    )


def _how_to_adopt(last: QueryPosition) -> str:
    return (
        "If Spark's checkpoint was lost or replaced, and the new query begins where the old one ended, set "
        f"on_new_query='{ADOPT}{last.query_id}'. Else use another uid or base path."
    )


def _next(
    uid: str, last: QueryPosition, batch: QueryPosition, rules: ReplayRules, is_copied: Callable[[int], bool]
) -> ReplayDecision:
    if batch.batch_id == last.batch_id:
        if None not in {batch.offsets_digest, last.offsets_digest} and batch.offsets_digest != last.offsets_digest:
            raise CheckpointMismatch(
                f"batch {batch.batch_id} of query {batch.query_id} is complete on uid {uid!r}, but comes again with "
                "other offsets: Spark's checkpoint was changed",
                hint=(
                    "Put Spark's checkpoint back, or begin a new query and let it adopt this one: "
                    f"on_new_query='adopt:{last.query_id}'"
                ),
            )
        if batch.run_id is not None and batch.run_id == last.run_id:
            # Spark repeats a batch in a new run of the query alone.
            raise second_call(uid, batch)
        return ReplayDecision.REPLAY
    if batch.batch_id < last.batch_id:
        raise CheckpointMismatch(
            f"query {batch.query_id} comes with batch {batch.batch_id}, but uid {uid!r} is complete up to batch "
            f"{last.batch_id}: Spark's checkpoint went back in time",
            hint=(
                "Put Spark's checkpoint back, or begin a new query and let it adopt this one: "
                f"on_new_query='adopt:{last.query_id}'"
            ),
        )
    missing = range(0) if rules.on_gap == "accept" else range(last.batch_id + 1, batch.batch_id)
    if not all(is_copied(batch_id) for batch_id in missing):
        raise CheckpointMismatch(
            f"query {batch.query_id} comes with batch {batch.batch_id}, but uid {uid!r} is complete only up to batch "
            f"{last.batch_id}: the batches between would be missing",
            hint="Check the base path, uid and checkpoint_dir. If the sink went back to an earlier state, "
            "take Spark's checkpoint back as well. To leave these batches out, pass on_gap='accept'.",
        )
    return ReplayDecision.WRITE
