"""State files: elements come back as they were written, and nothing damaged is believed."""

from __future__ import annotations

import json
import math
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    PrivateAttr,
    RootModel,
    ValidationError,
    model_serializer,
    model_validator,
)

from partfile.errors import ConfigError, SnapshotCorrupt, SnapshotVersionError, StateTooLarge, UnencodableState
from partfile.snapshot import state_file
from partfile.snapshot.documents import FORMAT_VERSION, header_of
from partfile.snapshot.state_file import (
    CodecInfo,
    JsonCodec,
    Mode,
    ModelCodec,
    StateFile,
    StateMetaInfo,
    decode_states,
    encode_states,
    is_immutable,
)

if TYPE_CHECKING:
    from collections.abc import Callable


# The encoding of operator state: elements are found by offset, and nothing damaged is believed.

JSON = CodecInfo(name="json", version=1)


def info(name: str, mode: Mode = "split") -> StateMetaInfo:
    kind = {"broadcast": "BROADCAST", "key-groups": "KEY_VALUE"}.get(mode, "OPERATOR")
    return StateMetaInfo.model_validate({"name": name, "type": kind, "mode": mode, "codecs": {"element": JSON}})


SAMPLE = [(info("a"), [b'{"x":1}', b"2", b""]), (info("m", "broadcast"), [b"[[1,2]]"]), (info("empty"), [])]


def damaged(change: Callable[[list[dict[str, object]]], object], lines: bytes = b"aa\nbb\ncc\n") -> bytes:
    """A file with a right checksum whose index, of one state of three elements, was changed."""
    states: list[dict[str, object]] = [{"info": info("s").model_dump(), "offsets": [0, 3, 6]}]
    change(states)
    body = (json.dumps({"states": states}).encode() + b"\n" + lines)[:-1]
    return header_of("state", body) + body + b"\n"


@pytest.mark.item("SS-33")
def test_the_layout() -> None:
    """After the header: one line of meta information and offsets, then each element on a line of its own."""
    header, index, *lines = encode_states(SAMPLE).split(b"\n")
    assert header.startswith(f"partfile state {FORMAT_VERSION} ".encode())
    states = json.loads(index)["states"]
    assert [(state["info"]["name"], state["offsets"]) for state in states] == [
        ("a", [0, 8, 10]),
        ("m", [11]),
        ("empty", []),
    ]
    assert lines == [b'{"x":1}', b"2", b"", b"[[1,2]]", b""]


@pytest.mark.item("SS-33")
def test_one_element_is_read_by_its_offset() -> None:
    """An element is found without the others, whatever they hold."""
    data = encode_states([(info("a"), [b"not json", b'"mine"', b"\xff\x00"]), (info("b"), [b"1"])])
    file = StateFile(data, "x.state")
    assert file.element("a", 1) == b'"mine"'
    assert file.element("b", 0) == b"1"
    assert file.count("a") == 3
    assert [one.name for one in file.infos] == ["a", "b"]


@pytest.mark.item("SS-33")
@given(st.dictionaries(st.text(min_size=1, max_size=3), st.lists(st.binary(max_size=6), max_size=5), max_size=4))
def test_states_round_trip(states: dict[str, list[bytes]]) -> None:
    """Any names and any bytes, line feeds among them, come back in order."""
    decoded = decode_states(encode_states([(info(name), elements) for name, elements in states.items()]), "x.state")
    assert {name: list(state.elements) for name, state in decoded.items()} == states
    assert {name: state.info for name, state in decoded.items()} == {name: info(name) for name in states}


@pytest.mark.item("SS-33")
def test_truncation_and_flips_are_noticed() -> None:
    """No prefix and no single damaged byte is read as state."""
    data = encode_states(SAMPLE)
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 0x01
        for bad in (data[:place], bytes(flipped)):
            with pytest.raises((SnapshotCorrupt, SnapshotVersionError)):
                decode_states(bad, "x.state")


def test_a_newer_format_is_refused() -> None:
    """A state file of a later version says so."""
    versions = f"partfile state {FORMAT_VERSION}".encode(), f"partfile state {FORMAT_VERSION + 1}".encode()
    with pytest.raises(SnapshotVersionError, match=f"version {FORMAT_VERSION + 1}"):
        decode_states(encode_states(SAMPLE).replace(*versions), "x.state")


