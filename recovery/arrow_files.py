"""The finished files of a base as pyarrow's datasets read them: cut, decompressed, and text in quotes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSystemHandler, FileType

from partfile.filesystems.errors import NotApplied
from partfile.recovery.file_formats import ROW_FORMATS, codec_of
from partfile.recovery.readable_files import decompressed, open_readable
from partfile.recovery.text_lines import QuotedLines

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fsspec import AbstractFileSystem

    from partfile.recovery.readable_files import ReadableFile

DECODED = "~"
"""Ends the name of a file that is shown decompressed, since pyarrow would judge by the ending and do it again."""


class ArrowFiles(FileSystemHandler):  # type: ignore[misc]  # pyarrow.fs has no types.
    """A list of files as a file system of pyarrow's. Read-only.

    Args:
        file_system: Where they are.
        base: Their base path in it.
        files: The files.
        format: What is in them.
    """

    def __init__(self, file_system: AbstractFileSystem, base: str, files: Iterable[ReadableFile], format: str) -> None:
        self._file_system = file_system
        self._base = base
        self._format = format
        self._files = {f"{base}/{self._shown(file.path)}": file for file in files}

    def __reduce__(self) -> tuple[Any, ...]:
        return (ArrowFiles, (self._file_system, self._base, list(self._files.values()), self._format))

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
        """Open the valid bytes of a file; decoded, where it holds rows."""
        if path not in self._files:
            raise FileNotFoundError(path)
        readable = self._files[path]
        file = open_readable(self._file_system, self._base, readable)
        if self._is_decoded():
            file = decompressed(file, readable.path)
        return pa.PythonFile(QuotedLines(file) if self._format == "text" else file, mode="r")

    open_input_stream = open_input_file

    def _shown(self, path: str) -> str:
        return f"{path}{DECODED}" if self._is_decoded() and codec_of(path) else path

    def _is_decoded(self) -> bool:
        return self._format in ROW_FORMATS

    def _refuse(self, *arguments: object) -> NoReturn:  # noqa: ARG002 - stands for any call that is not a read
        raise NotApplied("the files of a dataset can be read only", hint="Write through a FileSink.")

    get_file_info_selector = create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse
    delete_file = move = copy_file = open_output_stream = open_append_stream = _refuse
