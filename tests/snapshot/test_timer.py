"""The timer: when it calls, by a clock that the test sets, and what it does about errors and its end."""

from __future__ import annotations

import logging
import threading
import time
from queue import Empty, Queue
from typing import TYPE_CHECKING

import pytest

from partfile.snapshot import timer as timer_module
from partfile.snapshot.events import CoordinatorRules, FailureReason, RequestKind
from partfile.snapshot.timer import Timer
from support.state.checkpoint_owner import Owner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from partfile.snapshot.events import PendingCheckpoint


WAIT_S = 60.0
NEVER_S = 0.05
"""Long enough to notice a call that should not come, most of the time."""


class Ticks:
    """What a timer calls: notes the time of each call, then does what the test says."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.calls: Queue[int] = Queue()
        self.act: Callable[[], int | None] = lambda: None
        self.failures: Queue[Exception] = Queue()

    def __call__(self) -> int | None:
        """One call."""
        act = self.act
        self.calls.put(self.now_ms)
        return act()

    def none_comes(self) -> bool:
        """Whether the timer stays silent."""
        try:
            self.calls.get(timeout=NEVER_S)
        except Empty:
            return True
        return False


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait for what the thread of the timer does."""
    deadline_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


class Failures(logging.Handler):
    """Keeps the errors that are logged."""

    def __init__(self, errors: Queue[Exception]) -> None:
        super().__init__()
        self._errors = errors

    def emit(self, record: logging.LogRecord) -> None:
        """One line of the log."""
        if record.exc_info is not None and isinstance(record.exc_info[1], Exception):
            self._errors.put(record.exc_info[1])


@pytest.fixture
def ticks() -> Iterator[Ticks]:
    """What the timer calls."""
    ticks = Ticks()
    handler = Failures(ticks.failures)
    logging.getLogger("partfile").addHandler(handler)
    yield ticks
    logging.getLogger("partfile").removeHandler(handler)


@pytest.fixture
def timer(ticks: Ticks) -> Iterator[Timer]:
    """A timer by the clock of the test; it is stopped afterwards."""
    timer = Timer(ticks, lambda: ticks.now_ms)
    yield timer
    timer.stop()


def test_it_calls_when_the_time_has_come_and_not_before(ticks: Ticks, timer: Timer) -> None:
    """Nothing is called before the time that was set; then there is one call, not one a wake."""
    assert ticks.none_comes()
    timer.set(60_000)
    assert ticks.none_comes()
    ticks.now_ms = 60_000
    timer.set(60_000)
    assert ticks.calls.get(timeout=WAIT_S) == 60_000
    assert ticks.none_comes()


@pytest.mark.fault("T1")
def test_a_clock_that_is_set_back_delays_a_call_by_no_more_than_its_wait(
    ticks: Ticks, caplog: pytest.LogCaptureFixture
) -> None:
    """R8: what was to be called in 20 ms is not called in a year; the log says that the clock was set back."""
    year_ms = 365 * 86_400_000
    ticks.now_ms = year_ms + 20
    timer = Timer(ticks, lambda: ticks.now_ms)
    try:
        ticks.act = lambda: ticks.now_ms + 20
        timer.set(ticks.now_ms)
        assert ticks.calls.get(timeout=WAIT_S) == year_ms + 20
        wait_until(lambda: timer._longest_ms == 20)
        ticks.now_ms = 0
        wait_until(lambda: "set back" in caplog.text)
        ticks.now_ms = 20
        assert ticks.calls.get(timeout=WAIT_S) == 20
    finally:
        timer.stop()


def test_it_waits_for_real_until_the_time_comes(ticks: Ticks) -> None:
    """No call has to wake it: by a clock that goes, the call comes by itself, and once."""
    clock = iter(range(0, 1_000_000, 10))
    timer = Timer(ticks, lambda: next(clock))
    timer.set(50)
    ticks.calls.get(timeout=WAIT_S)
    assert ticks.none_comes()
    timer.stop()


