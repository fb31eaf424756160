"""Avro parts: blocks of whole rows at every persist, and which columns and options are refused."""

from __future__ import annotations

import datetime as dt
import io
import re
from decimal import Decimal
from typing import Any

import fastavro
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partfile.errors import ConfigError, UnsupportedTypeError
from partfile.writers.avro import AvroFormat
from partfile.writers.registry import resolve_format

# Avro parts: blocks of whole rows at every persist, read back by fastavro and polars with equal values and types.

_SCHEMA = pa.schema({"n": pa.int64(), "s": pa.string()})
_CODECS = ["none", "deflate", "snappy", "zstd"]


def _batch(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(numbers, pa.int64()), pa.array([f"é{n}" for n in numbers])], schema=_SCHEMA)


def _rows(data: bytes | bytearray) -> list[dict[str, Any]]:
    return list(fastavro.reader(io.BytesIO(bytes(data))))  # type: ignore[arg-type]


def _blocks(data: bytes | bytearray) -> list[int]:
    return [block.num_records for block in fastavro.block_reader(io.BytesIO(bytes(data)))]


def _sync(data: bytes | bytearray) -> bytes:
    reader: Any = fastavro.reader(io.BytesIO(bytes(data)))
    return bytes(reader._header["sync"])


@pytest.mark.parametrize("codec", _CODECS)
def test_every_persisted_length_is_a_whole_file(codec: str, memory_part: Any) -> None:
    """Random writes, persists and reopenings leave the rows before each persist, and no more, at its length."""
    form = AvroFormat(compression=codec, block_bytes=40)

    @given(st.lists(st.sampled_from(["write", "encoded", "empty", "persist", "reopen"]), max_size=15))
    def check(steps: list[str]) -> None:
        part = memory_part()
        writer = form.open_part(part, _SCHEMA, "a")
        written: list[int] = []
        persisted = [(writer.persist(), 0)]
        for number, step in enumerate(steps):
            if step == "write":
                writer.write(_batch(*range(number)))
                written += range(number)
            elif step == "encoded":
                encoded = form.encode(_batch(number, -number, 7))
                writer.write_encoded(encoded.rows(1, 3), 2)
                written += [-number, 7]
            elif step == "empty":
                writer.write(_batch())
            else:
                persisted.append((writer.persist(), len(written)))
                assert persisted[-1][0] == part.position
                writer = form.open_part(part, _SCHEMA, "a") if step == "reopen" else writer
        writer.close()
        persisted.append((part.position, len(written)))
        for length, rows_then in persisted:
            assert _rows(part.data[:length]) == [{"n": n, "s": f"é{n}"} for n in written[:rows_then]]

    check()