def test_the_damage_starts_from_a_good_file() -> None:
    """Without a change the hostile cases below are a valid file: what they show is the change."""
    assert decode_states(damaged(lambda _: None), "x.state")["s"].elements == (b"aa", b"bb", b"cc")


@pytest.mark.parametrize(
    "offsets",
    [
        [0, 3, 3],
        [0, 6, 3],
        [3, 6],
        [0, 3, 7],
        [0, 2, 6],
        [0, 3, 9],
        [0, 3, 10**18],
        [-3, 0, 3],
        [],
        [0.5],
        ["x"],
        None,
    ],
    ids=lambda offsets: str(offsets)[:20],
)
def test_hostile_offsets_are_refused(offsets: object) -> None:
    """Offsets that are not exactly the beginnings of lines are SnapshotCorrupt."""
    with pytest.raises(SnapshotCorrupt, match=r"x\.state"):
        decode_states(damaged(lambda states: states[0].update(offsets=offsets)), "x.state")


@pytest.mark.parametrize(
    "change",
    [
        lambda states: states.append(states[0]),
        lambda states: states.append({"info": info("s").model_dump(), "offsets": []}),
        lambda states: states[0].update(info=info("k", "key-groups").model_dump()),
        lambda states: states[0].update(info=info("m", "broadcast").model_dump()),
        lambda states: states[0].update(info={**info("s").model_dump(), "type": "OTHER"}),
        lambda states: states[0].update(more=1),
        lambda states: states.clear(),
        lambda states: states.extend({"info": info(str(n)).model_dump(), "offsets": []} for n in range(10_001)),
    ],
    ids=["twice", "name twice", "keyed", "three maps", "unknown type", "unknown field", "no state", "too many"],
)
def test_a_hostile_index_is_refused(change: Callable[[list[dict[str, object]]], object]) -> None:
    """An index that the writer could not have made is SnapshotCorrupt."""
    with pytest.raises(SnapshotCorrupt):
        decode_states(damaged(change), "x.state")


def test_the_number_of_offsets_is_bounded() -> None:
    """More offsets than the writer would write are refused before they are held."""
    with pytest.raises(SnapshotCorrupt, match="at most 4194304 items"):
        decode_states(damaged(lambda states: states[0].update(offsets=[0] * 4_194_305)), "x.state")


def test_lines_without_an_index_are_refused() -> None:
    """No bytes lie in a file that no offset names."""
    with pytest.raises(SnapshotCorrupt):
        decode_states(damaged(lambda states: states[0].update(offsets=[])), "x.state")
    with pytest.raises(SnapshotCorrupt):
        decode_states(damaged(lambda _: None, lines=b"\n"), "x.state")


def test_what_no_reader_takes_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer keeps the reader's limits."""
    monkeypatch.setattr(state_file, "MAX_ELEMENTS", 2)
    monkeypatch.setattr(state_file, "MAX_STATES", 2)
    with pytest.raises(StateTooLarge, match="3 elements"):
        encode_states([(info("s"), [b"", b"", b""])])
    with pytest.raises(StateTooLarge, match="3 states"):
        encode_states([(info(name), []) for name in "abc"])


# Elements of state come back as they were written, or are refused.

JSON_CODEC = JsonCodec()
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


class Color(Enum):
    """A value of a field that cannot change."""

    RED = "red"


class Tree(BaseModel, frozen=True):
    """Cannot change, and holds its own kind."""

    number: Annotated[Decimal, Field(ge=0)] = Decimal(0)
    color: Color | Literal["none"] = "none"
    at: datetime | None = None
    names: frozenset[str] = frozenset()
    trees: tuple[Tree, ...] = ()
    pair: tuple[int, Frozen] | None = None


class Listed(BaseModel, frozen=True):
    """Frozen, though its list can change."""

    numbers: list[int] = []


class Within(BaseModel, frozen=True):
    """Frozen, and holds what can change."""

    inner: Listed | None = None


class Anything(BaseModel, frozen=True):
    """Frozen, of an open type."""

    value: Any = None


