"""Calls to one HDFS: deadlines, retries, lease recovery, renames with a lost reply, markers."""

from __future__ import annotations

import ctypes
import os
import re
import threading
import time
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from partfile.errors import (
    AlreadyExists,
    ConfigError,
    LeaseUnavailable,
    NotApplied,
    NotFound,
    NotReady,
    OutcomeUnknown,
    PartfileError,
    StoreError,
)
from partfile.stores.hadoop import HadoopConfiguration, read_configuration
from partfile.stores.hdfs.errors import Verdict, error_of, timed_out, verdict_of
from partfile.stores.hdfs.options import web_addresses
from partfile.stores.hdfs.webhdfs import HdfsTruncation, connect_to_web, tls_context
from partfile.stores.parts import split_path
from partfile.stores.paths import check_relative_path
from partfile.stores.retry import Backoff, CallThreads, CallTimedOut
from partfile.stores.urls import HdfsUrl

if TYPE_CHECKING:
    from collections.abc import Callable

    from hdfs_native import Client, FileReader, FileStatus
    from hdfs_native._internal import RawFileWriter

    from partfile.stores.base import Cut
    from partfile.stores.hdfs.options import HdfsOptions
    from partfile.stores.hdfs.webhdfs import WebHdfs


USER_VARIABLE = "HADOOP_USER_NAME"
"""The variable from which hdfs-native takes the name of its user."""
_BLOCK_SIZE = "dfs.blocksize"
_REPLICATION = "dfs.replication"
_MAX_REPLICATION = 512
_CHECKSUMMED_BYTES = 512
_SIZE = re.compile(r"([0-9]{1,19})([kmgtpe]?)", re.IGNORECASE)
_COUNT = re.compile(r"[0-9]{1,9}")
_PREFIXES = "kmgtpe"


class BlockLayout(NamedTuple):
    """Block size and replication of new files; None leaves it to the NameNode."""

    size_bytes: int | None
    replication: int | None


def default_file_system(options: HdfsOptions) -> str:
    """The authority that URLs without one mean, in one spelling; empty if that is no HDFS.

    Raises:
        ConfigError: Hadoop's files cannot be used.
    """
    return _default_in(read_configuration(os.environ, directory=options.config_dir, overrides=options.config))


def configuration_of(root: str | None, options: HdfsOptions) -> HadoopConfiguration:
    """The properties that hold for a client of a file system; None is ``fs.defaultFS``.

    Raises:
        ConfigError: The directory is missing, or a file is damaged, longer than 4 MiB, or cannot be read; nothing names
            the file system; or the user whom the environment names has no name.
    """
    if not os.environ.get(USER_VARIABLE, "unset").strip():
        raise ConfigError(
            f"{USER_VARIABLE} is set, but empty", hint="Unset it, or let it name a user: export HADOOP_USER_NAME=NAME"
        )
    configuration = read_configuration(os.environ, directory=options.config_dir, overrides=options.config)
    if root is None and not _default_in(configuration):
        where = f" in {configuration.directory!r}" if configuration.directory else "; HADOOP_CONF_DIR is not set"
        raise ConfigError(
            f"a URL without a host is on fs.defaultFS, which is {configuration.value('fs.defaultFS')!r}{where}",
            hint="Write hdfs://host:port/path, or let config_dir or HADOOP_CONF_DIR name the files of an HDFS.",
        )
    return configuration


def block_layout(options: HdfsOptions, configuration: HadoopConfiguration) -> BlockLayout:
    """Block size and replication of new files: by the options, else by ``dfs.blocksize`` and ``dfs.replication``.

    Raises:
        ConfigError: The property that decides cannot be used.

    Source: Hadoop's ``Configuration.getLongBytes`` for the size, as of 3.5.
    """
    size_bytes, replication = options.block_size_bytes, options.replication
    return BlockLayout(
        _block_size_bytes(configuration) if size_bytes is None else size_bytes,
        _replication(configuration) if replication is None else replication,
    )


def check_setup(root: str | None, options: HdfsOptions, cut: Cut) -> None:
    """Refuse what would fail when the first part is written or cut, without asking HDFS.

    Args:
        root: The file system; None for ``fs.defaultFS``.
        options: How to connect.
        cut: How parts are to be cut.

    Raises:
        ConfigError: A file, a property or the way to the web server cannot be used.
    """
    configuration = configuration_of(root, options)
    block_layout(options, configuration)
    if options.ca_file is not None:
        tls_context(options.ca_file)
    if cut in {"auto", "truncate"} and options.http_address is None:
        web_addresses(root or "hdfs:///", configuration)


