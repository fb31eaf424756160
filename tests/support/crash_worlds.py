"""What the crash harness asks of a place with a store: processes that work there, and pictures of what they leave."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from life_cycle import make_sink

from partfile.sink.coordinator import Runtime

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.sink.file_sink import FileSink
    from partfile.sink.plan import SinkSnapshot
    from partfile.testing.faults import Call, Interceptor


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
    """Called whenever somebody has been told that a checkpoint is complete."""

    def sink(self, **options: Any) -> FileSink:
        """A sink on the base of the place; see ``life_cycle.make_sink``."""
        fixed: dict[str, Any] = {"open_store": self.open_store, "on_progress": lambda _progress: self.told()}
        return make_sink(self.base, **(fixed | options))

    def owes(self) -> bool:
        """Whether a part of the newest checkpoint still waits to be published, or a stage to be encoded."""
        runtime = Runtime(self.sink().settings, "life")
        try:
            state = runtime.coordinator.look()
            newest = runtime.storage.newest_linked_id()
            is_owed = bool(state and state.pending) and not runtime.storage.is_published(newest)
            return is_owed or bool(state and state.rolled)
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
    """Rows of which somebody had been told by then that they are safe."""


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
            known = self._moments.get(picture)
            if known is None or known.acknowledged < self._acknowledged:
                first = when if known is None else f"{known.when}, or {when}"
                self._moments[picture] = Moment(picture, first, self._acknowledged)

    def process(self) -> Process:
        """A process that works under this camera."""
        return self._world.process(self)._replace(told=self._told)

    def _told(self) -> None:
        self._acknowledged = max(self._acknowledged, self._world.onlooker().position())
