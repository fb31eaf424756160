"""JSON lines of random columns, nested to any depth, against Python's own json module."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import struct
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from partfile.writers.json import JsonLinesFormat

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class _Kind:
    """An Arrow type, values of it, and whether parsed JSON is such a value."""

    arrow: Any
    values: st.SearchStrategy[Any]
    agrees: Callable[[Any, Any], bool]

    def matches(self, parsed: Any, value: Any) -> bool:
        return (parsed is None) == (value is None) and (value is None or self.agrees(parsed, value))


def _same_double(parsed: Any, value: float) -> bool:
    same_nan = isinstance(parsed, float) and math.isnan(parsed) and math.isnan(value)
    return same_nan or (isinstance(parsed, float) and struct.pack("d", parsed) == struct.pack("d", value))


def _same_single(parsed: Any, value: float) -> bool:
    return _same_double(struct.unpack("f", struct.pack("f", parsed))[0], value)


def _equal(text_of: Callable[[Any], Any]) -> Callable[[Any, Any], bool]:
    def agrees(parsed: Any, value: Any) -> bool:
        return type(parsed) is type(text_of(value)) and bool(parsed == text_of(value))

    return agrees


# From text, since arithmetic would round to the 28 digits of the decimal context.
_DECIMALS = st.integers(-(10**38) + 1, 10**38 - 1).map(lambda digits: Decimal(f"{digits}E-18"))
_TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
_NAMES = st.lists(st.text(st.characters(codec="utf-8"), max_size=4), unique=True, max_size=3)
_SCALARS = st.sampled_from(
    [
        _Kind(pa.bool_(), st.booleans(), _equal(bool)),
        _Kind(pa.int64(), st.integers(-(2**63), 2**63 - 1), _equal(int)),
        _Kind(pa.float64(), st.floats(), _same_double),
        _Kind(pa.float32(), st.floats(width=32), _same_single),
        _Kind(pa.string(), _TEXTS, _equal(str)),
        _Kind(pa.large_string(), _TEXTS, _equal(str)),
        _Kind(pa.binary(), st.binary(max_size=8), _equal(lambda value: base64.b64encode(value).decode())),
        _Kind(pa.date32(), st.dates(), _equal(dt.date.isoformat)),
        _Kind(pa.decimal128(38, 18), _DECIMALS, lambda parsed, value: Decimal(parsed) == value and "E" not in parsed),
        _Kind(pa.time64("us"), st.times(), _equal(lambda value: value.isoformat("microseconds"))),
        _Kind(pa.timestamp("us"), st.datetimes(), _equal(lambda value: value.isoformat("T", "microseconds"))),
        _Kind(
            pa.timestamp("us", "UTC"),
            st.datetimes(timezones=st.just(dt.UTC)),
            _equal(lambda value: value.replace(tzinfo=None).isoformat("T", "microseconds") + "Z"),
        ),
    ]
)


def _list_of(inner: _Kind) -> _Kind:
    return _Kind(
        pa.list_(inner.arrow),
        st.lists(_or_null(inner), max_size=3),
        lambda parsed, value: len(parsed) == len(value) and all(map(inner.matches, parsed, value)),
    )


def _pair_of(inner: _Kind) -> _Kind:
    return _Kind(
        pa.list_(inner.arrow, 2),
        st.lists(_or_null(inner), min_size=2, max_size=2),
        lambda parsed, value: len(parsed) == 2 and all(map(inner.matches, parsed, value)),
    )


def _map_of(inner: _Kind) -> _Kind:
    return _Kind(
        pa.map_(pa.string(), inner.arrow),
        st.dictionaries(_TEXTS, _or_null(inner), max_size=3).map(lambda entries: list(entries.items())),
        lambda parsed, value: (
            list(parsed) == [key for key, _ in value] and all(inner.matches(parsed[key], item) for key, item in value)
        ),
    )


def _struct_of(names: list[str], kinds: list[_Kind]) -> _Kind:
    fields = dict(zip(names, kinds, strict=False))
    return _Kind(
        pa.struct([pa.field(name, kind.arrow) for name, kind in fields.items()]),
        st.fixed_dictionaries({name: _or_null(kind) for name, kind in fields.items()}),
        lambda parsed, value: (
            list(parsed) == list(fields)
            and all(kind.matches(parsed[name], value[name]) for name, kind in fields.items())
        ),
    )


def _or_null(kind: _Kind) -> st.SearchStrategy[Any]:
    return st.none() | kind.values


def _nested(inner: st.SearchStrategy[_Kind]) -> st.SearchStrategy[_Kind]:
    return st.one_of(
        inner.map(_list_of),
        inner.map(_pair_of),
        inner.map(_map_of),
        st.builds(_struct_of, _NAMES, st.lists(inner, min_size=3, max_size=3)),
    )


_KINDS = st.recursive(_SCALARS, _nested, max_leaves=5)


@st.composite
def _batches(draw: st.DrawFn) -> tuple[dict[str, _Kind], list[dict[str, Any]], pa.RecordBatch]:
    """A batch that is a window into a longer one, its kinds, and the rows in the window."""
    kinds = {name: draw(_KINDS) for name in draw(_NAMES)}
    rows = draw(st.lists(st.fixed_dictionaries({name: _or_null(kind) for name, kind in kinds.items()}), max_size=8))
    schema = pa.schema([pa.field(name, kind.arrow) for name, kind in kinds.items()])
    columns = [pa.array([row[name] for row in rows], kind.arrow) for name, kind in kinds.items()]
    start = draw(st.integers(0, len(rows)))
    length = draw(st.integers(0, len(rows) - start))
    return kinds, rows[start : start + length], pa.record_batch(columns, schema=schema).slice(start, length)


@given(_batches())
def test_every_line_is_the_row_it_came_from(
    case: tuple[dict[str, _Kind], list[dict[str, Any]], pa.RecordBatch],
) -> None:
    """Python's json module reads every line, as cut by its offsets, back to the values and types of its row."""
    kinds, rows, batch = case
    form = JsonLinesFormat()
    form.check(batch.schema)
    encoded = form.encode(batch)
    if not kinds:
        return
    assert len(encoded.offsets) == len(rows) + 1
    for at, row in enumerate(rows):
        line = bytes(encoded.rows(at, at + 1)).decode()
        assert line.endswith("}\n")
        assert line.count("\n") == 1
        parsed = json.loads(line)
        assert list(parsed) == list(kinds)
        assert all(kind.matches(parsed[name], row[name]) for name, kind in kinds.items()), (line, row)
    assert len(encoded.data) == encoded.offsets[-1].as_py()
