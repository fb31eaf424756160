"""Shared stages after a crash, a failed encode, a rollback: each bucket's rows come once, or no bucket's do."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from shared_streams import (
    BUCKETS,
    counted,
    die_sharing,
    many,
    mark_some_buckets,
    rolled,
    rows_in,
    shared_in,
    sharing_sink,
)
from staged_streams import Stages, pending_in

from partfile.errors import NotReady, PartDamaged
from partfile.sink.encode import StagesInProcess
from partfile.stores.local.store import LocalStore
from partfile.writers.arrow_stage import StageFormat

if TYPE_CHECKING:
    from pathlib import Path

    from partfile.stores.base import PartHandle

EACH_FORMAT = pytest.mark.parametrize("format", ["parquet", "json"])


@pytest.fixture(autouse=True)
def some_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the files of a stage some have its name, others one of their own."""
    mark_some_buckets(monkeypatch)


@EACH_FORMAT
def test_the_next_start_encodes_what_the_checkpoint_vouches_for(tmp_path: Path, format: str) -> None:
    """By one link after the fence that holds all files; what was written later never counts."""
    die_sharing(sharing_sink(tmp_path, format=format))
    (stage,) = shared_in(tmp_path)
    stage.write_bytes(stage.read_bytes() + b"garbage")
    with sharing_sink(tmp_path, format=format, retained_checkpoints=9).local() as out:
        assert out.position == 2 * BUCKETS
        assert rows_in(tmp_path, format) == counted(0, 2 * BUCKETS)
        out.write(many(2 * BUCKETS))
    assert rows_in(tmp_path, format) == counted(0, 3 * BUCKETS)


def test_a_zombie_goes_on_with_its_stage_in_vain(tmp_path: Path) -> None:
    """While the next run encodes it, and after."""
    zombie = sharing_sink(tmp_path).local().open()
    zombie.write(many(0))
    zombie.checkpoint()
    begun = sharing_sink(tmp_path).local().open()
    zombie._operator.write(many(BUCKETS))
    zombie._operator.snapshot(9)
    assert rows_in(tmp_path) == counted(0, BUCKETS)
    begun.close()
    zombie.close()
    sharing_sink(tmp_path).local().open().close()
    assert rows_in(tmp_path) == counted(0, BUCKETS)


@pytest.mark.parametrize("damage", ["message", "fewer", "more", "outside", "format"])
def test_a_damaged_shared_stage_gives_no_file_at_all(tmp_path: Path, damage: str) -> None:
    """One that cannot be read, holds other rows than its checkpoint says, or names a bucket outside the base."""
    die_sharing(sharing_sink(tmp_path))
    stage = rolled(tmp_path)
    (path,) = shared_in(tmp_path)
    if damage == "message":
        path.write_bytes(path.read_bytes()[: stage.part.valid_length - 100] + bytes(200))
    elif damage == "outside":
        stage = stage.model_copy(update={"part": stage.part.at(rewrite(path, ["../x", "k=1"])), "rows": 2})
    elif damage == "format":
        recipe = stage.stage.model_copy(update={"recipe": {"format": "json"}})
        stage = stage.model_copy(update={"stage": recipe})
    else:
        stage = stage.model_copy(update={"rows": stage.rows + (1 if damage == "fewer" else -1)})
    if damage in {"message", "outside"}:
        # As an older version began it: the checksum would tell first.
        stage = stage.model_copy(update={"stage": stage.stage.model_copy(update={"crc32": None})})
    (encoded,) = StagesInProcess(LocalStore(str(tmp_path)), 1).encode([stage])
    assert isinstance(encoded.problem, PartDamaged), encoded
    assert encoded.files is None
    assert pending_in(tmp_path) == []
    assert not (tmp_path.parent / "x").exists()


def rewrite(path: Path, buckets: list[str]) -> int:
    """Make a stage of a row a bucket in place of another; returns its length."""
    schema = pa.schema([("row", pa.int64()), ("bucket", pa.large_string())])
    with path.open("wb") as file:

        class Stream:
            position = 0

            def write(self, data: bytes | memoryview) -> None:
                self.position += file.write(data)

        writer = StageFormat().open(Stream(), schema)
        writer.write(pa.RecordBatch.from_pydict({"row": range(len(buckets)), "bucket": buckets}, schema=schema))
        return writer.persist()


def test_an_encode_that_fails_is_tried_again(tmp_path: Path) -> None:
    """The stage stays rolled until the next start."""
    stages = Stages()
    sink = sharing_sink(tmp_path, open_store=stages.open_store)
    out = sink.local().open()
    out.write(many(0))
    stages.are_readable = False
    with pytest.raises(NotReady, match="has ended, and 1 of its stages"):
        out.finish()
    assert rows_in(tmp_path).total() == 0
    stages.are_readable = True
    with sink.local():
        assert rows_in(tmp_path) == counted(0, BUCKETS)


def test_a_full_disk_while_files_are_written_leaves_the_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that is not the store's is that of the whole encode, of which no file stays."""
    die_sharing(sharing_sink(tmp_path))

    class Full(OSError):
        pass

    class Store(LocalStore):
        def create(self, handle: PartHandle) -> Any:
            stream = super().create(handle)
            if handle.bucket == "k=7":
                monkeypatch.setattr(stream, "write", no_space)
            return stream

    def no_space(_data: bytes) -> None:
        raise Full(errno.ENOSPC, "deliberate")

    stage = rolled(tmp_path)
    (encoded,) = StagesInProcess(Store(str(tmp_path)), 1).encode([stage])
    assert encoded.problem is not None
    assert pending_in(tmp_path) == []
    # Nor of those that were written and waited for others to be committed with.
    assert list(tmp_path.rglob("*.in-progress")) == shared_in(tmp_path)
    assert len(shared_in(tmp_path)) == 1
