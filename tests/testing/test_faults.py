"""The fault mechanism does what it says: a harness that injects nothing would prove everything."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from partfile.stores.base import PartStream
from partfile.stores.local.posix import CHANGING_CALLS, PosixCalls
from partfile.stores.local.store import LocalStore
from partfile.testing.faults import (
    ActAt,
    CrashAt,
    DelayAt,
    FailAt,
    KillAt,
    LateAt,
    Recorder,
    SimulatedCrash,
    SkipAt,
    StopAt,
    TrackedCalls,
    both_sides,
    count_calls,
    intercept,
)
from partfile.testing.store import new_part

if TYPE_CHECKING:
    from pathlib import Path

    from partfile.testing.faults import Interceptor, When


class Counter:
    """Something to intercept."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, amount: int, *, twice: bool = False) -> int:
        """Change the state and return it."""
        self.total += amount * (1 + twice)
        return self.total

    def look(self) -> int:
        """Return the state."""
        return self._hidden()

    def _hidden(self) -> int:
        return self.total

    def close(self) -> None:
        """Do nothing."""


def test_recorder_keeps_calls_in_order_with_their_arguments() -> None:
    """Calls, arguments and results pass unchanged; attributes and private methods do not count."""
    recorder = Recorder()
    counter = intercept(Counter(), recorder)
    assert counter.add(2) == 2
    assert counter.add(1, twice=True) == 4
    assert counter.total == counter.look() == 4
    assert [tuple(call) for call in recorder.calls] == [
        ("add", (2,), {}),
        ("add", (1,), {"twice": True}),
        ("look", (), {}),
    ]
    assert recorder.names == ["add", "add", "look"]


def test_only_the_chosen_methods_count() -> None:
    """A filter narrows recording and counting alike."""
    recorder, failing = Recorder({"look"}), FailAt(2, OSError("no"), only={"add"})
    counter = intercept(intercept(Counter(), recorder), failing)
    counter.add(1)
    counter.look()
    with pytest.raises(OSError, match="no"):
        counter.add(1)
    assert recorder.names == ["look"]
    assert recorder.count == 1


def test_fail_at_fails_one_call_before_it_is_done() -> None:
    """Only the n-th call fails, and it has no effect."""
    counter = intercept(Counter(), FailAt(2, OSError("no")))
    counter.add(1)
    with pytest.raises(OSError, match="no"):
        counter.add(1)
    assert counter.add(1) == 2


def test_fail_at_can_do_the_call_and_lose_the_reply() -> None:
    """Done, then error: the outcome that only looking can tell."""
    counter = intercept(Counter(), FailAt(1, OSError("lost"), applied=True))
    with pytest.raises(OSError, match="lost"):
        counter.add(1)
    assert counter.total == 1


def test_fail_at_can_go_on_failing() -> None:
    """A disk that is full stays full."""
    counter = intercept(Counter(), FailAt(2, OSError("full"), persistent=True))
    counter.add(1)
    for _ in range(3):
        with pytest.raises(OSError, match="full"):
            counter.add(1)
    assert counter.total == 1


def test_skip_at_reports_a_call_that_was_not_done() -> None:
    """The lie that the durability tests are made of."""
    counter = intercept(Counter(), SkipAt(2))
    assert counter.add(1) == 1
    assert not counter.add(1)
    assert counter.add(1) == 2


def test_late_at_does_a_call_after_it_has_failed() -> None:
    """So many calls later, once; until then it has not been done."""
    counter = intercept(Counter(), LateAt(1, TimeoutError("late"), gap=2))
    with pytest.raises(TimeoutError):
        counter.add(10)
    assert counter.add(1) == 1
    assert counter.add(1) == 12
    assert counter.add(1) == 13


@pytest.mark.parametrize(("when", "seen"), [("before", 1), ("after", 2)])
def test_act_at_acts_before_or_after_one_call(when: When, seen: int) -> None:
    """The action sees the state just before or just after the call."""
    plain, totals = Counter(), []
    counter = intercept(plain, ActAt(2, lambda: totals.append(plain.total), when))
    for _ in range(3):
        counter.add(1)
    assert totals == [seen]


def test_act_at_acts_after_a_call_that_fails() -> None:
    """An interleaving after a call is one also where the call found nothing."""
    acted: list[bool] = []
    calls = intercept(intercept(Counter(), FailAt(1, OSError("no"))), ActAt(1, lambda: acted.append(True), "after"))
    with pytest.raises(OSError, match="no"):
        calls.add(1)
    assert acted == [True]


