"""Stores of Spark's tasks in which something bad happens once, in the middle of the encode of a stage."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from partfile.errors import NotReady
from partfile.stores.local.store import LocalStore

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from partfile.stores.base import PartHandle, PartStream
    from partfile.stores.local.stream import LocalPartStream

_HALF_A_FILE = b"PAR1" + bytes(100)


class FaultyEncodes:
    """Opens local stores for tasks. The encode that comes first in all of them fails, each later one is left alone.

    Args:
        flag: A file that remembers that it happened; it holds the id of the process that it happened to.
        deed: ``kill`` (SIGKILL of the worker), ``refuse`` (storage is not ready), or ``wait`` (to be killed).
    """

    def __init__(self, flag: Path, deed: str) -> None:
        self.flag = str(flag)
        self.deed = deed

    def __call__(self, url: str, _storage_options: Mapping[str, object]) -> LocalStore:
        """Open a store."""
        return _Store(url, self)

    def act(self, stream: PartStream) -> None:
        """Begin the file, and then do the deed if it is the first one."""
        try:
            flag = os.open(self.flag, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return
        if self.deed == "refuse":
            os.close(flag)
            raise NotReady("a deliberate refusal")
        stream.write(_HALF_A_FILE)
        os.write(flag, str(os.getpid()).encode())
        os.close(flag)
        if self.deed == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)


class FatalBucket:
    """Opens local stores for tasks whose worker dies whenever it encodes a stage of one bucket.

    Args:
        bucket: Of the parts that are too much for a worker.
    """

    def __init__(self, bucket: str) -> None:
        self.bucket = bucket

    def __call__(self, url: str, _storage_options: Mapping[str, object]) -> LocalStore:
        """Open a store."""
        return _FatalStore(url, self.bucket)


class _FatalStore(LocalStore):
    def __init__(self, url: str, bucket: str) -> None:
        super().__init__(url)
        self._bucket = bucket

    def create(self, handle: PartHandle) -> LocalPartStream:
        if handle.bucket == self._bucket and not handle.is_stage:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().create(handle)


class _Store(LocalStore):
    def __init__(self, url: str, faults: FaultyEncodes) -> None:
        super().__init__(url)
        self._faults = faults

    def create(self, handle: PartHandle) -> LocalPartStream:
        stream = super().create(handle)
        if not handle.is_stage:
            self._faults.act(stream)
        return stream
