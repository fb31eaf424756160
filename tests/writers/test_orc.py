"""ORC parts: nested columns, and bloom filters."""

from __future__ import annotations

import datetime as dt
import gc
import io
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import orc, types

from partfile.errors import ConfigError, NotFound, UnsupportedTypeError
from partfile.writers.arrow_staging import StagingFormat
from partfile.writers.orc import OrcFormat
from partfile.writers.parquet import ParquetFormat
from partfile.writers.registry import resolve_format

# Which columns of an ORC file have a bloom filter, by the streams that its stripe footers name.

_BLOOM_FILTERS = {7, 8}
"""Kinds of streams: of bytes, and of text."""


def bloom_filter_ids(data: bytes) -> set[int]:
    """The numbers of the columns, of a file that is not compressed. 0 is the root of the types, 1 the first column."""
    postscript = dict(_fields(data[-1 - data[-1] : -1]))
    end = len(data) - 1 - data[-1]
    found = set()
    for number, value in _fields(data[end - postscript[1] : end]):
        if number == 3:
            stripe = dict(_fields(value))
            start = sum(stripe.get(length, 0) for length in (1, 2, 3))
            found |= _filtered_ids(data[start : start + stripe[4]])
    return found


def _filtered_ids(stripe_footer: bytes) -> set[int]:
    streams = [dict(_fields(value)) for number, value in _fields(stripe_footer) if number == 1]
    return {stream.get(2, 0) for stream in streams if stream.get(1, 0) in _BLOOM_FILTERS}


def _fields(message: bytes) -> list[tuple[int, Any]]:
    """The fields of a message of protocol buffers, as far as ORC's footers need them."""
    found: list[tuple[int, Any]] = []
    at = 0
    while at < len(message):
        tag, at = _number(message, at)
        kind = tag & 7
        if kind == 0:
            value, at = _number(message, at)
            found.append((tag >> 3, value))
            continue
        length = {1: 8, 5: 4}.get(kind)
        if length is None:
            length, at = _number(message, at)
        found.append((tag >> 3, message[at : at + length]))
        at += length
    return found


def _number(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


# ORC parts, which pyarrow encodes wrongly where nested columns are handed over as they come.

_SCHEMA = pa.schema({"n": pa.int64(), "s": pa.string()})


def _batch(start: int, rows: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(range(start, start + rows)), pa.array(["é"] * rows)], schema=_SCHEMA)


def _read(part: Any) -> Any:
    return orc.ORCFile(io.BytesIO(part.data))


def _random_kind(chance: random.Random, depth: int = 0) -> pa.DataType:
    plain = [pa.int32(), pa.string(), pa.bool_(), pa.decimal128(12, 2)]
    choice = chance.randrange(10 if depth < 3 else 4)
    if choice < 4:
        return plain[choice]
    if choice < 6:
        return pa.struct([(f"f{at}", _random_kind(chance, depth + 1)) for at in range(chance.randrange(1, 3))])
    inner = _random_kind(chance, depth + 1)
    return [pa.list_(inner), pa.large_list(inner), pa.map_(pa.string(), inner), pa.list_(inner, 2)][choice - 6]


def _random_value(chance: random.Random, kind: Any) -> Any:
    if chance.random() < 0.2:
        return None
    if types.is_struct(kind):
        return {kind.field(at).name: _random_value(chance, kind.field(at).type) for at in range(kind.num_fields)}
    if types.is_map(kind):
        return [(str(at), _random_value(chance, kind.item_type)) for at in range(chance.randrange(3))]
    if types.is_nested(kind):
        length = kind.list_size if types.is_fixed_size_list(kind) else chance.randrange(4)
        return [_random_value(chance, kind.value_type) for _ in range(length)]
    number = chance.randrange(1000)
    plain = {"string": f"s{number}", "bool": number % 2 == 0, "int32": number}
    return plain.get(str(kind), Decimal(number).scaleb(-2))