_AT = dt.datetime.fromisoformat
_EVERY_TYPE: dict[str, tuple[pa.DataType, list[Any], Any]] = {
    "truth": (pa.bool_(), [True, None, False], "boolean"),
    "tiny": (pa.int8(), [-128, None, 127], "int"),
    "int": (pa.int32(), [-(2**31), None, 2**31 - 1], "int"),
    "long": (pa.int64(), [-(2**63), None, 2**63 - 1], "long"),
    "unsigned": (pa.uint32(), [2**32 - 1, None, 0], "long"),
    "half": (pa.float16(), [1.5, None, -0.0], "float"),
    "single": (pa.float32(), [1.5, None, float("inf")], "float"),
    "double": (pa.float64(), [1e300, None, float("-inf")], "double"),
    "text": (pa.string(), ["é漢😀" * 30, None, ""], "string"),
    "view": (pa.string_view(), ["x" * 40, None, ""], "string"),
    "word": (pa.dictionary(pa.int8(), pa.string()), ["a", None, "a"], "string"),
    "raw": (pa.binary(), [b"\x00\xff", None, b""], "bytes"),
    "fixed": (pa.binary(2), [b"ab", None, b"cd"], "bytes"),
    "day": (pa.date32(), [dt.date(1, 1, 1), None, dt.date(9999, 12, 31)], {"logicalType": "date"}),
    "day64": (pa.date64(), [dt.date(1, 1, 1), None, dt.date(2024, 2, 29)], {"logicalType": "date"}),
    "instant": (
        pa.timestamp("us", "Asia/Tokyo"),
        [_AT("0001-01-02T00:00:00+00:00"), None, _AT("2024-02-29T01:02:03.000004+00:00")],
        {"logicalType": "timestamp-micros"},
    ),
    "local": (
        pa.timestamp("us"),
        [_AT("0001-01-01T00:00:00"), None, _AT("9999-12-31T23:59:59.999999")],
        {"logicalType": "local-timestamp-micros"},
    ),
    "seconds": (
        pa.timestamp("s"),
        [_AT("0001-01-01T00:00:00"), None, _AT("9999-12-31T23:59:59")],
        {"logicalType": "local-timestamp-millis"},
    ),
    "clock": (pa.time64("ns"), [dt.time(1, 2, 3, 456789), None, dt.time(0)], {"logicalType": "time-micros"}),
    "clock32": (pa.time32("s"), [dt.time(1, 2, 3), None, dt.time(0)], {"logicalType": "time-millis"}),
    "price": (
        pa.decimal128(10, 2),
        [Decimal("1.10"), None, Decimal("-99999999.99")],
        {"logicalType": "decimal", "size": 5},
    ),
    "big": (pa.decimal128(38, 18), [Decimal("-0.000000000000000001"), None, 10**19], {"size": 16, "scale": 18}),
    "huge": (pa.decimal256(76, 2), [Decimal("1.10"), None, -(10**70)], {"size": 32}),
    "list": (pa.list_(pa.int32()), [[1, None, 300], None, []], {"type": "array", "items": ["null", "int"]}),
    "lists": (pa.large_list(pa.list_(pa.string())), [[["a"], None, []], None, []], {"type": "array"}),
    "pairs": (pa.list_(pa.int32(), 2), [[1, 2], None, [None, 4]], {"type": "array"}),
    "tags": (
        pa.map_(pa.string(), pa.float64()),
        [[("a", 1.5), ("b", None)], None, []],
        {"type": "map", "values": ["null", "double"]},
    ),
    "point": (
        pa.struct([pa.field("x", pa.int32(), nullable=False), ("y", pa.string())]),
        [{"x": 1, "y": "é"}, None, {"x": -300, "y": None}],
        {"type": "record"},
    ),
    "deep": (
        pa.list_(pa.struct({"a": pa.list_(pa.map_(pa.string(), pa.int32())), "s": pa.struct({"t": pa.string()})})),
        [[{"a": [[("k", 1)], None], "s": None}, None], None, [{"a": None, "s": {"t": "x"}}]],
        {"type": "array"},
    ),
}


