"""A checkpoint log whose end is damaged: what a start refuses, and what it goes back to on demand."""

from __future__ import annotations

import logging
import shutil
import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import partfile as pf
from partfile.errors import CheckpointMismatch, NotApplied, RecoveryRefused, SnapshotCorrupt, SnapshotVersionError
from partfile.sink.coordinator import Runtime
from partfile.sink.restore import RestoreTerms
from partfile.sink.states import QueryPosition
from partfile.snapshot.documents import FORMAT_VERSION, MAX_IDS_AHEAD
from partfile.stores.local.store import LocalStore
from partfile.testing.faults import FailAt, KillAt, intercept
from support.sinks.life_cycle import (
    assert_exactly_once,
    assert_only_grew,
    batch,
    continue_to,
    everything,
    finished_files,
    in_child,
    long_sink,
    make_sink,
    rows_of,
    staged_files,
)
from support.sinks.recovery import go_back, recover_all

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from partfile.stores.base import Cut


# A checkpoint log whose newest checkpoint is damaged, as tests make it and look at it.


def chk(base: Path, checkpoint_id: int) -> Path:
    return base / "_partfile" / "life" / f"chk-{checkpoint_id}"


def newest_id(base: Path) -> int:
    return max(int(path.parent.name[4:]) for path in chk(base, 0).parent.glob("chk-*/_metadata"))


def damage(base: Path, checkpoint_id: int) -> bytes:
    """Cut a checkpoint; returns what is left."""
    path = chk(base, checkpoint_id) / "_metadata"
    path.write_bytes(path.read_bytes()[:-9])
    return path.read_bytes()


def seed(base: Path, *, is_published: bool = False) -> Path:
    """Rows 0 to 3 in open parts at ``chk-2``, which is returned; then rows 4 to 6, perhaps published; damaged."""
    out = long_sink(base, retained_checkpoints=9).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    out.write(batch(4, 3), position=7)
    out.checkpoint()
    if is_published:
        out.finish()
    out.close()
    damage(base, newest_id(base))
    return chk(base, 2)


def expected(rows: int, doubled: Iterable[int] = ()) -> dict[str, int]:
    return {f"row-{number:04d}": 2 if number in doubled else 1 for number in range(rows)}


def ended(base: Path) -> None:
    """Rows 0 to 3 in open parts at ``chk-2``; then a clean end."""
    out = long_sink(base, retained_checkpoints=9).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    out.finish()
    out.close()


# A checkpoint log whose end is damaged, gone, or no file: what a start refuses, and what it may go back to.


@pytest.mark.item("DL-10")
def test_a_stream_of_another_kind_is_refused_after_a_rollback_too(tmp_path: Path) -> None:
    """The position of a Spark query means nothing to plain Python, whichever checkpoint it is in."""
    out = tmp_path / "out"
    writer = long_sink(out, retained_checkpoints=9).local().open()
    coordinator = writer._runtime.coordinator
    query = coordinator.state.position.model_copy(update={"query": QueryPosition(query_id="q", batch_id=4)})
    coordinator.complete(coordinator.trigger(1), (), query)
    chosen = chk(out, newest_id(out))
    coordinator.complete(coordinator.trigger(2), (), query)
    writer.close()
    damage(out, newest_id(out))
    go_back(out, chosen)
    held = everything(out)
    with pytest.raises(CheckpointMismatch, match="query q"):
        long_sink(out).local().open()
    assert everything(out) == held


@pytest.mark.item("DL-10")
@pytest.mark.parametrize("terms", [{"succeeding": 1}, {}, {"holds": True}])
def test_only_a_recovery_goes_back(tmp_path: Path, terms: dict[str, Any]) -> None:
    """Without ``rolls_back`` a start begins with the newest checkpoint, or not at all."""
    out = tmp_path / "out"
    chosen = seed(out)
    held = everything(out)
    runtime = Runtime(long_sink(out).settings, "life")
    with pytest.raises(SnapshotCorrupt, match="damaged"):
        runtime.coordinator.start(lambda _stands: None, 1, RestoreTerms(restore_from=str(chosen), **terms))
    runtime.close()
    assert everything(out) == held


@pytest.mark.item("DL-10")
def test_an_unreadable_checkpoint_may_have_added_rows(tmp_path: Path) -> None:
    """A rollback to a point with a damaged checkpoint after it, and then a good one, is not taken for the newest."""
    out = tmp_path / "out"
    sink = long_sink(out, retained_checkpoints=9).local().open()
    for position in (4, 8, 8):
        sink.write(batch(position - 4, 4), position=position)
        sink.checkpoint()
    sink.close()
    damage(out, 3)
    with pytest.raises(RecoveryRefused, match="has gone on"):
        recover_all(out, restore_from=str(chk(out, 2)))