def test_delay_at_holds_one_call_until_it_is_let_go() -> None:
    """A delayed call is under way, neither done nor failed, until its event is set."""
    plain, waiting, go = Counter(), threading.Event(), threading.Event()

    def wait() -> None:
        waiting.set()
        assert go.wait(30)

    thread = threading.Thread(target=intercept(plain, DelayAt(1, wait)).add, args=(1,))
    thread.start()
    assert waiting.wait(30)
    assert plain.total == 0
    go.set()
    thread.join()
    assert plain.total == 1


@pytest.mark.parametrize(("when", "total"), [("before", 1), ("after", 2)])
def test_crash_at_freezes_everything(when: When, total: int) -> None:
    """After the crash every call raises, so that a finally block cannot clean up; no except Exception catches it."""
    plain = Counter()
    counter = intercept(plain, CrashAt(2, when))
    counter.add(1)
    with pytest.raises(SimulatedCrash):
        _add_and_clean_up(counter)
    with pytest.raises(SimulatedCrash):
        counter.look()
    assert plain.total == total


def _add_and_clean_up(counter: Counter) -> None:
    try:
        counter.add(1)
    except Exception:  # noqa: BLE001 - shows that this does not catch it.
        pytest.fail("caught")
    finally:
        counter.close()


@pytest.mark.parametrize(("when", "written"), [("before", b"1"), ("after", b"12")])
def test_kill_at_kills_the_process_at_that_call(tmp_path: Path, when: When, written: bytes) -> None:
    """SIGKILL comes just before or just after the call, and nothing else runs in that process."""
    status = _in_child(tmp_path / "file", KillAt(2, when))
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert (tmp_path / "file").read_bytes() == written


@pytest.mark.parametrize(("when", "written"), [("before", b"1"), ("after", b"12")])
def test_stop_at_stops_the_process_until_it_is_continued(tmp_path: Path, when: When, written: bytes) -> None:
    """A stopped process has done exactly the calls before, and goes on with the rest."""
    child = _fork(tmp_path / "file", StopAt(2, when))
    _, status = os.waitpid(child, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    assert (tmp_path / "file").read_bytes() == written
    os.kill(child, signal.SIGCONT)
    os.waitpid(child, 0)
    assert (tmp_path / "file").read_bytes() == b"123"


def test_one_interceptor_counts_over_all_its_objects_and_over_streams(tmp_path: Path) -> None:
    """The streams that an intercepted store returns are led through the same interceptor, nested ones included."""
    inner, outer = Recorder(), Recorder()
    store = intercept(intercept(LocalStore(str(tmp_path)), inner), outer)
    with store:
        stream = store.create(new_part())
        assert isinstance(stream, PartStream)
        stream.write(b"x")
        assert stream.persist().valid_length == stream.position == 1
        handle = stream.handle
        stream.close()
        resumed = store.resume(handle)
        resumed.close()
    assert inner.names == outer.names == ["create", "write", "persist", "close", "resume", "close", "close"]


def test_all_changing_calls_exist() -> None:
    """The list of kill points is spelled like the methods it means."""
    assert {name for name in CHANGING_CALLS if hasattr(PosixCalls, name)} == CHANGING_CALLS


def test_tracked_calls_know_what_is_open(tmp_path: Path) -> None:
    """Descriptors are counted until closed, and dying closes them and frees their locks."""
    calls = TrackedCalls()
    stream = LocalStore(str(tmp_path), calls=calls).create(new_part())
    handle = stream.persist()
    assert len(calls.open_descriptors) == 2
    calls.die()
    assert not calls.open_descriptors
    with LocalStore(str(tmp_path)) as store:
        store.resume(handle).close()


def test_counting_calls_gives_every_kill_point() -> None:
    """The loops over kill points begin at 1 and end with the last call, on both sides of each."""
    assert count_calls(lambda recorder: intercept(Counter(), recorder).add(1)) == 1
    assert both_sides(2) == [(1, "before"), (1, "after"), (2, "before"), (2, "after")]


def _fork(path: Path, interceptor: Interceptor) -> int:
    child = os.fork()
    if child == 0:
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
        calls = intercept(PosixCalls(), interceptor)
        for data in (b"1", b"2", b"3"):
            calls.write(descriptor, memoryview(data))
        os._exit(0)
    return child


def _in_child(path: Path, interceptor: Interceptor) -> int:
    return os.waitpid(_fork(path, interceptor), 0)[1]
