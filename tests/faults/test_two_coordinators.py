"""A coordinator that sleeps anywhere while another takes over never adds a row to the other's history (R7).

Finished files stay, or a consumer takes each at once (R5): what it has taken counts as what lies in the tree does.
"""

from __future__ import annotations

import os
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from partfile.errors import Fenced
from partfile.sink.coordinator import Runtime
from partfile.stores.local.posix import CHANGING_CALLS
from partfile.testing.faults import ActAt, Recorder, StopAt
from support.sinks.life_cycle import (
    FAILED,
    FENCED,
    LONG,
    Taking,
    assert_exactly_once,
    assert_only_grew,
    batch,
    in_child,
    make_sink,
    run_to_the_end,
    seed_with_a_tail,
    start_child,
)
from support.sinks.recovery import broken_invariants, go_back

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.sink.file_sink import FileSink
    from partfile.testing.faults import Call


FEW = {False: 8, True: 4}
"""Stops of each kind in every run, where files stay and beside a consumer; with ``--long`` at each call."""
ROWS = 9
MORE_ROWS = 18
OVERTAKEN = 40
"""Calls in every run before which another sink goes on."""
WHETHER_IT_COUNTS = 60
"""At most so many calls after a checkpoint until it is known to count."""


@pytest.mark.fault("D9", "D10")
def test_a_coordinator_stopped_at_any_call_is_fenced(
    tmp_path: Path, chosen: Callable[[int, int], list[int]], has_consumer: bool
) -> None:
    """SIGSTOP at call n, for some n or all; another goes on for three batches; SIGCONT: the output is one history."""
    sink, recorder = partial(make_sink, has_consumer=has_consumer), Recorder()
    run_to_the_end(sink(tmp_path / "counted", interceptor=recorder), ROWS)
    commits = [number for number, call in enumerate(recorder.calls, 1) if is_link(call)]
    for number in chosen(len(recorder.calls), 2 * FEW[has_consumer]):
        base = tmp_path / f"{number}"
        pid = start_child(partial(run_to_the_end, sink(base, interceptor=StopAt(number)), ROWS))
        assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
        assert in_child(partial(run_to_the_end, sink(base), MORE_ROWS)) == 0
        files = assert_exactly_once(base, MORE_ROWS)
        os.kill(pid, signal.SIGCONT)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code in possible_ends(number, commits), f"call {number}: {recorder.names[number - 1]}"
        assert_only_grew(files, assert_exactly_once(base, MORE_ROWS))
        assert not broken_invariants(base), f"call {number}"
    assert len(commits) > 2


@pytest.mark.fault("D9", "D10")
def test_a_coordinator_whose_state_another_one_deletes_is_fenced(
    tmp_path: Path, chosen: Callable[[int, int], list[int]]
) -> None:
    """State lies in files of its own, and one checkpoint is retained: another sink deletes what this one has read.

    It is no damage, at the start no more than later: a start begins again, and a checkpoint ends by being fenced.
    """

    def sink(base: Path, interceptor: Any = None) -> FileSink:
        return make_sink(base, interceptor=interceptor, inline_threshold_bytes=0, retained_checkpoints=1)

    run_to_the_end(sink(tmp_path / "seed"), 3)
    counted = Path(shutil.copytree(tmp_path / "seed", tmp_path / "counted"))
    recorder = Recorder()
    run_to_the_end(sink(counted, recorder), ROWS)
    commits = [number for number, call in enumerate(recorder.calls, 1) if is_link(call)]
    fenced = 0
    for number in chosen(len(recorder.calls), OVERTAKEN):
        base = Path(shutil.copytree(tmp_path / "seed", tmp_path / f"{number}"))
        overtaken = ActAt(number, partial(run_to_the_end, sink(base), MORE_ROWS))
        try:
            run_to_the_end(sink(base, overtaken), ROWS)
        except Fenced:
            fenced += 1
            assert number > commits[0], f"call {number}: {recorder.names[number - 1]}"
        assert_exactly_once(base, MORE_ROWS)
        assert not broken_invariants(base), f"call {number}"
        shutil.rmtree(base)
    assert fenced


@pytest.mark.fault("D9")
def test_a_look_at_a_sink_that_goes_on_is_no_damage(tmp_path: Path, chosen: Callable[[int, int], list[int]]) -> None:
    """Before a query starts, its driver looks at the newest state; another sink deletes it at any call."""
    options: dict[str, Any] = {"inline_threshold_bytes": 0, "retained_checkpoints": 1}
    run_to_the_end(make_sink(tmp_path / "seed", **options), 3)

    def look(base: Path, interceptor: Any) -> object:
        runtime = Runtime(make_sink(base, interceptor=interceptor, **options).settings, "life")
        try:
            state = runtime.coordinator.look()
            return state and state.position.user_position
        finally:
            runtime.close()

    recorder = Recorder()
    assert look(tmp_path / "seed", recorder) == 3
    seen = set()
    for number in chosen(len(recorder.calls), OVERTAKEN):
        base = Path(shutil.copytree(tmp_path / "seed", tmp_path / f"{number}"))
        seen.add(look(base, ActAt(number, partial(run_to_the_end, make_sink(base, **options), MORE_ROWS))))
    assert seen == {3, MORE_ROWS}


