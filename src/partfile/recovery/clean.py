"""``clean``: look, plan, own the sinks without publishing, plan again, and remove exactly that.

Files are moved into ``_quarantine`` unless they are to be deleted.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from partfile.errors import ConfigError, Fenced, LeaseUnavailable, PartfileError, RecoveryRefused, StoreError
from partfile.recovery.clean_plan import CheckpointFacts, CleaningFacts, JobFacts, cutoff_ms, plan_cleaning
from partfile.recovery.documents import Json, check_same
from partfile.recovery.inspect.checkpoints import states_of, stray_ids
from partfile.recovery.inspect.files import read_base
from partfile.recovery.inspect.places import Job
from partfile.recovery.inspect.tree import all_files, current_parts, missing_parts
from partfile.recovery.ownership import FailedJob, Stores, settings_of, taken_over
from partfile.sink.concurrency import CircuitBreaker, for_each
from partfile.sink.restore import BaseTie, RestoreTerms
from partfile.sink.restore_rules import adds_nothing, shown
from partfile.sink.settings import checkpoint_url_of
from partfile.snapshot import documents
from partfile.snapshot.checkpoint_log import is_of_damage
from partfile.snapshot.documents import CheckpointRef
from partfile.stores.base import STATE_DIRECTORY, Leftover
from partfile.stores.paths import new_token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from partfile.recovery.clean_plan import CleanedLog, CleaningItem, CleaningOptions, CleaningPlan, ItemKind
    from partfile.recovery.inspect.checkpoints import SeenLog
    from partfile.recovery.inspect.files import SeenBase
    from partfile.recovery.inspect.places import Place
    from partfile.sink.coordinator import Runtime
    from partfile.sink.plan import SinkSnapshot
    from partfile.sink.restore import RestorePlan
    from partfile.sink.settings import StoreOpener
    from partfile.stores.base import LeftoverKind, PartHandle, Store, StoredFile


QUARANTINE = "_quarantine"
"""Below the state directory. No uid begins with ``_``."""


def new_run(now_ms: int) -> str:
    """A name that no other run has, beginning with when it was.

    Args:
        now_ms: Now by the store's clock, in milliseconds since 1970.
    """
    return f"{datetime.fromtimestamp(now_ms / 1000, UTC):%Y%m%dT%H%M%SZ}-{new_token()}"


def place_of(path: str, run: str, *, below_base: bool = True) -> str:
    """The directory that takes a file in a run.

    Args:
        path: Of the file, relative to its store.
        run: The run's name, which ``new_run`` gives.
        below_base: Whether the store is that of the base, or else that of the checkpoints.
    """
    top = f"{STATE_DIRECTORY}/{QUARANTINE}/{run}" if below_base else f"{QUARANTINE}/{run}"
    parent = path.rpartition("/")[0]
    return f"{top}/{parent}" if parent else top


_LEFTOVERS: dict[ItemKind, LeftoverKind] = {"upload": "upload", "side object": "side object", "claim": "claim"}
_CHECKPOINTS: set[ItemKind] = {"stray checkpoint", "old checkpoint"}


class FailedItem(Json):
    """An item that could not be removed, and why."""

    path: str
    """As in the plan."""
    problem: str
    """The error of the store."""
    hint: str
    """Advice for the operator; may be empty."""


class CleanedReport(Json):
    """The result of a cleaning."""

    quarantines: tuple[str, ...]
    """The directories that the files are in by now, as paths or URLs: below the base, and below a checkpoint directory
    of its own; none if no file was moved."""
    done: int
    """Items that were removed."""
    gone: int
    """Items that were not there any more."""
    busy: tuple[str, ...]
    """Paths of those that a task is writing; they are left."""
    failed: tuple[FailedItem, ...] = ()
    """Those that are left, or may be, because a call failed."""
    taken_over: tuple[str, ...] = ()
    """The sinks that were taken over for it, and let go again."""


class Outcome(Enum):
    """The outcome for one item."""

    DONE = "done"
    GONE = "gone"
    BUSY = "busy"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class _Ended:
    """One item and its outcome."""

    item: CleaningItem
    outcome: Outcome
    failure: FailedItem | None = None


@dataclass(slots=True)
class CleaningRecord:
    """The result of one cleaning so far, to be reported however it ends."""

    place: Place
    """The place that is cleaned."""
    taken_over: list[str] = field(default_factory=list)
    """The jobs that were taken over."""
    step: Callable[[int], None] = lambda _items: None
    """Told how many items more have ended; from any thread."""
    run: str = ""
    """Name of its directories in the quarantine."""
    ended: list[_Ended] = field(default_factory=list)
    kept: list[FailedItem] = field(default_factory=list)
    """Directories that could not be deleted."""

    def note(self, ended: _Ended) -> None:
        """An item has ended."""
        self.ended.append(ended)
        self.step(1)

    def report(self) -> CleanedReport:
        """All of it as a document."""
        ended = sorted(self.ended, key=lambda one: one.item.path)
        outcomes = [one.outcome for one in ended]
        moved = {one.item.side for one in ended if one.item.action == "quarantine" and one.outcome is Outcome.DONE}
        tops = {"base": checkpoint_url_of(self.place.base, None), "checkpoints": self.place.checkpoint_url}
        return CleanedReport(
            quarantines=tuple(dict.fromkeys(f"{tops[side]}/{QUARANTINE}/{self.run}" for side in sorted(moved))),
            done=outcomes.count(Outcome.DONE),
            gone=outcomes.count(Outcome.GONE),
            busy=tuple(one.item.path for one in ended if one.outcome is Outcome.BUSY),
            failed=(*(one.failure for one in ended if one.failure is not None), *self.kept),
            taken_over=tuple(self.taken_over),
        )


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of the cleaner."""

    stores: Stores
    name: str
    circuit_breaker: CircuitBreaker
    record: CleaningRecord


