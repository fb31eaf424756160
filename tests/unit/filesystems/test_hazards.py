"""The hazards that the rules of the local store answer, each reproduced with bare system calls first."""

from __future__ import annotations

import fcntl
import os
from functools import partial
from typing import TYPE_CHECKING

import pytest

from partfile.errors import CommitConflict, LeaseUnavailable
from partfile.stores.local.posix import PosixCalls
from partfile.stores.local.store import LocalStore
from partfile.testing.faults import ActAt, CrashAt, SimulatedCrash, TrackedCalls, intercept
from partfile.testing.store import new_part

if TYPE_CHECKING:
    from pathlib import Path

    from partfile.stores.base import PartHandle

DATA, ZOMBIE = b"valid", b" and what a zombie adds"


def test_hazard_a_descriptor_opened_before_the_rename_reaches_the_finished_file(tmp_path: Path) -> None:
    """Hazard: the lock alone does not stop a zombie that opened the part before it was published."""
    (tmp_path / "part.in-progress").write_bytes(DATA)
    zombie = os.open(tmp_path / "part.in-progress", os.O_WRONLY | os.O_APPEND)
    (tmp_path / "part.in-progress").rename(tmp_path / "part")
    fcntl.flock(zombie, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.write(zombie, ZOMBIE)
    os.close(zombie)
    assert (tmp_path / "part").read_bytes() == DATA + ZOMBIE


@pytest.mark.parametrize("call", ["stat_name", "open_existing", "lock"])
def test_a_zombie_that_opened_before_the_publication_is_refused(call: str, tmp_path: Path) -> None:
    """Answer: published while the zombie stands just before or after opening or locking, the part is not resumed."""
    for when in ("before", "after"):
        base = tmp_path / when
        with LocalStore(str(base)) as store:
            handle = _part(store)
            action = ActAt(1, partial(store.publish, handle, "auto"), when, only={call})
            with LocalStore(str(base), calls=intercept(PosixCalls(), action)) as zombie:
                if (call, when) == ("lock", "after"):
                    # The zombie has the lock, so the publication copies the part and leaves it alone.
                    zombie.resume(handle).write(ZOMBIE)
                else:
                    with pytest.raises(LeaseUnavailable):
                        zombie.resume(handle)
            assert store.read_file(handle.path_of(handle.name), 99) == DATA


def test_hazard_without_the_pending_name_a_finished_file_has_its_in_progress_name(tmp_path: Path) -> None:
    """Hazard: link then unlink of the in-progress name; dying between them leaves a door into the finished file."""
    os.link(_written(tmp_path / "part.in-progress"), tmp_path / "part")
    descriptor = os.open(tmp_path / "part.in-progress", os.O_WRONLY | os.O_APPEND)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert os.fstat(descriptor).st_ino == (tmp_path / "part.in-progress").stat().st_ino
    os.write(descriptor, ZOMBIE)
    os.close(descriptor)
    assert (tmp_path / "part").read_bytes() == DATA + ZOMBIE


def test_a_publication_that_died_leaves_no_in_progress_name(tmp_path: Path) -> None:
    """Answer: wherever publish dies, the final name and the in-progress name are never there together."""
    for n in range(1, 10):
        base, calls = tmp_path / str(n), TrackedCalls()
        with LocalStore(str(base)) as store:
            handle = _part(store)
            changing = {"rename", "link", "sync", "sync_directory", "unlink"}
            dying = intercept(calls, CrashAt(n, "after", only=changing))
            try:
                LocalStore(str(base), calls=dying).publish(handle, "auto")
            except SimulatedCrash:
                calls.die()
            names = set(store.list_names(handle.bucket))
            assert not {handle.name, handle.in_progress} <= names
            if handle.name in names:
                with pytest.raises(LeaseUnavailable):
                    store.resume(handle)


def test_hazard_rename_overwrites(tmp_path: Path) -> None:
    """Hazard: os.rename replaces a file of the new name without a word."""
    (tmp_path / "part").write_bytes(b"published before")
    _written(tmp_path / "part.pending").rename(tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == DATA


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", ["stat_name", "lock", "rename", "link"])
@pytest.mark.fault("S6")
def test_a_final_name_taken_at_the_last_moment_is_not_replaced(call: str, when: str, tmp_path: Path) -> None:
    """Answer: a foreign file that appears between any look and the link is a conflict, and survives."""
    path = tmp_path / "day=1" / "part-0000abcd-0-0"
    for n in range(1, 4):
        with LocalStore(str(tmp_path / f"{n}")) as store:
            handle = _part(store)
            path = tmp_path / f"{n}" / handle.path_of(handle.name)

            def appear(path: Path = path) -> None:
                if not path.exists():
                    path.write_bytes(b"foreign")

            calls = intercept(PosixCalls(), ActAt(n, appear, "before" if when == "before" else "after", only={call}))
            with LocalStore(str(tmp_path / f"{n}"), calls=calls) as publisher:
                try:
                    publisher.publish(handle, "auto")
                except CommitConflict:
                    assert path.read_bytes() == b"foreign"
                else:
                    assert path.read_bytes() == DATA


def test_hazard_a_fork_keeps_the_lock_alive(tmp_path: Path) -> None:
    """Hazard: a lock that is only dropped by close lives on in every child that inherited the descriptor."""
    mine = os.open(_written(tmp_path / "part"), os.O_RDWR)
    fcntl.flock(mine, fcntl.LOCK_EX)
    inherited = os.dup(mine)
    os.close(mine)
    other = os.open(tmp_path / "part", os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(inherited, fcntl.LOCK_UN)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(inherited)
    os.close(other)


def _written(path: Path) -> Path:
    path.write_bytes(DATA)
    return path


def _part(store: LocalStore) -> PartHandle:
    stream = store.create(new_part())
    stream.write(DATA)
    handle = stream.persist()
    stream.close()
    return handle
