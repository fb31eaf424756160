"""Which generation a driver held last: another one is begun between two batches only right after that one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.sink.beginning import StartTerms

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.sink.coordinator import SinkCoordinator
    from partfile.sink.planning import SinkSnapshot


class Succession:
    """Knows the newest generation of one driver, none at first."""

    def __init__(self) -> None:
        self._last: int | None = None
        """Held, now or before."""
        self._fences: frozenset[str] = frozenset()
        """Nonces of fences tried after that one was held: the store may have made one and not said so."""

    def note(self, coordinator: SinkCoordinator) -> None:
        """Take in which generation was begun, or the fences by which one may have been.

        Args:
            coordinator: Was to hold it.
        """
        held = coordinator.held_generation
        if held is None:
            self._fences |= coordinator.attempted_fences
        else:
            self._last, self._fences = held, frozenset()

    def begin(
        self, coordinator: SinkCoordinator, now_ms: int, is_wanted: Callable[[SinkSnapshot | None], bool]
    ) -> bool:
        """Begin a generation after the last one of this driver, if the newest checkpoint is as wanted.

        Args:
            coordinator: Is to hold it.
            now_ms: The time, in milliseconds since the epoch.
            is_wanted: Judges what the newest checkpoint holds; None if there is none.

        Returns:
            Whether it was begun.

        Raises:
            Fenced: Somebody else has begun a generation since then; only what this driver left is ended here.
        """
        if not is_wanted(coordinator.look()):
            return False
        # No older checkpoint is gone back to: only a batch shows whether Spark has gone back as well.
        terms = StartTerms(succeeding=self._last, own_fences=self._fences, goes_back=False)
        try:
            coordinator.start(lambda _stands: None, now_ms, terms)
        finally:
            self.note(coordinator)
        return True