def remove(items: Sequence[CleaningItem], stores: Stores, now_ms: int, record: CleaningRecord) -> None:
    """Move or delete each item. The caller owns the jobs.

    Args:
        items: In the order of the plan.
        stores: The stores of the place.
        now_ms: Now by the store's clock, in milliseconds since 1970.
        record: Notes each item when it has ended.
    """
    record.run = new_run(now_ms)
    run = _Run(stores, record.run, CircuitBreaker(stores.base.persist_threads), record)
    parts, state = ([item for item in items if item.side == side] for side in ("base", "checkpoints"))
    for_each(partial(_take, run), parts, stores.base.persist_threads, "partfile-clean")
    _take_state(run, state)
    record.kept += _drop_empty(dict.fromkeys(item.path.rpartition("/")[0] for item in state), stores.checkpoints)


def _take_state(run: _Run, items: Sequence[CleaningItem]) -> None:
    """Remove state: ``_metadata`` first, then the rest; oldest checkpoint first (R7). So one item after the other."""
    stuck: set[str | None] = set()
    for item in items:
        if item.kind in _CHECKPOINTS and item.job in stuck:
            run.record.note(_failed(item, "what has to go before it could not be removed", ""))
            continue
        if _take(run, item) in {Outcome.BUSY, Outcome.FAILED}:
            stuck.add(item.job)


def _take(run: _Run, item: CleaningItem) -> Outcome:
    ended = _tried(run, item)
    run.record.note(ended)
    return ended.outcome


def _tried(run: _Run, item: CleaningItem) -> _Ended:
    if run.circuit_breaker.is_over:
        return _failed(item, "not tried, since the store does not answer", "")
    try:
        return _Ended(item, Outcome.DONE if _take_one(item, run) else Outcome.GONE)
    except LeaseUnavailable:
        return _Ended(item, Outcome.BUSY)
    except StoreError as error:
        run.circuit_breaker.note(error)
        return _failed(item, error.message, error.hint)


