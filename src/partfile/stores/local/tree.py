"""The directories of a local store: reached from the base by descriptors, made durable up to the base."""

from __future__ import annotations

import codecs
import itertools
import logging
import os
import posixpath
import shlex
import stat
import sys
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

from partfile.errors import CommitConflict, ConfigError, NotApplied, NotFound, OutcomeUnknown
from partfile.stores.base import STATE_DIRECTORY
from partfile.stores.local.posix import NO_RENAME_NOREPLACE, store_error, translated, translated_as_unknown
from partfile.stores.parts import split_path
from partfile.stores.paths import check_relative_path, new_token

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partfile.stores.local.posix import Access, PosixCalls


logger = logging.getLogger("partfile")


class LocalBase:
    """Holds the base open. The first write creates the directory, so a start that is refused leaves nothing behind.

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
                hint=(
                    f"Give this user write permission: chmod u+rwx {shlex.quote(existing)}; or mount the file system "
                    "for writing: mount -o remount,rw MOUNT"
                ),
                path=path,
            )

    def descriptor(self, *, create: bool) -> int:
        """The open base, which the caller must not close.

        Args:
            create: Whether to make it if it is missing, durable in the directory above.

        Raises:
            NotFound: It is missing, and was not made yet.
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
        """The part of the path that exists, and the names that are missing from there down to the base."""
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
                # Before anything is made in it: what lies below a lost name is lost.
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
            # It may be one that is above.
            file = self._nearest()[0]
            raise ConfigError(
                f"{file!r} is a file, not a directory", hint=f"See what it is: ls -l {file}", path=self._path
            ) from error
        except FileNotFoundError as error:
            raise NotFound(
                f"the base {self._path!r} is not there",
                hint="Check the path, and that its file system is mounted on this host: "
                f"df -h {shlex.quote(self._nearest()[0])}",
                path=self._path,
            ) from error
        except OSError as error:
            raise store_error(error, "open the base", self._path) from error

    def _not_below(self, existing: str) -> ConfigError:
        return ConfigError(
            f"the base {self._path!r} cannot be made: {existing!r} is not a directory",
            hint=f"See what it is: ls -l {existing}",
            path=self._path,
        )


def check_encoding_of_names(path: str) -> None:
    """Refuse to look at local files where their names would be read or written in another encoding than UTF-8.

    Under another one a bucket has another name than a checkpoint says: its parts would be missed, and taken for
    orphans.

    Args:
        path: What was to be opened.

    Raises:
        ConfigError: Python uses another encoding for the names of files.
    """
    encoding = sys.getfilesystemencoding()
    if codecs.lookup(encoding).name != "utf-8":
        raise ConfigError(
            f"{path!r} cannot be opened: Python reads the names of files as {encoding} here, and partfile writes them "
            "in UTF-8",
            hint="Set PYTHONUTF8=1 in the environment of this process, or a locale of UTF-8 (LC_ALL=C.UTF-8); for "
            "Spark also on the executors (spark.executorEnv.PYTHONUTF8=1).",
            path=path,
        )


Identity = tuple[int, int]


class _Synced(NamedTuple):
    """A directory as it was just before its names were made durable."""

    directory: Identity
    changed_at_ns: int
    """The inode of a directory that was deleted may be that of the next one; but both change the one above."""


