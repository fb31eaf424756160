"""A coordinator that sleeps anywhere while another takes over never adds a row to the other's history (S7)."""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import TYPE_CHECKING

from life_cycle import (
    FENCED,
    assert_exactly_once,
    assert_only_grew,
    in_child,
    make_sink,
    run_to_the_end,
    start_child,
)

from partfile.filesystems.faults import Recorder, StopAt

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 9
MORE_ROWS = 18


def test_a_coordinator_stopped_at_any_call_is_fenced(tmp_path: Path) -> None:
    """SIGSTOP at call n, for every n; another goes on for three batches; SIGCONT: the output is one history."""
    recorder = Recorder()
    run_to_the_end(make_sink(tmp_path / "counted", interceptor=recorder), ROWS)
    fenced = 0
    for number in range(1, len(recorder.calls) + 1):
        base = tmp_path / f"{number}"
        sleeper = make_sink(base, interceptor=StopAt(number))
        pid = start_child(partial(run_to_the_end, sleeper, ROWS))
        assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
        assert in_child(partial(run_to_the_end, make_sink(base), MORE_ROWS)) == 0
        files = assert_exactly_once(base, MORE_ROWS)
        os.kill(pid, signal.SIGCONT)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code in {0, FENCED}, f"call {number}: {recorder.names[number - 1]}"
        fenced += code == FENCED
        assert_only_grew(files, assert_exactly_once(base, MORE_ROWS))
    assert fenced > len(recorder.calls) // 2
