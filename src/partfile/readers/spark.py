"""``partfile.read_spark``: what a sink has written as a Spark DataFrame."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import types

from partfile.errors import ConfigError, NotFound
from partfile.readers.files import DEFAULT_SIDECARS, SidecarNaming, check_format, check_names, partition_shape
from partfile.readers.filesystem import valid_length_filesystem
from partfile.readers.schema import kept_in_csv, key_type, known_columns, typed_rows
from partfile.readers.text_values import TextForm
from partfile.sink.schema import schema_in
from partfile.stores.registry import options_of_tasks

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Sequence

    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import StructType

    from partfile.readers.cut_files import CutFiles
    from partfile.readers.filesystem import ValidLengthFileSystem
    from partfile.sink.states import RowSchema

_OPTIONS: dict[str, dict[str, str]] = {
    "text": {"lineSep": "\n"},
    "json": {"lineSep": "\n"},
    "csv": {"header": "true", "escape": '"', "multiLine": "true", "nullValue": "\0"},
    "avro": {},
    "parquet": {},
    "orc": {},
}
"""The options of Spark's readers for a sink's files, as docs/FORMATS.md says."""

_FIXED = {"linesep", "multiline", "escape", "quote", "encoding", "charset", "comment", "path", "basepath"}
_FIXED |= {"recursivefilelookup", "pathglobfilter", "modifiedbefore", "modifiedafter", "wholetext"}
_CUTTABLE = ("text", "json", "csv")
_WITHOUT_SCHEMA = ("json", "csv")
_GLOB = re.compile(r"([{}\[\]*?\\])")


def read_spark(
    spark: SparkSession,
    path: str | os.PathLike[str],
    *,
    format: str,
    schema: StructType | str | pa.Schema | None = None,
    options: Mapping[str, str] | None = None,
    storage_options: Mapping[str, object] | None = None,
    sidecars: SidecarNaming = DEFAULT_SIDECARS,
    checkpoint_dir: str | os.PathLike[str] | None = None,
) -> DataFrame:
    """Read what sinks have finished below a base path, each row once, valid lengths honoured.

    Files without a sidecar are read by Spark's own reader. Those with one are read on the executors through fsspec, up
    to their valid length, and their rows are parsed by Spark. Where no file has a sidecar this is ``spark.read``. On
    S3 all text, JSON and CSV is read on the executors through s3fs, so Spark needs no client of its own; directories
    whose type the schema does not say are strings. The files are listed now; later ones are not in it.

    Args:
        spark: The session.
        path: The base path of the sink, as for ``partfile.read``.
        format: ``text``, ``json``, ``csv``, ``avro``, ``parquet`` or ``orc``. For Avro Spark needs its package
            ``spark-avro``.
        schema: The columns, in Spark's words or as a schema of pyarrow. Of JSON and CSV None takes what the checkpoints
            tell, as ``read_schema`` does: then columns that other programs' files have besides are left out. The other
            formats say it themselves.
        options: Further options of Spark's reader for the format, for instance ``{"header": "false"}``.
        storage_options: What fsspec's client needs, here and on the executors; Spark has its own configuration. Of HDFS
            executors do not get what only cutting parts needs, ``delegation_token`` among it.
        sidecars: How the sink names its sidecars, if not by default.
        checkpoint_dir: Where the sink keeps its checkpoints, if not below the base.

    Returns:
        A DataFrame; ``name=value`` directories are columns.

    Raises:
        NotFound: The path is not there.
        ConfigError: The format or an option is not known or cannot be passed; a file's name says another format; the
            schema is missing and no checkpoint tells it; directories are of several shapes, which Spark would refuse or
            pass over; or a file of Avro, Parquet or ORC has a sidecar.
        SnapshotCorrupt: A sidecar is damaged; or the newest checkpoint is, where it has to tell the columns.
        PartMissing: A file is shorter than its sidecar says.
        StoreError: The checkpoints that have to tell the columns cannot be reached.
    """
    format = check_format(format)
    given = _checked_options(format, options)
    schema = _schema_of(schema)
    shown = valid_length_filesystem(path, storage_options, sidecars=sidecars)
    if not shown.isdir(shown.base):
        raise NotFound(
            f"{path!r} is not a directory",
            hint="Check the path; the base is what the sink writes to: partfile.read_spark(spark, BASE, format='json')",
            path=str(path),
        )
    names = [_relative(shown, name) for name in shown.find(shown.base)]
    check_names(format, names)
    columns = partition_shape(names)
    encoded: list[str] = []
    if schema is None and format in _WITHOUT_SCHEMA:
        held = _told(path, format, storage_options, checkpoint_dir)
        kept = [name for name in columns if name in schema_in(held).names and name not in held.path_columns]
        if kept and format == "csv":
            raise kept_in_csv(kept[0])
        schema, encoded, form = _spark_schema(held, format)
        given = {**given, **form, **_named(options)}
    files = _files(path, storage_options, format, columns, given)
    if schema is None and columns and format not in _WITHOUT_SCHEMA:
        return _with_keys(spark, lambda: _rows(spark, shown, files, None, given), path, storage_options, checkpoint_dir)
    return _decoded(_rows(spark, shown, files, schema, given), encoded)


_INFERENCE = "spark.sql.sources.partitionColumnTypeInference.enabled"


def _with_keys(
    spark: SparkSession,
    read: Callable[[], DataFrame],
    path: str | os.PathLike[str],
    storage_options: Mapping[str, object] | None,
    checkpoint_dir: str | os.PathLike[str] | None,
) -> DataFrame:
    """Rows of files that say their types, with those of the directories' keys as the checkpoints tell them."""
    known = known_columns(path, storage_options=storage_options, checkpoint_dir=checkpoint_dir)
    in_path = () if known.held is None else known.held.path_columns
    told = [field for field in known.columns if field.name in in_path]
    if not told:
        return read()
    before = str(spark.conf.get(_INFERENCE))
    # Spark would take keys that look like numbers for numbers, when it lists the files.
    spark.conf.set(_INFERENCE, "false")
    try:
        frame = read()
    finally:
        spark.conf.set(_INFERENCE, before)
    kinds = _in_spark(pa.schema([field.with_type(key_type(field.type)) for field in told]), frame.columns)
    return frame.withColumns({kind.name: frame[_quoted(kind.name)].cast(kind.dataType) for kind in kinds})