def _as_read(value: Any) -> Any:
    """A value as fastavro gives it: maps are dicts."""
    if isinstance(value, dict):
        return {name: _as_read(item) for name, item in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return dict(value)
    return [_as_read(item) for item in value] if isinstance(value, list) else value


def _written(batches: list[pa.RecordBatch], memory_part: Any, codec: str = "none") -> bytes:
    form = AvroFormat(compression=codec)
    form.check(batches[0].schema)
    part = memory_part()
    writer = form.open(part, batches[0].schema)
    for batch in batches:
        writer.write(batch)
    writer.persist()
    return bytes(part.data)


@pytest.mark.parametrize("name", _EVERY_TYPE)
def test_every_type_reads_back_equal(name: str, memory_part: Any) -> None:
    """Values and nulls of each type come back, whole, in slices, alone and without any null; the schema is as said."""
    kind, values, said = _EVERY_TYPE[name]
    batch = pa.record_batch([pa.array(values * 50, kind)], names=[name])
    single = batch.slice(1, 1)
    there = [value for value in values * 50 if value is not None]
    no_null = pa.record_batch([pa.array(there, kind)], names=[name])
    data = _written([batch, batch.slice(7, 5), single, batch.slice(0, 0), no_null], memory_part)
    expected = [values[at % 3] for at in [*range(150), *range(7, 12), 1]] + there
    back = [row[name] for row in _rows(data)]
    empty: Any = {} if pa.types.is_map(kind) else []
    assert back == [empty if value == [] else _as_read(value) for value in expected]
    schema: Any = fastavro.reader(io.BytesIO(data)).writer_schema
    branch = schema["fields"][0]["type"]
    assert branch[0] == "null"
    assert branch[1] == said or {**branch[1], **said} == branch[1]


def test_a_column_that_may_not_be_null_has_no_union(memory_part: Any) -> None:
    """Nullability is kept, and a null that is there all the same is refused rather than shifting what follows."""
    field = pa.field("n", pa.int64(), nullable=False)
    batch = pa.record_batch([pa.array([1, 300])], schema=pa.schema([field]))
    data = _written([batch], memory_part)
    assert fastavro.reader(io.BytesIO(data)).writer_schema["fields"][0]["type"] == "long"  # type: ignore[call-overload, index]
    assert _rows(data) == [{"n": 1}, {"n": 300}]
    broken = pa.record_batch([pa.array([1, None])], schema=pa.schema([field]))
    with pytest.raises(ConfigError, match="'n' holds nulls"):
        AvroFormat().encode(broken)


def test_columns_of_nulls_and_constants_keep_their_rows(memory_part: Any) -> None:
    """Rows whose every field takes no byte at all are still counted."""
    nothing = pa.record_batch([pa.nulls(3)], names=["n"])
    assert _rows(_written([nothing, nothing], memory_part)) == [{"n": None}] * 6
    empties = pa.record_batch([pa.nulls(2), pa.array([None, None], pa.string())], names=["n", "s"])
    assert _rows(_written([empties], memory_part)) == [{"n": None, "s": None}] * 2


def test_intervals_and_nanoseconds_keep_their_numbers(memory_part: Any) -> None:
    """A day-time interval is microseconds with Spark's name of its type; nanoseconds stay nanoseconds."""
    columns = {"span": pa.array([-5], pa.duration("us")), "at": pa.array([-7], pa.timestamp("ns"))}
    data = _written([pa.record_batch(columns)], memory_part)
    assert _rows(data) == [{"span": -5, "at": -7}]
    schema: Any = fastavro.reader(io.BytesIO(data)).writer_schema
    span, at = (field["type"][1] for field in schema["fields"])
    assert span["spark.sql.catalyst.type"] == "interval day to second"
    assert at["logicalType"] == "local-timestamp-nanos"


@pytest.mark.parametrize(("kind", "unit"), [(pa.time64, "ns"), (pa.duration, "ns")])
def test_a_value_is_never_rounded(kind: Any, unit: str) -> None:
    """What Avro holds to the microsecond is refused where it has nanoseconds."""
    batch = pa.record_batch([pa.array([1001], kind(unit))], names=["t"])
    with pytest.raises(ConfigError, match="without a loss"):
        AvroFormat().encode(batch)


def test_polars_reads_every_type_that_it_has_back(memory_part: Any) -> None:
    """In polars values, nulls and types are those of Arrow; it has no maps, and no decimals above 38 digits."""
    names = [name for name in _EVERY_TYPE if name not in {"tags", "deep", "huge", "day64"}]
    batch = pa.record_batch([pa.array(_EVERY_TYPE[name][1], _EVERY_TYPE[name][0]) for name in names], names=names)
    back = pl.read_avro(io.BytesIO(_written([batch], memory_part, "snappy")))
    for name in names:
        assert back[name].to_list() == batch[name].to_pylist(), name
    assert back.schema["price"] == pl.Decimal(10, 2)
    assert back.schema["instant"] == pl.Datetime("us", "UTC")
    assert back.schema["clock"] == pl.Time


def test_rows_are_cut_into_blocks(memory_part: Any) -> None:
    """A large batch becomes blocks of the size asked for, and small writes share a block."""
    part = memory_part()
    form = AvroFormat(block_bytes=1000, compression="none")
    writer = form.open(part, _SCHEMA)
    writer.write(_batch(*range(10_000)))
    writer.persist()
    large = _blocks(part.data)
    assert sum(large) == 10_000
    assert len(part.data) / 1100 < len(large) < len(part.data) / 900
    small = memory_part()
    writer = form.open(small, _SCHEMA)
    for number in range(30):
        writer.write(_batch(number))
    writer.persist()
    writer.persist()
    assert _blocks(small.data) == [30]


def test_the_sync_marker_is_the_parts_own(memory_part: Any) -> None:
    """Two parts of one schema have two markers, so that no part embedded in another confuses a reader that splits."""
    markers = []
    for part_id in ("a", "b", "a"):
        part = memory_part()
        AvroFormat().open_part(part, _SCHEMA, part_id)
        markers.append(_sync(part.data))
    assert markers[0] == markers[2] != markers[1]
    assert {len(marker) for marker in markers} == {16}


def test_levels_and_codecs_are_passed_on(memory_part: Any) -> None:
    """A level changes the size of the blocks, and the header names the codec as the specification does."""
    batch = _batch(*(number * 7919 % 5000 for number in range(20_000)))

    def size(**options: Any) -> int:
        part = memory_part()
        writer = AvroFormat(**options).open(part, _SCHEMA)
        writer.write(batch)
        return writer.persist()

    assert size(compression="none") > size(compression="deflate", compression_level=1)
    assert size(compression="deflate", compression_level=1) > size(compression="deflate", compression_level=9)
    assert size(compression="zstd", compression_level=1) != size(compression="zstd", compression_level=19)
    metadata = fastavro.reader(io.BytesIO(_written([batch], memory_part, "zstd"))).metadata
    assert metadata["avro.codec"] == "zstandard"


# Avro parts: which columns and options are refused, and by which words.


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (pa.schema([]), "at least one column"),
        (pa.schema({"a b": pa.int8()}), "'a b' .* letters"),
        (pa.schema({"s": pa.struct({"é": pa.int8()})}), "'s' .* letters.* at 's.é'"),
        (pa.schema([("a", pa.int8()), ("a", pa.int8())]), "occurs twice"),
        (pa.schema({"m": pa.map_(pa.int32(), pa.string())}), "'m' .* map key of type int32"),
        (pa.schema({"u": pa.uint64()}), "(?s)uint64 .*decimal"),
        (pa.schema({"i": pa.list_(pa.month_day_nano_interval())}), "month_day_nano_interval .* at 'i.item'"),
        (pa.schema({"d": pa.decimal128(5, -2)}), r"decimal128\(5, -2\)"),
    ],
)
def test_what_avro_lacks_is_refused_by_name(schema: pa.Schema, words: str) -> None:
    """The column at fault, the place within it and the type are named."""
    with pytest.raises(UnsupportedTypeError, match=re.compile(words)):
        AvroFormat().check(schema)


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "lzo"},
        {"compression_level": 3},
        {"compression": "deflate", "compression_level": 0},
        {"compression": "zstd", "compression_level": 23},
        {"block_bytes": 0},
    ],
)
def test_useless_options_are_refused(options: dict[str, Any]) -> None:
    """An unknown codec, a level that is not taken and an empty block are refused at once."""
    with pytest.raises(ConfigError):
        AvroFormat(**options)


def test_a_name_gives_the_format() -> None:
    """``format="avro"`` takes the format's own default codec unless told otherwise."""
    assert resolve_format("avro") == AvroFormat(compression="snappy")
    assert resolve_format("avro", "zstd", compression_level=9) == AvroFormat(compression="zstd", compression_level=9)