def _default_in(configuration: HadoopConfiguration) -> str:
    default = configuration.value("fs.defaultFS")
    return HdfsUrl.of(default).file_system if default.lower().startswith("hdfs:") else ""


def _block_size_bytes(configuration: HadoopConfiguration) -> int | None:
    text = configuration.value(_BLOCK_SIZE)
    if not text:
        return None
    match = _SIZE.fullmatch(text)
    size_bytes = int(match.group(1)) << (10 * (1 + _PREFIXES.find(match.group(2).lower() or "-"))) if match else 0
    if not _CHECKSUMMED_BYTES <= size_bytes < 1 << 63 or size_bytes % _CHECKSUMMED_BYTES:
        raise ConfigError(
            f"{_BLOCK_SIZE}={text!r} is not the size of a block",
            hint=f"Write a multiple of {_CHECKSUMMED_BYTES} bytes, for instance {_BLOCK_SIZE}=128m.",
        )
    return size_bytes


def _replication(configuration: HadoopConfiguration) -> int | None:
    text = configuration.value(_REPLICATION)
    if not text:
        return None
    if not _COUNT.fullmatch(text) or not 1 <= int(text) <= _MAX_REPLICATION:
        raise ConfigError(
            f"{_REPLICATION}={text!r} is not a number of copies",
            hint=f"Write a number from 1 to {_MAX_REPLICATION}, for instance {_REPLICATION}=3.",
        )
    return int(text)


_CONNECTION_EXPIRY_S = 3.1


class HdfsProcess:
    """The clients of this process. hdfs-native runs threads of its own, which a forked child does not have.

    Args:
        parent: What the process had that this one was forked from; None where this is the first.
    """

    def __init__(self, parent: HdfsProcess | None = None) -> None:
        self.process_id = os.getpid()
        has_inherited = parent is not None and parent.has_clients
        self._alone_at_s = time.monotonic() + _CONNECTION_EXPIRY_S if has_inherited else 0.0
        self.threads = CallThreads()
        self._lock = threading.Lock()
        self._user = parent.user if parent is not None else None
        self._clients: dict[tuple[object, ...], Client] = {}

    @property
    def user(self) -> str | None:
        """The user that an option named, for all clients of this process and of those forked from it."""
        return self._user

    @property
    def has_clients(self) -> bool:
        """Whether any client has been made."""
        return bool(self._clients)

    def client(self, url: str | None, options: HdfsOptions) -> Client:
        """The one client for these settings, made when it is first asked for.

        Raises:
            ConfigError: Another user was named before.
        """
        key = (
            url,
            tuple(sorted(options.client_config.items())),
            options.config_dir,
            options.user,
            options.kerberos_principal,
            options.kerberos_keytab,
            options.kerberos_cache,
        )
        with self._lock:
            if key not in self._clients:
                configuration = configuration_of(url, options)
                self._be(options.user)
                self._clients[key] = _new_client(url, options, configuration.directory)
            return self._clients[key]

    def _be(self, user: str | None) -> None:
        """Let the environment name the user, which is where hdfs-native looks."""
        if user is None:
            return
        named = os.environ.setdefault(USER_VARIABLE, user)
        if named == user:
            self._user = user
            return
        actual = (
            f"another client of this process is {named!r}" if self._user == named else f"{USER_VARIABLE} is {named!r}"
        )
        raise ConfigError(
            f"user={user!r} for HDFS, but {actual}",
            hint=(
                "A process is one user for all its HDFS clients. Name the same one: user=NAME in storage_options; "
                "or take another process."
            ),
        )

    def wait_for_inherited_connections(self) -> None:
        """Wait until no connection to a DataNode that the parent left in memory is used again.

        hdfs-native keeps those it has read through for 3 s. In a child nothing wakes up a thread that waits on one.
        """
        time.sleep(max(0.0, self._alone_at_s - time.monotonic()))


class _Current:
    """The HdfsProcess of the process that runs now."""

    def __init__(self) -> None:
        self._process = HdfsProcess()

    def get(self) -> HdfsProcess:
        # Not under a lock: one that was held at the fork would stay held in the child.
        if self._process.process_id != os.getpid():
            self._process = HdfsProcess(self._process)
        return self._process


# The one piece of global state: sharing a client among all stores of a process is what it is for.
_CURRENT = _Current()


