"""``partfile recover`` where parts are gone: nothing is given up but what the plan said, and nothing silently."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from changing import age
from command_line import run, told, told_json
from life_cycle import (
    continue_to,
    everything,
    finished_files,
    long_sink,
    rows_of,
    seed_with_a_tail,
)

import partfile.recovery.recover as recovering

if TYPE_CHECKING:
    from pathlib import Path

    from partfile.stores.base import PartHandle, Store


def seeded(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A base whose sink died two days ago, and its two open parts."""
    base = tmp_path / "out"
    seed_with_a_tail(base)
    age(base)
    first, second = sorted(base.rglob("*.in-progress"))
    return base, first, second


def test_a_missing_part_is_told_and_given_up_on_demand(tmp_path: Path) -> None:
    """Refused before anything is changed, with the part's name; --accept-missing publishes the others and ends in 1."""
    base, gone, _ = seeded(tmp_path)
    gone.unlink()
    assert "IS UNDER NONE OF ITS NAMES" in told("recover", base, code=1)
    before = everything(base)
    failed = run("recover", base, "--apply")
    assert failed.exit_code == 1
    assert "1 of 2 parts" in failed.stderr
    assert "--accept-missing" in failed.stdout
    assert everything(base) == before, "the sink was taken over"
    said = told("recover", base, "--apply", "--accept-missing", code=1)
    assert "1 parts published, 1 GIVEN UP" in said
    assert sum(rows_of(finished_files(base)).values()) == 2
    assert "nothing to recover" in told("recover", base)
    assert continue_to(long_sink(base), 6) == 4


def test_what_is_given_up_is_no_part_published(tmp_path: Path) -> None:
    """The document counts them apart."""
    base, *parts = seeded(tmp_path)
    for part in parts:
        part.unlink()
    (done,) = told_json("recover", base, "--apply", "--accept-missing", code=1)["recovered"]
    assert (done["published"], done["owed"], done["given_up"]) == (0, 0, 2)


@pytest.mark.fault("H8")
def test_a_part_that_goes_after_the_plan_is_not_given_up(tmp_path: Path) -> None:
    """H8: what the plan gives up is part of it. One more that is gone is another plan, and nothing is changed."""
    base, gone, blinking = seeded(tmp_path)
    gone.unlink()
    digest = told_json("recover", base, "--accept-missing", code=1)["digest"]
    before = everything(base)
    away = blinking.rename(tmp_path / "away")
    refused = run("recover", base, "--accept-missing", "--apply", "--plan", digest)
    assert refused.exit_code == 1
    assert digest in refused.stderr
    away.rename(blinking)
    assert everything(base) == before
    told("recover", base, "--accept-missing", "--apply", "--plan", digest, code=1)
    assert sum(rows_of(finished_files(base)).values()) == 2


@pytest.mark.parametrize("at_look", [3, 4])
def test_a_part_that_goes_while_the_plan_is_done_is_not_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_look: int
) -> None:
    """Gone before the second look or right after it: the plan is refused, or the part is still owed."""
    base, gone, blinking = seeded(tmp_path)
    gone.unlink()
    look, looks = recovering._found, []

    def found(store: Store, part: PartHandle) -> str:
        looks.append(part)
        seen = look(store, part) if len(looks) != at_look else "staged"
        if len(looks) == at_look:
            blinking.rename(tmp_path / "away")
            assert (part.in_progress == blinking.name) == (at_look == 4)
        return look(store, part) if at_look == 3 else seen

    monkeypatch.setattr(recovering, "_found", found)
    monkeypatch.setattr(recovering, "for_each", lambda work, items, *_: [work(item) for item in items])
    assert run("recover", base, "--accept-missing", "--apply").exit_code == 1
    assert len(looks) == 4
    monkeypatch.undo()
    (tmp_path / "away").rename(blinking)
    told("recover", base, "--accept-missing", "--apply", "--fence", code=1)
    assert sum(rows_of(finished_files(base)).values()) == 2


def test_a_part_that_is_too_short_is_given_up_on_demand(tmp_path: Path) -> None:
    """It is told in the plan, refused before anything is changed, and counts as one that is gone."""
    base, short, _ = seeded(tmp_path)
    os.truncate(short, 3)
    said = told("recover", base, code=1)
    assert "IS SHORTER THAN THAT" in said
    assert "--apply is refused" in said
    before = everything(base)
    refused = run("recover", base, "--apply")
    assert (refused.exit_code, "1 of 2 parts" in refused.stderr) == (1, True)
    assert everything(base) == before, "the sink was taken over"
    (done,) = told_json("recover", base, "--apply", "--accept-missing", code=1)["recovered"]
    assert (done["published"], done["given_up"]) == (1, 1)
