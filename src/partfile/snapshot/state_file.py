"""The one encoding of operator state, inline and in files: an index of offsets, then the elements, each on a line.

After the document's header comes one line of JSON that names each state and the byte offset of each of its elements,
counted from the end of that line. So one element is read without decoding another, and a restore distributes bytes.
Source: Flink's operator state file (metas, elements, offsets in the handle), as of 1.20.
"""

from __future__ import annotations

import copy
import json
import math
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import cache
from itertools import pairwise
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    Protocol,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from pydantic import BaseModel, Field, JsonValue, TypeAdapter, ValidationError, model_validator

from partfile.errors import ConfigError, SnapshotCorrupt, StateTooLarge, UnencodableState
from partfile.snapshot.documents import CORRUPT_HINT, check_strict, decode_body, decode_model, encode_body
from partfile.stores.base import Persisted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pydantic.fields import FieldInfo


Mode = Literal["split", "union", "broadcast", "key-groups"]
"""The way in which a state is distributed at a restore.

split: each element to one subtask, when the parallelism changes. union: all elements to all. broadcast: all subtasks
hold one map, and each gets one copy of it. key-groups: by ranges of key groups.
"""

StateType = Literal["OPERATOR", "BROADCAST", "KEY_VALUE", "PRIORITY_QUEUE"]

MODES_OF_TYPE: dict[StateType, frozenset[Mode]] = {
    "OPERATOR": frozenset({"split", "union"}),
    "BROADCAST": frozenset({"broadcast"}),
    "KEY_VALUE": frozenset({"key-groups"}),
    "PRIORITY_QUEUE": frozenset({"key-groups"}),
}


class CodecInfo(Persisted):
    """The codec that wrote a value."""

    name: Annotated[str, Field(min_length=1, max_length=255)]
    version: Annotated[int, Field(ge=1)]


class StateMetaInfo(Persisted):
    """One state of a snapshot, without its elements. Source: Flink's ``StateMetaInfoSnapshot``, as of 1.20."""

    name: Annotated[str, Field(min_length=1, max_length=255)]
    type: StateType
    mode: Mode
    codecs: dict[str, CodecInfo]
    """By what is encoded: ``element``, or ``key`` and ``value``."""
    options: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _mode_belongs_to_the_type(self) -> Self:
        if self.mode not in MODES_OF_TYPE[self.type]:
            raise ValueError(f"state {self.name!r} of type {self.type} cannot have the mode {self.mode!r}")
        return self


@dataclass(frozen=True, slots=True)
class NamedState:
    """One operator state of one subtask: its elements in order, each as its codec wrote it.

    A broadcast map is a single element, a JSON list of ``[key, value]`` pairs.
    """

    info: StateMetaInfo
    elements: tuple[bytes, ...]

    @property
    def mode(self) -> Mode:
        """The way in which it is distributed."""
        return self.info.mode


States = dict[str, NamedState]


SCHEMA = "state"
MAX_STATES = 10_000
MAX_ELEMENTS = 1 << 22
_LINE_FEED = 10


class _StateIndex(Persisted):
    info: StateMetaInfo
    offsets: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(max_length=MAX_ELEMENTS)]


class _FileIndex(Persisted):
    states: Annotated[tuple[_StateIndex, ...], Field(max_length=MAX_STATES)]


class StateFile:
    """Operator state as bytes, checked when it is made: header, checksum, index and the bounds of every element.

    Args:
        data: All of it.
        path: Where it came from, for messages.

    Raises:
        SnapshotCorrupt: It is damaged, or its offsets are not those of lines.
        SnapshotVersionError: It was written in another format version.
    """

    def __init__(self, data: bytes, path: str) -> None:
        begin = len(data) - len(decode_body(SCHEMA, data, path)) - 1
        end_of_index = data.index(b"\n", begin)
        index = decode_model(SCHEMA, _FileIndex, data[begin:end_of_index], path)
        self._lines = memoryview(data)[end_of_index + 1 :]
        self._states = {state.info.name: state for state in index.states}
        problem = _problem(index, self._lines)
        if problem:
            raise SnapshotCorrupt(f"{path} is not a valid {SCHEMA}: {problem}", hint=CORRUPT_HINT, path=path)
        starts = [offset for state in index.states for offset in state.offsets]
        self._end_of = dict(pairwise([*starts, len(self._lines)]))

    @property
    def infos(self) -> tuple[StateMetaInfo, ...]:
        """Name, type, mode and codecs of each state, in the order of the file."""
        return tuple(state.info for state in self._states.values())

    def count(self, name: str) -> int:
        """The number of elements of a state."""
        return len(self._states[name].offsets)

    def element(self, name: str, index: int) -> bytes:
        """One element as its codec wrote it; no other one is looked at."""
        start = self._states[name].offsets[index]
        return bytes(self._lines[start : self._end_of[start] - 1])

    def states(self) -> States:
        """All states with their elements as their codecs wrote them."""
        return {
            name: NamedState(state.info, tuple(self.element(name, index) for index in range(len(state.offsets))))
            for name, state in self._states.items()
        }


