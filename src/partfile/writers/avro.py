"""Avro container files: blocks of rows behind a header, added to over many checkpoints."""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from partfile.errors import ConfigError, UnsupportedTypeError
from partfile.stores.checksums import crc32_of
from partfile.writers.base import TYPES_URL, EncodedRows, RowFormat, RowWriter, resolve_options
from partfile.writers.columns import as_plain, map_entries, plain_schema
from partfile.writers.scalars import UnwritableValue, check_times, in_column, is_binary, is_text, kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from partfile.writers.base import ByteStream


ROW_NAME = "row"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INT_BITS = 32


def avro_schema(schema: pa.Schema) -> dict[str, Any]:
    """The schema of a file of these columns: a record, whose fields are unions with null where nulls are allowed.

    Args:
        schema: Plain columns (see ``plain_schema``).

    Raises:
        UnsupportedTypeError: Names the column, the place within it, its type, and what to do.
    """
    if len(schema) == 0:
        raise UnsupportedTypeError("Avro needs at least one column, and there is none.")
    _check_names(schema.names, "")
    return _record(ROW_NAME, None, list(schema), ROW_NAME)


def decimal_bytes(precision: int) -> int:
    """Bytes that hold each decimal of so many digits, as two's complement."""
    largest: int = 10**precision
    return largest.bit_length() // 8 + 1


def _record(name: str, namespace: str | None, fields: list[Any], path: str) -> dict[str, Any]:
    record: dict[str, Any] = {"type": "record", "name": name}
    if namespace is not None:
        record["namespace"] = namespace
    record["fields"] = [_field(field, f"{path}.{field.name}") for field in fields]
    return record


def _field(field: Any, path: str) -> dict[str, Any]:
    kind = _nullable(field, path)
    return {"name": field.name, "type": kind, **({"default": None} if isinstance(kind, list) else {})}


def _nullable(field: Any, path: str) -> Any:
    kind = _type(field.type, path)
    return ["null", kind] if field.nullable and kind != "null" else kind


def _type(kind: Any, path: str) -> Any:
    for matches, avro_type in _SIMPLE:
        if matches(kind):
            return avro_type(kind)
    if types.is_decimal(kind):
        return _decimal(kind, path)
    if types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        _check_names([field.name for field in fields], path)
        namespace, _, name = path.rpartition(".")
        return _record(name, namespace, fields, path)
    if types.is_map(kind):
        if not is_text(kind.key_type):
            raise _refused(path, f"a map key of type {kind.key_type}", "Cast the keys to string.")
        return {"type": "map", "values": _nullable(kind.item_field, f"{path}.value")}
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return {"type": "array", "items": _nullable(kind.value_field, f"{path}.item")}
    hint = "Cast it to decimal(20, 0)." if types.is_uint64(kind) else f"Cast it to a type of {TYPES_URL}"
    raise _refused(path, str(kind), hint)