def _rows(
    spark: SparkSession,
    shown: ValidLengthFileSystem,
    files: CutFiles,
    schema: StructType | str | None,
    given: Mapping[str, str],
) -> DataFrame:
    """The rows as Spark reads them, with those of files that it cannot read up to their valid length."""
    format = files.format
    if "s3" in shown.fs.protocol and format in _CUTTABLE:
        return _through_executors(spark, shown, schema, files, given)
    is_flat = not files.partition_columns
    plain = _plain_reader(spark, format, schema, given, is_flat=is_flat).load(_literal_url(shown, files.url))
    # Spark has listed its files by now, and each sidecar was there before its file's name.
    found = shown.find(shown.base, detail=True)
    cut = {_relative(shown, name): entry["size"] for name, entry in found.items() if entry["sidecar"]}
    if not cut:
        return plain
    if format not in _CUTTABLE:
        name = next(iter(cut))
        raise ConfigError(
            f"{name!r} has a sidecar, and Spark's reader of {format} files would read on behind its valid length",
            hint="Read it in plain Python: partfile.read(PATH)",
            path=name,
        )
    from partfile.readers.cut_files import without  # noqa: PLC0415 - a module that needs pyspark

    return without(plain, shown.base, cut).unionByName(files.rows(spark, cut, plain.schema, given))


def _plain_reader(
    spark: SparkSession,
    format: str,
    schema: StructType | str | None,
    options: Mapping[str, str],
    *,
    is_flat: bool,
) -> DataFrameReader:
    """Spark's own reader; ``is_flat`` means that no directory is a partition."""
    reader = spark.read.format(format).options(**options)
    if is_flat:
        # Spark would not look into directories that are no partitions.
        reader = reader.option("recursiveFileLookup", "true")
    return reader.schema(schema) if schema is not None else reader


def _files(
    path: str | os.PathLike[str],
    storage_options: Mapping[str, object] | None,
    format: str,
    columns: tuple[str, ...],
    options: Mapping[str, str],
) -> CutFiles:
    from partfile.readers.cut_files import CutFiles  # noqa: PLC0415 - a module that needs pyspark

    # The closure reaches every executor; secrets that no reader needs stay here.
    mine = options_of_tasks(str(path), storage_options or {})
    return CutFiles(str(path), mine, format, columns, is_header=_is_header(format, options))


def _through_executors(
    spark: SparkSession,
    shown: ValidLengthFileSystem,
    schema: StructType | str | None,
    files: CutFiles,
    options: Mapping[str, str],
) -> DataFrame:
    """Every file through Python, for none of which Spark needs a client of its own."""
    declared = spark.createDataFrame([], schema or "value string").schema
    for column in files.partition_columns:
        if column not in declared.names:
            declared = declared.add(column, "string")
    found = shown.find(shown.base, detail=True)
    return files.rows(
        spark, {_relative(shown, name): entry["size"] for name, entry in found.items()}, declared, options
    )


def _told(
    path: str | os.PathLike[str],
    format: str,
    storage_options: Mapping[str, object] | None,
    checkpoint_dir: str | os.PathLike[str] | None,
) -> RowSchema:
    """What the checkpoints tell of the columns.

    Raises:
        ConfigError: They tell nothing, or Spark would read some files of CSV wrongly by it.
    """
    try:
        return typed_rows(path, storage_options=storage_options, checkpoint_dir=checkpoint_dir)
    except NotFound as error:
        raise ConfigError(
            f"{format} files do not say their schema: {error.message}",
            hint="Pass schema=, for instance schema='id long'.",
        ) from error