def identity(status: os.stat_result) -> Identity:
    """The identity of a file: device and inode."""
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
            raise ConfigError(f"{base!r} is not a path", hint="Write FileSink('/data/landing', ...).", path=base)
        check_encoding_of_names(base)
        self.calls = calls
        self.base = os.path.realpath(base)
        self._base = LocalBase(self.base, calls, creates=create_base)
        # So that a part does not fsync all its ancestors again: directories whose names were made durable, and which
        # directory was under a name then.
        self._synced: dict[str, _Synced] = {}
        self._named: dict[str, Identity] = {}
        self._has_tried = False
        """Whether this run has tried if the file system can rename without replacing."""
        self._warned = False
        """Whether the log says that the file system cannot rename without replacing."""

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

        Ancestors count even if another process made them: it may have crashed before its own sync.

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
            # From the base down: a name survives only below names that do.
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
            self._check_regular(self.status_open(descriptor, path), path)
        except BaseException:
            self.calls.close(descriptor)
            raise
        return descriptor

    def status(self, directory: int, name: str, path: str) -> os.stat_result | None:
        """The status of a name, of a symbolic link itself; None if the name is not there."""
        with translated("look at", self.shown(path)):
            return self.calls.stat_name(directory, name)

    def status_open(self, descriptor: int, path: str) -> os.stat_result:
        """The status of an open descriptor."""
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

    def rename(self, directory: int, name: str, new_name: str, path: str, descriptor: int) -> None:
        """Rename a file that is held open and locked, and check the result.

        The names decide, for a rename can be reported as failed although it was done.

        Args:
            directory: Of both names.
            name: What it has now.
            new_name: What it gets; replaced if it is there.
            path: Of the directory, relative to the base, for messages.
            descriptor: The file.
        """
        failure: OSError | None = None
        try:
            self.calls.rename(directory, name, new_name)
        except OSError as error:
            failure = error
        old_path, new_path = (f"{path}/{each}" if path else each for each in (name, new_name))
        if self.names(directory, new_name, new_path, descriptor) and self.status(directory, name, old_path) is None:
            return
        raise store_error(failure or OSError(f"it did not arrive at {new_name!r}"), "rename", self.shown(old_path))

    def rename_to_new(self, directory: int, name: str, new_name: str, path: str, descriptor: int) -> None:
        """Rename a file that is held open and locked, replacing nothing, and check the result.

        One step takes the old name away and gives the new one. Where the file system cannot do that, the file has both
        names for a moment; the new one is durable before the old one goes.

        Args:
            directory: Of both names.
            name: What it has now.
            new_name: What it gets.
            path: Of the directory, relative to the base, for messages.
            descriptor: The file.

        Raises:
            AlreadyExists: The new name is taken.
            CommitConflict: Another file than this one has been renamed.
        """
        old_path, new_path = (f"{path}/{each}" if path else each for each in (name, new_name))
        failure: OSError | None = None
        try:
            self.calls.rename_noreplace(directory, name, new_name)
        except OSError as error:
            if error.errno in NO_RENAME_NOREPLACE:
                self._link_and_unlink(directory, name, new_name, old_path, new_path)
            else:
                failure = error
        # The names decide, for a rename can be reported as failed although it was done.
        new, old = self.status(directory, new_name, new_path), self.status(directory, name, old_path)
        is_there = new is not None and identity(new) == identity(self.status_open(descriptor, new_path))
        # A consumer may move a finished file away the instant it is visible.
        is_taken = new is None and failure is None
        if (is_there or is_taken) and old is None:
            return
        if failure is None:
            raise CommitConflict(
                f"{new_path!r} is not the file that was to have this name",
                hint=(
                    "Another program renames files below the base; nothing was replaced. See what has the "
                    "directory open: fuser -v DIRECTORY"
                ),
                path=new_path,
            )
        raise store_error(failure, "rename", self.shown(old_path)) from failure

    def try_rename_to_new(self, directory: int, name: str) -> str:
        """Rename a temporary file without replacing, once a run. Where that cannot be done, the log says what it means.

        A start creates a checkpoint, so the operator reads of it then, not with the first part. It is tried only where
        parts lie beside the checkpoints; elsewhere the first part tells. A crash in between leaves a temporary file.

        Args:
            directory: Where it is.
            name: Of a file that only this call knows.

        Returns:
            The name that the file has now.
        """
        if self._has_tried or posixpath.basename(self.base) != STATE_DIRECTORY:
            return name
        self._has_tried = True
        new_name = f"_tmp.{new_token()}"
        try:
            self.calls.rename_noreplace(directory, name, new_name)
        except OSError as error:
            if error.errno in NO_RENAME_NOREPLACE:
                self._warn_of_links()
            return name
        return new_name

    def _warn_of_links(self) -> None:
        if self._warned:
            return
        self._warned = True
        logger.warning(
            "the file system of %r cannot rename without replacing: a file that a consumer moves in the instant in "
            "which it appears can come back after a crash in that instant",
            self.base,
        )

    def _link_and_unlink(self, directory: int, name: str, new_name: str, old_path: str, new_path: str) -> None:
        self._warn_of_links()
        with translated("publish", self.shown(old_path)):
            self.calls.link(directory, name, new_name)
        # A power loss between the two must leave the file one of its names.
        self.sync_directory(directory, new_path)
        self.drop_name(directory, name, old_path)

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
                hint=(
                    "Another program replaced it; partfile follows no link and opens no pipe or device. See what "
                    f"it is: ls -l {shlex.quote(self.shown(path))}"
                ),
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


