"""Restoring savepoints of the plain sink: anywhere, and never a row twice in silence (S12, M8)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

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
    stopped_with_savepoint,
)

from partfile.errors import ConfigError, NotFound, RecoveryRefused, StoreError
from partfile.snapshot.savepoints import complete_savepoint, read_savepoint, reserve_savepoint
from partfile.stores.local.store import LocalStore


@pytest.mark.item("SP-07", "SP-14", "SP-23")
@pytest.mark.parametrize("form", ["", "/", "/_metadata"])
def test_a_moved_savepoint_restores_onto_a_fresh_base(tmp_path: Path, form: str) -> None:
    """Named by directory or file, from wherever it lies: the new base goes on at its position, no row twice."""
    moved = shutil.move(stopped_with_savepoint(tmp_path), tmp_path / "moved")
    shutil.rmtree(tmp_path / "savepoints")
    sink = long_sink(tmp_path / "fresh", restore_from=f"{moved}{form}")
    assert continue_to(sink, 9) == 4
    both = rows_of(finished_files(tmp_path / "out")) + rows_of(finished_files(tmp_path / "fresh"))
    assert both == {f"row-{number:04d}": 1 for number in range(9)}


@pytest.mark.item("SP-14")
def test_another_uid_on_the_same_base_restores_too(tmp_path: Path) -> None:
    """Its parts have a chain id of their own, so no name is taken."""
    where = stopped_with_savepoint(tmp_path)
    assert continue_to(long_sink(tmp_path / "out", uid="other", restore_from=where), 9) == 4
    assert_exactly_once(tmp_path / "out", 9)


@pytest.mark.item("SP-14")
def test_the_option_may_stay_set(tmp_path: Path) -> None:
    """A restarted sink goes on from its own chain, on a fresh base and on the one that was stopped."""
    where = stopped_with_savepoint(tmp_path)
    for base in ("fresh", "out"):
        sink = long_sink(tmp_path / base, restore_from=where)
        assert [continue_to(sink, rows) for rows in (6, 6, 9)] == [4, 6, 6]
    assert_exactly_once(tmp_path / "out", 9)


@pytest.mark.item("SP-14", "SP-26")
@pytest.mark.fault("M8")
def test_a_base_that_has_moved_on_is_refused_with_its_later_parts(tmp_path: Path) -> None:
    """M8: the error names each part that came later; nothing is changed; leaving the option out goes on."""
    where = stopped_with_savepoint(tmp_path)
    before = set(finished_files(tmp_path / "out"))
    continue_to(long_sink(tmp_path / "out"), 7)
    later = set(finished_files(tmp_path / "out")) - before
    held = everything(tmp_path)
    with pytest.raises(RecoveryRefused, match=f"{len(later)} later parts") as raised:
        continue_to(long_sink(tmp_path / "out", restore_from=where), 9)
    assert all(name in str(raised.value) for name in later)
    assert everything(tmp_path) == held
    continue_to(long_sink(tmp_path / "out"), 9)
    assert_exactly_once(tmp_path / "out", 9)


@pytest.mark.item("SP-14", "SP-26")
@pytest.mark.parametrize("how", ["another uid", "checkpoints deleted"])
def test_a_fresh_chain_on_a_base_that_has_moved_on_is_refused_too(tmp_path: Path, how: str) -> None:
    """The parts that came later lie there, whoever restores: their rows would come twice in silence."""
    where = stopped_with_savepoint(tmp_path)
    continue_to(long_sink(tmp_path / "out"), 7)
    options: dict[str, Any] = {"restore_from": where}
    if how == "another uid":
        options["uid"] = "other"
    else:
        shutil.rmtree(tmp_path / "out" / "_partfile")
    with pytest.raises(RecoveryRefused, match="2 later parts"):
        continue_to(long_sink(tmp_path / "out", **options), 9)
    assert continue_to(long_sink(tmp_path / "out", accept_newer=True, **options), 9) == 4


@pytest.mark.item("SP-14")
def test_each_writer_restores_its_own_savepoint(tmp_path: Path) -> None:
    """Another writer's position would skip rows, or write them twice."""
    out = long_sink(tmp_path / "out").local(subtask_index=1).open()
    out.write(batch(0, 2), position=2)
    where = out.stop_with_savepoint(tmp_path / "savepoints")
    sink = long_sink(tmp_path / "fresh", restore_from=where)
    with pytest.raises(RecoveryRefused, match="'life~1', not of the writer 'life'"):
        sink.local().open()
    with sink.local(subtask_index=1) as again:
        assert again.position == 2


