"""The verbs that change a sink from outside, as tests call them below the command line; and messes for them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from partfile import list_savepoints
from partfile.recovery.clean import Cleaning, clean, plan_now
from partfile.recovery.clean_plan import CleaningOptions
from partfile.recovery.inspect.places import Job, Place, jobs_in
from partfile.recovery.inspect.verify import verify
from partfile.recovery.ownership import open_stores
from partfile.recovery.recover import RecoveryOptions, plan_recovery, recover
from partfile.recovery.savepoints import create_savepoint, plan_creation
from partfile.sink.restore import RestoreTerms
from partfile.sink.restore_rules import paths_of
from partfile.stores.local.posix import PosixCalls
from partfile.testing.faults import intercept
from support.sinks.life_cycle import SingleThreadedStore, batch, in_child, long_sink

if TYPE_CHECKING:
    from pathlib import Path

    from partfile.recovery.clean import CleanedReport
    from partfile.recovery.clean_plan import CleaningPlan
    from partfile.recovery.recover import RecoveredJob, RecoveryPlan
    from partfile.recovery.savepoints import CreationPlan
    from partfile.sink.coordinator import Runtime
    from partfile.sink.settings import StoreOpener


NOW_MS = 4_000_000_000_000
"""Later than any file of a test, so that age does not matter."""
DAY_S = 86_400


def local_opener(interceptor: Any = None) -> StoreOpener:
    """Opens local stores whose system calls are led through an interceptor."""

    def opener(url: str, _options: Any) -> Any:
        return SingleThreadedStore(url, calls=intercept(PosixCalls(), interceptor) if interceptor is not None else None)

    return opener


def planned_recovery(base: Path | str, uid: str | None = None, **options: Any) -> RecoveryPlan:
    """What recovering would do now."""
    place = Place(str(base))
    with open_stores(place) as stores:
        return plan_recovery(place, jobs_in(stores.checkpoints, uid), RecoveryOptions(**options), stores)


def recover_all(base: Path | str, interceptor: Any = None, **options: Any) -> list[RecoveredJob]:
    """Recover every sink of a base."""
    return recover_planned(planned_recovery(base, **options), base, interceptor)


def go_back(base: Path | str, chosen: Path | str, interceptor: Any = None, **options: Any) -> None:
    """Take the one sink of a base back to an older checkpoint or a savepoint, whatever came later."""
    recover_all(base, interceptor, restore_from=str(chosen), accept_newer=True, **options)


def giving_all_up(runtime: Runtime) -> RestoreTerms:
    """The terms of a start that gives up whatever it finds missing of its newest checkpoint."""
    state = runtime.coordinator.look()
    return RestoreTerms(gives_up=frozenset() if state is None else frozenset(paths_of(state)))


def recover_planned(plan: RecoveryPlan, base: Path | str, interceptor: Any = None) -> list[RecoveredJob]:
    """Do a plan that was made before."""
    place, names = Place(str(base)), {job.job for job in plan.jobs}
    with open_stores(place) as stores:
        jobs = [job for job in jobs_in(stores.checkpoints) if job.name in names]
    return [recover(plan, place, job, 1, local_opener(interceptor)) for job in jobs]


def planned_savepoint(base: Path) -> CreationPlan:
    """What taking a savepoint of the one sink of a base, beside it, would do now."""
    place = Place(str(base))
    with open_stores(place) as stores:
        (job,) = jobs_in(stores.checkpoints)
        return plan_creation(place, job, str(_savepoints_of(base)), RecoveryOptions(), stores)


def save(base: Path, interceptor: Any = None) -> str:
    """Take a savepoint of the one sink of a base, beside it."""
    return save_planned(planned_savepoint(base), base, interceptor)


def save_planned(plan: CreationPlan, base: Path, interceptor: Any = None) -> str:
    """Do a plan that was made before."""
    job = Job.of(plan.job.job)
    assert job is not None
    return create_savepoint(plan, Place(str(base)), job, 1, local_opener(interceptor)).location


def saved_beside(base: Path) -> list[str]:
    """The whole savepoints beside a base."""
    directory = _savepoints_of(base)
    found = list_savepoints(directory) if directory.exists() else []
    return [one.directory for one in found if one.metadata is not None]


def _savepoints_of(base: Path) -> Path:
    return base.with_name(f"{base.name}-savepoints")


def cleaning_of(base: Path | str, uid: str | None = None, **options: Any) -> Cleaning:
    """A call of the cleaner."""
    return Cleaning(Place(str(base)), uid, CleaningOptions(**options), NOW_MS, lambda _files: None)


def planned_cleaning(base: Path | str, uid: str | None = None, **options: Any) -> CleaningPlan:
    """What cleaning would do now."""
    cleaning = cleaning_of(base, uid, **options)
    with open_stores(cleaning.place) as stores:
        return plan_now(cleaning, stores)


def clean_all(base: Path | str, interceptor: Any = None, **options: Any) -> CleanedReport | None:
    """Clean a base; None if there was nothing to do."""
    plan = planned_cleaning(base, **options)
    return clean(plan, cleaning_of(base, **options), local_opener(interceptor)) if plan.to_do else None


def broken_invariants(base: Path | str) -> list[str]:
    """Whatever ``verify`` calls an error, which nothing that a sink or a command does may leave."""
    place = Place(str(base))
    with open_stores(place) as stores:
        report = verify(place, stores.base, stores.checkpoints, None, lambda _files: None)
    return [f"{found.code}: {found.path or found.checkpoint_id}: {found.message}" for found in report.errors]


def age(base: Path, *, days: int = 2) -> None:
    """Make every file below a directory older."""
    for path in base.rglob("*"):
        if path.is_file():
            then = path.stat().st_mtime - days * DAY_S
            os.utime(path, (then, then))


def seed_with_orphans(base: Path, **options: Any) -> None:
    """What two crashes leave: orphans that no checkpoint names, then open parts that one vouches for, with a tail."""

    def die_early() -> None:
        out = long_sink(base, **options).local().open()
        out.write(batch(0, 4), position=4)
        os._exit(0)

    def die_late() -> None:
        out = long_sink(base, **options).local().open()
        out.write(batch(0, 4), position=4)
        out.checkpoint()
        out.write(batch(4, 3), position=7)
        os._exit(0)

    assert in_child(die_early) == 0
    age(base)
    assert in_child(die_late) == 0


def quarantined(base: Path) -> list[str]:
    """The files in the quarantine, by their paths below a run's directory."""
    place = base / "_partfile" / "_quarantine"
    return sorted("/".join(path.relative_to(place).parts[1:]) for path in place.rglob("*") if path.is_file())
