"""The other reader of the flights demo: reads an output directory with DuckDB and compares it with the source CSV."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

import duckdb

if TYPE_CHECKING:
    from pathlib import Path

PATTERNS = {"json": "**/*.json.gz", "parquet": "**/*.parquet"}
"""The globs that find the finished files of each format."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two multisets of whole rows, all columns of each."""

    rows: int
    """Rows found in the output."""
    lost: int
    """Rows of the source that the output lacks."""
    duplicated: int
    """Rows of the output beyond those of the source: second copies, and rows that were never there."""


@dataclass(frozen=True, slots=True)
class Files:
    """The data files of an output directory."""

    count: int
    size: int
    """Bytes of all of them."""
    median: int
    """Bytes of the middle one."""


def compare(csv: Path, output: Path, format: str = "json") -> Comparison:
    """Compare every row that DuckDB finds below ``output`` with the source, as it finds it: by a glob, without help.

    Both sides are read with the column types that DuckDB detects in the source.

    Args:
        csv: The source.
        output: The directory.
        format: Of the files in it; one of ``PATTERNS``.
    """
    database = duckdb.connect()
    database.execute("SET TimeZone = 'UTC'")
    database.execute("SET progress_bar_time = 3600000")
    database.execute(f"CREATE TABLE source AS FROM read_csv('{csv}', nullstr = ['', 'NA'], sample_size = -1)")
    columns = database.execute("SELECT column_name, column_type FROM (DESCRIBE source)").fetchall()
    casts = ", ".join(f'CAST("{name}" AS {kind}) AS "{name}"' for name, kind in columns)
    try:
        database.execute(f"CREATE TABLE landed AS SELECT {casts} FROM '{output}/{PATTERNS[format]}'")  # noqa: S608 - our names
    except duckdb.Error as error:
        print(f"DuckDB cannot read {output}: {error}")
        return Comparison(rows=0, lost=_count(database, "FROM source"), duplicated=0)
    return Comparison(
        rows=_count(database, "FROM landed"),
        lost=_count(database, "FROM source EXCEPT ALL FROM landed"),
        duplicated=_count(database, "FROM landed EXCEPT ALL FROM source"),
    )


def files_below(output: Path, format: str = "json") -> Files:
    """Count and weigh the files that a reader's glob finds."""
    sizes = [path.stat().st_size for path in output.glob(PATTERNS[format])]
    return Files(len(sizes), sum(sizes), round(statistics.median(sizes)) if sizes else 0)


def hidden_below(output: Path) -> int:
    """Count the data files that no reader sees: those with a hidden name, outside of the checkpoints."""
    names = (path.relative_to(output).parts for path in output.rglob("*") if path.is_file())
    return sum(parts[0] != "_partfile" and parts[-1].startswith(("_", ".")) for parts in names)


def _count(database: duckdb.DuckDBPyConnection, rows: str) -> int:
    answer = database.execute(f"SELECT count(*) FROM ({rows})").fetchall()  # noqa: S608 - constants of this module
    return int(answer[0][0])
