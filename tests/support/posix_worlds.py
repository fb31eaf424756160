"""Local directories for the crash harness: processes that are killed there, and hosts that lose their power."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from crash_worlds import Process
from life_cycle import STAGED_ENDS, visible
from single_threaded_store import SingleThreadedStore

from partfile.snapshot.documents import METADATA
from partfile.stores.local.posix import CHANGING_CALLS
from partfile.testing.faults import TrackedCalls, intercept
from partfile.testing.power_loss import PowerLossCalls, survivor_below

if TYPE_CHECKING:
    from partfile.testing.faults import Interceptor
    from partfile.testing.power_loss import Survivor

# Where a sync costs nothing; what it does for durability is the model's to say.
_FAST = Path("/dev/shm")  # noqa: S108 - a directory of its own is made in it.


def temporary_directory(prefix: str) -> Path:
    """An empty directory on a fast disk; the caller deletes it."""
    return Path(tempfile.mkdtemp(prefix=prefix, dir=_FAST if _FAST.is_dir() else None))


class PosixPicture(NamedTuple):
    """A tree of files."""

    directories: tuple[str, ...]
    names: tuple[tuple[str, int], ...]
    """Path and number of the file; two names of one file have one number."""
    contents: tuple[bytes, ...]
    """By number."""

    @classmethod
    def of(cls, survivor: Survivor) -> PosixPicture:
        """The picture of what has survived."""
        numbers: dict[Any, int] = {}
        names = [(path, numbers.setdefault(file, len(numbers))) for path, file in sorted(survivor.names.items())]
        contents = tuple(survivor.contents.get(file, b"") for file in numbers)
        return cls(tuple(sorted(survivor.directories)), tuple(names), contents)

    def finished(self) -> dict[str, bytes]:
        """See ``Picture.finished``."""
        return visible({path: self.contents[number] for path, number in self.names})

    def staged(self) -> list[str]:
        """See ``Picture.staged``."""
        return [path for path, _ in self.names if path.endswith(STAGED_ENDS)]

    def lay_out(self, base: Path) -> None:
        """Make the files; to whoever goes by their ages, all of them are older than any link."""
        for directory in self.directories:
            (base / directory).mkdir()
        first: dict[int, Path] = {}
        for path, number in self.names:
            if number in first:
                os.link(first[number], base / path)
            else:
                first[number] = base / path
                first[number].write_bytes(self.contents[number])
                if first[number].name != METADATA:
                    os.utime(first[number], (0, 0))


class HalfWrites(TrackedCalls):
    """The system takes half of what it is given at first, so that a process can die in the middle of a write."""

    def __init__(self) -> None:
        super().__init__()
        self._is_rest = False

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write half, and the rest when it is called again."""
        taken = super().write(descriptor, data if self._is_rest else data[: (len(data) + 1) // 2])
        self._is_rest = not self._is_rest and taken < len(data)
        return taken


class LocalWorld:
    """A directory in which processes are killed."""

    changing_calls: ClassVar[frozenset[str]] = CHANGING_CALLS

    def __init__(self, picture: PosixPicture | None = None, calls: TrackedCalls | None = None) -> None:
        self._root = temporary_directory("partfile-crash-")
        self._calls = calls or HalfWrites()
        self.base = self._root / "base"
        if picture is not None:
            self.base.mkdir()
            picture.lay_out(self.base)

    def process(self, interceptor: Interceptor | None = None) -> Process:
        """See ``World.process``."""
        calls = self._calls if interceptor is None else intercept(self._calls, interceptor)
        return Process(str(self.base), lambda url, _options: SingleThreadedStore(url, calls=calls))

    def onlooker(self) -> Process:
        """See ``World.onlooker``."""
        return self.process()

    def now(self) -> PosixPicture:
        """See ``World.now``."""
        return PosixPicture.of(survivor_below(str(self.base))) if self.base.exists() else PosixPicture((), (), ())

    def survivors(self) -> list[PosixPicture]:
        """See ``World.survivors``."""
        return [self.now()]

    def end_process(self) -> None:
        """See ``World.end_process``; nothing is open after a process that ended by itself."""
        self._calls.die()

    def close(self) -> None:
        """See ``World.close``; nothing was written beside the base."""
        self._calls.die()
        beside = [path for path in self._root.iterdir() if path != self.base]
        shutil.rmtree(self._root)
        assert beside == []


class PowerlessWorld(LocalWorld):
    """A directory on a host that loses its power: what has not been synced may be there or not."""

    def __init__(self, picture: PosixPicture | None = None) -> None:
        self._model = PowerLossCalls()
        super().__init__(picture, self._model)
        # The model watches what is below the first directory that is opened.
        self.base.mkdir(exist_ok=True)
        self._model.close(self._model.open_base(str(self.base)))

    def survivors(self) -> list[PosixPicture]:
        """See ``World.survivors``."""
        return list(dict.fromkeys([self.now(), *map(PosixPicture.of, self._model.survivors())]))

    def close(self) -> None:
        """See ``World.close``."""
        self._model.stop()
        super().close()


class Local:
    """Directories in which processes are killed."""

    def world(self, picture: PosixPicture | None = None) -> LocalWorld:
        """See ``Kind.world``."""
        return LocalWorld(picture)


class Powerless:
    """Directories on hosts that lose their power."""

    def world(self, picture: PosixPicture | None = None) -> PowerlessWorld:
        """See ``Kind.world``."""
        return PowerlessWorld(picture)
