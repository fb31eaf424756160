"""Kill the process before and after every file-system call of the life cycle; restart; compare."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from partfile.stores.local.posix import CHANGING_CALLS, PosixCalls
from partfile.stores.local.store import LocalStore
from partfile.testing.faults import ActAt, KillAt, Recorder, count_calls, intercept
from support.crash.harness import CrashHarness
from support.crash.scenarios import CUTS as ALL_CUTS
from support.crash.scenarios import OTHERS, Scenario, restore_that_cuts, stream
from support.crash.worlds import Camera, Local
from support.sinks.life_cycle import (
    FAILED,
    LONG,
    assert_exactly_once,
    assert_only_grew,
    batch,
    continue_to,
    finished_files,
    in_child,
    long_sink,
    make_sink,
    rows_of,
    run_to_the_end,
    seed_with_a_tail,
)
from support.sinks.recovery import broken_invariants, go_back
from support.sinks.shared_streams import BUCKETS, continue_sharing, counted, rows_in, sharing_sink

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.sink.file_sink import FileSink
    from partfile.stores.base import Cut
    from partfile.testing.faults import Call, Interceptor, When
    from support.crash.harness import Choose
    from support.state.tokens import NumberedTokens


FEW = 6
"""Kills of each kind in every run; with ``--long`` at each call. Pictures of each are in test_second_kills."""
CUTS = ["truncate", "rewrite", "valid-length"]


def life(base: Path, **options: Any) -> None:
    run_to_the_end(make_sink(base, **options))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.fault("K1", "K2", "K3", "K6", "K10", "K13")
def test_a_kill_at_any_call_loses_and_doubles_nothing(
    cut: str, when: When, tmp_path: Path, chosen: Callable[[int, int], list[int]]
) -> None:
    """SIGKILL at call n, for some n or all: readers see whole committed rows at once, after a restart all rows once."""
    calls = count_calls(lambda recorder: life(tmp_path / "counted", interceptor=recorder, cut=cut), CHANGING_CALLS)
    for number in chosen(calls, FEW):
        base = tmp_path / f"{number}"
        killer = KillAt(number, when, only=CHANGING_CALLS)
        code = in_child(partial(life, base, interceptor=killer, cut=cut))
        assert code == -signal.SIGKILL, f"call {number} of {calls}"
        seen = finished_files(base) if base.exists() else {}
        assert max(rows_of(seen).values(), default=1) == 1
        assert in_child(partial(life, base, cut=cut)) == 0, f"call {number} of {calls}"
        assert_only_grew(seen, assert_exactly_once(base))


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("cut", [*CUTS, "auto"])
@pytest.mark.fault("K3", "K6", "K11b", "K14")
def test_a_kill_at_any_call_of_a_restore_that_cuts(
    cut: str, when: When, tmp_path: Path, chosen: Callable[[int, int], list[int]]
) -> None:
    """The same from a crash on that left open parts with a tail, so that the restore has something to finalize."""
    seed_with_a_tail(tmp_path / "seed", cut=cut)

    def again(number: int | str) -> Path:
        return Path(shutil.copytree(tmp_path / "seed", tmp_path / f"{number}"))

    go_on = partial(life, cut=cut, rolling=LONG)
    recorder = Recorder(CHANGING_CALLS)
    go_on(again("counted"), interceptor=recorder)
    assert ("truncate" in recorder.names) is (cut in {"truncate", "auto"})
    for number in chosen(len(recorder.calls), FEW):
        base = again(number)
        killer = KillAt(number, when, only=CHANGING_CALLS)
        assert in_child(partial(go_on, base, interceptor=killer)) == -signal.SIGKILL, f"call {number}"
        seen = finished_files(base)
        assert max(rows_of(seen).values(), default=1) == 1
        assert in_child(partial(go_on, base)) == 0, f"call {number} {recorder.names[number - 1]}"
        assert_only_grew(seen, assert_exactly_once(base))
        shutil.rmtree(base)


@pytest.mark.fault("K13")
def test_a_restart_of_a_finished_stream_changes_no_file(tmp_path: Path) -> None:
    """Restoring again and again leaves every finished file as it is and adds none."""
    run_to_the_end(make_sink(tmp_path))
    files = assert_exactly_once(tmp_path)
    for _ in range(3):
        run_to_the_end(make_sink(tmp_path))
        assert finished_files(tmp_path) == files


# SIGKILL before each call of a start that restores on demand: the next start ends what it began.


ROWS = {f"row-{number:04d}": 1 for number in range(9)}


def seed(root: Path, *, is_published: bool) -> None:
    """A checkpoint with open parts, ``chosen``, that the sink went on from; and a savepoint of another sink."""
    out = long_sink(root / "out", retained_checkpoints=9).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    out.write(batch(4, 3), position=7)
    out.checkpoint()
    if is_published:
        out.finish()
    out.close()
    other = long_sink(root / "other").local().open()
    other.write(batch(0, 4), position=4)
    Path(other.stop_with_savepoint(root / "savepoints")).rename(root / "savepoint")


@pytest.mark.drawn
@pytest.mark.item("SP-14", "DL-10")
@pytest.mark.parametrize(
    "case",
    [
        "savepoint",
        "rollback",
        "rollback over published parts",
        "rollback over a damaged checkpoint",
        "rollback over a damaged checkpoint and published parts",
    ],
)
@pytest.mark.fault("K16", "M8")
def test_a_kill_at_any_call_of_a_restore(tmp_path: Path, case: str, chosen: Callable[[int, int], list[int]]) -> None:
    """Done again it begins where the user said, once; no row is lost, and only accepted ones come twice."""
    seed(tmp_path / "seed", is_published="published" in case)
    if "damaged" in case:
        metadata_files = (tmp_path / "seed" / "out" / "_partfile" / "life").glob("chk-*/_metadata")
        newest = max(metadata_files, key=lambda path: int(path.parent.name[4:]))
        newest.write_bytes(newest.read_bytes()[:-9])
    restored = "fresh" if case == "savepoint" else "out"

    def restore(root: Path, interceptor: object = None) -> int:
        origin = root / "savepoint" if case == "savepoint" else root / "out" / "_partfile" / "life" / "chk-2"
        if case != "savepoint":
            go_back(root / "out", origin, interceptor)
        return continue_to(long_sink(root / restored, restore_from=origin, interceptor=interceptor), 9)

    def killed(root: Path, kill: KillAt) -> None:
        restore(root, kill)

    recorder = Recorder(CHANGING_CALLS)
    assert restore(Path(shutil.copytree(tmp_path / "seed", tmp_path / "counted")), recorder) == 4
    for number in chosen(len(recorder.calls), FEW):
        root = Path(shutil.copytree(tmp_path / "seed", tmp_path / f"{number}"))
        kill = KillAt(number, only=CHANGING_CALLS)
        assert in_child(partial(killed, root, kill)) == -signal.SIGKILL
        before = finished_files(root / restored)
        restore(root)
        after = finished_files(root / restored)
        assert before.items() <= after.items(), f"call {number}: {recorder.names[number - 1]}"
        rows = rows_of(after) + (rows_of(finished_files(root / "other")) if case == "savepoint" else rows_of({}))
        doubled = {f"row-{row:04d}" for row in range(4, 7)} if "published" in case else set()
        assert rows == {row: 2 if row in doubled else 1 for row in ROWS}, f"call {number}"
        shutil.rmtree(root)


# SIGTERM and SIGINT in the middle of anything: what the process does on its way out harms nothing.


def signal_life(base: Path, interceptor: object = None) -> None:
    run_to_the_end(make_sink(base, interceptor=interceptor))


def interrupted(base: Path, number: int, kind: signal.Signals) -> None:
    """A life that gets a signal before one call, and has a handler as a service would have."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal_life(base, ActAt(number, partial(os.kill, os.getpid(), kind), only=CHANGING_CALLS))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT], ids=lambda kind: kind.name)
