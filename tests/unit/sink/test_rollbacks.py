"""Going back to an older checkpoint: of the own chain alone, and never a row twice in silence (S12, M8)."""

from __future__ import annotations

import logging
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from life_cycle import (
    assert_exactly_once,
    assert_only_grew,
    batch,
    continue_to,
    everything,
    finished_files,
    long_sink,
    rows_of,
)

from partfile.errors import Fenced, RecoveryRefused
from partfile.sink.coordinator import Runtime
from partfile.sink.spark.stream import SparkStream
from partfile.sink.states import QueryPosition

if TYPE_CHECKING:
    from pathlib import Path


def newest_checkpoint(base: Path) -> Path:
    return max((base / "_partfile" / "life").glob("chk-*"), key=lambda path: int(path.name[4:]))


@pytest.mark.item("DL-10")
@pytest.mark.parametrize("form", ["{}", "{}/_metadata", "file://{}", "{}/../{name}"])
def test_the_newest_checkpoint_is_no_rollback(tmp_path: Path, form: str) -> None:
    """Naming it, by directory or file, is what a start does anyway."""
    out = long_sink(tmp_path / "out").local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    out.close()
    newest = newest_checkpoint(tmp_path / "out")
    chosen = form.format(newest, name=newest.name)
    assert continue_to(long_sink(tmp_path / "out", restore_from=chosen), 9) == 4
    assert_exactly_once(tmp_path / "out", 9)


@pytest.mark.item("DL-10")
@pytest.mark.parametrize("is_published", [False, True])
def test_going_back_to_an_older_checkpoint(tmp_path: Path, *, is_published: bool) -> None:
    """Refused while later parts are there; accepted, rows of unpublished parts are cut and come again, once."""
    out = long_sink(tmp_path / "out", retained_checkpoints=5).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    chosen = newest_checkpoint(tmp_path / "out")
    out.write(batch(4, 4), position=8)
    out.checkpoint()
    if is_published:
        out.finish()
    out.close()
    files, held = finished_files(tmp_path / "out"), everything(tmp_path)
    options: dict[str, Any] = {"restore_from": chosen, "retained_checkpoints": 5}
    with pytest.raises(RecoveryRefused, match="2 later parts"):
        continue_to(long_sink(tmp_path / "out", **options), 9)
    assert everything(tmp_path) == held
    assert continue_to(long_sink(tmp_path / "out", accept_newer=True, **options), 9) == 4
    after = finished_files(tmp_path / "out")
    assert_only_grew(files, after)
    doubled = {f"row-{number:04d}" for number in range(4, 8)} if is_published else set()
    assert rows_of(after) == {row: 2 if row in doubled else 1 for row in (f"row-{n:04d}" for n in range(9))}


@pytest.mark.item("DL-12", "DL-08")
def test_a_checkpoint_that_was_moved_is_refused(tmp_path: Path) -> None:
    """It names staged parts of its base path; the error says to take a savepoint."""
    out = long_sink(tmp_path / "out").local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    out.close()
    moved = shutil.copytree(newest_checkpoint(tmp_path / "out"), tmp_path / "elsewhere" / "chk-7")
    for base in ("fresh", "out"):
        with pytest.raises(RecoveryRefused, match="take a savepoint"):
            continue_to(long_sink(tmp_path / base, restore_from=moved), 9)
    assert finished_files(tmp_path / "fresh") == {}


@pytest.mark.item("DL-10")
def test_a_restart_since_is_no_later_checkpoint(tmp_path: Path) -> None:
    """A fence holds what the checkpoint held: naming that is still no rollback."""
    out = long_sink(tmp_path / "out", retained_checkpoints=9).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    out.close()
    chosen = newest_checkpoint(tmp_path / "out")
    long_sink(tmp_path / "out", retained_checkpoints=9).local().open().close()
    assert newest_checkpoint(tmp_path / "out") != chosen
    assert continue_to(long_sink(tmp_path / "out", restore_from=chosen, retained_checkpoints=9), 9) == 4
    assert_exactly_once(tmp_path / "out", 9)


@pytest.mark.item("DL-10")
def test_a_checkpoint_that_retention_has_deleted_since_is_not_needed(tmp_path: Path) -> None:
    """The option may stay set: the sink went back to it long ago."""
    out = long_sink(tmp_path / "out").local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    out.close()
    sink = long_sink(tmp_path / "out", restore_from=newest_checkpoint(tmp_path / "out"))
    assert [continue_to(sink, rows) for rows in (6, 7, 8, 9)] == [4, 6, 7, 8]
    assert_exactly_once(tmp_path / "out", 9)


@pytest.mark.item("DL-10")
def test_a_part_that_a_consumer_moved_does_not_stop_a_rollback(tmp_path: Path) -> None:
    """It was open then and is published since: nobody looks for it again (S5)."""
    out = long_sink(tmp_path / "out", retained_checkpoints=9).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    chosen = newest_checkpoint(tmp_path / "out")
    out.finish()
    continue_to(long_sink(tmp_path / "out", retained_checkpoints=9), 6)
    for name in finished_files(tmp_path / "out"):
        (tmp_path / "out" / name).rename(tmp_path / name.replace("/", "-"))
    sink = long_sink(tmp_path / "out", restore_from=chosen, accept_newer=True, retained_checkpoints=9)
    assert [continue_to(sink, 9), continue_to(sink, 9)] == [4, 9]


