"""One Spark stream whose drivers are killed inside batches again and again, with other mischief in between."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from driver_process import Driver, Relay

MOST_BATCHES_A_LIFE = 2
FIRST_GUESS_S = 0.5
ROWS_A_FILE = 12_500


@dataclass
class Chaos:
    """One stream and its drivers; remembers how long batches take, so that kills land inside them."""

    drivers: Relay
    rng: random.Random
    most_given_up: int
    """How many drivers may end by themselves, which a server that is away is reason for."""
    first_s: list[float] = field(default_factory=list)
    """How long the first batch of a life took, which restores as well."""
    later_s: list[float] = field(default_factory=list)
    driver_kills: int = 0
    """Inside a batch."""
    kills: int = 0
    """Of drivers, wherever they stood."""
    gave_up: int = 0
    broken_off: list[tuple[float, float]] = field(default_factory=list)
    """From when to when a batch was under way that something was done to, in seconds since the epoch."""

    def life(self, mischief: Callable[[Driver], object] | None = None) -> None:
        """One life of the driver, which ends inside its last batch by SIGKILL; the mischief is done in its first one.

        Args:
            mischief: Done inside the batch; the driver then ends that one, and is killed in a later one.
        """
        driver = self.drivers.next()
        batches = self.rng.randint(1 + (mischief is not None), MOST_BATCHES_A_LIFE)
        for number in range(batches):
            line = driver.wait_for("begin")
            began, began_at = time.monotonic(), time.time()
            if line is None:
                self._note_given_up(driver)
                return
            batch = line.split()[1]
            known_s = self.later_s if number else self.first_s
            if number == 0 and mischief is not None:
                self._sleep_inside(self.first_s)
                mischief(driver)
            if number == batches - 1:
                self._sleep_inside(known_s)
                self.kills += 1
                self.driver_kills += f"end {batch}" not in driver.kill()
            elif driver.wait_for(f"end {batch}") is not None and not (number == 0 and mischief is not None):
                known_s.append(time.monotonic() - began)
                continue
            self.broken_off.append((began_at, time.time()))

    def to_the_end(self) -> None:
        """Let the stream end."""
        assert self.drivers.next(is_last=True).finish() == "done"

    def _note_given_up(self, driver: Driver) -> None:
        self.gave_up += 1
        assert driver.has_given_up(), "the stream ended before all kills; make it longer"
        assert self.gave_up <= self.most_given_up, driver.last_words

    def _sleep_inside(self, known_s: list[float]) -> None:
        """Wait for a random instant of a batch that began just now."""
        time.sleep(self.rng.uniform(0, statistics.median(known_s) if known_s else FIRST_GUESS_S))