@pytest.mark.fault("D9")
def test_a_log_that_goes_on_is_never_listed_as_empty(tmp_path: Path) -> None:
    """All of its checkpoints go between two calls of a listing, and there are others: one of them is the newest."""
    options: dict[str, Any] = {"retained_checkpoints": 1}
    run_to_the_end(make_sink(tmp_path / "seed", **options), 3)

    def newest_id(base: Path, interceptor: Any) -> int:
        runtime = Runtime(make_sink(base, interceptor=interceptor, **options).settings, "life")
        try:
            return runtime.storage.newest_completed_id()
        finally:
            runtime.close()

    recorder = Recorder()
    before = newest_id(tmp_path / "seed", recorder)
    seen = set()
    for number in range(1, len(recorder.calls) + 1):
        base = Path(shutil.copytree(tmp_path / "seed", tmp_path / f"{number}"))
        seen.add(newest_id(base, ActAt(number, partial(run_to_the_end, make_sink(base, **options), MORE_ROWS))))
    assert min(seen) == before < max(seen)


def possible_ends(number: int, commits: list[int]) -> set[int]:
    """How one may end that slept before call ``number``, where ``commits`` are the calls that create checkpoints."""
    if number <= commits[0]:
        return {0}  # It begins after the other.
    if commits[0] + WHETHER_IT_COUNTS < number <= commits[-1]:
        return {FENCED}  # The next checkpoint is refused; or before it a part that the other has published.
    return {
        0,
        FENCED,
    }  # It finds that its takeover does not count and begins anew, or it had no checkpoint left to create.


def is_link(call: Call) -> bool:
    return call.name == "link" and call.arguments[-1] == "_metadata"


@pytest.mark.drawn
@pytest.mark.parametrize("cut", ["truncate", "rewrite", "valid-length"])
@pytest.mark.fault("D9", "D10")
def test_a_restore_stopped_at_any_call_is_fenced(
    cut: str, tmp_path: Path, chosen: Callable[[int, int], list[int]], has_consumer: bool
) -> None:
    """The same for one that sleeps while it restores open parts with a tail, which the other then finalizes."""
    seed_with_a_tail(tmp_path / "seed", cut=cut, has_consumer=has_consumer)

    def sink(base: Path, interceptor: Any = None) -> FileSink:
        return make_sink(base, interceptor=interceptor, has_consumer=has_consumer, cut=cut, rolling=LONG)

    counted = Path(shutil.copytree(tmp_path / "seed", tmp_path / "counted"))
    recorder = Recorder(CHANGING_CALLS)
    sink(counted, recorder).local().open().close()
    owed = 0
    for number in chosen(len(recorder.calls), FEW[has_consumer]):
        base = Path(shutil.copytree(tmp_path / "seed", tmp_path / f"{number}"))
        pid = start_child(partial(run_to_the_end, sink(base, StopAt(number, only=CHANGING_CALLS)), ROWS))
        assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
        ended = in_child(partial(run_to_the_end, sink(base), MORE_ROWS))
        # A part whose copy the sleeper has locked is owed until it wakes, and the clean end says so.
        is_owed = ended == FAILED and cut == "rewrite"
        assert ended == 0 or is_owed, f"call {number}: {recorder.names[number - 1]}"
        owed += is_owed
        files = {} if is_owed else assert_exactly_once(base, MORE_ROWS)
        os.kill(pid, signal.SIGCONT)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        # Before it has its takeover it begins an epoch of its own, after the other has ended; then never again.
        assert code in {0, FENCED}, f"call {number}: {recorder.names[number - 1]}"
        assert not is_owed or in_child(partial(run_to_the_end, sink(base), MORE_ROWS)) == 0
        assert_only_grew(files, assert_exactly_once(base, MORE_ROWS))
        assert not broken_invariants(base), f"call {number}"
        shutil.rmtree(base)
    assert owed <= len(recorder.calls) // 3


@pytest.mark.slow
def test_a_rollback_over_damage_stopped_at_any_call_is_fenced(
    tmp_path: Path, chosen: Callable[[int, int], list[int]], has_consumer: bool
) -> None:
    """Two go back over the same damaged checkpoint, one asleep: one history, in which no row is lost or comes twice."""
    sink = partial(make_sink, has_consumer=has_consumer, rolling=LONG)
    seed = sink(tmp_path / "seed").local().open()
    for first, count in ((0, 4), (4, 3)):
        seed.write(batch(first, count), position=first + count)
        seed.checkpoint()
    seed.close()
    metadata = tmp_path / "seed" / "_partfile" / "life" / "chk-3" / "_metadata"
    metadata.write_bytes(metadata.read_bytes()[:-9])

    def back_and_on(base: Path, rows: int, interceptor: Any = None) -> None:
        seen = Taking(base, interceptor) if has_consumer else interceptor
        go_back(base, base / "_partfile" / "life" / "chk-2", seen)
        run_to_the_end(sink(base, interceptor=interceptor), rows)

    counted = Path(shutil.copytree(tmp_path / "seed", tmp_path / "counted"))
    recorder = Recorder(CHANGING_CALLS)
    go_back(counted, counted / "_partfile" / "life" / "chk-2", Taking(counted, recorder) if has_consumer else recorder)
    for number in chosen(len(recorder.calls), FEW[has_consumer]):
        base = Path(shutil.copytree(tmp_path / "seed", tmp_path / f"{number}"))
        pid = start_child(partial(back_and_on, base, ROWS, StopAt(number, only=CHANGING_CALLS)))
        assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
        assert in_child(partial(back_and_on, base, MORE_ROWS)) == 0
        files = assert_exactly_once(base, MORE_ROWS)
        os.kill(pid, signal.SIGCONT)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        # Before its takeover it may find that another plan would be due by now, and refuse.
        assert code in {0, FENCED, FAILED}, f"call {number}: {recorder.names[number - 1]}"
        assert_only_grew(files, assert_exactly_once(base, MORE_ROWS))
        assert not broken_invariants(base), f"call {number}"
        shutil.rmtree(base)
