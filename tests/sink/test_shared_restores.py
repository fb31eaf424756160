"""Multi-bucket staging files after a crash, a failed encode, a rollback.

Each bucket's rows come once, or no bucket's do.
"""

from __future__ import annotations

import errno
import logging
import shutil
import zlib
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from partfile.errors import NotReady, PartDamaged, RecoveryRefused
from partfile.sink.encode import LocalEncoder
from partfile.stores.local.store import LocalStore
from partfile.writers.arrow_staging import StagingFormat
from support.sinks.recovery import go_back, recover_all
from support.sinks.shared_streams import (
    BUCKETS,
    closed,
    counted,
    die_sharing,
    many,
    mark_some_buckets,
    rows_in,
    shared_in,
    sharing_sink,
)
from support.sinks.staged_streams import StagingFiles, newest_checkpoint, pending_in

if TYPE_CHECKING:
    from pathlib import Path

    from partfile.stores.base import PartHandle


EACH_FORMAT = pytest.mark.parametrize("format", ["parquet", "json"])


@pytest.fixture
def some_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the files of a staging file some have its name, others one of their own."""
    mark_some_buckets(monkeypatch)


@pytest.mark.usefixtures("some_marked")
@EACH_FORMAT
def test_the_next_start_encodes_what_the_checkpoint_vouches_for(tmp_path: Path, format: str) -> None:
    """By one checkpoint after the takeover that holds all files; what was written later never counts."""
    die_sharing(sharing_sink(tmp_path, format=format))
    (staging_file,) = shared_in(tmp_path)
    staging_file.write_bytes(staging_file.read_bytes() + b"garbage")
    with sharing_sink(tmp_path, format=format, retained_checkpoints=9).local() as out:
        assert out.position == 2 * BUCKETS
        assert rows_in(tmp_path, format) == counted(0, 2 * BUCKETS)
        out.write(many(2 * BUCKETS))
    assert rows_in(tmp_path, format) == counted(0, 3 * BUCKETS)


@pytest.mark.usefixtures("some_marked")
def test_a_zombie_goes_on_with_its_staging_file_in_vain(tmp_path: Path) -> None:
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


@pytest.mark.usefixtures("some_marked")
@pytest.mark.parametrize("damage", ["message", "fewer", "more", "outside", "format"])
def test_a_damaged_multi_bucket_staging_file_gives_no_file_at_all(tmp_path: Path, damage: str) -> None:
    """One that cannot be read, holds other rows than its checkpoint says, or names a bucket outside the base."""
    die_sharing(sharing_sink(tmp_path))
    staging_file = closed(tmp_path)
    (path,) = shared_in(tmp_path)
    if damage == "message":
        path.write_bytes(path.read_bytes()[: staging_file.part.valid_length - 100] + bytes(200))
    elif damage == "outside":
        staging_file = staging_file.model_copy(
            update={"part": staging_file.part.at(rewrite(path, ["../x", "k=1"])), "rows": 2}
        )
    elif damage == "format":
        spec = staging_file.staging_file.model_copy(update={"spec": {"format": "json"}})
        staging_file = staging_file.model_copy(update={"staging_file": spec})
    else:
        staging_file = staging_file.model_copy(update={"rows": staging_file.rows + (1 if damage == "fewer" else -1)})
    if damage == "outside":
        # With the checksum of what is there: else that would tell first.
        crc32 = zlib.crc32(path.read_bytes()[: staging_file.part.valid_length])
        staging_file = staging_file.model_copy(
            update={"staging_file": staging_file.staging_file.model_copy(update={"crc32": crc32})}
        )
    (encoded,) = LocalEncoder(LocalStore(str(tmp_path)), 1).encode([staging_file])
    assert isinstance(encoded.problem, PartDamaged), encoded
    assert encoded.files is None
    assert pending_in(tmp_path) == []
    assert not (tmp_path.parent / "x").exists()


def rewrite(path: Path, buckets: list[str]) -> int:
    """Make a staging file of a row a bucket in place of another; returns its length."""
    schema = pa.schema([("row", pa.int64()), ("bucket", pa.large_string())])
    with path.open("wb") as file:

        class Stream:
            position = 0

            def write(self, data: bytes | memoryview) -> None:
                self.position += file.write(data)

        writer = StagingFormat().open(Stream(), schema)
        writer.write(pa.RecordBatch.from_pydict({"row": range(len(buckets)), "bucket": buckets}, schema=schema))
        return writer.persist()


@pytest.mark.usefixtures("some_marked")
def test_an_encode_that_fails_is_tried_again(tmp_path: Path) -> None:
    """The staging file stays rolled until the next start."""
    staging_files = StagingFiles()
    sink = sharing_sink(tmp_path, open_store=staging_files.open_store)
    out = sink.local().open()
    out.write(many(0))
    staging_files.are_readable = False
    with pytest.raises(NotReady, match=r"(?s)has ended .*1 staging files not encoded"):
        out.finish()
    assert rows_in(tmp_path).total() == 0
    staging_files.are_readable = True
    with sink.local():
        assert rows_in(tmp_path) == counted(0, BUCKETS)


@pytest.mark.usefixtures("some_marked")
def test_a_full_disk_while_files_are_written_leaves_the_staging_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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

    staging_file = closed(tmp_path)
    (encoded,) = LocalEncoder(Store(str(tmp_path)), 1).encode([staging_file])
    assert encoded.problem is not None
    assert pending_in(tmp_path) == []
    # Nor of those that were written and waited for others to be committed with.
    assert list(tmp_path.rglob("*.in-progress")) == shared_in(tmp_path)
    assert len(shared_in(tmp_path)) == 1


# Rollbacks and savepoints of sinks whose buckets share staging files: which files of a staging file stay, which are
# made.


@pytest.mark.usefixtures("some_marked")
def test_going_back_to_a_checkpoint_that_has_the_staging_file_open(tmp_path: Path) -> None:
    """Its older length is a prefix; the rows since then come again, once."""
    out = sharing_sink(tmp_path, retained_checkpoints=9).local().open()
    out.write(many(0), position=BUCKETS)
    out.checkpoint()
    chosen = newest_checkpoint(tmp_path)
    out.write(many(BUCKETS), position=2 * BUCKETS)
    out.checkpoint()
    out.close()
    with pytest.raises(RecoveryRefused, match="1 later parts"):
        recover_all(tmp_path, restore_from=str(chosen))
    go_back(tmp_path, chosen)
    with sharing_sink(tmp_path, retained_checkpoints=9).local() as again:
        assert again.position == BUCKETS
        assert rows_in(tmp_path) == counted(0, BUCKETS)
        again.write(many(BUCKETS, 2 * BUCKETS))
    assert rows_in(tmp_path) == counted(0, 3 * BUCKETS)


@pytest.mark.usefixtures("some_marked")
def test_going_back_leaves_files_that_were_promised_since(tmp_path: Path) -> None:
    """They are named as later parts, and their later rows come twice."""
    options: dict[str, Any] = {"retained_checkpoints": 9}
    out = sharing_sink(tmp_path, **options).local().open()
    out.write(many(0), position=BUCKETS)
    out.checkpoint()
    chosen = newest_checkpoint(tmp_path)
    out.write(many(BUCKETS), position=2 * BUCKETS)
    out.finish()
    # The newest checkpoint names them no more: they are known by what is finished.
    sharing_sink(tmp_path, **options).local().open().close()
    with pytest.raises(RecoveryRefused, match=f"(?s){BUCKETS} later parts.*'k=0/part-"):
        recover_all(tmp_path, restore_from=str(chosen))
    go_back(tmp_path, chosen)
    with sharing_sink(tmp_path, **options).local() as again:
        assert again.position == BUCKETS
        again.write(many(BUCKETS))
    assert rows_in(tmp_path) == counted(0, 2 * BUCKETS) + counted(BUCKETS, 2 * BUCKETS)


@pytest.mark.usefixtures("some_marked")
def test_an_encode_since_is_no_later_checkpoint(tmp_path: Path) -> None:
    """A start has encoded what the checkpoint held: naming that checkpoint is no rollback."""
    die_sharing(sharing_sink(tmp_path))
    chosen = newest_checkpoint(tmp_path)
    sharing_sink(tmp_path, retained_checkpoints=9).local().open().close()
    assert newest_checkpoint(tmp_path) != chosen
    with sharing_sink(tmp_path, restore_from=chosen, retained_checkpoints=9).local() as out:
        assert out.position == 2 * BUCKETS
        out.write(many(2 * BUCKETS))
    assert rows_in(tmp_path) == counted(0, 3 * BUCKETS)


@pytest.mark.usefixtures("some_marked")
def test_a_savepoint_names_no_multi_bucket_staging_file(tmp_path: Path) -> None:
    """It is restored where the sink's files are not."""
    out = sharing_sink(tmp_path / "out").local().open()
    out.write(many(0), position=BUCKETS)
    location = out.savepoint(tmp_path / "savepoints")
    assert rows_in(tmp_path / "out") == counted(0, BUCKETS)
    out.close()
    shutil.rmtree(tmp_path / "out")
    with sharing_sink(tmp_path / "fresh", restore_from=location).local() as fresh:
        assert fresh.position == BUCKETS
        fresh.write(many(BUCKETS))
    assert rows_in(tmp_path / "fresh") == counted(BUCKETS, 2 * BUCKETS)


