"""Taking savepoints of the plain sink: nothing staged in them, all or nothing, nothing deletes them (R12)."""

from __future__ import annotations

import shutil
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import partfile as pf
from partfile.errors import ConfigError, NotApplied, NotFound, PartfileError, StoreError
from partfile.snapshot.savepoints import delete_savepoint, read_savepoint, savepoints_in
from partfile.stores.local.store import LocalStore
from partfile.testing.faults import FailAt, KillAt, Recorder, intercept
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
    run_to_the_end,
    staged_files,
    stopped_with_savepoint,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.testing.faults import Call


FEW = 20
"""Kills in every run; with ``--long`` at each call."""


def test_stopping_with_a_savepoint_leaves_no_staging_file(tmp_path: Path) -> None:
    """It is a clean end: finished files and ``_partfile``. The log and the savepoint go on from there."""
    table = pa.table({"id": [1, 2]})
    with pf.FileSink(tmp_path / "out", uid="s", format="parquet").local() as out:
        out.write(table)
        out.checkpoint()
        assert list(tmp_path.rglob("_part-*.in-progress"))
        where = out.stop_with_savepoint(tmp_path / "savepoints")
    assert not list(tmp_path.rglob("_part-*"))
    assert pf.read(tmp_path / "out").to_table()["id"].to_pylist() == [1, 2]
    for base, source in ((tmp_path / "out", None), (tmp_path / "other", where)):
        with pf.FileSink(base, uid="s", format="parquet", restore_from=source).local() as out:
            out.write(table)
        assert pf.read(base).count_rows() == (4 if base.name == "out" else 2)


@pytest.mark.item("SP-13", "SP-10", "SP-26")
def test_stopping_with_a_savepoint_publishes_everything(tmp_path: Path) -> None:
    """Every row is in a finished file, none is staged; the sink is closed; the savepoint is one file."""
    where = stopped_with_savepoint(tmp_path)
    assert_exactly_once(tmp_path / "out", 4)
    assert staged_files(tmp_path / "out") == []
    assert [path.name for path in Path(where).iterdir()] == ["_metadata"]
    metadata = read_savepoint(LocalStore(str(tmp_path / "savepoints")), Path(where).name)
    assert (metadata.job, metadata.ends_the_job, list(metadata.operators)) == ("life", True, ["file-sink"])
    assert "in-progress" not in (Path(where) / "_metadata").read_text()


@pytest.mark.item("SP-13")
def test_a_stopped_sink_takes_no_more_rows(tmp_path: Path) -> None:
    """Nothing comes after the final snapshot."""
    out = long_sink(tmp_path / "out").local().open()
    out.stop_with_savepoint(tmp_path / "savepoints")
    with pytest.raises(PartfileError, match="not open any more"):
        out.write(batch(0, 1))


@pytest.mark.item("SP-01", "SP-17")
def test_nothing_ever_deletes_a_savepoint(tmp_path: Path) -> None:
    """It outlives ten later checkpoints, the end of the job, a restore from it, and the other savepoints."""
    out = long_sink(tmp_path / "out", savepoint_dir=tmp_path / "savepoints").local().open()
    out.write(batch(0, 2), position=2)
    kept, other = Path(out.savepoint()), Path(out.savepoint())
    data = everything(kept)
    for done in range(2, 12):
        out.write(batch(done, 1), position=done + 1)
        out.checkpoint()
    out.finish()
    delete_savepoint(LocalStore(str(tmp_path / "savepoints")), other.name)
    continue_to(long_sink(tmp_path / "fresh", restore_from=kept), 3)
    assert everything(kept) == data
    assert not other.exists()
    assert_exactly_once(tmp_path / "out", 12)


