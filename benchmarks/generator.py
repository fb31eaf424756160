"""Seeded test data: events of one day, as Parquet files that stand for the input of a stream.

Six columns, about 206 bytes a row in Arrow: ``event_time`` within 24 hours, ``user_id`` (Zipf 1.2), ``country`` (50),
``url`` (about 69 characters), ``payload`` (about 99 characters; 10 % need escaping in JSON, 2 % are not ASCII) and
``amount`` (2 % null).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pathlib import Path

SEED = 20130101
ROWS_PER_FILE = 100_000
FILES_PER_BATCH = 2

_DAY_START_US = 1_767_225_600_000_000
_HOUR_US = 3_600_000_000
_WORDS = 1400
_WORDS_PER_PAYLOAD = 10
_join: Any = pc.binary_join_element_wise  # the stubs know only joins of arrays of one type
_ESCAPED = ['say "now"', "a\\b\\c", "line\nbreak", "tab\there", 'quote"', "back\\slash", "\r\nend", '{"k":1}']
_FOREIGN = ["naïveté", "Größe", "東京都", "żółć", "мир", "🚀 start", "crème", "Ελλάδα"]


@dataclass(frozen=True, slots=True)
class Dataset:
    """A directory of Parquet files of ROWS_PER_FILE rows each."""

    path: Path
    files: int

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return self.files * ROWS_PER_FILE


def dataset(directory: Path, order: Literal["shuffled", "ordered"], files: int, files_a_day: int) -> Dataset:
    """Make a data set, or find the one made before with the same parameters.

    Args:
        directory: Where data sets are kept.
        order: ``shuffled``: each file touches all 24 hours. ``ordered``: arrival order, 1 % up to 30 minutes late.
        files: How many files.
        files_a_day: How many make up the whole day; with ``ordered``, each covers that share of it.
    """
    path = directory / f"{order}-{files}-of-{files_a_day}-{SEED}"
    complete = path / "_complete"
    if not complete.exists():
        path.mkdir(parents=True, exist_ok=True)
        for number in range(files):
            write_file(path / f"{number:05}.parquet", events(order, number, files_a_day), number)
        complete.touch()
    return Dataset(path, files)


def csv_dataset(directory: Path, order: Literal["shuffled", "ordered"], files: int, files_a_day: int) -> Dataset:
    """The same rows as CSV (RFC 4180), for engines that read nothing else alike.

    Times are UTC without a zone; line breaks within a payload are blanks: readers that split files cannot have them.
    """
    path = directory / f"csv-{order}-{files}-of-{files_a_day}-{SEED}"
    complete = path / "_complete"
    if not complete.exists():
        path.mkdir(parents=True, exist_ok=True)
        for number in range(files):
            _write_csv(path / f"{number:05}.csv", events(order, number, files_a_day), number)
        complete.touch()
    return Dataset(path, files)


def one_row_files(directory: Path, files: int) -> Path:
    """Files of one row each, a minute apart: the smallest micro-batches there are."""
    path = directory / f"one-row-{files}-{SEED}"
    path.mkdir(parents=True, exist_ok=True)
    row = events("ordered", 0, 1).slice(0, 1)
    place = row.schema.get_field_index("event_time")
    for number in range(files):
        time = pa.array([_DAY_START_US + number * 60_000_000], pa.timestamp("us", "UTC"))
        write_file(path / f"{number:05}.parquet", row.set_column(place, row.schema.field(place), time), number)
    return path


def write_file(path: Path, rows: pa.Table, number: int) -> None:
    """Write one file; Spark reads files in the order of the modification times set here."""
    pq.write_table(rows, path, compression="snappy")
    _set_time(path, number)


def _write_csv(path: Path, rows: pa.Table, number: int) -> None:
    place = rows.schema.get_field_index("payload")
    one_line = pc.replace_substring_regex(rows["payload"], "[\r\n]+", " ")
    naive = rows["event_time"].cast(pa.timestamp("us"))
    flat = rows.set_column(place, "payload", one_line).set_column(0, "event_time", naive)
    pyarrow.csv.write_csv(flat, path, pyarrow.csv.WriteOptions(include_header=False))
    _set_time(path, number)


def _set_time(path: Path, number: int) -> None:
    seconds = _DAY_START_US // 1_000_000 + number
    os.utime(path, (seconds, seconds))


def events(order: Literal["shuffled", "ordered"], number: int, files_a_day: int) -> pa.Table:
    """The rows of one file; every file has random numbers of its own."""
    rng = np.random.default_rng([SEED, number])
    rows = ROWS_PER_FILE
    amount = np.round(rng.gamma(2.0, 40.0, rows), 2)
    return pa.table(
        {
            "event_time": pa.array(_times(rng, order, number, files_a_day), pa.timestamp("us", "UTC")),
            "user_id": pa.array(np.minimum(rng.zipf(1.2, rows), 1 << 40), pa.int64()),
            "country": _pick(rng, [chr(65 + code // 10) + chr(65 + code % 10) for code in range(50)], rows),
            "url": _urls(rng, rows),
            "payload": _payloads(rng, rows),
            "amount": pa.array(amount, pa.float64(), mask=rng.random(rows) < 0.02),
        }
    )


def _times(rng: np.random.Generator, order: str, number: int, files_a_day: int) -> Any:
    if order == "shuffled":
        return _DAY_START_US + rng.integers(0, 24 * _HOUR_US, ROWS_PER_FILE)
    span = 24 * _HOUR_US // files_a_day
    arrival = np.sort(rng.integers(number * span, (number + 1) * span, ROWS_PER_FILE))
    late = np.where(rng.random(ROWS_PER_FILE) < 0.01, rng.integers(0, _HOUR_US // 2, ROWS_PER_FILE), 0)
    return _DAY_START_US + np.maximum(arrival - late, 0)


def _urls(rng: np.random.Generator, rows: int) -> Any:
    sections = ["books", "music", "garden", "kitchen", "toys", "sports", "office", "health"]
    return _join(
        "https://www.shop.example",
        _pick(rng, sections, rows),
        pc.utf8_lpad(pc.cast(pa.array(rng.integers(0, 50_000, rows)), pa.string()), 8, "0"),
        _join(
            "view?ref=campaign",
            pc.cast(pa.array(rng.integers(10, 99, rows)), pa.string()),
            pc.cast(pa.array(rng.integers(10**6, 10**7, rows)), pa.string()),
            "-",
        ),
        "/",
    )


def _payloads(rng: np.random.Generator, rows: int) -> Any:
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = ["".join(letters[rng.integers(0, 26, length)]) for length in rng.integers(6, 13, _WORDS)]
    parts = [_pick(rng, words, rows) for _ in range(_WORDS_PER_PAYLOAD)]
    parts[3] = pc.if_else(pa.array(rng.random(rows) < 0.10), _pick(rng, _ESCAPED, rows), parts[3])
    parts[6] = pc.if_else(pa.array(rng.random(rows) < 0.02), _pick(rng, _FOREIGN, rows), parts[6])
    return _join(*parts, " ")


def _pick(rng: np.random.Generator, choices: list[str], rows: int) -> pa.Array[Any]:
    places: pa.Int64Array = pa.array(rng.integers(0, len(choices), rows), pa.int64())
    return pa.array(choices).take(places)
