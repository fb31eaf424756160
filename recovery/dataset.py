"""A lazy pyarrow dataset of files whose valid bytes are known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow.fs import PyFileSystem

from partfile.filesystems.errors import ConfigError
from partfile.recovery.arrow_files import ArrowFiles
from partfile.recovery.file_formats import ROW_FORMATS, arrow_format, check_format, common_format
from partfile.recovery.partitions import partition_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fsspec import AbstractFileSystem

    from partfile.recovery.readable_files import ReadableFile

Partitioning = Literal["hive"]


def dataset_of(
    file_system: AbstractFileSystem,
    base: str,
    files: Sequence[ReadableFile],
    *,
    format: str | ds.FileFormat | None,
    partitioning: Partitioning | None,
    schema: pa.Schema | None,
) -> ds.Dataset:
    """Make the dataset of some files; their content is read when it is scanned, or to find columns that nobody named.

    Args:
        file_system: Where they are.
        base: Their base path in it.
        files: The files.
        format: Name of a format, one of pyarrow's own, or None to go by the names of the files.
        partitioning: ``"hive"`` makes columns of ``name=value`` directories.
        schema: The columns; None looks into every file.

    Raises:
        ConfigError: There is no file and no schema, the format cannot be told, or files disagree on a column.
    """
    if isinstance(format, str):
        check_format(format)
    if not files:
        return _without_files(base, schema)
    name = format.default_extname if isinstance(format, ds.FileFormat) else format
    name = name or common_format([file.path for file in files])
    # A file without a byte holds no row, and the readers of row formats refuse it.
    readable = [file for file in files if file.valid_length or name not in ROW_FORMATS]
    if not readable:
        return _without_files(base, schema)
    handler = ArrowFiles(file_system, base, readable, name)
    options = ds.FileSystemFactoryOptions(
        partition_base_dir=base, partitioning=_partitioning(partitioning, readable, schema)
    )
    arrow = format if isinstance(format, ds.FileFormat) else arrow_format(name)
    factory = ds.FileSystemDatasetFactory(PyFileSystem(handler), handler.infos(), arrow, options)
    return factory.finish(_found_schema(factory) if schema is None else schema)


def _partitioning(
    partitioning: Partitioning | None, files: Sequence[ReadableFile], schema: pa.Schema | None
) -> ds.Partitioning | ds.PartitioningFactory:
    if partitioning not in {"hive", None}:
        raise ConfigError(f"partitioning={partitioning!r} is not known", hint='Use "hive" or None.')
    if partitioning is None:
        return ds.HivePartitioning(pa.schema([]))
    if schema is None:
        return ds.HivePartitioning.discover()
    # The caller's types, not guessed ones: 01 may be a text.
    columns = partition_columns([file.path for file in files])
    return ds.HivePartitioning(pa.schema([schema.field(name) for name in columns if name in schema.names]))


def _found_schema(factory: ds.DatasetFactory) -> pa.Schema:
    try:
        return pa.unify_schemas(factory.inspect_schemas(), promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ConfigError(f"the columns cannot be told from the files: {error}", hint="Pass schema=.") from error


def _without_files(base: str, schema: pa.Schema | None) -> ds.Dataset:
    if schema is None:
        raise ConfigError(
            f"{base!r} holds no finished file with rows, so its columns are unknown", hint="Pass schema=.", path=base
        )
    return ds.dataset(schema.empty_table())