@pytest.mark.fault("K18")
def test_a_signal_at_any_call_loses_and_doubles_nothing(
    kind: signal.Signals, tmp_path: Path, chosen: Callable[[int, int], list[int]]
) -> None:
    """It leaves by an exception, whose cleaning up publishes nothing new; the next run goes on."""
    calls = count_calls(partial(signal_life, tmp_path / "counted"), CHANGING_CALLS)
    for number in chosen(calls, 10):
        base = tmp_path / f"{number}"
        assert in_child(partial(interrupted, base, number, kind)) == FAILED, f"call {number} of {calls}"
        seen = finished_files(base) if base.exists() else {}
        assert in_child(partial(signal_life, base)) == 0, f"call {number} of {calls}"
        assert_only_grew(seen, assert_exactly_once(base))


# SIGKILL while several threads create, sync, encode, publish and delete the parts of one local sink.
#
# Elsewhere calls come one after the other, so that every moment can be looked at. Here they come as threads make them,
# in an order that chance decides, and a kill cuts each thread off somewhere else.


THREADED_ROWS = 4 * BUCKETS
THREADED_FEW, MANY = 12, 100
"""Kills of each kind of part in every run, and with ``--long``: no two lives make their calls in the same order."""
LONGEST_PAUSE_S = 0.002
FORMS: dict[str, dict[str, Any]] = {
    "json": {"format": "json", "buckets_per_staging_file": None},
    "staged": {"buckets_per_staging_file": None, "retained_checkpoints": 1},
    "shared": {},
    "shared json": {"format": "json"},
}
THREADS = {
    "json": {"partfile-persist", "partfile-publish"},
    "staged": {"partfile-persist", "partfile-publish", "partfile-discard"},
    "shared": {"partfile-commit", "partfile-publish"},
    "shared json": {"partfile-commit", "partfile-publish"},
}
"""What of each has several threads at work."""


