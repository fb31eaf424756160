"""Which tests a run leaves out: cases that are not drawn, and servers that ``PARTFILE_SKIP`` names."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path


# Tests of many cases of which a run draws a few: ``@pytest.mark.drawn(few)``; ``--every-case`` takes all.


def left_out(tests: Sequence[pytest.Item], seed: object) -> set[pytest.Item]:
    """The cases that this run does not draw.

    Args:
        tests: All that were collected; processes that share them must leave out the same, so their order is nothing.
        seed: Of the run. Each test draws by itself, so that a choice of tests repeats what a whole run drew.

    Raises:
        pytest.UsageError: A mark says no number.
    """
    cases: dict[tuple[str, int], list[pytest.Item]] = defaultdict(list)
    for test in tests:
        # What is skipped anyway must not take the place of what would run.
        if (mark := test.get_closest_marker("drawn")) is not None and test.get_closest_marker("skip") is None:
            cases[test.nodeid.partition("[")[0], _few(test, mark)].append(test)
    return {
        test
        for (name, few), own in cases.items()
        for test in random.Random(f"{seed}/{name}").sample(sorted(own, key=_nodeid), max(0, len(own) - few))
    }


def _few(test: pytest.Item, mark: pytest.Mark) -> int:
    if len(mark.args) != 1 or not isinstance(mark.args[0], int) or mark.args[0] < 1:
        raise pytest.UsageError(f"{test.nodeid}: @pytest.mark.drawn takes the number of cases that a run draws")
    return mark.args[0]


def _nodeid(test: pytest.Item) -> str:
    return test.nodeid


# Which real servers a run of the tests leaves out: ``PARTFILE_SKIP``, names with commas between them.

VARIABLE = "PARTFILE_SKIP"

SERVERS = ("hdfs", "radosgw", "spark_avro")
"""The servers that a run can leave out, and Spark's reader of Avro. Each has a fixture of its name, or a folder of its
name below ``tests``."""

FIXTURES = ("s3_server",)
"""Fixtures whose parameter is the name of a server."""


def skipped_servers(environment: Mapping[str, str]) -> list[str]:
    """The servers that ``environment`` asks to leave out, each once, in order.

    Raises:
        pytest.UsageError: There is no server of that name: a slip must not pass for a full run.
    """
    names = sorted({name.strip() for name in environment.get(VARIABLE, "").split(",")} - {""})
    unknown = [name for name in names if name not in SERVERS]
    if unknown:
        raise pytest.UsageError(f"{VARIABLE} names {', '.join(unknown)}; it knows {', '.join(SERVERS)}")
    return names


def skip_tests_of(servers: Iterable[str], tests: Iterable[pytest.Item], root: Path) -> None:
    """Mark the tests of some servers to be skipped."""
    for server in servers:
        for test in tests:
            if _needs(test, server, root):
                test.add_marker(pytest.mark.skip(reason=f"{VARIABLE}={server}"))


def report(servers: Iterable[str], reporter: pytest.TerminalReporter) -> None:
    """Say loudly, at the end of a run, what has not been tested."""
    for server in servers:
        reporter.write_line(f"{server.upper()} WAS NOT TESTED ({VARIABLE}={server})", red=True, bold=True)


def _needs(test: pytest.Item, server: str, root: Path) -> bool:
    if test.path.is_relative_to(root / "tests" / server):
        return True
    if not isinstance(test, pytest.Function):
        return False
    chosen = test.callspec.params if hasattr(test, "callspec") else {}
    return server in test.fixturenames or any(chosen.get(fixture) == server for fixture in FIXTURES)