@pytest.mark.parametrize("form", [OrcFormat(), ParquetFormat(row_group_rows=20)])
@pytest.mark.parametrize("seed", range(40))
def test_random_nested_slices_read_back_equal(form: Any, seed: int, memory_part: Any) -> None:
    """Columns of any nesting, with nulls at every level and cut from their batches anywhere, come back row for row."""
    chance = random.Random(seed)
    schema = pa.schema([(f"c{at}", _random_kind(chance)) for at in range(4)])
    part = memory_part()
    expected = []
    writer = form.open(part, schema)
    for _ in range(3):
        rows = chance.randrange(1, 30)
        columns = [pa.array([_random_value(chance, field.type) for _ in range(rows)], field.type) for field in schema]
        batch = pa.record_batch(columns, schema=schema)
        start = chance.randrange(rows)
        piece = batch.slice(start, chance.randrange(rows - start + 1))
        writer.write(piece)
        expected += piece.to_pylist()
    writer.close()
    back = pa.BufferReader(part.data)
    table = orc.read_table(back) if isinstance(form, OrcFormat) else pa.parquet.read_table(back)
    assert table.to_pylist() == expected


def test_a_field_below_a_null_is_no_value(memory_part: Any) -> None:
    """What Arrow keeps in a field whose struct is null does not get between the values of the other rows."""
    inner = pa.StructArray.from_arrays([pa.array([7, 1, 2])], names=["g"], mask=pa.array([True, False, False]))
    batch = pa.record_batch([pa.StructArray.from_arrays([inner], names=["f"])], names=["c"])
    part = memory_part()
    OrcFormat().encode([batch, batch.slice(1)], batch.schema, part)
    assert _read(part).read()["c"].to_pylist() == batch["c"].to_pylist() + batch["c"].to_pylist()[1:]


def test_a_whole_file_is_encoded_at_once(memory_part: Any) -> None:
    """Encoding gives the rows of all batches in order, and a file with its schema where there is none."""
    part = memory_part()
    assert OrcFormat().encode((_batch(at * 10, 10) for at in range(250)), _SCHEMA, part) == 2500
    assert _read(part).read()["n"].to_pylist() == list(range(2500))
    nothing = memory_part()
    assert OrcFormat().encode(iter(()), _SCHEMA, nothing) == 0
    assert _read(nothing).read().equals(_SCHEMA.empty_table())


def test_encoding_holds_one_stripe(memory_part: Any) -> None:
    """Memory does not grow with the file; stripes have the size asked for."""
    most = 0
    chance = random.Random(1)

    def batches() -> Any:
        nonlocal most
        for _ in range(60):
            yield pa.record_batch([pa.array([chance.randbytes(1000) for _ in range(1000)])], names=["raw"])
            most = max(most, pa.total_allocated_bytes() - before)

    before = pa.total_allocated_bytes()
    part = memory_part()
    schema = pa.schema({"raw": pa.binary()})
    assert OrcFormat(stripe_bytes=4 << 20).encode(batches(), schema, part) == 60_000
    assert most < 40 << 20
    assert 3 < _read(part).nstripes < 30


def test_a_part_that_is_given_up_gets_no_footer(memory_part: Any) -> None:
    """An error in the middle, or a writer that is dropped, leaves the part as it is: no footer makes it look whole."""
    part = memory_part()

    def broken() -> Any:
        yield _batch(0, 5000)
        raise NotFound("gone")

    with pytest.raises(NotFound):
        OrcFormat().encode(broken(), _SCHEMA, part)
    gc.collect()
    assert bytes(part.data) == b"ORC"


@pytest.mark.parametrize("codec", ["zstd", "snappy", "zlib", "lz4", "none"])
def test_the_codec_is_passed_on(codec: str, memory_part: Any) -> None:
    """Streams are compressed as asked."""
    part = memory_part()
    OrcFormat(compression=codec).encode([_batch(0, 10)], _SCHEMA, part)
    assert _read(part).compression == {"none": "UNCOMPRESSED"}.get(codec, codec.upper())


