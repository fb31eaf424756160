"""Snapshots of every format version there has been are read as they are (M4)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from partfile.sink.coordinator import Runtime
from partfile.snapshot.documents import FORMAT_VERSION, FileHandle
from partfile.snapshot.operator_state import OperatorStateStore
from partfile.snapshot.storage import CheckpointStorage
from partfile.stores.local.store import LocalStore
from support.golden import COUNTERS, GOLDEN, PRESENT, RULES, WORDS
from support.life_cycle import LONG, batch, finished_files, make_sink, rows_of
from support.staged_streams import finished_rows, names, staged_sink, staging_files_in

VERSIONS = sorted(path.name for path in GOLDEN.iterdir())


def test_there_are_golden_files_of_the_present_version() -> None:
    """A new version comes with its own: run ``PYTHONPATH=tests python -m support.golden``."""
    assert PRESENT in VERSIONS
    assert [str(number + 1) for number in range(FORMAT_VERSION)] == VERSIONS


@pytest.fixture(params=VERSIONS)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the files of one version."""
    return Path(shutil.copytree(GOLDEN / request.param, tmp_path / "golden"))


@pytest.mark.item("DL-08")
@pytest.mark.fault("M4")
def test_a_crashed_sink_is_restored(golden: Path) -> None:
    """The position comes back, open parts are cut to their valid length and published, and the stream goes on."""
    with make_sink(golden / "base", rolling=LONG).local() as out:
        assert out.position == {"offset": 4}
        assert rows_of(finished_files(golden / "base")) == {f"row-{number:04d}": 1 for number in range(4)}
        out.write(batch(4, 3))
    assert rows_of(finished_files(golden / "base")) == {f"row-{number:04d}": 1 for number in range(7)}


@pytest.mark.fault("M4")
def test_a_crashed_sink_with_staging_files_is_restored(golden: Path) -> None:
    """An open staging file and a rolled one are encoded as they were meant to be, a spent one is not again."""
    base = golden / "staged"
    assert (finished_rows(base), len(staging_files_in(base))) == (names(0, 2), 3)
    with staged_sink(base, bucketer=None).local() as out:
        assert out.position == 6
        assert finished_rows(base) == names(0, 6)
        out.write(batch(6, 2))
    assert finished_rows(base) == names(0, 8)


@pytest.mark.fault("M4")
def test_staging_files_have_checksums(golden: Path) -> None:
    """The open one and the rolled one."""
    runtime = Runtime(staged_sink(golden / "staged", bucketer=None).settings, "life")
    state = runtime.coordinator.look()
    runtime.close()
    assert state is not None
    staging_files = [part.staging_file for parts in state.open.values() for part in parts] + [
        one.staging_file for one in state.rolled
    ]
    assert len(staging_files) == 2
    assert all(staging_file is not None and staging_file.crc32 is not None for staging_file in staging_files)


@pytest.mark.item("SP-14")
@pytest.mark.fault("M4")
def test_a_savepoint_is_restored(golden: Path) -> None:
    """Onto a fresh base."""
    with make_sink(golden / "fresh", restore_from=golden / "savepoint").local() as out:
        assert out.position == {"offset": 4}


@pytest.mark.item("SS-33", "SS-10")
def test_a_state_file_is_read(golden: Path) -> None:
    """Every mode, with the elements that were written."""
    handle = TypeAdapter(FileHandle).validate_json((golden / "handle.json").read_bytes())
    restored = CheckpointStorage(LocalStore(str(golden)), "job").read_state(handle)
    states = OperatorStateStore(restored)
    assert states.list_state(WORDS).get() == ("a", "é", {"k": [1, None, 2.5]})
    assert states.union_list_state(COUNTERS).get() == (7,)
    assert dict(states.broadcast_state(RULES).entries()) == {"x": {"y": True}}