def _decimal(kind: Any, path: str) -> dict[str, Any]:
    if not 0 <= kind.scale <= kind.precision:
        raise _refused(path, str(kind), "Cast it to a decimal whose scale is neither negative nor above its precision.")
    namespace, _, name = path.rpartition(".")
    fixed = {"type": "fixed", "name": name, "namespace": namespace, "size": decimal_bytes(kind.precision)}
    return {**fixed, "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}


def _logical(base: str, name: str) -> dict[str, Any]:
    return {"type": base, "logicalType": name}


def _integer(kind: Any) -> str:
    small = kind.bit_width < _INT_BITS or types.is_int32(kind)
    return "int" if small else "long"


def _timestamp(kind: Any) -> dict[str, Any]:
    unit = {"s": "millis", "ms": "millis", "us": "micros", "ns": "nanos"}[kind.unit]
    return _logical("long", f"{'local-' if kind.tz is None else ''}timestamp-{unit}")


def _time(kind: Any) -> dict[str, Any]:
    return _logical("int", "time-millis") if types.is_time32(kind) else _logical("long", "time-micros")


_SIMPLE: tuple[tuple[Callable[[Any], bool], Callable[[Any], Any]], ...] = (
    (types.is_null, lambda _: "null"),
    (types.is_boolean, lambda _: "boolean"),
    (lambda kind: types.is_integer(kind) and not types.is_uint64(kind), _integer),
    (lambda kind: types.is_float16(kind) or types.is_float32(kind), lambda _: "float"),
    (types.is_float64, lambda _: "double"),
    (is_text, lambda _: "string"),
    (is_binary, lambda _: "bytes"),
    (types.is_date, lambda _: _logical("int", "date")),
    (types.is_time, _time),
    (types.is_timestamp, _timestamp),
    # As Spark writes it: microseconds, and the name of its own type.
    (types.is_duration, lambda _: {"type": "long", "spark.sql.catalyst.type": "interval day to second"}),
)


def _check_names(names: list[str], path: str) -> None:
    for index, name in enumerate(names):
        if not _NAME.fullmatch(name):
            raise _refused(
                f"{path}.{name}",
                "a name that is not made of letters, digits and _",
                "Rename it: batch.rename_columns([...])",
            )
        if name in names[:index]:
            raise _refused(f"{path}.{name}", "a name that occurs twice", "Rename one: batch.rename_columns([...])")


def _refused(path: str, what: str, hint: str) -> UnsupportedTypeError:
    shown = path.removeprefix(f"{ROW_NAME}.").removeprefix(".")
    return UnsupportedTypeError(
        f"Column {shown.split('.')[0]!r} cannot be written as Avro: {what} has no form at {shown!r}.", hint=hint
    )


BYTES = pa.large_binary()
_NOTHING = b""
_LONGEST_VARINT_BYTES = 10
_SEVEN_BITS = 7
_GOES_ON = 0x80


def row_bytes(schema: pa.Schema, columns: Sequence[Any], rows: int) -> Any:
    """The bytes of each row: its fields in order, as a large_binary array without nulls.

    Args:
        schema: Plain columns.
        columns: Their values.
        rows: How many there are.

    Raises:
        ConfigError: A null where the schema allows none, or a value that would lose digits.
    """
    pieces = []
    for field, column in zip(schema, columns, strict=True):
        with in_column(field.name, "Avro"):
            pieces += _field_values(field, column)
    return _joined(pieces, rows)


def varint(value: int) -> bytes:
    """One number as Avro writes a long."""
    return bytes(_varints(np.array([value], np.int64))[1])


def _fields(fields: Sequence[Any], columns: Sequence[Any]) -> list[Any]:
    return [piece for field, column in zip(fields, columns, strict=True) for piece in _field_values(field, column)]


def _field_values(field: Any, column: Any) -> list[Any]:
    """The pieces of a column, behind the branch of its union if nulls are allowed."""
    if types.is_null(column.type) or len(column) == 0:
        return []
    if not field.nullable:
        if column.null_count:
            raise UnwritableValue(
                f"field {field.name!r} holds nulls, and its schema says that it holds none.",
                hint="Declare it as nullable: field.with_nullable(True).",
            )
        return _value(column)
    if column.null_count == 0:
        return [_constant(b"\x02"), *_value(column)]
    branches = kernels.if_else(column.is_valid(), _constant(b"\x02"), _constant(b"\x00"))
    return [branches, *_value(column)]


def _value(column: Any) -> list[Any]:
    """The pieces of the values; each is null, or without bytes, where the column is null."""
    for matches, encode in _ENCODERS:
        if matches(column.type):
            return encode(column)
    values = _numbers(column)
    return [_like(column, *_varints(values))]


def _numbers(column: Any) -> Any:
    """The 64-bit integers that stand for a column of integers, dates, times, timestamps or durations."""
    kind = column.type
    try:
        if types.is_date64(kind):
            column = column.cast(pa.date32())
        elif types.is_timestamp(kind) and kind.unit == "s":
            column = column.cast(pa.timestamp("ms", kind.tz))
        elif types.is_duration(kind):
            column = column.cast(pa.duration("us"))
        elif types.is_time(kind):
            check_times(column)
            column = column.cast(pa.time32("ms") if types.is_time32(kind) else pa.time64("us"))
    except pa.ArrowInvalid as error:
        raise UnwritableValue(
            f"A value of type {kind} has no form in Avro without a loss: {error}",
            hint=f"Mend the value, or write the column as a number: column.cast('int{kind.bit_width}').",
        ) from error
    if not types.is_integer(column.type):
        column = column.view(pa.int32() if column.type.bit_width == 32 else pa.int64())  # noqa: PLR2004
    column = column.cast(pa.int64())
    if column.null_count:
        column = kernels.fill_null(column, 0)
    return column.to_numpy(zero_copy_only=False)


def _booleans(column: Any) -> list[Any]:
    return [kernels.if_else(column, _constant(b"\x01"), _constant(b"\x00"))]


def _floats(column: Any) -> list[Any]:
    column = column.cast(pa.float32()) if types.is_float16(column.type) else column
    width = column.type.bit_width // 8
    return [_fixed(column, np.frombuffer(column.buffers()[1], np.uint8), width)]


def _decimals(column: Any) -> list[Any]:
    if column.type.bit_width < 128:  # noqa: PLR2004
        column = column.cast(pa.decimal128(column.type.precision, column.type.scale))
    width = column.type.bit_width // 8
    size = decimal_bytes(column.type.precision)
    places = np.frombuffer(column.buffers()[1], np.uint8)[column.offset * width : (column.offset + len(column)) * width]
    big_endian = places.reshape(-1, width)[:, size - 1 :: -1]
    return [_like(column, np.full(len(column), size), np.ascontiguousarray(big_endian).reshape(-1))]


def _fixed(column: Any, data: Any, width: int) -> Any:
    start = column.offset * width
    return _like(column, np.full(len(column), width), data[start : start + len(column) * width])


def _texts(column: Any) -> list[Any]:
    texts = column.cast(pa.large_string()).cast(BYTES) if is_text(column.type) else column.cast(BYTES)
    sizes = kernels.fill_null(kernels.binary_length(texts), 0).to_numpy(zero_copy_only=False)
    return [_like(column, *_varints(sizes)), texts]


def _structs(column: Any) -> list[Any]:
    fields = [column.type.field(index) for index in range(column.type.num_fields)]
    if column.null_count == 0:
        return _fields(fields, column.flatten())
    valid = column.is_valid()
    present = column.filter(valid)
    inner = _joined(_fields(fields, present.flatten()), len(present))
    return [_spread(inner, valid)]


def _spread(present: Any, valid: Any) -> Any:
    """Put the values for the valid rows at their places, with nulls between."""
    mask = valid.to_numpy(zero_copy_only=False)
    return present.take(pa.array(np.cumsum(mask) - 1, mask=~mask))


def _lists(column: Any) -> list[Any]:
    lengths = kernels.fill_null(kernels.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    items = column.flatten()
    return _collection(column, lengths, _joined(_field_values(column.type.value_field, items), len(items)))


def _maps(column: Any) -> list[Any]:
    lists = map_entries(column)
    lengths = kernels.fill_null(kernels.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    pairs = lists.flatten()
    return _collection(lists, lengths, _joined(_fields(list(pairs.type), pairs.flatten()), len(pairs)))


def _collection(column: Any, lengths: Any, items: Any) -> list[Any]:
    """One block of all items, and the empty block that ends a collection."""
    counts = _like(column, *_varints(lengths.astype(np.int64)))
    counts = kernels.if_else(pa.array(lengths == 0), pa.scalar(None, BYTES), counts)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    body: Any = pa.scalar(_NOTHING, BYTES)
    if len(items):
        places = np.frombuffer(items.buffers()[1], np.int64)[items.offset : items.offset + len(items) + 1]
        buffers = [None, pa.py_buffer(places[ends]), items.buffers()[2]]
        body = pa.LargeBinaryArray.from_buffers(BYTES, len(column), buffers)
    return [counts, body, _like(column, np.ones(len(column), np.int64), np.zeros(len(column), np.uint8))]


def _varints(values: Any) -> tuple[Any, Any]:
    """The sizes and the bytes of numbers as Avro writes them: zigzag, seven bits a byte, the lowest first."""
    zigzag = ((values << 1) ^ (values >> 63)).view(np.uint64)
    largest = int(zigzag.max()) if len(zigzag) else 0
    width = max(1, -(-largest.bit_length() // _SEVEN_BITS))
    if width == 1:
        return np.ones(len(zigzag), np.int64), zigzag.astype(np.uint8)
    groups = np.empty((len(zigzag), width), np.uint8)
    used = np.empty((len(zigzag), width), np.bool_)
    for place in range(width):
        groups[:, place] = zigzag & 0x7F | _GOES_ON
        used[:, place] = zigzag != 0
        zigzag = zigzag >> np.uint64(_SEVEN_BITS)
    used[:, 0] = True
    sizes = used.sum(axis=1)
    groups[np.arange(len(zigzag)), sizes - 1] &= 0x7F
    return sizes, groups[used]


def _like(column: Any, sizes: Any, data: Any) -> Any:
    """Bytes of these sizes for the rows of a column, null where it is null."""
    offsets = np.zeros(len(column) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    valid = _bits(column.is_valid()) if column.null_count else None
    return pa.LargeBinaryArray.from_buffers(
        BYTES, len(column), [valid, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    )


def _bits(mask: Any) -> pa.Buffer:
    return pa.py_buffer(np.packbits(mask.to_numpy(zero_copy_only=False), bitorder="little"))


def _joined(pieces: list[Any], rows: int) -> Any:
    if not any(isinstance(piece, pa.Array) for piece in pieces):
        constant = _NOTHING.join(piece.as_py() for piece in pieces)
        return pa.repeat(_constant(constant), rows)
    return kernels.binary_join_element_wise(
        *pieces, _constant(_NOTHING), null_handling="replace", null_replacement=_NOTHING
    )


def _constant(data: bytes) -> Any:
    return pa.scalar(data, BYTES)


_ENCODERS: tuple[tuple[Callable[[Any], bool], Callable[[Any], list[Any]]], ...] = (
    (types.is_boolean, _booleans),
    (types.is_floating, _floats),
    (types.is_decimal, _decimals),
    (lambda kind: is_text(kind) or is_binary(kind), _texts),
    (types.is_struct, _structs),
    (types.is_map, _maps),
    (types.is_nested, _lists),
)


_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_BLOCK_BYTES = 256 << 10
_RAW_DEFLATE_WBITS = -15
_NAMES = {"none": "null", "deflate": "deflate", "snappy": "snappy", "zstd": "zstandard"}
"""Our names of codecs, and those of the Avro specification."""
_LEVELS = {"deflate": range(1, 10), "zstd": range(1, 23)}


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroFormat(RowFormat):
    """Rows as an Avro container file; each persist ends a block.

    Args:
        compression: Codec of the blocks: snappy, deflate, zstd or none.
        compression_level: 1 to 9 for deflate, 1 to 22 for zstd; None is the codec's own default.
        block_bytes: Encoded bytes that end a block before the next persist does.

    Raises:
        ConfigError: An unknown codec, a level that it does not take, or a block of nothing.
    """

    compression: str = "snappy"
    compression_level: int | None = None
    block_bytes: int = _BLOCK_BYTES

    def __post_init__(self) -> None:
        resolve_options(self, AvroFormat)
        if self.compression not in _NAMES:
            raise ConfigError(
                f"Avro compression {self.compression!r} is not known.",
                hint=f"There are {', '.join(_NAMES)}: write for instance compression='zstd'.",
            )
        levels = _LEVELS.get(self.compression, range(0))
        if self.compression_level is not None and self.compression_level not in levels:
            raise ConfigError(
                f"Avro compression {self.compression!r} does not take the level {self.compression_level}.",
                hint="Write for instance compression_level=6: deflate takes 1 to 9, zstd 1 to 22, the others none.",
            )
        if self.block_bytes < 1:
            raise ConfigError("block_bytes must be at least 1.", hint="Write block_bytes=65536.")

    @property
    def suffix(self) -> str:
        """``.avro``; the codec is told inside the file."""
        return ".avro"

    def check(self, schema: pa.Schema) -> None:
        """Refuse types and names that Avro has no form for.

        Raises:
            UnsupportedTypeError: Names the column and its type, and what to do.
        """
        avro_schema(plain_schema(schema))

    def encode(self, batch: pa.RecordBatch) -> EncodedRows:
        """Encode every row of a batch.

        Raises:
            ConfigError: A null where the schema allows none, or a value that would lose digits.
        """
        plain = as_plain(batch, plain_schema(batch.schema))
        return EncodedRows.of(row_bytes(plain.schema, plain.columns, plain.num_rows))

    def open(self, stream: ByteStream, schema: pa.Schema) -> RowWriter:
        """Make the writer of a part by itself; all parts of a schema have one sync marker."""
        return self.open_part(stream, schema, "")

    def open_part(self, stream: ByteStream, schema: pa.Schema, part_id: str) -> RowWriter:
        """Make the writer of one part, whose sync marker follows from its id and need not be read back."""
        return AvroWriter(self, stream, schema, part_id)

    def compressed(self, data: bytes | bytearray) -> bytes:
        """The bytes of a block between its head and the sync marker."""
        if self.compression == "deflate":
            level = -1 if self.compression_level is None else self.compression_level
            codec = zlib.compressobj(level, zlib.DEFLATED, _RAW_DEFLATE_WBITS)
            return codec.compress(data) + codec.flush()
        if self.compression == "snappy":
            return _arrow_compressed("snappy", None, data) + crc32_of(data).to_bytes(4, "big")
        if self.compression == "zstd":
            return _arrow_compressed("zstd", self.compression_level, data)
        return bytes(data)


class AvroWriter(RowWriter):
    """Holds the rows of one block at a time."""

    def __init__(self, form: AvroFormat, stream: ByteStream, schema: pa.Schema, part_id: str) -> None:
        self._form = form
        self._stream = stream
        self._pending = bytearray()
        self._pending_rows = 0
        metadata = {
            b"avro.schema": json.dumps(avro_schema(plain_schema(schema)), separators=(",", ":")).encode(),
            b"avro.codec": _NAMES[form.compression].encode(),
        }
        self._sync = hashlib.sha256(b"\0".join((part_id.encode(), *metadata.values()))).digest()[:_SYNC_BYTES]
        if stream.position == 0:
            stream.write(_MAGIC + _map(metadata) + self._sync)

    def write(self, batch: pa.RecordBatch) -> None:
        """Encode the rows of a batch and append them, in blocks of the size asked for."""
        encoded = self._form.encode(batch)
        offsets = encoded.offsets.to_numpy(zero_copy_only=False)
        cuts = np.searchsorted(offsets, np.arange(self._form.block_bytes, len(encoded.data), self._form.block_bytes))
        start = 0
        for stop in np.unique(cuts).tolist():
            self._hold(encoded.rows(start, stop), stop - start)
            self._end_block()
            start = stop
        self.write_encoded(encoded.rows(start, batch.num_rows), batch.num_rows - start)

    def write_encoded(self, data: bytes | memoryview, rows: int) -> None:
        """Append whole rows; they are of one block, however many."""
        self._hold(data, rows)
        if len(self._pending) >= self._form.block_bytes:
            self._end_block()

    def persist(self) -> int:
        """End the block, if there is one, and return the stream's position."""
        if self._pending_rows:
            self._end_block()
        return self._stream.position

    def close(self) -> None:
        """End the last block; there is no footer."""
        self.persist()

    def _hold(self, data: bytes | memoryview, rows: int) -> None:
        self._pending += data
        self._pending_rows += rows

    def _end_block(self) -> None:
        data = self._form.compressed(self._pending)
        self._stream.write(varint(self._pending_rows) + varint(len(data)) + data + self._sync)
        self._pending = bytearray()
        self._pending_rows = 0


def _map(metadata: dict[bytes, bytes]) -> bytes:
    words = [varint(len(word)) + word for pair in metadata.items() for word in pair]
    return varint(len(metadata)) + b"".join(words) + varint(0)


def _arrow_compressed(codec: str, level: int | None, data: bytes | bytearray) -> bytes:
    compressed: Any = pa.Codec(codec, level).compress(data, asbytes=True)
    return bytes(compressed)