def test_dictionaries_change_the_file(memory_part: Any) -> None:
    """A threshold that allows dictionaries makes repeated text small."""
    words = pa.record_batch([pa.array([f"a long word with the number {n % 500}" for n in range(20_000)])], names=["w"])

    def size(**options: Any) -> int:
        part = memory_part()
        form = OrcFormat(compression="none", **options)
        form.encode([words], words.schema, part)
        return int(part.position)

    assert size() < 0.5 * size(dictionary_threshold=0.0)


def test_types_have_their_plain_forms(memory_part: Any) -> None:
    """Dictionaries, views and dates in milliseconds, which Arrow cannot write as such, are plain."""
    columns = {
        "word": pa.array(["a", None, "a"]).dictionary_encode(),
        "view": pa.array(["a", None, "b"], pa.string_view()),
        "day": pa.array([0, None, 86_400_000], pa.date64()),
    }
    batch = pa.record_batch(columns)
    OrcFormat().check(batch.schema)
    part = memory_part()
    OrcFormat().encode([batch], batch.schema, part)
    table = _read(part).read()
    assert table.schema.types == [pa.string(), pa.string(), pa.date32()]
    assert table.to_pylist() == batch.to_pylist()


def test_what_orc_lacks_is_refused_by_name() -> None:
    """The column at fault is named, with its type."""
    for kind in (pa.uint8(), pa.time64("us"), pa.duration("us"), pa.null(), pa.decimal256(50, 2)):
        with pytest.raises(UnsupportedTypeError, match="'bad' of type"):
            OrcFormat().check(pa.schema({"ok": pa.int8(), "bad": kind}))
    with pytest.raises(UnsupportedTypeError, match="at least one column"):
        OrcFormat().check(pa.schema([]))
    with pytest.raises(ConfigError, match="'nowhere'"):
        OrcFormat(bloom_filter_columns=("nowhere",)).check(_SCHEMA)


_WHEN = pa.timestamp("us", "UTC")
_EARLY = dt.datetime(1969, 12, 31, 23, 59, 59, 500_000, dt.UTC)
_JULIAN = dt.date(1582, 10, 14)


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (_WHEN, _EARLY, "before 1970"),
        (pa.list_(_WHEN), [None, _EARLY], "before 1970"),
        (pa.struct({"at": _WHEN}), {"at": _EARLY}, "before 1970"),
        (pa.map_(pa.string(), _WHEN), [("at", _EARLY)], "before 1970"),
        (pa.date32(), _JULIAN, "before 15 October 1582"),
        (pa.timestamp("s"), -141_427 * 86_400 - 1, "before 15 October 1582"),
        (pa.date64(), _JULIAN, "before 15 October 1582"),
        (pa.list_(pa.date64()), [None, _JULIAN], "before 15 October 1582"),
        (pa.struct({"at": pa.date64()}), {"at": _JULIAN}, "before 15 October 1582"),
        (pa.map_(pa.string(), pa.date64()), [("at", _JULIAN)], "before 15 October 1582"),
    ],
)
def test_what_spark_would_misread_is_refused(kind: Any, value: Any, words: str, memory_part: Any) -> None:
    """Early dates and instants are refused by column, at once and before they are staged; other rows are not."""
    batch = pa.record_batch([pa.array([None, value], kind)], names=["early"])
    for form in (OrcFormat(), StagingFormat(OrcFormat())):
        form.check(batch.schema)
        writer = form.open(memory_part(), batch.schema)
        with pytest.raises(ConfigError, match=f"(?s)'early' .* {words}"):
            writer.write(batch)
        writer.write(batch.slice(0, 1))