@pytest.mark.item("DL-10", "SP-14")
def test_a_file_that_is_put_back_later_is_refused_for_what_it_is(tmp_path: Path) -> None:
    """It counted, but the checkpoint log has gone on from before it."""
    out = tmp_path / "out"
    ended(out)
    file = chk(out, newest_id(out)) / "_metadata"
    whole = file.read_bytes()
    damage(out, newest_id(out))
    go_back(out, chk(out, 2), accept_missing=True)
    assert continue_to(long_sink(out, retained_checkpoints=9), 9) == 4
    file.write_bytes(whole)
    with pytest.raises(RecoveryRefused, match="could not be read when the checkpoint log went on"):
        go_back(out, file)


@pytest.mark.item("DL-10")
@pytest.mark.parametrize("is_rival_there", [False, True])
def test_going_back_over_a_newest_checkpoint_that_was_deleted(tmp_path: Path, *, is_rival_there: bool) -> None:
    """Refused by a start; a recovery goes back, and its takeover goes above the name that was used."""
    out = tmp_path / "out"
    ended(out)
    lost = newest_id(out)
    (chk(out, lost) / "_metadata").unlink()
    assert (chk(out, lost) / "_published").exists()
    with pytest.raises(SnapshotCorrupt, match=f"(?s)checkpoint {lost} .* is gone.*--restore-from ID --accept-newer"):
        long_sink(out).local().open()
    older = chk(out, newest_id(out))
    for _ in range(2 if is_rival_there else 1):
        go_back(out, older, accept_missing=True)
    assert continue_to(long_sink(out, retained_checkpoints=9), 6) == 4
    assert newest_id(out) > lost
    assert rows_of(finished_files(out)) == expected(6)


@pytest.mark.parametrize("thing", ["directory", "link"])
def test_something_else_in_the_place_of_metadata_is_told(tmp_path: Path, thing: str) -> None:
    """Not taken for a free name, which would never be decided."""
    out = tmp_path / "out"
    seed(out)
    file = chk(out, newest_id(out)) / "_metadata"
    file.unlink()
    file.mkdir() if thing == "directory" else file.symlink_to(chk(out, 2) / "_metadata")
    with pytest.raises(NotApplied, match=f"{file.parent.name}/_metadata"):
        long_sink(out).local().open()


# Going back to an older checkpoint while the newest cannot be read: on explicit demand alone, and said aloud (R12).

VERSIONS = f"checkpoint {FORMAT_VERSION} ".encode(), b"checkpoint 99 "


@pytest.mark.item("DL-10")
@pytest.mark.parametrize("beyond", [1, MAX_IDS_AHEAD + 1])
def test_a_takeover_over_damage_takes_the_next_id(tmp_path: Path, beyond: int) -> None:
    """No entry of a sink reserves ids, so a directory beyond the damaged one closes none: no tombstone is made."""
    out = tmp_path / "out"
    chosen = seed(out)
    damaged = newest_id(out)
    left = chk(out, damaged + beyond)
    left.mkdir()
    (left / f"{'0' * 32}.state").write_bytes(b"of an attempt that was never complete")
    go_back(out, chosen)
    assert newest_id(out) == damaged + 1
    assert b'"kind":"takeover"' in (chk(out, damaged + 1) / "_metadata").read_bytes()
    assert continue_to(long_sink(out, retained_checkpoints=9), 9) == 4
    assert rows_of(finished_files(out)) == expected(9)


@pytest.mark.item("DL-10")
@pytest.mark.parametrize("is_published", [False, True])
def test_going_back_over_a_damaged_checkpoint(tmp_path: Path, *, is_published: bool) -> None:
    """No row is lost; only those of finished parts come twice; the damaged link stays as it is."""
    out = tmp_path / "out"
    chosen = seed(out, is_published=is_published)
    files, damaged = finished_files(out), (chk(out, newest_id(out)) / "_metadata")
    held = damaged.read_bytes()
    go_back(out, chosen)
    assert continue_to(long_sink(out, retained_checkpoints=9), 9) == 4
    after = finished_files(out)
    assert_only_grew(files, after)
    assert rows_of(after) == expected(9, range(4, 7) if is_published else ())
    assert damaged.read_bytes() == held
    assert staged_files(out) == []


@pytest.mark.item("DL-10")
def test_the_damaged_checkpoint_goes_by_retention_alone(tmp_path: Path) -> None:
    """The next starts pass it by; it is deleted when it is too old to be retained."""
    out = tmp_path / "out"
    chosen, damaged = seed(out), newest_id(out)
    go_back(out, chosen)
    assert chk(out, damaged).exists()
    assert continue_to(long_sink(out, retained_checkpoints=9), 6) == 4
    assert continue_to(long_sink(out, retained_checkpoints=9), 9) == 6
    assert chk(out, damaged).exists()
    assert continue_to(long_sink(out), 9) == 9
    assert not chk(out, damaged).exists()
    assert rows_of(finished_files(out)) == expected(9)


