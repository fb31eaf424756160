"""The directories of a local store: reached from the base by descriptors, made durable up to the base."""

from __future__ import annotations

import itertools
import os
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

from partfile.filesystems.errors import ConfigError, NotApplied, NotFound, OutcomeUnknown
from partfile.filesystems.local_base import LocalBase
from partfile.filesystems.local_encoding import check_encoding_of_names
from partfile.filesystems.local_errors import translated, translated_as_unknown
from partfile.filesystems.relative_paths import check_relative_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partfile.filesystems.posix import Access, PosixCalls

Identity = tuple[int, int]


class _Synced(NamedTuple):
    """A directory as it was just before its names were made durable."""

    directory: Identity
    changed_at_ns: int
    """The inode of a directory that was deleted may be that of the next one; but both change the one above."""


def identity(status: os.stat_result) -> Identity:
    """What tells one file from every other: device and inode."""
    return status.st_dev, status.st_ino


class LocalTree:
    """The base directory and what is below it.

    Args:
        base: Path of the base; symbolic links in it are resolved now, once.
        calls: The system calls.
        create_base: Whether to make the base with the first file, and to insist at once that it can be written to.
    """

    def __init__(self, base: str, calls: PosixCalls, *, create_base: bool) -> None:
        if not base or "\x00" in base:
            raise ConfigError(f"{base!r} is not a path", path=base)
        check_encoding_of_names(base)
        self.calls = calls
        self.base = os.path.realpath(base)
        self._base = LocalBase(self.base, calls, creates=create_base)
        # So that a part does not fsync all its ancestors again: directories whose names were made durable, and which
        # directory was under a name then.
        self._synced: dict[str, _Synced] = {}
        self._named: dict[str, Identity] = {}

    def close(self) -> None:
        """Release the base; may be called twice."""
        self._base.close()

    def shown(self, path: str) -> str:
        """A relative path as messages show it."""
        return f"{self.base}/{path}" if path else self.base

    @contextmanager
    def directory(self, path: str, *, create: bool = False) -> Iterator[int]:
        """Hold a directory open, by its path relative to the base.

        Args:
            path: Relative to the base; empty for the base itself.
            create: Whether to make directories that are missing. They are durable only after ``sync_names``.

        Raises:
            NotFound: It is not there and ``create`` is false.
            NotApplied: Something else, such as a symbolic link, is in its place.
        """
        chain = self._open_chain(path, create=create)
        try:
            yield chain[-1]
        finally:
            self._close_chain(chain)

    def sync_names(self, path: str) -> None:
        """Make the names in a directory durable, and those of the directory and its ancestors up to the base.

        Ancestors count even if somebody else made them: he may not have got round to it.

        Raises:
            OutcomeUnknown: An fsync failed.
        """
        try:
            self._sync_names(path)
        except NotApplied as error:
            # What the caller did before may be there, durable or not.
            raise OutcomeUnknown(f"cannot sync {self.shown(path)!r}: {error}", path=path) from error

    def _sync_names(self, path: str) -> None:
        chain = self._open_chain(path, create=False)
        try:
            steps = path.split("/")
            for depth, (parent, child) in enumerate(itertools.pairwise(chain)):
                above, below = "/".join(steps[:depth]), "/".join(steps[: depth + 1])
                named = identity(self.status_open(child, below))
                if self._named.get(below) != named or self._synced.get(above) != self._now(parent, above):
                    self._sync_noted(parent, above)
                    self._named[below] = named
            self._sync_noted(chain[-1], path)
        finally:
            self._close_chain(chain)

    def _sync_noted(self, directory: int, path: str) -> None:
        # What changes while it is synced is synced again.
        seen = self._now(directory, path)
        self.sync_directory(directory, path)
        self._synced[path] = seen

    def _now(self, directory: int, path: str) -> _Synced:
        status = self.status_open(directory, path)
        return _Synced(identity(status), status.st_mtime_ns)

    def sync_directory(self, directory: int, path: str) -> None:
        """Make the names in one open directory durable."""
        with translated_as_unknown("sync the directory of", self.shown(path)):
            self.calls.sync_directory(directory)

    def sync_file(self, descriptor: int, path: str) -> None:
        """Make an open file durable."""
        with translated_as_unknown("sync", self.shown(path)):
            self.calls.sync(descriptor)

    def open_regular(self, directory: int, name: str, path: str, access: Access) -> int:
        """Open an existing regular file.

        Raises:
            NotFound: Nothing is there.
            NotApplied: It is not a regular file, or cannot be opened.
        """
        with translated("open", self.shown(path)):
            status = self.calls.stat_name(directory, name)
            if status is None:
                raise NotFound(f"{self.shown(path)!r} is not there", path=path)
            # Looked at before it is opened too: opening a device can have effects of its own.
            self._check_regular(status, path)
            descriptor = self.calls.open_existing(directory, name, access)
        try:
            self._check_regular(self.calls.stat_open(descriptor), path)
        except BaseException:
            self.calls.close(descriptor)
            raise
        return descriptor

    def status(self, directory: int, name: str, path: str) -> os.stat_result | None:
        """What is under a name, a symbolic link itself; None if nothing is."""
        with translated("look at", self.shown(path)):
            return self.calls.stat_name(directory, name)

    def status_open(self, descriptor: int, path: str) -> os.stat_result:
        """What an open descriptor stands for."""
        with translated("look at", self.shown(path)):
            return self.calls.stat_open(descriptor)

    def names(self, directory: int, name: str, path: str, descriptor: int) -> bool:
        """Whether ``name`` still stands for the open file."""
        status = self.status(directory, name, path)
        return status is not None and identity(status) == identity(self.status_open(descriptor, path))

    def write_all(self, descriptor: int, data: bytes | memoryview, path: str) -> None:
        """Write every byte, however few the system takes at once."""
        rest = memoryview(data).cast("B")
        with translated("write", self.shown(path)):
            while rest:
                rest = rest[self.calls.write(descriptor, rest) :]

    def drop_name(self, directory: int, name: str, path: str) -> bool:
        """Unlink a name; returns whether it was there."""
        with translated("unlink", self.shown(path)):
            try:
                self.calls.unlink(directory, name)
            except FileNotFoundError:
                return False
        return True

    def release(self, descriptor: int, path: str, *, locked: bool = True) -> None:
        """Unlock explicitly, so that a forked child cannot keep the lock alive, and close."""
        try:
            if locked:
                with translated("unlock", self.shown(path)):
                    self.calls.unlock(descriptor)
        finally:
            self.close_descriptor(descriptor, path)

    def close_descriptor(self, descriptor: int, path: str) -> None:
        """Close; a failure leaves open which bytes were written."""
        with translated_as_unknown("close", self.shown(path)):
            self.calls.close(descriptor)

    def _check_regular(self, status: os.stat_result, path: str) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise NotApplied(
                f"{self.shown(path)!r} is not a regular file",
                hint="Somebody replaced it; partfile follows no link and opens no pipe or device.",
                path=path,
            )

    def _open_chain(self, path: str, *, create: bool) -> list[int]:
        """Open the base and each directory down to ``path``; the last one is ``path`` itself."""
        check_relative_path(path)
        chain = [self._base.descriptor(create=create)]
        walked: list[str] = []
        try:
            for segment in path.split("/") if path else []:
                walked.append(segment)
                chain.append(self._open_segment(chain[-1], segment, "/".join(walked), create=create))
        except BaseException:
            self._close_chain(chain)
            raise
        return chain

    def _open_segment(self, parent: int, segment: str, path: str, *, create: bool) -> int:
        with translated("open directory", self.shown(path)):
            try:
                return self.calls.open_directory(parent, segment)
            except FileNotFoundError:
                if not create:
                    raise
            self._named.pop(path, None)
            with suppress(FileExistsError):
                self.calls.make_directory(parent, segment)
            return self.calls.open_directory(parent, segment)

    def _close_chain(self, chain: list[int]) -> None:
        for directory in chain[:0:-1]:
            self.calls.close(directory)