@pytest.mark.item("DL-10")
@pytest.mark.parametrize("positions", [True, False])
def test_a_clean_end_without_rows_is_nothing_later(tmp_path: Path, *, positions: bool) -> None:
    """It published what the checkpoint held and added nothing: naming that is no rollback, also after more restarts."""
    out = long_sink(tmp_path / "out", retained_checkpoints=9).local().open()
    out.write(batch(0, 4), position=4 if positions else None)
    out.checkpoint()
    chosen = newest_checkpoint(tmp_path / "out")
    out.finish()
    files = finished_files(tmp_path / "out")
    sink = long_sink(tmp_path / "out", restore_from=chosen, retained_checkpoints=9)
    for _ in range(3):
        with sink.local() as again:
            assert again.position == (4 if positions else None)
    assert finished_files(tmp_path / "out") == files == assert_exactly_once(tmp_path / "out", 4)


@pytest.mark.item("DL-10", "SP-14")
def test_rows_that_a_part_took_before_a_clean_end_are_later(tmp_path: Path) -> None:
    """No new part, no position: only the length of the part in the links between tells."""
    out = long_sink(tmp_path / "out", retained_checkpoints=9).local().open()
    out.write(batch(0, 4))
    out.checkpoint()
    chosen = newest_checkpoint(tmp_path / "out")
    out.write(batch(4, 4))
    out.finish()
    long_sink(tmp_path / "out", retained_checkpoints=9).local().open().close()
    with pytest.raises(RecoveryRefused, match="2 later parts"):
        long_sink(tmp_path / "out", restore_from=chosen, retained_checkpoints=9).local().open()


@pytest.mark.item("DL-10")
@pytest.mark.parametrize("is_deleted", [False, True])
def test_an_option_that_has_been_applied_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_deleted: bool
) -> None:
    """A second rollback to the same point goes on from the newest checkpoint: a warning, as its user asked for more."""
    out = long_sink(tmp_path / "out", retained_checkpoints=9).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    chosen = newest_checkpoint(tmp_path / "out")
    out.write(batch(4, 4), position=8)
    out.checkpoint()
    out.close()
    options: dict[str, Any] = {"restore_from": chosen, "accept_newer": True, "retained_checkpoints": 9}
    with caplog.at_level(logging.INFO, logger="partfile"):
        assert continue_to(long_sink(tmp_path / "out", **options), 6) == 4
        assert "applied already" not in caplog.text
        if is_deleted:
            for path in sorted(chosen.parent.iterdir())[:-1]:
                shutil.rmtree(path)
        assert continue_to(long_sink(tmp_path / "out", **options), 6) == 6
        (told,) = [record for record in caplog.records if "applied already" in record.message]
        assert told.levelname == "WARNING"
        assert str(chosen) in told.message
        caplog.clear()
        del options["accept_newer"]
        assert continue_to(long_sink(tmp_path / "out", **options), 6) == 6
        (told,) = [record for record in caplog.records if "applied already" in record.message]
        assert told.levelname == "INFO"
    assert_exactly_once(tmp_path / "out", 6)


@pytest.mark.item("DL-10")
@pytest.mark.parametrize("next_is", ["freed", "another's"])
def test_a_stray_link_of_a_fenced_coordinator_is_no_restore_point(tmp_path: Path, next_is: str) -> None:
    """It holds state, but never counted: nobody may go back to what was never committed."""
    sleeper = long_sink(tmp_path / "out").local().open()
    sleeper.write(batch(0, 2), position=2)
    other = long_sink(tmp_path / "out", retained_checkpoints=2).local().open()
    for done in range(1 if next_is == "another's" else 4):
        other.write(batch(done, 1), position=done + 1)
        other.checkpoint()
    other.close()
    with pytest.raises(Fenced):
        sleeper.checkpoint()
    stray = tmp_path / "out" / "_partfile" / "life" / "chk-2"
    ids = sorted(int(path.parent.name[4:]) for path in stray.parent.glob("chk-*/_metadata"))
    assert ids == ([2, 3, 4] if next_is == "another's" else [2, 6, 7])
    with pytest.raises(RecoveryRefused, match="never counted"):
        long_sink(tmp_path / "out", restore_from=stray, accept_newer=True).local().open()


@pytest.mark.item("SP-14", "DL-10")
def test_a_query_that_ends_without_a_batch_does_not_go_back(tmp_path: Path) -> None:
    """Only a batch shows that Spark has gone back as well; what was left open is published as it stands."""
    out = tmp_path / "out"
    sink = long_sink(out, retained_checkpoints=9).local().open()
    coordinator = sink._runtime.coordinator
    for number in range(3):
        sink.write(batch(4 * number, 4))
        sink.checkpoint()
        stands = coordinator.state.position.model_copy(update={"query": QueryPosition(query_id="q", batch_id=number)})
        coordinator.complete(coordinator.trigger(number), coordinator.assignment(), stands)
    sink.close()
    options: dict[str, Any] = {"restore_from": out / "_partfile" / "life" / "chk-3", "accept_newer": True}
    settings = long_sink(out, retained_checkpoints=9, **options).settings
    SparkStream(settings).finish("q")
    assert_exactly_once(out, 12)
    runtime = Runtime(settings, "life")
    newest = runtime.coordinator.look()
    runtime.close()
    assert newest is not None
    assert newest.position.query == QueryPosition(query_id="q", batch_id=2)
