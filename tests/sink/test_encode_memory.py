"""A part of whatever size is encoded in bounded memory: with ``--long`` each file has two gigabytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from partfile.writers.orc import OrcFormat
from partfile.writers.parquet import ParquetFormat
from support.programs.encode_alone import encode_alone, write_staging_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from partfile.writers.base import BulkFormat


pytestmark = pytest.mark.slow

LONG_BYTES = 2 << 30
SHORT_BYTES = 320 << 20
"""Three row groups of Parquet, or five stripes of ORC: held at once they would break each bound."""
PARQUET, SORTED = ParquetFormat(), ParquetFormat(sort_by=("key",))
# Its default codec makes less than the staging file of these texts.
ORC = OrcFormat(compression="lz4")


class Case(NamedTuple):
    """A format, and rows for it."""

    form: BulkFormat
    text_bytes: int
    """Of the text in each row."""
    most_bytes: int
    """What the process may have at any time, interpreter and libraries included."""


CASES = {
    "parquet": Case(PARQUET, 100, 500 << 20),
    "parquet, sorted": Case(SORTED, 100, 800 << 20),
    "parquet, texts of 1 MiB": Case(PARQUET, 1 << 20, 500 << 20),
    "parquet, sorted, texts of 1 MiB": Case(SORTED, 1 << 20, 800 << 20),
    "orc": Case(ORC, 100, 400 << 20),
    "orc, texts of 1 MiB": Case(ORC, 1 << 20, 750 << 20),
}


@pytest.mark.fault("T4")
@pytest.mark.timeout(3600)
def test_the_memory_of_an_encode_does_not_grow_with_the_part(
    tmp_path: Path, chosen: Callable[[int, int], list[int]], request: pytest.FixtureRequest
) -> None:
    """By the high-water mark of a process that does nothing else; one case in every run."""
    size_bytes = LONG_BYTES if request.config.getoption("--long") else SHORT_BYTES
    for number in chosen(len(CASES), 1):
        name, case = list(CASES.items())[number - 1]
        staging_file = write_staging_file(tmp_path, case.form, size_bytes, case.text_bytes)
        took = encode_alone(tmp_path, staging_file)
        figures = f"{took.peak_bytes >> 20} MiB, {took.seconds:.1f} s"
        print(f"{name}: {took.file_bytes} bytes, {took.rows} rows, {figures}")  # noqa: T201 - what it is run for.
        assert took.rows == staging_file.rows
        assert took.file_bytes >= size_bytes
        assert took.peak_bytes < case.most_bytes, name
        # Files as large as these are not kept for the next case.
        for path in tmp_path.iterdir():
            path.unlink()
