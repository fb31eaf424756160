"""An fsspec file system that shows what a sink has finished, each file as long as it is valid, and nothing else."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any, NoReturn

from fsspec import AbstractFileSystem

from partfile.filesystems.errors import NotApplied
from partfile.filesystems.relative_paths import is_unicode
from partfile.recovery.layout import (
    DEFAULT_SIDECARS,
    MAX_SIDECAR_BYTES,
    SidecarNaming,
    finished_files,
    is_hidden,
    readable_bytes,
)
from partfile.recovery.opening import open_for_reading
from partfile.recovery.valid_prefix import valid_prefix

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

Info = dict[str, Any]

SHOWN_KINDS = ("file", "directory")


class ValidLengthFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types.
    """Finished files below a base path, read through another file system. Read-only.

    Staged files, sidecars and state are not there; a file with a sidecar has its valid length, and reads end there.
    Paths are those of the file system behind it. Symbolic links and names that are not UTF-8 are passed over, as a
    local store does.

    Args:
        fs: The file system behind it.
        base: The base path of the sink in it; nothing outside is shown.
        sidecars: How the sink names its sidecars.

    Raises:
        SnapshotCorrupt: On listing, looking and opening, where a sidecar is damaged.
        PartMissing: Likewise, where a file is shorter than its sidecar says.
        NotApplied: On every call that would write.
    """

    protocol = "partfile"
    root_marker = "/"
    cachable = False

    def __init__(
        self, fs: AbstractFileSystem, base: str, *, sidecars: SidecarNaming = DEFAULT_SIDECARS, **options: Any
    ) -> None:
        super().__init__(**options)
        self.fs = fs
        self.base = fs._strip_protocol(base).rstrip("/")  # noqa: SLF001 - how fsspec's wrappers do it
        self.sidecars = sidecars

    @property
    def fsid(self) -> str:
        """What tells it from another file system."""
        return f"partfile+{self.fs.fsid}"

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:  # noqa: ARG002 - fsspec's signature
        """The finished files and visible directories directly in a directory; a file lists itself.

        Raises:
            FileNotFoundError: It is not there, or not to be seen.
        """
        itself = self.info(path)
        if itself["type"] == "file":
            return [itself if detail else itself["name"]]
        found = self._entries(itself["name"])
        return found if detail else [entry["name"] for entry in found]

    def info(self, path: str, **kwargs: Any) -> Info:  # noqa: ARG002 - fsspec's signature
        """What is known of a finished file or a visible directory; its size is what counts of it, in bytes.

        Raises:
            FileNotFoundError: It is not there, or not to be seen.
        """
        behind = self._behind(path)
        entry: Info = {**self.fs.info(behind), "name": behind}
        if entry["type"] not in SHOWN_KINDS or (entry.get("islink") and behind != self.base):
            raise FileNotFoundError(path)
        if behind == self.base and entry["type"] != "directory":
            raise NotADirectoryError(path)
        if entry["type"] == "file":
            # Looked for after the file was seen: it was made before the file's name.
            sidecar = self.sidecars.sidecar_of(behind)
            after = {sidecar} if self._is_there(sidecar) else set()
            return next(self._finished({behind: entry}, after))
        return entry

    def exists(self, path: str, **kwargs: Any) -> bool:
        """Whether there is a finished file or a visible directory; a damaged sidecar is an error, not an absence."""
        try:
            self.info(path, **kwargs)
        except FileNotFoundError:
            return False
        return True

    def isdir(self, path: str) -> bool:
        """Whether there is a visible directory; a store that cannot be asked is an error, not an absence."""
        return self._type_of(path) == "directory"

    def isfile(self, path: str) -> bool:
        """Whether there is a finished file; a store that cannot be asked is an error, not an absence."""
        return self._type_of(path) == "file"

    def walk(self, path: str, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """As fsspec's, but a directory that cannot be listed is an error: its rows would be missing in silence."""
        yield from super().walk(path, *args, **{"on_error": _raise_unless_absent, **kwargs})

    def _type_of(self, path: str) -> object:
        try:
            return self.info(path)["type"]
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        if mode != "rb":
            self._refuse(path)
        entry = self.info(path)
        if entry["type"] != "file":
            raise IsADirectoryError(path)
        kwargs = {name: value for name, value in kwargs.items() if value is not None and name != "autocommit"}
        return valid_prefix(self.fs.open(entry["name"], "rb", **kwargs), entry["size"], entry["name"])

    def _entries(self, directory: str) -> list[Info]:
        shown = [entry for entry in self._list(directory, detail=True) if _is_shown(entry, directory)]
        files = {entry["name"]: entry for entry in shown if entry["type"] == "file"}
        names_after = set(self._list(directory, detail=False)) if files else set[str]()
        directories = [entry for entry in shown if entry["type"] == "directory"]
        return [*directories, *self._finished(files, names_after)]

    def _list(self, directory: str, *, detail: bool) -> list[Any]:
        # What a client remembers of earlier listings may be older than the files.
        self.fs.invalidate_cache(directory)
        found: list[Any] = self.fs.ls(directory, detail=detail)
        return found

    def _finished(self, files: Mapping[str, Info], names_after: set[str]) -> Iterator[Info]:
        """The finished ones among files, each with the size that counts and the path of its sidecar below the base."""
        seen = ((self._relative(name), int(entry["size"])) for name, entry in files.items())
        after = {self._relative(name) for name in names_after}
        for file in finished_files(seen, after, self.sidecars):
            name = self._absolute(file.path)
            length = None if file.sidecar is None else self._length_in(file.sidecar)
            yield {**files[name], "size": readable_bytes(file, length), "sidecar": file.sidecar}

    def _length_in(self, sidecar: str) -> int:
        path = self._absolute(sidecar)
        with self.fs.open(path, "rb") as file:
            return self.sidecars.length_in(file.read(MAX_SIDECAR_BYTES), path)

    def _is_there(self, behind: str) -> bool:
        # Not by ``exists``: that of fsspec takes every error for an absence, and a tail would be read as rows.
        try:
            self.fs.info(behind)
        except FileNotFoundError:
            return False
        return True

    def _behind(self, path: str) -> str:
        """A path as the file system behind knows it, if it is to be seen."""
        behind: str = self.fs._strip_protocol(self._strip_protocol(path)).rstrip("/")  # noqa: SLF001 - see __init__
        is_inside = behind == self.base or behind.startswith(f"{self.base}/")
        if not is_inside or (behind != self.base and is_hidden(self._relative(behind))):
            raise FileNotFoundError(path)
        return behind

    def _relative(self, behind: str) -> str:
        return behind[len(self.base) + 1 :]

    def _absolute(self, relative: str) -> str:
        return f"{self.base}/{relative}"

    def _refuse(self, *paths: object, **options: object) -> NoReturn:  # noqa: ARG002 - stands for any writing call
        raise NotApplied(
            "this file system shows finished files and cannot be written to",
            hint="Write through a FileSink, or through the file system behind it.",
            path=str(paths[0]) if paths else None,
        )

    mkdir = makedirs = rmdir = rm = rm_file = _rm = cp_file = copy = mv = touch = pipe_file = pipe = put_file = put = (
        _refuse
    )


def _is_shown(entry: Info, directory: str) -> bool:
    """Whether an entry of a listing is a visible file or directory; some stores list the directory itself as well."""
    name = entry["name"].rstrip("/")
    is_plain = entry["type"] in SHOWN_KINDS and not entry.get("islink") and is_unicode(name)
    return is_plain and name != directory and not is_hidden(posixpath.basename(name))


def _raise_unless_absent(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def valid_length_filesystem(
    url: str | os.PathLike[str],
    storage_options: Mapping[str, object] | None = None,
    *,
    sidecars: SidecarNaming = DEFAULT_SIDECARS,
) -> ValidLengthFileSystem:
    """Open the finished files below a base path as an fsspec file system.

    Args:
        url: The base path of a sink: a plain path, ``file:``, or any URL that fsspec opens.
        storage_options: What its client in fsspec needs; none for local files.
        sidecars: How the sink names its sidecars, if not by default.

    Returns:
        The file system; its ``base`` is the path to begin with.

    Raises:
        ConfigError: fsspec knows no such scheme, or its client is not installed.
    """
    file_system, path = open_for_reading(url, storage_options)
    return ValidLengthFileSystem(file_system, path, sidecars=sidecars)