@pytest.mark.usefixtures("some_marked")
@pytest.mark.parametrize("published", [0, 5, BUCKETS])
def test_behind_a_damaged_end_only_buckets_without_a_file_are_encoded(
    tmp_path: Path, published: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Files that are there stay, with their later rows; the others are made of what the older checkpoint holds."""
    out = sharing_sink(tmp_path, retained_checkpoints=9).local().open()
    out.write(many(0, 2 * BUCKETS), position=2 * BUCKETS)
    out.checkpoint()
    chosen = newest_checkpoint(tmp_path)
    out.write(many(2 * BUCKETS))
    out.finish()
    files = sorted(tmp_path.glob("k=*/part-*"))
    for path in files[published:]:
        path.unlink()
    expected = counted(0, 2 * BUCKETS)
    staying = {path.parent.name for path in files[:published]}
    expected.update(place for place in counted(2 * BUCKETS, 3 * BUCKETS) if place[0] in staying)
    (newest_checkpoint(tmp_path) / "_metadata").write_bytes(b"damaged")
    with caplog.at_level(logging.CRITICAL, "partfile"):
        go_back(tmp_path, chosen)
    with sharing_sink(tmp_path, retained_checkpoints=9).local() as again:
        assert again.position == 2 * BUCKETS
        assert rows_in(tmp_path) == expected


@pytest.mark.usefixtures("some_marked")
def test_behind_a_damaged_end_the_base_is_a_bucket_like_any_other(tmp_path: Path) -> None:
    """The path of its file would be that of the staging file: it being there says nothing of the other buckets."""

    def somewhere(batch: pa.RecordBatch) -> pa.Array[Any]:
        return pa.array(["" if key == 0 else f"k{key}" for key in batch["k"].to_pylist()])

    options: dict[str, Any] = {"retained_checkpoints": 9, "bucketer": somewhere}
    out = sharing_sink(tmp_path, **options).local().open()
    out.write(many(0), position=BUCKETS)
    out.checkpoint()
    chosen = newest_checkpoint(tmp_path)
    out.finish()
    for path in tmp_path.glob("k*/part-*"):
        path.unlink()
    assert len(list(tmp_path.rglob("part-*"))) == 1
    (newest_checkpoint(tmp_path) / "_metadata").write_bytes(b"damaged")
    go_back(tmp_path, chosen)
    with sharing_sink(tmp_path, **options).local() as again:
        assert again.position == BUCKETS
    found = sorted(row for path in tmp_path.rglob("part-*.parquet") for row in pq.read_table(path)["row"].to_pylist())
    assert found == list(range(BUCKETS))


@pytest.mark.usefixtures("some_marked")
def test_behind_a_damaged_end_a_multi_bucket_staging_file_that_is_gone_is_told(tmp_path: Path) -> None:
    """Although files of some buckets are there: of the others nothing is known."""
    out = sharing_sink(tmp_path, retained_checkpoints=9).local().open()
    out.write(many(0), position=BUCKETS)
    out.checkpoint()
    chosen = newest_checkpoint(tmp_path)
    out.finish()
    (staging_file,) = shared_in(tmp_path)
    staging_file.unlink()
    (newest_checkpoint(tmp_path) / "_metadata").write_bytes(b"damaged")
    with pytest.raises(RecoveryRefused, match="1 parts that"):
        go_back(tmp_path, chosen)


@pytest.mark.usefixtures("some_marked")
@pytest.mark.parametrize("format", ["parquet", "json"])
@pytest.mark.parametrize("messages", [1, 2, 3])
def test_behind_a_damaged_end_a_staging_file_whose_buckets_all_have_their_files_is_no_dead_end(
    tmp_path: Path, messages: int, format: str
) -> None:
    """Nothing is left to encode of it, of however many messages it consists; the sink goes on."""
    options: dict[str, Any] = {"retained_checkpoints": 9, "format": format}
    out = sharing_sink(tmp_path, **options).local().open()
    for message in range(messages):
        out.write(many(message * BUCKETS), position=(message + 1) * BUCKETS)
        out.checkpoint()
    chosen, rows = newest_checkpoint(tmp_path), messages * BUCKETS
    out.finish()
    (newest_checkpoint(tmp_path) / "_metadata").write_bytes(b"damaged")
    go_back(tmp_path, chosen)
    with sharing_sink(tmp_path, **options).local() as again:
        assert again.position == rows
        again.write(many(rows))
    assert rows_in(tmp_path, format) == counted(0, rows + BUCKETS)
