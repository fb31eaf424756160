"""SIGKILL while several threads create, sync, encode, publish and delete the parts of one local sink.

Elsewhere calls come one after the other, so that every moment can be looked at. Here they come as threads make them, in
an order that chance decides, and a kill cuts each thread off somewhere else.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from partfile.stores.local.posix import CHANGING_CALLS, PosixCalls
from partfile.stores.local.store import LocalStore
from partfile.testing.faults import KillAt, intercept
from support.life_cycle import in_child
from support.recovery import broken_invariants
from support.shared_streams import BUCKETS, continue_sharing, counted, rows_in, sharing_sink

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from partfile.sink.file_sink import FileSink
    from partfile.testing.faults import Call, Interceptor


ROWS = 4 * BUCKETS
FEW, MANY = 12, 100
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
    continue_sharing(sink_of(base, form, interceptor), ROWS, base.with_name(f"{base.name}.told"))


def check_readers(base: Path, form: str) -> None:
    """Each row that is visible is there once, in its bucket."""
    seen = rows_in(base, kind(form))
    assert seen <= counted(0, ROWS), "a row is visible twice, or in another bucket"


def kind(form: str) -> str:
    """The format of its files."""
    return str(FORMS[form].get("format", "parquet"))


@pytest.mark.drawn(2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.fault("K1", "K2", "K3", "K6", "K10", "K13", "K16")
def test_a_kill_among_threads_loses_and_doubles_nothing(
    form: str, tmp_path: Path, rng: random.Random, *, is_long: bool
) -> None:
    """SIGKILL at the n-th changing call of all threads, and at one of the start after it; then each row once."""
    whole = Jumbled(None, rng.random())
    live(tmp_path / "whole", form, whole)
    assert rows_in(tmp_path / "whole", kind(form)) == counted(0, ROWS)
    busy = {name for name, threads in whole.threads.items() if len(threads) > 1}
    assert THREADS[form] <= busy
    killed = 0
    for number in rng.sample(range(1, whole.calls + 1), MANY if is_long else FEW):
        base = tmp_path / f"{number}"
        for call in (number, rng.randint(1, whole.calls)):
            killer = KillAt(call, rng.choice(["before", "after"]), only=CHANGING_CALLS)
            code = in_child(partial(live, base, form, Jumbled(killer, rng.random())))
            # Threads may leave a try out that another one has made needless; a restart has less to do than that.
            assert code in {-signal.SIGKILL, 0}, f"call {call} after {number} of {whole.calls}"
            killed += code != 0
            check_readers(base, form)
        assert in_child(partial(live, base, form, Jumbled(None, rng.random()))) == 0, f"call {number} of {whole.calls}"
        assert rows_in(base, kind(form)) == counted(0, ROWS), f"call {number} of {whole.calls}"
        assert broken_invariants(base) == []
    assert killed >= FEW
