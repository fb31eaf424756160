"""A process that dies at any system call, with or without power loss, leaves what the next one can finish."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from partfile.errors import AlreadyExists
from partfile.stores.local.posix import CHANGING_CALLS
from partfile.stores.local.store import LocalStore
from partfile.testing.faults import CrashAt, Recorder, SimulatedCrash, both_sides, intercept
from partfile.testing.power_loss import PowerLossCalls, Watch, part_in
from partfile.testing.store import new_part

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from partfile.stores.base import Cut, PartHandle

    NewModel = Callable[[], PowerLossCalls]

DATA, TAIL = b"valid bytes", b"a tail that does not count"
LINK = "_partfile/uid/chk-1/_metadata"


class Case(NamedTuple):
    """A part as a crash may leave it, and how it is to be cut."""

    state: str
    cut: Cut


CUTS: tuple[Cut, ...] = ("auto", "truncate", "rewrite", "valid-length")
CASES = [Case(state, cut) for state in ("in-progress", "pending", "leased") for cut in CUTS]


def prepare(model: PowerLossCalls, base: Path, state: str) -> PartHandle:
    """A part with a tail, in a state; where it is leased, by descriptors that stay open."""
    base.mkdir()
    store = LocalStore(str(base), calls=model)
    stream = store.create(new_part("a/b"))
    stream.write(DATA)
    handle = stream.persist()
    stream.write(TAIL)
    if state == "in-progress":
        stream.close()
    if state == "pending":
        stream.close_for_commit()
    if state != "leased":
        store.close()
    return handle


def is_recoverable(model: PowerLossCalls, handle: PartHandle) -> bool:
    """Whether the valid bytes are under one of the part's names after any power loss."""
    names = (handle.in_progress, handle.pending, handle.name)
    return all(
        any(tree.get(handle.path_of(name), b"").startswith(DATA) for name in names) for tree in model.all_survivors()
    )


def watch_part(model: PowerLossCalls, handle: PartHandle) -> Watch:
    """Watches that no power loss could show anything but no part or its valid bytes."""
    return Watch(model, lambda tree: part_in(tree, handle) in {None, DATA})


def is_published(model: PowerLossCalls, handle: PartHandle) -> bool:
    """Whether the part is finished after any power loss."""
    return all(part_in(tree, handle) == DATA for tree in model.all_survivors())


def count_of_calls(new_model: NewModel, base: Path, case: Case, verb: str) -> int:
    """How many calls that change something the verb makes."""
    model, recorder = new_model(), Recorder(CHANGING_CALLS)
    handle = prepare(model, base, case.state)
    with LocalStore(str(base), calls=intercept(model, recorder)) as store:
        getattr(store, verb)(handle, case.cut)
    return recorder.count


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("verb", ["publish", "settle"])
def test_what_dies_anywhere_is_finished_by_the_next(case: Case, verb: str, new_model: NewModel, tmp_path: Path) -> None:
    """Killed before or after any changing call: no moment shows a wrong part, and the next publish finishes it."""
    calls = count_of_calls(new_model, tmp_path / "count", case, verb)
    assert calls > 2
    for n, when in both_sides(calls):
        model, base = new_model(), tmp_path / f"{n}-{when}"
        handle = prepare(model, base, case.state)
        holder = set(model.open_descriptors)
        watch = watch_part(model, handle)
        dying = intercept(intercept(model, watch), CrashAt(n, when, only=CHANGING_CALLS))
        with pytest.raises(SimulatedCrash):
            getattr(LocalStore(str(base), calls=dying), verb)(handle, case.cut)
        for descriptor in model.open_descriptors - holder:
            model.close(descriptor)
        assert is_recoverable(model, handle)
        with LocalStore(str(base), calls=intercept(model, watch)) as store:
            settled = store.settle(handle, case.cut) if verb == "settle" else handle
            for _ in range(2):
                store.publish(settled, case.cut)
                assert is_published(model, handle)
        model.stop()


def test_a_task_that_dies_anywhere_loses_nothing_it_has_persisted(new_model: NewModel, tmp_path: Path) -> None:
    """Killed at any changing call of a task's life, a part is published at the length of its last persist."""
    for n, when in both_sides(20):
        model, base = new_model(), tmp_path / f"{n}-{when}"
        base.mkdir()
        vouched: list[PartHandle] = []
        try:
            store = LocalStore(str(base), calls=intercept(model, CrashAt(n, when, only=CHANGING_CALLS)))
            stream = store.create(new_part("a/b"))
            stream.write(DATA)
            vouched.append(stream.persist())
            stream.write(TAIL)
            stream.close_for_commit()
        except SimulatedCrash:
            model.die()
            with LocalStore(str(base), calls=model) as store:
                for handle in vouched:
                    assert is_recoverable(model, handle)
                    store.publish(handle, "auto")
                    assert is_published(model, handle)
        else:
            return
    raise AssertionError("20 calls were not enough; look at the range")


def test_a_creation_that_dies_anywhere_is_whole_or_absent(new_model: NewModel, tmp_path: Path) -> None:
    """Kill create_file at each changing call: no prefix is ever seen, the next attempt finds or makes the file."""
    for n, when in both_sides(40):
        model, base = new_model(), tmp_path / f"{n}-{when}"
        base.mkdir()
        watch = Watch(model, lambda tree: tree.get(LINK, DATA) == DATA)
        dying = intercept(intercept(model, watch), CrashAt(n, when, only=CHANGING_CALLS))
        try:
            LocalStore(str(base), calls=dying).create_file(LINK, DATA)
        except SimulatedCrash:
            model.die()
        else:
            return
        with LocalStore(str(base), calls=intercept(model, watch)) as store:
            try:
                store.create_file(LINK, DATA)
            except AlreadyExists:
                assert store.read_file(LINK, len(DATA)) == DATA
        # Also where it was there already: the caller reads it back and acts on it.
        assert all(tree.get(LINK) == DATA for tree in model.all_survivors())
        model.stop()
    raise AssertionError("40 calls were not enough; look at the range")
