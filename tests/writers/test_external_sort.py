"""Temporary files of rows that are sorted: full disks, and rows that are a secret."""

from __future__ import annotations

import datetime as dt
import decimal
import errno
import logging
import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import partfile as pf
from partfile.errors import NotApplied, NotReady
from partfile.writers.external_sort import ExternalSort
from partfile.writers.parquet import ParquetFormat
from support.files.encryption import decrypted_ids, encryption, is_encrypted
from support.sinks.life_cycle import batch
from support.sinks.staged_streams import finished_rows, names, staged_sink

if TYPE_CHECKING:
    from collections.abc import Iterator


_SECRET = b"confidential"


def _rows(count: int) -> pa.RecordBatch:
    numbers = random.Random(3).sample(range(count), count)
    return pa.record_batch({"id": numbers, "text": [f"{_SECRET.decode()} {number}" for number in numbers]})


class SeenFiles:
    """Temporary files, and what is in them when they are closed."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.contents: list[bytes] = []
        make = tempfile.NamedTemporaryFile

        def temporary(**options: Any) -> Any:
            file: Any = make(**options)
            close = file.close

            def note_and_close() -> None:
                if not file.closed:
                    self.contents.append(Path(file.name).read_bytes())
                close()

            file.close = note_and_close
            return file

        patch.setattr("tempfile.TemporaryFile", temporary)


@pytest.mark.parametrize("is_secret", [True, False])
def test_runs_of_what_is_encrypted_are_encrypted(monkeypatch: pytest.MonkeyPatch, *, is_secret: bool) -> None:
    """Their bytes say nothing, and every row comes back in order; other runs are as they were."""
    seen = SeenFiles(monkeypatch)
    rows = _rows(5000)
    runs = ExternalSort(rows.schema, ["id"], 20_000, is_secret=is_secret)
    for start in range(0, 5000, 100):
        runs.add(rows.slice(start, 100))
    table = pa.Table.from_batches(list(runs.batches()))
    assert table["id"].to_pylist() == list(range(5000))
    assert table["text"].to_pylist() == [f"{_SECRET.decode()} {number}" for number in range(5000)]
    assert len(seen.contents) > 5
    assert [_SECRET in content for content in seen.contents] == [not is_secret] * len(seen.contents)


def test_a_format_that_encrypts_encrypts_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of a part lies in the clear while it is sorted."""
    seen = SeenFiles(monkeypatch)
    form = ParquetFormat(encryption=encryption, sort_by=("id",), row_group_bytes=20_000)
    with pf.FileSink(tmp_path, uid="life", format=form).local() as out:
        out.write(_rows(5000))
        out.write(_rows(3000))
    (path,) = tmp_path.glob("part-*")
    assert is_encrypted(path)
    assert decrypted_ids(path) == sorted([*range(5000), *range(3000)])
    assert seen.contents
    assert not any(_SECRET in content for content in seen.contents)