READ_BYTES = 1 << 20
MAX_ATTEMPTS = 100


class Markers:
    """The marker files whose locks this process holds (R13).

    Args:
        tree: The store's directories.
    """

    def __init__(self, tree: LocalTree) -> None:
        self._tree = tree
        self._process = os.getpid()
        self._held: dict[str, int] = {}

    def hold(self, path: str) -> bool:
        """Lock the marker until ``close``, making it if need be (R13).

        Idempotence: a lock that is held stays, unless another process has removed the file.

        Returns:
            Whether this process holds it now; False when another one does.

        Raises:
            NotApplied: Other processes keep replacing the marker, or looking at it.
            StoreError: The file system refuses.
        """
        if path in self._held and os.getpid() != self._process:
            return False
        parent, name = split_path(path)
        with self._tree.directory(parent, create=True) as directory:
            if path in self._held:
                if self._tree.names(directory, name, path, self._held[path]):
                    return True
                # Another process deleted the file: no process can see this lock any more.
                self._tree.release(self._held.pop(path), path, locked=True)
            for _ in range(MAX_ATTEMPTS):
                descriptor = self._open(directory, name, path)
                locked = False
                try:
                    with translated("lock", self._tree.shown(path)):
                        locked = self._lock(descriptor, path)
                    if locked and self._tree.names(directory, name, path, descriptor):
                        self._held[path] = descriptor
                        return True
                finally:
                    if path not in self._held:
                        self._tree.release(descriptor, path, locked=locked)
                if not locked:
                    return False
        raise NotApplied(f"marker {self._tree.shown(path)!r} keeps being replaced", path=path)

    def is_held(self, path: str) -> bool:
        """Whether another process holds the marker: proof that both share a file system with real locks (R13).

        Raises:
            NotFound: The marker is not visible from this host.
            StoreError: The file system refuses.
        """
        parent, name = split_path(path)
        try:
            with self._tree.directory(parent) as directory:
                descriptor = self._tree.open_regular(directory, name, path, "read")
        except NotFound as error:
            raise NotFound(
                f"marker {self._tree.shown(path)!r} is not visible from this host",
                hint=(
                    "The base path must be on a file system that all executors share. Compare on each host: df -h PATH"
                ),
                path=path,
            ) from error
        free = False
        try:
            with translated("lock", self._tree.shown(path)):
                free = self._tree.calls.lock_shared(descriptor)
        finally:
            self._tree.release(descriptor, path, locked=free)
        return not free

    def close(self) -> None:
        """Release every marker; in a forked child only its copies, for the locks are its parent's."""
        while self._held:
            path, descriptor = self._held.popitem()
            self._tree.release(descriptor, path, locked=os.getpid() == self._process)

    def _open(self, directory: int, name: str, path: str) -> int:
        try:
            return self._tree.open_regular(directory, name, path, "modify")
        except NotFound:
            try:
                return self._tree.calls.create(directory, name)
            except FileExistsError:
                return self._tree.open_regular(directory, name, path, "modify")
            except OSError as error:
                raise store_error(error, "create", self._tree.shown(path)) from error

    def _lock(self, descriptor: int, path: str) -> bool:
        """Lock, unless another process holds the marker; one that only looks whether it is held is waited out."""
        for _ in range(MAX_ATTEMPTS):
            if self._tree.calls.lock(descriptor):
                return True
            if not self._tree.calls.lock_shared(descriptor):
                return False
        raise NotApplied(f"marker {self._tree.shown(path)!r} is being looked at all the time; try again", path=path)
