"""``partfile.read``: finished files, and pending ones on request, as a lazy pyarrow dataset.

``FilewiseDataset`` scans one file at a time where pyarrow would hang. ``ArrowFiles`` shows Avro and text to pyarrow as
formats that it knows. ``arrow_format`` has the options with which pyarrow reads each format of a sink.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar
from weakref import WeakValueDictionary

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.dataset as ds
from fsspec.implementations.local import LocalFileSystem
from pyarrow.fs import FileInfo, FileSystemHandler, FileType, PyFileSystem
from pyarrow.fs import LocalFileSystem as ArrowLocalFileSystem

from partfile.errors import ConfigError, NotApplied, NotFound, PartDamaged
from partfile.readers.avro import AvroFile
from partfile.readers.files import (
    DEFAULT_SIDECARS,
    ROW_FORMATS,
    TEXT_COLUMN,
    SidecarNaming,
    check_format,
    check_names,
    codec_of,
    common_format,
    directory_text,
    partition_names,
    partition_values,
)
from partfile.readers.filesystem import ValidLengthFileSystem, open_for_reading
from partfile.readers.lines import (
    BLOCK_BYTES,
    is_too_long,
    json_format,
    larger_blocks,
    quoted_lines,
    refusing_long_lines,
)
from partfile.readers.schema import (
    KnownColumns,
    check_one_layout,
    has_options,
    is_told_by_directories,
    known_columns,
)
from partfile.readers.streams import ReadableFile, decompressed, finished, open_readable, with_pending
from partfile.readers.text_values import TextForm, may_be_read_as, other_types
from partfile.sink.newest_state import pending_parts
from partfile.sink.schema import schema_of
from partfile.sink.settings import checkpoint_url_of

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from fsspec import AbstractFileSystem
    from pyarrow.fs import FileSystem

    from partfile.stores.base import PartHandle


def arrow_format(format: str) -> ds.FileFormat:
    """The pyarrow format that reads files of a sink, written with its default options; see docs/FORMATS.md."""
    if format == "text":
        return ds.CsvFileFormat(
            parse_options=pacsv.ParseOptions(newlines_in_values=True),
            read_options=pacsv.ReadOptions(block_size=BLOCK_BYTES, column_names=[TEXT_COLUMN]),
            convert_options=pacsv.ConvertOptions(
                column_types={TEXT_COLUMN: pa.string()}, strings_can_be_null=False, null_values=[]
            ),
        )
    if format == "csv":
        return TextForm("csv").csv_format(())
    if format == "avro":
        # pyarrow has no reader of Avro, and is shown the rows as Arrow has them.
        return ds.IpcFileFormat()
    formats: dict[str, Callable[[], ds.FileFormat]] = {"json": json_format, "parquet": ds.ParquetFileFormat}
    if format == "orc":
        formats["orc"] = ds.OrcFileFormat
    return formats[format]()


_TEXT_OF_COLUMNS = ("json", "csv")
"""Formats in which values are text, whose types only a schema tells."""
Shown = Callable[[Any, str], bytes]
"""Makes of an open file and its path the bytes that pyarrow is shown instead of it."""


def _shown_text(file: Any, path: str) -> bytes:
    data: bytes = decompressed(file, path).read()
    return quoted_lines(data)


def _shown_avro(file: Any, path: str) -> bytes:
    data: bytes = AvroFile(file, path).as_arrow_file()
    return data


def _shown_values(form: TextForm, schema: pa.Schema) -> Shown:
    def shown(file: Any, path: str) -> bytes:
        return form.as_arrow_file(decompressed(file, path).read(), path, schema)

    return shown


class _Bytes(bytearray):
    """Bytes that a weak reference can name."""


class ArrowFiles(FileSystemHandler):  # type: ignore[misc]  # pyarrow.fs has no types.
    """A list of files as a file system of pyarrow's. Read-only.

    Files that are shown otherwise than they are stored are read whole when a scan comes to them, others in pieces.

    Args:
        file_system: Where they are.
        base: Their base path in it.
        files: The files.
        shown: Makes what pyarrow is shown instead of them: of text each line in quotes, as the reader of CSV takes it;
            Avro, and text whose types pyarrow does not read, as Arrow. None shows the files themselves.
    """

    def __init__(
        self, file_system: AbstractFileSystem, base: str, files: Iterable[ReadableFile], *, shown: Shown | None
    ) -> None:
        self._file_system = file_system
        self._base = base
        self._shown = shown
        self._kept: WeakValueDictionary[str, _Bytes] = WeakValueDictionary()
        self._files = {f"{base}/{shown_path(file.path, is_stored=shown is None)}": file for file in files}

    def infos(self) -> list[FileInfo]:
        """Every file, with its valid length."""
        return self.get_file_info(list(self._files))

    def get_type_name(self) -> str:
        """For messages."""
        return "partfile"

    def normalize_path(self, path: str) -> str:
        """Paths are taken as they are."""
        return path

    def get_file_info(self, paths: Sequence[str]) -> list[FileInfo]:
        """The facts about each file."""
        return [
            FileInfo(path, FileType.File, size=self._files[path].valid_length)
            if path in self._files
            else FileInfo(path, FileType.NotFound)
            for path in paths
        ]

    def open_input_file(self, path: str) -> pa.NativeFile:
        """The valid bytes of a file."""
        if path not in self._files:
            raise FileNotFoundError(path)
        readable = self._files[path]
        file = open_readable(self._file_system, self._base, readable)
        if self._shown is None:
            # pyarrow has no stream of snappy; all else it decompresses itself.
            is_snappy = codec_of(readable.path) == "snappy"
            return pa.PythonFile(decompressed(file, readable.path) if is_snappy else file, mode="r")
        with file:
            # A scan opens a file for its columns, and again for its rows before it lets go.
            kept = self._kept.get(readable.path)
            if kept is None:
                kept = self._kept[readable.path] = _Bytes(self._shown(file, readable.path))
            return pa.BufferReader(pa.py_buffer(kept))

    open_input_stream = open_input_file

    def _refuse(self, *arguments: object) -> NoReturn:  # noqa: ARG002 - stands for any call that is not a read
        raise NotApplied("the files of a dataset can be read only", hint="Write by partfile.FileSink(BASE, uid=UID).")

    get_file_info_selector = create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse
    delete_file = move = copy_file = open_output_stream = open_append_stream = _refuse


def shown_path(path: str, *, is_stored: bool) -> str:
    """The name under which pyarrow decompresses a file as it should: it goes by the ending, and knows no ``.zst``.

    Args:
        path: The path of the file.
        is_stored: Whether it is shown as it is stored.
    """
    if not is_stored or codec_of(path) == "snappy":
        return f"{path}~"
    return f"{path}d" if path.endswith(".zst") else path


Read = TypeVar("Read")


class FilewiseDataset(ds.FileSystemDataset):  # type: ignore[misc]  # pyarrow.dataset has no types.
    """Gives batches one file after the other, each read to its end.

    pyarrow's own scan hangs where Python opens the files: ``Scanner.to_reader``, by which DuckDB reads, and the end of
    an unfinished scan wait for threads that open files while they hold the interpreter's lock. ``to_table``, ``head``
    and ``count_rows`` release it. Over several files of JSON they hang all the same, however they are opened, where
    there are few threads: seen with pyarrow 26 on three processors.
    """

    _unfiltered: FilewiseDataset | None = None

    @property
    def unfiltered(self) -> FilewiseDataset:
        """The same files without a filter: of a dataset that has been filtered pyarrow gives no fragments."""
        return self._unfiltered or self

    def filter(self, expression: ds.Expression) -> FilewiseDataset:
        """As ``Dataset.filter``."""
        filtered: FilewiseDataset = super().filter(expression)
        filtered._unfiltered = self.unfiltered
        return filtered

    def sort_by(self, sorting: Any, **options: Any) -> ds.Dataset:
        """As ``Dataset.sort_by``; in memory, as pyarrow does it."""
        return self.in_memory().sort_by(sorting, **options)

    def join(self, right_dataset: ds.Dataset, *keys: Any, **options: Any) -> ds.Dataset:
        """As ``Dataset.join``; of two tables in memory."""
        right = right_dataset.in_memory() if isinstance(right_dataset, FilewiseDataset) else right_dataset
        return self.in_memory().join(right, *keys, **options)

    def in_memory(self) -> ds.Dataset:
        """The same rows, read."""
        return ds.dataset(self.to_table())

    def scanner(self, **options: Any) -> FilewiseScanner:
        """As ``Dataset.scanner``."""
        return FilewiseScanner(self, options)


class FilewiseScanner:
    """One scan of a dataset; what is not here is pyarrow's.

    Args:
        dataset: What to scan.
        options: Those of ``ds.Scanner.from_dataset``.
    """

    def __init__(self, dataset: FilewiseDataset, options: dict[str, Any]) -> None:
        self._files = dataset.unfiltered
        self._options = dataset._scanner_options(options)  # noqa: SLF001 - adds the filter of ``Dataset.filter``.
        self._is_json = isinstance(dataset.format, ds.JsonFileFormat)
        self._whole = ds.Scanner.from_dataset(dataset, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as batches; those of one file are in memory at once."""
        for table in self._each(lambda scanner: scanner.to_table()):
            yield from table.to_batches()

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows as a stream."""
        return pa.RecordBatchReader.from_batches(self._whole.projected_schema, self.to_batches())

    def to_table(self) -> pa.Table:
        """All rows."""
        if not self._is_json:
            return self._whole.to_table()
        return pa.Table.from_batches(self.to_batches(), self._whole.projected_schema)

    def head(self, num_rows: int) -> pa.Table:
        """The first rows."""
        if not self._is_json:
            return self._whole.head(num_rows)
        found: list[pa.Table] = []
        for table in self._each(lambda scanner: scanner.head(num_rows - sum(table.num_rows for table in found))):
            found.append(table)
            if sum(table.num_rows for table in found) >= num_rows:
                break
        return pa.concat_tables([self._whole.projected_schema.empty_table(), *found])

    def take(self, indices: Any) -> pa.Table:
        """The rows at some positions."""
        return self.to_table().take(indices) if self._is_json else self._whole.take(indices)

    def count_rows(self) -> int:
        """The number of rows."""
        if not self._is_json:
            return int(self._whole.count_rows())
        return sum(self._each(lambda scanner: int(scanner.count_rows())))

    def _each(self, read: Callable[[ds.Scanner], Read]) -> Iterator[Read]:
        """Read each file by a scan of it alone.

        Raises:
            ConfigError: Of a file of JSON, whose lines are too long for pyarrow.
            PartDamaged: Of a file of JSON, whose values are not of the types that the schema says.
        """
        for fragment in self._files.get_fragments(filter=self._options.get("filter")):
            scanner = ds.Scanner.from_fragment(fragment, schema=self._files.schema, **self._options)
            try:
                with refusing_long_lines(fragment) if self._is_json else nullcontext():
                    found = read(scanner)
            except pa.ArrowInvalid as error:
                if not self._is_json:
                    raise
                raise other_types(fragment.path, error) from error
            yield found


Partitioning = Literal["hive"]


def dataset_of(
    file_system: AbstractFileSystem,
    base: str,
    files: Sequence[ReadableFile],
    *,
    format: str | ds.FileFormat | None,
    partitioning: Partitioning | None,
    schema: pa.Schema | None,
    known: Callable[[], KnownColumns],
) -> ds.Dataset:
    """Make the dataset of some files. Their content is read in a scan, or now where columns must be found.

    Args:
        file_system: Where they are.
        base: Their base path in it.
        files: The files.
        format: Name of a format, one of pyarrow's own, or None to go by the names of the files.
        partitioning: ``"hive"`` makes columns of ``name=value`` directories.
        schema: The columns; None looks into every file.
        known: Tells what need not be guessed; asked where it would be.

    Raises:
        ConfigError: There is no file and no schema, the format cannot be told or a name says another one, or files
            disagree on a column.
    """
    if not (format is None or isinstance(format, ds.FileFormat)):
        format = check_format(format)
    if partitioning not in {"hive", None}:
        raise ConfigError(
            f"partitioning={partitioning!r} is not known", hint="Write partitioning='hive', or partitioning=None."
        )
    if not files:
        return _without_files(base, schema)
    name = _format_name(format, [file.path for file in files])
    # A file without a byte holds no row, and the readers of row formats refuse it.
    readable = [file for file in files if file.valid_length or name not in ROW_FORMATS]
    if not readable:
        return _without_files(base, schema)
    keys = _values_of_keys(readable) if partitioning == "hive" else {}
    directories = ds.HivePartitioning.discover() if partitioning == "hive" else ds.HivePartitioning(pa.schema([]))
    options = ds.FileSystemFactoryOptions(partition_base_dir=base, partitioning=directories)
    is_text = name in _TEXT_OF_COLUMNS and not isinstance(format, ds.FileFormat)

    def factories_of(arrow: ds.FileFormat, shown: Shown | None) -> list[ds.DatasetFactory]:
        return [
            ds.FileSystemDatasetFactory(of_some, infos, arrow, options)
            for of_some, infos in _file_systems(file_system, base, readable, shown)
        ]

    told = known() if is_text or (schema is None and keys) else KnownColumns()
    form = _form_of(name, told, base) if is_text else TextForm(name)
    arrow = format if isinstance(format, ds.FileFormat) else arrow_format(name)
    in_files = _without(told.columns, told.held.path_columns if told.held else ())
    if is_text and name == "csv":
        arrow = form.csv_format(in_files.names)
    factories = factories_of(arrow, {"text": _shown_text, "avro": _shown_avro}.get(name))
    if schema is None:
        own = [_avro_schema(file_system, base, file) for file in readable] if name == "avro" else None
        in_files = in_files if is_text else _NO_COLUMNS
        schema = _found_schema(factories, own, arrow, in_files=in_files, in_path=told.columns, values=keys)
    if is_text:
        values = pa.schema([field for field in schema if field.name not in keys])
        if not form.is_read_by_pyarrow(values):
            arrow = ds.IpcFileFormat()
            factories = factories_of(arrow, _shown_values(form, values))
    return _of_factories(factories, arrow, schema)


def _form_of(name: str, told: KnownColumns, base: str) -> TextForm:
    """How the files were written, as the checkpoints tell it.

    Raises:
        ConfigError: Files of CSV were written in ways of which none reads all.
    """
    held = told.held
    if held is None or held.format.get("format") != name:
        return TextForm(name)
    form = TextForm.of(name, held.format)
    # With a header, pyarrow goes by the names.
    if not has_options(held) or (held.is_shifted and not form.header):
        check_one_layout(held, base)
    return form


def _format_name(format: str | ds.FileFormat | None, paths: Sequence[str]) -> str:
    """The format of some files, as it was said or as their names say it; raises ConfigError where those disagree."""
    if format is None:
        return common_format(paths)
    if isinstance(format, str):
        check_names(format, paths)
        return format
    return str(format.default_extname)


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
    file_system: AbstractFileSystem, base: str, files: Sequence[ReadableFile], shown: Shown | None
) -> Iterator[tuple[FileSystem, list[FileInfo]]]:
    """The file systems that read the files: pyarrow's own where it can, so that no Python runs during the scan."""

    def is_native(file: ReadableFile) -> bool:
        is_local = isinstance(file_system, LocalFileSystem)
        return is_local and file.is_whole and shown_path(file.path, is_stored=shown is None) == file.path

    native = [file for file in files if is_native(file)]
    others = [file for file in files if not is_native(file)]
    if native:
        infos = [FileInfo(f"{base}/{file.path}", FileType.File, size=file.valid_length) for file in native]
        yield ArrowLocalFileSystem(), infos
    if others:
        handler = ArrowFiles(file_system, base, others, shown=shown)
        yield PyFileSystem(handler), handler.infos()


