"""Finished files for pyarrow's datasets where it cannot read them by itself: cut, remote, staged, zstd, text, Avro."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakValueDictionary

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSystemHandler, FileType

from partfile.filesystems.errors import NotApplied
from partfile.recovery.avro_file import AvroFile
from partfile.recovery.file_formats import codec_of
from partfile.recovery.readable_files import decompressed, open_readable
from partfile.recovery.text_lines import quoted_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fsspec import AbstractFileSystem

    from partfile.recovery.readable_files import ReadableFile

_SHOWN_OTHERWISE = ("text", "avro")


class _Bytes(bytearray):
    """Bytes that a weak reference can name."""


class ArrowFiles(FileSystemHandler):  # type: ignore[misc]  # pyarrow.fs has no types.
    """A list of files as a file system of pyarrow's. Read-only.

    A file of text or Avro is read whole when a scan comes to it, others in pieces.

    Args:
        file_system: Where they are.
        base: Their base path in it.
        files: The files.
        format: Of all of them. Of text each line is shown in quotes, as the reader of CSV takes it; Avro as Arrow.
    """

    def __init__(
        self, file_system: AbstractFileSystem, base: str, files: Iterable[ReadableFile], *, format: str
    ) -> None:
        self._file_system = file_system
        self._base = base
        self._format = format
        self._decoded: WeakValueDictionary[str, _Bytes] = WeakValueDictionary()
        self._files = {f"{base}/{shown_path(file.path, format)}": file for file in files}

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
        """What is known of each file."""
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
        if self._format not in _SHOWN_OTHERWISE:
            # pyarrow has no stream of snappy; all else it decompresses itself.
            is_snappy = codec_of(readable.path) == "snappy"
            return pa.PythonFile(decompressed(file, readable.path) if is_snappy else file, mode="r")
        with file:
            if self._format == "avro":
                return pa.BufferReader(pa.py_buffer(self._decoded_once(file, readable.path)))
            return pa.BufferReader(quoted_lines(decompressed(file, readable.path).read()))

    def _decoded_once(self, file: Any, path: str) -> _Bytes:
        """A file of Avro as Arrow: a scan opens a file for its columns, and again for its rows before it lets go."""
        decoded = self._decoded.get(path)
        if decoded is None:
            decoded = self._decoded[path] = _Bytes(AvroFile(file, path).as_arrow_file())
        return decoded

    open_input_stream = open_input_file

    def _refuse(self, *arguments: object) -> NoReturn:  # noqa: ARG002 - stands for any call that is not a read
        raise NotApplied("the files of a dataset can be read only", hint="Write through a FileSink.")

    get_file_info_selector = create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse
    delete_file = move = copy_file = open_output_stream = open_append_stream = _refuse


def shown_path(path: str, format: str) -> str:
    """The name under which pyarrow decompresses a file as it should: it goes by the ending, and knows no ``.zst``.

    Args:
        path: The path of the file.
        format: Of its content, which may be shown otherwise than it is stored.
    """
    if format in _SHOWN_OTHERWISE or codec_of(path) == "snappy":
        return f"{path}~"
    return f"{path}d" if path.endswith(".zst") else path
