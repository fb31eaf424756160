"""Clocks that jump: rows, names and the order of checkpoints never depend on them (R8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import partfile as pf
from partfile.testing.harness import SinkHarness
from support.sinks.life_cycle import assert_exactly_once, batch, finished_files, make_sink, rows_of, run_to_the_end

if TYPE_CHECKING:
    from pathlib import Path


DAY_MS = 86_400_000
TEN_YEARS_MS = 3653 * DAY_MS


class Jumping:
    """A clock that goes by the same jumps again and again."""

    def __init__(self, jumps_ms: list[int]) -> None:
        self._now_ms = TEN_YEARS_MS
        self._jumps_ms = jumps_ms
        self._read = 0

    def __call__(self) -> int:
        """The time after the next jump."""
        self._read += 1
        self._now_ms = max(0, self._now_ms + self._jumps_ms[self._read % len(self._jumps_ms)])
        return self._now_ms


@pytest.mark.parametrize(
    "jumps_ms",
    [[-DAY_MS], [1, -DAY_MS, 1, TEN_YEARS_MS], [0], [-1, 500]],
    ids=["back", "back and forth", "still", "steps"],
)
@pytest.mark.fault("T1")
def test_a_clock_that_jumps_loses_and_doubles_nothing(jumps_ms: list[int], tmp_path: Path) -> None:
    """A stream, a crash and a restart under any clock: each row once, and names and checkpoints in their order."""
    policy = pf.RollingPolicy(max_part_bytes=10**6, rollover_interval_s=60, inactivity_interval_s=10)
    out = make_sink(tmp_path, clock=Jumping(jumps_ms), rolling=policy).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    out.write(batch(4, 3), position=7)
    out.close()
    run_to_the_end(make_sink(tmp_path, clock=Jumping(jumps_ms), rolling=policy))
    files = assert_exactly_once(tmp_path)
    counts = [int(name.removesuffix(".txt").rpartition("-")[2]) for name in files]
    assert sorted(counts) == list(range(len(files)))


@pytest.mark.fault("T1")
def test_parts_are_rolled_by_time_after_the_clock_was_set_back(tmp_path: Path) -> None:
    """R8: a part that seems to come from the future is due at once, and what is opened then ages by the new time."""
    now_ms = [TEN_YEARS_MS]
    policy = pf.RollingPolicy(max_part_bytes=10**6, rollover_interval_s=900, inactivity_interval_s=60)
    out = make_sink(tmp_path, clock=lambda: now_ms[0], rolling=policy).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    now_ms[0] -= 365 * DAY_MS
    out.checkpoint()
    assert len(rows_of(finished_files(tmp_path))) == 4
    out.write(batch(4, 3), position=7)
    out.checkpoint()
    assert len(rows_of(finished_files(tmp_path))) == 4
    now_ms[0] += 60_000
    out.checkpoint()
    assert len(rows_of(finished_files(tmp_path))) == 7
    out.finish()
    assert_exactly_once(tmp_path, 7)


@pytest.mark.fault("T3")
def test_the_clocks_of_tasks_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a task's host thinks the time is, its parts are as old as the coordinator says."""
    monkeypatch.setattr("partfile.sink.clock.time.time_ns", lambda: TEN_YEARS_MS * 10**9)
    policy = pf.RollingPolicy(max_part_bytes=10**6, rollover_interval_s=60, inactivity_interval_s=60)
    with SinkHarness(make_sink(tmp_path, rolling=policy)) as job:
        job.process(batch(0, 4))
        job.now_ms = 59_000
        job.checkpoint()
        assert job.files().in_progress == 2
        job.now_ms = 60_000
        job.checkpoint()
        assert job.files() == (0, 0, 2, 0)
