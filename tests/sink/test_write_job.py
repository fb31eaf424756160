"""Answers of Spark's tasks: acknowledged at once, and taken from the same version alone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import Row

from partfile.errors import PartfileError
from partfile.sink.spark.write_job import acknowledge_at_once, read_acknowledgement
from partfile.snapshot.documents import SubtaskState
from partfile.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator


# What is done once a task in a Python worker of Spark's.

needs_linux = pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="Linux alone puts it into our hands")


@pytest.fixture(params=[("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)])
def connected(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    """The worker's end of a connection to the JVM beside it."""
    host, family = request.param
    try:
        server = socket.create_server((host, 0), family=family)
    except OSError as error:
        pytest.skip(f"no server on {host}: {error}")
    with (
        closing(server) as listening,
        closing(socket.create_connection(listening.getsockname()[:2])),
        closing(listening.accept()[0]) as worker,
    ):
        yield worker


def acknowledges_at_once(connection: socket.socket) -> bool:
    """What the kernel says of it."""
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) == 1


def descriptors() -> set[str]:
    """The numbers of this process's open descriptors."""
    return {path.name for path in Path("/proc/self/fd").iterdir()}


@needs_linux
def test_the_connection_to_the_jvm_acknowledges_at_once(connected: socket.socket) -> None:
    """And stays as it is otherwise: open, and the only descriptor of it."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
    assert not acknowledges_at_once(connected)
    before = descriptors()
    acknowledge_at_once()
    assert acknowledges_at_once(connected)
    # What other tests have left open may be collected meanwhile.
    assert descriptors() <= before


@needs_linux
@pytest.mark.parametrize("default_s", [None, 600.0])
def test_the_connection_blocks_as_before(connected: socket.socket, default_s: float | None) -> None:
    """Spark reads it without a timeout, whatever timeout other code wants for the sockets that it will make."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(default_s)
    try:
        acknowledge_at_once()
    finally:
        socket.setdefaulttimeout(before)
    assert os.get_blocking(connected.fileno())


@needs_linux
def test_what_leads_to_no_process_is_left_alone() -> None:
    """Sockets that listen, are of another kind or not connected end nothing."""
    left, right = socket.socketpair()
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    listening = socket.create_server(("127.0.0.1", 0))
    with closing(left), closing(right), closing(datagrams), closing(socket.socket()), closing(listening):
        acknowledge_at_once()


def test_elsewhere_than_on_linux_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """There neither the option nor the directory exists."""

    def refuse(_path: Path) -> Iterator[Path]:
        raise AssertionError("looked for descriptors")

    monkeypatch.delattr(socket, "TCP_QUICKACK", raising=False)
    monkeypatch.setattr(Path, "iterdir", refuse)
    acknowledge_at_once()


def test_imports_are_spared_from_collection_whenever_they_are_made() -> None:
    """The first task's imports come after the first look; what tasks keep alive besides stays collectable."""
    code = """
import gc, sys
from types import ModuleType
from partfile.sink.spark.write_job import spare_modules_from_collection as spare

spare()
first = gc.get_freeze_count()
assert first > 10_000, first
kept = [[] for _ in range(20_000)]
spare()
assert gc.get_freeze_count() <= first, "what tasks keep"
sys.modules["imported"] = ModuleType("imported")
spare()
assert gc.get_freeze_count() >= first + 20_000, "what a task has imported"
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# Driver and executors run the same partfile.


def answer_of(version: str) -> Row:
    """What a task of a version answers."""
    state = SubtaskState(subtask=0, handle=None).model_dump_json().encode()
    return Row(submission="one", version=version, rows=1, bytes=9, state=bytearray(state), keys=None)


@pytest.mark.fault("D17")
def test_an_executor_with_another_version_is_refused() -> None:
    """Its answer is not taken, and the error names both versions and what to do; the same version is."""
    with pytest.raises(PartfileError, match=r"has partfile 0\.0\.0-other, the driver") as raised:
        read_acknowledgement(answer_of("0.0.0-other"))
    assert "same version" in raised.value.hint
    assert read_acknowledgement(answer_of(__version__)).rows == 1
