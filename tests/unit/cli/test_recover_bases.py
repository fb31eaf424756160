"""``partfile recover`` where checkpoints and base do not go together, or there is nothing to go back (M7)."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from changing import age
from command_line import run, told, told_json
from life_cycle import (
    assert_exactly_once,
    batch,
    continue_to,
    everything,
    finished_files,
    long_sink,
    rows_of,
    seed_with_a_tail,
    stopped_with_savepoint,
)

from partfile.errors import RecoveryRefused

if TYPE_CHECKING:
    from pathlib import Path


def seeded(tmp_path: Path) -> tuple[Path, Path]:
    """A sink that died two days ago, with its checkpoints beside its base."""
    base, checkpoints = tmp_path / "out", tmp_path / "checkpoints"
    seed_with_a_tail(base, checkpoint_dir=str(checkpoints))
    age(tmp_path)
    return base, checkpoints


@pytest.mark.fault("M7")
@pytest.mark.parametrize("words", [(), ("--accept-missing",), ("--apply", "--fence"), ("--apply", "--accept-missing")])
def test_checkpoints_of_another_base_are_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    """M7: a mistyped PATH takes nothing over and gives nothing up; the right one recovers every row."""
    base, checkpoints = seeded(tmp_path)
    (tmp_path / "typo").mkdir()
    before = everything(tmp_path)
    refused = run("recover", tmp_path / "typo", "--checkpoint-dir", checkpoints, *words)
    assert refused.exit_code == 1
    assert str(base) in refused.stderr
    assert "--moved-from" in refused.stderr
    assert everything(tmp_path) == before
    told("recover", base, "--checkpoint-dir", checkpoints, "--apply")
    assert sum(rows_of(finished_files(base)).values()) == 4


@pytest.mark.fault("M7")
def test_checkpoints_below_their_base_are_of_no_other(tmp_path: Path) -> None:
    """M7: in the usual layout too, every verb and the sink refuse, and not a file changes."""
    base, typo = tmp_path / "out", tmp_path / "typo"
    seed_with_a_tail(base)
    temporary = base / "_partfile" / "life" / f"_tmp.{'0' * 32}"
    temporary.write_bytes(b"")
    age(tmp_path)
    age(temporary.parent)
    typo.mkdir()
    before = everything(tmp_path)
    checkpoints = base / "_partfile"
    words = ("--checkpoint-dir", checkpoints, "--apply", "--fence")
    for verb in (
        ("recover", typo, *words, "--accept-missing"),
        ("clean", typo, *words),
        ("clean", typo, *words[:2]),
        ("savepoint", "create", typo, *words, "--to", tmp_path / "savepoints", "--accept-missing"),
    ):
        refused = run(*verb)
        assert refused.exit_code == 1, verb
        assert "are of a base that they lie below" in refused.stderr
        assert "--moved-from" in refused.stderr
        assert everything(tmp_path) == before
    with pytest.raises(RecoveryRefused, match="are of a base that they lie below"):
        long_sink(typo, checkpoint_dir=str(checkpoints), accept_missing=True).local().open()
    assert everything(tmp_path) == before
    assert continue_to(long_sink(base), 9) == 4
    assert_exactly_once(base, 9)


@pytest.mark.fault("M7")
def test_checkpoints_taken_away_from_their_base_go_on_by_its_owners_word(tmp_path: Path) -> None:
    """moved_from lets checkpoints that were moved out of their base go on, once and for all."""
    base, checkpoints = tmp_path / "out", tmp_path / "checkpoints"
    seed_with_a_tail(base)
    age(tmp_path)
    (base / "_partfile").rename(checkpoints)
    there = (base, "--checkpoint-dir", checkpoints)
    assert run("recover", *there).exit_code == 1
    told("recover", *there, "--moved-from", base, "--apply")
    assert "nothing to recover" in told("recover", *there)
    assert continue_to(long_sink(base, checkpoint_dir=str(checkpoints)), 9) == 4
    assert_exactly_once(base, 9)


@pytest.mark.fault("M7")
def test_a_stopped_sink_notes_its_base_by_its_owners_word(tmp_path: Path) -> None:
    """Where nothing is left to publish, recover with moved_from still has that to do: to note the base."""
    base, checkpoints = tmp_path / "out", tmp_path / "checkpoints"
    continue_to(long_sink(base), 4)
    age(tmp_path)
    (base / "_partfile").rename(checkpoints)
    there = (base, "--checkpoint-dir", checkpoints)
    told("recover", *there, "--moved-from", base, "--apply")
    assert "nothing to recover" in told("recover", *there)


@pytest.mark.fault("M7")
def test_a_base_is_what_its_link_meant_when_it_was_begun(tmp_path: Path) -> None:
    """H2: a link on the way to the base that leads elsewhere by then makes it another one; the real one goes on."""
    link, checkpoints = tmp_path / "link", tmp_path / "checkpoints"
    real, other = tmp_path / "real", tmp_path / "other"
    real.mkdir()
    other.mkdir()
    link.symlink_to(real)
    seed_with_a_tail(link, checkpoint_dir=str(checkpoints))
    age(tmp_path)
    link.unlink()
    link.symlink_to(other)
    refused = run("recover", link, "--checkpoint-dir", checkpoints, "--apply", "--accept-missing")
    assert refused.exit_code == 1
    assert str(real) in refused.stderr
    told("recover", real, "--checkpoint-dir", checkpoints, "--apply")
    assert sum(rows_of(finished_files(real)).values()) == 4


@pytest.mark.fault("M7")
def test_a_sink_refuses_checkpoints_of_another_base(tmp_path: Path) -> None:
    """M7: so does the sink itself, and one whose checkpoints were copied below another base."""
    base, checkpoints = seeded(tmp_path)
    with pytest.raises(RecoveryRefused, match="are of the base"):
        long_sink(tmp_path / "typo", checkpoint_dir=str(checkpoints)).local().open()
    shutil.copytree(checkpoints / "life", tmp_path / "other" / "_partfile" / "life")
    with pytest.raises(RecoveryRefused, match="are of the base"):
        long_sink(tmp_path / "other").local().open()
    assert continue_to(long_sink(base, checkpoint_dir=str(checkpoints)), 9) == 4
    assert_exactly_once(base, 9)


def test_a_base_may_be_written_in_any_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path, a URL, a link to it: all are the same base."""
    base, checkpoints = seeded(tmp_path)
    (tmp_path / "link").symlink_to(base)
    monkeypatch.chdir(tmp_path)
    for path in ("out", f"file://{base}", tmp_path / "link", "./out/"):
        assert "cut to" in told("recover", path, "--checkpoint-dir", checkpoints, code=1)


