"""Rollbacks and savepoints of sinks with stages: what goes back, what stays as the file that was promised since."""

from __future__ import annotations

import logging
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from life_cycle import batch
from staged_streams import (
    Stages,
    crashed,
    finished_rows,
    names,
    newest_checkpoint,
    pending_in,
    staged_sink,
    stages_in,
)

from partfile.errors import RecoveryRefused

if TYPE_CHECKING:
    from pathlib import Path


def test_going_back_to_a_checkpoint_that_has_the_stage_open(tmp_path: Path) -> None:
    """Its older length is a prefix; the rows since then come again, once."""
    out = staged_sink(tmp_path, retained_checkpoints=9).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    chosen = newest_checkpoint(tmp_path)
    out.write(batch(4, 4), position=8)
    out.checkpoint()
    out.close()
    options: dict[str, Any] = {"restore_from": chosen, "retained_checkpoints": 9}
    with pytest.raises(RecoveryRefused, match="2 later parts"):
        staged_sink(tmp_path, **options).local().open()
    with staged_sink(tmp_path, accept_newer=True, **options).local() as again:
        assert again.position == 4
        assert finished_rows(tmp_path) == names(0, 4)
        again.write(batch(4, 5))
    assert finished_rows(tmp_path) == names(0, 9)


def test_going_back_takes_a_rolled_stage_along_but_leaves_a_promised_file(tmp_path: Path) -> None:
    """One is encoded at its older length; the file of the other stays, and its later rows come twice."""
    stages = Stages()
    options: dict[str, Any] = {"retained_checkpoints": 9, "open_store": stages.open_store, "bucketer": None}
    out = staged_sink(tmp_path, **options).local().open()
    out.write(batch(0, 2), position=2)
    out.checkpoint()
    chosen = newest_checkpoint(tmp_path)
    out.write(batch(2, 2), position=4)
    stages.are_readable = False
    out._operator.roll_all()
    out.checkpoint()
    out.close()
    copy = shutil.copytree(tmp_path, tmp_path.parent / f"{tmp_path.name}-copy")
    stages.are_readable = True
    back: dict[str, Any] = {**options, "accept_newer": True}
    with staged_sink(copy, **back, restore_from=copy / "_partfile" / "life" / chosen.name).local():
        assert finished_rows(copy) == names(0, 2)
    staged_sink(tmp_path, **options).local().open().close()
    assert finished_rows(tmp_path) == names(0, 4)
    with staged_sink(tmp_path, **back, restore_from=chosen).local() as again:
        assert again.position == 2
        again.write(batch(2, 2), position=4)
    assert finished_rows(tmp_path) == {**names(0, 2), **dict.fromkeys(names(2, 4), 2)}


def test_going_back_does_not_encode_again_what_was_rolled_then_and_is_promised_since(tmp_path: Path) -> None:
    """All its rows were written before the checkpoint, so its file stays, and nothing is left of a second one."""
    stages = Stages()
    options: dict[str, Any] = {"retained_checkpoints": 9, "open_store": stages.open_store}
    out = staged_sink(tmp_path, **options).local().open()
    out.write(batch(0, 4), position=4)
    stages.are_readable = False
    out._operator.roll_all()
    out.checkpoint()
    chosen = newest_checkpoint(tmp_path)
    stages.are_readable = True
    out.write(batch(4, 1), position=5)
    out.checkpoint()
    out.close()
    assert finished_rows(tmp_path) == names(0, 4)
    with staged_sink(tmp_path, **options, restore_from=chosen, accept_newer=True).local() as again:
        assert again.position == 4
        assert pending_in(tmp_path) == []
        again.write(batch(4, 1))
    assert finished_rows(tmp_path) == names(0, 5)


def test_an_encode_since_is_no_later_checkpoint(tmp_path: Path) -> None:
    """A start has encoded what the checkpoint held: naming that checkpoint is no rollback."""
    crashed(tmp_path)
    chosen = newest_checkpoint(tmp_path)
    staged_sink(tmp_path, retained_checkpoints=9).local().open().close()
    assert newest_checkpoint(tmp_path) != chosen
    with staged_sink(tmp_path, restore_from=chosen, retained_checkpoints=9).local() as out:
        assert out.position == 4
        out.write(batch(4, 3))
    assert finished_rows(tmp_path) == names(0, 7)


@pytest.mark.parametrize("is_spent_stage_there", [True, False])
def test_a_savepoint_names_no_stage(tmp_path: Path, *, is_spent_stage_there: bool) -> None:
    """It is taken while spent stages are still there, and restored where they are not."""
    out = staged_sink(tmp_path / "out").local().open()
    out.write(batch(0, 4), position=4)
    location = out.savepoint(tmp_path / "savepoints")
    assert len(stages_in(tmp_path / "out")) == 2
    out.write(batch(4, 2), position=6)
    out.finish()
    assert finished_rows(tmp_path / "out") == names(0, 6)
    if not is_spent_stage_there:
        shutil.rmtree(tmp_path / "out")
    with staged_sink(tmp_path / "fresh", restore_from=location).local() as fresh:
        assert fresh.position == 4
        state = fresh._runtime.coordinator.state
        assert (state.open, state.pending, state.rolled, state.spent) == ({}, (), (), ())
        fresh.write(batch(4, 2))
    assert finished_rows(tmp_path / "fresh") == names(4, 6)


def test_a_damaged_end_is_gone_back_behind_with_stages(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The stages of the chosen checkpoint are encoded at the length that it vouches for."""
    out = staged_sink(tmp_path, retained_checkpoints=9).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    chosen = newest_checkpoint(tmp_path)
    out.write(batch(4, 4), position=8)
    out.checkpoint()
    out.close()
    (newest_checkpoint(tmp_path) / "_metadata").write_bytes(b"damaged")
    with caplog.at_level(logging.CRITICAL, "partfile"):
        again = staged_sink(tmp_path, restore_from=chosen, accept_newer=True, retained_checkpoints=9).local().open()
    assert again.position == 4
    again.close()
    assert finished_rows(tmp_path) == names(0, 4)