@pytest.mark.item("SP-26")
def test_the_sink_goes_on_after_a_savepoint(tmp_path: Path) -> None:
    """What was open is published, later rows go to new parts, and restoring it gives the position of then."""
    out = long_sink(tmp_path / "out").local().open()
    out.write(batch(0, 3), position=3)
    where = out.savepoint(tmp_path / "savepoints")
    before = finished_files(tmp_path / "out")
    assert rows_of(before).total() == 3
    out.write(batch(3, 3), position=6)
    out.finish()
    assert_only_grew(before, assert_exactly_once(tmp_path / "out", 6))
    assert continue_to(long_sink(tmp_path / "fresh", restore_from=where), 5) == 3


@pytest.mark.item("SP-04", "SP-18")
def test_a_savepoint_needs_a_directory(tmp_path: Path) -> None:
    """The one passed, else the sink's; with neither it fails before any work and the sink stays open."""
    out = long_sink(tmp_path / "out").local().open()
    out.write(batch(0, 2), position=2)
    before = everything(tmp_path)
    with pytest.raises(ConfigError, match="savepoint_dir"):
        out.savepoint()
    assert everything(tmp_path) == before
    assert Path(out.savepoint(tmp_path / "passed")).parent == tmp_path / "passed"
    out.close()
    with long_sink(tmp_path / "out", savepoint_dir=tmp_path / "default").local() as again:
        assert Path(again.savepoint()).parent == tmp_path / "default"
        assert Path(again.savepoint(tmp_path / "passed")).parent == tmp_path / "passed"


@pytest.mark.item("SP-06")
def test_a_directory_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    """The target is tried first: nothing is rolled, nothing published, and the sink goes on."""
    (tmp_path / "file").write_text("x")
    out = long_sink(tmp_path / "out").local().open()
    out.write(batch(0, 2), position=2)
    before = everything(tmp_path)
    with pytest.raises(PartfileError, match="file"):
        out.savepoint(tmp_path / "file")
    assert everything(tmp_path) == before
    out.finish()
    assert_exactly_once(tmp_path / "out", 2)


@pytest.mark.item("SP-06", "SP-13")
def test_a_savepoint_that_fails_leaves_none(tmp_path: Path) -> None:
    """Its last file cannot be written: no savepoint is left, no row is lost; a sink that was to go on does."""
    target = tmp_path / "savepoints"

    def opener(url: str, _options: Any) -> Any:
        store = LocalStore(url)
        return intercept(store, FailAt(2, StoreError("full"), only=["create_file"])) if url == str(target) else store

    sink = long_sink(tmp_path / "out", open_store=opener)
    out = sink.local().open()
    out.write(batch(0, 2), position=2)
    with pytest.raises(StoreError, match="full"):
        out.savepoint(target)
    assert savepoints_in(LocalStore(str(target))) == []
    out.write(batch(2, 2), position=4)
    with pytest.raises(StoreError, match="full"):
        out.stop_with_savepoint(target)
    with pytest.raises(PartfileError, match="not open any more"):
        out.checkpoint()
    run_to_the_end(make_sink(tmp_path / "out"), 6)
    assert_exactly_once(tmp_path / "out", 6)


class Unpublishable:
    """An interceptor of a store that publishes nothing while ``on``."""

    def __init__(self) -> None:
        self.on = True

    def around(self, call: Call, proceed: Callable[[], object]) -> object:
        """Fail, or let it pass."""
        if self.on and call.name == "publish":
            raise NotApplied("the directory is locked")
        return proceed()


@pytest.mark.item("SP-13")
def test_what_cannot_be_published_is_in_no_savepoint(tmp_path: Path) -> None:
    """It would name staged files (R12): an error, nothing left of it, and the sink goes on; a stop closes it."""
    locked = Unpublishable()
    sink = long_sink(tmp_path / "out", open_store=lambda url, _options: intercept(LocalStore(url), locked))
    out = sink.local().open()
    out.write(batch(0, 2), position=2)
    with pytest.raises(PartfileError, match="2 parts could not be published"):
        out.savepoint(tmp_path / "savepoints")
    assert list((tmp_path / "savepoints").iterdir()) == []
    locked.on = False
    assert (Path(out.savepoint(tmp_path / "savepoints")) / "_metadata").exists()
    assert_exactly_once(tmp_path / "out", 2)
    out.write(batch(2, 2), position=4)
    locked.on = True
    with pytest.raises(PartfileError, match="2 parts could not be published"):
        out.stop_with_savepoint(tmp_path / "savepoints")
    with pytest.raises(PartfileError, match="not open any more"):
        out.write(batch(4, 1))
    assert continue_to(long_sink(tmp_path / "out"), 6) == 4
    assert_exactly_once(tmp_path / "out", 6)


