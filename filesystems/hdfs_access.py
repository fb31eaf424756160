"""Every call of the HDFS store, with its path, its deadline, its patience and its errors."""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from partfile.filesystems.backoff import Backoff
from partfile.filesystems.deadline import CallTimedOut
from partfile.filesystems.errors import NotApplied, NotFound, NotReady, OutcomeUnknown, PartfileError
from partfile.filesystems.hdfs_errors import Verdict, error_of, timed_out, verdict_of
from partfile.filesystems.hdfs_process import this_process
from partfile.filesystems.relative_paths import check_relative_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from hdfs_native import FileReader
    from hdfs_native._internal import RawFileWriter

    from partfile.filesystems.hdfs_calls import HdfsCalls, HdfsStatus
    from partfile.filesystems.hdfs_options import HdfsOptions

Result = TypeVar("Result")
WRITE_BYTES = 4 << 20


class _Again(Enum):
    """When a call is repeated, within its deadline."""

    NEVER = frozenset[Verdict]()
    IF_REFUSED = frozenset({Verdict.UNREADY})
    """Where HDFS said that it did nothing."""
    IF_LOST = frozenset({Verdict.UNREADY, Verdict.LOST})
    """Also where the connection broke while HDFS was at it: to do it twice is harmless, or its callers know."""


