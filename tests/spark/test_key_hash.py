"""Hashes of keys are those of Spark's own ``xxhash64``, so that a key is one key to both engines."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from partfile.sink.spark.distinct import hash_expressions
from partfile.snapshot.key_hash import hashes_of, kind_of

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from pyspark.sql import SparkSession

ROWS = 200
MICROSECOND = timedelta(microseconds=1)


def moment(rng: random.Random, zone: Any) -> datetime:
    return datetime(1970, 1, 1, tzinfo=zone) + rng.randrange(-(2**55), 2**57) * MICROSECOND


COLUMNS: dict[str, tuple[pa.DataType, Callable[[random.Random], object]]] = {
    "text": (pa.string(), lambda rng: "".join(rng.choices("aäß語🙂 ", k=rng.randrange(80)))),
    "bytes": (pa.binary(), lambda rng: rng.randbytes(rng.randrange(100))),
    "small": (pa.int8(), lambda rng: rng.randrange(-128, 128)),
    "large": (pa.int64(), lambda rng: rng.randrange(-(2**63), 2**63)),
    "flag": (pa.bool_(), lambda rng: rng.random() < 0.5),
    "day": (pa.date32(), lambda rng: date(1970, 1, 1) + timedelta(rng.randrange(-90_000, 90_000))),
    "instant": (pa.timestamp("us", "UTC"), lambda rng: moment(rng, UTC)),
    "local": (pa.timestamp("us"), lambda rng: moment(rng, None)),
    "price": (
        pa.decimal128(9, 2),
        lambda rng: Decimal(rng.randrange(-(10**9) + 1, 10**9)).scaleb(-2),
    ),
    "amount": (
        pa.decimal128(38, 9),
        lambda rng: Decimal(rng.randrange(-(10 ** rng.randrange(1, 38)), 10 ** rng.randrange(1, 38))).scaleb(-9),
    ),
}
"""The type of each column, and how its values are drawn."""


def signed(word: int) -> int:
    return word - (1 << 64) if word >= 1 << 63 else word


@pytest.mark.parametrize("names", [*([name] for name in COLUMNS), list(COLUMNS)], ids="-".join)
def test_spark_hashes_the_same(spark: SparkSession, names: list[str], rng: random.Random) -> None:
    """Random values and nulls of every kind, alone and as one key."""
    columns = [
        pa.array([None if rng.random() < 0.1 else COLUMNS[name][1](rng) for _ in range(ROWS)], COLUMNS[name][0])
        for name in names
    ]
    table = pa.table(columns, names=names)
    high, low = hash_expressions(names, [kind_of(COLUMNS[name][0]) or "" for name in names])
    found = spark.createDataFrame(table).selectExpr(f"{high} AS high", f"{low} AS low").collect()
    hashes = hashes_of(columns)
    words = partial(map, signed)
    expected = list(zip(words(hashes.high.tolist()), words(hashes.low.tolist()), strict=True))
    assert [(row["high"], row["low"]) for row in found] == expected
