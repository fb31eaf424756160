"""The stages of a sink in its coordinator's hands: encoded once they are rolled, deleted once nobody needs them."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from partfile.filesystems.errors import NotReady, PartfileError, PartMissing, StoreError
from partfile.sink import stage_planning
from partfile.sink.clock import stopwatch_ms
from partfile.sink.concurrently import Patience, for_each
from partfile.sink.encode_retries import EncodeRetries

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from partfile.filesystems.port import PartStore
    from partfile.sink.encoding import EncodedStage, StageEncoder
    from partfile.sink.planning import SinkSnapshot
    from partfile.sink.states import RolledStage, SpentStage

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
        self._retries = EncodeRetries()

    def encode(
        self,
        before: SinkSnapshot,
        checkpoint_id: int,
        now_ms: int,
        *,
        gives_up: Collection[str] | None = None,
        at_once: bool = False,
    ) -> Encoding:
        """Encode the rolled stages of a state.

        A storage failure leaves a stage rolled, to be tried again with the next checkpoint, then less and less often.

        Args:
            before: The state.
            checkpoint_id: The checkpoint that is to hold the result; it must be complete before a file is published.
            now_ms: The coordinator's time, in milliseconds since the epoch.
            gives_up: Final paths of the only parts that ``accept_missing`` is meant for; None is all.
            at_once: Try also those that have failed and are left alone for a while, since this is the end or the state
                is for a savepoint. It makes no wait longer.
        """
        stages = before.rolled if at_once else self._retries.due(before.rolled, now_ms)
        if not stages:
            return Encoding(before, None)
        began = stopwatch_ms()
        encoded = [self._judged(self._looked_at(one), gives_up) for one in self._encoder.encode(stages)]
        self._retries.note(encoded, now_ms, at_once=at_once)
        took_ms, done = stopwatch_ms() - began, sum(one.is_done for one in encoded)
        failures = [one.problem for one in encoded if one.problem is not None and not one.is_given_up]
        for one in encoded:
            if isinstance(one.problem, StoreError):
                what = "is left for later" if at_once else f"is tried again {self._when(one.stage, now_ms)}"
                logger.warning("stage %s is not wholly encoded yet, and %s: %s", _path(one), what, one.problem)
        fatal = next((error for error in failures if not isinstance(error, StoreError)), None)
        if not any(one.files is not None or one.is_given_up for one in encoded):
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

    def _when(self, stage: RolledStage, now_ms: int) -> str:
        left_ms = self._retries.left_ms(stage, now_ms)
        return f"in {left_ms / 1000:.0f} s at the earliest" if left_ms else "with the next checkpoint"

    def _looked_at(self, one: EncodedStage) -> EncodedStage:
        """What became of a stage; that it is gone is believed only once it is missed from here as well."""
        if not (isinstance(one.problem, PartMissing) and self._encoder.is_elsewhere):
            return one
        try:
            # Where a stage is many objects, the last of them says nothing of the others.
            if not self._store.is_staged(one.stage.part):
                return one
            with closing(self._store.open_stage(one.stage.part, fences=True)) as file:
                # On some stores only reading shows that a file is too short.
                file.seek(max(0, one.stage.part.valid_length - 1))
                file.read(1)
        except PartfileError as error:
            return replace(one, problem=error)
        there = NotReady(
            f"stage {_path(one)!r} was missed by who was to encode it, and is there: {one.problem.message}",
            hint="It is tried again later. All executors must see the base path as the driver does.",
            path=_path(one),
        )
        return replace(one, problem=there)

    def _judged(self, one: EncodedStage, gives_up: Collection[str] | None) -> EncodedStage:
        if not (isinstance(one.problem, PartMissing) and self._accept_missing):
            return one
        if gives_up is not None and _path(one) not in gives_up:
            return one
        logger.error("given up, because accept_missing is set: %s", one.problem)
        return replace(one, is_given_up=True)

    def _explained(self, error: Exception | None) -> Exception | None:
        if error is None:
            return None
        where = f"sink {self._job!r} at {self._store.base!r}"
        if not isinstance(error, PartfileError):
            error = PartfileError(f"{type(error).__name__}: {error}")
        explained = type(error)(f"{where}: {error.message}", hint=error.hint, path=error.path)
        explained.__cause__ = error
        return explained


def _path(one: EncodedStage) -> str:
    return one.stage.part.path_of(one.stage.part.name)
