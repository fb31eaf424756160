"""What a cancellation closes, it closes once."""

from __future__ import annotations

import threading

import pytest

from partfile.errors import SnapshotCancelled
from partfile.snapshot.strategy import CloseableRegistry


class Door:
    """Counts how often it is closed, in one order for all doors."""

    def __init__(self, log: list[Door], error: Exception | None = None) -> None:
        self.log = log
        self.error = error

    def close(self) -> None:
        """Note it."""
        self.log.append(self)
        if self.error is not None:
            raise self.error


@pytest.mark.item("SS-07")
def test_closing_closes_each_once_and_the_newest_first() -> None:
    """What is registered is closed by the registry; a second close does nothing."""
    log: list[Door] = []
    registry, doors = CloseableRegistry(), [Door(log), Door(log)]
    for door in doors:
        registry.register(door)
    assert not registry.closed
    registry.close()
    registry.close()
    assert log == doors[::-1]
    assert registry.closed


@pytest.mark.item("SS-07")
def test_what_was_unregistered_is_not_closed() -> None:
    """After unregistering it is the owner's again."""
    log: list[Door] = []
    registry, door = CloseableRegistry(), Door(log)
    registry.register(door)
    registry.unregister(door)
    registry.close()
    assert log == []


@pytest.mark.item("SS-07")
def test_a_late_end_is_noticed() -> None:
    """Unregistering after the registry was closed raises, and so does a second unregistering."""
    registry, door = CloseableRegistry(), Door([])
    registry.register(door)
    registry.close()
    with pytest.raises(SnapshotCancelled, match="not registered any more"):
        registry.unregister(door)


@pytest.mark.item("SS-07")
def test_registering_with_a_closed_registry_closes_at_once() -> None:
    """A stream that is opened too late does not stay open."""
    log: list[Door] = []
    registry, door = CloseableRegistry(), Door(log)
    registry.close()
    with pytest.raises(SnapshotCancelled):
        registry.register(door)
    assert log == [door]


@pytest.mark.item("SS-07")
def test_an_error_does_not_keep_the_others_open() -> None:
    """All are closed although one raises; its error comes out."""
    log: list[Door] = []
    registry = CloseableRegistry()
    doors = [Door(log), Door(log, OSError("stuck")), Door(log)]
    for door in doors:
        registry.register(door)
    with pytest.raises(OSError, match="stuck"):
        registry.close()
    assert len(log) == 3


@pytest.mark.item("SS-07")
def test_owner_and_cancellation_never_both_get_it() -> None:
    """Of an owner that unregisters and a cancellation at the same moment exactly one closes."""
    for _ in range(200):
        log: list[Door] = []
        registry, door = CloseableRegistry(), Door(log)
        registry.register(door)
        barrier = threading.Barrier(2)
        owned: list[Door] = []

        def end(
            registry: CloseableRegistry = registry,
            door: Door = door,
            barrier: threading.Barrier = barrier,
            owned: list[Door] = owned,
        ) -> None:
            barrier.wait()
            try:
                registry.unregister(door)
            except SnapshotCancelled:
                return
            owned.append(door)

        thread = threading.Thread(target=end)
        thread.start()
        barrier.wait()
        registry.close()
        thread.join()
        assert len(log) + len(owned) == 1
