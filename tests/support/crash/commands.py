"""The command line as what processes do that work with a store; recover and clean are killed by the crash harness."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from partfile.recovery.clean import Cleaning, clean, plan_now
from partfile.recovery.clean_plan import CleaningOptions
from partfile.recovery.inspect.places import Place, jobs_in
from partfile.recovery.ownership import open_stores
from partfile.recovery.recover import RecoveryOptions, plan_recovery, recover
from support.crash.scenarios import Scenario, restore, to_the_end, write_with_tail
from support.sinks.life_cycle import LONG, batch
from support.sinks.recovery import NOW_MS

if TYPE_CHECKING:
    from support.crash.worlds import Process


def orphans_and_a_tail(process: Process) -> None:
    """Staged files that no checkpoint names, then open parts that one vouches for."""
    process.sink(rolling=LONG).local().open().write(batch(0, 4), position=4)
    write_with_tail(process)


def recover_by_command(process: Process) -> None:
    """Plan and apply ``recover``."""
    place = Place(process.base, opener=process.open_store)
    with open_stores(place) as stores:
        jobs = jobs_in(stores.checkpoints)
        plan = plan_recovery(place, jobs, RecoveryOptions(), stores)
    planned = {one.job for one in plan.jobs}
    for job in jobs:
        if job.name in planned:
            recover(plan, place, job, 1, process.open_store)


def clean_by_command(process: Process, *, delete: bool, now_ms: int = NOW_MS) -> None:
    """Plan and apply ``clean``."""
    place = Place(process.base, opener=process.open_store)
    cleaning = Cleaning(place, None, CleaningOptions(delete=delete), now_ms, lambda _files: None)
    with open_stores(place) as stores:
        plan = plan_now(cleaning, stores)
    if plan.to_do:
        clean(plan, cleaning, process.open_store)


def end_and_clean(process: Process) -> None:
    """Write every row that is missing, end cleanly, and take away what kills have left."""
    to_the_end(process)
    clean_by_command(process, delete=True)


COMMANDS = [
    Scenario("recover", recover_by_command, orphans_and_a_tail, recovery=recover_by_command),
    Scenario("recover, then the sink", recover_by_command, orphans_and_a_tail, recovery=restore),
    Scenario("clean", partial(clean_by_command, delete=False), orphans_and_a_tail, recovery=restore),
    Scenario("clean --delete", partial(clean_by_command, delete=True), orphans_and_a_tail, recovery=restore),
]

CLEANED_TWICE = [
    Scenario(
        f"clean{' --delete' * delete}, and clean again",
        partial(clean_by_command, delete=delete),
        orphans_and_a_tail,
        recovery=partial(clean_by_command, delete=delete),
        end=end_and_clean,
        keeps_parts=True,
    )
    for delete in (False, True)
]
"""A cleaning publishes nothing, so what was open stays open."""
