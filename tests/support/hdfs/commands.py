"""The command line on HDFS, with the mess it mends: functions for processes of their own; see ``clean_forks``."""

from __future__ import annotations

import json
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partfile.stores.hdfs.client import CHANGING_CALLS
from partfile.testing.faults import KillAt, Recorder
from support.crash.commands import clean_by_command, recover_by_command
from support.crash.worlds import Process
from support.hdfs.life import KillBeforeTheCommit, live, opener, seed
from support.programs.clean_forks import CleanForks
from support.sinks.life_cycle import LONG, batch, make_sink

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.testing.faults import When
    from support.hdfs.cluster import HdfsCluster


__all__ = ["command", "count_command", "die_in_command", "killed", "live", "orphans", "seed"]

COMMANDS: dict[str, Callable[[Process], object]] = {
    "recover": recover_by_command,
    "clean": partial(clean_by_command, delete=False),
    "clean --delete": partial(clean_by_command, delete=True),
}


def killed(hdfs: HdfsCluster, url: str) -> None:
    """A sink that was killed with two open parts, each with a tail beyond its valid length."""
    with CleanForks("support.hdfs.life") as forks:
        assert forks.run("seed", url=url, http_address=hdfs.http_address, cut="auto") == -signal.SIGKILL


def orphans(url: str, http_address: str) -> None:
    """Leave durable parts that no checkpoint names, by a kill before the checkpoint."""
    killer = KillBeforeTheCommit()
    out = make_sink(url, open_store=opener(http_address, killer), rolling=LONG).local().open()
    out.write(batch(0, 4), position=4)
    killer.is_armed = True
    out.checkpoint()


def command(url: str, http_address: str, name: str, interceptor: Any = None) -> None:
    """Plan and apply a command."""
    COMMANDS[name](Process(url, opener(http_address, interceptor)))


def count_command(url: str, http_address: str, name: str, to: str) -> None:
    """The same, and write down how many changing calls it makes."""
    recorder = Recorder(CHANGING_CALLS)
    command(url, http_address, name, recorder)
    Path(to).write_text(json.dumps(len(recorder.calls)))


def die_in_command(url: str, http_address: str, name: str, number: int, when: When) -> None:
    """The same, with SIGKILL at one changing call."""
    command(url, http_address, name, KillAt(number, when, only=CHANGING_CALLS))