class Extra(BaseModel, frozen=True, extra="allow"):
    """Frozen, and takes fields that it does not name."""


class Private(BaseModel, frozen=True):
    """Frozen, except for what no field has."""

    _kept: int = PrivateAttr(default=0)


class Below(Frozen):
    """Frozen, of a model that cannot change, and can."""

    numbers: list[int] = []


@given(VALUES)
def test_json_values_come_back(value: JsonValue) -> None:
    """Every JSON value is on one line and decodes to an equal one of the same types."""
    data = JSON_CODEC.encode(value)
    assert b"\n" not in data
    assert repr(JSON_CODEC.decode(data)) == repr(value)


@pytest.mark.parametrize(
    "value",
    [math.nan, [math.inf], {"a": -math.inf}, {1: 2}, [{None: 1}], {1, 2}, object(), b"x", "\ud800", {"\ud800": 1}],
)
def test_what_json_would_not_give_back_is_refused(value: object) -> None:
    """Numbers that are not finite, keys that are not text, broken text and other types never reach a snapshot."""
    with pytest.raises(UnencodableState):
        JSON_CODEC.encode(value)  # type: ignore[arg-type]


def test_a_value_that_contains_itself_is_refused() -> None:
    """Depth without end is an error, not a crash."""
    loop: list[JsonValue] = []
    loop.append(loop)
    with pytest.raises(UnencodableState):
        JSON_CODEC.encode(loop)


@pytest.mark.parametrize(
    "data",
    [b"", b"NaN", b"[1e400]", b"-Infinity", b"{", b"1 2", b"\xff", b'"\\ud800"', b"[" * 100_000, b"9" * 10_000],
)
@pytest.mark.fault("M5")
def test_hostile_json_is_corrupt(data: bytes) -> None:
    """Whatever the bytes are, only SnapshotCorrupt is raised."""
    with pytest.raises(SnapshotCorrupt):
        JSON_CODEC.decode(data)


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
    tree = Tree(trees=(Tree(),))
    assert ModelCodec(Tree).copy(tree) is tree
    for listed in (Listed(numbers=[1]), Below(number=1, numbers=[1])):
        kept = ModelCodec(Frozen).copy(listed)  # type: ignore[arg-type]
        listed.numbers.append(2)
        assert kept.numbers == [1]  # type: ignore[attr-defined]
    shared = Within(inner=Listed())
    assert ModelCodec(Within).copy(shared).inner is not shared.inner
    assert ModelCodec(Within, shares=True).copy(shared) is shared
    for same in ("a", 1, None, 2.5, True):
        assert JSON_CODEC.copy(same) is same
    nested: dict[str, JsonValue] = {"a": [1, [2]]}
    copied = JSON_CODEC.copy(nested)
    nested["a"].append(3)  # type: ignore[union-attr]
    nested["a"][1].append(4)  # type: ignore[index,union-attr]
    assert copied == {"a": [1, [2]]}
    for codec in (ModelCodec(Open), ModelCodec(Open, shares=True)):
        model = Open(numbers=[1])
        copied_model = codec.copy(model)
        model.numbers.append(2)
        assert copied_model.numbers == [1]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ((1, ("a", None)), True),
        ((1, []), False),
        ([], False),
        ({}, False),
        (Open(), False),
        ((Frozen(number=1),), True),
        (Tree(), True),
        *((model(), False) for model in (Listed, Within, Anything, Extra, Private)),
        (Below(number=1), False),
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


def test_a_renamed_field_is_kept_by_an_alias_or_refused_if_it_is_forbidden() -> None:
    """As SNAPSHOTS.md says; without either it has its default."""

    class Kept(BaseModel):
        count: int = Field(0, validation_alias=AliasChoices("count", "n"))

    class Forbidden(BaseModel):
        model_config = ConfigDict(extra="forbid")
        count: int = 0

    kept = ModelCodec(Kept)
    assert kept.decode(b'{"n":5}').count == 5
    assert kept.decode(kept.encode(kept.decode(b'{"n":5}'))).count == 5
    with pytest.raises(SnapshotCorrupt, match="an element of state is not a Forbidden"):
        ModelCodec(Forbidden).decode(b'{"n":5}')


