"""``partfile status --scan``: what every file below a base is, and what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from command_line import told, told_json
from dead_sinks import crash_when_promised
from life_cycle import seed_with_a_tail

if TYPE_CHECKING:
    from pathlib import Path


def test_a_scan_says_what_every_file_is(tmp_path: Path) -> None:
    """With ``--scan`` the tree is listed: finished, staged, orphans, foreign ones; names are escaped in text alone."""
    crash_when_promised(tmp_path)
    bucket = tmp_path / "bucket=b0"
    known = min(path.name for path in bucket.glob("_part-*"))
    token = known.split(".")[2]
    (bucket / known.replace(token, "f" * 32)).write_text("tail of an attempt that died")
    (bucket / "evil\x1b[2J.csv").write_text("x")
    scan = told_json("status", tmp_path, "--scan", code=1)["scan"]
    assert scan["missing"] == []
    assert scan["kinds"]["orphan"]["examples"] == [f"bucket=b0/{known.replace(token, 'f' * 32)}"]
    assert scan["kinds"]["foreign"]["examples"] == ["bucket=b0/evil\x1b[2J.csv"]
    assert scan["kinds"]["staged"]["files"] >= 2
    text = told("status", tmp_path, "--scan", code=1)
    assert "evil\\x1b[2J.csv" in text
    assert "\x1b" not in text
    assert f"partfile clean {tmp_path}" in text


def test_a_part_that_is_gone_is_missing(tmp_path: Path) -> None:
    """A part that the newest checkpoint names and that is under none of its names is a finding of the scan."""
    seed_with_a_tail(tmp_path)
    gone = next((tmp_path / "bucket=b0").glob("_part-*"))
    gone.unlink()
    (missing,) = told_json("status", tmp_path, "--scan", code=1)["scan"]["missing"]
    assert gone.name.startswith(f"_{missing.rpartition('/')[2]}")


def test_nothing_is_called_an_orphan_for_sure_while_a_checkpoint_cannot_be_read(tmp_path: Path) -> None:
    """Parts that only an unreadable checkpoint names look like orphans; then nobody is sent to clean them away."""
    seed_with_a_tail(tmp_path)
    (tmp_path / "_partfile" / "life" / "chk-2" / "_metadata").write_bytes(b"?")
    scan = told_json("status", tmp_path, "--scan", code=1)["scan"]
    assert scan["kinds"]["orphan"]["files"] == 2
    assert not scan["is_complete"]
    text = told("status", tmp_path, "--scan", code=1)
    assert "may be a part that counts" in text
    assert "partfile clean" not in text
