"""The job and a verb that changes, at once: each stops at a call while the other does all of its own (H4).

At each call with ``--long``; else at some at random. Finished files stay, or a consumer takes each at once (R5): what
it has taken counts as what lies in the tree does.
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from partfile.errors import Fenced, PartfileError, RecoveryRefused
from partfile.recovery.clean import clean
from partfile.stores.local.posix import CHANGING_CALLS
from partfile.testing.faults import ActAt, Recorder
from support.sinks.life_cycle import (
    Taking,
    assert_exactly_once,
    batch,
    continue_to,
    finished_files,
    long_sink,
    rows_done,
)
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
    from partfile.sink.file_sink import FileSink
    from partfile.testing.faults import When

    Chosen = Callable[[int, int], list[int]]


ROWS = 12
FEW = {False: 12, True: 4}
"""Calls of each life or verb that the other comes at, in every run: where files stay, and beside a consumer."""
VERBS: dict[str, Callable[..., object]] = {"recover": recover_all, "clean": clean_all, "savepoint": save}


class Side(NamedTuple):
    """What the job and the verbs have in common."""

    has_consumer: bool
    """Whether a consumer takes each finished file the instant it is visible."""

    @property
    def few(self) -> int:
        """See ``FEW``."""
        return FEW[self.has_consumer]

    def seeded(self, tmp_path: Path) -> Path:
        """A base with orphans and open parts, of a sink that a process has left."""
        seed_with_orphans(tmp_path / "seed", has_consumer=self.has_consumer)
        return tmp_path / "seed"

    def sink(self, base: Path, interceptor: Any = None) -> FileSink:
        """The sink of the job."""
        return long_sink(base, interceptor=interceptor, has_consumer=self.has_consumer)

    def running(self, base: Path, seam: Seam) -> pf.LocalSink:
        """The job, which has a checkpoint with open parts and has written rows since."""
        out = self.sink(base, seam).local().open()
        done = rows_done(out)
        out.write(batch(done, 2), position=done + 2)
        out.checkpoint()
        out.write(batch(done + 2, 2), position=done + 4)
        return out

    def seen(self, base: Path, interceptor: Any = None) -> Any:
        """What sees the calls of a verb."""
        return Taking(base, interceptor) if self.has_consumer else interceptor

    def end(self, base: Path) -> None:
        """Whatever came before, the next run of the sink ends with each row once."""
        continue_to(self.sink(base), ROWS)
        assert_exactly_once(base, ROWS)
        assert not (self.has_consumer and finished_files(base)), "a file is visible that no consumer has taken"
        assert not broken_invariants(base)


@pytest.fixture
def side(has_consumer: bool) -> Side:
    """Both cases."""
    return Side(has_consumer)


class Seam:
    """An interceptor that can be put in place once the sink is open."""

    def __init__(self) -> None:
        self.inner: Any = Recorder(CHANGING_CALLS)

    def around(self, call: Any, proceed: Callable[[], object]) -> object:
        """Hand on."""
        return self.inner.around(call, proceed)


def copied(seed: Path, name: object) -> Path:
    return Path(shutil.copytree(seed, seed.parent / f"{name}", copy_function=shutil.copy2))


def ended(work: Callable[[], object]) -> type[PartfileError] | None:
    """What a step ended with."""
    try:
        work()
    except (Fenced, RecoveryRefused) as error:
        return type(error)
    return None


@pytest.mark.slow
@pytest.mark.fault("H4")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("verb", VERBS)
def test_the_verb_comes_at_any_call_of_a_checkpoint(
    verb: str, when: When, tmp_path: Path, chosen: Chosen, side: Side
) -> None:
    """The job is fenced, at the latest by its next checkpoint, and each row is there once."""
    seed = side.seeded(tmp_path)
    seam = Seam()
    counted = side.running(copied(seed, "counted"), seam)
    before = len(seam.inner.calls)
    counted.checkpoint()
    calls = len(seam.inner.calls) - before
    counted.close()
    assert calls > 5
    for number in chosen(calls, side.few):
        base = copied(seed, number)
        seam = Seam()
        out = side.running(base, seam)
        done: list[object] = []

        def act(base: Path = base, done: list[object] = done) -> None:
            done.append(VERBS[verb](base, side.seen(base)))

        seam.inner = ActAt(number, act, when, only=CHANGING_CALLS)
        first = ended(out.checkpoint)
        assert done, f"call {number}"
        assert first is Fenced or ended(out.checkpoint) is Fenced, f"call {number}: both went on"
        out.close()
        side.end(base)


@pytest.mark.slow
@pytest.mark.fault("H4")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_checkpoint_comes_at_any_call_of_the_verb(
    verb: str, when: When, tmp_path: Path, chosen: Chosen, side: Side
) -> None:
    """Either the verb is refused, and the job goes on; or the job is fenced. Never both, and never neither."""
    seed = side.seeded(tmp_path)
    recorder = Recorder(CHANGING_CALLS)
    counted = copied(seed, "counted")
    side.running(counted, Seam()).close()
    VERBS[verb](counted, side.seen(counted, recorder))
    for number in chosen(len(recorder.calls), side.few):
        base = copied(seed, number)
        out = side.running(base, Seam())
        job: list[type[PartfileError] | None] = []

        def act(out: pf.LocalSink = out, job: list[type[PartfileError] | None] = job) -> None:
            job.append(ended(out.checkpoint))

        told = ended(partial(VERBS[verb], base, side.seen(base, ActAt(number, act, when, only=CHANGING_CALLS))))
        if not job:
            # Refused or done before that call: what is left to do depends on random names alone.
            act()
        assert (told is None) is (job == [Fenced]), f"call {number}: {told}, {job}"
        assert len(saved_beside(base)) == (verb == "savepoint" and told is None)
        out.close()
        side.end(base)


@pytest.mark.fault("H4")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_start_of_the_job_comes_at_any_call_of_recover(
    when: When, tmp_path: Path, chosen: Chosen, side: Side
) -> None:
    """Of the verb and a job that starts at the same time one is refused or fenced, and each row is there once."""
    seed = side.seeded(tmp_path)
    recorder = Recorder(CHANGING_CALLS)
    counted = copied(seed, "counted")
    recover_all(counted, side.seen(counted, recorder))
    for number in chosen(len(recorder.calls), side.few):
        base = copied(seed, number)
        job: list[pf.LocalSink] = []

        def act(base: Path = base, job: list[pf.LocalSink] = job) -> None:
            job.append(side.sink(base).local().open())

        ended(partial(recover_all, base, side.seen(base, ActAt(number, act, when, only=CHANGING_CALLS))))
        # It began after the verb, or the verb was refused: it is the newest owner either way.
        (out,) = job
        done = rows_done(out)
        out.write(batch(done, 2), position=done + 2)
        out.checkpoint()
        out.close()
        side.end(base)


@pytest.mark.fault("H4")
@pytest.mark.parametrize("when", ["before", "after"])
def test_recover_comes_at_any_call_of_a_start(when: When, tmp_path: Path, chosen: Chosen, side: Side) -> None:
    """A job that was overtaken while it started begins anew or is fenced; each row is there once."""
    seed = side.seeded(tmp_path)
    seam = Seam()
    side.sink(copied(seed, "counted"), seam).local().open().close()
    for number in chosen(len(seam.inner.calls), side.few):
        base = copied(seed, number)
        done: list[object] = []

        def act(base: Path = base, done: list[object] = done) -> None:
            done.append(recover_all(base, side.seen(base)))

        acting = Seam()
        acting.inner = ActAt(number, act, when, only=CHANGING_CALLS)
        out = side.sink(base, acting).local()
        if ended(out.open) is None:
            out.write(batch(rows_done(out), 1), position=rows_done(out) + 1)
            ended(out.checkpoint)
        out.close()
        assert done, f"call {number}"
        side.end(base)


@pytest.mark.drawn
@pytest.mark.fault("H5")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("verb", VERBS)
def test_of_two_calls_with_one_plan_one_is_refused(
    verb: str, when: When, tmp_path: Path, chosen: Chosen, side: Side
) -> None:
    """Two people apply the same plan: one does it, at whatever call the other comes, and the other is told (H5)."""
    seed = side.seeded(tmp_path)
    recorder = Recorder(CHANGING_CALLS)
    counted = copied(seed, "counted")
    VERBS[verb](counted, side.seen(counted, recorder))
    for number in chosen(len(recorder.calls), side.few):
        base = copied(seed, number)
        apply = planned(verb, base)
        other: list[type[PartfileError] | None] = []

        def act(
            base: Path = base, apply: Callable[[Any], object] = apply, other: list[type[PartfileError] | None] = other
        ) -> None:
            other.append(ended(partial(apply, side.seen(base))))

        first = ended(partial(apply, side.seen(base, ActAt(number, act, when, only=CHANGING_CALLS))))
        assert [first, *other].count(None) == 1, f"call {number}: {first}, {other}"
        assert not (planned_cleaning(base).to_do if verb == "clean" else planned_recovery(base).jobs)
        assert len(saved_beside(base)) == (verb == "savepoint")
        side.end(base)


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
