"""Going back to an older checkpoint: of the own chain alone, and never a row twice in silence (S12, M8)."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
from life_cycle import (
    assert_exactly_once,
    assert_only_grew,
    batch,
    continue_to,
    everything,
    finished_files,
    long_sink,
    rows_of,
)

from partfile.filesystems.errors import RecoveryRefused

if TYPE_CHECKING:
    from pathlib import Path


def newest_checkpoint(base: Path) -> Path:
    return max((base / "_partfile" / "life").glob("chk-*"), key=lambda path: int(path.name[4:]))


@pytest.mark.item("DL-10")
@pytest.mark.parametrize("form", ["", "/_metadata"])
def test_the_newest_checkpoint_is_no_rollback(tmp_path: Path, form: str) -> None:
    """Naming it, by directory or file, is what a start does anyway."""
    out = long_sink(tmp_path / "out").local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    out.close()
    chosen = f"{newest_checkpoint(tmp_path / 'out')}{form}"
    assert continue_to(long_sink(tmp_path / "out", restore_from=chosen), 9) == 4
    assert_exactly_once(tmp_path / "out", 9)


@pytest.mark.item("DL-10")
@pytest.mark.parametrize("is_published", [False, True])
def test_going_back_to_an_older_checkpoint(tmp_path: Path, *, is_published: bool) -> None:
    """Refused while later parts are there; accepted, rows of unpublished parts are cut and come again, once."""
    out = long_sink(tmp_path / "out", retained_checkpoints=5).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    chosen = newest_checkpoint(tmp_path / "out")
    out.write(batch(4, 4), position=8)
    out.checkpoint()
    if is_published:
        out.finish()
    out.close()
    files, held = finished_files(tmp_path / "out"), everything(tmp_path)
    options: dict[str, Any] = {"restore_from": chosen, "retained_checkpoints": 5}
    with pytest.raises(RecoveryRefused, match="2 later parts" if is_published else "none is finished yet"):
        continue_to(long_sink(tmp_path / "out", **options), 9)
    assert everything(tmp_path) == held
    assert continue_to(long_sink(tmp_path / "out", accept_newer=True, **options), 9) == 4
    after = finished_files(tmp_path / "out")
    assert_only_grew(files, after)
    doubled = {f"row-{number:04d}" for number in range(4, 8)} if is_published else set()
    assert rows_of(after) == {row: 2 if row in doubled else 1 for row in (f"row-{n:04d}" for n in range(9))}


@pytest.mark.item("DL-12", "DL-08")
def test_a_checkpoint_that_was_moved_is_refused(tmp_path: Path) -> None:
    """It names staged parts of its base path; the error says to take a savepoint."""
    out = long_sink(tmp_path / "out").local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    out.close()
    moved = shutil.copytree(newest_checkpoint(tmp_path / "out"), tmp_path / "elsewhere" / "chk-7")
    for base in ("fresh", "out"):
        with pytest.raises(RecoveryRefused, match="take a savepoint"):
            continue_to(long_sink(tmp_path / base, restore_from=moved), 9)
    assert finished_files(tmp_path / "fresh") == {}
