"""Rounds of the benchmarks: cases take turns, others' load is seen, ceilings keep nothing."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import peers
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
from rounds import NOISY_CORES, Rounds, in_turn, interleaved
from runs import Run, deciles, ratios, with_files

if TYPE_CHECKING:
    from collections.abc import Callable


# Cases take turns, and a round beside others' load is repeated.


def cases(log: list[str], loads: dict[str, list[float]]) -> dict[str, Callable[[], Run]]:
    """Cases that note their turn and ran beside a given load each time."""

    def case(name: str) -> Run:
        log.append(name)
        return Run(name, seconds=1, foreign_cores=loads[name].pop(0))

    return {name: (lambda name=name: case(name)) for name in loads}  # type: ignore[misc]


def measured(loads: dict[str, list[float]], rounds: int, spare: int) -> tuple[Rounds, list[str]]:
    """The rounds of some cases, and the order in which they ran."""
    log: list[str] = []
    return interleaved(cases(log, loads), rounds, spare=spare, say=lambda _line: None), log


def test_cases_take_turns_from_both_ends() -> None:
    """A B C, then C B A, so that none is always the first after another."""
    done, log = measured({"a": [0, 0, 0], "b": [0, 0, 0], "c": [0, 0, 0]}, rounds=3, spare=0)
    assert "".join(log) == "abccbaabc"
    assert [sorted(each) for each in done.kept] == [["a", "b", "c"]] * 3
    assert in_turn(["a", "b"], 2) == ["b", "a"]


def test_a_round_beside_load_is_repeated_as_a_whole() -> None:
    """One noisy case spoils the ratios of its round: none of its runs counts, and all of them are in the record."""
    noisy = NOISY_CORES + 0.1
    done, log = measured({"a": [0, 0, 0], "b": [0, noisy, 0]}, rounds=2, spare=1)
    assert "".join(log) == "abbaab"
    assert [each["b"].foreign_cores for each in done.kept] == [0, 0]
    assert [(run.case, run.round, run.discarded) for run in done.discarded] == [("b", 2, True), ("a", 2, True)]
    assert len(done.runs) == 6
    assert sum(run.discarded for run in done.runs) == 2


def test_the_load_of_the_limit_itself_is_no_noise() -> None:
    """Only more than the limit repeats a round."""
    done, _ = measured({"a": [NOISY_CORES]}, rounds=1, spare=1)
    assert done.discarded == []


def test_a_machine_that_is_always_busy_ends_the_benchmark_all_the_same() -> None:
    """When the spare rounds are used up, noisy ones count; what they ran beside stays in the record."""
    done, log = measured({"a": [1.0] * 4, "b": [1.0] * 4}, rounds=2, spare=2)
    assert len(log) == 8
    assert [each["a"].foreign_cores for each in done.kept] == [1.0, 1.0]
    assert not any(run.discarded for each in done.kept for run in each.values())


def test_a_ratio_is_taken_within_its_round() -> None:
    """Rounds differ by the hour: what was measured together is divided by each other."""
    rounds = [
        {"ours": Run("ours", seconds=1, rows=10), "theirs": Run("theirs", seconds=2, rows=10)},
        {"ours": Run("ours", seconds=10, rows=10), "theirs": Run("theirs", seconds=30, rows=10)},
    ]
    assert ratios(rounds, "ours", "theirs", lambda run: run.rows_per_s) == pytest.approx([2, 3])


def test_deciles_go_from_the_smallest_to_the_largest() -> None:
    """Eleven sizes whatever the number of files, the median in the middle; none of no files."""
    assert deciles(range(0, 1010, 10)) == list(range(0, 1001, 100))
    assert deciles([7]) == [7] * 11
    assert deciles([]) == []
    run = with_files(Run("case"), [1, 5, 100])
    assert (run.files, run.bytes, run.median_file_bytes) == (3, 106, 5)


# What of the machine's CPU time was not ours, from samples of ``/proc``.

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


def test_a_family_is_all_descendants_and_no_other_process() -> None:
    """Grandchildren belong to it in whatever order /proc lists them; parents and other processes do not."""
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


# The cases that keep nothing: they hand rows over as quickly as our own tasks, or they would be no limit.


@pytest.mark.parametrize("make", [peers.counting, peers.encoding_parquet, peers.encoding_json])
def test_a_ceiling_begins_its_task_as_ours_do(make: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first row is asked for."""
    assert callable(make)
    seen: list[str] = []
    monkeypatch.setattr(peers, "begin_task", lambda: seen.append("begun"))

    def batches() -> object:
        seen.append("asked")
        yield pa.record_batch({"n": [1, 2, 3]})

    ((result,),) = (batch.columns for batch in make()(batches()))
    assert seen == ["begun", "asked"]
    assert result[0].as_py() > 0
