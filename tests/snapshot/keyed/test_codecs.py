"""Codecs of values in keyed state: what comes back, what is refused, and what changes of a value reach."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from decimal import Context, Decimal, localcontext
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partfile.errors import ConfigError, SnapshotCorrupt, UnencodableState
from partfile.snapshot.keyed.codecs import (
    ArrowCodec,
    BoolCodec,
    BytesCodec,
    DecimalCodec,
    Float64Codec,
    ImmutableCodec,
    Int64Codec,
    MsgpackCodec,
    PairCodec,
    TextCodec,
    TimedCodec,
    TimestampCodec,
)
from partfile.snapshot.keyed.ttl import Ttl

SCHEMA = pa.schema([("id", pa.int64())])
SCALARS: list[tuple[ImmutableCodec[Any], st.SearchStrategy[Any]]] = [
    (Int64Codec(), st.integers(-(1 << 63), (1 << 63) - 1)),
    (Float64Codec(), st.floats(allow_nan=False)),
    (BoolCodec(), st.booleans()),
    (BytesCodec(), st.binary()),
    (TextCodec(), st.text(st.characters(exclude_categories=["Cs"]))),
    (DecimalCodec(), st.decimals(allow_nan=False, allow_infinity=False)),
    (TimestampCodec(), st.datetimes(timezones=st.just(UTC))),
]
MSGPACK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3) | st.integers(0, 9), inner),
    max_leaves=10,
)


@given(st.data())
def test_a_scalar_comes_back_as_it_was(data: st.DataObject) -> None:
    """With its type, and the digits of a decimal; the codec gives out the value itself."""
    codec, values = data.draw(st.sampled_from(SCALARS))
    value = data.draw(values)
    assert codec.copy(value) is value
    back = codec.decode(codec.encode(value))
    assert back == value
    assert type(back) is type(value)
    assert str(back) == str(value)


@given(MSGPACK)
def test_a_msgpack_value_comes_back_as_it_was(value: Any) -> None:
    """And a copy is another object."""
    codec = MsgpackCodec()
    assert codec.decode(codec.encode(value)) == value
    assert codec.copy([value, []])[1] is not codec.copy([value, []])[1]


def test_floats_that_are_not_finite_come_back() -> None:
    """Unlike JSON, eight bytes have room for them."""
    codec = Float64Codec()
    assert codec.decode(codec.encode(math.inf)) == math.inf
    assert math.isnan(codec.decode(codec.encode(math.nan)))
    assert math.copysign(1, codec.decode(codec.encode(-0.0))) == -1


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        (Int64Codec(), True),
        (Int64Codec(), 1.0),
        (Int64Codec(), 1 << 63),
        (Float64Codec(), 1),
        (BoolCodec(), 1),
        (BytesCodec(), bytearray(b"a")),
        (TextCodec(), b"a"),
        (TextCodec(), "\ud800"),
        (DecimalCodec(), Decimal("NaN")),
        (DecimalCodec(), 1.5),
        (TimestampCodec(), datetime(2026, 1, 1)),  # noqa: DTZ001 - the point of it.
        (ArrowCodec(SCHEMA), pa.table({"id": [1]})),
        (ArrowCodec(SCHEMA), pa.record_batch({"other": [1]})),
        (MsgpackCodec(), {1.5, 2}),
        (MsgpackCodec(), 1 << 64),
        (MsgpackCodec(), {(1, 2): 3}),
        (PairCodec("number", lambda value: str(value).encode(), int), "abc"),
        (TimestampCodec(), datetime.max.replace(tzinfo=timezone(-timedelta(hours=5)))),
        (PairCodec("text", str.encode, bytes.decode), 1),
        (PairCodec("nothing", lambda _value: None, lambda data: data), 1),  # type: ignore[arg-type,return-value]
    ],
)
def test_a_value_of_another_kind_is_refused_when_it_is_given(codec: Any, value: object) -> None:
    """Not at the next snapshot, which says nothing of where the value came from."""
    with pytest.raises(UnencodableState):
        codec.copy(value)


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        (Int64Codec(), b"1234567"),
        (Float64Codec(), b""),
        (BoolCodec(), b"\2"),
        (TextCodec(), b"\xff"),
        (DecimalCodec(), b"one"),
        (DecimalCodec(), b"NaN"),
        (DecimalCodec(), b"\xff"),
        (DecimalCodec(), b" 1_0 "),
        (DecimalCodec(), "\u0661".encode()),
        (TimestampCodec(), b"1"),
        (TimestampCodec(), b"\x7f" * 8),
        (ArrowCodec(SCHEMA), b"no batch"),
        (ArrowCodec(SCHEMA), b""),
        (MsgpackCodec(), b"\xc1"),
        (MsgpackCodec(), b"\x01\x02"),
        (MsgpackCodec(), b"\xd4\x05a"),
        (PairCodec("text", str.encode, bytes.decode), b"\xff"),
        (TimedCodec(TextCodec()), b"1234567"),
    ],
)
def test_bytes_that_the_codec_does_not_write_are_corrupt(codec: Any, data: bytes) -> None:
    """Whatever a made-up file holds."""
    with pytest.raises(SnapshotCorrupt):
        codec.decode(data)


def test_a_record_batch_comes_back_and_its_schema_names_the_codec() -> None:
    """The schema is not in each value; another one is another codec. NumPy's memory is not shared."""
    codec = ArrowCodec(SCHEMA)
    numbers = np.array([1, 2, 3])
    batch = pa.record_batch({"id": pa.array(numbers)})
    held = codec.copy(batch)
    assert held.equals(batch)
    numbers[0] = 99
    assert held.to_pydict() == {"id": [1, 2, 3]}
    batch = held
    assert codec.decode(codec.encode(batch)).equals(batch)
    assert codec.info != ArrowCodec(pa.schema([("id", pa.int32())])).info


