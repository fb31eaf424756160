"""SIGKILL before and after requests of recover and of clean; run again; then the sink goes on.

On moto in every run; with ``--long`` on each server, at every request.
"""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from partfile.recovery.inspect.places import Place
from partfile.recovery.ownership import open_stores
from partfile.snapshot.documents import METADATA
from partfile.stores.s3.client import CHANGING_CALLS
from partfile.testing.faults import KillAt, Recorder
from support.crash.commands import clean_by_command, recover_by_command
from support.life_cycle import in_child
from support.recovery import NOW_MS
from support.s3.life import MIB, Stream, options_of

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from partfile.testing.faults import Call
    from support.crash.worlds import Process
    from support.servers.s3 import S3Server


pytestmark = pytest.mark.slow

A_SECOND_S = 1.1
"""Times of objects are in whole seconds."""
FEW = 1
ROW_BYTES = {"side objects": 10, "uploads": 3 * MIB}
COMMANDS: dict[str, Callable[[Process], object]] = {
    "recover": recover_by_command,
    "clean": partial(clean_by_command, delete=True),
}


class KillBeforeTheCommit:
    """Kills its own process when a checkpoint is about to be complete."""

    def __init__(self) -> None:
        self.is_armed = False

    def around(self, call: Call, proceed: Callable[[], object]) -> object:
        """SIGKILL instead of creating a checkpoint."""
        if self.is_armed and any(str(one).endswith(f"/{METADATA}") for one in call.arguments):
            os.kill(os.getpid(), signal.SIGKILL)
        return proceed()


def die_early(stream: Stream) -> None:
    """Leave parts that no checkpoint names."""
    killer = KillBeforeTheCommit()
    out = stream.sink(killer).local().open()
    out.write(stream.batch(0, 4), position=4)
    killer.is_armed = True
    out.checkpoint()


def die_late(stream: Stream) -> None:
    """Leave parts that a checkpoint vouches for."""
    out = stream.sink().local().open()
    out.write(stream.batch(0, 4), position=4)
    out.checkpoint()
    os._exit(0)


def messes(server: S3Server, count: int, row_bytes: int) -> list[Stream]:
    """Bases with both."""
    streams = [Stream(f"s3://{server.bucket()}/base", options_of(server), row_bytes=row_bytes) for _ in range(count)]
    for stream in streams:
        assert in_child(partial(die_early, stream)) == -signal.SIGKILL
    time.sleep(A_SECOND_S)
    for stream in streams:
        assert in_child(partial(die_late, stream)) == 0
    return streams


def leftovers(stream: Stream) -> list[str]:
    """Uploads, side objects and claims of parts, named by a checkpoint or not."""
    with open_stores(Place(stream.base, opener=stream.process().open_store)) as stores:
        assert stores is not None
        return sorted(one.path for one in stores.base.leftovers((), NOW_MS) if one.name.startswith("part-"))


@pytest.mark.drawn(2)
@pytest.mark.parametrize("kind", ROW_BYTES)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.fault("K16", "H6")
def test_a_kill_at_a_request_of_a_command(
    command: str, kind: str, request: pytest.FixtureRequest, rng: random.Random, chosen: Callable[[int, int], list[int]]
) -> None:
    """A clean is killed a second time; a last run ends it: orphans are gone, what a checkpoint vouches for is not."""
    for name in ("moto", "rclone", "radosgw") if request.config.getoption("--long") else ("moto",):
        server: S3Server = request.getfixturevalue(name)
        (counted,) = messes(server, 1, ROW_BYTES[kind])
        recorder = Recorder(CHANGING_CALLS)
        COMMANDS[command](counted.process(recorder))
        calls = len(recorder.calls)
        numbers = chosen(calls, FEW)
        for stream, number in zip(messes(server, len(numbers), ROW_BYTES[kind]), numbers, strict=True):
            kills = [number] + [rng.randint(1, calls)] * (command == "clean")
            before = leftovers(stream)
            for kill in kills:
                killer = KillAt(kill, rng.choice(["before", "after"]), only=CHANGING_CALLS)
                # Which has less to do than that the second time ends well.
                assert in_child(partial(COMMANDS[command], stream.process(killer))) in {-signal.SIGKILL, 0}
            assert in_child(partial(COMMANDS[command], stream.process())) == 0, f"{kills} of {calls} on {name}"
            assert in_child(stream.run_to_the_end) == 0
            stream.assert_exactly_once()
            if command == "recover":
                # It takes no orphans away, nor, killed behind its last publish, what that part was made of.
                assert 0 < len(leftovers(stream)) <= len(before), f"{kills} of {calls} on {name}"
                assert in_child(partial(COMMANDS["clean"], stream.process())) == 0
            assert leftovers(stream) == [], f"{kills} of {calls} on {name}"