def _failed(item: CleaningItem, problem: str, hint: str) -> _Ended:
    return _Ended(item, Outcome.FAILED, FailedItem(path=item.path, problem=problem, hint=hint))


def _drop_empty(directories: Iterable[str], store: Store) -> Iterator[FailedItem]:
    """Delete the directories that are empty by now: of checkpoints whose ids are never used again."""
    for directory in directories:
        try:
            if not store.list_names(directory):
                store.delete_directory(directory)
        except StoreError as error:
            yield FailedItem(path=directory, problem=error.message, hint=error.hint)


def _take_one(item: CleaningItem, run: _Run) -> bool:
    stores = run.stores
    kind = _LEFTOVERS.get(item.kind)
    if kind is not None:
        leftover = Leftover(kind, item.path, "", item.size, item.modified_at_ms, item.upload)
        return stores.base.drop_leftover(leftover)
    store = stores.base if item.side == "base" else stores.checkpoints
    if item.action == "delete":
        return store.remove(item.path, None)
    return store.remove(item.path, place_of(item.path, run.name, below_base=item.side == "base"))


_AGAIN = "Nothing was taken away. Run it again, without --apply to see the plan as it is now."


@dataclass(frozen=True, slots=True)
class Cleaning:
    """One call of the cleaner."""

    place: Place
    """The place that is cleaned."""
    uid: str | None
    """Only this sink and its writers, or one writer; None is all."""
    options: CleaningOptions
    now_ms: int
    """By the store's clock, in milliseconds since 1970."""
    step: Callable[[int], None]
    """Told how many files more have been looked at."""


def plan_now(cleaning: Cleaning, stores: Stores, owned: Mapping[str, CheckpointRef] | None = None) -> CleaningPlan:
    """Plan a cleaning. Lists the whole tree; changes nothing.

    Of several sinks one whose checkpoints cannot be read is left, and told in the plan.

    Args:
        cleaning: What was asked for.
        stores: The stores of the place.
        owned: The checkpoint of each job that was taken over, once that is done; files are judged as of then, of these
            jobs alone.

    Raises:
        RecoveryRefused: A retained checkpoint of the only sink cannot be read, so what it names is unknown; or its
            checkpoints are of another base.
        Fenced: A checkpoint of the only sink, or of ``owned``, is gone.
    """
    seen = read_base(cleaning.place, stores.checkpoints, cleaning.uid)
    chosen = [log for log in seen.chosen(cleaning.uid) if owned is None or log.job.name in owned]
    states = {log.job.name: states_of(log) for log in chosen}
    known, failed = [], []
    for log in chosen:
        try:
            _check_base(cleaning.place, log)
            known += _jobs(log, states[log.job.name], stores.checkpoints, owned)
            _check_there(log, seen, stores)
        except PartfileError as error:
            if len(chosen) == 1 or owned is not None:
                raise
            failed.append(FailedJob.of(log.job, error))
    facts = CleaningFacts(
        options=cleaning.options,
        now_ms=cleaning.now_ms,
        jobs=tuple(known),
        owns_base=len(known) == len(seen.logs) and cleaning.place.checkpoint_dir is None,
        moves={"base": stores.base.moves_files, "checkpoints": stores.checkpoints.moves_files},
    )
    leftovers = stores.base.leftovers(_named(seen, states), cutoff_ms(facts.options, facts.now_ms))
    unread: list[str] = []
    planned = plan_cleaning(facts, all_files(seen, stores.base, cleaning.step, unread), leftovers)
    return planned.model_copy(
        update={"base": stores.base.base, "failed": tuple(failed), "unreadable": tuple(sorted(unread))}
    )