def _avro_schema(file_system: AbstractFileSystem, base: str, file: ReadableFile) -> pa.Schema:
    """The columns of a file of Avro from its head; pyarrow would have all of it decoded for them."""
    with open_readable(file_system, base, file) as opened:
        return AvroFile(opened, file.path).schema


_NO_COLUMNS = pa.schema([])


def _found_schema(
    factories: Sequence[ds.DatasetFactory],
    own: Sequence[pa.Schema] | None,
    arrow: ds.FileFormat,
    *,
    in_files: pa.Schema,
    in_path: pa.Schema,
    values: Mapping[str, Collection[str]],
) -> pa.Schema:
    """The columns of the files, which may be known, and of the directories; types that are known are not guessed.

    Args:
        factories: Of the files.
        own: The columns of each file; None looks into it.
        arrow: How it is read.
        in_files: Columns whose types are known where they are in files.
        in_path: Likewise in directories.
        values: Of each key of the directories, as their names have them.
    """
    try:
        # The last schema of a factory is that of its directories; of its files it looks into the first alone, and would
        # leave out in silence what only later ones have.
        partitions = [_keys_of(factory, values) for factory in factories]
        if own is None:
            datasets = [factory.finish(keys) for factory, keys in zip(factories, partitions, strict=True)]
            fragments = [fragment for dataset in datasets for fragment in dataset.get_fragments()]
            own = [_columns_of(fragment, in_files) for fragment in fragments]
        keys = {name for schema in partitions for name in schema.names}
        in_path = pa.schema(
            [field for field in in_path if field.name in keys and _tells(values[field.name], field.type)]
        )
        in_files = _without(in_files, [*_contradicted(in_files, own), *keys])
        guessed = [_without(schema, [*in_files.names, *in_path.names]) for schema in own]
        told = [_without(schema, in_path.names) for schema in partitions]
        return pa.unify_schemas([in_files, *guessed, in_path, *told], promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        hint = "Say what the columns are; text takes values of several types: schema=pa.schema({'id': 'string'})."
        if is_too_long(error) and isinstance(arrow, ds.JsonFileFormat | ds.CsvFileFormat):
            hint = larger_blocks(arrow)
        raise ConfigError(f"the columns cannot be told from the files: {error}", hint=hint) from error


def _values_of_keys(files: Iterable[ReadableFile]) -> dict[str, set[str]]:
    """Each key of the directories with the texts that stand for its values; a null has none."""
    found: dict[str, set[str]] = {}
    for directory in {posixpath.dirname(file.path) for file in files}:
        path = f"{directory}/"
        for key, value in zip(partition_names(path), partition_values(path), strict=True):
            found.setdefault(key, set()).update(() if value is None else (value,))
    return found


def _keys_of(factory: ds.DatasetFactory, values: Mapping[str, Collection[str]]) -> pa.Schema:
    """The keys of the directories as pyarrow guesses them; text where it cannot.

    It makes no guess where all are null. And it looks into a file as well, of which types may be known that it does not
    find out.
    """
    if not values:
        return _NO_COLUMNS
    try:
        return factory.inspect_schemas()[-1]
    except pa.ArrowInvalid:
        return pa.schema([(key, pa.string()) for key in values])


def _tells(texts: Collection[str] | None, kind: pa.DataType) -> bool:
    """Whether the names of directories tell a value of this type each; those of other programs may not."""
    if texts is None or not is_told_by_directories(kind):
        return False
    try:
        pa.array(sorted(texts), pa.string()).cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def _contradicted(known: pa.Schema, guesses: Iterable[pa.Schema]) -> list[str]:
    """The columns of which some file, which is not the sink's, has values that their known type does not hold."""
    found = [field for schema in guesses for field in schema if field.name in known.names]
    return [field.name for field in found if not may_be_read_as(field.type, known.field(field.name).type)]


def _without(schema: pa.Schema, names: Collection[str]) -> pa.Schema:
    return pa.schema([field for field in schema if field.name not in names])


def _columns_of(fragment: ds.Fragment, known: pa.Schema) -> pa.Schema:
    """The columns of a file as pyarrow guesses them.

    Args:
        fragment: The file.
        known: Columns whose types are known: of JSON they are read as such, so that only the others are guessed.
    """
    if not isinstance(fragment.format, ds.JsonFileFormat):
        try:
            return fragment.physical_schema
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, UnicodeDecodeError) as error:
            if not _tells_of_damage(error, fragment):
                raise
            raise PartDamaged(
                f"{fragment.path!r} is no whole file of its format: {error}",
                hint="Put it back from a copy. Without one, move it away: mv FILE ELSEWHERE",
                path=fragment.path,
            ) from error
    with refusing_long_lines(fragment):
        try:
            return fragment.physical_schema
        except pa.ArrowInvalid:
            # Numbers beside texts in one column: NaN in quotes, for instance, where the types are known.
            if not known.names:
                raise
            return known