def test_other_dates_and_instants_read_back(memory_part: Any) -> None:
    """The first day of the calendar, whole seconds before 1970 and fractions after it are written as they are."""
    columns = {
        "at": pa.array([_EARLY.replace(microsecond=0), _EARLY.replace(year=1970), None], _WHEN),
        "day": pa.array([dt.date(1582, 10, 15), dt.date(9999, 12, 31), None]),
    }
    batch = pa.record_batch(columns)
    part = memory_part()
    OrcFormat().encode([batch], batch.schema, part)
    assert _read(part).read().to_pylist() == batch.to_pylist()


def test_a_staging_file_refuses_what_its_target_lacks() -> None:
    """A type that could never be encoded is refused before its rows are staged."""
    with pytest.raises(UnsupportedTypeError, match="ORC"):
        StagingFormat(OrcFormat()).check(pa.schema({"t": pa.duration("us")}))


@pytest.mark.parametrize(
    "options",
    [{"compression": "gzip"}, {"compression_level": 3}, {"stripe_bytes": 0}, {"dictionary_threshold": 1.5}],
)
def test_useless_options_are_refused(options: dict[str, Any]) -> None:
    """An unknown codec, a level and empty stripes are refused at once."""
    with pytest.raises(ConfigError):
        OrcFormat(**options)


def test_a_part_rolls_at_each_checkpoint_and_by_name(memory_part: Any) -> None:
    """``format="orc"`` gives a format whose parts cannot be persisted half way."""
    form = resolve_format("orc")
    assert (form, form.suffix, form.appendable) == (OrcFormat(), ".orc", False)
    writer = form.open(memory_part(), _SCHEMA)
    with pytest.raises(ConfigError, match="persisted"):
        writer.persist()


# Bloom filters of ORC files: they are on the columns that are named, and on no others.

_ROWS = 100
_BATCH = pa.record_batch(
    {
        "a": list(range(_ROWS)),
        "s": [{"x": 1, "l": [1, 2], "y": {"z": "text", "w": 0.5}} for _ in range(_ROWS)],
        "m": pa.array([[("k", {"v": 1})]] * _ROWS, pa.map_(pa.string(), pa.struct({"v": pa.int64()}))),
        "f": pa.array([[1, 2]] * _ROWS, pa.list_(pa.int32(), 2)),
        "d": pa.array(["one", "two"] * (_ROWS // 2)).dictionary_encode(),
        "b": [f"word {number}" for number in range(_ROWS)],
    }
)


@pytest.mark.parametrize(
    ("names", "ids"),
    [
        ((), set()),
        (("a",), {1}),
        # s is 2, its l is 4 with 5 in it, its y is 6; m is 9, with key 10, value 11 and 12; f is 13 with 14.
        (("s.x",), {3}),
        (("s.y.z", "s.y.w"), {7, 8}),
        (("d",), {15}),
        (("b", "a"), {1, 16}),
    ],
)
def test_a_filter_is_on_the_column_that_is_named(names: tuple[str, ...], ids: set[int], memory_part: Any) -> None:
    """By the numbers of the type tree, which count all that is nested before it."""
    form = OrcFormat(compression="none", bloom_filter_columns=names)
    form.check(_BATCH.schema)
    part = memory_part()
    form.encode([_BATCH], _BATCH.schema, part)
    assert bloom_filter_ids(bytes(part.data)) == ids
    assert orc.ORCFile(pa.BufferReader(bytes(part.data))).read().num_rows == _ROWS


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("c", "'c', which is not a column"),
        ("s.q", "'s.q', which is not a column"),
        ("s", "'s', which holds no single values"),
        ("m", "'m', which holds no single values"),
        ("f", "'f', which holds no single values"),
    ],
)
def test_a_filter_of_nothing_is_refused(name: str, words: str) -> None:
    """At the first batch, with the columns that there are."""
    with pytest.raises(ConfigError, match=words) as refused:
        OrcFormat(bloom_filter_columns=(name,)).check(_BATCH.schema)
    assert "name some of these: a, b, d, s.x, s.y.w, s.y.z." in str(refused.value)