def this_process() -> HdfsProcess:
    """The clients and threads of the process that calls this."""
    return _CURRENT.get()


def _new_client(url: str | None, options: HdfsOptions, directory: str | None) -> Client:
    from hdfs_native import Client  # noqa: PLC0415 - only an hdfs:// URL needs it.

    try:
        client = Client(
            url,
            options.client_config,
            options.config_dir,
            kerberos_principal=options.kerberos_principal,
            kerberos_keytab=options.kerberos_keytab,
            kerberos_cache=options.kerberos_cache,
        )
    except Exception as error:
        # It has not asked any server yet.
        where = f" with the files in {directory!r}" if directory else ""
        raise ConfigError(
            f"hdfs-native makes no client of {url or 'fs.defaultFS'}{where}: {error}",
            hint=(
                "Check the URL, storage_options and the files, which must be UTF-8 and not empty. They are looked "
                "for in: export HADOOP_CONF_DIR=DIRECTORY"
            ),
        ) from error
    # Never destroyed: in a forked child its destructor would wait for threads that are not there.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(client.inner))
    return client


Result = TypeVar("Result")
WRITE_BYTES = 4 << 20


class _Again(Enum):
    """When a call is repeated, within its deadline."""

    NEVER = frozenset[Verdict]()
    IF_REFUSED = frozenset({Verdict.UNREADY})
    """The error after which HDFS certainly did nothing."""
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
        """Open a closed file for appending; raises LeaseUnavailable where another writer has it open.

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
        succeed. After it failed, only a recovery of the lease closes the file.

        Raises:
            NotFound, LeaseUnavailable: The file or its lease was taken away before.
            StoreError: It may be closed or not.
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
        """Take the lease from its holder; whether the file is closed by now."""
        full = self._full(path)
        ask = partial(self._calls.recover_lease, full)
        return self._change("recover the lease of", path, ask, again=_Again.IF_REFUSED)

    def move(self, path: str, new_path: str) -> None:
        """Rename a file between two names that carry its token, so that only its owners give or take them.

        Raises:
            NotFound: It is under neither name, or was not renamed.
            AlreadyExists: Something is under the new name.
            OutcomeUnknown: It is not known; the file may be renamed later.
        """
        try:
            self.rename(path, new_path)
        except (NotFound, OutcomeUnknown):
            if self.status(new_path) is None or self.status(path) is not None:
                raise

    def fence(self, path: str) -> None:
        """Fence the writer of a file: it is closed, and every DataNode refuses that writer.

        Raises:
            NotFound: The file is gone.
            NotApplied: HDFS has not closed it within ``lease_timeout_s``.
            OutcomeUnknown: HDFS has not answered within it.
        """
        if not self._begin_recovery(path):
            self._wait_until_closed(path, self.options.lease_timeout_s)

    def _begin_recovery(self, path: str) -> bool:
        """Ask for the recovery; whether the file is closed already.

        Once, since asking again can begin a recovery anew that is about to end (FLINK-18592); again only where the
        answer was lost, and with it perhaps the NameNode that was asked.
        """
        backoff = Backoff(self.options.lease_timeout_s)
        while True:
            try:
                return self.recover_lease(path)
            except OutcomeUnknown:
                if not backoff.pause():
                    raise

    def close_durable(self, writer: RawFileWriter, path: str) -> None:
        """Close a file that no other process writes and whose every byte that counts is durable.

        Where the NameNode was away or not ready at that moment, HDFS itself closes it, by recovering its lease.

        Raises:
            NotFound, LeaseUnavailable: The file or its lease was taken away before.
            NotApplied: HDFS has not closed it within ``lease_timeout_s``.
        """
        try:
            self.close_file(writer, path)
        except (NotFound, LeaseUnavailable):
            raise
        except StoreError:
            self.fence(path)

    def _wait_until_closed(self, path: str, timeout_s: float) -> None:
        """Wait until a file is closed: no writer has it open, and HDFS is not recovering its lease.

        Raises:
            NotFound: The file is gone.
            NotApplied: It is still open at the deadline.
        """
        backoff = Backoff(timeout_s)
        while True:
            try:
                # HDFS has no other question whose answer is yes or no and which disturbs no recovery (FLINK-18592).
                writer = self.append(path, is_repeated=False)
            except OutcomeUnknown:
                # By now it may be open for this process alone.
                if self._begin_recovery(path):
                    return
                if not backoff.pause():
                    raise
            except LeaseUnavailable as error:
                if not backoff.pause():
                    raise NotApplied(
                        f"{self.shown(path)!r}: the recovery of its lease has not ended within {timeout_s:g} s",
                        hint=(
                            "The part is tried again. Look at the DataNodes that hold the last block of this file: "
                            "hdfs fsck PATH -files -blocks -locations"
                        ),
                        path=path,
                    ) from error
            else:
                self.close_file(writer, path)
                return

    def truncate(self, path: str, length_bytes: int) -> bool:
        """Cut a closed file; whether that is done by now."""
        full = self._full(path)
        return self._change("truncate", path, partial(self._calls.truncate, full, length_bytes))

    def delete(self, path: str, *, recursive: bool = False) -> bool:
        """Delete; whether there was anything."""
        full = self._full(path)
        return self._change("delete", path, partial(self._calls.delete, full, recursive=recursive))

    def status(self, path: str) -> HdfsStatus | None:
        """The status of a path; None if nothing is there."""
        full = self._full(path)
        try:
            return self._look("look at", path, partial(self._calls.status, full))
        except NotFound:
            return None

    def list_status(self, path: str) -> list[HdfsStatus]:
        """The entries directly in a directory; none if it is not there."""
        full = self._full(path)
        try:
            return self._look("list", path, partial(self._calls.list_status, full))
        except NotFound:
            return []

    def count_directories(self, path: str) -> int:
        """The number of directories below one; 0 if it is not there."""
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
        """Read a range of a file that a writer may have open, over WebHDFS; fewer bytes where it ends."""
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


CHANGING_CALLS = frozenset(
    {
        "create",
        "append",
        "write",
        "sync",
        "close",
        "rename",
        "make_directories",
        "recover_lease",
        "truncate",
        "delete",
    }
)
"""Methods that change files, their durability or their leases: the points at which dying makes a difference."""


class HdfsStatus(NamedTuple):
    """The status of a path, as the NameNode tells it."""

    name: str
    length_bytes: int
    is_directory: bool
    modified_at_ms: int


class HdfsCalls:
    """Calls to one HDFS. Raises what hdfs-native raises; keeps no state but the address.

    Args:
        url: ``hdfs://host:port`` or ``hdfs://name-service``; None takes ``fs.defaultFS``.
        options: How to connect.

    Raises:
        ConfigError: Hadoop's files or its properties cannot be used.
    """

    def __init__(self, url: str | None, options: HdfsOptions) -> None:
        self._url = url
        self._options = options
        self._layout = block_layout(options, configuration_of(url, options))
        self._truncation = HdfsTruncation(url, options)
        self._web: WebHdfs | None = None

    @property
    def truncates(self) -> bool:
        """Whether a file can be cut in place, as far as is known without trying."""
        return self._truncation.is_possible

    def create(self, path: str) -> RawFileWriter:
        """Create a file exclusively, with its directories, and open it; the lease is this client's."""
        from hdfs_native import WriteOptions  # noqa: PLC0415 - only an hdfs:// URL needs it.

        options = WriteOptions(
            block_size=self._layout.size_bytes,
            replication=self._layout.replication,
            overwrite=False,
            create_parent=True,
        )
        # Not by Client.create, whose FileWriter closes itself when it is collected: without deadline, or in a child.
        return self._client.inner.create(path, options)

    def append(self, path: str) -> RawFileWriter:
        """Open a closed file for appending, which takes its lease."""
        return self._client.inner.append(path)

    def write(self, writer: RawFileWriter, data: bytes | memoryview) -> None:
        """Hand over all of ``data``."""
        writer.write(data)

    def sync(self, writer: RawFileWriter) -> None:
        """Make everything handed over durable, on every DataNode of the block, and its length known."""
        writer.hsync()

    def close(self, writer: RawFileWriter) -> None:
        """Close an open file, which gives its lease back."""
        writer.close()

    def rename(self, path: str, new_path: str) -> None:
        """Rename atomically; replaces nothing, and moves into no directory (rename2 without overwrite)."""
        self._client.rename(path, new_path, overwrite=False)

    def make_directories(self, path: str) -> None:
        """Make a directory and what is missing above it."""
        self._client.mkdirs(path, create_parent=True)

    def recover_lease(self, path: str) -> bool:
        """Take the lease from its holder; True when the file is closed, False while that takes its time."""
        return self._client.recover_lease(path)

    def truncate(self, path: str, length_bytes: int) -> bool:
        """Cut a closed file; True when it is done, False when it has begun. Asking again asks how far it is."""
        return self._truncation.truncate(path, length_bytes)

    def delete(self, path: str, *, recursive: bool = False) -> bool:
        """Delete a file or an empty directory, or a whole tree; False if nothing is there."""
        return self._client.delete(path, recursive)

    def status(self, path: str) -> HdfsStatus:
        """The status of a path."""
        return _status(self._client.get_file_info(path))

    def list_status(self, path: str) -> list[HdfsStatus]:
        """The entries directly in a directory."""
        return [_status(status) for status in self._client.list_status(path)]

    def count_directories(self, path: str) -> int:
        """The number of directories below one, at any depth."""
        # HDFS counts the one it is asked about as well, and none where that is a file.
        return max(0, self._client.get_content_summary(path).directory_count - 1)

    def open(self, path: str) -> FileReader:
        """Open a closed file for reading."""
        this_process().wait_for_inherited_connections()
        return self._client.read(path)

    def read(self, reader: FileReader, offset: int, count: int) -> bytes:
        """Read a range that the file has."""
        return reader.read_range(offset, count)

    def read_open(self, path: str, offset: int, count: int) -> bytes:
        """Read a range of a file that a writer has open, over WebHDFS; what its writer has made durable is seen."""
        if self._web is None:
            self._web = connect_to_web(self._url or "hdfs:///", self._options)
        return self._web.read(path, offset, count, self._options.call_timeout_s)

    @property
    def _client(self) -> Client:
        return this_process().client(self._url, self._options)