def test_a_later_time_replaces_an_earlier_one(ticks: Ticks, timer: Timer) -> None:
    """The time that was set last counts, in both directions."""
    timer.set(100)
    timer.set(200)
    ticks.now_ms = 150
    timer.set(200)
    assert ticks.none_comes()
    timer.set(120)
    assert ticks.calls.get(timeout=WAIT_S) == 150


def test_a_call_says_when_the_next_one_is_due(ticks: Ticks, timer: Timer) -> None:
    """What it returns is the time of the next call, without being set."""
    ticks.act = lambda: ticks.now_ms + 10 if ticks.now_ms < 20 else None
    timer.set(0)
    for now_ms in (0, 10, 20):
        ticks.now_ms = now_ms
        assert ticks.calls.get(timeout=WAIT_S) == now_ms
    ticks.now_ms = 1000
    assert ticks.none_comes()


@pytest.mark.parametrize(("set_ms", "returned_ms"), [(50, 90), (90, 50)])
def test_of_what_a_call_wants_and_what_was_set_meanwhile_the_earlier_counts(
    ticks: Ticks, timer: Timer, set_ms: int, returned_ms: int
) -> None:
    """Neither is lost: the coordinator may be told of something due while the timer is told of something else."""

    def set_and_ask() -> int | None:
        timer.set(set_ms)
        return returned_ms

    ticks.act = set_and_ask
    timer.set(0)
    assert ticks.calls.get(timeout=WAIT_S) == 0
    ticks.act = lambda: None
    ticks.now_ms = 60
    assert ticks.calls.get(timeout=WAIT_S) == 60


