"""The base directory of a local store: checked at once, made with the first file."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from partfile.filesystems.errors import ConfigError, NotApplied, NotFound
from partfile.filesystems.local_errors import store_error, translated, translated_as_unknown

if TYPE_CHECKING:
    from partfile.filesystems.posix import PosixCalls


class LocalBase:
    """Holds the base open. Whoever only looks makes nothing, so that a start that is refused leaves nothing behind.

    Args:
        path: Its resolved absolute path.
        calls: The system calls.
        creates: Whether the first file makes it and what is missing above it, and whether to insist at once that it
            can be written to; without, it must be there.

    Raises:
        ConfigError: It, or something above it, is a file.
        NotApplied: It is missing, or cannot be made or written to.
    """

    def __init__(self, path: str, calls: PosixCalls, *, creates: bool) -> None:
        self._path = path
        self._calls = calls
        self._opening = threading.Lock()
        self._is_closed = False
        self._descriptor: int | None = None
        existing, missing = self._nearest()
        if not missing or not creates:
            self._descriptor = self._open()
        elif not os.path.isdir(existing):  # noqa: PTH112 - a Path would be made of it for this alone
            raise self._not_below(existing)
        if creates and not os.access(existing, os.W_OK | os.X_OK):
            self.close()
            raise NotApplied(
                f"the base {path!r} cannot be {'made' if missing else 'written to'}",
                hint="Give this user write permission, or mount the file system for writing.",
                path=path,
            )

    def descriptor(self, *, create: bool) -> int:
        """The open base, which the caller must not close.

        Args:
            create: Whether to make it if it is missing, durable in the directory above.

        Raises:
            NotFound: It is missing, and nobody has made it yet.
            NotApplied: It cannot be made, or has been closed.
        """
        with self._opening:
            if self._is_closed:
                raise NotApplied(f"the store of {self._path!r} is closed", path=self._path)
            if self._descriptor is None:
                if create:
                    self._make()
                self._descriptor = self._open()
            return self._descriptor

    def close(self) -> None:
        """Release it; may be called twice."""
        with self._opening:
            self._is_closed = True
            descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with translated_as_unknown("close", self._path):
                self._calls.close(descriptor)

    def _nearest(self) -> tuple[str, list[str]]:
        """What is there of the path, and the names that are missing from there down to the base."""
        existing, missing = self._path, list[str]()
        while not os.path.lexists(existing):
            existing, name = os.path.split(existing)
            missing.insert(0, name)
        return existing, missing

    def _make(self) -> None:
        """Make the base and what is missing above it, each directory durable in its parent."""
        existing, missing = self._nearest()
        if not missing:
            return
        try:
            directory = self._calls.open_base(existing)
        except NotADirectoryError as error:
            raise self._not_below(existing) from error
        except OSError as error:
            raise store_error(error, "make the base", self._path) from error
        for name in missing:
            try:
                with translated("make the base", self._path), suppress(FileExistsError):
                    self._calls.make_directory(directory, name)
                with translated_as_unknown("sync the directory of", self._path):
                    self._calls.sync_directory(directory)
                with translated("make the base", self._path):
                    child = self._calls.open_directory(directory, name)
            finally:
                self._calls.close(directory)
            directory = child
        self._calls.close(directory)

    def _open(self) -> int:
        try:
            return self._calls.open_base(self._path)
        except NotADirectoryError as error:
            raise ConfigError(f"{self._path!r} is a file, not a directory", path=self._path) from error
        except FileNotFoundError as error:
            raise NotFound(
                f"the base {self._path!r} is not there",
                hint="Check the path, and that its file system is mounted on this host.",
                path=self._path,
            ) from error
        except OSError as error:
            raise store_error(error, "open the base", self._path) from error

    def _not_below(self, existing: str) -> ConfigError:
        return ConfigError(f"the base {self._path!r} cannot be made: {existing!r} is not a directory", path=self._path)
