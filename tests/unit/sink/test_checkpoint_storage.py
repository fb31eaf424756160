"""A sink's checkpoint storage is the one that the snapshot core selects and opens for its options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from life_cycle import assert_exactly_once, batch, long_sink, make_sink, run_to_the_end

import partfile as pf
from partfile.errors import ConfigError
from partfile.snapshot.storage import DriverMemoryStorageSettings, FileSystemStorageSettings

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.item("ST-01", "ST-11", "DL-09")
def test_a_sink_stores_its_checkpoints_on_a_file_system(tmp_path: Path) -> None:
    """With or without a checkpoint directory they are files, below a directory for each writer."""
    base, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    hidden = FileSystemStorageSettings(url=f"{base}/_partfile")
    assert make_sink(base).settings.checkpoints == hidden
    chosen = make_sink(base, checkpoint_dir=elsewhere, inline_threshold_bytes=7).settings.checkpoints
    assert chosen == FileSystemStorageSettings(url=str(elsewhere), inline_threshold_bytes=7)
    for subtask in range(2):
        with make_sink(base, checkpoint_dir=elsewhere).local(subtask_index=subtask) as out:
            out.write(batch(0, 1))
    assert sorted(path.name for path in elsewhere.iterdir()) == ["life", "life~1"]


@pytest.mark.item("ST-08", "ST-09", "ST-10")
def test_state_above_the_inline_threshold_lies_in_a_file(tmp_path: Path) -> None:
    """The option reaches the streams of the checkpoints; a run with another threshold reads what the last one left."""
    for threshold, has_files in ((0, True), (1 << 20, False)):
        base = tmp_path / str(threshold)
        out = long_sink(base, inline_threshold_bytes=threshold).local().open()
        out.write(batch(0, 4), position=4)
        out.checkpoint()
        assert bool(list((base / "_partfile" / "life").glob("chk-*/*.state"))) is has_files
        out.close()
        run_to_the_end(make_sink(base, inline_threshold_bytes=(1 << 20) - threshold))
        assert_exactly_once(base)


@pytest.mark.item("ST-09")
@pytest.mark.parametrize("size", [-1, (1 << 20) + 1])
def test_a_threshold_that_metadata_cannot_bear_is_refused(tmp_path: Path, size: int) -> None:
    """The error names option and value, when the sink is made."""
    with pytest.raises(ConfigError, match=f"inline_threshold_bytes={size}"):
        make_sink(tmp_path, inline_threshold_bytes=size)


@pytest.mark.item("ST-13")
def test_a_sink_refuses_checkpoints_in_memory(tmp_path: Path) -> None:
    """They would be lost with the driver: a restart could not tell which staged parts count."""
    memory: Any = DriverMemoryStorageSettings()
    with pytest.raises(ConfigError, match=r"checkpoint_dir.*lost with the driver"):
        pf.FileSink(tmp_path / "out", uid="job", checkpoint_dir=memory)
    assert not (tmp_path / "out").exists()
