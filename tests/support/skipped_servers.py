"""Which real servers a run of the tests leaves out: ``PARTFILE_SKIP``, names with commas between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

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
