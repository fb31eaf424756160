"""A start that is refused says why in the words of its options, and leaves nothing behind."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from life_cycle import batch, continue_to, long_sink

from partfile.errors import ConfigError, NotFound, PartfileError, RecoveryRefused, SnapshotCorrupt, StoreError


@pytest.fixture
def savepoint(tmp_path: Path) -> Path:
    """A savepoint of a sink that wrote some rows."""
    out = long_sink(tmp_path / "old").local().open()
    out.write(batch(0, 4), position=4)
    return Path(out.stop_with_savepoint(tmp_path / "savepoints"))


def refusal(tmp_path: Path, location: object, kind: type[PartfileError], **options: Any) -> str:
    """Refuse a start on a fresh base; nothing is made there, nor anywhere else. Returns the message."""
    held = sorted(tmp_path.rglob("*"))
    with pytest.raises(kind) as raised:
        long_sink(tmp_path / "a" / "fresh", restore_from=location, **options).local().open()
    assert sorted(tmp_path.rglob("*")) == held
    return str(raised.value)


@pytest.mark.item("SP-14", "DL-08")
@pytest.mark.parametrize("what", ["metadata", "huge metadata", "state", "missing state"])
def test_damage_of_a_savepoint_is_told_with_option_and_path(tmp_path: Path, what: str) -> None:
    """The whole path of the file, and what the user passed."""
    out = long_sink(tmp_path / "old").local().open()
    out.write(batch(0, 4), position="4" * 30_000)
    savepoint = Path(out.stop_with_savepoint(tmp_path / "savepoints"))
    (state,) = savepoint.glob("*.state")
    damaged = savepoint / "_metadata" if "metadata" in what else state
    if what == "missing state":
        damaged.unlink()
    elif what == "huge metadata":
        with damaged.open("ab") as file:
            file.truncate(1 << 30)
    else:
        damaged.write_bytes(damaged.read_bytes()[:-9])
    message = refusal(tmp_path, savepoint, SnapshotCorrupt)
    assert f"restore_from={str(savepoint)!r}" in message
    assert str(damaged) in message


@pytest.mark.item("SP-14", "DL-10")
@pytest.mark.parametrize("what", ["link", "file", "file/_metadata", "file/below", "linked metadata", "directory below"])
def test_something_else_than_a_directory_is_told_with_the_option(tmp_path: Path, savepoint: Path, what: str) -> None:
    """What it must be, and no word of a base, which is another option."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(savepoint, target_is_directory=True)
    (tmp_path / "linked metadata").mkdir()
    (tmp_path / "linked metadata" / "_metadata").symlink_to(savepoint / "_metadata")
    (tmp_path / "directory below" / "_metadata").mkdir(parents=True)
    message = refusal(tmp_path, tmp_path / what, PartfileError)
    assert f"restore_from={str(tmp_path / what)!r}" in message
    assert "must be the directory of a savepoint or of a retained checkpoint" in message
    assert "base" not in message.replace(str(tmp_path), "")


@pytest.mark.item("SP-14", "DL-10")
@pytest.mark.parametrize("name", ["savepoints/none", "no/such/savepoint"])
def test_what_is_missing_is_told_with_the_option(tmp_path: Path, savepoint: Path, name: str) -> None:
    """Also where the directory above is missing, which is no base either."""
    message = refusal(tmp_path, savepoint.parents[1] / name, NotFound)
    assert f"restore_from={str(tmp_path / name)!r} is not there" in message
    assert "base" not in message.replace(str(tmp_path), "")


@pytest.mark.item("SP-14")
def test_no_store_for_the_location(tmp_path: Path) -> None:
    """The scheme is named, and the option."""
    message = refusal(tmp_path, "gopher://hole/savepoint", ConfigError)
    assert "restore_from='gopher://hole/savepoint'" in message
    assert "'gopher'" in message


@pytest.mark.item("SP-14")
def test_every_refusal_leaves_nothing_behind(tmp_path: Path, savepoint: Path) -> None:
    """Another writer's savepoint, a checkpoint from elsewhere, a directory of checkpoints outside: nothing is made."""
    (tmp_path / "elsewhere").mkdir()
    moved = shutil.copytree(tmp_path / "old" / "_partfile" / "life" / "chk-2", tmp_path / "elsewhere" / "chk-2")
    refusal(tmp_path, moved, RecoveryRefused)
    refusal(tmp_path, moved, RecoveryRefused, checkpoint_dir=tmp_path / "checkpoints" / "here")
    held = sorted(tmp_path.rglob("*"))
    with pytest.raises(RecoveryRefused):
        long_sink(tmp_path / "fresh", restore_from=savepoint).local(subtask_index=1).open()
    with pytest.raises(StoreError):
        long_sink(tmp_path / "fresh", restore_from=tmp_path / "no" / "such").local().open()
    out = long_sink(tmp_path / "fresh").local()
    out.close()
    assert sorted(tmp_path.rglob("*")) == held


def test_a_refusal_by_what_is_there_changes_nothing(tmp_path: Path) -> None:
    """A chain that is damaged, or another's: no file, no directory comes or goes."""
    continue_to(long_sink(tmp_path / "out"), 4)
    newest = tmp_path / "out" / "_partfile" / "life" / "chk-2" / "_metadata"
    newest.write_bytes(b"")
    held = sorted(tmp_path.rglob("*"))
    with pytest.raises(SnapshotCorrupt):
        long_sink(tmp_path / "out").local().open()
    with pytest.raises(PartfileError):
        long_sink(tmp_path / "out", uid="other", restore_from=newest.parent).local().open()
    assert sorted(tmp_path.rglob("*")) == held
