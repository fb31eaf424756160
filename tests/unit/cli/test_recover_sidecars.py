"""``partfile recover --cut valid-length``: nothing is cut, and that is said before and after."""

from __future__ import annotations

from typing import TYPE_CHECKING

from changing import age
from command_line import told
from life_cycle import seed_with_a_tail

if TYPE_CHECKING:
    from pathlib import Path

VALID_LENGTH = ("--cut", "valid-length")


def sizes(base: Path, pattern: str) -> list[int]:
    return sorted(path.stat().st_size for path in base.rglob(pattern))


def seeded(tmp_path: Path) -> Path:
    """Two open parts with tails beyond their valid lengths, of a sink that died two days ago."""
    base = tmp_path / "out"
    seed_with_a_tail(base)
    age(base)
    return base


def test_a_cut_by_a_sidecar_is_not_called_a_cut(tmp_path: Path) -> None:
    """The plan and the end say that a plain reader goes on past the valid lengths, which is what it does."""
    base = seeded(tmp_path)
    planned = told("recover", base, *VALID_LENGTH, code=1)
    assert "cut to" not in planned
    assert planned.count("only readers of sidecars stop there") == 2
    before = sizes(base, "*.in-progress")
    assert "2 of them have sidecars, where they are longer" in told("recover", base, *VALID_LENGTH, "--apply")
    assert sizes(base, "part-*") == before
    assert len(list(base.rglob("_part-*.valid-length"))) == 2


def test_savepoint_create_says_the_same(tmp_path: Path) -> None:
    """It recovers first, so it publishes by sidecars too."""
    base = seeded(tmp_path)
    said = told("savepoint", "create", base, "--to", tmp_path / "kept", *VALID_LENGTH, "--apply")
    assert said.count("only readers of sidecars stop there") == 2
    assert "2 of them have sidecars, where they are longer" in said


def test_other_cuts_are_called_cuts(tmp_path: Path) -> None:
    """Where the tail goes nothing is said of sidecars, and none is left."""
    base = seeded(tmp_path)
    said = told("recover", base, "--apply")
    assert said.count("cut to") == 2
    assert "sidecar" not in said
    assert not list(base.rglob("*.valid-length"))
