"""File systems of fsspec for the crash harness: in memory, and over local files."""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import fsspec

from partfile.sink.coordinator import Runtime
from partfile.stores.fsspec import store
from partfile.stores.fsspec.client import CHANGING_CALLS, FsspecCalls
from partfile.stores.fsspec.schemes import FsspecUrl
from partfile.stores.fsspec.store import FsspecStore
from partfile.stores.parts import FsspecStaging
from partfile.testing.faults import intercept
from support.crash.worlds import LocalWorld, PosixPicture, Process
from support.sinks.life_cycle import STAGED_ENDS, rows_of, visible

if TYPE_CHECKING:
    from collections import Counter

    from partfile.testing.faults import Interceptor


MAX_BYTES = 1 << 20


def rows_owed_and_staged(process: Process) -> list[Counter[str]]:
    """The rows of each part that the next start publishes: the newest checkpoint owes it, and it is staged."""
    runtime = Runtime(process.sink().settings, "life")
    try:
        state = runtime.coordinator.look()
        if state is None or runtime.storage.is_published(runtime.storage.newest_completed_id()):
            return []
        parts = [pending.part for pending in state.pending]
    finally:
        runtime.close()
    rows = []
    with process.open_store(process.base, None) as opened:
        for part in parts:
            staging = FsspecStaging.of(part)
            if staging is not None and opened.file_exists(part.path_of(staging.file)):
                data = opened.read_file(part.path_of(staging.file), MAX_BYTES)
                rows.append(rows_of({part.name: data}))
    return rows


def _process(url: str, interceptor: Interceptor | None) -> Process:
    """A process that finds out anew what the file system does."""
    store._LEARNED = store._Learned()

    def opened(place: str, options: Any) -> FsspecStore:
        calls = FsspecCalls(FsspecUrl.of(place), options or {})
        return FsspecStore(place, calls=calls if interceptor is None else intercept(calls, interceptor))

    return Process(url, opened)


class OnDisk:
    """Directories that a file system of fsspec shows.

    Args:
        url: Of a path, where ``{}`` is.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    def world(self, picture: PosixPicture | None = None) -> DiskWorld:
        """See ``Kind.world``."""
        return DiskWorld(self._url, picture)


class DiskWorld(LocalWorld):
    """One such directory."""

    changing_calls: ClassVar[frozenset[str]] = CHANGING_CALLS

    def __init__(self, url: str, picture: PosixPicture | None = None) -> None:
        super().__init__(picture)
        self._url = url.format(self.base)

    def process(self, interceptor: Interceptor | None = None) -> Process:
        """See ``World.process``."""
        return _process(self._url, interceptor)


class MemoryPicture(NamedTuple):
    """The files of a place in memory."""

    files: tuple[tuple[str, bytes], ...]
    """Path below the base and content."""

    def finished(self) -> dict[str, bytes]:
        """See ``Picture.finished``."""
        return visible(dict(self.files))

    def staged(self) -> list[str]:
        """See ``Picture.staged``."""
        return [path for path, _ in self.files if path.endswith(STAGED_ENDS)]


class InMemory:
    """Places in the memory of this process, which are published as on ``gs://`` and ``abfs://``."""

    def world(self, picture: MemoryPicture | None = None) -> MemoryWorld:
        """See ``Kind.world``."""
        return MemoryWorld(picture)


class MemoryWorld:
    """One such place."""

    changing_calls: ClassVar[frozenset[str]] = CHANGING_CALLS
    _numbers = count(1)

    def __init__(self, picture: MemoryPicture | None = None) -> None:
        self._files = fsspec.filesystem("memory")
        self._base = f"/crash-{next(self._numbers)}/base"
        for path, data in picture.files if picture is not None else ():
            self._files.pipe_file(f"{self._base}/{path}", data)

    def process(self, interceptor: Interceptor | None = None) -> Process:
        """See ``World.process``."""
        return _process(f"memory:/{self._base}", interceptor)

    def onlooker(self) -> Process:
        """See ``World.onlooker``."""
        return self.process()

    def now(self) -> MemoryPicture:
        """See ``World.now``."""
        paths = sorted(self._files.find(self._base))
        return MemoryPicture(
            tuple((path.removeprefix(f"{self._base}/"), bytes(self._files.cat_file(path))) for path in paths)
        )

    def survivors(self) -> list[MemoryPicture]:
        """See ``World.survivors``."""
        return [self.now()]

    def take(self) -> dict[str, bytes]:
        """See ``World.take``."""
        taken = self.now().finished()
        for path in taken:
            self._files.rm_file(f"{self._base}/{path}")
        return taken

    def end_process(self) -> None:
        """See ``World.end_process``: no process holds anything."""

    def close(self) -> None:
        """See ``World.close``; nothing was written beside the base."""
        place = self._base.removesuffix("/base")
        beside = [path for path in self._files.find(place) if not path.startswith(f"{self._base}/")]
        with suppress(FileNotFoundError):
            self._files.rm(place, recursive=True)
        assert beside == []
