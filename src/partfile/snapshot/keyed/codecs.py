"""Codecs of values in keyed state. None of them runs code that a file brings, so none is pickle.

``JsonCodec`` and ``ModelCodec`` of ``state_file`` serve here as well. A codec of your own has the same four members,
or is made of two functions by ``PairCodec``.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgpack
import pyarrow as pa
import pyarrow.types as pat

from partfile.errors import ConfigError, SnapshotCorrupt, UnencodableState
from partfile.snapshot.state_file import CodecInfo, ModelCodec, codec_info
from partfile.stores.checksums import crc32_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.snapshot.state_file import Codec


Value = TypeVar("Value")
_LONG = struct.Struct(">q")
_DOUBLE = struct.Struct(">d")
TIME_BYTES = 8
"""Of the time in front of a value, in a state with a time to live."""
_MIN_LONG, _MAX_LONG = -(1 << 63), (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_DECIMAL_FORM = Context()
"""How decimals are written, whatever the context of the thread says."""


def round_trip(codec: Codec[Value], value: Value) -> Value:
    """A value of its own, as it comes back after a restore.

    Raises:
        UnencodableState: It does not come back, or has no form.
    """
    return _come_back(codec, codec.encode(value), value)


def _come_back(codec: Codec[Value], data: bytes, value: Value) -> Value:
    """A value that was encoded a moment ago, decoded.

    Raises:
        UnencodableState: It does not come back, or a model comes back as another one.
    """
    try:
        found = codec.decode(data)
    except SnapshotCorrupt as error:
        raise UnencodableState(f"a value does not come back: {error.message}", hint=error.hint) from error
    # Of a model, fields may be left out, cut to a base class or changed by validators. Other values may not compare.
    if isinstance(codec, ModelCodec) and found != value:
        raise UnencodableState(
            f"a {type(value).__name__} comes back as another one: {data[:200]!r} is not all of it",
            hint="Give each field the type of what it holds; leave out exclude=True, private values and validators "
            "that change what they return. Or write it by functions of your own: PairCodec(NAME, encode, decode)",
        )
    return found


def encode_checked(codec: Codec[Any], value: Any) -> bytes:
    """A value that a user gives as bytes, which come back as that value.

    Raises:
        UnencodableState: The codec has no form for it, or it does not come back.
    """
    if isinstance(codec, ImmutableCodec):
        data: bytes = codec.encode(codec.copy(value))
    else:
        data = codec.encode(value)
        _come_back(codec, data, value)
    return data


class ImmutableCodec(ABC, Generic[Value]):
    """Base of codecs whose values cannot change. A backend that holds objects gives out its own, without a copy."""

    info: CodecInfo

    @abstractmethod
    def copy(self, value: Value) -> Value:
        """The value itself, or one that is equal and cannot change.

        Raises:
            UnencodableState: It is none of this codec.
        """

    @abstractmethod
    def encode(self, value: Value) -> bytes:
        """The value as bytes."""

    @abstractmethod
    def decode(self, data: bytes) -> Value:
        """The value again.

        Raises:
            SnapshotCorrupt: The bytes are not what this codec writes.
        """


def _refused(value: object, wanted: str) -> UnencodableState:
    return UnencodableState(f"{value!r} is a {type(value).__name__}, not {wanted}")


def _corrupt(data: bytes, wanted: str, error: Exception) -> SnapshotCorrupt:
    return SnapshotCorrupt(f"a value of {len(data)} bytes is not {wanted}: {error}")


class Int64Codec(ImmutableCodec[int]):
    """Integers of 64 bits. ``True`` is none."""

    info = CodecInfo(name="int64", version=1)

    def copy(self, value: int) -> int:
        """The value itself.

        Raises:
            UnencodableState: It is no integer, or it needs more than 64 bits.
        """
        if type(value) is int and _MIN_LONG <= value <= _MAX_LONG:
            return value
        raise _refused(value, "an integer of 64 bits, from -2**63 to 2**63 - 1")

    def encode(self, value: int) -> bytes:
        """Eight bytes, big end first."""
        return _LONG.pack(value)

    def decode(self, data: bytes) -> int:
        """The integer again.

        Raises:
            SnapshotCorrupt: There are not eight bytes.
        """
        try:
            number: int = _LONG.unpack(data)[0]
        except struct.error as error:
            raise _corrupt(data, "an integer", error) from error
        return number


class Float64Codec(ImmutableCodec[float]):
    """Floats of 64 bits, also those that are not finite. An integer is none: write ``float(value)``."""

    info = CodecInfo(name="float64", version=1)

    def copy(self, value: float) -> float:
        """The value itself.

        Raises:
            UnencodableState: It is no float.
        """
        if type(value) is float:
            return value
        raise _refused(value, "a float")

    def encode(self, value: float) -> bytes:
        """Eight bytes, big end first."""
        return _DOUBLE.pack(value)

    def decode(self, data: bytes) -> float:
        """The float again.

        Raises:
            SnapshotCorrupt: There are not eight bytes.
        """
        try:
            number: float = _DOUBLE.unpack(data)[0]
        except struct.error as error:
            raise _corrupt(data, "a float", error) from error
        return number


class BoolCodec(ImmutableCodec[bool]):
    """True and False."""

    info = CodecInfo(name="bool", version=1)

    def copy(self, value: bool) -> bool:
        """The value itself.

        Raises:
            UnencodableState: It is neither.
        """
        if type(value) is bool:
            return value
        raise _refused(value, "True or False")

    def encode(self, value: bool) -> bytes:
        """One byte."""
        return b"\1" if value else b"\0"

    def decode(self, data: bytes) -> bool:
        """The value again.

        Raises:
            SnapshotCorrupt: It is another byte.
        """
        if data not in {b"\0", b"\1"}:
            raise SnapshotCorrupt(f"a value of {len(data)} bytes is neither True nor False")
        return data == b"\1"


class BytesCodec(ImmutableCodec[bytes]):
    """Bytes as they are."""

    info = CodecInfo(name="bytes", version=1)

    def copy(self, value: bytes) -> bytes:
        """The value itself.

        Raises:
            UnencodableState: It is something else, a ``bytearray`` for instance.
        """
        if type(value) is bytes:
            return value
        raise _refused(value, "bytes")

    def encode(self, value: bytes) -> bytes:
        """The bytes."""
        return value

    def decode(self, data: bytes) -> bytes:
        """The bytes."""
        return data


class TextCodec(ImmutableCodec[str]):
    """Text, in UTF-8."""

    info = CodecInfo(name="text", version=1)

    def copy(self, value: str) -> str:
        """The value itself.

        Raises:
            UnencodableState: It is no text, or holds a surrogate, which UTF-8 has no form for.
        """
        if type(value) is not str:
            raise _refused(value, "text")
        if not value.isascii():
            self.encode(value)
        return value

    def encode(self, value: str) -> bytes:
        """UTF-8.

        Raises:
            UnencodableState: It holds a surrogate.
        """
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise UnencodableState(f"text cannot be written: {error}") from error

    def decode(self, data: bytes) -> str:
        """The text again.

        Raises:
            SnapshotCorrupt: The bytes are no UTF-8.
        """
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise _corrupt(data, "text", error) from error


class DecimalCodec(ImmutableCodec[Decimal]):
    """Finite decimals, with the digits they have: ``1.10`` comes back as ``1.10``."""

    info = CodecInfo(name="decimal", version=1)

    def copy(self, value: Decimal) -> Decimal:
        """The value itself.

        Raises:
            UnencodableState: It is no decimal, or not finite.
        """
        if type(value) is Decimal and value.is_finite():
            return value
        raise _refused(value, "a finite decimal")

    def encode(self, value: Decimal) -> bytes:
        """Its digits as text."""
        return _DECIMAL_FORM.to_sci_string(value).encode()

    def decode(self, data: bytes) -> Decimal:
        """The decimal again.

        Raises:
            SnapshotCorrupt: The bytes are no finite decimal.
        """
        try:
            value = Decimal(data.decode())
        except (UnicodeDecodeError, InvalidOperation) as error:
            raise _corrupt(data, "a decimal", error) from error
        if not value.is_finite() or self.encode(value) != data:
            raise SnapshotCorrupt(f"a value of {len(data)} bytes is no finite decimal as this codec writes it")
        return value


class TimestampCodec(ImmutableCodec[datetime]):
    """Instants to the microsecond: a ``datetime`` with a time zone, which comes back in UTC."""

    info = CodecInfo(name="timestamp", version=1)

    def copy(self, value: datetime) -> datetime:
        """The instant in UTC.

        Raises:
            UnencodableState: It is no ``datetime``, or has no time zone.
        """
        try:
            if type(value) is datetime and value.utcoffset() is not None:
                return value if value.tzinfo is UTC else value.astimezone(UTC)
        except OverflowError as error:
            raise UnencodableState(f"{value!r} is beyond the years that Python has in UTC") from error
        raise _refused(value, "a datetime with a time zone")

    def encode(self, value: datetime) -> bytes:
        """Microseconds since 1970: eight bytes, big end first."""
        return _LONG.pack((value - _EPOCH) // _MICROSECOND)

    def decode(self, data: bytes) -> datetime:
        """The instant again, in UTC.

        Raises:
            SnapshotCorrupt: There are not eight bytes, or they are beyond the years that Python has.
        """
        try:
            return _EPOCH + timedelta(microseconds=_LONG.unpack(data)[0])
        except (struct.error, OverflowError) as error:
            raise _corrupt(data, "an instant", error) from error


class ArrowCodec(ImmutableCodec[pa.RecordBatch]):
    """Record batches of one schema, as Arrow's IPC format has them.

    Args:
        schema: Of each batch; another one is another codec.

    Raises:
        ConfigError: A column is encoded with a dictionary, which the form of a batch leaves out.
    """

    def __init__(self, schema: pa.Schema) -> None:
        given: object = schema
        if not isinstance(given, pa.Schema):
            raise ConfigError(
                f"{schema!r:.50} is no schema of Arrow", hint="Write for instance ArrowCodec(batch.schema)."
            )
        encoded = [one.name for one in schema if _has_dictionary(one.type)]
        if encoded:
            raise ConfigError(
                f"column {encoded[0]!r} of a record batch in state is encoded with a dictionary",
                hint=f"Cast it to the type of its values: column.cast({schema.field(encoded[0]).type}.value_type)"
                if pat.is_dictionary(schema.field(encoded[0]).type)
                else "Cast the values within it: column.cast(TYPE)",
            )
        self._schema = schema
        self.info = CodecInfo(name=f"arrow/{crc32_of(schema.serialize()):08x}", version=1)

    def copy(self, value: pa.RecordBatch) -> pa.RecordBatch:
        """An equal batch in memory of its own: another program's, such as NumPy's, may change.

        Raises:
            UnencodableState: It is no record batch, or has another schema.
        """
        if not isinstance(value, pa.RecordBatch):
            raise _refused(value, "a record batch")
        if not value.schema.equals(self._schema):
            raise UnencodableState(f"the record batch has the columns {value.schema.names} of another schema")
        return round_trip(self, value)

    def encode(self, value: pa.RecordBatch) -> bytes:
        """Its IPC message, without the schema."""
        data: bytes = value.serialize().to_pybytes()
        return data

    def decode(self, data: bytes) -> pa.RecordBatch:
        """The batch again, checked.

        Raises:
            SnapshotCorrupt: The bytes are no batch of this schema.
        """
        try:
            batch = pa.ipc.read_record_batch(pa.py_buffer(data), self._schema)
            batch.validate(full=True)
        except (pa.ArrowException, OSError, EOFError) as error:
            raise _corrupt(data, "a record batch", error) from error
        return batch


def _has_dictionary(data_type: pa.DataType) -> bool:
    inner = [data_type.field(at).type for at in range(data_type.num_fields)]
    return pat.is_dictionary(data_type) or any(map(_has_dictionary, inner))


class MsgpackCodec:
    """Values of msgpack: None, bool, int, float, str, bytes, ``msgpack.Timestamp``, lists and dictionaries of these.

    A tuple comes back as a list. Source: https://github.com/msgpack/msgpack/blob/master/spec.md
    """

    info = CodecInfo(name="msgpack", version=1)

    def copy(self, value: Any) -> Any:
        """A value of its own.

        Raises:
            UnencodableState: Msgpack has no form for it, or it does not come back.
        """
        return round_trip(self, value)

    def encode(self, value: Any) -> bytes:
        """The value as msgpack.

        Raises:
            UnencodableState: It has no form there.
        """
        try:
            data: bytes = msgpack.packb(value, use_bin_type=True, strict_types=False)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise UnencodableState(f"a value of state has no form in msgpack: {error}") from error
        return data

    def decode(self, data: bytes) -> Any:
        """The value again.

        Raises:
            SnapshotCorrupt: The bytes are no msgpack, or of a type that this codec does not write.
        """
        try:
            return msgpack.unpackb(data, raw=False, strict_map_key=False, ext_hook=_no_extension)
        except (ValueError, TypeError, RecursionError) as error:
            raise _corrupt(data, "a value of msgpack", error) from error


def _no_extension(code: int, _data: bytes) -> object:
    raise ValueError(f"it has the extension type {code}")


class PairCodec(Generic[Value]):
    """A codec that is made of two functions.

    Args:
        name: Of the codec, which a snapshot records: a snapshot of another name is refused.
        encode: Turns a value into bytes.
        decode: Turns them back.
        version: Raised when bytes of an earlier version cannot be read any more.
    """

    def __init__(
        self, name: str, encode: Callable[[Value], bytes], decode: Callable[[bytes], Value], *, version: int = 1
    ) -> None:
        for argument, function in (("encode", encode), ("decode", decode)):
            if not callable(function):
                raise ConfigError(
                    f"the codec {name!r:.50}: {argument}={function!r} is no function",
                    hint="Write for instance PairCodec('point', encode, decode).",
                )
        self.info = codec_info("pair", name, version)
        self._encode = encode
        self._decode = decode

    def copy(self, value: Value) -> Value:
        """A value of its own: encoded and decoded.

        Raises:
            UnencodableState: The functions do not give it back.
        """
        return round_trip(self, value)

    def encode(self, value: Value) -> bytes:
        """The value as bytes.

        Raises:
            UnencodableState: The function raised, or returned something else.
        """
        try:
            data = self._encode(value)
        except Exception as error:
            raise UnencodableState(f"the codec {self.info.name} cannot encode {value!r}: {error}") from error
        if type(data) is not bytes:
            raise UnencodableState(f"the codec {self.info.name} returned a {type(data).__name__}, not bytes")
        return data

    def decode(self, data: bytes) -> Value:
        """The value again.

        Raises:
            SnapshotCorrupt: The function raised.
        """
        try:
            return self._decode(data)
        except Exception as error:
            raise SnapshotCorrupt(f"the codec {self.info.name} cannot decode {len(data)} bytes: {error}") from error


class TimedCodec(Generic[Value]):
    """A value with the time of its last write, in milliseconds since 1970: what a state with a time to live holds.

    Args:
        codec: Of the value.
    """

    def __init__(self, codec: Codec[Value]) -> None:
        self.codec = codec
        self.info = codec.info

    def encode(self, value: tuple[int, Value]) -> bytes:
        """The time in eight bytes, big end first, then the value."""
        return _LONG.pack(value[0]) + self.codec.encode(value[1])

    def decode(self, data: bytes) -> tuple[int, Value]:
        """The pair again.

        Raises:
            SnapshotCorrupt: There is no time, or the value cannot be decoded.
        """
        if len(data) < TIME_BYTES:
            raise SnapshotCorrupt(f"a value of {len(data)} bytes has no time")
        return _LONG.unpack_from(data)[0], self.codec.decode(data[TIME_BYTES:])