class HdfsAccess:
    """The files below one directory of HDFS. Paths are relative to it; may be shared between threads.

    HDFS that says it is not ready (safe mode, no active NameNode) is waited for up to the deadline of the call.

    Args:
        base: The directory as a URL, for messages.
        root: Its absolute path in HDFS.
        options: The deadlines.
        calls: The calls; another object only to inject faults.
    """

    def __init__(self, base: str, root: str, options: HdfsOptions, calls: HdfsCalls) -> None:
        self.base = base.rstrip("/")
        self.options = options
        self._root = root.rstrip("/")
        self._calls = calls
        self._closed = False

    @property
    def truncates(self) -> bool:
        """Whether a file can be cut in place, as far as is known without trying."""
        return self._calls.truncates

    def shown(self, path: str) -> str:
        """A relative path as messages show it."""
        return f"{self.base}/{path}" if path else self.base

    def close(self) -> None:
        """Refuse every further call by path; open files can still be used."""
        self._closed = True

    def create(self, path: str) -> RawFileWriter:
        """Create a file exclusively, with its directories; raises AlreadyExists."""
        full = self._full(path)
        return self._change(
            "create", path, partial(self._calls.create, full), self._calls.close, again=_Again.IF_REFUSED
        )

    def append(self, path: str, *, is_repeated: bool = True) -> RawFileWriter:
        """Open a closed file for appending; raises LeaseUnavailable where somebody has it open.

        That may be this process by a call whose reply was lost, unless ``is_repeated`` is false.
        """
        full = self._full(path)
        again = _Again.IF_LOST if is_repeated else _Again.IF_REFUSED
        return self._change("append to", path, partial(self._calls.append, full), self._calls.close, again=again)

    def write(self, writer: RawFileWriter, data: memoryview, path: str) -> None:
        """Hand over all of ``data``, in pieces of which each has its deadline."""
        for start in range(0, len(data), WRITE_BYTES):
            piece = data[start : start + WRITE_BYTES]
            # Never repeated: hdfs-native may have sent a part of it before it asked for another block in vain.
            self._use("write to", path, writer, partial(self._calls.write, writer, piece), _Again.NEVER)

    def sync(self, writer: RawFileWriter, path: str) -> None:
        """Make what was written durable and its length known."""
        # The DataNodes come first: where the NameNode's answer is lost, all of it can be done again.
        self._use("sync", path, writer, partial(self._calls.sync, writer), _Again.IF_LOST)

    def close_file(self, writer: RawFileWriter, path: str) -> None:
        """Close an open file and give its lease back.

        Never repeated: hdfs-native tells the NameNode of the last block with the first attempt alone, so no other can
        succeed. See ``hdfs_lease.close_durable``.
        """
        self._change("close", path, partial(self._calls.close, writer), again=_Again.NEVER)

    def rename(self, path: str, new_path: str) -> None:
        """Rename, replacing nothing; raises NotFound and AlreadyExists.

        NotFound may mean that it was done, since a call whose reply was lost is repeated.
        """
        full, new_full = self._full(path), self._full(new_path)
        self._change("rename", path, partial(self._calls.rename, full, new_full))

    def make_directories(self, path: str) -> None:
        """Make a directory and what is missing above it; one that is there counts as done."""
        self._change("make", path, partial(self._calls.make_directories, self._full(path)))

    def recover_lease(self, path: str) -> bool:
        """Take the lease from whoever holds it; whether the file is closed by now."""
        full = self._full(path)
        ask = partial(self._calls.recover_lease, full)
        return self._change("recover the lease of", path, ask, again=_Again.IF_REFUSED)

    def truncate(self, path: str, length_bytes: int) -> bool:
        """Cut a closed file; whether that is done by now."""
        full = self._full(path)
        return self._change("truncate", path, partial(self._calls.truncate, full, length_bytes))

    def delete(self, path: str, *, recursive: bool = False) -> bool:
        """Delete; whether there was anything."""
        full = self._full(path)
        return self._change("delete", path, partial(self._calls.delete, full, recursive=recursive))

    def status(self, path: str) -> HdfsStatus | None:
        """What is under a path; None if nothing is."""
        full = self._full(path)
        try:
            return self._look("look at", path, partial(self._calls.status, full))
        except NotFound:
            return None

    def list_status(self, path: str) -> list[HdfsStatus]:
        """What is directly in a directory; nothing if it is not there."""
        full = self._full(path)
        try:
            return self._look("list", path, partial(self._calls.list_status, full))
        except NotFound:
            return []

    def count_directories(self, path: str) -> int:
        """How many directories are below one; 0 if it is not there."""
        full = self._full(path)
        try:
            return self._look("count in", path, partial(self._calls.count_directories, full))
        except NotFound:
            return 0

    def open(self, path: str) -> FileReader:
        """Open a closed file for reading; raises NotFound."""
        full = self._full(path)
        return self._look("open", path, partial(self._calls.open, full))

    def read(self, reader: FileReader, offset: int, count: int, path: str) -> bytes:
        """Read a range that the file has."""
        return self._look("read", path, partial(self._calls.read, reader, offset, count))

    def read_open(self, path: str, offset: int, count: int) -> bytes:
        """Read a range of a file that somebody may have open, over WebHDFS; fewer bytes where it ends."""
        full = self._full(path)
        try:
            return self._look("read", path, partial(self._calls.read_open, full, offset, count))
        except OutcomeUnknown as error:
            # Nothing changes by reading.
            raise NotApplied(error.message, hint=error.hint, path=path) from error

    def _full(self, path: str) -> str:
        check_relative_path(path)
        if self._closed:
            raise NotApplied(f"the store of {self.base!r} is closed", path=self.base)
        return f"{self._root}/{path}" if path else self._root or "/"

    def _use(self, doing: str, path: str, writer: RawFileWriter, work: Callable[[], None], again: _Again) -> None:
        # An open file that was given up would keep its lease for as long as this process lives.
        self._change(doing, path, work, lambda _: self._calls.close(writer), again=again)

    def _look(self, doing: str, path: str, work: Callable[[], Result]) -> Result:
        return self._run(doing, path, work, None, reads=True, again=_Again.IF_LOST)

    def _change(
        self,
        doing: str,
        path: str,
        work: Callable[[], Result],
        on_late: Callable[[Result], object] | None = None,
        *,
        again: _Again = _Again.IF_LOST,
    ) -> Result:
        return self._run(doing, path, work, on_late, reads=False, again=again)

    def _run(
        self,
        doing: str,
        path: str,
        work: Callable[[], Result],
        on_late: Callable[[Result], object] | None,
        *,
        reads: bool,
        again: _Again,
    ) -> Result:
        backoff = Backoff(self.options.call_timeout_s)
        while True:
            try:
                return this_process().threads.run(work, backoff.left_s, on_late)
            except CallTimedOut:
                raise timed_out(doing, self.shown(path), self.options.call_timeout_s, reads=reads) from None
            except NotReady:
                if again is _Again.NEVER or not backoff.pause():
                    raise
            except PartfileError:
                raise
            except Exception as error:
                if verdict_of(error) in again.value and backoff.pause():
                    continue
                raise error_of(error, doing, self.shown(path), reads=reads) from error
