"""Finished files for pyarrow's datasets where pyarrow cannot read them by itself: cut, remote, staged, zstd, text."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSystemHandler, FileType

from partfile.filesystems.errors import NotApplied
from partfile.recovery.readable_files import decompressed, open_readable
from partfile.recovery.text_lines import quoted_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fsspec import AbstractFileSystem

    from partfile.recovery.readable_files import ReadableFile


class ArrowFiles(FileSystemHandler):  # type: ignore[misc]  # pyarrow.fs has no types.
    """A list of files as a file system of pyarrow's. Read-only.

    A file of text is read whole when a scan comes to it, others in pieces.

    Args:
        file_system: Where they are.
        base: Their base path in it.
        files: The files.
        is_text: Show each line in quotes, as the reader of CSV takes text.
    """

    def __init__(
        self, file_system: AbstractFileSystem, base: str, files: Iterable[ReadableFile], *, is_text: bool
    ) -> None:
        self._file_system = file_system
        self._base = base
        self._is_text = is_text
        self._files = {f"{base}/{shown_path(file.path, is_text=is_text)}": file for file in files}

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
        if not self._is_text:
            return pa.PythonFile(file, mode="r")
        with file:
            return pa.BufferReader(quoted_lines(decompressed(file, readable.path).read()))

    open_input_stream = open_input_file

    def _refuse(self, *arguments: object) -> NoReturn:  # noqa: ARG002 - stands for any call that is not a read
        raise NotApplied("the files of a dataset can be read only", hint="Write through a FileSink.")

    get_file_info_selector = create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse
    delete_file = move = copy_file = open_output_stream = open_append_stream = _refuse


def shown_path(path: str, *, is_text: bool) -> str:
    """The name under which pyarrow decompresses a file as it should: it goes by the ending, and knows no ``.zst``.

    Args:
        path: The path of the file.
        is_text: Its content is shown decompressed.
    """
    if is_text:
        return f"{path}~"
    return f"{path}d" if path.endswith(".zst") else path