def _spark_schema(held: RowSchema, format: str) -> tuple[StructType, list[str], dict[str, str]]:
    """The columns in Spark's types, which of them are text in base64 to Spark, and options of its reader.

    Raises:
        ConfigError: Spark has no type for one.
    """
    keys = set(held.path_columns)
    # The name of a directory says no zone of an instant.
    known = pa.schema(
        [field.with_type(key_type(field.type)) if field.name in keys else field for field in schema_in(held)]
    )
    # Its reader of JSON decodes binary values by itself, that of CSV does not.
    encoded = [field.name for field in known if format == "csv" and _as_in_spark(field.type) == pa.binary()]
    shown = pa.schema([field.with_type(pa.string()) if field.name in encoded else field for field in known])
    form = TextForm.of(format, held.format)
    options = {"header": str(form.header).lower(), "sep": form.separator} if format == "csv" else {}
    if form.null_value:
        options["nullValue"] = form.null_value
    return _in_spark(shown, shown.names), encoded, options


def _in_spark(schema: pa.Schema, names: Collection[str]) -> StructType:
    """Some columns in Spark's types.

    Raises:
        ConfigError: Spark has no type for one.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415 - importing partfile needs no Spark
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415

    known = pa.schema([(field.name, _as_in_spark(field.type)) for field in schema if field.name in names])
    try:
        return from_arrow_schema(known, prefer_timestamp_ntz=True)
    except PySparkException as error:
        raise ConfigError(
            f"Spark has no type for a column that the checkpoint tells: {error}",
            hint="Pass schema=, for instance schema='id long'.",
        ) from error


def _as_in_spark(kind: Any) -> pa.DataType:
    """The type of Spark's that holds the values of a type that it has not."""
    if types.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        return pa.struct([(field.name, _as_in_spark(field.type)) for field in fields])
    if types.is_map(kind):
        return pa.map_(_as_in_spark(kind.key_type), _as_in_spark(kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(_as_in_spark(kind.value_type))
    if types.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale) if kind.precision <= _MOST_DIGITS else pa.string()
    if types.is_fixed_size_binary(kind) or types.is_large_binary(kind):
        return pa.binary()
    return _OF_SPARK.get(kind, kind)


_MOST_DIGITS = 38
_OF_SPARK: dict[pa.DataType, pa.DataType] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
}


def _schema_of(schema: StructType | str | pa.Schema | None) -> StructType | str | None:
    """The schema that a user passes, as Spark takes it.

    Raises:
        ConfigError: It is none.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415 - importing partfile needs no Spark
    from pyspark.sql.types import StructType  # noqa: PLC0415

    if isinstance(schema, pa.Schema):
        return _in_spark(schema, schema.names)
    if schema is not None and not isinstance(schema, str | StructType):
        raise ConfigError(f"schema={schema!r} is no schema", hint=_A_SCHEMA)
    if isinstance(schema, str):
        try:
            said = StructType.fromDDL(schema)
        except (PySparkException, TypeError) as error:
            words = str(error).strip().partition("\n")[0]
            raise ConfigError(f"schema={schema!r} is no schema: {words}", hint=_A_SCHEMA) from error
        if not isinstance(said, StructType) or not said.names or len({*said.names}) < len(said.names):
            raise ConfigError(f"schema={schema!r} has no columns, or one name twice", hint=_A_SCHEMA)
        return said
    return schema


_A_SCHEMA = "Pass for instance schema='id long, name string'."


def _checked_options(format: str, options: Mapping[str, str] | None) -> dict[str, str]:
    if not isinstance(options, Mapping | None):
        raise ConfigError(f"options={options!r} is no mapping", hint='Pass for instance options={"header": "false"}.')
    for name in options or {}:
        if name.lower() in _FIXED:
            raise ConfigError(
                f"the option {name!r} cannot be passed: it would not hold for files with a sidecar",
                hint="Leave it out, and filter the rows: df.where(...).",
            )
    return {**_OPTIONS[format], **_named(options)}


def _named(options: Mapping[str, str] | None) -> dict[str, str]:
    return {name: str(value) for name, value in (options or {}).items()}


def _decoded(frame: DataFrame, encoded: Sequence[str]) -> DataFrame:
    """The rows with binary values where Spark has read text in base64."""
    from pyspark.sql.functions import unbase64  # noqa: PLC0415 - importing partfile needs no Spark

    return frame.withColumns({name: unbase64(frame[_quoted(name)]) for name in encoded}) if encoded else frame


def _quoted(name: str) -> str:
    """A column for Spark, which takes dots and backticks for more than a name."""
    return f"`{name.replace('`', '``')}`"


def _is_header(format: str, options: Mapping[str, str]) -> bool:
    given = {name.lower(): value.lower() for name, value in options.items()}
    return format == "csv" and given["header"] == "true"


def _relative(shown: ValidLengthFileSystem, name: str) -> str:
    return name[len(shown.base) + 1 :]


def _literal_url(shown: ValidLengthFileSystem, path: Any) -> str:
    """The base path for Spark, which takes braces and the like for a pattern otherwise."""
    url = f"file://{shown.base}" if "file" in shown.fs.protocol else str(path)
    return _GLOB.sub(r"\\\1", url)