def test_types_come_back_from_encrypted_runs() -> None:
    """Also those that Parquet has no form for, and gives back as near ones."""
    count = 300
    columns = {
        "id": pa.array(range(count, 0, -1)),
        "seconds": pa.array([*range(count - 1), None], pa.timestamp("s")),
        "zone": pa.array(range(count), pa.timestamp("ns", "America/New_York")),
        "day": pa.array([dt.date(2024, 2, 29)] * count, pa.date64()),
        "span": pa.array(range(count), pa.duration("us")),
        "clock": pa.array(range(count), pa.time32("s")),
        "word": pa.array(["a", None, "b"] * (count // 3)).dictionary_encode(),
        "price": pa.array([decimal.Decimal(1)] * count, pa.decimal256(50, 2)),
        "pair": pa.array([[1, None]] * count, pa.list_(pa.int8(), 2)),
        "map": pa.array([[("k", None)], None, []] * (count // 3), pa.map_(pa.large_string(), pa.float32())),
        "nothing": pa.nulls(count),
    }
    rows = pa.record_batch(columns)
    runs = ExternalSort(rows.schema, ["id"], 2000, is_secret=True)
    for start in range(0, count, 30):
        runs.add(rows.slice(start, 30))
    found = pa.Table.from_batches(list(runs.batches()))
    assert found.schema.types == rows.schema.types
    assert found.to_pylist() == rows.to_pylist()[::-1]


def _no_room(**_: object) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def _full_device(**_: object) -> Any:
    return Path("/dev/full").open("r+b", buffering=0)


@pytest.mark.parametrize("make", [_no_room, _full_device])
@pytest.mark.parametrize("is_secret", [True, False])
def test_a_full_disk_is_told_with_its_path(make: Any, monkeypatch: pytest.MonkeyPatch, *, is_secret: bool) -> None:
    """It is this host's trouble, which may pass."""
    monkeypatch.setattr("tempfile.tempdir", "/scratch/of/this/host")
    monkeypatch.setattr("tempfile.TemporaryFile", make)
    rows = _rows(2000)
    runs = ExternalSort(rows.schema, ["id"], 20_000, is_secret=is_secret)
    with pytest.raises(NotApplied, match="No space left") as failed:
        runs.add(rows)
    assert failed.value.path == "/scratch/of/this/host"
    assert "TMPDIR" in failed.value.hint


class FullAtTheSecond:
    """Temporary files, the second of which finds no room, neither when it is written nor when it is closed."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.files: list[Any] = []
        self._make = tempfile.TemporaryFile
        patch.setattr("tempfile.TemporaryFile", self._temporary)

    def _temporary(self, **options: Any) -> Any:
        is_full = len(self.files) == 1
        self.files.append(Path("/dev/full").open("r+b") if is_full else self._make(**options))  # noqa: SIM115
        return self.files[-1]


@pytest.mark.parametrize("rows", [5000, 150])
def test_where_the_second_run_finds_no_room_the_first_is_given_up(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """While the error is there, which a caller may keep: as rows come, and as the last of them are spilled."""
    made = FullAtTheSecond(monkeypatch)
    runs = ExternalSort(_rows(1).schema, ["id"], _rows(100).nbytes)

    def sort() -> None:
        runs.add(_rows(rows).slice(0, 100))
        runs.add(_rows(rows).slice(100))
        list(runs.batches())

    with pytest.raises(NotApplied, match="No space left") as failed:
        sort()
    assert failed.value.hint
    assert [file.closed for file in made.files] == [True, True]
    # What is left is not taken for all rows.
    with pytest.raises(ValueError, match="closed file"):
        list(runs.batches())


def made_files(patch: pytest.MonkeyPatch) -> list[Any]:
    """The temporary files that are made from now on."""
    made, make = list[Any](), tempfile.TemporaryFile

    def temporary(**options: Any) -> Any:
        made.append(make(**options))
        return made[-1]

    patch.setattr("tempfile.TemporaryFile", temporary)
    return made


@pytest.mark.parametrize("at", ["the rows", "the file"])
def test_runs_are_given_up_with_their_file(monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """Where reading the staging file fails, and where writing the file does."""
    made = made_files(monkeypatch)
    rows = _rows(1000)

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, 1000, 100):
            yield rows.slice(start, 100)
        if at == "the rows":
            raise NotReady("not now")

    class Full:
        position = 0

        def write(self, data: bytes | memoryview) -> None:
            if self.position:
                raise NotReady("not now")
            self.position += len(data)

    form = ParquetFormat(sort_by=("id",), row_group_bytes=5000)
    with pytest.raises(NotReady, match="not now") as failed:
        form.encode(batches(), rows.schema, Full())
    assert failed.value.__traceback__ is not None
    assert len(made) > 1
    assert all(file.closed for file in made)


def test_a_part_that_is_given_up_gives_up_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is none that is encoded, but a file a checkpoint."""
    made = made_files(monkeypatch)
    form = ParquetFormat(sort_by=("id",), row_group_bytes=5000)
    out = pf.FileSink(tmp_path, uid="life", format=form, columnar="per_checkpoint").local().open()
    out.write(_rows(1000))
    assert not any(file.closed for file in made)
    out.close()
    assert [file.closed for file in made] == [True]


def test_a_staging_file_is_encoded_once_there_is_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Until then it stays rolled, with a warning, and the sink goes on."""
    options: dict[str, Any] = {
        "format": ParquetFormat(sort_by=("row",), row_group_bytes=1000),
        "bucketer": None,
    }
    out = staged_sink(tmp_path, **options).local().open()
    out.write(batch(0, 500))
    out.checkpoint()
    out.close()
    with monkeypatch.context() as patch:
        patch.setattr("tempfile.TemporaryFile", _no_room)
        with caplog.at_level(logging.WARNING, "partfile"):
            out = staged_sink(tmp_path, **options).local().open()
            assert finished_rows(tmp_path) == {}
            with pytest.raises(NotReady, match=r"(?s)has ended .*1 staging files not encoded"):
                out.finish()
        assert "rows cannot be sorted by way of temporary files" in caplog.text
    with staged_sink(tmp_path, **options).local():
        assert finished_rows(tmp_path) == names(0, 500)
