"""Processes that take turns, a storage call at a time, in an order drawn from a seed, and what they see of the disk."""

from __future__ import annotations

import glob
import os
import threading
from typing import TYPE_CHECKING

from partfile.recovery.inspect.checkpoints import doubtful_ids, read_checkpoint_log, states_of
from partfile.recovery.inspect.places import Place, jobs_in
from partfile.recovery.ownership import open_stores
from partfile.snapshot.documents import FileHandle
from partfile.stores.base import STATE_DIRECTORY
from partfile.testing.faults import SimulatedCrash, TrackedCalls, intercept

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

    from partfile.sink.plan import SinkSnapshot
    from partfile.stores.local.posix import PosixCalls
    from partfile.testing.faults import Call


# Processes that take turns: one storage call at a time, in an order drawn from a seed, so that a run can be repeated.
#
# Each process is a thread that waits before each of its calls. Killing one makes every further call of it fail, and
# frees what the kernel frees for a dead process.

_STUCK_AFTER_S = 240
_SELDOM = 0.001
_SLEEPS = dict.fromkeys(("link", "rename", "truncate", "unlink", "lock", "write"), 0.02)
"""How likely a process is to fall asleep before a call."""
_LONGEST_SLEEP = 3000
"""In steps of others."""


class Actor:
    """One process.

    Args:
        name: For messages.
        work: What it does, with the system calls that it is given.
        calls: Its system calls.
    """

    def __init__(self, name: str, work: Callable[[Actor], object], calls: TrackedCalls) -> None:
        self.name = name
        self.is_done = False
        self.is_killed = False
        self.error: BaseException | None = None
        self.last_call: Call | None = None
        """The call that it has made last."""
        self.next_call: Call | None = None
        """The call that it waits to make."""
        self.wakes_at = 0
        """The step before which it sleeps."""
        self.is_brisk = False
        """See ``Schedule.start``."""
        self._work = work
        self._tracked = calls
        self._go = _closed_gate()
        self._back = _closed_gate()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def calls(self) -> PosixCalls:
        """Its system calls, each of which waits for its turn."""
        return intercept(self._tracked, self)

    def around(self, call: Call, proceed: Callable[[], object]) -> object:
        """Wait for a turn, then do the call; a dead process does nothing."""
        self.next_call = call
        self.pause()
        self.last_call = call
        return proceed()

    def pause(self) -> None:
        """Let others go on until the next turn."""
        if not self.is_killed:
            self._back.release()
            self._go.acquire()
        if self.is_killed:
            raise SimulatedCrash(f"{self.name} is dead")

    def step(self) -> None:
        """Let it go on up to its next call, or to its end."""
        self.last_call = self.next_call = None
        self._go.release()
        if not self._back.acquire(timeout=_STUCK_AFTER_S):
            raise AssertionError(f"{self.name} is stuck after {self.last_call}")
        if self.is_done:
            self._thread.join()
            self._tracked.die()

    def kill(self) -> None:
        """End it where it stands."""
        if not self.is_done:
            self.is_killed = True
            self.step()

    def _run(self) -> None:
        self._go.acquire()
        try:
            if not self.is_killed:
                self._work(self)
        except SimulatedCrash:
            pass
        except BaseException as error:  # noqa: BLE001 - judged by who schedules it.
            self.error = error
        finally:
            self.is_done = True
            self._back.release()


def _closed_gate() -> threading.Lock:
    """Opened by one thread and passed by another, in turn; a semaphore is Python code, and slower."""
    gate = threading.Lock()
    gate.acquire()
    return gate


