"""SIGKILL of a sink whose multi-bucket staging file has a bucket in which no file can be made.

What the others got stays theirs.
"""

from __future__ import annotations

import signal
from collections import Counter
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from partfile.errors import NotReady
from partfile.stores.local.posix import CHANGING_CALLS, PosixCalls
from partfile.stores.local.store import LocalStore
from partfile.testing.faults import KillAt, Recorder, intercept
from support.life_cycle import LONG, in_child
from support.recovery import broken_invariants
from support.shared_streams import BUCKETS, continue_sharing, counted, rows_in, sharing_sink

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from partfile.testing.faults import Interceptor


ROWS = 2 * BUCKETS
STUCK = "k=7"
FEW = 16
"""Kills of each kind of part in every run; all of them with ``--long``."""


class OneAfterTheOther(LocalStore):
    """A store whose calls come in the same order each time."""

    persist_threads = 1


def live(base: Path, form: str, interceptor: Interceptor) -> None:
    """Write what is missing; each checkpoint rolls the staging file, so that its task encodes what it can."""
    aged: dict[str, Any] = {"rolling": LONG.model_copy(update={"rollover_interval_s": 1e-3}), "publish_threads": 1}
    calls = intercept(PosixCalls(), interceptor)
    opened = {"open_store": lambda url, _options: OneAfterTheOther(url, calls=calls)}
    sink = sharing_sink(base, format=form, **aged, **opened)
    # The bucket's own rows are the end's complaint; that they stay is what this is about.
    with suppress(NotReady) if (base / STUCK).is_file() else nullcontext():
        continue_sharing(sink, ROWS, base.with_name(f"{base.name}.told"))


def block(base: Path) -> Path:
    """Put a foreign file where the directory of a bucket should be."""
    base.mkdir(parents=True)
    path = base / STUCK
    path.write_text("foreign")
    return path


@pytest.mark.parametrize("form", ["parquet", "json"])
@pytest.mark.fault("K1", "K2", "K3", "K6")
def test_a_kill_beside_a_stuck_bucket_loses_and_doubles_nothing(
    form: str, tmp_path: Path, rng: random.Random, *, is_long: bool
) -> None:
    """At any call: no row is there twice, and once the bucket is free again each of all rows is there."""
    block(tmp_path / "whole")
    recorder = Recorder(only=CHANGING_CALLS)
    live(tmp_path / "whole", form, recorder)
    calls = len(recorder.calls)
    every = counted(0, ROWS)
    others = Counter(place for place in every if place[0] != STUCK)
    assert rows_in(tmp_path / "whole", form) == others
    numbers = range(1, calls + 1)
    for number in numbers if is_long else sorted(rng.sample(numbers, FEW)):
        base = tmp_path / f"{number}"
        blocking = block(base)
        killer = KillAt(number, rng.choice(["before", "after"]), only=CHANGING_CALLS)
        assert in_child(partial(live, base, form, killer)) == -signal.SIGKILL, f"call {number} of {calls}"
        assert rows_in(base, form) <= others, f"call {number} of {calls}"
        blocking.unlink()
        assert in_child(partial(live, base, form, Recorder())) == 0, f"call {number} of {calls}"
        assert rows_in(base, form) == every, f"call {number} of {calls}"
        assert broken_invariants(base) == []
