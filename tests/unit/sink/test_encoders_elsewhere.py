"""An encoder that does not see the base: what it misses is not gone, and nobody gives it up."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from life_cycle import batch
from lost_objects import Elsewhere
from staged_streams import finished_rows, names, staged_sink, stages_in

from partfile.errors import PartMissing
from partfile.sink.coordinator import Runtime
from partfile.stores.local.store import LocalStore

if TYPE_CHECKING:
    from pathlib import Path

    from partfile.sink.coordinator import CommitReport


def leave_stages(base: Path) -> None:
    """Four rows in stages whose sink has died."""
    out = staged_sink(base).local().open()
    out.write(batch(0, 4))
    out.checkpoint()
    out.close()


def start_with_encoder_of(other: Path, base: Path) -> CommitReport:
    """A start that accepts missing parts, whose encoder works on another disk."""
    settings = staged_sink(base, accept_missing=True).settings
    runtime = Runtime(settings, "life", encoder=lambda _storage: Elsewhere(LocalStore(str(other)), 1))
    try:
        return runtime.coordinator.start(lambda _position: None, 10**12)
    finally:
        runtime.close()


def test_a_stage_that_only_its_encoder_misses_is_not_given_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The coordinator looks itself: it is tried again by a start whose encoder sees the base, and every row comes."""
    base, other = tmp_path / "out", tmp_path / "other"
    other.mkdir()
    leave_stages(base)
    with caplog.at_level(logging.WARNING, "partfile"):
        report = start_with_encoder_of(other, base)
    assert (report.given_up, report.encoded) == (0, 0)
    assert "missed by who was to encode it, and is there" in caplog.text
    with staged_sink(base).local():
        assert finished_rows(base) == names(0, 4)


@pytest.mark.parametrize("harm", ["gone", "short"])
def test_a_stage_that_the_coordinator_misses_too_is_given_up(tmp_path: Path, harm: str) -> None:
    """By who accepts that; for anybody else it stops the start."""
    leave_stages(tmp_path)
    stage = stages_in(tmp_path)[0]
    if harm == "gone":
        stage.unlink()
    else:
        stage.write_bytes(stage.read_bytes()[:-1])
    with pytest.raises(PartMissing):
        staged_sink(tmp_path).local().open()
    with staged_sink(tmp_path, accept_missing=True).local():
        assert finished_rows(tmp_path) == {"row-0001": 1, "row-0003": 1}