def clean(
    plan: CleaningPlan, cleaning: Cleaning, opener: StoreOpener, record: CleaningRecord | None = None
) -> CleanedReport:
    """Own every job of a plan and no other, make the plan again, and do it if it is the same.

    Nothing is published: the sinks' next starts go on from what was there.

    Args:
        plan: What was printed.
        cleaning: What was asked for.
        opener: Opens the stores.
        record: Notes what is done, so that the caller can report it if this raises; None is a record of this call.

    Raises:
        RecoveryRefused: The plan is another one by now; nothing was taken away.
        Fenced: Another process took a sink over meanwhile; nothing was taken away.
    """
    place = cleaning.place
    record = CleaningRecord(place) if record is None else record
    held = []
    with ExitStack() as stack:
        for log in plan.logs:
            held.append(stack.enter_context(_held(place, log, cleaning.now_ms, opener)))
            record.taken_over.append(log.job)
        stores = Stores(
            stack.enter_context(opener(place.base, place.storage_options)),
            stack.enter_context(opener(place.checkpoint_url, place.checkpoint_options)),
        )
        check_same(plan.digest, plan_now(cleaning, stores, {log.job: _ref(log) for log in plan.logs}).digest)
        for runtime in held:
            if runtime.storage.newest_completed_id() != runtime.coordinator.newest_checkpoint_id:
                raise Fenced(f"another process has taken sink {runtime.job!r} over", hint=_AGAIN)
        remove(plan.to_do, stores, cleaning.now_ms, record)
    return record.report()


@contextmanager
def _held(place: Place, log: CleanedLog, now_ms: int, opener: StoreOpener) -> Iterator[Runtime]:
    """Own one job as it is."""
    job = Job.of(log.job)
    if job is None:
        raise ConfigError(
            f"{log.job!r} is not the name of a sink", hint="A plan names sinks as this does: partfile status PATH"
        )

    def approve(plan: RestorePlan) -> None:
        if plan.checkpoint != _ref(log):
            raise Fenced(
                f"sink {log.job!r} has gone on since the plan was made",
                hint=_AGAIN,
            )

    settings = settings_of(place, job, opener)
    with taken_over(settings, job, RestoreTerms(holds=True), now_ms, approve=approve) as (runtime, _):
        yield runtime


def _ref(log: CleanedLog) -> CheckpointRef:
    return CheckpointRef(checkpoint_id=log.checkpoint_id, nonce=log.nonce)


def _check_whole(log: SeenLog, states: Mapping[int, SinkSnapshot]) -> None:
    """Refuse to call anything an orphan while a retained checkpoint that may name it cannot be read.

    One that a rollback has passed by is not retained: what it named, the user has given up.
    """
    unread = {one.checkpoint_id for one in log.checkpoints if one.checkpoint is None}
    unread |= {
        one.checkpoint_id
        for one in log.checkpoints
        if one.checkpoint is not None and one.checkpoint.holds_state and one.checkpoint_id not in states
    }
    befores = [one.checkpoint.predecessor for one in log.checkpoints if one.checkpoint is not None]
    unread -= {before.checkpoint_id for before in befores if before is not None and is_of_damage(before)}
    if unread or log.problem is not None:
        raise RecoveryRefused(
            f"checkpoints {sorted(unread)} of sink {log.job.name!r} cannot be read, so what they name is unknown",
            hint="Nothing was changed. Put them back from a copy; those that are not the newest go when the sink has "
            "completed as many as it retains. The newest is passed by: partfile recover PATH --restore-from ID",
        )


def _check_base(place: Place, log: SeenLog) -> None:
    """Refuse checkpoints of another base, by which every file here would be an orphan; raises RecoveryRefused."""
    if log.newest is not None:
        BaseTie.of(settings_of(place, log.job)).check(log.newest.state.position.base, log.job.name)