def encode_states(states: Iterable[tuple[StateMetaInfo, Sequence[bytes]]]) -> bytes:
    """Return states and their encoded elements as bytes.

    Raises:
        StateTooLarge: There are more states or elements than a reader would take.
    """
    entries: list[_StateIndex] = []
    lines: list[bytes] = []
    position = 0
    for info, elements in states:
        offsets = []
        for element in elements:
            offsets.append(position)
            lines.append(element)
            position += len(element) + 1
        if len(offsets) > MAX_ELEMENTS:
            raise StateTooLarge(f"state {info.name!r} has {len(offsets)} elements; allowed are {MAX_ELEMENTS}")
        entries.append(_StateIndex(info=info, offsets=tuple(offsets)))
    if len(entries) > MAX_STATES:
        raise StateTooLarge(f"an operator has {len(entries)} states; allowed are {MAX_STATES}")
    index = _FileIndex(states=tuple(entries)).model_dump_json().encode()
    # The document's own line feed ends the last line.
    return encode_body(SCHEMA, b"\n".join((index, *lines)))


def decode_states(data: bytes, path: str) -> States:
    """Return the states in ``data``; their elements stay encoded.

    Args:
        data: All of it.
        path: Where it came from, for messages.

    Raises:
        SnapshotCorrupt: It is damaged.
        SnapshotVersionError: It was written in another format version.
    """
    return StateFile(data, path).states()


def _problem(index: _FileIndex, lines: memoryview) -> str:
    """The fault in the index, or an empty text."""
    names = Counter(state.info.name for state in index.states)
    if len(names) < len(index.states):
        return f"the state {names.most_common(1)[0][0]!r} is in it twice"
    for state in index.states:
        if state.info.mode == "key-groups":
            return f"{state.info.name!r} is keyed state"
        if state.info.mode == "broadcast" and len(state.offsets) != 1:
            return f"the broadcast state {state.info.name!r} has {len(state.offsets)} maps"
    starts = [offset for state in index.states for offset in state.offsets]
    if (starts or [len(lines)])[0] != 0:
        return "its first element is not at its beginning"
    for start, end in pairwise([*starts, len(lines)]):
        if not start < end <= len(lines) or lines[end - 1] != _LINE_FEED:
            return f"no element begins at offset {start} and ends at {end}"
    return ""


Value = TypeVar("Value")
Model = TypeVar("Model", bound=BaseModel)

_JSON: TypeAdapter[JsonValue] = TypeAdapter(JsonValue)
_IMMUTABLE = (str, int, float, bool, bytes, type(None))
_IMMUTABLE_FIELDS = {*_IMMUTABLE, None, Decimal, datetime, date, time, timedelta}
_OF_IMMUTABLE = (tuple, frozenset, Union, UnionType)


class Codec(Protocol[Value]):
    """Turns values of one state into bytes and back, and copies them. Source: Flink's ``TypeSerializer``."""

    @property
    def info(self) -> CodecInfo:
        """Name and version, which a snapshot records; another one of either is refused at a restore."""

    def copy(self, value: Value) -> Value:
        """A value that later changes of ``value`` do not reach; ``value`` itself if it cannot change."""

    def encode(self, value: Value) -> bytes:
        """The value as JSON in UTF-8.

        Raises:
            UnencodableState: JSON has no form for it.
        """

    def decode(self, data: bytes) -> Value:
        """The value again.

        Raises:
            SnapshotCorrupt: The bytes are not what this codec writes.
        """


def codec_info(kind: str, name: str, version: int) -> CodecInfo:
    """What a snapshot records of a codec that a program has named.

    Raises:
        ConfigError: Name or version cannot be recorded.
    """
    # Users without a type checker give anything.
    given: tuple[object, object] = (name, version)
    if isinstance(given[0], str) and name and type(given[1]) is int:
        with suppress(ValidationError):
            return CodecInfo(name=f"{kind}/{name}", version=version)
    raise ConfigError(
        f"the codec {name!r:.50}, version {version!r}, cannot be recorded: a name has 1 to {254 - len(kind)} "
        "characters, and a version is a number from 1 on",
        hint="Write for instance name='point', version=1.",
    )


