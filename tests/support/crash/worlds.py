"""Places where the crash harness kills processes, and pictures of what they leave; local directories."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from partfile.sink.coordinator import Runtime
from partfile.snapshot.documents import METADATA
from partfile.stores.local.posix import CHANGING_CALLS
from partfile.testing.faults import TrackedCalls, intercept
from partfile.testing.power_loss import PowerLossCalls, survivor_below
from support.sinks.life_cycle import STAGED_ENDS, SingleThreadedStore, make_sink, rows_of, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from partfile.sink.file_sink import FileSink
    from partfile.sink.plan import SinkSnapshot
    from partfile.testing.faults import Call, Interceptor
    from partfile.testing.power_loss import Survivor


# What the crash harness asks of a place with a store: processes that work there, and pictures of what they leave.


class Picture(Protocol):
    """Everything that is left at one moment: a value that can be compared and hashed."""

    def __hash__(self) -> int: ...

    def finished(self) -> dict[str, bytes]:
        """What any reader sees: the visible files below the base, cut to their sidecar where there is one."""

    def staged(self) -> list[str]:
        """What is there of parts that are not finished."""


AnyPicture = TypeVar("AnyPicture", bound=Picture)


class Process(NamedTuple):
    """One process that works with a place: what it is given to open stores with."""

    base: str
    open_store: Callable[[str, Any], Any]
    told: Callable[[], object] = lambda: None
    """Called whenever a caller has been told that a checkpoint is complete."""
    has_consumers: bool = False
    """Whether its sinks are told that consumers take files."""

    def sink(self, **options: Any) -> FileSink:
        """A sink on the base of the place; see ``life_cycle.make_sink``."""
        fixed: dict[str, Any] = {"open_store": self.open_store, "on_progress": lambda _progress: self.told()}
        if self.has_consumers:
            fixed["consumers_take_files"] = True
        return make_sink(self.base, **(fixed | options))

    def owes(self) -> bool:
        """Whether a part of the newest checkpoint still waits to be published, or a staging file to be encoded."""
        runtime = Runtime(self.sink().settings, "life")
        try:
            state = runtime.coordinator.look()
            newest = runtime.storage.newest_completed_id()
            is_owed = bool(state and state.pending) and not runtime.storage.is_published(newest)
            return is_owed or bool(state and state.closed)
        finally:
            runtime.close()

    def position(self) -> int:
        """How many rows the newest checkpoint holds."""
        stands = self.stands()
        position = stands.position.user_position if stands else None
        assert position is None or isinstance(position, int)
        return position or 0

    def stands(self) -> SinkSnapshot | None:
        """What the newest checkpoint holds; None before the first. Changes nothing."""
        runtime = Runtime(self.sink().settings, "life")
        try:
            return runtime.coordinator.look()
        finally:
            runtime.close()


class World(Protocol[AnyPicture]):
    """One place with a store."""

    @property
    def changing_calls(self) -> frozenset[str]:
        """The calls that an interceptor sees between which nothing changes."""

    def process(self, interceptor: Interceptor | None = None) -> Process:
        """A process that works here, with its calls led through the interceptor."""

    def onlooker(self) -> Process:
        """A process that is told nothing but the truth."""

    def now(self) -> AnyPicture:
        """What is there."""

    def survivors(self) -> list[AnyPicture]:
        """Everything that a crash at this moment can leave; the first is what is there."""

    def take(self) -> dict[str, bytes]:
        """Take every finished file away, as a consumer does; a sidecar stays."""

    def end_process(self) -> None:
        """The processes are gone: what the kernel frees for a dead process is free."""

    def close(self) -> None:
        """Throw it all away."""


class Kind(Protocol[AnyPicture]):
    """Makes places of one kind."""

    def world(self, picture: AnyPicture | None = None) -> World[AnyPicture]:
        """A place as a picture shows it, or an empty one."""


@dataclass(frozen=True, slots=True)
class Moment(Generic[AnyPicture]):
    """What a crash can leave, and when."""

    picture: AnyPicture
    when: str
    acknowledged: int
    """Rows of which a caller had been told by then that they are safe."""


class Camera(Generic[AnyPicture]):
    """An interceptor that takes a picture of all that a crash can leave, before the first call and after each.

    Between two calls that change something nothing changes, so these are all the moments there are. Threads take turns:
    a picture must not be half of before and half of after what another one does.

    Args:
        world: The place.
        acknowledged: Rows that are known to be safe at the beginning.
    """

    def __init__(self, world: World[AnyPicture], acknowledged: int = 0) -> None:
        self._world = world
        self._turn = threading.RLock()
        self._acknowledged = acknowledged
        self._moments: dict[AnyPicture, Moment[AnyPicture]] = {}
        self.calls: list[str] = []
        """The changing calls, in order."""
        self.look("before the first call")

    @property
    def moments(self) -> list[Moment[AnyPicture]]:
        """Each different picture, when it was seen first, and what had been promised when it was seen last."""
        return list(self._moments.values())

    def around(self, call: Call, proceed: Callable[[], object]) -> object:
        """Do the call, then look."""
        if call.name not in self._world.changing_calls:
            return proceed()
        with self._turn:
            try:
                return proceed()
            finally:
                self.calls.append(call.name)
                self.look(f"after call {len(self.calls)}, {call.name}")

    def look(self, when: str) -> None:
        """Take every picture that there is at this moment."""
        for picture in self._world.survivors():
            self._note(picture, when)

    def _note(self, picture: AnyPicture, when: str) -> None:
        known = self._moments.get(picture)
        if known is None or known.acknowledged < self._acknowledged:
            first = when if known is None else f"{known.when}, or {when}"
            self._moments[picture] = Moment(picture, first, self._acknowledged)

    def process(self) -> Process:
        """A process that works under this camera."""
        return self._world.process(self)._replace(told=self._told)

    def _told(self) -> None:
        self._acknowledged = max(self._acknowledged, self._world.onlooker().position())


class Consumed(Camera[AnyPicture]):
    """A camera beside a consumer that takes each finished file the instant it is visible.

    Args:
        world: The place.
        acknowledged: Rows that are known to be safe at the beginning.
        taken: The rows that the consumer has by then.
        takes_pictures: Whether it is a camera as well. What a power loss leaves is many pictures, after each call.
    """

    def __init__(
        self,
        world: World[AnyPicture],
        acknowledged: int = 0,
        taken: Mapping[str, int] | None = None,
        *,
        takes_pictures: bool = True,
    ) -> None:
        self.taken = Counter(taken)
        """How often the consumer has each row."""
        self.taken_by: dict[AnyPicture, Counter[str]] = {}
        """The same at each moment."""
        self._takes_pictures = takes_pictures
        super().__init__(world, acknowledged)

    def look(self, when: str) -> None:
        """Let the consumer take what is finished, then take the picture."""
        self.taken += rows_of(self._world.take())
        if self._takes_pictures:
            super().look(when)

    def _note(self, picture: AnyPicture, when: str) -> None:
        super()._note(picture, when)
        self.taken_by[picture] = Counter(self.taken)

    def process(self) -> Process:
        """See ``Camera.process``."""
        return super().process()._replace(has_consumers=True)


# Local directories for the crash harness: processes that are killed there, and hosts that lose their power.

# Where a sync costs nothing; what it does for durability is the model's to say.
_FAST = Path("/dev/shm")  # noqa: S108 - a directory of its own is made in it.


def temporary_directory(prefix: str) -> Path:
    """An empty directory on a fast disk; the caller deletes it."""
    return Path(tempfile.mkdtemp(prefix=prefix, dir=_FAST if os.access(_FAST, os.W_OK) else None))


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
        """Make the files; by their ages, all of them are older than any checkpoint."""
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

    def take(self) -> dict[str, bytes]:
        """See ``World.take``."""
        taken = self.now().finished()
        for path in taken:
            (self.base / path).unlink()
        return taken

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

    def take(self) -> dict[str, bytes]:
        """See ``World.take``; the consumer syncs the directory, or a power loss would give the file back to it."""
        taken = self.now().finished()
        for path in taken:
            directory = os.open((self.base / path).parent, os.O_RDONLY)
            self._model.unlink(directory, Path(path).name)
            self._model.sync_directory(directory)
            os.close(directory)
        return taken

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
