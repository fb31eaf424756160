"""One mechanism for faults: wrap any port object, and see, delay, fail or kill any of its calls.

    store = intercept(LocalStore(base), Recorder())                 # calls of the port
    store = LocalStore(base, calls=intercept(PosixCalls(), KillAt(7)))   # system calls below it

An interceptor counts the calls of public methods from 1, over every object that it is wrapped around. Wrappers nest.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Self, TypeVar, cast

from partfile.stores.base import PartStream
from partfile.stores.local.posix import PosixCalls

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import TracebackType

    from partfile.stores.local.posix import Access


When = Literal["before", "after"]
_Target = TypeVar("_Target")


class Call(NamedTuple):
    """One call of a public method."""

    name: str
    arguments: tuple[object, ...]
    keywords: dict[str, object]


class Interceptor(Protocol):
    """Decides what becomes of a call."""

    def around(self, call: Call, proceed: Callable[[], object]) -> object:
        """Return the result of the call, or raise; ``proceed`` does it."""


class SimulatedCrash(BaseException):
    """The process is dead as far as storage goes. No Exception, so that no handler catches it by accident."""


def intercept(target: _Target, interceptor: Interceptor) -> _Target:
    """Return an object that behaves as ``target``, with each call of a public method led through ``interceptor``.

    Part streams that it returns are wrapped likewise; what a generator does after its call returned is not seen.
    """
    return cast("_Target", _Intercepted(target, interceptor))


class _Intercepted:
    def __init__(self, target: object, interceptor: Interceptor) -> None:
        self._target = target
        self._interceptor = interceptor

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        attribute = getattr(self._target, name)
        if not callable(attribute):
            return attribute

        def around(*arguments: object, **keywords: object) -> object:
            call = Call(name, arguments, keywords)
            result = self._interceptor.around(call, lambda: attribute(*arguments, **keywords))
            return intercept(result, self._interceptor) if _is_wrapped(result) else result

        return around

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_WRAPPED: dict[type, bool] = {}
"""Types of results. What a protocol asks of a value takes long, and every call of a crash test asks."""


def _is_wrapped(result: object) -> bool:
    kind = type(result)
    if kind not in _WRAPPED:
        _WRAPPED[kind] = isinstance(result, PartStream | _Intercepted)
    return _WRAPPED[kind]


class Numbered:
    """Base of interceptors that count calls, of some methods or of all.

    Args:
        only: The methods that count; None for all of them.
    """

    def __init__(self, only: Collection[str] | None) -> None:
        self._only = only
        self._count = 0
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """The number of calls so far that count."""
        return self._count

    def number(self, call: Call) -> int | None:
        """The number of this call; None if it does not count."""
        if self._only is not None and call.name not in self._only:
            return None
        with self._lock:
            self._count += 1
            return self._count


class Recorder(Numbered):
    """Keeps every call in the order in which they were made.

    Args:
        only: The methods that are recorded; None for all of them.
    """

    def __init__(self, only: Collection[str] | None = None) -> None:
        super().__init__(only)
        self.calls: list[Call] = []

    @property
    def names(self) -> list[str]:
        """The methods that were called, in order."""
        return [call.name for call in self.calls]

    def around(self, call: Call, proceed: Callable[[], object]) -> object:
        """Note the call, then do it."""
        if self.number(call):
            self.calls.append(call)
        return proceed()


class FailAt(Numbered):
    """Fails one call, or all from one on.

    Args:
        n: The call that fails, counted from 1.
        error: What it raises.
        applied: Whether the call is done all the same: the reply was lost.
        persistent: Whether every later call fails likewise.
        only: The methods that count; None for all of them.
    """

    def __init__(
        self,
        n: int,
        error: BaseException,
        *,
        applied: bool = False,
        persistent: bool = False,
        only: Collection[str] | None = None,
    ) -> None:
        super().__init__(only)
        self._n = n
        self._error = error
        self._applied = applied
        self._persistent = persistent

    def around(self, call: Call, proceed: Callable[[], object]) -> object:
        """Fail the call if it is its turn."""
        number = self.number(call)
        if number is None or not (number == self._n or (self._persistent and number > self._n)):
            return proceed()
        if self._applied:
            proceed()
        raise self._error


class SkipAt(Numbered):
    """Reports one call as done without doing it: a disk that lies, or a line of code that was forgotten.

    Args:
        n: The call, counted from 1; only one whose result is not used.
        only: The methods that count; None for all of them.
    """

    def __init__(self, n: int, *, only: Collection[str] | None = None) -> None:
        super().__init__(only)
        self._n = n

    def around(self, call: Call, proceed: Callable[[], object]) -> object:
        """Do the call unless it is its turn."""
        return None if self.number(call) == self._n else proceed()


class ActAt(Numbered):
    """Does something just before or after one call: the seam of every interleaving test.

    Args:
        n: The call, counted from 1.
        action: What to do; it may use the store itself, through another wrapper.
        when: Before or after the call.
        only: The methods that count; None for all of them.
    """

    def __init__(
        self, n: int, action: Callable[[], object], when: When = "before", *, only: Collection[str] | None = None
    ) -> None:
        super().__init__(only)
        self._n = n
        self._action = action
        self._when = when

    def around(self, call: Call, proceed: Callable[[], object]) -> object:
        """Do the call and, if it is its turn, the action."""
        is_turn = self.number(call) == self._n
        if is_turn and self._when == "before":
            self._action()
        try:
            return proceed()
        finally:
            # Also after a call that failed by itself.
            if is_turn and self._when == "after":
                self._action()


class DelayAt(ActAt):
    """Waits at one call until ``wait`` returns: pass ``Event.wait`` or ``Barrier.wait``, or a sleep of your own."""

    def __init__(
        self, n: int, wait: Callable[[], object], when: When = "before", *, only: Collection[str] | None = None
    ) -> None:
        super().__init__(n, wait, when, only=only)


class KillAt(ActAt):
    """Kills its own process by SIGKILL at one call."""

    def __init__(self, n: int, when: When = "before", *, only: Collection[str] | None = None) -> None:
        super().__init__(n, lambda: os.kill(os.getpid(), signal.SIGKILL), when, only=only)


class StopAt(ActAt):
    """Stops its own process by SIGSTOP at one call, until a test sends it SIGCONT."""

    def __init__(self, n: int, when: When = "before", *, only: Collection[str] | None = None) -> None:
        super().__init__(n, lambda: os.kill(os.getpid(), signal.SIGSTOP), when, only=only)


class CrashAt(Numbered):
    """Raises SimulatedCrash at one call and at every later one, so that no ``finally`` can clean up.

    Args:
        n: The call, counted from 1.
        when: Whether the call itself is done.
        only: The methods that count for ``n``; once crashed, every call raises.
    """

    def __init__(self, n: int, when: When = "before", *, only: Collection[str] | None = None) -> None:
        super().__init__(only)
        self._n = n
        self._when = when
        self.has_crashed = False

    def around(self, call: Call, proceed: Callable[[], object]) -> object:
        """Do the call, unless the process is dead by now."""
        if not self.has_crashed and self.number(call) == self._n:
            self.has_crashed = True
            if self._when == "after":
                with suppress(Exception):
                    proceed()
        if self.has_crashed:
            raise SimulatedCrash(f"at call {self._n}, {self._when} it; now in {call.name}")
        return proceed()


def count_calls(work: Callable[[Recorder], object], only: Collection[str] | None = None) -> int:
    """Run ``work`` once with a recorder and return how many calls it made: the range for a loop over kill points."""
    recorder = Recorder(only)
    work(recorder)
    return len(recorder.calls)


def both_sides(calls: int) -> list[tuple[int, When]]:
    """Every kill point of so many calls: before and after each."""
    sides: tuple[When, When] = ("before", "after")
    return [(number, when) for number in range(1, calls + 1) for when in sides]


class LateAt(Numbered):
    """Fails one call, which is done all the same, but later: a request that was given up and was still on its way.

    Args:
        n: The call, counted from 1.
        error: What it raises.
        gap: Before how many calls after that one it is done, at least 1.
        only: The methods that count for ``n``; every call counts for ``gap``.
    """

    def __init__(self, n: int, error: Exception, *, gap: int, only: Collection[str] | None = None) -> None:
        super().__init__(only)
        self._n = n
        self._error = error
        self._left = gap
        self._late: Callable[[], object] | None = None

    def around(self, call: Call, proceed: Callable[[], object]) -> object:
        """Fail the call if it is its turn, and do it once its time has come."""
        if self.number(call) == self._n:
            self._late = proceed
            raise self._error
        self._left -= self._late is not None
        if self._late is not None and self._left == 0:
            # Its result is not reported.
            with suppress(Exception):
                self._late()
        return proceed()


class TrackedCalls(PosixCalls):
    """Remembers open descriptors, so that a test can count leaks or play the dying process."""

    def __init__(self) -> None:
        self.open_descriptors: set[int] = set()

    def open_base(self, path: str) -> int:
        """Open the base, and note its descriptor."""
        return self._track(super().open_base(path))

    def open_directory(self, directory: int, segment: str) -> int:
        """Open a directory below another one, and note its descriptor."""
        return self._track(super().open_directory(directory, segment))

    def create(self, directory: int, name: str) -> int:
        """Create a file, and note its descriptor."""
        return self._track(super().create(directory, name))

    def open_existing(self, directory: int, name: str, access: Access) -> int:
        """Open a file, and note its descriptor."""
        return self._track(super().open_existing(directory, name, access))

    def close(self, descriptor: int) -> None:
        """Close a descriptor, which is open no more."""
        self.open_descriptors.discard(descriptor)
        super().close(descriptor)

    def die(self) -> None:
        """Close everything as the kernel does for a dead process, which also frees its locks."""
        while self.open_descriptors:
            os.close(self.open_descriptors.pop())

    def _track(self, descriptor: int) -> int:
        self.open_descriptors.add(descriptor)
        return descriptor
