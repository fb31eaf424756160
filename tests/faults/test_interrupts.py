"""SIGTERM and SIGINT in the middle of anything: what the process does on its way out harms nothing."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING

import pytest

from partfile.stores.local.posix import CHANGING_CALLS
from partfile.testing.faults import ActAt, count_calls
from support.life_cycle import (
    FAILED,
    assert_exactly_once,
    assert_only_grew,
    finished_files,
    in_child,
    make_sink,
    run_to_the_end,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def life(base: Path, interceptor: object = None) -> None:
    run_to_the_end(make_sink(base, interceptor=interceptor))


def interrupted(base: Path, number: int, kind: signal.Signals) -> None:
    """A life that gets a signal before one call, and has a handler as a service would have."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    life(base, ActAt(number, partial(os.kill, os.getpid(), kind), only=CHANGING_CALLS))


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT], ids=lambda kind: kind.name)
@pytest.mark.fault("K18")
def test_a_signal_at_any_call_loses_and_doubles_nothing(
    kind: signal.Signals, tmp_path: Path, chosen: Callable[[int, int], list[int]]
) -> None:
    """It leaves by an exception, whose cleaning up publishes nothing new; the next run goes on."""
    calls = count_calls(partial(life, tmp_path / "counted"), CHANGING_CALLS)
    for number in chosen(calls, 20):
        base = tmp_path / f"{number}"
        assert in_child(partial(interrupted, base, number, kind)) == FAILED, f"call {number} of {calls}"
        seen = finished_files(base) if base.exists() else {}
        assert in_child(partial(life, base)) == 0, f"call {number} of {calls}"
        assert_only_grew(seen, assert_exactly_once(base))
