"""A directory of a bucket that was renamed: its parts are told where they lie, and nothing takes them away."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.command_line import run, told_json
from support.life_cycle import everything, seed_with_a_tail
from support.recovery import age, broken_invariants

if TYPE_CHECKING:
    from pathlib import Path


def moved(base: Path) -> Path:
    """A dead sink with a bucket that was moved to an archive; returns where its one part lies."""
    seed_with_a_tail(base)
    (base / "archive").mkdir()
    (base / "bucket=b0").rename(base / "archive" / "old_b0")
    age(base)
    (part,) = (base / "archive" / "old_b0").iterdir()
    return part


def test_verify_says_where_a_moved_part_lies(tmp_path: Path) -> None:
    """It is missing with the place to put it back from, and is not called an orphan as well."""
    part = moved(tmp_path)
    findings = told_json("verify", tmp_path, code=1)["findings"]
    (missing,) = [one for one in findings if one["code"] == "part-missing"]
    assert "Moved" in missing["hint"]
    assert "'archive/old_b0'" in missing["hint"]
    assert "'bucket=b0'" in missing["hint"]
    assert [one for one in findings if one["path"] == str(part.relative_to(tmp_path))] == []


def test_clean_refuses_while_a_part_is_missing(tmp_path: Path) -> None:
    """With the shortest ages it takes nothing; put back, the base is whole."""
    part = moved(tmp_path)
    before = everything(tmp_path)
    words = ("clean", tmp_path, "--older-than", "0s", "--idle-for", "0s", "--delete", "--apply")
    result = run(*words)
    assert result.exit_code == 1
    assert "--accept-missing" in result.stderr
    assert everything(tmp_path) == before
    part.parent.rename(tmp_path / "bucket=b0")
    assert broken_invariants(tmp_path) == []
    assert run(*words).exit_code == 0
