"""An Avro container file as Arrow: the schema from its header, then record batches of a few blocks each."""

from __future__ import annotations

import io
import itertools
import json
import re
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.ipc
from pyarrow import types

from partfile.errors import ConfigError, PartDamaged, PartfileError, UnsupportedTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType


_PRIMITIVE: dict[str, Any] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL: dict[tuple[str, str], Any] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    **{
        ("long", f"{local}timestamp-{name}"): pa.timestamp(unit, zone)
        for local, zone in (("", "UTC"), ("local-", None))
        for name, unit in (("millis", "ms"), ("micros", "us"), ("nanos", "ns"))
    },
}
_SPARK_TYPE = "spark.sql.catalyst.type"
_SPARK_DURATION = "interval day to second"
_MOST_DECIMAL128_DIGITS = 38
_NO_CODEC = re.compile(r"(\w+) codec is supported but you need to install")


def arrow_schema(schema: Any) -> pa.Schema:
    """The columns of a file.

    Args:
        schema: Of the file, every named type written out where it is used.

    Raises:
        UnsupportedTypeError: Its values are no records, or a column is a union of several types, or holds itself.
    """
    if not isinstance(schema, dict) or schema.get("type") not in {"record", "error"}:
        raise UnsupportedTypeError("An Avro file whose values are no records has no columns.")
    return pa.schema([_field(each["name"], each["type"], each["name"]) for each in schema["fields"]])


def held_type(kind: Any) -> pa.DataType:
    """The type that holds values before they get an Arrow type: numbers, bytes, and pairs instead of maps."""
    if types.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        return pa.struct([pa.field(each.name, held_type(each.type)) for each in fields])
    if types.is_nested(kind):
        return pa.list_(held_type(entries_of(kind) if types.is_map(kind) else kind.value_type))
    if types.is_decimal(kind):
        return pa.binary()
    if types.is_temporal(kind):
        return pa.int32() if types.is_date(kind) or types.is_time32(kind) else pa.int64()
    held: pa.DataType = kind
    return held


def entries_of(kind: Any) -> pa.StructType:
    """The pairs that a map consists of."""
    return pa.struct([kind.key_field, kind.item_field])


def held_schema(schema: Any) -> Any:
    """A schema of the same bytes by which Python gets numbers and bytes alone.

    Logical types go, since Python's dates end with the year 9999 and its clocks at the microsecond; and a map becomes
    an array of pairs, which is how it lies in the file, since Python's would drop keys that occur twice.

    Args:
        schema: As a parser has checked it, with full names.
    """
    return _held(schema, itertools.count())


def _held(schema: Any, numbers: Iterator[int]) -> Any:
    if isinstance(schema, list):
        return [_held(each, numbers) for each in schema]
    if not isinstance(schema, dict) or schema["type"] in _PRIMITIVE:
        return _word(schema)
    kept = {name: schema[name] for name in ("type", "name", "symbols", "size") if name in schema}
    if "fields" in schema:
        kept["fields"] = [{"name": each["name"], "type": _held(each["type"], numbers)} for each in schema["fields"]]
    elif "items" in schema:
        kept["items"] = _held(schema["items"], numbers)
    elif "values" in schema:
        kept = {"type": "array", "items": _pair(_held(schema["values"], numbers), numbers)}
    return kept


def _pair(value: Any, numbers: Iterator[int]) -> dict[str, Any]:
    # Without a namespace it takes that of what it is in, so names inside mean what they meant.
    name = f"partfile_pair_{next(numbers)}"
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": "key", "type": "string"}, {"name": "value", "type": value}],
    }


def _field(name: str, schema: Any, path: str) -> pa.Field[Any]:
    members = schema if isinstance(schema, list) else [schema]
    kinds = [member for member in members if _word(member) != "null"]
    if len(kinds) > 1:
        words = ", ".join(_word(member) for member in kinds)
        raise _refused(path, f"a union of {words}")
    if not kinds:
        return pa.field(name, pa.null())
    return pa.field(name, _type(kinds[0], path), nullable=len(members) > 1)


def _type(schema: Any, path: str) -> Any:
    kind = _word(schema)
    if kind in ("record", "error"):
        return pa.struct([_field(each["name"], each["type"], f"{path}.{each['name']}") for each in schema["fields"]])
    if kind == "array":
        return pa.list_(_field("item", schema["items"], f"{path}.item"))
    if kind == "map":
        return pa.map_(pa.string(), _field("value", schema["values"], f"{path}.value"))
    found = _scalar(kind, schema if isinstance(schema, dict) else {})
    if found is None:
        raise _refused(path, f"a type that holds itself, {kind},")
    return found


