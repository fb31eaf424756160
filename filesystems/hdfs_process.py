"""What one process has for HDFS: its clients and the threads that call them, made after every fork (S13)."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from typing import TYPE_CHECKING

from partfile.filesystems.deadline import CallThreads
from partfile.filesystems.errors import ConfigError
from partfile.filesystems.hdfs_setup import USER_VARIABLE, configuration_of

if TYPE_CHECKING:
    from hdfs_native import Client

    from partfile.filesystems.hdfs_options import HdfsOptions

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
        """Whom an option named, for all clients of this process and of those forked from it."""
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
        who = f"another client of this process is {named!r}" if self._user == named else f"{USER_VARIABLE} is {named!r}"
        raise ConfigError(
            f"user={user!r} for HDFS, but {who}",
            hint="A process is one user for all its HDFS clients: name the same one, or take another process.",
        )

    def wait_for_inherited_connections(self) -> None:
        """Wait until no connection to a DataNode that the parent left in memory is used again.

        hdfs-native keeps those it has read through for 3 s. In a child nothing wakes up whoever waits on one.
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
    from hdfs_native import Client  # noqa: PLC0415 - only who opens an hdfs:// URL needs it.

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
        # It has asked nobody yet.
        where = f" with the files in {directory!r}" if directory else ""
        raise ConfigError(
            f"hdfs-native makes no client of {url or 'fs.defaultFS'}{where}: {error}",
            hint="Check the URL, storage_options and the files, which must be UTF-8 and not empty.",
        ) from error
    # Never destroyed: in a forked child its destructor would wait for threads that are not there.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(client.inner))
    return client
