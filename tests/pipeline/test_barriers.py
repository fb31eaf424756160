"""The rules of barriers: which handler a job has, what a barrier says, and what the coordinator may do beside it."""

from __future__ import annotations

import pytest

from partfile.errors import ConfigError
from partfile.pipeline.barrier_handlers import begin
from partfile.pipeline.barriers import (
    AlignmentState,
    Barrier,
    BarrierRules,
    CheckpointingMode,
    Handler,
    TrackerState,
)
from partfile.snapshot.events import CoordinatorRules, Requested, RequestKind, RequestLimits, Triggered, TriggerTasks
from partfile.snapshot.machine import begin as begin_coordinator
from partfile.snapshot.machine import step as step_coordinator

AT_LEAST_ONCE = CheckpointingMode.AT_LEAST_ONCE


@pytest.mark.item("UC-01")
@pytest.mark.parametrize(
    ("rules", "handler"),
    [
        (BarrierRules(), Handler.ALIGNER),
        (BarrierRules(is_unaligned=True), Handler.ALTERNATING),
        (BarrierRules(is_unaligned=True, aligned_timeout_ms=100), Handler.ALTERNATING),
        (BarrierRules(mode=AT_LEAST_ONCE), Handler.TRACKER),
    ],
)
def test_the_rules_choose_the_handler(rules: BarrierRules, handler: Handler) -> None:
    """Each pair of mode and overtaking has one."""
    assert rules.handler is handler
    assert isinstance(begin(rules, (1,)), TrackerState if handler is Handler.TRACKER else AlignmentState)


@pytest.mark.item("UC-01")
@pytest.mark.parametrize("rules", [BarrierRules(), BarrierRules(mode=AT_LEAST_ONCE)])
def test_one_handler_serves_all_channels_of_all_gates(rules: BarrierRules) -> None:
    """Channels are counted over the gates of a subtask."""
    assert begin(rules, (2, 3)).open_channels == {0, 1, 2, 3, 4}


@pytest.mark.item("UC-01")
def test_barriers_that_overtake_are_refused_at_least_once() -> None:
    """The error says what to write."""
    with pytest.raises(ConfigError, match="unaligned") as raised:
        BarrierRules(mode=AT_LEAST_ONCE, is_unaligned=True)
    assert "is_unaligned=False" in raised.value.hint


def test_a_negative_timeout_is_refused() -> None:
    """Time that is over before it begins is a slip."""
    with pytest.raises(ConfigError, match="aligned_timeout_ms is -1"):
        BarrierRules(is_unaligned=True, aligned_timeout_ms=-1)


@pytest.mark.item("UC-35")
def test_a_barrier_says_how_it_goes() -> None:
    """Behind batches, ahead of them, or ahead of them after a time."""
    assert BarrierRules().barrier(7, 1000) == Barrier(7, 1000)
    assert BarrierRules(is_unaligned=True).barrier(7, 1000) == Barrier(7, 1000, is_unaligned=True)
    with_timeout = BarrierRules(is_unaligned=True, aligned_timeout_ms=30)
    assert with_timeout.barrier(7, 1000) == Barrier(7, 1000, timeout_ms=30)
    assert BarrierRules(mode=AT_LEAST_ONCE, aligned_timeout_ms=30).barrier(7, 1000) == Barrier(7, 1000)


@pytest.mark.item("UC-20", "SP-24")
@pytest.mark.parametrize("timeout_ms", [0, 30])
def test_the_barrier_of_a_savepoint_overtakes_nothing(timeout_ms: int) -> None:
    """A savepoint holds no batches under way."""
    rules = BarrierRules(is_unaligned=True, aligned_timeout_ms=timeout_ms)
    assert rules.barrier(7, 1000, is_savepoint=True) == Barrier(7, 1000, is_savepoint=True)


@pytest.mark.item("SP-24")
def test_a_savepoint_waits_for_the_unaligned_checkpoint_under_way() -> None:
    """It is not forced, and there is room for one checkpoint."""
    limits = BarrierRules(is_unaligned=True).limits(RequestLimits(max_concurrent=3))
    state, _ = begin_coordinator(1, CoordinatorRules(limits=limits, is_unaligned=True))
    state, _ = step_coordinator(state, Requested(RequestKind.USER, "a"), 0)
    state, _ = step_coordinator(state, Triggered(2), 0)
    state, actions = step_coordinator(state, Requested(RequestKind.SAVEPOINT, "b"), 0)
    assert not any(isinstance(action, TriggerTasks) for action in actions)
    assert len(state.queue.waiting) == 1


@pytest.mark.item("UC-33")
def test_one_unaligned_checkpoint_is_under_way_at_a_time() -> None:
    """Whatever the user has asked for; the other limits stay."""
    asked = RequestLimits(max_concurrent=3, min_pause_ms=500)
    assert BarrierRules(is_unaligned=True).limits(asked) == RequestLimits(max_concurrent=1, min_pause_ms=500)
    assert BarrierRules().limits(asked) == asked


@pytest.mark.item("UC-35")
@pytest.mark.parametrize(("now_ms", "is_over"), [(1000, False), (1029, False), (1030, True), (1031, True), (999, True)])
def test_the_timeout_counts_from_the_trigger(now_ms: int, is_over: bool) -> None:
    """A clock that was set back before the trigger makes it over (R8)."""
    assert Barrier(7, 1000, timeout_ms=30).is_timed_out(now_ms) is is_over
    assert Barrier(7, 1000, timeout_ms=30).due_ms == 1030
    assert not Barrier(7, 1000).is_timed_out(now_ms)
    assert Barrier(7, 1000).due_ms is None
