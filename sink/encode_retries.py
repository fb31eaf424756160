"""When a stage that could not be encoded is tried again, lest each checkpoint reads all that is stuck."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from partfile.filesystems.errors import StoreError
from partfile.sink.backoff import wait_ms
from partfile.sink.encoded_files import JobFailed, NotItsOwn

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from partfile.sink.encoding import EncodedStage
    from partfile.sink.states import RolledStage

FIRST_WAIT_MS = 10_000
"""After the second failure; the first may be over with the next checkpoint."""


class _Stuck(NamedTuple):
    """What is known of a stage that has failed, or of all jobs if they have."""

    failures: int
    """In a row, and without a file of it; tries out of turn are not counted."""
    since_ms: int
    """When it failed last, in or out of turn."""

    @property
    def wait_ms(self) -> int:
        return 0 if self.failures == 1 else wait_ms(self.failures - 1, FIRST_WAIT_MS)

    def left_ms(self, now_ms: int) -> int:
        """What is left of the wait; nothing if the clock has gone back."""
        return 0 if now_ms < self.since_ms else max(0, self.since_ms + self.wait_ms - now_ms)


class EncodeRetries:
    """Remembers how often stages have failed, by the in-progress names that no other stage has; in memory alone.

    If all jobs of a call fail and that need be the fault of no stage, all stages wait, as long as one would: each job
    costs tries of its tasks, and every batch would begin some.
    """

    def __init__(self) -> None:
        self._stuck: dict[str, _Stuck] = {}
        self._jobs: _Stuck | None = None
        """Known as long as all jobs of each call fail."""

    def due(self, stages: Iterable[RolledStage], now_ms: int) -> list[RolledStage]:
        """Those that are to be tried now, in their order; all that nothing is known of are.

        Args:
            stages: What is rolled.
            now_ms: The coordinator's time, in milliseconds since the epoch.
        """
        return [stage for stage in stages if self.left_ms(stage, now_ms) == 0]

    def left_ms(self, stage: RolledStage, now_ms: int) -> int:
        """How long a stage is left alone yet, in milliseconds; 0 is until the next checkpoint.

        Args:
            stage: A rolled stage.
            now_ms: The coordinator's time. If that has gone back, there is nothing to wait for.
        """
        waits = (self._stuck.get(stage.part.in_progress), self._jobs)
        return max(0 if known is None else known.left_ms(now_ms) for known in waits)

    def note(self, encoded: Sequence[EncodedStage], now_ms: int, *, at_once: bool = False) -> None:
        """Take in what became of stages that were tried.

        Args:
            encoded: What became of all stages of one call. One that got some of its files begins anew, for it is being
                got on with.
            now_ms: The coordinator's time, in milliseconds since the epoch.
            at_once: They were tried out of turn: a wait begins again, and becomes no longer.
        """
        if not all(isinstance(one.problem, JobFailed) for one in encoded):
            self._jobs = None
        elif self._jobs is not None or any(isinstance(one.problem, NotItsOwn) for one in encoded):
            self._jobs = _failed_again(self._jobs, now_ms, at_once=at_once)
        for one in encoded:
            name = one.stage.part.in_progress
            if isinstance(one.problem, NotItsOwn):
                continue
            known = self._stuck.pop(name, None)
            if isinstance(one.problem, StoreError):
                self._stuck[name] = _failed_again(None if one.files else known, now_ms, at_once=at_once)


def _failed_again(known: _Stuck | None, now_ms: int, *, at_once: bool) -> _Stuck:
    before = 0 if known is None else known.failures
    return _Stuck(max(1, before if at_once else before + 1), now_ms)