def _scalar(kind: str, properties: dict[str, Any]) -> Any:
    if properties.get("logicalType") == "decimal" and kind in ("bytes", "fixed"):
        return _decimal(properties["precision"], properties.get("scale", 0))
    if properties.get(_SPARK_TYPE) == _SPARK_DURATION and kind == "long":
        return pa.duration("us")
    if kind == "fixed":
        return pa.binary(properties["size"])
    if kind == "enum":
        return pa.string()
    return _LOGICAL.get((kind, str(properties.get("logicalType"))), _PRIMITIVE.get(kind))


def _word(schema: Any) -> str:
    """The name of a type, whether it has properties or not."""
    while isinstance(schema, dict):
        schema = schema["type"]
    return "union" if isinstance(schema, list) else str(schema)


def _decimal(precision: int, scale: int) -> Any:
    return pa.decimal128(precision, scale) if precision <= _MOST_DECIMAL128_DIGITS else pa.decimal256(precision, scale)


def _refused(path: str, what: str) -> UnsupportedTypeError:
    return UnsupportedTypeError(
        f"Column {path.split('.', maxsplit=1)[0]!r} cannot be read from Avro: {what} has no Arrow type at {path!r}.",
        hint="No sink writes such columns; read the file with fastavro.reader(file).",
    )


_ROWS_A_BATCH = 4096
_BATCH_BYTES = 32 << 20
"""Decompressed, of the blocks of one batch; columns of Arrow end at 2 GiB, and so may memory long before."""
_READ_BYTES = 16 << 20
"""At once: a length that is damaged asks for more than there is."""
_FIXED = "fixed"
_HEAD = {
    "type": "record",
    "name": "head",
    "fields": [
        {"name": "magic", "type": {"type": _FIXED, "name": "magic", "size": 4}},
        {"name": "meta", "type": {"type": "map", "values": "bytes"}},
        {"name": "sync", "type": {"type": _FIXED, "name": "sync", "size": 16}},
    ],
}
_MAGIC = b"Obj\x01"