class Jumbled:
    """Makes each call wait for a moment that chance decides, so that threads come in other orders each time.

    Args:
        behind: What becomes of the call then; None does it.
        seed: Of chance.
    """

    def __init__(self, behind: Interceptor | None, seed: float) -> None:
        self._behind = behind
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self.calls = 0
        """Changing calls so far."""
        self.threads: dict[str, set[str]] = {}
        """The threads that made them, by what they are called together."""

    def around(self, call: Call, proceed: Callable[[], object]) -> object:
        """Wait, note, and go on."""
        if call.name in CHANGING_CALLS:
            name = threading.current_thread().name
            with self._lock:
                pause_s = self._rng.uniform(0, LONGEST_PAUSE_S)
                self.calls += 1
                self.threads.setdefault(name.rpartition("_")[0], set()).add(name)
            time.sleep(pause_s)
        return proceed() if self._behind is None else self._behind.around(call, proceed)


def sink_of(base: Path, form: str, interceptor: Interceptor) -> FileSink:
    """A sink of twelve buckets, with as many threads as a local store asks for."""
    calls = intercept(PosixCalls(), interceptor)
    options: dict[str, Any] = {"open_store": lambda url, _options: LocalStore(url, calls=calls), "publish_threads": 8}
    return sharing_sink(base, **(options | FORMS[form]))


def live(base: Path, form: str, interceptor: Interceptor) -> None:
    """Write what is missing, checkpoint by checkpoint, and end; nothing that was acknowledged may be missing."""
    continue_sharing(sink_of(base, form, interceptor), THREADED_ROWS, base.with_name(f"{base.name}.told"))


def check_readers(base: Path, form: str) -> None:
    """Each row that is visible is there once, in its bucket."""
    seen = rows_in(base, kind(form))
    assert seen <= counted(0, THREADED_ROWS), "a row is visible twice, or in another bucket"


def kind(form: str) -> str:
    """The format of its files."""
    return str(FORMS[form].get("format", "parquet"))


