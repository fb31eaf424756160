"""The options that a verb needs before it changes anything: ``--apply``, the plan's digest, ``--fence``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from partfile.cli.completion import complete_word
from partfile.cli.output import seconds_of, shown_seconds
from partfile.errors import ConfigError, RecoveryRefused
from partfile.recovery.documents import check_same
from partfile.recovery.ownership import check_idle, liveness_of, store_now_ms
from partfile.stores.base import Cut

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partfile.cli.command import Call
    from partfile.recovery.documents import Plan
    from partfile.recovery.inspect.places import Job
    from partfile.recovery.ownership import Stores
    from partfile.stores.base import Store


Apply = Annotated[bool, typer.Option("--apply", help="Do what the plan says; without it nothing is changed.")]
PlanDigest = Annotated[
    str | None,
    typer.Option("--plan", metavar="DIGEST", help="With --apply: do the plan of this digest, or none."),
]
Fence = Annotated[bool, typer.Option("--fence", help="Take the sink over although it seems to run: it stops for good.")]
IdleFor = Annotated[
    str | None,
    typer.Option(
        "--idle-for",
        metavar="T",
        help="Where no lock can tell, a sink whose newest checkpoint is younger counts as running. 10m if left out; 1h "
        "where the store has no locks, as S3.",
    ),
]
IDLE_FOR: str | None = None
"""None takes the default of the store."""
_IDLE_FOR_S = 600.0
_IDLE_FOR_UNSEEN_S = 3600.0
"""For stores where only checkpoints show that a sink lives, and one batch may take long."""


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The options by which the user agreed."""

    is_applied: bool
    digest: str | None
    """Of the plan that was meant; None is the one of this call."""
    may_fence: bool
    idle_for: str | None

    def idle_for_s(self, store: Store) -> float:
        """After how long without a sign of life a job counts as stopped, in seconds."""
        return silence_s(self.idle_for, "--idle-for", store)


def silence_s(given: str | None, option: str, store: Store | None) -> float:
    """After how long without a checkpoint a sink counts as stopped where no lock tells whether it runs, in seconds.

    Args:
        given: What the user wrote; None is what suits the store.
        option: The option it was given as, for the message.
        store: Where the checkpoints are, if there are any.

    Raises:
        ConfigError: It is no duration.
    """
    if given is not None:
        return seconds_of(given, option)
    return _IDLE_FOR_S if store is None or store.markers_are_locks else _IDLE_FOR_UNSEEN_S


def confirmation(apply: bool, plan: str | None, fence: bool, idle_for: str | None) -> Confirmation:
    """The options as one value.

    Raises:
        ConfigError: They do not go together.
    """
    if not apply and (plan is not None or fence):
        raise ConfigError(
            "--plan and --fence have no effect without --apply",
            hint="Leave them out to see the plan, or add --apply to do it.",
        )
    if idle_for is not None:
        seconds_of(idle_for, "--idle-for")
    return Confirmation(apply, plan, fence, idle_for)


def now_of(given: Confirmation, checkpoints: Store, jobs: Sequence[Job], now_ms: int) -> int:
    """Now by the store's clock if something is to be changed; else by this host's, since asking means writing."""
    return store_now_ms(checkpoints, jobs[0].name) if given.is_applied and jobs else now_ms


def check(given: Confirmation, plan: Plan, stores: Stores, jobs: Sequence[Job], now_ms: int) -> None:
    """Refuse to do another plan than was meant, or to fence a sink that runs.

    Raises:
        RecoveryRefused: The plan is another one by now.
        Fenced: A sink seems to run.
    """
    check_plan(given, plan)
    if not given.may_fence:
        for job in jobs:
            check_idle(stores, job, now_ms, given.idle_for_s(stores.checkpoints))


def check_nothing_meant(given: Confirmation, plan: Plan) -> None:
    """Refuse to end as if a plan had been done that was meant, where there is nothing to do; raises RecoveryRefused."""
    if given.digest is not None and given.digest != plan.digest:
        raise RecoveryRefused(
            f"the plan {given.digest} is not what would be done: there is nothing to do",
            hint="Nothing was changed by this call. It may have been done before; or it is of another base. Without "
            "--plan it ends with 0.",
        )


def check_plan(given: Confirmation, plan: Plan) -> None:
    """Refuse to do another plan than was meant; raises RecoveryRefused."""
    check_same(given.digest or plan.digest, plan.digest)


def show_end_of_plan(given: Confirmation, plan: Plan, checkpoints: Store, jobs: Sequence[Job], call: Call) -> None:
    """Say how the plan is called, which sink would be fenced, and how it is done."""
    out, now_ms = call.out, call.now_ms
    out.line(f"plan {plan.digest}", "bold")
    if given.is_applied:
        return
    for job in jobs:
        why = liveness_of(checkpoints, job).why_live(now_ms, given.idle_for_s(checkpoints))
        if why:
            way = "--apply is refused without --fence, or a shorter --idle-for if it was killed."
            out.line(f"sink {job.name} seems to run: {why}. {way}", "yellow")
    out.line("Nothing was changed. Add --apply to do this.", "dim")


def shown_age(now_ms: int, then_ms: int) -> str:
    """The age of something, for people."""
    return shown_seconds((now_ms - then_ms) / 1000)


_CUTS: tuple[Cut, ...] = get_args(Cut)
CutWord = Annotated[
    str,
    typer.Option(
        "--cut",
        metavar="HOW",
        help="auto, truncate, rewrite or valid-length, as the sink's option.",
        autocompletion=complete_word(_CUTS),
    ),
]
AcceptMissing = Annotated[
    bool, typer.Option("--accept-missing", help="Give up parts that a checkpoint vouches for and that are gone.")
]


def cut_of(text: str) -> Cut:
    """The way to cut that a word names; raises ConfigError."""
    for way in _CUTS:
        if text == way:
            return way
    raise ConfigError(f"--cut {text!r} is not a way to cut a part", hint=f"There are {', '.join(_CUTS)}.")
