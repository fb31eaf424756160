"""Readers that know nothing of partfile, on a tree that a sink is writing: finished rows once, and nothing else."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import duckdb
import fastavro
import pandas as pd
import polars as pl
import pyarrow.dataset as ds
import pytest

import partfile as pf
from support.sinks.live_tree import FINISHED, live_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(params=["parquet", "json", "csv"])
def live(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """Such a tree, and its format."""
    with live_tree(tmp_path / "base", request.param):
        yield tmp_path / "base", request.param


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
    assert sorted(pf.read(base, format=format).to_table()["id"].to_pylist()) == FINISHED


def test_pandas_reads_a_directory_of_parquet_and_files_of_a_glob(live: tuple[Path, str]) -> None:
    """``pandas.read_parquet`` takes the base; the other readers take one file of a glob at a time."""
    base, format = live
    files = sorted(base.glob(f"**/*.{format}"))
    assert ids(pd.concat([PANDAS[format](path) for path in files])) == FINISHED
    if format == "parquet":
        whole = pd.read_parquet(base)
        assert ids(whole) == FINISHED
        assert set(whole["key"]) == {"k0", "k1", "k2"}


def test_polars_reads_a_glob(live: tuple[Path, str]) -> None:
    """With the keys of the directories for Parquet. A directory it refuses while a part is open."""
    base, format = live
    assert ids(POLARS[format](f"{base}/**/*.{format}")) == FINISHED
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
    assert sorted(number for (number,) in found.select("id").fetchall()) == FINISHED


def test_a_dataset_of_pyarrow_reads_the_directory(live: tuple[Path, str]) -> None:
    """It passes over names that begin with an underscore or a dot."""
    base, format = live
    table = ds.dataset(base, format=format, partitioning="hive").to_table()
    assert sorted(table["id"].to_pylist()) == FINISHED
    assert set(table["key"].to_pylist()) == {"k0", "k1", "k2"}


@pytest.mark.parametrize("format", ["orc", "avro", "text"])
def test_files_of_other_formats_are_read_by_a_glob(format: str, tmp_path: Path) -> None:
    """ORC by pandas, Avro by polars and fastavro, text by the shell; and all of them by partfile."""
    base = tmp_path / "base"
    with live_tree(base, format):
        assert sorted(map(int, pf.read(base, format=format).to_table()[0].to_pylist())) == FINISHED
        files = sorted(base.glob(f"**/*.{'txt' if format == 'text' else format}"))
        if format == "orc":
            assert ids(pd.concat([pd.read_orc(path) for path in files])) == FINISHED
            assert sorted(ds.dataset(base, format="orc").to_table()["id"].to_pylist()) == FINISHED
        elif format == "avro":
            assert ids(pl.concat([pl.read_avro(path) for path in files])) == FINISHED
            assert sorted(row["id"] for path in files for row in _avro(path)) == FINISHED
        else:
            lines = subprocess.run(["cat", *files], capture_output=True, check=True).stdout.split()
            assert sorted(map(int, lines)) == FINISHED


def _avro(path: Path) -> list[Any]:
    with path.open("rb") as file:
        return list(fastavro.reader(file))
