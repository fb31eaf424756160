"""Forget the keys of a sink that deduplicates: a takeover that holds the newest state without them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.errors import NotFound, RecoveryRefused
from partfile.recovery.documents import Plan
from partfile.recovery.ownership import settings_of, taken_over
from partfile.sink.newest_state import newest_state
from partfile.sink.restore import RestoreTerms
from partfile.snapshot.storage import CheckpointStorage

if TYPE_CHECKING:
    from partfile.recovery.inspect.places import Job, Place
    from partfile.sink.restore import RestorePlan
    from partfile.sink.settings import StoreOpener
    from partfile.stores.base import MetadataStore


class ForgetPlan(Plan):
    """The plan of ``state --forget``."""

    job: str
    """The uid, or ``uid~n`` for writer n."""
    checkpoint_id: int
    """The newest checkpoint with state."""
    nonce: str
    """The nonce of that checkpoint, which no other of its id has."""
    columns: tuple[str, ...]
    """The columns that are the key."""
    keys: int
    """Keys that are forgotten: rows with them are written again."""


def plan_forgetting(store: MetadataStore, job: Job) -> ForgetPlan:
    """What forgetting the keys of a job would do.

    Raises:
        NotFound: It has no keys.
        SnapshotError: Its newest checkpoint cannot be read.
    """
    newest = newest_state(CheckpointStorage(store, job.name))
    seen = None if newest is None else newest.state.position.seen_keys
    if newest is None or seen is None:
        raise NotFound(
            f"sink {job.name!r} does not deduplicate, so it has no keys",
            hint="See which sinks do: partfile state PATH",
        )
    return ForgetPlan(
        job=job.name,
        checkpoint_id=newest.checkpoint.checkpoint_id,
        nonce=newest.checkpoint.nonce,
        columns=seen.columns,
        keys=sum(run.keys for run in seen.runs),
    )


def forget_keys(plan: ForgetPlan, place: Place, job: Job, now_ms: int, opener: StoreOpener) -> None:
    """Take a job over without its keys, and publish nothing. ``clean`` takes run files that no checkpoint names then.

    Atomicity: the takeover is the whole change. Idempotence: a second time there are no keys.

    Args:
        plan: What was printed.
        place: Where the sink is.
        job: Whose keys.
        now_ms: This host's time, in milliseconds since 1970.
        opener: Opens the stores.

    Raises:
        RecoveryRefused: The sink has gone on since the plan was made; nothing was changed.
        Fenced: Another process took the sink over first.
    """

    def approve(found: RestorePlan) -> None:
        ref = found.checkpoint
        if ref is None or (ref.checkpoint_id, ref.nonce) != (plan.checkpoint_id, plan.nonce):
            raise RecoveryRefused(
                f"sink {plan.job!r} has gone on since the plan was made",
                hint="Nothing was changed. Run the command again without --apply to see the plan as it is now.",
            )

    terms = RestoreTerms(holds=True, forgets_keys=True)
    with taken_over(settings_of(place, job, opener), job, terms, now_ms, approve=approve):
        pass
