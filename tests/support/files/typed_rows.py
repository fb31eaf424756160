"""Rows with a column of each type, at its edges and null, as a sink writes them with a directory a row."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import partfile as pf

if TYPE_CHECKING:
    from pathlib import Path


UTC = dt.UTC
DAY = dt.date(2024, 2, 29)
NOON = dt.datetime(2024, 2, 29, 12, 0, 0, 123456)  # noqa: DTZ001 - a time without a zone
FIRST = dt.datetime(1, 1, 1)  # noqa: DTZ001
SCALARS: dict[str, pa.Array[Any]] = {
    "bool": pa.array([True, None, False]),
    "i8": pa.array([-128, None, 127], pa.int8()),
    "i64": pa.array([-(2**63), None, 2**63 - 1], pa.int64()),
    "u64": pa.array([0, None, 2**64 - 1], pa.uint64()),
    "half": pa.array([65504, None, -0.5], pa.float16()),
    "float": pa.array([1.5, None, -0.0], pa.float32()),
    "double": pa.array([1e300, None, float("inf")], pa.float64()),
    "decimal": pa.array([Decimal("-9999999.99"), None, Decimal("0.10")], pa.decimal128(9, 2)),
    "wide": pa.array([Decimal(10**49), None, Decimal(-1)], pa.decimal256(50, 0)),
    "digits": pa.array(["007", None, ""]),
    "large": pa.array(["null", None, "2024-02-29"], pa.large_string()),
    "bytes": pa.array([b"\x00\xff", None, b""], pa.binary()),
    "fixed": pa.array([b"abc", None, b"\xff\xfe\xfd"], pa.binary(3)),
    "day": pa.array([DAY, None, dt.date(1, 1, 1)], pa.date32()),
    "day64": pa.array([DAY, None, dt.date(1970, 1, 1)], pa.date64()),
    "instant": pa.array([NOON.replace(tzinfo=UTC), None, FIRST.replace(tzinfo=UTC)], pa.timestamp("us", "UTC")),
    "local": pa.array([NOON, None, dt.datetime(9999, 12, 31, 23)], pa.timestamp("us")),  # noqa: DTZ001
    "nanos": pa.array([1, None, -1], pa.int64()).cast(pa.timestamp("ns")),
    "time": pa.array([dt.time(23, 59, 59, 999999), None, dt.time(0)], pa.time64("us")),
    "seconds": pa.array([dt.time(1, 2, 3), None, dt.time(0)], pa.time32("s")),
    "span": pa.array([dt.timedelta(days=-1, microseconds=5), None, dt.timedelta(days=9999)], pa.duration("us")),
    "short": pa.array([-1, None, 10**9 + 1], pa.int64()).cast(pa.duration("ns")),
    "nothing": pa.nulls(3),
}
NESTED: dict[str, pa.Array[Any]] = {
    "struct": pa.array(
        [{"d": DAY, "b": b"\xff", "l": [NOON]}, None, {"d": None, "b": None, "l": None}],
        pa.struct([("d", pa.date32()), ("b", pa.binary()), ("l", pa.list_(pa.timestamp("us")))]),
    ),
    "list": pa.array([[DAY, None], None, []], pa.large_list(pa.date32())),
    "pairs": pa.array([[b"a", b"b"], None, [None, b""]], pa.list_(pa.binary(), 2)),
    "map": pa.array([[("a", DAY), ("b", None)], None, []], pa.map_(pa.string(), pa.date32())),
    "maps": pa.array(
        [[{"m": [("k", Decimal("1.50"))]}], None, [None]],
        pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.decimal128(5, 2)))])),
    ),
}
KEY = pa.array(["007", "7", "x"])


def written(base: Path, format: str, columns: dict[str, Any], **options: Any) -> pa.Table:
    """Columns as a sink has written them, with a directory a row."""
    rows = pa.table({"id": pa.array([0, 1, 2]), "key": KEY, **columns})
    with pf.FileSink(base, uid="typed", format=format, bucketer=pf.HiveBucketer("key"), **options).local() as out:
        out.write(rows)
    return rows
