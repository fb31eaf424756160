"""Parts that storage has made, and no writer could be: nothing of them stays in a process that lives on (S13)."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from staged_streams import stages_in

import partfile as pf
from partfile.errors import NotApplied, NotReady
from partfile.stores.local.posix import PosixCalls
from partfile.stores.local.store import LocalStore
from partfile.testing.faults import intercept
from partfile.writers.arrow_stage import StageFormat
from partfile.writers.parquet import ParquetFormat

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.testing.faults import Call

ROWS = pa.RecordBatch.from_pydict({"id": [1]})


class FullDisk:
    """From some time on nothing can be written."""

    def __init__(self) -> None:
        self.is_full = False

    def around(self, call: Call, proceed: Callable[[], object]) -> object:
        """See ``Interceptor.around``."""
        if self.is_full and call.name == "write":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return proceed()


def assert_nothing_is_held(base: Path) -> None:
    """There are staged files, of which this process has none open and whose locks can be had."""
    staged = list(base.rglob("*.in-progress"))
    assert staged
    held = {link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
    assert not {path.resolve() for path in staged} & held
    for path in staged:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_part_whose_keys_cannot_be_had_is_let_go(tmp_path: Path) -> None:
    """The file has been made when its keys are asked for; a task that is tried again would leave one more each time."""

    def fail() -> Any:
        raise ConnectionError("no route to the key service")

    out = pf.FileSink(tmp_path, uid="life", format=ParquetFormat(encryption=fail)).local().open()
    with pytest.raises(NotReady, match="key service"):
        out.write(ROWS)
    assert_nothing_is_held(tmp_path)


def test_a_stage_whose_schema_finds_no_room_is_let_go(tmp_path: Path) -> None:
    """It is the first that is written to it."""
    disk = FullDisk()

    def opener(url: str, _options: object) -> LocalStore:
        return LocalStore(url, calls=intercept(PosixCalls(), disk))

    out = pf.FileSink(tmp_path, uid="life", format="parquet", open_store=opener).local().open()
    disk.is_full = True
    with pytest.raises(NotApplied, match="No space left"):
        out.write(ROWS)
    assert_nothing_is_held(tmp_path)


def test_a_stage_that_cannot_be_gone_on_with_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that is new; the rows that a checkpoint holds are published by the next start."""
    options: dict[str, Any] = {"uid": "life", "format": "parquet", "on_stop": "keep"}
    with pf.FileSink(tmp_path, **options).local() as out:
        out.write(ROWS)
    assert len(stages_in(tmp_path)) == 1

    def fail(*_: object) -> Any:
        raise MemoryError

    out = pf.FileSink(tmp_path, **options).local().open()
    with monkeypatch.context() as patch:
        patch.setattr(StageFormat, "open_part", fail)
        with pytest.raises(MemoryError):
            out.write(ROWS)
    assert_nothing_is_held(tmp_path)
    with pf.FileSink(tmp_path, **options | {"on_stop": "publish"}).local():
        pass
    assert len(list(tmp_path.glob("part-*.parquet"))) == 1
