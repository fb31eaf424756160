"""What one process has for S3: clients, threads, and what it has learnt of servers; made after every fork (S13)."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from partfile.filesystems.s3_client import S3Client

if TYPE_CHECKING:
    from collections.abc import Callable

    from s3fs import S3FileSystem

    from partfile.filesystems.s3_options import S3Options

Thing = TypeVar("Thing")


class Traits(NamedTuple):
    """What a server does with conditional requests; None as long as nobody has tried."""

    puts: bool | None = None
    """A PUT with If-None-Match is refused where the key is taken."""
    completes: bool | None = None
    """So is the completion of an upload."""
    leaves_out: bool | None = None
    """A completion need not name every upload part that was sent."""


class S3Process:
    """The clients of this process. s3fs runs an event loop in a thread, which a forked child does not have."""

    def __init__(self) -> None:
        self.process_id = os.getpid()
        self.traits: dict[tuple[str | None, str], Traits] = {}
        """What has been found out, by endpoint and S3 bucket."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._clients: dict[S3Options, S3Client] = {}

    @property
    def pool(self) -> ThreadPoolExecutor:
        """Threads for several requests at once; how many are under way is bounded by the client's turns."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(max_workers=32, thread_name_prefix="partfile-s3")
            return self._pool

    def client(self, options: S3Options) -> S3Client:
        """The one client for these settings, made when it is first asked for."""
        with self._lock:
            if options not in self._clients:
                if self._loop is None:
                    self._loop = _running_loop()
                self._clients[options] = S3Client(_new_client(options, self._loop), options)
            return self._clients[options]


class OncePerProcess(Generic[Thing]):
    """Something of which each process has its own, made again after a fork; what has locks cannot be inherited.

    Args:
        make: Makes it.
    """

    def __init__(self, make: Callable[[], Thing]) -> None:
        self._make = make
        self._made = [(os.getpid(), make())]

    def get(self) -> Thing:
        """That of the process that asks."""
        # Not under a lock: one that was held at the fork would stay held in the child.
        process_id, thing = self._made[-1]
        if process_id != os.getpid():
            # The other is kept, so that nothing of it is closed here: sockets and event queue are the parent's as well.
            thing = self._make()
            self._made.append((os.getpid(), thing))
        return thing


# The one piece of global state: sharing a client among all stores of a process is what it is for.
_CURRENT = OncePerProcess(S3Process)


def this_process() -> S3Process:
    """The clients and threads of the process that calls this."""
    return _CURRENT.get()


def _running_loop() -> asyncio.AbstractEventLoop:
    # Not fsspec's own loop, which it shares with whatever else the process does.
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="partfile-s3-loop", daemon=True).start()
    return loop


def _new_client(options: S3Options, loop: asyncio.AbstractEventLoop) -> S3FileSystem:
    from s3fs import S3FileSystem  # noqa: PLC0415 - only who opens an s3:// URL needs it.

    client = options.client
    # How long nothing may move is judged by S3Client alone; this one would count while a body is being sent.
    client["config_kwargs"]["read_timeout"] = None
    files = S3FileSystem(**client, loop=loop, skip_instance_cache=True, use_listings_cache=False)
    files.retries = 1
    return files
