"""Kill a sink that deduplicates before and after every call; each row comes several times, also after a restart."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections import Counter
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import partfile as pf
from partfile.errors import Fenced, PartfileError
from partfile.sink import deduplicate
from partfile.snapshot import run_file
from partfile.stores.local.posix import CHANGING_CALLS
from partfile.testing.faults import ActAt, FailAt, KillAt, Recorder, StopAt, count_calls
from support.sinks.life_cycle import (
    FENCED,
    SteppingClock,
    assert_only_grew,
    batch,
    finished_files,
    in_child,
    make_sink,
    rows_done,
    rows_of,
    start_child,
)
from support.sinks.recovery import broken_invariants, clean_all, planned_cleaning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from partfile.testing.faults import When

FEW = 5
ROWS = 16
LATE = 5
"""A row comes again with the row so many behind it, and once more twice as far behind."""
EXPIRING = "keys expire"
AGAIN = "keys are entered again"
FORMS: dict[str, dict[str, Any]] = {
    "text": {},
    "staged parquet": {"format": "parquet", "buckets_per_staging_file": None},
    "one checkpoint retained": {"retained_checkpoints": 1},
    AGAIN: {"retained_checkpoints": 1, "deduplicate": pf.Deduplicate(["bucket", "row"], ttl="1 day", refresh="read")},
    EXPIRING: {"deduplicate": pf.Deduplicate(["bucket", "row"], ttl="450 minutes")},
}
HOUR_MS = 3_600_000
HOURS_A_STEP = 3
"""So many checkpoints are of one time, and their runs are merged; a row comes again 3 or 6, and 9 or 12 hours later."""


def distinct_sink(base: Path, **options: Any) -> pf.FileSink:
    """Every run of keys is a file, and small enough that runs are merged again and again."""
    fixed: dict[str, Any] = {"deduplicate": pf.Deduplicate(["bucket", "row"], ttl="1 day"), "inline_threshold_bytes": 0}
    return make_sink(base, **(fixed | options))


@contextmanager
def keys_a_run(form: str) -> Iterator[None]:
    """Where keys are entered again, few make a run large."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (run_file, deduplicate) if form == AGAIN else ():
            patch.setattr(module, "MAX_KEYS", 6)
        yield


def life(base: Path, *, form: str = "text", interceptor: object = None) -> None:
    """Write each row when its turn comes and twice later; a run begins some turns before the position it restored.

    So the last rows that were checkpointed are written again at each start, as a source that is at least once does.
    Where keys expire, the clock goes on with the turns: the second time of a row is within the ttl, the third is not.
    """
    clock = SteppingClock()
    sink = distinct_sink(base, interceptor=interceptor, clock=clock, **FORMS[form])
    with keys_a_run(form), sink.local() as out:
        for number in range(max(0, rows_done(out) - LATE), ROWS + 2 * LATE):
            if form == EXPIRING:
                clock.now_ms = number // HOURS_A_STEP * HOURS_A_STEP * HOUR_MS
            for row in (number, number - LATE, number - 2 * LATE, number):
                if 0 <= row < ROWS:
                    out.write(batch(row, 1))
            out.checkpoint(position=max(number, rows_done(out)))


def times_of_a_row(form: str) -> int:
    """How often each row is in the files in the end: once in each ttl in which it comes."""
    return 2 if form == EXPIRING else 1


def assert_distinct(base: Path, form: str = "text") -> dict[str, bytes]:
    files = finished_files(base)
    assert rows_of(files) == Counter([f"row-{number:04d}" for number in range(ROWS)] * times_of_a_row(form))
    assert broken_invariants(base) == []
    return files


@pytest.mark.drawn(2)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.fault("K1", "K2", "K3", "K6", "K10", "K13", "K19")
def test_a_kill_at_any_call_loses_and_doubles_nothing(
    form: str, when: When, tmp_path: Path, chosen: Callable[[int, int], list[int]]
) -> None:
    """Writes of runs, merges and deletions among the calls: what is visible is distinct, and whole after a restart."""
    live = partial(life, form=form)
    calls = count_calls(lambda recorder: live(tmp_path / "counted", interceptor=recorder), CHANGING_CALLS)
    assert_distinct(tmp_path / "counted", form)
    for number in chosen(calls, FEW):
        base = tmp_path / f"{number}"
        killer = KillAt(number, when, only=CHANGING_CALLS)
        assert in_child(partial(live, base, interceptor=killer)) == -signal.SIGKILL, f"call {number} of {calls}"
        seen = finished_files(base) if base.exists() else {}
        assert max(rows_of(seen).values(), default=1) <= times_of_a_row(form)
        assert in_child(partial(live, base)) == 0, f"call {number} of {calls}"
        assert_only_grew(seen, assert_distinct(base, form))
        shutil.rmtree(base)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.fault("K16", "K19")
def test_a_cleaner_after_any_kill_takes_no_key_away(
    form: str, tmp_path: Path, chosen: Callable[[int, int], list[int]]
) -> None:
    """It takes run files of lost attempts, and none that a checkpoint names: the next run knows every key."""
    live = partial(life, form=form)
    calls = count_calls(lambda recorder: live(tmp_path / "counted", interceptor=recorder), CHANGING_CALLS)
    for number in chosen(calls, FEW):
        base = tmp_path / f"{number}"
        in_child(partial(live, base, interceptor=KillAt(number, only=CHANGING_CALLS)))
        if (base / "_partfile" / "life").exists() and list(base.rglob("_metadata")):
            clean_all(base)
        assert in_child(partial(live, base)) == 0, f"call {number} of {calls}"
        assert_distinct(base, form)
        shutil.rmtree(base)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.fault("D9", "D10")