@pytest.mark.parametrize("failing", range(6))
def test_a_clock_that_fails_does_not_end_the_timer(ticks: Ticks, failing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever reading fails, or two in a row: it is told, and calls come all the same."""
    readings = iter(range(10**6))

    def clock() -> int:
        if next(readings) in {failing, failing + 1}:
            raise OSError("deliberate")
        return 0

    monkeypatch.setattr(timer_module, "RETRY_S", 0)
    ticks.act = lambda: 0
    timer = Timer(ticks, clock)
    timer.set(0)
    for _ in range(9):
        ticks.calls.get(timeout=WAIT_S)
    timer.stop()
    assert [str(ticks.failures.get(timeout=WAIT_S)) for _ in range(2)] == ["deliberate", "deliberate"]


def test_an_error_is_told_and_the_next_call_comes(ticks: Ticks, timer: Timer, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call that fails does not end the timer: it is told, and tried again after a pause."""
    # So long that it is not over before the test has seen that nothing comes, on a busy machine either.
    monkeypatch.setattr(timer_module, "RETRY_S", 100 * NEVER_S)

    def fail() -> int | None:
        raise RuntimeError("deliberate")

    ticks.act = fail
    timer.set(0)
    assert str(ticks.failures.get(timeout=WAIT_S)) == "deliberate"
    ticks.act = lambda: None
    assert ticks.calls.get(timeout=WAIT_S) == 0
    assert ticks.none_comes()
    ticks.now_ms = 70
    assert ticks.calls.get(timeout=WAIT_S) == 70
    assert ticks.failures.empty()


def test_a_stop_does_not_wait_for_the_next_try(ticks: Ticks, timer: Timer) -> None:
    """The pause after an error ends with the timer."""

    def fail() -> int | None:
        raise RuntimeError("deliberate")

    ticks.act = fail
    timer.set(0)
    ticks.failures.get(timeout=WAIT_S)
    began_s = time.monotonic()
    timer.stop()
    assert time.monotonic() - began_s < timer_module.RETRY_S / 2
    assert ticks.calls.qsize() == 1


def test_the_log_is_told(ticks: Ticks, caplog: pytest.LogCaptureFixture) -> None:
    """An error is logged, with its trace."""
    told = threading.Event()

    def fail() -> int | None:
        told.set()
        raise RuntimeError("deliberate")

    ticks.act = fail
    with caplog.at_level(logging.ERROR, logger="partfile"):
        timer = Timer(ticks, lambda: ticks.now_ms)
        timer.set(0)
        assert told.wait(WAIT_S)
        timer.stop()
    assert "deliberate" in caplog.text
    assert "Traceback" in caplog.text


def test_a_stop_waits_for_the_call_under_way_and_lets_none_follow(ticks: Ticks) -> None:
    """When ``stop`` has returned nothing runs any more, and setting a time is in vain; a second stop does nothing."""
    inside, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> int | None:
        inside.set()
        go_on.wait(WAIT_S)
        ended.set()
        return 0

    ticks.act = work
    timer = Timer(ticks, lambda: ticks.now_ms, name="partfile-test-timer")
    timer.set(0)
    assert inside.wait(WAIT_S)
    threading.Timer(NEVER_S, go_on.set).start()
    timer.stop()
    assert ended.is_set()
    assert all(thread.name != "partfile-test-timer" for thread in threading.enumerate())
    timer.set(0)
    timer.stop()
    assert ticks.calls.qsize() == 1


def test_a_call_may_stop_its_own_timer(ticks: Ticks) -> None:
    """It does not wait for itself."""
    stopped = threading.Event()

    def stop() -> int | None:
        own.stop()
        stopped.set()
        return 0

    ticks.act = stop
    own = Timer(ticks, lambda: ticks.now_ms)
    own.set(0)
    assert stopped.wait(WAIT_S)
    own.stop()
    assert ticks.calls.qsize() == 1


class Timed(Owner):
    """An owner whose coordinator is driven by a timer, and whose tasks answer unless they are to be silent."""

    def __init__(self, base: Path, rules: CoordinatorRules) -> None:
        self.timer = Timer(self.tick, lambda: self.now_ms)
        self.events: Queue[tuple[str, int]] = Queue()
        self.is_silent = False
        super().__init__(
            base,
            rules=rules,
            draw=lambda _least, most: most,
            set_timer=self.timer.set,
        )

    def tick(self) -> int | None:
        """The coordinator's, which the timer is made before."""
        return self.checkpoints.tick()

    def notify_complete(self, checkpoint_id: int) -> None:
        """Tell the test."""
        self.events.put(("complete", checkpoint_id))

    def notify_aborted(self, checkpoint_id: int, reason: FailureReason, completed_id: int) -> None:  # noqa: ARG002
        """Tell the test."""
        assert reason is FailureReason.EXPIRED
        self.events.put(("expired", checkpoint_id))

    def trigger_tasks(self, pending: PendingCheckpoint) -> None:
        """No tasks: it is complete at once, unless they are to be silent."""
        if not self.is_silent:
            self.checkpoints.know_subtasks(pending.checkpoint_id, 0)

    def pass_to(self, now_ms: int) -> tuple[str, int]:
        """Time passes; return what happens then."""
        self.now_ms = now_ms
        self.timer.set(now_ms)
        return self.events.get(timeout=WAIT_S)


@pytest.mark.item("LT-03", "CC-08")
def test_a_timer_takes_a_coordinators_checkpoints_at_intervals(tmp_path: Path) -> None:
    """The timer alone ticks, which the coordinator tells when; after the stop it is silent."""
    one = Timed(tmp_path, CoordinatorRules(interval_ms=1000))
    one.start()
    assert one.events.get(timeout=WAIT_S) == ("complete", 1)
    one.checkpoints.start_periodic()
    assert [one.pass_to(time) for time in (1000, 2000, 3500)] == [("complete", 2), ("complete", 3), ("complete", 4)]
    one.timer.stop()
    assert one.checkpoints.completed_id == 4


@pytest.mark.item("CC-04")
def test_a_coordinator_sets_its_timer_for_a_request_of_another_thread(tmp_path: Path) -> None:
    """The deadline of a checkpoint that the timer did not trigger is told to it, while it waits for nothing."""
    one = Timed(tmp_path, CoordinatorRules(timeout_ms=200, tolerable_failures=1))
    one.start()
    assert one.events.get(timeout=WAIT_S) == ("complete", 1)
    one.is_silent = True
    one.checkpoints.request(RequestKind.USER)
    one.now_ms = 200
    assert one.events.get(timeout=WAIT_S) == ("expired", 2)
    one.timer.stop()
