"""Readers that know nothing of partfile, on a tree that a sink is writing: finished rows once, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import partfile as pf
from support.sinks.life_cycle import LONG

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def rows(first: int) -> pa.Table:
    return pa.table({"id": range(first, first + 20), "key": [f"k{number % 3}" for number in range(20)]})


@pytest.fixture(params=["parquet", "json", "csv"])
def live(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A tree with finished files, open parts with rows that count, rows that count not yet, and checkpoints."""
    format = request.param
    sink = pf.FileSink(tmp_path / "base", uid="live", format=format, bucketer=pf.HiveBucketer("key"), rolling=LONG)
    with sink.local() as out:
        out.write(rows(0))
        out.savepoint(tmp_path / "savepoints")  # publishes every open part, and the sink goes on
        out.write(rows(20))
        out.checkpoint()
        out.write(rows(40))
        assert list((tmp_path / "base").rglob("_part-*"))
        yield tmp_path / "base", format


def ids(frame: Any) -> list[int]:
    return sorted(frame["id"].to_list() if isinstance(frame, pl.DataFrame) else frame["id"].tolist())


PANDAS: dict[str, Callable[..., Any]] = {
    "parquet": pd.read_parquet,
    "json": lambda path: pd.read_json(path, lines=True),
    "csv": pd.read_csv,
}
POLARS: dict[str, Callable[..., Any]] = {
    "parquet": pl.read_parquet,
    "json": pl.read_ndjson,
    "csv": pl.read_csv,
}


def test_partfile_reads_finished_rows(live: tuple[Path, str]) -> None:
    """The others are measured by it."""
    base, format = live
    assert sorted(pf.read(base, format=format).to_table()["id"].to_pylist()) == list(range(20))


def test_pandas_reads_a_directory_of_parquet_and_files_of_a_glob(live: tuple[Path, str]) -> None:
    """``pandas.read_parquet`` takes the base; the other readers take one file of a glob at a time."""
    base, format = live
    files = sorted(base.glob(f"**/*.{format}"))
    assert ids(pd.concat([PANDAS[format](path) for path in files])) == list(range(20))
    if format == "parquet":
        whole = pd.read_parquet(base)
        assert ids(whole) == list(range(20))
        assert set(whole["key"]) == {"k0", "k1", "k2"}


def test_polars_reads_a_glob(live: tuple[Path, str]) -> None:
    """With the keys of the directories for Parquet. A directory it refuses while a part is open."""
    base, format = live
    assert ids(POLARS[format](f"{base}/**/*.{format}")) == list(range(20))
    if format == "parquet":
        keyed = pl.read_parquet(f"{base}/**/*.parquet", hive_partitioning=True)
        assert sorted(set(keyed["key"])) == ["k0", "k1", "k2"]
        with pytest.raises(pl.exceptions.InvalidOperationError, match="different file extensions"):
            pl.read_parquet(base)


def test_duckdb_reads_a_glob(live: tuple[Path, str]) -> None:
    """And the keys of the directories."""
    base, format = live
    reader = {"parquet": "read_parquet", "json": "read_json", "csv": "read_csv"}[format]
    found = duckdb.table_function(reader, [f"{base}/**/*.{format}"])
    assert sorted(number for (number,) in found.select("id").fetchall()) == list(range(20))


def test_a_dataset_of_pyarrow_reads_the_directory(live: tuple[Path, str]) -> None:
    """It passes over names that begin with an underscore or a dot."""
    base, format = live
    table = ds.dataset(base, format=format, partitioning="hive").to_table()
    assert sorted(table["id"].to_pylist()) == list(range(20))
    assert set(table["key"].to_pylist()) == {"k0", "k1", "k2"}
