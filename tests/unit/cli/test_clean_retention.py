"""``partfile clean --retain`` night after night: what it makes itself takes no checkpoint's place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from changing import age
from command_line import told, told_json
from life_cycle import assert_exactly_once, batch, continue_to, finished_files, long_sink, rows_of

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 6


def stopped(base: Path) -> list[int]:
    """A sink that completed a checkpoint for each row and was stopped; the ids of its links with state."""
    out = long_sink(base, retained_checkpoints=9).local().open()
    for number in range(ROWS):
        out.write(batch(number, 1), position=number + 1)
        out.checkpoint()
    out.finish()
    age(base)
    return held(base)


def held(base: Path) -> list[int]:
    links = told_json("checkpoints", base)["chains"][0]["links"]
    return [link["checkpoint_id"] for link in links if link["kind"] != "tombstone"]


def test_night_after_night_the_points_to_go_back_to_stay(tmp_path: Path) -> None:
    """Each state counts once, however many fences repeat it, and what one run leaves is no work for the next."""
    base = tmp_path / "out"
    ids = stopped(base)
    told("clean", base, "--retain", "3", "--apply")
    kept = held(base)
    assert kept[:3] == ids[-3:]
    for _ in range(4):
        age(base)
        assert "nothing to clean" in told("clean", base, "--retain", "3", "--apply")
        assert held(base) == kept
        # What makes the command take the sink over, and so leave a fence.
        temporary = base / "_partfile" / "life" / f"_tmp.{'0' * 32}"
        temporary.write_bytes(b"")
        age(base)
        told("clean", base, "--retain", "3", "--apply")
        assert held(base)[: len(kept)] == kept
        kept = held(base)
    told("recover", base, "--restore-from", base / f"_partfile/life/chk-{ids[-3]}", "--accept-newer", "--apply")
    assert continue_to(long_sink(base), ROWS) == ROWS - 1
    assert rows_of(finished_files(base)).total() >= ROWS


def test_a_start_is_the_point_before_it(tmp_path: Path) -> None:
    """Starting adds no point of its own, and once rows come the old ones go as ever."""
    base = tmp_path / "out"
    ids = stopped(base)
    for _ in range(3):
        long_sink(base, retained_checkpoints=99).local().open().close()
        age(base)
    told("clean", base, "--retain", "2", "--apply")
    assert held(base)[:2] == ids[-2:]
    assert continue_to(long_sink(base, retained_checkpoints=99), ROWS + 1) == ROWS
    age(base)
    told("clean", base, "--retain", "2", "--apply")
    assert held(base)[0] == ids[-1]
    assert_exactly_once(base, ROWS + 1)