class AvroFile:
    """One open file.

    Args:
        file: Open for reading at its beginning; stays its caller's.
        path: Of the file, for messages.

    Raises:
        ConfigError: fastavro is not installed; on reading rows, what reads the file's compression is not.
        UnsupportedTypeError: A column has no Arrow type.
        PartDamaged: The file does not begin as Avro; on reading rows, where a block is not whole.
    """

    def __init__(self, file: Any, path: str) -> None:
        self._path = path
        self._file = _Noting(file)
        self._fastavro = load_fastavro()
        self._head = self._checked(self._read_head)
        said = self._checked(lambda: json.loads(self._head["meta"]["avro.schema"]))
        self._held = held_schema(self._checked(lambda: self._fastavro.parse_schema(said)))
        self.schema = arrow_schema(self._checked(lambda: self._fastavro.schema.expand_schema(said)))
        """The columns, in the types that the sink's rows had where Avro has them."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows; some thousands of them, or some MiB, and the block they end with, are in memory at once."""
        blocks = self._checked(lambda: self._fastavro.block_reader(_Joined(self._held_head(), self._file)))
        rows: list[dict[str, Any]] = []
        held_bytes = 0
        while (block := self._checked(lambda: next(blocks, None))) is not None:
            # Rows are decoded while they are taken out of their block.
            rows += self._checked(partial(_rows_of, block))
            held_bytes += block.bytes_.tell()
            if len(rows) >= _ROWS_A_BATCH or held_bytes >= _BATCH_BYTES:
                yield self._batch(rows)
                rows, held_bytes = [], 0
        if rows:
            yield self._batch(rows)

    def as_arrow_file(self) -> pa.Buffer:
        """All rows, in the form of an Arrow IPC file in memory."""
        target = pa.BufferOutputStream()
        with pa.ipc.new_file(target, self.schema) as writer:
            for batch in self.batches():
                writer.write_batch(batch)
        return target.getvalue()

    def _read_head(self) -> dict[str, Any]:
        head: dict[str, Any] = self._fastavro.schemaless_reader(self._file, _HEAD, None)
        if head["magic"] != _MAGIC:
            raise ValueError("it begins otherwise")
        return head

    def _held_head(self) -> bytes:
        """The head that makes the same blocks numbers and bytes."""
        head = io.BytesIO()
        meta = {**self._head["meta"], "avro.schema": json.dumps(self._held).encode()}
        self._fastavro.schemaless_writer(head, _HEAD, {**self._head, "meta": meta})
        return head.getvalue()

    def _batch(self, rows: list[dict[str, Any]]) -> pa.RecordBatch:
        columns = [self._checked(partial(_column, field, rows)) for field in self.schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _checked(self, step: Callable[[], Any]) -> Any:
        """Run a step. Errors of the decoders, but not those of storage, become damage."""
        try:
            return step()
        except PartfileError:
            raise
        except Exception as error:  # decoders of a dozen kinds, which raise what they like
            if self._file.failure is not None:
                raise self._file.failure from None
            if (uninstalled := missing_codec(error, self._path)) is not None:
                raise uninstalled from error
            raise PartDamaged(
                f"{self._path!r} is not a whole Avro file: {type(error).__name__}: {error}",
                hint="Put the file back from a copy, then type: partfile verify PATH",
                path=self._path,
            ) from error


class _Noting:
    """A file that remembers why it could not be read."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.failure: Exception | None = None

    def read(self, size_bytes: int) -> bytes:
        """As much as there is, if less is left; raises ValueError for a size that no file has."""
        if size_bytes < 0:
            raise ValueError(f"it says that {size_bytes} bytes follow")
        data = self._read(min(size_bytes, _READ_BYTES))
        if len(data) < _READ_BYTES:
            return data
        pieces = [data]
        while pieces[-1] and (left := size_bytes - sum(map(len, pieces))) > 0:
            pieces.append(self._read(min(left, _READ_BYTES)))
        return b"".join(pieces)

    def _read(self, size_bytes: int) -> bytes:
        try:
            data: bytes = self._file.read(size_bytes)
        except Exception as error:
            self.failure = error
            raise
        return data


class _Joined:
    """Some bytes, and a file that goes on behind them. No read goes over the seam, for it is the end of the head."""

    def __init__(self, head: bytes, file: _Noting) -> None:
        self._head = io.BytesIO(head)
        self._file = file
        self._position = 0

    def read(self, size_bytes: int) -> bytes:
        data = self._head.read(size_bytes) or self._file.read(size_bytes)
        self._position += len(data)
        return data

    def tell(self) -> int:
        return self._position


def _rows_of(block: Any) -> list[dict[str, Any]]:
    """All rows of a block; raises ValueError where its row count and its bytes disagree."""
    rows = list(block)
    if len(rows) != block.num_records or block.bytes_.read(1):
        raise ValueError(f"a block says that it has {block.num_records} rows, but its bytes are not those of so many")
    return rows


def _column(field: Any, rows: list[dict[str, Any]]) -> Any:
    return _of_type(pa.array([row[field.name] for row in rows], held_type(field.type)), field.type)


def _of_type(held: Any, kind: Any) -> Any:
    """Values of the type that they stand for; numbers and texts are not copied."""
    if types.is_decimal(kind):
        return _decimals(held, kind)
    if types.is_struct(kind):
        children = [_of_type(held.field(at), kind.field(at).type) for at in range(kind.num_fields)]
        return pa.Array.from_buffers(kind, len(held), held.buffers()[:1], children=children)
    if types.is_map(kind):
        pairs = _of_type(held.values, entries_of(kind))
        return pa.Array.from_buffers(kind, len(held), held.buffers()[:2], children=[pairs])
    if types.is_list(kind):
        values = _of_type(held.values, kind.value_type)
        return pa.Array.from_buffers(kind, len(held), held.buffers()[:2], children=[values])
    return held if held.type == kind else held.view(kind)


def _decimals(held: Any, kind: Any) -> Any:
    """Decimals from their digits as big-endian numbers of any length."""
    width = kind.bit_width // 8
    numbers = (int.from_bytes(data or b"", "big", signed=True) for data in held.to_pylist())
    places = b"".join(number.to_bytes(width, "little", signed=True) for number in numbers)
    return pa.Array.from_buffers(kind, len(held), [held.buffers()[0], pa.py_buffer(places)])


def load_fastavro() -> ModuleType:
    """What reads Avro, loaded when it is needed: it need not be there.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        import fastavro  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError("what reads Avro is not installed", hint="pip install 'partfile[avro]'") from error
    module: ModuleType = fastavro
    return module


def missing_codec(error: Exception, path: str) -> ConfigError | None:
    """The error for a file whose compression needs a package that is not installed here; None for any other failure.

    Such a file is whole. fastavro tells it apart by its sentence alone.

    Args:
        error: What fastavro raised.
        path: Of the file, for the message.
    """
    found = _NO_CODEC.match(str(error)) if isinstance(error, ValueError) else None
    if found is None:
        return None
    return ConfigError(
        f"{path!r} is compressed with {found[1]}, and what reads that is not installed",
        hint=f"pip install 'fastavro[{found[1]}]'",
        path=path,
    )