@pytest.mark.item("DL-10", "SP-14")
def test_without_the_explicit_options_it_is_refused(tmp_path: Path) -> None:
    """No option, or one that names something else: the damage. Without --accept-newer: what came later is unknown."""
    savepoint = long_sink(tmp_path / "other").local().open().stop_with_savepoint(tmp_path / "savepoints")
    out = tmp_path / "out"
    chosen = seed(out, is_published=True)
    damaged = chk(out, newest_id(out))
    held = everything(out)
    with pytest.raises(SnapshotCorrupt, match=f"{damaged.name}/_metadata"):
        long_sink(out).local().open()
    elsewhere = shutil.copytree(chosen, tmp_path / "elsewhere" / chosen.name)
    for other in (savepoint, elsewhere, damaged, chk(out, 77)):
        with pytest.raises(SnapshotCorrupt, match=f"{damaged.name}/_metadata"):
            go_back(out, other)
    with pytest.raises(SnapshotCorrupt, match=f"{damaged.name}/_metadata"):
        long_sink(out, restore_from=chosen).local().open()
    with pytest.raises(RecoveryRefused, match="cannot be known") as raised:
        recover_all(out, restore_from=str(chosen))
    message = str(raised.value)
    assert all(text in message for text in (f"{damaged.name}/_metadata", str(chosen), *finished_files(out)))
    assert "--accept-newer" in message
    assert everything(out) == held