class Schedule:
    """Actors, of which one at a time goes on.

    Args:
        rng: Draws who.
        make_calls: Makes the system calls of each of them.
    """

    def __init__(self, rng: random.Random, make_calls: Callable[[], TrackedCalls]) -> None:
        self._rng = rng
        self._make_calls = make_calls
        self.actors: list[Actor] = []
        """Those that are alive."""
        self.steps = 0

    def start(self, name: str, work: Callable[[Actor], object], *, is_brisk: bool = False) -> Actor:
        """Begin a process.

        Args:
            name: For messages.
            work: What it does.
            is_brisk: Whether it has as many turns as all others together: one that makes many calls is dead or
                overtaken before its end otherwise.
        """
        actor = Actor(name, work, self._make_calls())
        actor.is_brisk = is_brisk
        self.actors.append(actor)
        return actor

    def step(self) -> Actor:
        """Let one of them go on, rather one of the latest; who has ended is taken off.

        A process that is about to change something falls asleep at times, for long enough that others get far.
        """
        awake = [actor for actor in self.actors if actor.wakes_at <= self.steps]
        candidates = awake or [min(self.actors, key=lambda actor: actor.wakes_at)]
        brisk = [actor for actor in candidates if actor.is_brisk]
        if brisk and self._rng.random() < 0.5:
            candidates = brisk
        actor = self._rng.choice(candidates if self._rng.random() < 0.7 else candidates[-2:])
        self.steps += 1
        actor.step()
        if actor.is_done:
            self.actors.remove(actor)
        elif self._rng.random() < _SLEEPS.get(actor.next_call.name if actor.next_call else "", _SELDOM):
            actor.wakes_at = self.steps + self._rng.randrange(_LONGEST_SLEEP)
        return actor

    def kill(self, actor: Actor) -> None:
        """SIGKILL."""
        actor.kill()
        self.actors.remove(actor)


# What the processes of the model see of the disk: local files whose times are the steps of the schedule.


class ClockedCalls(TrackedCalls):
    """System calls after which a file was changed when the clock says so; what has no clock cannot be repeated.

    Args:
        now_ms: The clock of the disk, in milliseconds.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        super().__init__()
        self._now_ms = now_ms

    def create(self, directory: int, name: str) -> int:
        """See ``PosixCalls.create``."""
        descriptor = super().create(directory, name)
        self._touch(descriptor)
        return descriptor

    def write(self, descriptor: int, data: memoryview) -> int:
        """See ``PosixCalls.write``."""
        taken = super().write(descriptor, data)
        self._touch(descriptor)
        return taken

    def truncate(self, descriptor: int, length: int) -> None:
        """See ``PosixCalls.truncate``."""
        super().truncate(descriptor, length)
        self._touch(descriptor)

    def _touch(self, descriptor: int) -> None:
        changed_ns = self._now_ms() * 1_000_000
        os.utime(descriptor, ns=(changed_ns, changed_ns))


# Which staging files are below a base, and which of them a retained checkpoint needs; for the model.


def needed_files_in(base: Path) -> set[str]:
    """The paths of files that are called like staging files or runs of keys, relative to the base."""
    # After each call of a schedule; pathlib would take several times as long.
    return {
        *glob.glob("bucket=*/_*.in-progress", root_dir=base),  # noqa: PTH207
        *glob.glob(f"{STATE_DIRECTORY}/*/shared/*", root_dir=base),  # noqa: PTH207
    }


def unkept_files(base: Path, there: set[str]) -> list[str]:
    """The staging files and runs that are not there, although a retained checkpoint that counted names them as data."""
    place = Place(str(base))
    if not (base / STATE_DIRECTORY).exists():
        return []
    with open_stores(place) as stores:
        needed = [
            path
            for job in jobs_in(stores.checkpoints)
            for log in [read_checkpoint_log(stores.checkpoints, job)]
            for number, state in states_of(log).items()
            if number not in doubtful_ids(log)
            for path in _needed_by(state, f"{STATE_DIRECTORY}/{job.name}")
        ]
    return sorted(set(needed) - there)


def _needed_by(state: SinkSnapshot, directory: str) -> list[str]:
    """The staging files and runs of keys that a checkpoint names as data."""
    opened = [part.part for parts in state.open.values() for part in parts if part.staging_file]
    parts = [*opened, *(staging_file.part for staging_file in state.closed)]
    seen = state.position.seen_keys
    handles = [] if seen is None else [run.handle for run in seen.runs]
    runs = [f"{directory}/{handle.path}" for handle in handles if isinstance(handle, FileHandle)]
    return [*(part.path_of(part.in_progress) for part in parts), *runs]