def test_a_base_that_was_moved_is_said_to_be(tmp_path: Path) -> None:
    """moved_from with the base of before lets it go on, once and for all; another one does not."""
    base, checkpoints = seeded(tmp_path)
    moved = base.rename(tmp_path / "moved")
    there = (moved, "--checkpoint-dir", checkpoints)
    assert run("recover", *there, "--moved-from", tmp_path / "else").exit_code == 1
    plan = told_json("recover", *there, "--moved-from", base, code=1)["plan"]
    assert plan["jobs"][0]["moves_from"] == str(base)
    told("recover", *there, "--moved-from", base, "--apply")
    assert "nothing to recover" in told("recover", *there)
    assert "nothing to recover" in told("recover", *there, "--moved-from", base)
    assert continue_to(long_sink(moved, checkpoint_dir=str(checkpoints)), 9) == 4
    assert_exactly_once(moved, 9)


def test_checkpoints_that_move_with_their_base_go_on(tmp_path: Path) -> None:
    """What lies below the base is no tie to where that is."""
    seed_with_a_tail(tmp_path / "out")
    moved = (tmp_path / "out").rename(tmp_path / "moved")
    assert continue_to(long_sink(moved), 9) == 4
    assert_exactly_once(moved, 9)


@pytest.mark.parametrize("words", [(), ("--uid", "fresh")])
def test_nothing_to_go_back_is_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    """A savepoint is not left out silently where there is no sink: whoever starts it restores it."""
    location = stopped_with_savepoint(tmp_path)
    (tmp_path / "empty").mkdir()
    refused = run("recover", tmp_path / "empty", "--restore-from", location, *words)
    assert refused.exit_code == 1
    assert "begins with a savepoint by itself" in refused.stderr


def test_a_sink_that_stands_at_the_savepoint_does_not_go_back(tmp_path: Path) -> None:
    """There is nothing to do where restoring would only note where the sink came from."""
    location = stopped_with_savepoint(tmp_path)
    assert "nothing to recover" in told("recover", tmp_path / "out", "--restore-from", location)


@pytest.mark.parametrize("uid", [(), ("--uid", "life")])
def test_looking_with_the_checkpoints_of_another_base(tmp_path: Path, uid: tuple[str, ...]) -> None:
    """Verify and status say that they are of another one; no part of that one is missed here."""
    for name in ("x", "y"):
        with long_sink(tmp_path / name, checkpoint_dir=str(tmp_path / f"state-{name}")).local() as out:
            out.write(batch(0, 4), position=4)
    words: list[str | Path] = [tmp_path / "x", "--checkpoint-dir", tmp_path / "state-y", *uid]
    codes = [one["code"] for one in told_json("verify", *words, code=1)["findings"] if one["severity"] == "error"]
    assert codes == ["of-another-base"]
    (sink,) = told_json("status", *words, code=1)["sinks"]
    assert sink["problem"]["error"] == "RecoveryRefused"


def test_sinks_of_two_bases_may_share_a_directory_of_checkpoints(tmp_path: Path) -> None:
    """Each base is looked at with its own sinks alone."""
    for name in ("x", "y"):
        with long_sink(tmp_path / name, uid=name, checkpoint_dir=str(tmp_path / "state")).local() as out:
            out.write(batch(0, 4), position=4)
    words: tuple[str | Path, ...] = (tmp_path / "x", "--checkpoint-dir", tmp_path / "state")
    assert told_json("verify", *words)["jobs"] == ["x"]
    assert [one["uid"] for one in told_json("status", *words)["sinks"]] == ["x"]


def test_moved_from_needs_the_directory_of_checkpoints(tmp_path: Path) -> None:
    """Below the base nothing says where the base was, so the option would do nothing: refused."""
    seed_with_a_tail(tmp_path / "out")
    result = run("recover", tmp_path / "out", "--moved-from", "/old")
    assert result.exit_code == 2
    assert "--checkpoint-dir" in result.stderr