def test_a_driver_stopped_at_any_call_is_fenced(
    form: str, tmp_path: Path, chosen: Callable[[int, int], list[int]]
) -> None:
    """Another one lives a whole life meanwhile, and merges and deletes runs; the one that wakes up changes nothing.

    A third finds every run that it needs, and each row is there as often as before.
    """
    live = partial(life, form=form)
    calls = count_calls(lambda recorder: live(tmp_path / "counted", interceptor=recorder), CHANGING_CALLS)
    fenced = 0
    for number in chosen(calls, FEW):
        base = tmp_path / f"{number}"
        pid = start_child(partial(live, base, interceptor=StopAt(number, only=CHANGING_CALLS)))
        assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
        assert in_child(partial(live, base)) == 0, f"call {number} of {calls}"
        files = assert_distinct(base, form)
        os.kill(pid, signal.SIGCONT)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        # Before its takeover it begins when the other one has ended; after its last checkpoint it has nothing to do.
        assert code in {0, FENCED}, f"call {number} of {calls}"
        fenced += code == FENCED
        assert_only_grew(files, assert_distinct(base, form))
        assert in_child(partial(live, base)) == 0, f"call {number} of {calls}"
        assert_distinct(base, form)
        shutil.rmtree(base)
    assert fenced


@pytest.mark.fault("D9", "D10")
def test_a_savepoint_of_a_sink_that_was_taken_over_is_not_made(
    tmp_path: Path, chosen: Callable[[int, int], list[int]]
) -> None:
    """Another one merges and deletes the runs that are to be copied: it is no damage, and no savepoint is left."""
    with distinct_sink(tmp_path / "seed").local() as out:
        for row in range(LATE):
            out.write(batch(row, 1))
            out.checkpoint(position=row + 1)

    def take(base: Path, interceptor: Recorder | ActAt) -> None:
        out = distinct_sink(base, interceptor=interceptor).local().open()
        out.write(batch(LATE, 1))
        out.stop_with_savepoint(base.with_name(f"{base.name}-savepoints"))

    recorder = Recorder()
    take(Path(shutil.copytree(tmp_path / "seed", tmp_path / "counted")), recorder)
    commits = [
        at for at, call in enumerate(recorder.calls) if call.name == "link" and call.arguments[-1] == "_metadata"
    ]
    fenced = 0
    # From the sink's last checkpoint to the savepoint, which is the last commit.
    for number in [commits[-2] + more for more in chosen(commits[-1] - commits[-2], 2 * FEW)]:
        base = Path(shutil.copytree(tmp_path / "seed", tmp_path / f"{number}"))
        try:
            take(base, ActAt(number, partial(life, base)))
        except Fenced:
            fenced += 1
            assert not list(base.with_name(f"{number}-savepoints").rglob("_metadata"))
        assert_distinct(base)
    assert fenced


@pytest.mark.parametrize("applied", [False, True])
def test_a_call_that_fails_loses_and_doubles_nothing(
    tmp_path: Path, chosen: Callable[[int, int], list[int]], *, applied: bool
) -> None:
    """An error of storage in the place of a kill: the sink ends, and the next one goes on."""
    calls = count_calls(lambda recorder: life(tmp_path / "counted", interceptor=recorder), CHANGING_CALLS)
    for number in chosen(calls, FEW):
        base = tmp_path / f"{number}"
        failure = FailAt(number, OSError(errno.EIO, "deliberate"), applied=applied, only=CHANGING_CALLS)
        with suppress(PartfileError):
            life(base, interceptor=failure)
        life(base)
        assert_distinct(base)
        shutil.rmtree(base)


def test_no_run_file_is_left_after_the_life(tmp_path: Path) -> None:
    """But those that the two retained checkpoints name, whatever was merged."""
    life(tmp_path)
    shared = list((tmp_path / "_partfile" / "life" / "shared").iterdir())
    assert 0 < len(shared) <= 6
    assert planned_cleaning(tmp_path).items == ()


@pytest.mark.fault("K19")
def test_run_files_of_lost_attempts_are_cleaned_away(tmp_path: Path) -> None:
    """A crash between a run file and its checkpoint leaves an orphan; it goes once a later checkpoint is older too."""
    counted = Recorder(CHANGING_CALLS)
    life(tmp_path / "counted", interceptor=counted)
    links = [number for number, call in enumerate(counted.calls, 1) if call.name == "link"]
    base = tmp_path / "base"
    in_child(partial(life, base, interceptor=KillAt(links[8], "after", only=CHANGING_CALLS)))
    life(base)
    shared = base / "_partfile" / "life" / "shared"
    planned = planned_cleaning(base)
    orphans = {item.path for item in planned.items if item.kind == "run file"}
    assert orphans
    clean_all(base)
    assert not orphans & {f"life/shared/{path.name}" for path in shared.iterdir()}
    life(base)
    assert_distinct(base)