def _status(status: FileStatus) -> HdfsStatus:
    return HdfsStatus(status.path.rpartition("/")[2], status.length, status.isdir, status.modification_time)


_LOOKERS_ARE_GONE_AFTER_S = 0.5


class HdfsMarkers:
    """The marker files that this process has open.

    hdfs-native renews the leases of what is open every 30 s. The lease of a process that died can be had 60 s after
    its last renewal, the soft limit of HDFS, so until then its marker counts as held.

    Args:
        access: The store's files.
    """

    def __init__(self, access: HdfsAccess) -> None:
        self._access = access
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._held: dict[str, RawFileWriter] = {}
        self._refused: set[str] = set()

    def hold(self, path: str) -> bool:
        """Hold the marker until ``close``, making it if need be (R13).

        Idempotence: where it is held already, HDFS is asked whether the lease is still this process's.

        Returns:
            Whether this process holds it now; False when another one does.

        Raises:
            StoreError: HDFS cannot be asked.
        """
        split_path(path)
        if os.getpid() != self._process:
            return path not in self._held and self._take(path) is not None
        with self._lock:
            if path in self._held:
                try:
                    self._access.sync(self._held[path], path)
                except StoreError:
                    # Deleted, or its lease was taken: no other process sees this one any more.
                    del self._held[path]
                else:
                    return True
            writer = self._take(path)
            if writer is not None:
                self._held[path] = writer
            return writer is not None

    def is_held(self, path: str) -> bool:
        """Whether another process holds the marker: proof that this host sees the coordinator's HDFS (R13).

        Raises:
            NotFound: The marker is not visible from this host.
            StoreError: HDFS cannot be asked.
        """
        split_path(path)
        try:
            writer = self._access.append(path)
        except LeaseUnavailable:
            return True
        except NotFound as error:
            raise NotFound(
                f"marker {self._access.shown(path)!r} is not visible from this host",
                hint=(
                    "The base path must be on one HDFS that driver and executors share. Compare on each host: hdfs "
                    "dfs -ls BASE"
                ),
                path=path,
            ) from error
        self._access.close_file(writer, path)
        return False

    def close(self) -> None:
        """Release every marker; a forked child releases none, for they are its parent's."""
        if os.getpid() != self._process:
            return
        with self._lock:
            while self._held:
                path, writer = self._held.popitem()
                with suppress(StoreError):
                    self._access.close_file(writer, path)

    def _take(self, path: str) -> RawFileWriter | None:
        """Open the marker; None if another process has it open, and not only to look whether it is held."""
        # If it stayed taken for the whole grace period before, another driver holds it: do not wait again.
        backoff = Backoff(0 if path in self._refused else _LOOKERS_ARE_GONE_AFTER_S)
        while True:
            try:
                return self._access.append(path)
            except NotFound:
                with suppress(AlreadyExists):
                    return self._access.create(path)
            except LeaseUnavailable:
                if not backoff.pause():
                    self._refused.add(path)
                    return None
