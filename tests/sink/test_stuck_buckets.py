"""Buckets in which no file can be made.

The others of their multi-bucket staging file get theirs, once, and nothing is lost.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from partfile.errors import ConfigError, NotReady, OutcomeUnknown, StoreError
from partfile.sink.encode import LocalEncoder, encode_staging_file
from partfile.sink.encoded_files import PartlyEncoded
from partfile.stores.local.store import LocalStore
from support.sinks.life_cycle import LONG
from support.sinks.recovery import go_back
from support.sinks.shared_streams import BUCKETS, closed, counted, many, rows_in, shared_in, sharing_sink
from support.sinks.staged_streams import checkpoint_ids

if TYPE_CHECKING:
    from pathlib import Path

    from partfile.sink.progress import BatchProgress
    from partfile.stores.base import PartHandle


STUCK = "k=7"
AGED: dict[str, Any] = {"rolling": LONG.model_copy(update={"rollover_interval_s": 1e-3})}
"""Options that make the task roll its staging file at each checkpoint."""


def block(base: Path) -> Path:
    """Put a foreign file where the directory of a bucket should be."""
    base.mkdir(parents=True, exist_ok=True)
    path = base / STUCK
    path.write_text("foreign")
    return path


def but_stuck(rows: Counter[tuple[str, int]]) -> Counter[tuple[str, int]]:
    """These rows, less those of the bucket without a file."""
    return Counter({place: count for place, count in rows.items() if place[0] != STUCK})


class Refusing(LocalStore):
    """A store that makes no file but in some buckets, and counts what is asked."""

    def __init__(self, base: Path, error: type[StoreError], allowed: set[str]) -> None:
        super().__init__(str(base))
        self._error = error
        self._allowed = allowed
        self.asked: list[str] = []

    def create(self, handle: PartHandle) -> Any:
        """Make it, or not."""
        self.asked.append(handle.bucket)
        if handle.bucket not in self._allowed:
            raise self._error("deliberate", path=handle.name)
        return super().create(handle)


@pytest.mark.parametrize("who", ["task", "coordinator"])
@pytest.mark.parametrize("format", ["parquet", "json"])
def test_a_bucket_without_a_file_holds_back_no_other(tmp_path: Path, format: str, who: str) -> None:
    """Whichever process encodes, the others are published at once, and the staging file waits for that one alone."""
    options: dict[str, Any] = {"format": format, **(AGED if who == "task" else {})}
    out = sharing_sink(tmp_path, **options).local().open()
    blocking = block(tmp_path)
    out.write(many(0, 2 * BUCKETS), position=2 * BUCKETS)
    out.checkpoint()
    if who == "coordinator":
        out.close()
        out = sharing_sink(tmp_path, **options).local().open()
    assert rows_in(tmp_path, format) == but_stuck(counted(0, 2 * BUCKETS))
    blocking.unlink()
    out.finish()
    assert rows_in(tmp_path, format) == counted(0, 2 * BUCKETS)
    assert set(rows_in(tmp_path, format).values()) == {1}


def test_what_is_there_is_not_made_again(tmp_path: Path) -> None:
    """Only the missing file is tried, at each checkpoint, and no checkpoint is spent on it in vain."""
    made: Counter[str] = Counter()

    class Counting(LocalStore):
        def create(self, handle: PartHandle) -> Any:
            made[handle.bucket] += not handle.is_staging_file
            return super().create(handle)

    out = sharing_sink(tmp_path, open_store=lambda url, _options: Counting(url), **AGED).local().open()
    block(tmp_path)
    out.write(many(0))
    out.checkpoint()
    checkpoints = checkpoint_ids(tmp_path)[-1]
    for _ in range(3):
        out.checkpoint()
    assert checkpoint_ids(tmp_path)[-1] == checkpoints + 3
    out.close()
    assert {bucket for bucket, count in made.items() if count > 1} == {STUCK}
    assert sum(made.values()) >= BUCKETS + 2


def test_what_is_stuck_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By each batch's progress, and by the log with the path at fault."""
    told: list[BatchProgress] = []
    out = sharing_sink(tmp_path, on_progress=told.append, **AGED).local().open()
    blocking = block(tmp_path)
    out.write(many(0))
    with caplog.at_level(logging.WARNING, "partfile"):
        out.checkpoint()
    assert "1 buckets of staging file" in caplog.text
    assert STUCK in caplog.text
    blocking.unlink()
    out.checkpoint()
    out.close()
    assert [one.staging_files_waiting for one in told] == [1, 0]


