"""A chain whose end is damaged, gone, or no file: what a start refuses, and what it may go back to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from damaged_chains import BACK, chk, damage, ended, expected, newest_id, seed
from life_cycle import (
    batch,
    continue_to,
    everything,
    finished_files,
    long_sink,
    rows_of,
)

from partfile.errors import CheckpointMismatch, NotApplied, RecoveryRefused, SnapshotCorrupt
from partfile.sink.coordinator import Runtime
from partfile.sink.restore import StartTerms
from partfile.sink.states import QueryPosition

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.item("DL-10")
def test_a_stream_of_another_kind_is_refused_over_damage_too(tmp_path: Path) -> None:
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
    held = everything(out)
    with pytest.raises(CheckpointMismatch, match="query q"):
        long_sink(out, restore_from=chosen, **BACK).local().open()
    assert everything(out) == held


@pytest.mark.item("DL-10")
@pytest.mark.parametrize("terms", [StartTerms(succeeding=1), StartTerms(goes_back=False), StartTerms(holds=True)])
def test_a_clean_end_never_goes_back(tmp_path: Path, terms: StartTerms) -> None:
    """Who ends what a driver has left begins with the newest checkpoint, or not at all."""
    out = tmp_path / "out"
    chosen = seed(out)
    held = everything(out)
    runtime = Runtime(long_sink(out, restore_from=chosen, **BACK).settings, "life")
    with pytest.raises(SnapshotCorrupt, match="damaged"):
        runtime.coordinator.start(lambda _stands: None, 1, terms)
    runtime.close()
    assert everything(out) == held


@pytest.mark.item("DL-10")
def test_a_link_nobody_can_read_may_have_added_rows(tmp_path: Path) -> None:
    """A rollback to a point with a damaged link after it, and a good one after that, is not taken for the newest."""
    out = tmp_path / "out"
    sink = long_sink(out, retained_checkpoints=9).local().open()
    for position in (4, 8, 8):
        sink.write(batch(position - 4, 4), position=position)
        sink.checkpoint()
    sink.close()
    damage(out, 3)
    with pytest.raises(RecoveryRefused, match="has gone on"):
        long_sink(out, restore_from=chk(out, 2)).local().open()


@pytest.mark.item("DL-10", "SP-14")
def test_a_file_that_is_put_back_later_is_refused_for_what_it_is(tmp_path: Path) -> None:
    """It counted, but the chain has gone on from before it."""
    out = tmp_path / "out"
    ended(out)
    file = chk(out, newest_id(out)) / "_metadata"
    whole = file.read_bytes()
    damage(out, newest_id(out))
    assert continue_to(long_sink(out, restore_from=chk(out, 2), accept_missing=True, **BACK), 9) == 4
    file.write_bytes(whole)
    with pytest.raises(RecoveryRefused, match="could not be read when the chain went on"):
        long_sink(out, restore_from=file, **BACK).local().open()


@pytest.mark.item("DL-10")
@pytest.mark.parametrize("is_rival_there", [False, True])
def test_going_back_over_a_newest_link_that_was_deleted(tmp_path: Path, *, is_rival_there: bool) -> None:
    """Refused without the options; with them the fence goes above the name that was used."""
    out = tmp_path / "out"
    ended(out)
    lost = newest_id(out)
    (chk(out, lost) / "_metadata").unlink()
    assert (chk(out, lost) / "_published").exists()
    with pytest.raises(SnapshotCorrupt, match=f"checkpoint {lost} .* is gone.*restore_from"):
        long_sink(out).local().open()
    older = chk(out, newest_id(out))
    back = long_sink(out, restore_from=older, accept_missing=True, **BACK)
    if is_rival_there:
        long_sink(out, restore_from=older, accept_missing=True, **BACK).local().open().close()
    assert continue_to(back, 6) == 4
    assert newest_id(out) > lost
    assert rows_of(finished_files(out)) == expected(6)


@pytest.mark.parametrize("thing", ["directory", "link"])
def test_something_else_in_the_place_of_a_link_is_told(tmp_path: Path, thing: str) -> None:
    """Not taken for a free name, which would never be decided."""
    out = tmp_path / "out"
    seed(out)
    file = chk(out, newest_id(out)) / "_metadata"
    file.unlink()
    file.mkdir() if thing == "directory" else file.symlink_to(chk(out, 2) / "_metadata")
    with pytest.raises(NotApplied, match=f"{file.parent.name}/_metadata"):
        long_sink(out).local().open()
