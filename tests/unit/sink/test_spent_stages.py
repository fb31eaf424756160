"""Stages that have become files: what they hold after a clean end, what they are good for, and what lets go of them."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

import pytest
from command_line import told, told_json
from dead_sinks import Dying
from life_cycle import batch, finished_files, in_child
from shared_streams import BUCKETS, continue_sharing, counted, rows_in, shared_in, sharing_sink
from staged_streams import finished_rows, names, staged_sink, stages_in

from partfile.errors import RecoveryRefused

if TYPE_CHECKING:
    from pathlib import Path


def ended(base: Path, **options: Any) -> None:
    """A sink that wrote four rows in two checkpoints and ended cleanly."""
    with staged_sink(base, **options).local() as out:
        out.write(batch(0, 2), position=2)
        out.checkpoint()
        out.write(batch(2, 2), position=4)
    assert finished_rows(base) == names(0, 4)


def test_a_clean_end_without_an_older_checkpoint_holds_nothing(tmp_path: Path) -> None:
    """Whoever retains one checkpoint has the room at once."""
    ended(tmp_path, retained_checkpoints=1)
    assert stages_in(tmp_path) == []


def test_a_start_lets_go_of_what_a_clean_end_holds(tmp_path: Path) -> None:
    """By default one is enough, whether rows come or not; status said until then how much it was."""
    ended(tmp_path)
    held = sum(path.stat().st_size for path in stages_in(tmp_path))
    assert held > 0
    (sink,) = told_json("status", tmp_path)["sinks"]
    assert (sink["parts"]["spent-stage"]["count"], sink["parts"]["spent-stage"]["bytes"]) == (2, held)
    text = told("status", tmp_path)
    assert re.search(r"spent-stage +2 stages, .* held for older checkpoints\n", text), text
    files = finished_files(tmp_path)
    staged_sink(tmp_path).local().open().close()
    assert stages_in(tmp_path) == []
    assert finished_files(tmp_path) == files


@pytest.mark.parametrize("retained", [3, 5])
def test_who_retains_more_lets_go_later(tmp_path: Path, retained: int) -> None:
    """When the next run has completed one checkpoint less than so many, at the latest."""
    ended(tmp_path, retained_checkpoints=retained)
    held = stages_in(tmp_path)
    with staged_sink(tmp_path, retained_checkpoints=retained).local() as out:
        assert stages_in(tmp_path) == held
        for _ in range(retained - 1):
            out.checkpoint()
        assert stages_in(tmp_path) == []


def test_a_shared_stage_is_let_go_of_likewise(tmp_path: Path) -> None:
    """One stage stands behind a file in each bucket."""
    continue_sharing(sharing_sink(tmp_path), 2 * BUCKETS)
    assert len(shared_in(tmp_path)) == 1
    sharing_sink(tmp_path).local().open().close()
    assert shared_in(tmp_path) == []
    assert rows_in(tmp_path) == counted(0, 2 * BUCKETS)


@pytest.mark.parametrize("is_there", [True, False])
def test_what_it_is_good_for(tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_there: bool) -> None:
    """The newest checkpoint is damaged before it publishes: the one before it has its rows in the stage, or nowhere."""
    assert in_child(lambda: end_and_die(tmp_path)) == 0
    assert finished_files(tmp_path) == {}
    assert len(stages_in(tmp_path)) == 2
    links = sorted(tmp_path.glob("_partfile/life/chk-*/_metadata"), key=lambda path: int(path.parent.name[4:]))
    links[-1].write_bytes(b"damaged")
    if not is_there:
        for path in stages_in(tmp_path):
            path.unlink()
    back = staged_sink(tmp_path, restore_from=links[-2].parent, accept_newer=True).local()
    with caplog.at_level(logging.CRITICAL, "partfile"):
        if not is_there:
            with pytest.raises(RecoveryRefused, match="under none of their names"):
                back.open()
            return
        back.open()
    assert back.position == 4
    back.close()
    assert finished_rows(tmp_path) == names(0, 4)


def end_and_die(base: Path) -> None:
    """A clean end dies once its checkpoint is complete, before it publishes."""
    out = staged_sink(base).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    out._runtime.coordinator._publisher = Dying()  # type: ignore[assignment]
    out.finish()
