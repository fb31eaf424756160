"""Rollbacks and savepoints of sinks whose buckets share stages: which files of a stage stay, which are made."""

from __future__ import annotations

import logging
import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shared_streams import BUCKETS, counted, die_sharing, many, mark_some_buckets, rows_in, shared_in, sharing_sink
from staged_streams import newest_checkpoint

from partfile.errors import RecoveryRefused

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def some_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the files of a stage some have its name, others one of their own."""
    mark_some_buckets(monkeypatch)


def test_going_back_to_a_checkpoint_that_has_the_stage_open(tmp_path: Path) -> None:
    """Its older length is a prefix; the rows since then come again, once."""
    out = sharing_sink(tmp_path, retained_checkpoints=9).local().open()
    out.write(many(0), position=BUCKETS)
    out.checkpoint()
    chosen = newest_checkpoint(tmp_path)
    out.write(many(BUCKETS), position=2 * BUCKETS)
    out.checkpoint()
    out.close()
    options: dict[str, Any] = {"restore_from": chosen, "retained_checkpoints": 9}
    with pytest.raises(RecoveryRefused, match="1 later parts"):
        sharing_sink(tmp_path, **options).local().open()
    with sharing_sink(tmp_path, accept_newer=True, **options).local() as again:
        assert again.position == BUCKETS
        assert rows_in(tmp_path) == counted(0, BUCKETS)
        again.write(many(BUCKETS, 2 * BUCKETS))
    assert rows_in(tmp_path) == counted(0, 3 * BUCKETS)


def test_going_back_leaves_files_that_were_promised_since(tmp_path: Path) -> None:
    """They are named as later parts, and their later rows come twice."""
    options: dict[str, Any] = {"retained_checkpoints": 9}
    out = sharing_sink(tmp_path, **options).local().open()
    out.write(many(0), position=BUCKETS)
    out.checkpoint()
    chosen = newest_checkpoint(tmp_path)
    out.write(many(BUCKETS), position=2 * BUCKETS)
    out.finish()
    # The newest link names them no more: they are known by what is finished.
    sharing_sink(tmp_path, **options).local().open().close()
    back: dict[str, Any] = {**options, "restore_from": chosen}
    with pytest.raises(RecoveryRefused, match=f"{BUCKETS} later parts.*'k=0/part-"):
        sharing_sink(tmp_path, **back).local().open()
    with sharing_sink(tmp_path, accept_newer=True, **back).local() as again:
        assert again.position == BUCKETS
        again.write(many(BUCKETS))
    assert rows_in(tmp_path) == counted(0, 2 * BUCKETS) + counted(BUCKETS, 2 * BUCKETS)


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


def test_a_savepoint_names_no_shared_stage(tmp_path: Path) -> None:
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
    options: dict[str, Any] = {"restore_from": chosen, "accept_newer": True, "retained_checkpoints": 9}
    with caplog.at_level(logging.CRITICAL, "partfile"), sharing_sink(tmp_path, **options).local() as again:
        assert again.position == 2 * BUCKETS
        assert rows_in(tmp_path) == expected


def test_behind_a_damaged_end_the_base_is_a_bucket_like_any_other(tmp_path: Path) -> None:
    """The path of its file would be that of the stage: it being there says nothing of the other buckets."""

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
    with sharing_sink(tmp_path, restore_from=chosen, accept_newer=True, **options).local() as again:
        assert again.position == BUCKETS
    found = sorted(row for path in tmp_path.rglob("part-*.parquet") for row in pq.read_table(path)["row"].to_pylist())
    assert found == list(range(BUCKETS))


def test_behind_a_damaged_end_a_shared_stage_that_is_gone_is_told(tmp_path: Path) -> None:
    """Although files of some buckets are there: nobody knows of the others."""
    out = sharing_sink(tmp_path, retained_checkpoints=9).local().open()
    out.write(many(0), position=BUCKETS)
    out.checkpoint()
    chosen = newest_checkpoint(tmp_path)
    out.finish()
    (stage,) = shared_in(tmp_path)
    stage.unlink()
    (newest_checkpoint(tmp_path) / "_metadata").write_bytes(b"damaged")
    with pytest.raises(RecoveryRefused, match="1 parts that"):
        sharing_sink(tmp_path, restore_from=chosen, accept_newer=True).local().open()


@pytest.mark.parametrize("format", ["parquet", "json"])
@pytest.mark.parametrize("messages", [1, 2, 3])
def test_behind_a_damaged_end_a_stage_whose_buckets_all_have_their_files_is_no_dead_end(
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
    with sharing_sink(tmp_path, restore_from=chosen, accept_newer=True, **options).local() as again:
        assert again.position == rows
        again.write(many(rows))
    assert rows_in(tmp_path, format) == counted(0, rows + BUCKETS)
