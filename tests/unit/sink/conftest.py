"""A Spark driver between two batches, for the tests of its timer and of what is asked of it meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from idle_driver import RUN, IdleDriver

from partfile.sink.spark import stream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def active(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the query runs: the last one counts."""
    answers = [True]
    monkeypatch.setattr(stream, "is_active", lambda _session, run: run == RUN and answers[-1])
    return answers


@pytest.fixture
def job(tmp_path: Path, active: list[bool]) -> Iterator[IdleDriver]:
    """Just after its batch."""
    assert active[-1]
    job = IdleDriver(tmp_path)
    yield job
    job.stream.release()
    job.stream._mutex.release()
