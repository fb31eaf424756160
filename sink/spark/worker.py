"""The Python worker processes of Spark: what is done once in each, and which version they must run."""

from __future__ import annotations

import ctypes
import functools
import gc
import socket
import sys
from contextlib import suppress
from pathlib import Path

from partfile.filesystems.errors import PartfileError
from partfile.version import __version__


def begin_task() -> None:
    """Make the transfer of a task's rows as quick as a worker can, before it reads them."""
    spare_modules_from_collection()
    acknowledge_at_once()


def spare_modules_from_collection() -> None:
    """Take what imports have made since the last task out of the garbage collector's sight.

    Spark's worker runs a full collection after every task. Modules are never garbage, yet each collection walks their
    objects: ninety thousand before the first task, 57 ms of CPU, and thirty thousand more that the first task imports,
    15 ms. What else is alive is spared with them, so it is done once for each number of modules. See ``gc.freeze``.
    """
    _spare(len(sys.modules))


@functools.cache
def _spare(_modules: int) -> None:
    gc.collect()
    gc.freeze()


def acknowledge_at_once() -> None:
    """Have Linux acknowledge at once what the JVM sends this worker next over the loopback interface.

    Spark's JVM sends a batch in small packets and, by Nagle's algorithm, each only when the one before is acknowledged,
    which the worker's side puts off for 40 ms: a fifth of a micro-batch of few rows. It lasts for a while only (see
    ``TCP_QUICKACK`` in tcp(7)), so it is asked for before a task reads. Elsewhere than on Linux, and on the Unix domain
    sockets of ``spark.python.unix.domain.socket.enabled``, there is nothing to do.
    """
    option: int | None = getattr(socket, "TCP_QUICKACK", None)
    if option is None:
        return
    # Not by a socket of Python's: made of a descriptor, it may leave the connection without blocking, also for Spark.
    system, on = ctypes.CDLL(None), ctypes.c_int(1)
    for descriptor in _sockets():
        # What is no connection by TCP refuses, and stays as it is.
        system.setsockopt(descriptor, socket.IPPROTO_TCP, option, ctypes.byref(on), ctypes.sizeof(on))


def _sockets() -> list[int]:
    """Descriptors of sockets of this process, some perhaps closed since; none where there is no /proc."""
    found = []
    with suppress(OSError):
        for path in Path("/proc/self/fd").iterdir():
            with suppress(OSError):  # The listing's own descriptor, or another thread's.
                # Not by looking at the file, which may be on a mount that does not answer.
                if str(path.readlink()).startswith("socket:"):
                    found.append(int(path.name))
    return found


def check_version(version: str) -> None:
    """Refuse an answer of a worker that runs another version of partfile than the driver.

    Args:
        version: The worker's, by its answer.

    Raises:
        PartfileError: It is another one.
    """
    if version != __version__:
        raise PartfileError(
            f"an executor has partfile {version}, the driver {__version__}",
            hint="Install the same version on every node.",
        )
