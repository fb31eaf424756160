"""Backoff and deadlines of storage calls."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from partfile.stores import retry
from partfile.stores.retry import Backoff, CallThreads, CallTimedOut
from partfile.testing.faults import SimulatedCrash
from support.processes.deadline import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable


# Pauses that grow up to a deadline.


class Clock:
    """Time that passes by sleeping alone."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.pauses_s: list[float] = []

    def monotonic(self) -> float:
        """What it shows."""
        return self.now_s

    def sleep(self, pause_s: float) -> None:
        """Let time pass."""
        self.now_s += pause_s
        self.pauses_s.append(pause_s)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that every Backoff of this test goes by."""
    stands_in = Clock()
    monkeypatch.setattr(retry, "time", stands_in)
    return stands_in


def test_pauses_double_up_to_two_seconds_with_half_of_each_by_chance(clock: Clock) -> None:
    """From 50 ms on; never more than the named one, never less than half of it."""
    waiting = Backoff(60)
    for longest_ms in (50, 100, 200, 400, 800, 1600, 2000, 2000, 2000):
        assert waiting.pause()
        assert longest_ms / 2 <= clock.pauses_s[-1] * 1000 <= longest_ms


def test_many_who_wait_do_not_ask_at_once(clock: Clock) -> None:
    """Their first pauses differ."""
    assert all(Backoff(60).pause() for _ in range(50))
    assert len(set(clock.pauses_s)) > 5


def test_no_pause_ends_after_the_deadline(clock: Clock) -> None:
    """A caller that would sleep beyond it is told at once, and what is left is never negative."""
    waiting = Backoff(5)
    began_s = clock.now_s
    while waiting.pause():
        assert clock.now_s < began_s + 5
    assert clock.now_s > began_s + 5 - 2
    assert waiting.left_s == pytest.approx(began_s + 5 - clock.now_s)
    clock.sleep(9)
    assert waiting.left_s == 0.0
    assert not waiting.pause()


def test_pauses_grow_up_to_the_deadline(clock: Clock) -> None:
    """Waiting ends by False, in time, and the pauses are few: doubled from 50 ms, half of each by chance."""
    backoff, began_s = Backoff(0.5), clock.now_s
    while backoff.pause():
        pass
    assert 3 <= len(clock.pauses_s) <= 4
    assert clock.now_s < began_s + 0.5
    assert not Backoff(0).pause()


def test_a_pause_takes_its_time() -> None:
    """By the clock of the machine; a busy one makes it longer, never shorter."""
    backoff, began_s = Backoff(60), time.monotonic()
    assert backoff.pause()
    assert time.monotonic() - began_s >= 0.025
    assert backoff.left_s <= 60 - 0.025


def test_without_time_there_is_no_wait(clock: Clock) -> None:
    """A deadline of zero is over at once."""
    assert not Backoff(0).pause()
    assert clock.pauses_s == []


# Calls with a deadline: what their caller gets, and what becomes of those that are given up.


def test_a_call_returns_or_raises_as_if_it_was_made_here() -> None:
    """Its result and each of its errors arrive, also one that is no Exception."""
    threads = CallThreads()
    assert threads.run(lambda: 7, 10) == 7
    for error in (ValueError("x"), SimulatedCrash()):
        with pytest.raises(type(error)) as raised:
            threads.run(_raising(error), 10)
        assert raised.value is error


def test_a_call_that_blocks_is_given_up_at_its_deadline() -> None:
    """Its caller goes on, other calls are made meanwhile, and what it returns later is handed over to be released."""
    threads, gate, late = CallThreads(), threading.Event(), threading.Event()
    released: list[str] = []

    def block() -> str:
        gate.wait(10)
        return "lease"

    def release(result: str) -> None:
        released.append(result)
        late.set()

    begun = time.monotonic()
    with pytest.raises(CallTimedOut):
        threads.run(block, 0.1, release)
    assert time.monotonic() - begun < 30
    assert threads.run(lambda: "other", 10) == "other"
    assert not released
    gate.set()
    assert late.wait(10)
    assert released == ["lease"]


def test_a_call_in_time_releases_nothing() -> None:
    """What its caller got is the caller's."""
    released: list[int] = []
    assert CallThreads().run(lambda: 7, 10, released.append) == 7
    assert not released


def test_threads_are_used_again() -> None:
    """A thousand calls take no thousand threads; one that was given up serves again when it has returned."""
    threads, gate = CallThreads(), threading.Event()
    with pytest.raises(CallTimedOut):
        threads.run(lambda: gate.wait(60), 0.05)
    used: set[int] = set()
    for _ in range(100):
        used.add(threads.run(threading.get_ident, 60))
        # It is free again some time after its result is there.
        wait_until(lambda: threads._idle)
    assert len(used) == 1
    gate.set()
    ends_at_s = time.monotonic() + 60
    while len(used) < 2 and time.monotonic() < ends_at_s:
        used |= set(_two_at_once(threads))
    assert len(used) == 2


def _raising(error: BaseException) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


def _two_at_once(threads: CallThreads) -> list[int]:
    """The threads that serve two calls of which each waits for the other."""
    barrier, found = threading.Barrier(2), list[int]()

    def call() -> None:
        found.append(threads.run(lambda: barrier.wait(60) * 0 + threading.get_ident(), 120))

    callers = [threading.Thread(target=call) for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    return found