def _check_there(log: SeenLog, seen: SeenBase, stores: Stores) -> None:
    """Refuse to call anything an orphan while a part is gone: what has no owner may be that part, moved or renamed."""
    gone = missing_parts(current_parts(seen, log.job.name), (), stores.base, stores.checkpoints)
    if gone:
        raise RecoveryRefused(
            f"{len(gone)} parts of sink {log.job.name!r} that a checkpoint vouches for are under none of their "
            f"names: {shown(sorted(part.path for part in gone))}",
            hint="Nothing was changed. See where they lie, if they are below the base: partfile verify PATH. Put them "
            "back before you clean, or give them up: partfile recover PATH --accept-missing",
        )


def _jobs(
    log: SeenLog, states: Mapping[int, SinkSnapshot], checkpoints: Store, owned: Mapping[str, CheckpointRef] | None
) -> list[JobFacts]:
    """The facts about a job; nothing if it has no checkpoint with state."""
    _check_whole(log, states)
    if owned is not None:
        ref = owned[log.job.name]
    elif log.newest is None:
        return []
    else:
        ref = log.newest.checkpoint.ref
    seen = checkpoints.look_at(log.storage.path(documents.metadata_path(ref.checkpoint_id)))
    if seen is None:
        raise Fenced(
            f"checkpoint {ref.checkpoint_id} of sink {log.job.name!r} was deleted: the sink has gone on",
            hint=_AGAIN,
        )
    metadata = {one.checkpoint_id: one.checkpoint for one in log.checkpoints}
    numbers = map(documents.checkpoint_id_of, checkpoints.list_names(log.storage.directory))
    facts = JobFacts(
        name=log.job.name,
        ref=ref,
        moved_at_ms=seen.modified_at_ms,
        chains=frozenset(state.position.chain for state in states.values()),
        checkpoints=tuple(
            CheckpointFacts(number, metadata.get(number), _files(checkpoints, _directory(log, number)))
            for number in sorted(one for one in numbers if one is not None and one <= ref.checkpoint_id)
        ),
        strays=frozenset(number for number in stray_ids(log) if number < ref.checkpoint_id),
        repeats=frozenset(_repeats(log, states)),
        loose=_files(checkpoints, log.storage.directory),
        shared=_files(checkpoints, log.storage.path(documents.SHARED)),
        runs=frozenset(log.storage.path(path) for state in states.values() for path in run_paths(state)),
    )
    return [facts]


def _repeats(log: SeenLog, states: Mapping[int, SinkSnapshot]) -> Iterator[int]:
    """The ids of takeovers that hold what the checkpoint with state before each does."""
    strays, before = stray_ids(log), None
    for one in log.checkpoints:
        if one.checkpoint_id in strays or (one.checkpoint is not None and not one.checkpoint.holds_state):
            continue
        state = states.get(one.checkpoint_id)
        is_takeover = one.checkpoint is not None and one.checkpoint.kind == "takeover"
        if is_takeover and state is not None and before is not None and adds_nothing(state, before):
            yield one.checkpoint_id
        before = state


def run_paths(state: SinkSnapshot) -> list[str]:
    """The run files that a state needs, relative to the directory of its log."""
    seen = state.position.seen_keys
    return [run.handle.path for run in (seen.runs if seen is not None else ()) if run.handle.kind == "file"]


def _directory(log: SeenLog, checkpoint_id: int) -> str:
    return log.storage.path(documents.checkpoint_directory(checkpoint_id))


def _files(checkpoints: Store, directory: str) -> tuple[StoredFile, ...]:
    found = (
        checkpoints.look_at(documents.below(directory, name)) for name in sorted(checkpoints.list_names(directory))
    )
    return tuple(file for file in found if file is not None)


def _named(seen: SeenBase, states: Mapping[str, Mapping[int, SinkSnapshot]]) -> list[PartHandle]:
    """Every part that a retained checkpoint names, in each of its versions."""
    kept = [state for log in seen.logs for state in (states.get(log.job.name) or states_of(log)).values()]
    opened = [part.part for state in kept for parts in state.open.values() for part in parts]
    return opened + [
        one.part for state in kept for group in (state.pending, state.closed, state.encoded) for one in group
    ]
