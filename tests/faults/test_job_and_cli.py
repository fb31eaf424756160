"""The job and a verb that changes, at once: each stops at a call while the other does all of its own (H4).

At each call with ``--long``; else at some at random.
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from partfile.errors import Fenced, PartfileError, RecoveryRefused
from partfile.recovery.clean import clean
from partfile.stores.local.posix import CHANGING_CALLS
from partfile.testing.faults import ActAt, Recorder
from support.sinks.life_cycle import assert_exactly_once, batch, continue_to, long_sink, rows_done
from support.sinks.recovery import (
    broken_invariants,
    clean_all,
    cleaning_of,
    local_opener,
    planned_cleaning,
    planned_recovery,
    planned_savepoint,
    recover_all,
    recover_planned,
    save,
    save_planned,
    saved_beside,
    seed_with_orphans,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import partfile as pf
    from partfile.testing.faults import When

    Chosen = Callable[[int, int], list[int]]


ROWS = 12
FEW = 12
"""Calls of each life or verb that the other comes at, in every run."""
VERBS: dict[str, Callable[..., object]] = {"recover": recover_all, "clean": clean_all, "savepoint": save}


class Seam:
    """An interceptor that can be put in place once the sink is open."""

    def __init__(self) -> None:
        self.inner: Any = Recorder(CHANGING_CALLS)

    def around(self, call: Any, proceed: Callable[[], object]) -> object:
        """Hand on."""
        return self.inner.around(call, proceed)


def seeded(tmp_path: Path) -> Path:
    """A base with orphans and open parts, of a sink that a process has left."""
    seed_with_orphans(tmp_path / "seed")
    return tmp_path / "seed"


def copied(seed: Path, name: object) -> Path:
    return Path(shutil.copytree(seed, seed.parent / f"{name}", copy_function=shutil.copy2))


def running(base: Path, seam: Seam) -> pf.LocalSink:
    """The job, which has a checkpoint with open parts and has written rows since."""
    out = long_sink(base, interceptor=seam).local().open()
    done = rows_done(out)
    out.write(batch(done, 2), position=done + 2)
    out.checkpoint()
    out.write(batch(done + 2, 2), position=done + 4)
    return out


def ended(work: Callable[[], object]) -> type[PartfileError] | None:
    """What a step ended with."""
    try:
        work()
    except (Fenced, RecoveryRefused) as error:
        return type(error)
    return None


def end_of(base: Path) -> None:
    """Whatever came before, the next run of the sink ends with each row once."""
    continue_to(long_sink(base), ROWS)
    assert_exactly_once(base, ROWS)
    assert not broken_invariants(base)


@pytest.mark.slow
@pytest.mark.fault("H4")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("verb", VERBS)
def test_the_verb_comes_at_any_call_of_a_checkpoint(verb: str, when: When, tmp_path: Path, chosen: Chosen) -> None:
    """The job is fenced, at the latest by its next checkpoint, and each row is there once."""
    seed = seeded(tmp_path)
    seam = Seam()
    counted = running(copied(seed, "counted"), seam)
    before = len(seam.inner.calls)
    counted.checkpoint()
    calls = len(seam.inner.calls) - before
    counted.close()
    assert calls > 5
    for number in chosen(calls, FEW):
        base = copied(seed, number)
        seam = Seam()
        out = running(base, seam)
        done: list[object] = []

        def act(base: Path = base, done: list[object] = done) -> None:
            done.append(VERBS[verb](base))

        seam.inner = ActAt(number, act, when, only=CHANGING_CALLS)
        first = ended(out.checkpoint)
        assert done, f"call {number}"
        assert first is Fenced or ended(out.checkpoint) is Fenced, f"call {number}: both went on"
        out.close()
        end_of(base)


@pytest.mark.slow
@pytest.mark.fault("H4")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_checkpoint_comes_at_any_call_of_the_verb(verb: str, when: When, tmp_path: Path, chosen: Chosen) -> None:
    """Either the verb is refused, and the job goes on; or the job is fenced. Never both, and never neither."""
    seed = seeded(tmp_path)
    recorder = Recorder(CHANGING_CALLS)
    counted = copied(seed, "counted")
    running(counted, Seam()).close()
    VERBS[verb](counted, recorder)
    for number in chosen(len(recorder.calls), FEW):
        base = copied(seed, number)
        out = running(base, Seam())
        job: list[type[PartfileError] | None] = []

        def act(out: pf.LocalSink = out, job: list[type[PartfileError] | None] = job) -> None:
            job.append(ended(out.checkpoint))

        told = ended(partial(VERBS[verb], base, ActAt(number, act, when, only=CHANGING_CALLS)))
        if not job:
            # Refused or done before that call: what is left to do depends on random names alone.
            act()
        assert (told is None) is (job == [Fenced]), f"call {number}: {told}, {job}"
        assert len(saved_beside(base)) == (verb == "savepoint" and told is None)
        out.close()
        end_of(base)


@pytest.mark.fault("H4")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_start_of_the_job_comes_at_any_call_of_recover(when: When, tmp_path: Path, chosen: Chosen) -> None:
    """Of the verb and a job that starts at the same time one is refused or fenced, and each row is there once."""
    seed = seeded(tmp_path)
    recorder = Recorder(CHANGING_CALLS)
    recover_all(copied(seed, "counted"), recorder)
    for number in chosen(len(recorder.calls), FEW):
        base = copied(seed, number)
        job: list[pf.LocalSink] = []

        def act(base: Path = base, job: list[pf.LocalSink] = job) -> None:
            job.append(long_sink(base).local().open())

        ended(partial(recover_all, base, ActAt(number, act, when, only=CHANGING_CALLS)))
        # It began after the verb, or the verb was refused: it is the newest owner either way.
        (out,) = job
        done = rows_done(out)
        out.write(batch(done, 2), position=done + 2)
        out.checkpoint()
        out.close()
        end_of(base)


@pytest.mark.fault("H4")
@pytest.mark.parametrize("when", ["before", "after"])
def test_recover_comes_at_any_call_of_a_start(when: When, tmp_path: Path, chosen: Chosen) -> None:
    """A job that was overtaken while it started begins anew or is fenced; each row is there once."""
    seed = seeded(tmp_path)
    seam = Seam()
    long_sink(copied(seed, "counted"), interceptor=seam).local().open().close()
    for number in chosen(len(seam.inner.calls), FEW):
        base = copied(seed, number)
        done: list[object] = []

        def act(base: Path = base, done: list[object] = done) -> None:
            done.append(recover_all(base))

        acting = Seam()
        acting.inner = ActAt(number, act, when, only=CHANGING_CALLS)
        out = long_sink(base, interceptor=acting).local()
        if ended(out.open) is None:
            out.write(batch(rows_done(out), 1), position=rows_done(out) + 1)
            ended(out.checkpoint)
        out.close()
        assert done, f"call {number}"
        end_of(base)


@pytest.mark.drawn
@pytest.mark.fault("H5")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("verb", VERBS)
def test_of_two_calls_with_one_plan_one_is_refused(verb: str, when: When, tmp_path: Path, chosen: Chosen) -> None:
    """Two people apply the same plan: one does it, at whatever call the other comes, and the other is told (H5)."""
    seed = seeded(tmp_path)
    recorder = Recorder(CHANGING_CALLS)
    VERBS[verb](copied(seed, "counted"), recorder)
    for number in chosen(len(recorder.calls), FEW):
        base = copied(seed, number)
        apply = planned(verb, base)
        other: list[type[PartfileError] | None] = []

        def act(apply: Callable[[Any], object] = apply, other: list[type[PartfileError] | None] = other) -> None:
            other.append(ended(partial(apply, None)))

        first = ended(partial(apply, ActAt(number, act, when, only=CHANGING_CALLS)))
        assert [first, *other].count(None) == 1, f"call {number}: {first}, {other}"
        assert not (planned_cleaning(base).to_do if verb == "clean" else planned_recovery(base).jobs)
        assert len(saved_beside(base)) == (verb == "savepoint")
        end_of(base)


def planned(verb: str, base: Path) -> Callable[[Any], object]:
    """What does the plan of now, whenever it is called."""
    if verb == "recover":
        recovery = planned_recovery(base)
        return lambda interceptor: recover_planned(recovery, base, interceptor)
    if verb == "savepoint":
        creation = planned_savepoint(base)
        return lambda interceptor: save_planned(creation, base, interceptor)
    cleaning = planned_cleaning(base)
    return lambda interceptor: clean(cleaning, cleaning_of(base), local_opener(interceptor))
