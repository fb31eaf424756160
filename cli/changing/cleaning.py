"""Cleaning a base: look, plan, own the sinks without publishing, plan again, and take away exactly that."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from partfile.cli.changing.cleaning_plan import (
    CheckpointFacts,
    CleaningFacts,
    JobFacts,
    cutoff_ms,
    plan_cleaning,
)
from partfile.cli.changing.failed_jobs import FailedJob
from partfile.cli.changing.ownership import settings_of, taken_over
from partfile.cli.changing.plans import check_same
from partfile.cli.changing.stores import Stores
from partfile.cli.changing.taking_away import CleaningRecord, take_away
from partfile.cli.inspection.bases import read_base
from partfile.cli.inspection.chains import states_of
from partfile.cli.inspection.places import Job
from partfile.cli.inspection.presence import current_parts, missing_parts
from partfile.cli.inspection.scan import all_files
from partfile.cli.inspection.strays import stray_ids
from partfile.filesystems.errors import ConfigError, Fenced, PartfileError, RecoveryRefused
from partfile.sink.base_tie import BaseTie
from partfile.sink.beginning import StartTerms
from partfile.sink.restoring import adds_nothing, shown
from partfile.snapshot import layout
from partfile.snapshot.damage import is_of_damage
from partfile.snapshot.model import LinkRef

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from partfile.cli.changing.cleaning_items import CleanedChain, CleaningOptions, CleaningPlan
    from partfile.cli.changing.taking_away import CleanedReport
    from partfile.cli.inspection.bases import SeenBase
    from partfile.cli.inspection.chains import SeenChain
    from partfile.cli.inspection.places import Place
    from partfile.filesystems.port import PartHandle, Store, StoredFile
    from partfile.sink.beginning import Takeover
    from partfile.sink.planning import SinkSnapshot
    from partfile.sink.restore_settings import StoreOpener
    from partfile.sink.runtime import Runtime


_AGAIN = "Nothing was taken away. Run it again, without --apply to see the plan as it is now."


@dataclass(frozen=True, slots=True)
class Cleaning:
    """One call of the cleaner."""

    place: Place
    """Where it is."""
    uid: str | None
    """Only this sink and its writers, or one writer; None is all."""
    options: CleaningOptions
    now_ms: int
    """By the store's clock, in milliseconds since the epoch."""
    step: Callable[[int], None]
    """Told how many files more have been looked at."""