def _tells_of_damage(error: Exception, fragment: ds.Fragment) -> bool:
    """Whether a file cannot be opened for what is in it."""
    if isinstance(fragment.format, ds.CsvFileFormat):
        return isinstance(error, UnicodeDecodeError)
    if isinstance(error, OSError):
        # pyarrow says so of what is no file of ORC. What a file system says has a number, or other words.
        return error.errno is None and str(error).startswith("Could not open ORC input source")
    # A whole file may ask for what pyarrow has not, such as a codec: that is no damage.
    return not isinstance(error, pa.ArrowNotImplementedError) or _is_cut_orc(fragment)


def _is_cut_orc(fragment: ds.Fragment) -> bool:
    """Whether a file of ORC lacks the end that each one has: its magic, and one byte of length."""
    if fragment.format.default_extname != "orc":
        return False
    with fragment.open() as file:
        size = file.size()
        file.seek(max(0, size - _ORC_END_BYTES))
        return bytes(file.read(len(_ORC_MAGIC))) != _ORC_MAGIC


_ORC_MAGIC = b"ORC"
_ORC_END_BYTES = len(_ORC_MAGIC) + 1


def _without_files(base: str, schema: pa.Schema | None) -> ds.Dataset:
    if schema is None:
        raise ConfigError(
            f"{base!r} holds no finished file with rows, so its columns are unknown",
            hint="Say what the columns are, for instance schema=pa.schema({'id': 'int64'}).",
            path=base,
        )
    return ds.dataset(schema.empty_table())