@pytest.mark.slow
@pytest.mark.drawn(2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.fault("K1", "K2", "K3", "K6", "K10", "K13", "K16")
def test_a_kill_among_threads_loses_and_doubles_nothing(
    form: str, tmp_path: Path, rng: random.Random, *, is_long: bool
) -> None:
    """SIGKILL at the n-th changing call of all threads, and at one of the start after it; then each row once."""
    whole = Jumbled(None, rng.random())
    live(tmp_path / "whole", form, whole)
    assert rows_in(tmp_path / "whole", kind(form)) == counted(0, THREADED_ROWS)
    busy = {name for name, threads in whole.threads.items() if len(threads) > 1}
    assert THREADS[form] <= busy
    killed = 0
    for number in rng.sample(range(1, whole.calls + 1), MANY if is_long else THREADED_FEW):
        base = tmp_path / f"{number}"
        for call in (number, rng.randint(1, whole.calls)):
            killer = KillAt(call, rng.choice(["before", "after"]), only=CHANGING_CALLS)
            code = in_child(partial(live, base, form, Jumbled(killer, rng.random())))
            # Threads may leave a try out that another one has made needless; a restart has less to do than that.
            assert code in {-signal.SIGKILL, 0}, f"call {call} after {number} of {whole.calls}"
            killed += code != 0
            check_readers(base, form)
        assert in_child(partial(live, base, form, Jumbled(None, rng.random()))) == 0, f"call {number} of {whole.calls}"
        assert rows_in(base, kind(form)) == counted(0, THREADED_ROWS), f"call {number} of {whole.calls}"
        assert broken_invariants(base) == []
    assert killed >= THREADED_FEW


# Kill at every call, then the recovery at some of its calls, with ``--long`` at each.


# Kill at every call, then the recovery at some of its calls, with ``--long`` at each, on a local directory.


@pytest.mark.drawn(2)
@pytest.mark.parametrize("scenario", [stream("auto"), restore_that_cuts("truncate"), *OTHERS], ids=lambda one: one.name)
@pytest.mark.fault("K1", "K2", "K3", "K5", "K6", "K7", "K9", "K10", "K11", "K11b", "K13", "K15", "K16", "F5", "F8")
def test_two_kills_anywhere_lose_and_double_nothing(
    scenario: Scenario, numbered_tokens: NumberedTokens, second: Choose, is_long: bool
) -> None:
    """At each moment readers see committed rows once; after each recovery all that was acknowledged; in the end all."""
    explored = CrashHarness(scenario, Local(), numbered_tokens, second=second).explore()
    # No moment is the same as another, so these are at least as many kills.
    assert explored.moments >= len(explored.calls) // 3 > 13
    assert explored.second_moments > (5 * explored.moments if is_long else explored.moments // 4)


@pytest.mark.parametrize("scenario", [stream("auto"), *OTHERS[:1]], ids=lambda one: one.name)
def test_a_picture_is_what_a_real_kill_leaves(
    scenario: Scenario, numbered_tokens: NumberedTokens, rng: random.Random
) -> None:
    """SIGKILL in a process of its own leaves, to the byte, one of the pictures that the camera takes."""
    numbered_tokens.begin("life")
    world = Local().world()
    camera = Camera(world)
    scenario.life(camera.process())
    world.close()
    pictures = {moment.picture for moment in camera.moments}
    for number in rng.sample(range(1, len(camera.calls) + 1), 8):
        numbered_tokens.begin("life")
        world = Local().world()
        killer = KillAt(number, "after", only=world.changing_calls)
        code = in_child(partial(scenario.life, world.process(killer)))
        assert code == -signal.SIGKILL, f"call {number}"
        assert world.now() in pictures, f"call {number}, {camera.calls[number - 1]}"
        world.close()


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    "scenario", [stream("auto"), *(restore_that_cuts(cut) for cut in ALL_CUTS), *OTHERS], ids=lambda one: one.name
)
@pytest.mark.fault("K1", "K2", "K3", "K5", "K10", "K11", "K11b", "K13", "K14", "K16")
def test_what_a_consumer_takes_at_once_is_each_row_once(
    scenario: Scenario, numbered_tokens: NumberedTokens, failing: Choose, second: Choose
) -> None:
    """R5: no file comes back after a consumer has moved it, and each start goes on by itself."""
    harness = CrashHarness(scenario, Local(), numbered_tokens, first=failing, second=second)
    explored = harness.explore_beside_a_consumer()
    assert explored.moments >= len(explored.calls) // 3 > 13
    assert explored.second_moments > 5


# Kill at every call, then the recovery at some of its calls or all, where parts are copied or get sidecars.


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize("cut", ["rewrite", "valid-length"])
@pytest.mark.fault("K3", "K14", "K16")
def test_two_kills_anywhere_lose_and_double_nothing_where_parts_are_copied(
    cut: Cut, numbered_tokens: NumberedTokens, second: Choose, is_long: bool
) -> None:
    """As with parts that are cut in place; a sidecar is there before its file is."""
    explored = CrashHarness(restore_that_cuts(cut), Local(), numbered_tokens, second=second).explore()
    assert explored.moments >= len(explored.calls) // 3 > 13
    assert explored.second_moments > (5 * explored.moments if is_long else explored.moments // 4)
