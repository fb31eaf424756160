"""The timer of a Spark driver between two batches: its turns close idle parts, and come again after storage failed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from partfile.filesystems.errors import Fenced, StoreError
from partfile.sink.backoff import wait_ms
from partfile.snapshot.timer import Timer

if TYPE_CHECKING:
    import threading

    from partfile.sink.settings import SinkSettings
    from partfile.sink.spark.identity import QueryRun

logger = logging.getLogger("partfile")


class Between(Protocol):
    """What a turn asks for; it holds the mutex then."""

    def close_due(self, run: QueryRun) -> bool:
        """Close what is due, in a new generation if a failure has ended the last one.

        Returns:
            False if there is nothing to come again for before the next batch.

        Raises:
            Fenced: Another driver has taken the sink over.
            StoreError: Storage failed; what was decided may or may not have happened.
        """

    def lose_generation(self) -> None:
        """Let go of the generation, and leave the timer alone."""

    def stop_for_good(self, run: QueryRun, error: Fenced) -> None:
        """Let go of everything, and begin nothing new in this run."""

    def release(self) -> None:
        """Let go of everything; the next batch restores."""


class IdleTimer:
    """Comes again and again from a batch on, until a turn or the sink ends it.

    Args:
        sink: Whose parts are closed.
        run: The run of the query that the parts are of.
        mutex: Of batches and the clean end. A turn that cannot have it at once is skipped.
        settings: The sink's options.
    """

    def __init__(self, sink: Between, run: QueryRun, mutex: threading.RLock, settings: SinkSettings) -> None:
        self._sink = sink
        self.run = run
        self._mutex = mutex
        self._settings = settings
        self._failures = 0
        """Turns in a row in which storage failed."""
        self._timer = Timer(self.turn, settings.clock, name="partfile-idle-timer")
        self.begin()

    def begin(self) -> None:
        """Have the next turn after one interval, also where the last turn has asked for none."""
        self._timer.set(self._after(self._interval_ms))

    def stop(self) -> None:
        """Begin no more turns. Waits for one that is under way, unless this is called by it."""
        self._timer.stop()

    def turn(self) -> int | None:
        """One turn.

        Returns:
            When the next is due, in milliseconds since the epoch; None if there is none before the next batch.
        """
        if not self._mutex.acquire(blocking=False):
            return self._after(self._interval_ms)
        try:
            return self._next()
        finally:
            self._mutex.release()

    def _next(self) -> int | None:
        uid = self._settings.uid
        try:
            goes_on = self._sink.close_due(self.run)
        except Fenced as error:
            logger.error("%s: fenced, the idle timer ends, and this query with its next batch: %s", uid, error)  # noqa: TRY400 - no trace needed
            self._sink.stop_for_good(self.run, error)
        except StoreError as error:
            # An idle stream has no next batch that would restore.
            self._sink.lose_generation()
            self._failures += 1
            left_ms = wait_ms(self._failures, self._interval_ms)
            logger.warning("%s: the idle timer failed, and tries again in %.1f s: %s", uid, left_ms / 1000, error)
            return self._after(left_ms)
        except Exception:
            logger.exception("%s: the idle timer failed; the next batch restores", uid)
            self._sink.release()
        else:
            self._failures = 0
            if goes_on:
                return self._after(self._interval_ms)
            logger.info("%s: the idle timer ends: nothing is left, or the query has ended", uid)
        return None

    @property
    def _interval_ms(self) -> int:
        return round(self._settings.rolling.check_interval_s * 1000)

    def _after(self, wait_ms: int) -> int:
        return self._settings.clock() + wait_ms
