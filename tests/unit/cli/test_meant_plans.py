"""A plan that was meant is done, or nothing is: also where there is nothing to do, and on a copy (H8)."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from changing import age, seed_with_orphans
from command_line import run, told, told_json
from life_cycle import everything, seed_with_a_tail

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("verb", ["recover", "clean"])
def test_a_plan_is_refused_where_nothing_is_to_do(tmp_path: Path, verb: str) -> None:
    """Neither a digest that was never printed nor one that was done before ends as if it had been done now."""
    base = tmp_path / "out"
    seed_with_orphans(base)
    age(base)
    digest = told_json(verb, base, code=1)["digest"]
    told(verb, base, "--plan", digest, "--apply")
    for meant in (digest, "deadbeefdeadbeef"):
        result = run(verb, base, "--plan", meant, "--apply")
        assert result.exit_code == 1
        assert "nothing to do" in result.stderr
    assert told(verb, base, "--apply").startswith("nothing to")


def test_the_plan_of_a_base_is_not_that_of_its_copy(tmp_path: Path) -> None:
    """A digest names the base, so one that was printed for another place changes nothing here."""
    seed_with_a_tail(tmp_path / "out")
    shutil.copytree(tmp_path / "out", tmp_path / "copy")
    age(tmp_path)
    digest = told_json("recover", tmp_path / "out", code=1)["digest"]
    before = everything(tmp_path / "copy")
    assert run("recover", tmp_path / "copy", "--plan", digest, "--apply").exit_code == 1
    assert everything(tmp_path / "copy") == before
    told("recover", tmp_path / "out", "--plan", digest, "--apply")
