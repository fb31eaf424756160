"""What of the machine's CPU time was not ours, from samples of ``/proc``."""

from __future__ import annotations

import os
import time

import pytest

from processes import (
    Load,
    Meter,
    Process,
    busy_cpu_s,
    descendants,
    family,
    foreign_cores,
    own_cpu_s,
    peak_bytes,
    process_of,
)

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def test_foreign_load_is_what_was_busy_less_what_was_ours() -> None:
    """Of 15 busy seconds within ten, 12 were ours: others kept 0.3 cores busy."""
    before = Load(at_s=100, own_cpu_s=50, busy_cpu_s=1000)
    assert foreign_cores(before, Load(at_s=110, own_cpu_s=62, busy_cpu_s=1015)) == pytest.approx(0.3)


def test_foreign_load_is_never_less_than_nothing() -> None:
    """Ticks are counted at different moments, so that ours may seem more than all; that is no load."""
    before = Load(at_s=0, own_cpu_s=0, busy_cpu_s=0)
    assert foreign_cores(before, Load(at_s=1, own_cpu_s=1.02, busy_cpu_s=1)) == 0


def test_a_worker_that_has_ended_takes_nothing_with_it() -> None:
    """What it had used before counts neither as ours nor, the other way round, as the load of others."""
    before = Load(at_s=0, own_cpu_s=40, busy_cpu_s=100, workers_cpu_s={7: 12, 8: 3})
    after = Load(at_s=10, own_cpu_s=34, busy_cpu_s=106, workers_cpu_s={8: 4})
    assert own_cpu_s(before, after) == 6
    assert foreign_cores(before, after) == 0


def test_waiting_for_the_disk_is_not_busy() -> None:
    """Idle, iowait and guest time are left out; steal, which others on the host took, is counted."""
    user, nice, system, idle, iowait, irq, softirq, steal, guest = (
        n * TICKS_PER_S for n in (1, 2, 4, 8, 16, 32, 64, 128, 1)
    )
    stat = f"cpu  {user} {nice} {system} {idle} {iowait} {irq} {softirq} {steal} {guest} 0\ncpu0 9 9 9 9 9 9 9 9 9 9\n"
    assert busy_cpu_s(stat) == 1 + 2 + 4 + 32 + 64 + 128


def test_a_process_with_an_odd_name_is_read() -> None:
    """Blanks and parentheses in a command do not shift the numbers after it; dead children's time counts."""
    # The parent and nine more, four times, six more, the resident pages.
    numbers = [1] * 10 + [2 * TICKS_PER_S, 3 * TICKS_PER_S, 4 * TICKS_PER_S, 5 * TICKS_PER_S] + [0] * 6 + [77]
    stat = f"4711 (odd ) (name) S {' '.join(map(str, numbers))}"
    process = process_of(4711, stat, "odd")
    assert (process.pid, process.parent, process.cpu_s) == (4711, 1, 14)
    assert process.rss_bytes == 77 * os.sysconf("SC_PAGE_SIZE")


def test_a_family_is_all_descendants_and_nobody_else() -> None:
    """Grandchildren belong to it in whatever order /proc lists them; parents and strangers do not."""
    parents = {1: 0, 30: 20, 20: 10, 10: 1, 40: 1}
    everybody = [Process(pid, parent, 0, 0, "") for pid, parent in parents.items()]
    assert {process.pid for process in descendants(everybody, 10)} == {10, 20, 30}


def test_the_peak_of_a_process_is_its_high_water_mark() -> None:
    """The status of a process that has ended names none, and is no error."""
    assert peak_bytes("Name:\tpython\nVmPeak:\t  900 kB\nVmHWM:\t  123 kB\nVmRSS:\t  100 kB\n") == 123 * 1024
    assert peak_bytes("Name:\tpython\nState:\tZ (zombie)\n") == 0


def test_a_meter_counts_our_own_work_as_ours() -> None:
    """A block that keeps one core busy shows its CPU time, and this process is in its own family."""
    with Meter() as meter:
        ends_s = time.process_time() + 0.2
        while time.process_time() < ends_s:
            pass
    assert meter.seconds >= 0.19
    assert 0.15 <= meter.cpu_s <= meter.seconds * (os.cpu_count() or 1) + 1
    assert os.getpid() in {process.pid for process in family()}
