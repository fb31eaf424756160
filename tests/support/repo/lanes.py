"""Which tests a run takes: markers of what a test needs, the lanes of the Makefile, and what was left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable


SERVERS = ("hdfs", "kafka", "radosgw", "rclone", "spark_avro")
"""What a test may need besides Python and Java. Each is a marker, and the last word of the fixtures that start it."""

PARAMETERS = ("s3_server", "kind")
"""Parameters of fixtures and tests that are names of servers."""

QUICK = " and ".join(f"not {marker}" for marker in ("slow", *SERVERS))
"""What ``make test`` passes to ``-m``."""


def mark_servers(tests: Iterable[pytest.Item]) -> None:
    """Give each test the markers of the servers that its fixtures start."""
    for test in tests:
        if isinstance(test, pytest.Function):
            chosen = test.callspec.params if hasattr(test, "callspec") else {}
            named = {*test.fixturenames, *(str(chosen.get(parameter)) for parameter in PARAMETERS)}
            for server in SERVERS:
                if any(name == server or name.endswith(f"_{server}") for name in named):
                    test.add_marker(server)


def most_drawn(config: pytest.Config) -> int | None:
    """How many cases a run draws of a test of many slow ones at most; None leaves it to the test."""
    return 1 if config.option.markexpr == QUICK else None


def name_of(markers: str) -> str:
    """What the header says of a run that takes the tests of some markers."""
    if markers == QUICK:
        return f"quick, which is to say -m '{QUICK}'; make test-all leaves nothing out"
    return f"-m '{markers}'" if markers else "all"


def untested(markers: str) -> list[str]:
    """The servers that such a run leaves out, for its last lines."""
    return [server for server in SERVERS if f"not {server}" in markers]
