"""The interface of a format: it checks a schema, and makes the writer of one part or the encoder of one file.

``RowFormat`` appends rows to a part over many checkpoints; ``BulkFormat`` encodes a whole file once.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import pydantic

from partfile.errors import ConfigError, page_url, plain_words

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    import pyarrow as pa


TYPES_URL = page_url("FORMATS", "one-form-for-each-type")
"""Which types each format takes, for hints."""


class ByteStream(Protocol):
    """The target of a writer's bytes: an open part, or anything with a position."""

    @property
    def position(self) -> int:
        """Bytes handed over so far, counted from the start of the part."""

    def write(self, data: bytes | memoryview) -> None:
        """Append all of ``data``; the stream keeps no reference to it."""


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Rows of one batch as bytes, with the place of each, so that a slice of rows is a slice of bytes."""

    data: memoryview
    offsets: pa.Int64Array
    """``rows + 1`` byte positions into ``data``; row i is ``data[offsets[i]:offsets[i + 1]]``."""

    def rows(self, start: int, stop: int) -> memoryview:
        """The bytes of rows ``start`` to ``stop`` (exclusive), without a copy."""
        return self.data[self.offsets[start].as_py() : self.offsets[stop].as_py()]

    def take(self, order: pa.Array[Any]) -> EncodedRows:
        """The same rows in another order: row i of the result is row ``order[i]`` of this one."""
        return EncodedRows.of(self.lines().take(order))

    @classmethod
    def of(cls, lines: Any) -> EncodedRows:
        """View a large_string or large_binary array as bytes and places, without a copy; none is null, none cut off.

        Args:
            lines: Fresh from a kernel, or a slice, whose rows are then a slice of the bytes.
        """
        import pyarrow as pa  # noqa: PLC0415 - commands that see no rows do not load it.

        _, offsets, data = lines.buffers()
        if len(lines) == 0 or offsets is None:
            return cls(memoryview(b""), pa.array([0], pa.int64()))
        places: Any = pa.Int64Array.from_buffers(pa.int64(), len(lines) + 1, [None, offsets], offset=lines.offset)
        end = places[len(lines)].as_py()
        return cls(memoryview(b"" if data is None else data)[:end], places)

    def lines(self) -> Any:
        """The rows as an array of binary values, without a copy."""
        import pyarrow as pa  # noqa: PLC0415 - likewise.

        count = len(self.offsets) - 1
        buffers = [None, self.offsets.buffers()[1], pa.py_buffer(self.data)]
        return pa.LargeBinaryArray.from_buffers(pa.large_binary(), count, buffers, offset=self.offsets.offset)


class Writer(ABC):
    """Writes the rows of one part to its stream. Keeps nothing across a persist."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Append the rows of a batch."""

    @abstractmethod
    def persist(self) -> int:
        """Hand every byte to the stream so that what is there decodes by itself, and return the stream's position.

        A compressed writer ends its member or frame here, so that every valid length is a frame boundary. Without a
        write since the last persist nothing is added. Durability is the stream's business, not the writer's.

        Raises:
            ConfigError: The format is not appendable: its parts are closed at each checkpoint, never persisted.
        """

    @abstractmethod
    def close(self) -> None:
        """End the part (a footer, where the format has one). Nothing may be written afterwards."""

    def abandon(self) -> None:  # noqa: B027 - most have nothing of the kind.
        """Let go of what the writer has besides its stream, as temporary files; also after ``close``."""


class RowWriter(Writer):
    """A writer that also takes rows which its format has encoded already."""

    @abstractmethod
    def write_encoded(self, data: bytes | memoryview, rows: int) -> None:
        """Append whole rows, so many of them, as encoded by ``RowFormat.encode``."""


class Format(ABC):
    """Encodes rows as bytes. A frozen, picklable description; makes one writer a part."""

    @property
    @abstractmethod
    def suffix(self) -> str:
        """File name suffix with its dots, compression included (``.json.gz``)."""

    @property
    @abstractmethod
    def appendable(self) -> bool:
        """Whether a part can be cut and continued at each persist; else it rolls at every checkpoint."""

    @abstractmethod
    def check(self, schema: pa.Schema) -> None:
        """Refuse a schema that has no documented form here.

        Raises:
            UnsupportedTypeError: Names the column and its type, and what to do.
        """

    @abstractmethod
    def open(self, stream: ByteStream, schema: pa.Schema) -> Writer:
        """Make the writer of one part. A stream at position 0 is a new part and gets its header, where there is one."""

    def open_part(self, stream: ByteStream, schema: pa.Schema, part_id: str) -> Writer:  # noqa: ARG002
        """Make the writer of a part that nothing else is called: for formats whose files hold a mark of their own.

        Args:
            stream: As for ``open``.
            schema: As for ``open``.
            part_id: The same each time that a part is opened, and never another part's.
        """
        return self.open(stream, schema)


