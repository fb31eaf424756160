"""Elements of state come back as they were written, or are refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from partfile.errors import SnapshotCorrupt, UnencodableState
from partfile.snapshot.state_file import CodecInfo, JsonCodec, ModelCodec, StateMetaInfo, is_immutable

JSON = JsonCodec()
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12
)


class Frozen(BaseModel):
    """A value that cannot change."""

    model_config = ConfigDict(frozen=True)
    number: float
    text: str = ""


class Open(BaseModel):
    """A value that can change."""

    numbers: list[int] = []


@given(VALUES)
def test_json_values_come_back(value: JsonValue) -> None:
    """Every JSON value is on one line and decodes to an equal one of the same types."""
    data = JSON.encode(value)
    assert b"\n" not in data
    assert repr(JSON.decode(data)) == repr(value)


@pytest.mark.parametrize(
    "value",
    [math.nan, [math.inf], {"a": -math.inf}, {1: 2}, [{None: 1}], {1, 2}, object(), b"x", "\ud800", {"\ud800": 1}],
)
def test_what_json_would_not_give_back_is_refused(value: object) -> None:
    """Numbers that are not finite, keys that are not text, broken text and other types never reach a snapshot."""
    with pytest.raises(UnencodableState):
        JSON.encode(value)  # type: ignore[arg-type]


def test_a_value_that_contains_itself_is_refused() -> None:
    """Depth without end is an error, not a crash."""
    loop: list[JsonValue] = []
    loop.append(loop)
    with pytest.raises(UnencodableState):
        JSON.encode(loop)


@pytest.mark.parametrize(
    "data",
    [b"", b"NaN", b"[1e400]", b"-Infinity", b"{", b"1 2", b"\xff", b'"\\ud800"', b"[" * 100_000, b"9" * 10_000],
)
@pytest.mark.fault("M5")
def test_hostile_json_is_corrupt(data: bytes) -> None:
    """Whatever the bytes are, only SnapshotCorrupt is raised."""
    with pytest.raises(SnapshotCorrupt):
        JSON.decode(data)


@pytest.mark.item("SS-32")
def test_models_come_back() -> None:
    """A model is written by its fields and validated when it is read."""
    codec = ModelCodec(Frozen)
    assert codec.decode(codec.encode(Frozen(number=1.5, text="é"))) == Frozen(number=1.5, text="é")
    assert codec.info == CodecInfo(name="model/Frozen", version=1)
    assert ModelCodec(Frozen, version=2).info.version == 2
    for bad in (b"{}", b"null", b'{"number":"x"}', b"\xff"):
        with pytest.raises(SnapshotCorrupt, match="Frozen"):
            codec.decode(bad)
    for value in (Frozen(number=math.nan), Open()):
        with pytest.raises(UnencodableState):
            codec.encode(value)  # type: ignore[arg-type]


@pytest.mark.item("SS-31", "SS-32", "OS-06")
def test_copies_share_only_what_cannot_change() -> None:
    """Scalars, frozen models and tuples of them are not copied; lists, dictionaries and open models are, deeply."""
    frozen = Frozen(number=1)
    assert ModelCodec(Frozen).copy(frozen) is frozen
    for same in ("a", 1, None, 2.5, True):
        assert JSON.copy(same) is same
    nested: dict[str, JsonValue] = {"a": [1, [2]]}
    copied = JSON.copy(nested)
    nested["a"].append(3)  # type: ignore[union-attr]
    nested["a"][1].append(4)  # type: ignore[index,union-attr]
    assert copied == {"a": [1, [2]]}
    model = Open(numbers=[1])
    kept = ModelCodec(Open).copy(model)
    model.numbers.append(2)
    assert kept.numbers == [1]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ((1, ("a", None)), True),
        ((1, []), False),
        ([], False),
        ({}, False),
        (Open(), False),
        ((Frozen(number=1),), True),
    ],
)
def test_what_counts_as_immutable(value: object, expected: bool) -> None:
    """A tuple is as immutable as its elements."""
    assert is_immutable(value) is expected


@pytest.mark.item("SS-10")
@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("OPERATOR", "split"),
        ("OPERATOR", "union"),
        ("BROADCAST", "broadcast"),
        ("KEY_VALUE", "key-groups"),
        ("PRIORITY_QUEUE", "key-groups"),
    ],
)
def test_meta_information_round_trips(kind: str, mode: str) -> None:
    """Name, type, mode, options and codecs of every type of state come back."""
    raw = {"name": "s", "type": kind, "mode": mode, "codecs": {"element": {"name": "json", "version": 3}}}
    info = StateMetaInfo.model_validate({**raw, "options": {"a": "b"}})
    assert StateMetaInfo.model_validate_json(info.model_dump_json()) == info


@pytest.mark.item("SS-10")
@pytest.mark.parametrize(
    "change",
    [{"type": "LIST"}, {"mode": "other"}, {"mode": "broadcast"}, {"type": "KEY_VALUE"}, {"name": ""}, {"more": 1}],
)
def test_unknown_meta_information_is_refused(change: dict[str, object]) -> None:
    """An unknown type or mode, or a mode of another type, is no meta information."""
    raw = {"name": "s", "type": "OPERATOR", "mode": "split", "codecs": {}}
    StateMetaInfo.model_validate(raw)
    with pytest.raises(ValidationError):
        StateMetaInfo.model_validate({**raw, **change})