def check_codec(codec: object, owner: str, argument: str = "codec") -> None:
    """Refuse what stands in the place of a codec and is none.

    Args:
        codec: What was given.
        owner: What was given it, for the message.
        argument: By this name.

    Raises:
        ConfigError: It is a class, or lacks one of ``info``, ``copy``, ``encode`` and ``decode``.
    """
    # Users without a type checker give anything.
    has_verbs = all(callable(getattr(codec, verb, None)) for verb in ("copy", "encode", "decode"))
    if isinstance(codec, type) or not has_verbs or not isinstance(getattr(codec, "info", None), CodecInfo):
        raise ConfigError(
            f"{owner}: {argument}={codec!r} is no codec", hint=f"Give an object, for instance {argument}=JsonCodec()."
        )


class JsonCodec:
    """JSON values: None, bool, int, float, str, and lists and dictionaries of these. A tuple comes back as a list."""

    info = CodecInfo(name="json", version=1)

    def copy(self, value: JsonValue) -> JsonValue:
        """The value itself if it cannot change, else a deep copy."""
        return value if is_immutable(value) else copy.deepcopy(value)

    def encode(self, value: JsonValue) -> bytes:
        """The value as JSON.

        Raises:
            UnencodableState: It is no JSON value: a number that is not finite, a key that is not text, another type.
        """
        return encode_json(value)

    def decode(self, data: bytes) -> JsonValue:
        """The value again.

        Raises:
            SnapshotCorrupt: The bytes are no JSON, or hold a number that is not finite.
        """
        return decode_json(data)


_NOT_FINITE = (b"NaN", b"Infinity")


class ModelCodec(Generic[Model]):
    """Values of one pydantic model. Those of a frozen model whose fields cannot change either are not copied.

    A field that an earlier class did not have begins with its default, and one that today's does not have is left out,
    as Flink's serializer of POJOs has it.

    Args:
        model: The class.
        version: Raised when values written by an earlier version cannot be read any more.
        shares: Whether values of a frozen model are never copied, whatever its fields are. Then never change what a
            list or dictionary in one holds: state and snapshots have the same.
        name: What the snapshot records; by default the name of the class. A class that was renamed, or an earlier one
            of the same module, has its former name by it.

    Raises:
        ConfigError: It is no model, the name or version cannot be recorded, or a field is written under a name that it
            is not read by.
    """

    def __init__(self, model: type[Model], *, version: int = 1, shares: bool = False, name: str | None = None) -> None:
        _check_model(model)
        self._model = model
        is_frozen = bool(model.model_config.get("frozen"))
        self._shares = shares and is_frozen
        self._shared = model if is_frozen and (shares or is_immutable_model(model)) else None
        # Other models write null for such a number, which then has to be looked for in their values: 10 times slower.
        self._shows_not_finite = model.model_config.get("ser_json_inf_nan") == "constants"
        self.info = codec_info("model", model.__name__ if name is None else name, version)

    def copy(self, value: Model) -> Model:
        """The value itself if it cannot change or is to be shared, else a deep copy."""
        if type(value) is self._shared or self._shares:
            return value
        return value if is_immutable_model(type(value)) else value.model_copy(deep=True)

    def encode(self, value: Model) -> bytes:
        """The model as JSON.

        Raises:
            UnencodableState: It is of another model, of a subclass as well, or holds a number that is not finite, or
                what JSON has no form for.
        """
        # What a subclass has more would be written, and not come back.
        if type(value) is not self._model:
            raise UnencodableState(f"{type(value).__name__} is not the model {self._model.__name__} of this state")
        try:
            if self._shows_not_finite:
                data = value.model_dump_json().encode()
                if not any(word in data for word in _NOT_FINITE):
                    return data
            dumped = value.model_dump(mode="json")
        except (ValueError, TypeError, RecursionError) as error:
            raise UnencodableState(f"a {self._model.__name__} has no JSON form: {error}") from error
        return encode_json(dumped)

    def decode(self, data: bytes) -> Model:
        """The model again, validated.

        Raises:
            SnapshotCorrupt: The bytes are not this model, or hold a name twice or a number that is not finite.
        """
        try:
            value = self._model.model_validate_json(data)
            # What is exactly as it was written needs no second parsing, which would cost more than the first.
            if value.model_dump_json().encode() != data or any(word in data for word in _NOT_FINITE):
                check_strict(data)
        except (ValidationError, ValueError, RecursionError) as error:
            raise SnapshotCorrupt(f"an element of state is not a {self._model.__name__}: {error}") from error
        return value


def _check_model(model: type[BaseModel]) -> None:
    """Refuse a model whose values would not come back: a field has an alias alone, and is written by its name.

    Raises:
        ConfigError: It is such a model, or none.
    """
    given: object = model
    if not (isinstance(given, type) and issubclass(given, BaseModel)):
        raise ConfigError(f"{model!r} is no pydantic model", hint="Give the class: ModelCodec(MODEL)")
    if not model.__pydantic_complete__:
        raise ConfigError(
            f"the model {model.__name__} names a class that is not there yet",
            hint=f"Once it is: {model.__name__}.model_rebuild()",
        )
    for one in _models_of(model, {}):
        _check_names(one)