class RowFormat(Format):
    """A format whose rows stand side by side: encode a batch once, cut it by offsets."""

    @property
    def appendable(self) -> bool:
        """Rows can be cut and continued anywhere."""
        return True

    @abstractmethod
    def encode(self, batch: pa.RecordBatch) -> EncodedRows:
        """Encode every row of a batch, without going through Python objects."""

    @abstractmethod
    def open(self, stream: ByteStream, schema: pa.Schema) -> RowWriter:
        """Make the writer of one part."""


class BulkFormat(Format):
    """A format whose file is written as a whole, as a footer ends it: at each checkpoint, or once from staged rows."""

    @property
    def appendable(self) -> bool:
        """A footer ends the file, so a part cannot be continued."""
        return False

    def refuses_rows(self, schema: pa.Schema) -> bool:  # noqa: ARG002
        """Whether ``check_rows`` may refuse a row of these columns; asked once a part, so that others cost nothing."""
        return True

    def check_rows(self, batch: pa.RecordBatch) -> None:
        """Refuse values that no file of this format can hold, before they are staged for one; most take every value.

        Raises:
            ConfigError: Names the column and what to do.
        """

    def encode(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema, stream: ByteStream) -> int:
        """Write one whole file and return the number of its rows.

        Memory is what the format's writer holds: one row group, whatever the size of the file. On failure the stream
        has got some bytes that are no file; nothing more is written to it.

        Args:
            batches: Rows of one schema, each batch read only once.
            schema: That schema, also where there is no batch.
            stream: An empty part.
        """
        writer = self.open(stream, schema)
        rows = 0
        try:
            for batch in batches:
                writer.write(batch)
                rows += batch.num_rows
            writer.close()
        except BaseException:
            writer.abandon()
            raise
        return rows


def resolve_options(format: Any, kind: type[Any]) -> None:
    """Refuse options of another type than their fields have; a list that stands for a tuple becomes one.

    Args:
        format: A frozen dataclass, from its ``__post_init__``.
        kind: The class whose fields are options; a subclass may have others, which are its own business.

    Raises:
        ConfigError: Names the option and, where it is clear what was meant, how to write it.
    """
    for field, adapter, annotation in _adapters(cast("Hashable", kind)):
        given = getattr(format, field.name)
        if isinstance(given, list) and _takes_tuple(annotation):
            object.__setattr__(format, field.name, tuple(given))
        try:
            adapter.validate_python(getattr(format, field.name), strict=True)
        except pydantic.ValidationError as error:
            problem = error.errors(include_url=False)[0]
            words = plain_words(problem)
            shown = f"={given!r}" if field.repr else ""
            raise ConfigError(
                f"{kind.__name__} option {field.name}{shown} has a wrong type: {words}.",
                hint=_meant(given, adapter, annotation),
            ) from error


@functools.cache
def _adapters(kind: Any) -> list[tuple[dataclasses.Field[Any], pydantic.TypeAdapter[Any], Any]]:
    annotations = typing.get_type_hints(kind)
    fields = dataclasses.fields(kind)
    return [(field, pydantic.TypeAdapter(annotations[field.name]), annotations[field.name]) for field in fields]


def _takes_tuple(annotation: Any) -> bool:
    return any(typing.get_origin(one) is tuple for one in (annotation, *typing.get_args(annotation)))


def _takes(annotation: Any, kind: type) -> bool:
    return kind in (annotation, *typing.get_args(annotation))


def _meant(given: Any, adapter: pydantic.TypeAdapter[Any], annotation: Any) -> str:
    if isinstance(given, str) and _takes_tuple(annotation):
        flags = " Or True or False, without quotes." if _takes(annotation, bool) else ""
        return f"Write ({given!r},).{flags}"
    try:
        return f"Write {adapter.validate_python(given)!r}."
    except pydantic.ValidationError:
        return f"What it takes: {page_url('FORMATS')}"