def test_a_store_that_makes_no_file_leaves_the_staging_file_as_it_was(tmp_path: Path) -> None:
    """Then the error is what it says of the first."""
    with sharing_sink(tmp_path, on_stop="keep").local() as out:
        out.write(many(0))
    with Refusing(tmp_path, NotReady, set()) as store, pytest.raises(NotReady, match="deliberate") as caught:
        encode_staging_file(
            store, (staging_file := closed(tmp_path)).part, staging_file.staging_file, staging_file.rows
        )
    assert not isinstance(caught.value, PartlyEncoded)


@pytest.mark.parametrize("threads", [1, 4])
def test_a_store_that_does_not_answer_is_not_waited_for_once_a_bucket(
    tmp_path: Path, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has been made until then is kept."""
    with sharing_sink(tmp_path, on_stop="keep").local() as out:
        out.write(many(0))
    monkeypatch.setattr(LocalStore, "persist_threads", threads)
    with Refusing(tmp_path, OutcomeUnknown, {"k=0", "k=1"}) as store:
        (encoded,) = LocalEncoder(store, 1).encode([closed(tmp_path)])
    assert sorted(file.part.bucket for file in encoded.files or ()) == ["k=0", "k=1"]
    assert isinstance(encoded.problem, PartlyEncoded)
    assert not encoded.is_done
    assert len(store.asked) <= 2 + 2 * threads


def test_going_back_leaves_the_files_that_some_buckets_have_got(tmp_path: Path) -> None:
    """Only the bucket without one goes back to what it held then; the others keep their later rows."""
    options: dict[str, Any] = {"retained_checkpoints": 9}
    out = sharing_sink(tmp_path, **options).local().open()
    out.write(many(0), position=BUCKETS)
    out.checkpoint()
    chosen = tmp_path / "_partfile" / "life" / f"chk-{checkpoint_ids(tmp_path)[-1]}"
    blocking = block(tmp_path)
    out.write(many(BUCKETS), position=2 * BUCKETS)
    with pytest.raises(NotReady, match=r"(?s)has ended .*1 staging files not encoded"):
        out.finish()
    assert rows_in(tmp_path) == but_stuck(counted(0, 2 * BUCKETS))
    blocking.unlink()
    go_back(tmp_path, chosen)
    with sharing_sink(tmp_path, **options).local() as again:
        assert again.position == BUCKETS
    assert rows_in(tmp_path) == but_stuck(counted(0, 2 * BUCKETS)) + Counter({(STUCK, 7): 1})


def test_behind_a_damaged_end_files_that_were_moved_away_are_not_made_again(tmp_path: Path) -> None:
    """The older checkpoint knows which buckets had theirs."""
    options: dict[str, Any] = {"retained_checkpoints": 9}
    out = sharing_sink(tmp_path, **AGED, **options).local().open()
    blocking = block(tmp_path)
    out.write(many(0), position=BUCKETS)
    out.checkpoint()
    chosen = tmp_path / "_partfile" / "life" / f"chk-{checkpoint_ids(tmp_path)[-1]}"
    out.checkpoint()
    out.close()
    for path in tmp_path.glob("k=*/part-*"):
        path.unlink()
    blocking.unlink()
    (tmp_path / "_partfile" / "life" / f"chk-{checkpoint_ids(tmp_path)[-1]}" / "_metadata").write_bytes(b"damaged")
    go_back(tmp_path, chosen)
    with sharing_sink(tmp_path, **options).local():
        assert rows_in(tmp_path) == Counter({(STUCK, 7): 1})
    assert len(shared_in(tmp_path)) == 1


def test_a_path_that_no_file_can_have_is_refused_when_its_rows_are_staged(tmp_path: Path) -> None:
    """Not by the encode, when they are promised: as a part of the bucket's own would be."""

    class Narrow(LocalStore):
        def check_path(self, path: str) -> None:
            if len(path) > 34:
                raise ConfigError(f"{path} is too long", path=path)

    options: dict[str, Any] = {"open_store": lambda url, _options: Narrow(url)}
    rows = pa.RecordBatch.from_pydict({"k": [1, 2, 3, 10**9, 4], "row": range(5)})
    with (
        sharing_sink(tmp_path, **options).local() as out,
        pytest.raises(ConfigError, match=r"k=1000000000/part-.*0-0"),
    ):
        out.write(rows)
    assert shared_in(tmp_path) == []
    with sharing_sink(tmp_path, **options).local() as out:
        out.write(rows.slice(0, 3))
