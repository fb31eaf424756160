"""Which real servers a run of the tests leaves out: ``PARTFILE_SKIP``, names with commas between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

VARIABLE = "PARTFILE_SKIP"

FOLDERS = {"hdfs": "tests/hdfs"}
"""The folder of the tests that need a server, by the name of the server."""


def skipped_servers(environment: Mapping[str, str]) -> list[str]:
    """The servers that ``environment`` asks to leave out, each once, in order.

    Raises:
        pytest.UsageError: There is no server of that name: a slip must not pass for a full run.
    """
    names = sorted({name.strip() for name in environment.get(VARIABLE, "").split(",")} - {""})
    unknown = [name for name in names if name not in FOLDERS]
    if unknown:
        raise pytest.UsageError(f"{VARIABLE} names {', '.join(unknown)}; it knows {', '.join(sorted(FOLDERS))}")
    return names


def skip_tests_of(servers: Iterable[str], tests: Iterable[pytest.Item], root: Path) -> None:
    """Mark the tests of some servers to be skipped."""
    for server in servers:
        for test in tests:
            if test.path.is_relative_to(root / FOLDERS[server]):
                test.add_marker(pytest.mark.skip(reason=f"{VARIABLE}={server}"))


def report(servers: Iterable[str], reporter: pytest.TerminalReporter) -> None:
    """Say loudly, at the end of a run, what has not been tested."""
    for server in servers:
        reporter.write_line(f"{server.upper()} WAS NOT TESTED ({VARIABLE}={server})", red=True, bold=True)