def plan_now(cleaning: Cleaning, stores: Stores, owned: Mapping[str, LinkRef] | None = None) -> CleaningPlan:
    """What cleaning would do now. Lists the whole tree; changes nothing.

    Of several sinks one whose checkpoints cannot be read is left, and told in the plan.

    Args:
        cleaning: What was asked for.
        stores: The stores of the place.
        owned: The link of each job that was taken over, once that is done; files are judged as of then, of these jobs
            alone.

    Raises:
        RecoveryRefused: A retained checkpoint of the only sink cannot be read, so nobody knows what it names; or its
            checkpoints are of another base.
        Fenced: A link of the only sink, or of ``owned``, is gone.
    """
    seen = read_base(cleaning.place, stores.checkpoints, cleaning.uid)
    chosen = [chain for chain in seen.chosen(cleaning.uid) if owned is None or chain.job.name in owned]
    states = {chain.job.name: states_of(chain) for chain in chosen}
    known, failed = [], []
    for chain in chosen:
        try:
            _check_base(cleaning.place, chain)
            known += _jobs(chain, states[chain.job.name], stores.checkpoints, owned)
            _check_there(chain, seen, stores)
        except PartfileError as error:
            if len(chosen) == 1 or owned is not None:
                raise
            failed.append(FailedJob.of(chain.job, error))
    facts = CleaningFacts(
        options=cleaning.options,
        now_ms=cleaning.now_ms,
        jobs=tuple(known),
        owns_base=len(known) == len(seen.chains) and cleaning.place.checkpoint_dir is None,
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
        record: Notes what is done, for whoever tells it when this raises; None is a record of this call.

    Raises:
        RecoveryRefused: The plan is another one by now; nothing was taken away.
        Fenced: Somebody took a sink over meanwhile; nothing was taken away.
    """
    place = cleaning.place
    record = CleaningRecord(place) if record is None else record
    held = []
    with ExitStack() as stack:
        for chain in plan.chains:
            held.append(stack.enter_context(_held(place, chain, cleaning.now_ms, opener)))
            record.taken_over.append(chain.job)
        stores = Stores(
            stack.enter_context(opener(place.base, place.storage_options)),
            stack.enter_context(opener(place.checkpoint_url, place.checkpoint_options)),
        )
        check_same(plan.digest, plan_now(cleaning, stores, {chain.job: _ref(chain) for chain in plan.chains}).digest)
        for runtime in held:
            if runtime.storage.newest_linked_id() != runtime.coordinator.newest_checkpoint_id:
                raise Fenced(f"another process has taken sink {runtime.job!r} over", hint=_AGAIN)
        take_away(plan.to_do, stores, cleaning.now_ms, record)
    return record.report()


@contextmanager
def _held(place: Place, chain: CleanedChain, now_ms: int, opener: StoreOpener) -> Iterator[Runtime]:
    """Own one job as it is."""
    job = Job.of(chain.job)
    if job is None:
        raise ConfigError(f"{chain.job!r} is no name of a sink", hint="A plan names sinks as partfile status does.")

    def approve(takeover: Takeover) -> None:
        if takeover.link != _ref(chain):
            raise Fenced(
                f"sink {chain.job!r} has gone on since the plan was made",
                hint=_AGAIN,
            )

    with taken_over(settings_of(place, job, opener), job, StartTerms(holds=True, approve=approve), now_ms) as owned:
        yield owned[0]


def _ref(chain: CleanedChain) -> LinkRef:
    return LinkRef(checkpoint_id=chain.checkpoint_id, nonce=chain.nonce)


def _check_whole(chain: SeenChain, states: Mapping[int, SinkSnapshot]) -> None:
    """Refuse to call anything an orphan while a retained checkpoint that may name it cannot be read.

    One that a rollback has passed by is not retained: what it named, the user has given up.
    """
    unread = {one.checkpoint_id for one in chain.links if one.link is None}
    unread |= {
        one.checkpoint_id
        for one in chain.links
        if one.link is not None and one.link.holds_state and one.checkpoint_id not in states
    }
    befores = [one.link.predecessor for one in chain.links if one.link is not None]
    unread -= {before.checkpoint_id for before in befores if before is not None and is_of_damage(before)}
    if unread or chain.problem is not None:
        raise RecoveryRefused(
            f"checkpoints {sorted(unread)} of sink {chain.job.name!r} cannot be read, so nobody knows what they name",
            hint="Nothing was changed. Put them back from a copy. The newest one can be passed by: recover the sink "
            "with --restore-from and an older one. Others go when the sink has completed as many as it retains.",
        )


def _check_base(place: Place, chain: SeenChain) -> None:
    """Refuse checkpoints of another base, by which every file here would be an orphan; raises RecoveryRefused."""
    if chain.newest is not None:
        BaseTie.of(settings_of(place, chain.job)).check(chain.newest.state.position.base, chain.job.name)


def _check_there(chain: SeenChain, seen: SeenBase, stores: Stores) -> None:
    """Refuse to call anything an orphan while a part is gone: what has no owner may be that part, moved or renamed."""
    gone = missing_parts(current_parts(seen, chain.job.name), (), stores.base, stores.checkpoints)
    if gone:
        raise RecoveryRefused(
            f"{len(gone)} parts of sink {chain.job.name!r} that a checkpoint vouches for are under none of their "
            f"names: {shown(sorted(part.path for part in gone))}",
            hint="Nothing was changed. partfile verify says where they lie, if they are below the base; put them back, "
            "or give them up with recover --accept-missing. Clean after that.",
        )


def _jobs(
    chain: SeenChain, states: Mapping[int, SinkSnapshot], checkpoints: Store, owned: Mapping[str, LinkRef] | None
) -> list[JobFacts]:
    """What is known of a job; nothing if it has no checkpoint with state."""
    _check_whole(chain, states)
    if owned is not None:
        ref = owned[chain.job.name]
    elif chain.newest is None:
        return []
    else:
        ref = chain.newest.link.ref
    seen = checkpoints.look_at(chain.storage.path(layout.metadata_path(ref.checkpoint_id)))
    if seen is None:
        raise Fenced(
            f"checkpoint {ref.checkpoint_id} of sink {chain.job.name!r} was deleted: the sink has gone on",
            hint=_AGAIN,
        )
    links = {one.checkpoint_id: one.link for one in chain.links}
    numbers = map(layout.checkpoint_id_of, checkpoints.list_names(chain.storage.directory))
    facts = JobFacts(
        name=chain.job.name,
        ref=ref,
        moved_at_ms=seen.modified_at_ms,
        chains=frozenset(state.position.chain for state in states.values()),
        checkpoints=tuple(
            CheckpointFacts(number, links.get(number), _files(checkpoints, _directory(chain, number)))
            for number in sorted(one for one in numbers if one is not None and one <= ref.checkpoint_id)
        ),
        strays=frozenset(number for number in stray_ids(chain) if number < ref.checkpoint_id),
        repeats=frozenset(_repeats(chain, states)),
        loose=_files(checkpoints, chain.storage.directory),
    )
    return [facts]


def _repeats(chain: SeenChain, states: Mapping[int, SinkSnapshot]) -> Iterator[int]:
    """The ids of fences that hold what the link with state before each does."""
    strays, before = stray_ids(chain), None
    for one in chain.links:
        if one.checkpoint_id in strays or (one.link is not None and not one.link.holds_state):
            continue
        state = states.get(one.checkpoint_id)
        is_fence = one.link is not None and one.link.kind == "fence"
        if is_fence and state is not None and before is not None and adds_nothing(state, before):
            yield one.checkpoint_id
        before = state


def _directory(chain: SeenChain, checkpoint_id: int) -> str:
    return chain.storage.path(layout.checkpoint_directory(checkpoint_id))


def _files(checkpoints: Store, directory: str) -> tuple[StoredFile, ...]:
    found = (checkpoints.look_at(layout.below(directory, name)) for name in sorted(checkpoints.list_names(directory)))
    return tuple(file for file in found if file is not None)


def _named(seen: SeenBase, states: Mapping[str, Mapping[int, SinkSnapshot]]) -> list[PartHandle]:
    """Every part that a retained checkpoint names, in each of its versions."""
    kept = [state for chain in seen.chains for state in (states.get(chain.job.name) or states_of(chain)).values()]
    opened = [part.part for state in kept for parts in state.open.values() for part in parts]
    return opened + [
        one.part for state in kept for group in (state.pending, state.rolled, state.spent) for one in group
    ]
