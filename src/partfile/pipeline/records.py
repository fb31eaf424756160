"""Records as rows: what is a row of a schema, and what is wrong with a record that is none."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from io import BytesIO
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pyarrow.json as pj

from partfile.errors import ConfigError
from partfile.sink.schema import schema_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from confluent_kafka import Message


@dataclass(frozen=True, slots=True)
class ParsedRecords:
    """What records are."""

    rows: pa.RecordBatch
    """Of those that are rows, in their order."""
    problems: Mapping[int, str] = field(default_factory=dict)
    """What is wrong with the others, by their place among all, from 0 on."""


class JsonRows:
    """Each value is an object of JSON. Fields that the schema does not have are left out, missing ones are null.

    Args:
        schema: The columns: a pyarrow schema, or names with types, such as ``{"id": "int64"}``.

    Raises:
        ConfigError: It is no schema.
    """

    def __init__(self, schema: pa.Schema | Mapping[str, object]) -> None:
        found = schema_of(schema)
        if found is None:
            raise ConfigError("JsonRows: there is no schema", hint='Write for instance pf.JsonRows({"id": "int64"}).')
        self.schema = found
        if not found.names or len(set(found.names)) < len(found.names):
            raise ConfigError(
                f"JsonRows: the schema has {'no column' if not found.names else 'two columns of one name'}",
                hint='Write for instance pf.JsonRows({"id": "int64"}).',
            )
        for one in found:
            self._check_field(one)

    def _check_field(self, column: pa.Field) -> None:
        if not _is_nullable(column):
            raise ConfigError(
                f"JsonRows: the column {column.name!r} is not nullable, or has a field that is not, and may be missing",
                hint="Write pa.field(NAME, TYPE), and drop rows without it in map_batches().",
            )
        options = pj.ParseOptions(explicit_schema=pa.schema([column]))
        try:
            pj.read_json(BytesIO(b"{}"), parse_options=options).cast(pa.schema([column]))
        except pa.ArrowException as error:
            raise ConfigError(
                f"JsonRows: the column {column.name!r} has a type that Arrow does not read JSON as: {column.type}",
                hint='Take a type of text, such as "string", and make the column of it in map_batches().',
            ) from error

    def parse(self, records: Sequence[Message]) -> ParsedRecords:
        """The rows of records. A value that is no object, or has a field of another type, is none."""
        return self.rows([record.value() for record in records])

    def rows(self, values: list[bytes | None]) -> ParsedRecords:
        """The rows of values, or what is wrong with them."""
        problems: dict[int, str] = {}
        found = self._table_of_lines(values)
        tables = [found] if found is not None else self._tables_of_others(values, problems)
        none = pa.RecordBatch.from_pylist([], self.schema)
        return ParsedRecords(_one_batch(pa.concat_tables(tables)) if tables else none, problems)

    def _table_of_lines(self, values: list[bytes | None]) -> pa.Table | None:
        """All values at once, where each is one line without white space around it; None if one is no row."""
        try:
            data = b"\n".join(cast("list[bytes]", values))
        except TypeError:
            # One of them is None.
            return None
        between = len(values) - 1
        if data[:1] == b"{" and data[-1:] == b"}" and data.count(b"\n") == data.count(b"}\n{") == between:
            return self._rows_of(data, len(values))
        return None

    def _tables_of_others(self, values: list[bytes | None], problems: dict[int, str]) -> list[pa.Table]:
        """The same of any values. What is no JSON is sorted out first: to look for it by halves takes longer."""
        texts: dict[int, bytes] = {}
        for at, value in enumerate(values):
            text = b"" if value is None else value.strip(_WHITE_SPACE)
            if text[:1] == b"{" and text[-1:] == b"}":
                texts[at] = text
            else:
                problems[at] = _problem(value)
        found = self._rows_of(b"\n".join(texts.values()), len(texts))
        if found is not None:
            return [found]
        for at in [at for at, text in texts.items() if not _is_json(text)]:
            problems[at] = _problem(texts.pop(at))
        return self._tables(list(texts.items()), problems)

    def _tables(self, texts: list[tuple[int, bytes]], problems: dict[int, str]) -> list[pa.Table]:
        """The rows of objects, by halves down to those that do not fit the schema."""
        if not texts:
            return []
        found = self._rows_of(b"\n".join(text for _, text in texts), len(texts))
        if found is not None:
            return [found]
        if len(texts) == 1:
            ((at, text),) = texts
            problems[at] = self._misfit(text)
            return []
        middle = len(texts) // 2
        return self._tables(texts[:middle], problems) + self._tables(texts[middle:], problems)

    def _rows_of(self, data: bytes, count: int) -> pa.Table | None:
        """The rows of so many objects, a line feed between two of them; None if one is no row.

        Each begins with a brace and ends with one. Where two meet, no object and no text can go on: an object lacks its
        comma, and a text has no line feed. So each value is one row or more, and where there are as many rows as values
        each is one. That is the same of a value whatever others come with it.
        """
        try:
            found = self._table(data)
        except (pa.ArrowException, UnicodeDecodeError):
            return None
        return found if found.num_rows == count else None

    def _table(self, data: bytes) -> pa.Table:
        options = pj.ParseOptions(
            explicit_schema=self.schema, unexpected_field_behavior="ignore", newlines_in_values=True
        )
        reading = pj.ReadOptions(use_threads=False, block_size=len(data) + 1)
        # Arrow takes any bytes as text.
        if not data.isascii():
            data.decode()
        return pj.read_json(BytesIO(data), reading, options).select(self.schema.names).cast(self.schema)

    def _misfit(self, text: bytes) -> str:
        """Why an object is no row of the schema."""
        try:
            self._table(text)
        except UnicodeDecodeError:
            return "it is no text in UTF-8"
        except pa.ArrowException as error:
            return f"it does not fit the schema: {str(error).splitlines()[0].removesuffix(' in row 0')}"
        return "it is more than one object"


_WHITE_SPACE = b" \t\r\n"
"""Of JSON."""


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    # A read has too few bytes for two.
    (found,) = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]
    return found


def _is_nullable(column: pa.Field) -> bool:
    kind = column.type
    return column.nullable and all(_is_nullable(kind.field(at)) for at in range(kind.num_fields))


def _is_json(text: bytes) -> bool:
    """Whether it may be an object of JSON; what this says is none, is none for Arrow either."""
    try:
        json.loads(text)
    except json.JSONDecodeError:
        return False
    except (ValueError, RecursionError):
        return True
    return True


def _problem(value: bytes | None) -> str:
    """Why a value is no object of JSON."""
    if value is None:
        return "it has no value"
    try:
        json.loads(value.decode())
    except UnicodeDecodeError:
        return "it is no text in UTF-8"
    except (ValueError, RecursionError) as error:
        return f"it is no JSON: {error}"
    return "it is JSON, and no object"
