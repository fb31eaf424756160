"""Small whole files in the memory of one process: the MetadataStore of checkpoints that need not survive it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self

from partfile.errors import AlreadyExists, ConfigError, FileTooLarge, NotApplied, NotFound
from partfile.stores.paths import check_relative_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType


class MemoryFiles:
    """The content that stores of one process share: files by path, and the holder of each marker. Thread safe."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.files: dict[str, bytes] = {}
        self.holders: dict[str, MemoryMetadataStore] = {}


class MemoryMetadataStore:
    """The MetadataStore port over memory. What it holds is lost with the process, and no other process sees it.

    Args:
        files: Where the files are; None begins with none.
    """

    def __init__(self, files: MemoryFiles | None = None) -> None:
        self._shared = files or MemoryFiles()
        self._closed = False

    @property
    def base(self) -> str:
        """The base, for messages."""
        return "memory:"

    def create_file(self, path: str, data: bytes) -> None:
        """Create a file, exclusively and whole or not at all. Durability: none beyond this process.

        Raises:
            AlreadyExists: The name is taken; nothing was written.
            NotApplied: A part of the path is a file.
        """
        self._check(path)
        with self._shared.lock:
            if path in self._shared.files or self._is_directory(path):
                raise AlreadyExists(f"{path} is there already", path=path)
            parents = path.split("/")[:-1]
            for depth in range(1, len(parents) + 1):
                if (parent := "/".join(parents[:depth])) in self._shared.files:
                    raise NotApplied(f"{parent} is a file, not a directory", path=path)
            self._shared.files[path] = bytes(data)

    def read_file(self, path: str, max_bytes: int) -> bytes:
        """Read a whole file.

        Raises:
            NotFound: It is not there.
            FileTooLarge: It is longer than ``max_bytes``.
        """
        self._check(path)
        with self._shared.lock:
            data = self._shared.files.get(path)
        if data is None:
            raise NotFound(f"{path} is not there", path=path)
        if len(data) > max_bytes:
            raise FileTooLarge(f"{path} has {len(data)} bytes; at most {max_bytes} were expected", path=path)
        return data

    def local_path(self, path: str) -> str | None:  # noqa: ARG002 - of the protocol.
        """None: it is in no file."""
        return None

    def file_exists(self, path: str) -> bool:
        """Whether a file is there now."""
        self._check(path)
        with self._shared.lock:
            return path in self._shared.files

    def list_names(self, directory: str) -> list[str]:
        """The names directly in a directory; empty if it is not there."""
        self._check(directory, may_be_base=True)
        prefix = f"{directory}/" if directory else ""
        with self._shared.lock:
            return sorted(
                {path[len(prefix) :].split("/", 1)[0] for path in self._shared.files if path.startswith(prefix)}
            )

    def delete_file(self, path: str) -> None:
        """Delete one file; absent counts as done."""
        self._check(path)
        with self._shared.lock:
            self._shared.files.pop(path, None)

    def delete_directory(self, directory: str) -> None:
        """Delete the files directly in a directory, and so the directory; absent counts as done."""
        self._check(directory)
        with self._shared.lock:
            inside = [path for path in self._shared.files if path.startswith(f"{directory}/")]
            deeper = [path for path in inside if "/" in path[len(directory) + 1 :]]
            if deeper:
                raise NotApplied(f"{directory} holds a directory, for {deeper[0]} is in it", path=directory)
            for path in inside:
                del self._shared.files[path]

    @property
    def markers_are_locks(self) -> bool:
        """Yes: one store of this process holds a marker at a time."""
        return True

    def hold_marker(self, path: str) -> bool:
        """Hold the marker until the store is closed; False when another store of this process does."""
        self._check(path)
        with self._shared.lock:
            self._shared.files.setdefault(path, b"")
            return self._shared.holders.setdefault(path, self) is self

    def marker_is_held(self, path: str) -> bool:
        """Whether some store of this process holds the marker."""
        self._check(path)
        with self._shared.lock:
            if path not in self._shared.files:
                raise NotFound(f"{path} is not visible: memory is shared with no other process", path=path)
            return path in self._shared.holders

    def hazards(self, *, now_ms: int, longest_open_s: float) -> Iterator[str]:  # noqa: ARG002 - there are none.
        """None: memory ends with its process, and its sinks with it."""
        yield from ()

    def close(self) -> None:
        """Release the markers; the files stay as long as another store shares them. May be called twice."""
        self._closed = True
        with self._shared.lock:
            for path in [path for path, holder in self._shared.holders.items() if holder is self]:
                del self._shared.holders[path]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check(self, path: str, *, may_be_base: bool = False) -> None:
        check_relative_path(path)
        if not path and not may_be_base:
            raise ConfigError("the base itself is not a file")
        if self._closed:
            raise NotApplied("the store is closed", path=path)

    def _is_directory(self, path: str) -> bool:
        return any(other.startswith(f"{path}/") for other in self._shared.files)