@pytest.mark.item("SP-11", "SP-14")
def test_a_sink_goes_on_when_its_savepoint_is_gone(tmp_path: Path) -> None:
    """Once restored it needs it no more, so the user may delete it with the option still set."""
    where = stopped_with_savepoint(tmp_path)
    sink = long_sink(tmp_path / "fresh", restore_from=where)
    assert continue_to(sink, 6) == 4
    shutil.rmtree(where)
    assert continue_to(sink, 9) == 6
    for same in (f"{where}/", f"{where}/_metadata", f"file://{where}", f"{where}/../{Path(where).name}"):
        assert continue_to(long_sink(tmp_path / "fresh", restore_from=same), 9) == 9
    with pytest.raises(NotFound):
        continue_to(long_sink(tmp_path / "another", restore_from=where), 9)


@pytest.mark.parametrize("option", ["accept_newer", "allow_non_restored"])
def test_an_option_without_effect_is_refused(tmp_path: Path, option: str) -> None:
    """It would be thought to do something."""
    with pytest.raises(ConfigError, match=f"{option} has no effect without restore_from"):
        long_sink(tmp_path, **{option: True})


@pytest.mark.item("SP-14")
def test_later_parts_can_be_accepted(tmp_path: Path) -> None:
    """On demand the sink goes back: later finished files stay as they are, their rows are there twice, none is lost."""
    where = stopped_with_savepoint(tmp_path)
    continue_to(long_sink(tmp_path / "out"), 7)
    files = finished_files(tmp_path / "out")
    sink = long_sink(tmp_path / "out", restore_from=where, accept_newer=True)
    assert [continue_to(sink, 9), continue_to(sink, 11)] == [4, 9]
    after = finished_files(tmp_path / "out")
    assert_only_grew(files, after)
    doubled = {f"row-{number:04d}" for number in range(4, 7)}
    assert rows_of(after) == {row: 2 if row in doubled else 1 for row in (f"row-{n:04d}" for n in range(11))}


@pytest.mark.item("DL-10", "SP-14")
@pytest.mark.parametrize("name", ["savepoints/savepoint-life-000000000000", "no/such/dir", "out/_partfile/life/chk-99"])
def test_what_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    """A wrong name is an error that shows it, and nothing is made, not even a directory."""
    stopped_with_savepoint(tmp_path)
    held = sorted(tmp_path.rglob("*"))
    with pytest.raises(StoreError, match=r"savepoint-life-000000000000|no/such|99"):
        continue_to(long_sink(tmp_path / "out", restore_from=tmp_path / name), 9)
    assert sorted(tmp_path.rglob("*")) == held


@pytest.mark.item("SP-15")
def test_state_of_an_operator_that_is_not_there(tmp_path: Path) -> None:
    """Refused by its id, unless it may be left behind."""
    where = Path(stopped_with_savepoint(tmp_path))
    store = LocalStore(str(where.parent))
    metadata = read_savepoint(store, where.name)
    more = metadata.model_copy(
        update={"operators": {**metadata.operators, "my-window": metadata.operators["file-sink"]}}
    )

    name = reserve_savepoint(store, "life")
    complete_savepoint(store, name, more)
    with pytest.raises(RecoveryRefused, match="my-window"):
        continue_to(long_sink(tmp_path / "fresh", restore_from=where.parent / name), 9)
    sink = long_sink(tmp_path / "fresh", restore_from=where.parent / name, allow_non_restored=True)
    assert continue_to(sink, 9) == 4