def _models_of(kind: Any, found: dict[type[BaseModel], None]) -> Iterable[type[BaseModel]]:
    """The models that values of a type may hold."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        if kind not in found:
            found[kind] = None
            for field in kind.model_fields.values():
                _models_of(field.annotation, found)
    else:
        for part in get_args(kind):
            _models_of(part, found)
    return found


def _check_names(model: type[BaseModel]) -> None:
    decorators = model.__pydantic_decorators__
    if decorators.model_serializers or any(one.info.mode != "after" for one in decorators.model_validators.values()):
        # They may write and read any names.
        return
    config = model.model_config
    by_alias = config.get("validate_by_alias") is not False
    by_name = bool(config.get("populate_by_name") or config.get("validate_by_name"))
    aliases = {name: _aliases(field) if by_alias else set() for name, field in model.model_fields.items()}
    for name, field in model.model_fields.items():
        written = (field.serialization_alias if config.get("serialize_by_alias") else None) or name
        is_read = written in aliases[name] or (written == name and (by_name or field.validation_alias is None))
        other = next((one for one, names in aliases.items() if one != name and written in names), None)
        if field.exclude or (is_read and other is None):
            continue
        problem = "not read by that name" if other is None else f"read as {other!r}"
        raise ConfigError(
            f"the field {name!r} of the model {model.__name__} is written as {written!r} and {problem}, so that a "
            "restore would lose it",
            hint=f"Have it read by the name that it is written by: validation_alias=AliasChoices({written!r}, NAME)",
        )


def _aliases(field: FieldInfo) -> set[str]:
    """The names that a field is read by beside its own."""
    alias = field.validation_alias
    paths = [
        [one] if isinstance(one, str) else one.path for one in getattr(alias, "choices", [alias]) if one is not None
    ]
    return {str(path[0]) for path in paths if len(path) == 1}


def is_immutable(value: object) -> bool:
    """Whether a value counts as one that cannot change: scalars, models of ``is_immutable_model``, tuples of these."""
    if isinstance(value, tuple):
        return all(is_immutable(element) for element in value)
    if isinstance(value, BaseModel):
        return is_immutable_model(type(value))
    return isinstance(value, _IMMUTABLE)


@cache
def is_immutable_model(model: type[BaseModel]) -> bool:
    """Whether values of a model cannot change: it is frozen, and so is all that its fields may hold.

    A field of an open type, such as ``Any`` or a type variable, counts as one that can change.
    """
    return _cannot_change(model, frozenset())


def _cannot_change(kind: Any, within: frozenset[Any]) -> bool:
    """Whether values of a type cannot change; within the models that are looked at, those are not asked again."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind in within or (
            bool(kind.model_config.get("frozen"))
            and kind.model_config.get("extra") != "allow"
            and not kind.__private_attributes__
            and not kind.__pydantic_decorators__.computed_fields
            and all(_cannot_change(field.annotation, within | {kind}) for field in kind.model_fields.values())
        )
    origin = get_origin(kind)
    if origin is Annotated:
        return _cannot_change(get_args(kind)[0], within)
    if origin in _OF_IMMUTABLE:
        return all(part is ... or _cannot_change(part, within) for part in get_args(kind))
    return origin is Literal or kind in _IMMUTABLE_FIELDS or (isinstance(kind, type) and issubclass(kind, Enum))


def encode_json(value: object) -> bytes:
    """A JSON value as compact UTF-8.

    Raises:
        UnencodableState: JSON has no form for it, or it would not come back as it is.
    """
    try:
        check_json(value)
        return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UnencodableState(f"an element of state has no JSON form: {error}") from error


def decode_json(data: bytes) -> JsonValue:
    """The JSON value in ``data``.

    Raises:
        SnapshotCorrupt: It is no JSON, or holds a name twice or a number that is not finite.
    """
    try:
        value = _JSON.validate_json(data)
        check_strict(data)
    except (ValidationError, ValueError, RecursionError) as error:
        raise SnapshotCorrupt(f"an element of state is no JSON value: {error}") from error
    return value


def check_json(value: object) -> None:
    """Refuse what ``json.dumps`` would write but not give back: numbers that are not finite, keys that are not text.

    Raises:
        ValueError: Names what is wrong.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value!r} is not a finite number")
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise ValueError(f"the key {key!r} is not text")  # noqa: TRY004 - its callers catch one kind.
            check_json(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            check_json(inner)
