"""How elements of state become bytes and are copied: plain JSON values and frozen pydantic models."""

from __future__ import annotations

import copy
import json
import math
from typing import Generic, Protocol, TypeVar

from pydantic import BaseModel, JsonValue, TypeAdapter, ValidationError

from partfile.filesystems.errors import SnapshotCorrupt, UnencodableState
from partfile.snapshot.state_info import CodecInfo
from partfile.snapshot.strict_json import check_strict

Value = TypeVar("Value")
Model = TypeVar("Model", bound=BaseModel)

_JSON: TypeAdapter[JsonValue] = TypeAdapter(JsonValue)
_IMMUTABLE = (str, int, float, bool, bytes, type(None))


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
    """Values of one pydantic model. Those of a frozen model count as immutable: never change what one holds.

    Args:
        model: The class; its name is recorded in the snapshot.
        version: Raised when values written by an earlier version cannot be read any more.
    """

    def __init__(self, model: type[Model], *, version: int = 1) -> None:
        self._model = model
        self._is_frozen = bool(model.model_config.get("frozen"))
        # Other models write null for such a number, which then has to be looked for in their values: 10 times slower.
        self._shows_not_finite = model.model_config.get("ser_json_inf_nan") == "constants"
        self.info = CodecInfo(name=f"model/{model.__name__}", version=version)

    def copy(self, value: Model) -> Model:
        """The value itself if its model is frozen, else a deep copy."""
        return value if self._is_frozen else value.model_copy(deep=True)

    def encode(self, value: Model) -> bytes:
        """The model as JSON.

        Raises:
            UnencodableState: It is of another model, or holds a number that is not finite.
        """
        if not isinstance(value, self._model):
            raise UnencodableState(f"{type(value).__name__} is not the model {self._model.__name__} of this state")
        if self._shows_not_finite:
            data = value.model_dump_json().encode()
            if not any(word in data for word in _NOT_FINITE):
                return data
        return encode_json(value.model_dump(mode="json"))

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


def is_immutable(value: object) -> bool:
    """Whether a value counts as one that cannot change: scalars, frozen models, and tuples of these."""
    if isinstance(value, tuple):
        return all(is_immutable(element) for element in value)
    if isinstance(value, BaseModel):
        return bool(value.model_config.get("frozen"))
    return isinstance(value, _IMMUTABLE)


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
