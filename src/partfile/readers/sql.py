"""The schema of a tree in the types of an engine, and the statement by which the engine reads the tree rightly. Pure.

The statements say what ``docs/FORMATS.md`` says of each reader.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import pyarrow as pa
from pyarrow import types

from partfile.errors import ConfigError, NotFound
from partfile.readers.files import codec_of, common_format, partition_names
from partfile.readers.schema import check_one_layout, has_options, kept_in_csv, key_type
from partfile.readers.text_values import TextForm
from partfile.sink.schema import schema_in
from partfile.writers.registry import format_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from partfile.sink.states import RowSchema

Dialect = Literal["arrow", "spark", "duckdb", "hive"]
Engine = Literal["duckdb", "spark"]

_MOST_DIGITS = 38
"""Of the decimals of every engine here."""


_ENGINES = ("spark", "duckdb", "hive")
_SCALARS = {
    "null": ("VOID", "VARCHAR", "void"),
    "bool": ("BOOLEAN", "BOOLEAN", "boolean"),
    "int8": ("TINYINT", "TINYINT", "tinyint"),
    "int16": ("SMALLINT", "SMALLINT", "smallint"),
    "int32": ("INT", "INTEGER", "int"),
    "int64": ("BIGINT", "BIGINT", "bigint"),
    "uint8": ("SMALLINT", "UTINYINT", "smallint"),
    "uint16": ("INT", "USMALLINT", "int"),
    "uint32": ("BIGINT", "UINTEGER", "bigint"),
    "uint64": ("DECIMAL(20,0)", "UBIGINT", "decimal(20,0)"),
    "halffloat": ("FLOAT", "FLOAT", "float"),
    "float": ("FLOAT", "FLOAT", "float"),
    "double": ("DOUBLE", "DOUBLE", "double"),
    "text": ("STRING", "VARCHAR", "string"),
    "bytes": ("BINARY", "BLOB", "binary"),
    "date": ("DATE", "DATE", "date"),
    "instant": ("TIMESTAMP", "TIMESTAMPTZ", "timestamp"),
    "nanos": ("TIMESTAMP_NTZ", "TIMESTAMP_NS", "timestamp"),
    "local": ("TIMESTAMP_NTZ", "TIMESTAMP", "timestamp"),
    "time": ("TIME(6)", "TIME", "string"),
    "time of nanos": ("TIME(6)", "TIME_NS", "string"),
    "interval": ("INTERVAL DAY TO SECOND", "INTERVAL", "string"),
}
"""What each engine calls a type. One that it does not have is the one that holds its values, or their text."""


@dataclass(frozen=True, slots=True)
class _Words:
    """How one engine writes nested types and names.

    Args:
        items: A list, with ``{item}``.
        pairs: A map, with ``{key}`` and ``{item}``.
        struct: A struct, with ``{fields}``.
        field: A field of one, with ``{name}`` and ``{kind}``.
        quote: What a name stands in.
    """

    items: str
    pairs: str
    struct: str
    field: str
    quote: str

    def name(self, name: str) -> str:
        return f"{self.quote}{name.replace(self.quote, self.quote * 2)}{self.quote}"


_WORDS = {
    "spark": _Words("ARRAY<{item}>", "MAP<{key}, {item}>", "STRUCT<{fields}>", "{name}: {kind}", "`"),
    "duckdb": _Words("{item}[]", "MAP({key}, {item})", "STRUCT({fields})", "{name} {kind}", '"'),
    "hive": _Words("array<{item}>", "map<{key},{item}>", "struct<{fields}>", "{name}:{kind}", "`"),
}


def type_in(dialect: Dialect, kind: Any) -> str:
    """A type as an engine calls it."""
    if dialect == "arrow":
        return str(kind)
    words = _WORDS[dialect]
    if types.is_struct(kind):
        fields = (
            words.field.format(name=words.name(field.name), kind=type_in(dialect, field.type))
            for field in _fields(kind)
        )
        return words.struct.format(fields=", ".join(fields))
    if types.is_map(kind):
        return words.pairs.format(key=type_in(dialect, kind.key_type), item=type_in(dialect, kind.item_type))
    if _is_list(kind):
        return words.items.format(item=type_in(dialect, kind.value_type))
    if types.is_decimal(kind) and kind.precision <= _MOST_DIGITS:
        text = f"DECIMAL({kind.precision},{kind.scale})"
        return text.lower() if dialect == "hive" else text
    return _SCALARS[_scalar(kind)][_ENGINES.index(dialect)]


def _scalar(kind: Any) -> str:
    groups: dict[str, tuple[Callable[[Any], bool], ...]] = {
        "bytes": (types.is_binary, types.is_large_binary, types.is_fixed_size_binary),
        "date": (types.is_date,),
        "instant": (lambda one: types.is_timestamp(one) and one.tz is not None,),
        "nanos": (lambda one: types.is_timestamp(one) and one.unit == "ns",),
        "local": (types.is_timestamp,),
        "time of nanos": (lambda one: types.is_time(one) and one.unit == "ns",),
        "time": (types.is_time,),
        "interval": (types.is_duration,),
    }
    for group, tests in groups.items():
        if any(is_kind(kind) for is_kind in tests):
            return group
    # Decimals of more digits than the engines have are text, as they are in the file.
    return str(kind) if str(kind) in _SCALARS else "text"


def _fields(kind: Any) -> list[pa.Field[Any]]:
    return [kind.field(at) for at in range(kind.num_fields)]


def _is_list(kind: Any) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def column_lines(schema: pa.Schema, dialect: Dialect, path_columns: Iterable[str] = ()) -> list[str]:
    """A schema as lines for a person, or for a statement that makes a table.

    Args:
        schema: The columns, those of directories among them.
        dialect: Whose types.
        path_columns: Those that Hive has behind ``PARTITIONED BY``.
    """
    apart = set(path_columns) if dialect == "hive" else set[str]()
    columns = [field for field in schema if field.name not in apart]
    keys = [field for field in schema if field.name in apart]
    if dialect == "arrow":
        return [f"{field.name}: {field.type}" for field in columns]
    lines = _columns_in(dialect, columns)
    lines = [f"{line}," for line in lines[:-1]] + lines[-1:]
    return [*lines, f"PARTITIONED BY ({', '.join(_columns_in(dialect, keys))})"] if keys else lines


def _columns_in(dialect: Dialect, columns: Iterable[pa.Field[Any]]) -> list[str]:
    return [f"{_WORDS[dialect].name(field.name)} {type_in(dialect, field.type)}" for field in columns]


@dataclass(frozen=True, slots=True)
class Tree:
    """What a statement has to say of a tree.

    Args:
        base: An absolute path, or a URL.
        held: What the newest checkpoints hold of the schema.
        format: ``text``, ``json``, ``csv``, ``avro``, ``parquet`` or ``orc``.
        suffixes: Endings of the finished files, each with its dot.
        keys: The columns of ``name=value`` directories, where all directories are such.
    """

    base: str
    held: RowSchema
    format: str
    suffixes: tuple[str, ...]
    keys: tuple[str, ...]

    @classmethod
    def of(cls, base: str, files: Sequence[str], held: RowSchema) -> Tree:
        """What there is to say of some files.

        Args:
            base: An absolute path, or a URL.
            files: Paths of the finished files, relative to it; those to come are as the sink writes them now.
            held: What the newest checkpoints hold of the schema.

        Raises:
            ConfigError: The files are of several formats, or of one that their names do not say.
            NotFound: There is none, and the checkpoints do not tell how those to come will end.
        """
        if files:
            format, suffixes = common_format(files), sorted({_suffix(file) for file in files})
        elif "compression" in held.format:
            format, suffixes = str(held.format["format"]), [format_of(held.format).suffix]
        else:
            raise NotFound(
                f"{base!r} holds no finished file, so the endings of its files are not known",
                hint="Type the command again once a file is finished. See which there are: partfile list PATH",
                path=base,
            )
        shapes = {(partition_names(file), file.count("/")) for file in files}
        # Directories are columns where all of them are, and alike.
        names, depth = next(iter(shapes), (held.path_columns, len(held.path_columns)))
        keys = names if len(shapes) <= 1 and len(names) == depth else ()
        return cls(base, held, format, tuple(suffixes), keys)

    @property
    def schema(self) -> pa.Schema:
        """The columns, those of directories among them."""
        return schema_in(self.held)

    def statement(self, engine: Engine) -> str:
        """The statement by which an engine reads the tree.

        Raises:
            ConfigError: It has no reader for the format, the codec or the store; or it would take columns for others.
        """
        self._check_columns()
        return self._of_duckdb() if engine == "duckdb" else self._of_spark()

    def _check_columns(self) -> None:
        lost = [name for name in self.held.path_columns if name not in self.keys]
        if lost:
            raise ConfigError(
                f"{lost[0]!r} is in the names of directories alone, and not every file lies in such a directory",
                hint="Read each part of the tree by itself; or all of it in Python: partfile.read(PATH)",
                path=self.base,
            )
        folded = Counter(name.lower() for name in self.schema.names)
        alike = [name for name in self.schema.names if folded[name.lower()] > 1]
        if alike:
            raise ConfigError(f"the engines take {' and '.join(map(repr, alike))} for one column", hint=_BY_PARTFILE)
        unseen = [name for name in self.schema.names if not name.isprintable() or not name]
        if unseen:
            raise ConfigError(f"no statement has a form for the name of column {unseen[0]!r}", hint=_BY_PARTFILE)
        odd = [name for name in self.keys if quote(name) != name]
        if odd:
            raise ConfigError(
                f"directories write column {odd[0]!r} as {quote(odd[0])!r}, which the engines take for its name",
                hint=_BY_PARTFILE,
            )

    def _check_codecs(self, engine: str, unknown: Collection[str]) -> None:
        for suffix in self.suffixes:
            codec = codec_of(f"part{suffix}")
            if codec in unknown:
                raise ConfigError(f"{engine} does not read lines compressed by {codec}", hint=_BY_PARTFILE)

    @property
    def _form(self) -> TextForm:
        return TextForm.of(self.format, self.held.format)

    @property
    def _is_text(self) -> bool:
        return self.format in {"json", "csv"}

    def _of_duckdb(self) -> str:
        if self.format not in _DUCKDB_READERS:
            raise ConfigError(
                f"DuckDB has no reader for {self.format} files that takes them as they are",
                hint="Pass --engine spark, or read them in Python: partfile.read(PATH)",
            )
        if self.base.startswith("hdfs:"):
            raise ConfigError(
                "DuckDB does not read HDFS", hint="Pass --engine spark, or read in Python: partfile.read(PATH)"
            )
        if "\\" in self.base:
            raise ConfigError(f"DuckDB takes the backslash in {self.base!r} for a slash", hint=_BY_PARTFILE)
        self._check_codecs("DuckDB", {"bz2", "lz4", "snappy"})
        for field in self.schema:
            self._check_of_duckdb(field.name, field.type)
        by_name = self.format == "csv" and self._form.header and has_options(self.held)
        if self.format == "csv" and not by_name:
            check_one_layout(self.held, self.base)
        inside = ",\n    ".join(self._duckdb_arguments(by_name=by_name))
        columns = list(self._duckdb_columns(by_name=by_name))
        # Only what is read otherwise than it is wanted has to be said, where a reader gives the columns as declared.
        made = ",\n    ".join(f"{value} AS {name}" for name, value in columns if by_name or value != name)
        chosen = f"\n    {made}" if by_name else f" * REPLACE (\n    {made}\n)" if made else " *"
        return f"SELECT{chosen}\nFROM {_DUCKDB_READERS[self.format]}(\n    {inside}\n);"

    def _check_of_duckdb(self, column: str, kind: Any) -> None:
        """Refuse a column of which DuckDB would change values."""
        is_far = self.format == "parquet" and types.is_decimal(kind) and kind.precision > _MOST_DIGITS
        is_fine = types.is_timestamp(kind) and kind.unit == "ns" and kind.tz is not None
        # It has no struct without fields.
        is_empty = types.is_struct(kind) and not kind.num_fields
        if is_far or is_fine or is_empty:
            raise ConfigError(f"DuckDB has no type for the values of {column!r}, which is {kind}", hint=_BY_PARTFILE)
        for at in range(kind.num_fields):
            self._check_of_duckdb(column, kind.field(at).type)

    def _duckdb_arguments(self, *, by_name: bool) -> list[str]:
        patterns = [_text(f"{_literal(self.base)}/**/*{suffix}") for suffix in self.suffixes]
        in_files = [field for field in self.schema if field.name not in self.held.path_columns]
        columns = {field.name: type_in("duckdb", _read_as(field.type)) for field in in_files}
        keys = {field.name: field.type for field in self.schema if field.name in self.keys}
        arguments = [patterns[0] if len(patterns) == 1 else f"[{', '.join(patterns)}]"]
        if self.format == "json":
            arguments += [f"columns = {_struct(columns)}", "format = 'newline_delimited'"]
        elif self.format == "csv":
            # Lines of before a column was added have fewer; beside that, quoted line breaks need one reader a file.
            whole = [f"columns = {_struct(columns)}", "null_padding = true", "parallel = false"]
            arguments += ["union_by_name = true", "all_varchar = true"] if by_name else whole
            arguments += [
                f"header = {_truth(self._form.header)}",
                f"delim = {_text(self._form.separator)}",
                "quote = '\"'",
                "escape = '\"'",
                f"nullstr = {_text(self._form.null_value)}",
                "allow_quoted_nulls = false",
                "auto_detect = false",
            ]
        else:
            arguments.append("union_by_name = true")
        arguments.append(f"hive_partitioning = {_truth(bool(self.keys))}")
        if keys:
            kinds = ", ".join(
                f"{_text(name)}: {_text(type_in('duckdb', key_type(kind)))}" for name, kind in keys.items()
            )
            arguments.append(f"hive_types = {{{kinds}}}")
        return arguments

    def _duckdb_columns(self, *, by_name: bool) -> Iterator[tuple[str, str]]:
        """Each column with the expression that makes it of what DuckDB reads."""
        for field in self.schema:
            name = _WORDS["duckdb"].name(field.name)
            if not self._is_text or field.name in self.keys:
                yield name, name
                continue
            made = _decoded(name, field.type)
            is_cast = by_name and made == name and not types.is_string(field.type)
            yield name, f"CAST({name} AS {type_in('duckdb', field.type)})" if is_cast else made

    def _of_spark(self) -> str:
        self._check_codecs("Spark", {"lz4"})
        if self.format == "csv":
            check_one_layout(self.held, self.base)
            kept = [name for name in self.keys if name not in self.held.path_columns]
            if kept:
                raise kept_in_csv(kept[0])
        stem = re.sub(r"\W+", "_", self.base.rstrip("/").rpartition("/")[2]).strip("_") or "rows"
        given = ",\n    ".join(f"{name} '{value}'" for name, value in self._spark_options().items())
        how = f"USING {self.format}\nOPTIONS (\n    {given}\n);"
        if self.format in {"text", "avro"} and not self.keys:
            return f"CREATE OR REPLACE TEMPORARY VIEW `{stem}`\n{how}"
        # Spark's reader of JSON decodes binary values by itself, that of CSV does not.
        encoded = [field.name for field in self.schema if self.format == "csv" and _scalar(field.type) == "bytes"]
        shown = [field.with_type(self._spark_type(field, encoded)) for field in self.schema]
        inside = ",\n    ".join(_columns_in("spark", shown))
        raw = f"{stem}_as_text" if encoded else stem
        made = f"CREATE OR REPLACE TEMPORARY VIEW `{raw}` (\n    {inside}\n)\n{how}"
        if not encoded:
            return made
        names = {name: _WORDS["spark"].name(name) for name in self.schema.names}
        values = [f"unbase64({text}) AS {text}" if name in encoded else text for name, text in names.items()]
        chosen = f"SELECT {', '.join(values)} FROM `{raw}`;"  # noqa: S608 - is printed, not run
        return f"{made}\nCREATE OR REPLACE TEMPORARY VIEW `{stem}` AS\n{chosen}"

    def _spark_type(self, field: pa.Field[Any], encoded: Collection[str]) -> pa.DataType:
        """The type as which Spark reads a column."""
        if field.name in encoded:
            return pa.string()
        if field.name in self.keys:
            return key_type(field.type)
        # Parquet has no interval that Arrow writes.
        return pa.int64() if self.format == "parquet" and types.is_duration(field.type) else field.type

    def _spark_options(self) -> dict[str, str]:
        # Spark takes braces and the like for a pattern, and a path without a scheme for one of its default file system.
        base = re.sub("^s3://", "s3a://", self.base if "://" in self.base else f"file://{self.base}")
        options = {"path": _escaped(re.sub(r"([{}\[\]*?\\])", r"\\\1", base))}
        if not self.keys:
            options["recursiveFileLookup"] = "true"
        if self.format in {"text", "json"}:
            options["lineSep"] = "\\n"
        elif self.format in {"parquet", "orc"}:
            options["mergeSchema"] = "true"
        elif self.format == "csv":
            options |= {
                "header": _truth(self._form.header),
                "sep": _escaped(self._form.separator),
                "escape": '"',
                "multiLine": "true",
                "nullValue": _escaped(self._form.null_value) or "\\0",
            }
        return options


_DUCKDB_READERS = {"json": "read_json", "csv": "read_csv", "parquet": "read_parquet"}
_BY_PARTFILE = "Read the tree in Python: partfile.read(PATH)"


def _suffix(path: str) -> str:
    """The ending that says format and compression."""
    stem, last = posixpath.splitext(path)
    return last if codec_of(path) is None else posixpath.splitext(stem)[1] + last


def _truth(value: bool) -> str:
    return str(value).lower()


def _read_as(kind: Any) -> Any:
    """The type as which DuckDB reads a column of text: binary values and intervals are decoded afterwards."""
    if types.is_struct(kind):
        return pa.struct([(field.name, _read_as(field.type)) for field in _fields(kind)])
    if types.is_map(kind):
        return pa.map_(kind.key_type, _read_as(kind.item_type))
    if _is_list(kind):
        return pa.list_(_read_as(kind.value_type))
    return pa.string() if _scalar(kind) in {"bytes", "interval"} else kind


def _decoded(value: str, kind: Any, depth: int = 0) -> str:
    """The expression of DuckDB that makes a value of what was read; the value itself where that is the same."""
    one = f"e{depth}"
    made = value
    if types.is_struct(kind):
        names = {_WORDS["duckdb"].name(field.name): field.type for field in _fields(kind)}
        fields = {name: _decoded(f"{value}.{name}", inner, depth) for name, inner in names.items()}
        if any(text != f"{value}.{name}" for name, text in fields.items()):
            inside = ", ".join(f"{name} := {text}" for name, text in fields.items())
            made = f"CASE WHEN {value} IS NOT NULL THEN struct_pack({inside}) END"
    elif types.is_map(kind):
        item = _decoded(f"{one}.value", kind.item_type, depth + 1)
        if item != f"{one}.value":
            pair = f"lambda {one}: struct_pack(key := {one}.key, value := {item})"
            made = f"map_from_entries(list_transform(map_entries({value}), {pair}))"
    elif _is_list(kind):
        item = _decoded(one, kind.value_type, depth + 1)
        made = value if item == one else f"list_transform({value}, lambda {one}: {item})"
    elif _scalar(kind) == "bytes":
        made = f"from_base64({value})"
    elif _scalar(kind) == "interval":
        made = rf"CAST(regexp_replace({value}, '^(-?)(\d+) ', '\1\2 days \1') AS INTERVAL)"
    return made


def _text(value: str) -> str:
    """A text as a literal of DuckDB's SQL; of what a terminal would obey, such as a tab, the escape."""
    doubled = value.replace("'", "''")
    if value.isprintable():
        return f"'{doubled}'"
    plain = doubled.replace("\\", "\\\\")
    escaped = "".join(one if one.isprintable() else "".join(f"\\x{byte:02x}" for byte in one.encode()) for one in plain)
    return f"E'{escaped}'"


def _struct(columns: Mapping[str, str]) -> str:
    inside = ", ".join(f"{_text(name)}: {_text(kind)}" for name, kind in columns.items())
    return f"{{{inside}}}"


_GLOB = re.compile(r"([*?\[])")


def _literal(path: str) -> str:
    """A path for DuckDB, which takes stars and brackets for a pattern."""
    return _GLOB.sub(r"[\1]", path)


def _escaped(text: str) -> str:
    """A text within a literal of Spark's SQL; of what a terminal would obey, such as a tab, the escape."""
    plain = text.replace("\\", "\\\\").replace("'", "\\'")
    return "".join(one if one.isprintable() else f"\\U{ord(one):08x}" for one in plain)