@pytest.mark.item("DL-10")
def test_the_log_tells_what_is_not_known(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The damage, the finished parts that came later, and those that the checkpoint vouches for and are gone."""
    out = tmp_path / "out"
    chosen = seed(out, is_published=True)
    moved, left = sorted(finished_files(out))
    (out / moved).rename(tmp_path / "moved")
    held = everything(out)
    with pytest.raises(RecoveryRefused, match=r"(?s)1 parts.*--accept-missing") as raised:
        go_back(out, chosen)
    assert moved in str(raised.value)
    assert everything(out) == held
    with caplog.at_level(logging.WARNING, logger="partfile"):
        go_back(out, chosen, accept_missing=True)
        assert continue_to(long_sink(out, retained_checkpoints=9), 9) == 4
    planned, told = [record.message for record in caplog.records if "cannot be known" in record.message]
    assert planned == told
    before, _, after = told.partition("Moved away or lost")
    assert "_metadata is damaged" in before
    assert left in before
    assert moved in after
    assert moved not in before


@pytest.mark.item("DL-10")
def test_part_names_are_never_used_again(tmp_path: Path) -> None:
    """Which counters came later is unknown: a finished part of the same name would be taken for the new one."""
    out = tmp_path / "out"
    chosen = seed(out, is_published=True)
    go_back(out, chosen)
    assert continue_to(make_sink(out, retained_checkpoints=9), 12) == 4
    chains = {name.rpartition("/")[2].split("-")[1] for name in finished_files(out)}
    assert len(chains) == 2
    assert rows_of(finished_files(out)) == expected(12, range(4, 7))


@pytest.mark.item("DL-10")
def test_damaged_state_of_a_readable_checkpoint_is_gone_over_too(tmp_path: Path) -> None:
    """The state is in a file of its own, which is missing: refused as before, and gone over on explicit demand."""
    out = tmp_path / "out"
    sink = long_sink(out, retained_checkpoints=9).local().open()
    sink.write(batch(0, 4), position=4)
    sink.checkpoint()
    sink.write(batch(4, 3), position="7" * 30_000)
    sink.checkpoint()
    sink.close()
    (state,) = chk(out, 3).glob("*.state")
    state.unlink()
    with pytest.raises(SnapshotCorrupt, match=f"{state.name} is missing"):
        long_sink(out).local().open()
    with pytest.raises(RecoveryRefused, match="cannot be known"):
        recover_all(out, restore_from=str(chk(out, 2)))
    go_back(out, chk(out, 2))
    assert continue_to(long_sink(out, retained_checkpoints=9), 9) == 4
    assert rows_of(finished_files(out)) == expected(9)


@pytest.mark.item("DL-10")
def test_options_that_are_left_over_do_not_go_back_again(tmp_path: Path) -> None:
    """They were applied before the damage; what came since is not for them to give up."""
    out = tmp_path / "out"
    chosen = seed(out)
    go_back(out, chosen)
    assert continue_to(long_sink(out, restore_from=chosen, retained_checkpoints=9), 9) == 4
    damage(out, newest_id(out))
    held = everything(out)
    with pytest.raises(RecoveryRefused, match="applied before that"):
        go_back(out, chosen)
    assert everything(out) == held
    later = chk(out, newest_id(out) - 1)
    go_back(out, later)
    assert continue_to(long_sink(out, retained_checkpoints=9), 12) == 4
    assert rows_of(finished_files(out)) == expected(12, range(4, 9))


@pytest.mark.item("DL-10")
def test_a_newer_format_is_no_damage(tmp_path: Path) -> None:
    """The newer partfile can read it."""
    out = tmp_path / "out"
    chosen = seed(out)
    path = chk(out, newest_id(out)) / "_metadata"
    path.write_bytes(path.read_bytes().replace(*VERSIONS, 1))
    with pytest.raises(SnapshotVersionError, match="version 99"):
        go_back(out, chosen)


@pytest.mark.item("DL-10")
def test_parts_that_were_published_by_then_are_not_missed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The checkpoint is marked as published: a consumer may have moved them, and no start looks for them (R5)."""
    out = tmp_path / "out"
    sink = make_sink(out, retained_checkpoints=9).local().open()
    sink.write(batch(0, 12), position=12)
    sink.checkpoint()
    moved = sorted(finished_files(out))
    assert moved
    for name in moved:
        (out / name).rename(tmp_path / name.replace("/", "-"))
    sink.checkpoint()
    sink.close()
    damage(out, 3)
    with caplog.at_level(logging.WARNING, logger="partfile"):
        go_back(out, chk(out, 2))
    assert "vouches for: nothing" in caplog.text


@pytest.mark.item("DL-10", "SP-14")
def test_a_rollback_behind_it_names_the_parts_of_both_logs(tmp_path: Path) -> None:
    """Part names begin anew when the counter is lost; what came later bears either chain's name."""
    out = tmp_path / "out"
    chosen = seed(out, is_published=True)
    go_back(out, chosen)
    assert continue_to(long_sink(out, retained_checkpoints=9), 9) == 4
    long_sink(out, retained_checkpoints=9).local().open().close()
    with pytest.raises(RecoveryRefused, match="4 later parts") as raised:
        recover_all(out, restore_from=str(chk(out, 3)))
    assert all(name in str(raised.value) for name in finished_files(out))


@pytest.mark.item("DL-10")
def test_a_part_that_the_point_still_owes_is_published(tmp_path: Path) -> None:
    """It was pending and not marked as published: its rows are before the point, and are not sent again."""
    out = tmp_path / "out"
    chosen = owing(out)
    go_back(out, chosen)
    assert continue_to(make_sink(out, retained_checkpoints=9), 9) == 4
    assert rows_of(finished_files(out)) == expected(9)


def owing(base: Path) -> Path:
    """A checkpoint of rows 0 to 3 whose parts could not be published, which is returned; the next one is damaged."""

    def opener(url: str, _options: Any) -> Any:
        return intercept(LocalStore(url), FailAt(1, NotApplied("no room"), persistent=True, only=["publish"]))

    each = pf.RollingPolicy(on_checkpoint=True)
    writer = make_sink(base, open_store=opener, rolling=each, retained_checkpoints=9).local().open()
    writer.write(batch(0, 4), position=4)
    writer.checkpoint()
    chosen = chk(base, newest_id(base))
    writer.checkpoint()
    writer.close()
    damage(base, newest_id(base))
    return chosen


@pytest.mark.parametrize("cut", ["valid-length", "truncate", "rewrite"])
def test_a_sidecar_that_a_rollback_has_outdated_stops_no_start(tmp_path: Path, cut: Cut) -> None:
    """Killed between sidecar and final name, and gone back over a damaged checkpoint: the part is owed at less."""
    sink = partial(long_sink, tmp_path, cut="valid-length", retained_checkpoints=9)
    out = sink().local().open()
    for first in (0, 2):
        out.write(batch(first, 2), position=first + 2)
        out.checkpoint()
    out.write(batch(4, 2))
    out._operator.snapshot(99)
    out.close()
    killer = KillAt(2, "before", only=["rename_noreplace"])
    assert in_child(lambda: sink(interceptor=killer).local().open()) == -signal.SIGKILL
    assert list(tmp_path.rglob("*.valid-length"))
    newest = chk(tmp_path, newest_id(tmp_path))
    (newest / "_metadata").write_bytes((newest / "_metadata").read_bytes()[:-2])
    go_back(tmp_path, chk(tmp_path, 2), cut=cut)
    assert list(tmp_path.rglob("*.valid-length")) == [] or cut == "valid-length"
    with long_sink(tmp_path).local() as again:
        assert again.position == 2
        again.write(batch(2, 7), position=9)
    assert_exactly_once(tmp_path, 9)