class Alias(BaseModel):
    """Written by its name, and read by another one alone."""

    count: int = Field(0, alias="n")


def test_a_model_that_would_lose_a_field_is_refused_when_the_codec_is_made() -> None:
    """A field with an alias alone is written by its name, which it is not read by; an error says so at the start."""

    class Other(BaseModel):
        model_config = ConfigDict(serialize_by_alias=True)
        count: int = Field(0, validation_alias="n", serialization_alias="m")

    class ByNameAlone(BaseModel):
        model_config = ConfigDict(serialize_by_alias=True, validate_by_alias=False, validate_by_name=True)
        count: int = Field(0, alias="n")

    for model, written in ((Alias, "count"), (Other, "m"), (ByNameAlone, "n")):
        problem = f"'count' of the model {model.__name__} is written as '{written}'"
        with pytest.raises(ConfigError, match=problem) as raised:
            ModelCodec(model)
        assert raised.value.hint.endswith(f"validation_alias=AliasChoices('{written}', NAME)")

    class Crossed(BaseModel):
        model_config = ConfigDict(populate_by_name=True)
        a: int = Field(0, alias="b")
        b: int = Field(0, alias="a")

    with pytest.raises(ConfigError, match="'a' of the model Crossed is written as 'a' and read as 'b'"):
        ModelCodec(Crossed)

    class Outer(BaseModel):
        inner: dict[str, list[Alias | None]]

    with pytest.raises(ConfigError, match="'count' of the model Alias is written as 'count'"):
        ModelCodec(Outer)


def test_a_model_whose_fields_are_read_by_the_names_that_they_are_written_by_comes_back() -> None:
    """By configuration, aliases for reading, or functions of its own."""

    class ByName(Alias):
        model_config = ConfigDict(populate_by_name=True)

    class ByAlias(Alias):
        model_config = ConfigDict(serialize_by_alias=True)

    class AsTheHintSays(BaseModel):
        count: int = Field(0, validation_alias=AliasChoices("count", "n"))

    class ByPath(BaseModel):
        model_config = ConfigDict(serialize_by_alias=True)
        count: int = Field(0, validation_alias=AliasPath("n"), serialization_alias="n")

    class Written(BaseModel):
        count: int = Field(0, alias="n")

        @model_serializer
        def _by_alias(self) -> dict[str, int]:
            return {"n": self.count}

    class OnlyLooked(BaseModel):
        model_config = ConfigDict(validate_by_name=True)
        count: int = Field(0, alias="n")

        @model_validator(mode="after")
        def _look(self) -> OnlyLooked:
            return self

    class Excluded(BaseModel):
        kept: int
        count: int = Field(0, alias="n", exclude=True)

    class Moved(BaseModel):
        count: int = Field(0, alias="n")

        @model_validator(mode="before")
        @classmethod
        def _by_name(cls, given: Any) -> Any:
            return {"n": given["count"]} if "count" in given else given

    values = (ByName(n=5), ByAlias(n=5), Excluded(kept=5), Moved(n=5), RootModel[int](5))
    for value in (*values, AsTheHintSays(n=5), ByPath(n=5), Written(n=5), OnlyLooked(n=5)):
        codec = ModelCodec(type(value))
        assert codec.decode(codec.encode(value)) == value


def test_what_is_no_model_or_has_no_name_is_refused() -> None:
    """A clear error where the codec is made, not where the first value is written."""
    with pytest.raises(ConfigError, match="<class 'int'> is no pydantic model"):
        ModelCodec(int)  # type: ignore[type-var]
    wrong: list[dict[str, Any]] = [{"name": name} for name in ("", "n" * 250, 5, b"x")]
    for one in (*wrong, *({"version": version} for version in (0, "1", 1.5, True))):
        with pytest.raises(ConfigError, match=r"the codec .* cannot be recorded: a name has 1 to 249 characters"):
            ModelCodec(Frozen, **one)


def test_a_subclass_is_not_written_as_its_model() -> None:
    """What it has more would be written, and lost by a restore."""
    with pytest.raises(UnencodableState, match="Below is not the model Frozen of this state"):
        ModelCodec(Frozen).encode(Below(number=1, numbers=[1]))
