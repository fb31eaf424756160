"""Pauses that grow up to a deadline."""

from __future__ import annotations

import pytest

from partfile.stores import retry
from partfile.stores.retry import Backoff


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
    """Whoever would sleep beyond it is told at once, and what is left is never negative."""
    waiting = Backoff(5)
    began_s = clock.now_s
    while waiting.pause():
        assert clock.now_s < began_s + 5
    assert clock.now_s > began_s + 5 - 2
    assert waiting.left_s == pytest.approx(began_s + 5 - clock.now_s)
    clock.sleep(9)
    assert waiting.left_s == 0.0
    assert not waiting.pause()


def test_without_time_nobody_waits(clock: Clock) -> None:
    """A deadline of zero is over at once."""
    assert not Backoff(0).pause()
    assert clock.pauses_s == []
