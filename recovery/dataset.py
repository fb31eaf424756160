"""A lazy pyarrow dataset of files whose valid bytes are known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pyarrow.dataset as ds
from fsspec.implementations.local import LocalFileSystem
from pyarrow.fs import FileInfo, FileType, PyFileSystem
from pyarrow.fs import LocalFileSystem as ArrowLocalFileSystem

from partfile.filesystems.errors import ConfigError
from partfile.recovery.arrow_files import ArrowFiles, shown_path
from partfile.recovery.avro_file import AvroFile
from partfile.recovery.file_formats import ROW_FORMATS, arrow_format, check_format, common_format
from partfile.recovery.filewise import FilewiseDataset
from partfile.recovery.long_lines import is_too_long, larger_blocks, refusing_long_lines
from partfile.recovery.readable_files import open_readable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fsspec import AbstractFileSystem
    from pyarrow.fs import FileSystem

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
    if partitioning not in {"hive", None}:
        raise ConfigError(f"partitioning={partitioning!r} is not known", hint='Use "hive" or None.')
    if not files:
        return _without_files(base, schema)
    name = format.default_extname if isinstance(format, ds.FileFormat) else format
    name = name or common_format([file.path for file in files])
    # A file without a byte holds no row, and the readers of row formats refuse it.
    readable = [file for file in files if file.valid_length or name not in ROW_FORMATS]
    if not readable:
        return _without_files(base, schema)
    directories = ds.HivePartitioning.discover() if partitioning == "hive" else ds.HivePartitioning(pa.schema([]))
    options = ds.FileSystemFactoryOptions(partition_base_dir=base, partitioning=directories)
    arrow = format if isinstance(format, ds.FileFormat) else arrow_format(name)
    factories = [
        ds.FileSystemDatasetFactory(file_system_of_some, infos, arrow, options)
        for file_system_of_some, infos in _file_systems(file_system, base, readable, name)
    ]
    if schema is None:
        own = [_avro_schema(file_system, base, file) for file in readable] if name == "avro" else None
        schema = _found_schema(factories, own, arrow)
    return _of_factories(factories, arrow, schema)


def _of_factories(factories: Sequence[ds.DatasetFactory], arrow: ds.FileFormat, schema: pa.Schema) -> ds.Dataset:
    """One dataset of what several file systems hold."""
    datasets = [factory.finish(schema) for factory in factories]
    is_json = isinstance(arrow, ds.JsonFileFormat)
    if not is_json and all(isinstance(dataset.filesystem, ArrowLocalFileSystem) for dataset in datasets):
        return datasets[0]
    # One dataset of all fragments, each with a file system of its own.
    fragments = [fragment for dataset in datasets for fragment in dataset.get_fragments()]
    return FilewiseDataset(sorted(fragments, key=lambda fragment: fragment.path), schema, arrow)


def _file_systems(
    file_system: AbstractFileSystem, base: str, files: Sequence[ReadableFile], format: str
) -> Iterator[tuple[FileSystem, list[FileInfo]]]:
    """The file systems that read the files: pyarrow's own where it can, so that no Python runs during the scan."""

    def is_native(file: ReadableFile) -> bool:
        is_local = isinstance(file_system, LocalFileSystem)
        return is_local and file.is_whole and shown_path(file.path, format) == file.path

    native = [file for file in files if is_native(file)]
    others = [file for file in files if not is_native(file)]
    if native:
        infos = [FileInfo(f"{base}/{file.path}", FileType.File, size=file.valid_length) for file in native]
        yield ArrowLocalFileSystem(), infos
    if others:
        handler = ArrowFiles(file_system, base, others, format=format)
        yield PyFileSystem(handler), handler.infos()


def _avro_schema(file_system: AbstractFileSystem, base: str, file: ReadableFile) -> pa.Schema:
    """The columns of a file of Avro from its head; pyarrow would have all of it decoded for them."""
    with open_readable(file_system, base, file) as opened:
        return AvroFile(opened, file.path).schema


def _found_schema(
    factories: Sequence[ds.DatasetFactory], own: Sequence[pa.Schema] | None, arrow: ds.FileFormat
) -> pa.Schema:
    """The columns of the files, which may be known, and of the directories."""
    try:
        # The last schema of a factory is that of its directories; of its files it looks into the first alone, and would
        # leave out in silence what only later ones have.
        partitions = [factory.inspect_schemas()[-1] for factory in factories]
        if own is None:
            fragments = [fragment for factory in factories for fragment in factory.finish().get_fragments()]
            own = [_columns_of(fragment) for fragment in fragments]
        return pa.unify_schemas([*own, *partitions], promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        hint = larger_blocks(arrow) if isinstance(arrow, ds.JsonFileFormat) and is_too_long(error) else "Pass schema=."
        raise ConfigError(f"the columns cannot be told from the files: {error}", hint=hint) from error


def _columns_of(fragment: ds.Fragment) -> pa.Schema:
    if not isinstance(fragment.format, ds.JsonFileFormat):
        return fragment.physical_schema
    with refusing_long_lines(fragment):
        return fragment.physical_schema


def _without_files(base: str, schema: pa.Schema | None) -> ds.Dataset:
    if schema is None:
        raise ConfigError(
            f"{base!r} holds no finished file with rows, so its columns are unknown", hint="Pass schema=.", path=base
        )
    return ds.dataset(schema.empty_table())