Include = Literal["finished", "pending"]


def read(
    path: str | os.PathLike[str],
    *,
    format: str | ds.FileFormat | None = None,
    include: Include = "finished",
    storage_options: Mapping[str, object] | None = None,
    partitioning: Partitioning | None = "hive",
    schema: pa.Schema | Mapping[str, Any] | None = None,
    sidecars: SidecarNaming = DEFAULT_SIDECARS,
    checkpoint_dir: str | os.PathLike[str] | None = None,
) -> ds.Dataset:
    """Read what sinks have finished below a base path, as a lazy dataset: each row once, valid lengths honoured.

    The files are listed now and opened when the dataset is scanned, which may be done often. Later files are not in it.

    Args:
        path: The base path of the sink: a plain path, ``file:``, or any URL that fsspec opens.
        format: ``text`` (one string column ``value``), ``json``, ``csv``, ``avro``, ``parquet`` or ``orc``, read as a
            sink writes them by default; or a format of ``pyarrow.dataset`` with options of its own. None goes by the
            files' names. How a file is compressed is always told by its name, or within it.
        include: ``finished`` files; or ``pending`` parts as well: those that the newest checkpoint has promised, at the
            length that it vouches for. Parts that are still open are never included, nor the rows of a staging file
            before they are encoded.
        storage_options: What the file system's client needs; none for local files.
        partitioning: ``"hive"`` makes columns of ``name=value`` directories; None does not.
        schema: The columns, partition columns included, as a schema or as names with types. None looks into every file;
            JSON, CSV and directories have the types that the checkpoints tell, and where those tell none, types are
            guessed. ``read_schema`` gives what they tell, and with it no file is looked into.
        sidecars: How the sink names its sidecars, if not by default.
        checkpoint_dir: Where the sink keeps its checkpoints, if not below the base; for ``include="pending"`` and for
            the types of columns.

    Returns:
        A dataset of pyarrow.

    Raises:
        NotFound: The path is not there; or, with ``include="pending"``, no checkpoints.
        ConfigError: It is a file; it holds no row and no schema was given; its files are of several formats, or of one
            that cannot be told; a file's name says another format than ``format``; an option is not known; or the
            files are of Avro and fastavro is not installed.
        SnapshotCorrupt: A sidecar is damaged, or the newest checkpoint is.
        PartMissing: A file is shorter than it was when it was committed.
        PartDamaged: A file of Parquet or ORC is not whole; also in a scan: a file does not hold whole blocks of Avro or
            snappy.
        UnsupportedTypeError: A column of Avro is of a type that no sink writes, such as a union.
        NotReady: On HDFS, also in a scan: a writer holds a pending part open, so its bytes cannot be read yet.
        NotApplied: The store refused a call or did not answer in time; also in a scan.
    """
    if include not in {"finished", "pending"}:
        raise ConfigError(f"include={include!r} is not known", hint="Write include='finished' or include='pending'.")
    schema, checkpoints_at = schema_of(schema), directory_text(checkpoint_dir)
    behind, base = open_for_reading(path, storage_options)
    file_system = ValidLengthFileSystem(behind, base, sidecars=sidecars)
    _check_directory(file_system, path)
    pending: list[PartHandle] = []
    if include == "pending":
        # Before the files are listed: what is published in between is then among them.
        checkpoints = checkpoint_url_of(str(path), checkpoints_at)
        pending = pending_parts(checkpoints, storage_options)
    files = with_pending(finished(file_system), pending)
    known = partial(known_columns, path, storage_options=storage_options, checkpoint_dir=checkpoints_at)
    return dataset_of(
        behind, file_system.base, files, format=format, partitioning=partitioning, schema=schema, known=known
    )


def _check_directory(file_system: ValidLengthFileSystem, path: object) -> None:
    try:
        file_system.info(file_system.base)
    except FileNotFoundError as error:
        raise NotFound(
            f"{str(path)!r} is not there",
            hint="Check the path; the base is the directory that the sink writes to: partfile.read(BASE)",
            path=str(path),
        ) from error
    except NotADirectoryError as error:
        raise ConfigError(
            f"{str(path)!r} is a file",
            hint="Pass the directory that the sink writes to: partfile.read(BASE)",
            path=str(path),
        ) from error
