"""The stages of a sink in its coordinator's hands: encoded once they are rolled, deleted once nobody needs them."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from partfile.filesystems.errors import PartfileError, PartMissing, StoreError
from partfile.sink import stage_planning
from partfile.sink.clock import stopwatch_ms
from partfile.sink.concurrently import Patience, for_each

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from partfile.filesystems.port import PartStore
    from partfile.sink.encoding import EncodedStage, StageEncoder
    from partfile.sink.planning import SinkSnapshot
    from partfile.sink.states import SpentStage

logger = logging.getLogger("partfile")


class Encoding(NamedTuple):
    """What a state has become by encoding its rolled stages."""

    after: SinkSnapshot
    """The state, for the checkpoint that is to hold it; the very same object if nothing has come of it."""
    failure: Exception | None
    """To be raised once that checkpoint is complete: a stage that no further try will encode."""
    given_up: int = 0
    """Stages that were gone, and that nobody looks for again because ``accept_missing`` is set."""
    encoded: int = 0
    """Stages that have become files."""
    encode_ms: float = 0.0


class StagedParts:
    """Encodes and deletes the stages of one sink.

    Args:
        store: Where they are.
        encoder: Has the hands for it.
        job: Whose they are, for messages.
        accept_missing: Give a stage up that is gone, with a line in the log, instead of stopping.
    """

    def __init__(self, store: PartStore, encoder: StageEncoder, *, job: str, accept_missing: bool = False) -> None:
        self._store = store
        self._encoder = encoder
        self._job = job
        self._accept_missing = accept_missing

    def encode(self, before: SinkSnapshot, checkpoint_id: int, gives_up: Collection[str] | None = None) -> Encoding:
        """Encode every rolled stage of a state.

        A storage failure leaves a stage rolled, to be tried again with the next checkpoint and at a start.

        Args:
            before: The state.
            checkpoint_id: The checkpoint that is to hold the result; it must be complete before a file is published.
            gives_up: Final paths of the only parts that ``accept_missing`` is meant for; None is all.
        """
        if not before.rolled:
            return Encoding(before, None)
        began = stopwatch_ms()
        encoded = [self._judged(one, gives_up) for one in self._encoder.encode(before.rolled)]
        took_ms, done = stopwatch_ms() - began, sum(one.target is not None for one in encoded)
        failures = [one.problem for one in encoded if one.problem is not None and not one.is_given_up]
        for one in encoded:
            if isinstance(one.problem, StoreError):
                logger.warning("stage %s is not encoded yet: %s", _path(one), one.problem)
        fatal = next((error for error in failures if not isinstance(error, StoreError)), None)
        if not any(one.target is not None or one.is_given_up for one in encoded):
            return Encoding(before, self._explained(fatal), encode_ms=took_ms)
        after = stage_planning.after_encoding(before, encoded, checkpoint_id)
        given_up = sum(one.is_given_up for one in encoded)
        return Encoding(after, self._explained(fatal), given_up, done, took_ms)

    def discard(self, snapshot: SinkSnapshot, oldest_retained_id: int) -> SinkSnapshot:
        """Delete the spent stages that no retained checkpoint names as data any more, and take them out of the state.

        One that cannot be deleted is left to the cleaner, so that the state stays bounded.

        Args:
            snapshot: A state that a completed checkpoint holds.
            oldest_retained_id: Id of the oldest link that is still there.
        """
        gone = stage_planning.disposable(snapshot.spent, oldest_retained_id)
        if not gone:
            return snapshot
        self._delete(gone)
        names = {stage.part.in_progress for stage in gone}
        return replace(snapshot, spent=tuple(stage for stage in snapshot.spent if stage.part.in_progress not in names))

    def _delete(self, stages: Sequence[SpentStage]) -> None:
        threads = self._store.persist_threads
        patience = Patience(threads)

        def attempt(stage: SpentStage) -> None:
            try:
                if not patience.is_over:
                    self._store.discard(stage.part)
            except StoreError as error:
                patience.note(error)
                path = stage.part.path_of(stage.part.in_progress)
                logger.warning("stage %s is not needed any more, but cannot be deleted: %s", path, error)

        for_each(attempt, stages, threads, "partfile-discard")

    def _judged(self, one: EncodedStage, gives_up: Collection[str] | None) -> EncodedStage:
        if not (isinstance(one.problem, PartMissing) and self._accept_missing):
            return one
        if gives_up is not None and _path(one) not in gives_up:
            return one
        logger.error("given up, because accept_missing is set: %s", one.problem)
        return replace(one, is_given_up=True)

    def _explained(self, error: Exception | None) -> Exception | None:
        if not isinstance(error, PartfileError):
            return error
        where = f"sink {self._job!r} at {self._store.base!r}"
        explained = type(error)(f"{where}: {error.message}", hint=error.hint, path=error.path)
        explained.__cause__ = error
        return explained


def _path(one: EncodedStage) -> str:
    return one.stage.part.path_of(one.stage.part.name)
