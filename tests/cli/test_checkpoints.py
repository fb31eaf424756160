"""``partfile checkpoints`` shows every retained checkpoint, and what is damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from partfile.errors import NotApplied, OutcomeUnknown
from partfile.stores.local.store import LocalStore
from support.processes.command_line import run, told, told_json
from support.sinks.dead import crash_when_promised
from support.sinks.life_cycle import (
    assert_exactly_once,
    batch,
    continue_to,
    long_sink,
    make_sink,
    seed_with_a_tail,
    stopped_with_savepoint,
)

if TYPE_CHECKING:
    from pathlib import Path


def checkpoints(base: Path, code: int = 0) -> list[dict[str, Any]]:
    """The checkpoints of the only sink."""
    (log,) = told_json("checkpoints", base, code=code)["logs"]
    found: list[dict[str, Any]] = log["checkpoints"]
    return found


def test_each_checkpoint_has_its_facts(tmp_path: Path) -> None:
    """Kind, epoch, open parts, what it owes, and which one is in force."""
    seed_with_a_tail(tmp_path)
    facts = [
        (
            checkpoint["checkpoint_id"],
            checkpoint["kind"],
            checkpoint["open_parts"],
            checkpoint["publication"],
            checkpoint["is_in_force"],
        )
        for checkpoint in checkpoints(tmp_path)
    ]
    assert facts == [
        (1, "takeover", 0, "nothing to publish", False),
        (2, "checkpoint", 2, "nothing to publish", True),
    ]
    assert "*  2" in told("checkpoints", tmp_path)


def test_what_is_owed_and_what_is_published_is_told_apart(tmp_path: Path) -> None:
    """A checkpoint whose parts have not got their names owes them; after the next start they are published."""
    crash_when_promised(tmp_path)
    assert checkpoints(tmp_path)[-1]["publication"] == "owed"
    with make_sink(tmp_path).local():
        pass
    assert "published" in {checkpoint["publication"] for checkpoint in checkpoints(tmp_path)}


def test_tombstones_are_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An id that was closed, as the store did not say whether its checkpoint was created, is shown as what it is."""

    def no_answer(_store: LocalStore, path: str, _data: bytes) -> None:
        monkeypatch.undo()
        raise OutcomeUnknown("no answer", path=path)

    out = long_sink(tmp_path).local().open()
    out.write(batch(0, 2), position=2)
    monkeypatch.setattr(LocalStore, "create_file", no_answer)
    with pytest.raises(NotApplied, match="closed"):
        out.checkpoint()
    assert [checkpoint["kind"] for checkpoint in checkpoints(tmp_path)] == ["takeover", "tombstone"]
    assert continue_to(long_sink(tmp_path), 2) == 0
    assert_exactly_once(tmp_path, 2)


def test_a_damaged_checkpoint_is_told_with_its_reason(tmp_path: Path) -> None:
    """What cannot be read is listed with why, the others as they are; the exit code is 1."""
    seed_with_a_tail(tmp_path)
    (tmp_path / "_partfile" / "life" / "chk-1" / "_metadata").write_bytes(b"")
    first, second = checkpoints(tmp_path, code=1)
    assert (first["kind"], second["kind"]) == ("damaged", "checkpoint")
    assert "partfile header" in first["problem"]
    assert second["is_in_force"]


def test_a_deleted_newest_checkpoint_is_told(tmp_path: Path) -> None:
    """A checkpoint that was complete and published, and is gone, is listed as deleted."""
    with make_sink(tmp_path).local() as out:
        out.write(batch(0, 4), position=4)
    newest = max((tmp_path / "_partfile" / "life").glob("chk-*/_published"), key=lambda path: path.parent.name)
    (newest.parent / "_metadata").unlink()
    for later in (tmp_path / "_partfile" / "life").glob("chk-*"):
        if later.name > newest.parent.name:
            (later / "_metadata").unlink()
    assert checkpoints(tmp_path, code=1)[-1]["kind"] == "deleted"


def test_savepoints_are_shown_where_they_are(tmp_path: Path) -> None:
    """``--savepoint-dir`` shows those of the sink as well."""
    where = stopped_with_savepoint(tmp_path)
    report = told_json("checkpoints", tmp_path / "out", "--savepoint-dir", tmp_path / "savepoints")
    assert [one["location"] for one in report["savepoints"]] == [where]
    text = told("checkpoints", tmp_path / "out", "--savepoint-dir", tmp_path / "savepoints", "--uid", "life")
    assert where.rpartition("/")[2] in text


def test_an_unknown_sink_is_usage(tmp_path: Path) -> None:
    """A uid that is not there ends with 2 and names those that are."""
    seed_with_a_tail(tmp_path)
    result = run("checkpoints", tmp_path, "--uid", "nobody")
    assert result.exit_code == 2
    assert "'life'" in result.stderr