@pytest.mark.item("SP-06")
@pytest.mark.parametrize("directory", ["out/savepoints", "out"])
def test_savepoints_do_not_lie_visibly_below_the_base(tmp_path: Path, directory: str) -> None:
    """A reader would take their files for data; hidden, or elsewhere, they are fine."""
    out = long_sink(tmp_path / "out").local().open()
    with pytest.raises(ConfigError, match="lies visibly below the base"):
        out.savepoint(tmp_path / directory)
    with pytest.raises(ConfigError, match=r"(?s)savepoint_dir.*lies visibly below the base"):
        long_sink(tmp_path / "out", savepoint_dir=tmp_path / directory)
    assert Path(out.savepoint(tmp_path / "out" / "_savepoints")).exists()
    for wrong in (5, "", b"x"):
        with pytest.raises(ConfigError, match="names no directory"):
            out.savepoint(wrong)  # type: ignore[arg-type]


@pytest.mark.item("SP-13", "SP-16")
def test_a_kill_at_any_call_leaves_a_whole_savepoint_or_none(
    tmp_path: Path, chosen: Callable[[int, int], list[int]]
) -> None:
    """SIGKILL before some calls, the last among them: the stream goes on exactly once; what reads restores."""

    def stop(base: Path, interceptor: Any = None) -> None:
        out = long_sink(base / "out", interceptor=interceptor).local().open()
        out.write(batch(0, 4), position=4)
        out.stop_with_savepoint(base / "savepoints")

    recorder = Recorder()
    (tmp_path / "counted").mkdir()
    stop(tmp_path / "counted", recorder)
    whole = 0
    calls = len(recorder.calls)
    for number in sorted({*chosen(calls, FEW), calls}):
        base = tmp_path / f"{number}"
        base.mkdir()
        assert in_child(partial(stop, base, KillAt(number))) == -signal.SIGKILL
        (base / "savepoints").mkdir(exist_ok=True)
        for found in savepoints_in(LocalStore(str(base / "savepoints"))):
            if found.metadata is not None:
                whole += 1
                fresh = long_sink(base / "fresh", restore_from=base / "savepoints" / found.directory)
                assert continue_to(fresh, 6) == 4
                assert rows_of(finished_files(base / "fresh")) == {"row-0004": 1, "row-0005": 1}
            else:
                with pytest.raises(NotFound):
                    read_savepoint(LocalStore(str(base / "savepoints")), found.directory)
        continue_to(long_sink(base / "out"), 9)
        assert_exactly_once(base / "out", 9)
        shutil.rmtree(base)
    assert whole > 0


def test_a_savepoint_inside_the_own_checkpoints_is_refused(tmp_path: Path) -> None:
    """They are deleted in their turn, and a directory among their files cannot be."""
    with long_sink(tmp_path).local() as out:
        for below in ("", "/chk-1", "/deeper/down"):
            with pytest.raises(ConfigError, match="inside the sink's own checkpoints"):
                out.savepoint(f"{tmp_path}/_partfile/life{below}")


def test_the_location_of_a_savepoint_holds_from_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative directory is one of the moment; what is returned is absolute."""
    monkeypatch.chdir(tmp_path)
    with long_sink(tmp_path / "out").local() as out:
        where = out.savepoint("savepoints")
    assert Path(where).parent == tmp_path / "savepoints"