@pytest.mark.parametrize("make", [lambda inner: inner, pa.list_, lambda inner: pa.struct([("a", inner)])])
def test_dictionaries_are_refused_in_record_batches(make: Any) -> None:
    """The form of a batch leaves them out: a snapshot could not be restored."""
    with pytest.raises(ConfigError, match="column 'c' of a record batch in state is encoded with a dictionary"):
        ArrowCodec(pa.schema([("c", make(pa.dictionary(pa.int8(), pa.string())))]))


def test_decimals_are_written_alike_in_each_context() -> None:
    """The thread that writes a snapshot has another one than the user's."""
    with localcontext(Context(capitals=0)):
        assert DecimalCodec().encode(Decimal("1E+30")) == b"1E+30"


def test_an_instant_of_another_zone_comes_back_in_utc() -> None:
    """It is held in UTC from the beginning, so that a restore changes nothing."""
    codec = TimestampCodec()
    there = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    assert codec.copy(there) == there
    assert codec.copy(there).tzinfo is UTC
    assert codec.decode(codec.encode(there)) == there


def test_the_time_lies_before_the_value() -> None:
    """Eight bytes, big end first."""
    codec = TimedCodec(TextCodec())
    assert codec.encode((258, "a")) == b"\0\0\0\0\0\0\1\2a"
    assert codec.decode(codec.encode((258, "a"))) == (258, "a")


def test_a_pair_of_functions_names_itself() -> None:
    """A snapshot of another name or version is refused by it."""
    codec = PairCodec("money", lambda value: str(value).encode(), lambda data: Decimal(data.decode()), version=3)
    assert (codec.info.name, codec.info.version) == ("pair/money", 3)
    assert codec.copy(Decimal("1.10")) == Decimal("1.10")


@pytest.mark.parametrize(
    "options",
    [
        {"duration": 0},
        {"duration": -1.0},
        {"duration": "soon"},
        {"duration": True},
        {"duration": None},
        {"duration": math.nan},
        {"duration": 0.0001},
        {"duration": 1, "refresh": "never"},
        {"duration": 1, "cleanup_on": "monday"},
        {"duration": 1, "cleanup_entries": -1},
    ],
)
def test_a_time_to_live_that_cannot_be_is_refused(options: dict[str, Any]) -> None:
    """By the option."""
    with pytest.raises(ConfigError, match="Ttl: "):
        Ttl(**options)


@pytest.mark.item("TT-08")
def test_a_duration_is_seconds_a_timedelta_or_text() -> None:
    """And it is over when the time plus the duration is not after the present."""
    assert Ttl("7 days").duration_ms == Ttl(timedelta(days=7)).duration_ms == Ttl(604_800).duration_ms
    assert [Ttl(1).is_over(1_000, now_ms) for now_ms in (1_999, 2_000)] == [False, True]


@pytest.mark.parametrize(("name", "version"), [("", 0), ("x" * 300, 1), ("point", 0)])
def test_a_codec_that_cannot_be_recorded_is_refused(name: str, version: int) -> None:
    """When it is made, and not by the first snapshot."""
    with pytest.raises(ConfigError, match="cannot be recorded") as raised:
        PairCodec(name, str.encode, bytes.decode, version=version)
    assert raised.value.hint.startswith("Write for instance name='point'")
