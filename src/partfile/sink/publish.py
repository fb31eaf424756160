"""What becomes of the parts of a completed checkpoint: published, encoded from staging files, or left for later.

``Publisher`` gives pending parts their final names. ``StagedParts`` has closed staging files encoded, and deletes them
once no retained checkpoint needs them.
"""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from partfile.errors import CommitError, NotReady, PartfileError, PartMissing, SnapshotError, StoreError, joined_hints
from partfile.sink import plan
from partfile.sink.clock import stopwatch_ms
from partfile.sink.concurrency import CircuitBreaker, discard_each, for_each
from partfile.sink.encode import EncodeResult, EncodeRetries, set_aside
from partfile.stores.parts import RECOVER, part_missing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from partfile.sink.encode import StagingEncoder
    from partfile.sink.plan import SinkSnapshot
    from partfile.sink.states import ClosedStagingFile, PendingPart
    from partfile.snapshot.storage import CheckpointStorage
    from partfile.stores.base import Cut, PartStore


logger = logging.getLogger("partfile")


@dataclass(frozen=True, slots=True)
class Publication:
    """What became of the parts that did not become finished files."""

    owed: tuple[PendingPart, ...]
    """Could not be published now; tried again."""
    given_up: tuple[PendingPart, ...]
    """Gone, and looked for no more."""
    failure: PartfileError | None = None
    """Of the first part that no further try will publish; raised once it is noted what is finished."""


class Publisher:
    """Prepares and publishes parts through the store.

    Args:
        store: Where the parts are.
        cut: How a part that is longer than its valid length is cut.
        threads: Parts published at the same time, at least 1; None takes what suits the store.
        job: Whose parts they are, for messages.
        recover_command: Makes ``partfile recover`` for this sink, for hints.
        tried: Told how many parts more were published, or could not be; from any thread.
    """

    def __init__(
        self,
        store: PartStore,
        cut: Cut,
        threads: int | None,
        *,
        job: str,
        recover_command: Callable[[], str],
        tried: Callable[[int], None] = lambda _parts: None,
    ) -> None:
        self._store = store
        self._job = job
        self._recover_command = recover_command
        self._cut = cut
        self._threads = threads or store.capabilities.publish_threads
        self._tried = tried

    def prepare(self, parts: Sequence[PendingPart]) -> tuple[PendingPart, ...]:
        """The parts as a checkpoint has to hold them, so that they can be published once it is complete.

        Idempotent. After a failure a part stays as it is: owed until a later checkpoint holds it prepared. Whatever
        else is wrong with it, ``publish`` says.
        """
        circuit_breaker = CircuitBreaker(self._threads)

        def attempt(part: PendingPart) -> PendingPart:
            if circuit_breaker.is_over:
                return part
            try:
                prepared = self._store.prepare(part.part)
            except (StoreError, CommitError, SnapshotError) as error:
                circuit_breaker.note(error)
                logger.warning("part %s cannot be published yet: %s", part.part.path_of(part.part.name), error)
                return part
            return part if prepared is part.part else part.model_copy(update={"part": prepared})

        return tuple(for_each(attempt, parts, self._threads, "partfile-prepare"))

    def publish(
        self, parts: Sequence[PendingPart], gives_up: Collection[str] = (), *, may_be_taken: bool = False
    ) -> Publication:
        """Publish each part.

        Idempotent. A storage failure leaves the part owed: it stays in the snapshot and is tried again with the next
        checkpoint and at restore. Where storage does not answer, parts that have not begun are owed untried.

        Args:
            parts: To be published.
            gives_up: Final paths of parts that are given up if they are gone, with a line in the log.
            may_be_taken: Consumers take files: if nothing is left of a part, one has taken its file.

        Returns:
            Those that were not published, and why one of them never can be: ``PartMissing``, ``PartDamaged`` or
            ``CommitConflict``. Such a part is owed all the same.
        """
        circuit_breaker = CircuitBreaker(self._threads)

        def attempt(part: PendingPart) -> Exception | None:
            failure = self._attempt(circuit_breaker, part)
            self._tried(1)
            return failure

        failures = for_each(attempt, parts, self._threads, "partfile-publish")
        owed, given_up, fatal = [], [], None
        for part, failure in zip(parts, failures, strict=True):
            path = part.part.path_of(part.part.name)
            if isinstance(failure, PartMissing) and failure.nothing_left and may_be_taken:
                logger.warning("nothing is left of part %s: taken by a consumer (consumers_take_files)", path)
            elif isinstance(failure, PartMissing) and path in gives_up:
                given_up.append(part)
                logger.error("given up, because of --accept-missing: %s", failure.sentence)
            elif isinstance(failure, CommitError):
                owed.append(part)
                fatal = fatal or failure
            elif failure is not None and not isinstance(failure, StoreError):
                raise failure
            elif failure is not None:
                owed.append(part)
        return Publication(tuple(owed), tuple(given_up), None if fatal is None else self._explained(fatal))

    def _explained(self, failure: CommitError) -> CommitError:
        where = f"sink {self._job!r} at {self._store.base!r}"
        hint = failure.hint.replace(RECOVER, self._recover_command())
        explained = type(failure)(f"{where}: {failure.message}", hint=hint, path=failure.path)
        explained.__cause__ = failure
        return explained

    def check_staged(self, parts: Sequence[PendingPart]) -> None:
        """See that parts are there before a checkpoint first holds them as pending.

        From then on a consumer may have taken the file of a part of which nothing is left; before that it is a loss.

        Raises:
            PartMissing: One is not there.
        """

        def look(part: PendingPart) -> None:
            if not self._store.is_staged(part.part):
                raise self._explained(part_missing(part.part, "it is not there, and was never published"))

        for_each(look, parts, self._threads, "partfile-look")

    def _attempt(self, circuit_breaker: CircuitBreaker, part: PendingPart) -> Exception | None:
        if circuit_breaker.is_over:
            return NotReady("not tried, since storage does not answer", path=part.part.path_of(part.part.name))
        try:
            self._store.publish(part.part, self._cut)
        except StoreError as error:
            circuit_breaker.note(error)
            logger.warning("part %s is not published yet: %s", part.part.path_of(part.part.name), error)
            return error
        except Exception as error:  # noqa: BLE001 - raised by the caller once the other parts are published
            return error
        return None


def mark_published(storage: CheckpointStorage, checkpoint_id: int) -> None:
    """Note that all parts of a checkpoint have their final names, so that no start looks for them again.

    Without the mark the next start publishes them once more, which changes nothing.
    """
    try:
        storage.mark_published(checkpoint_id)
    except StoreError as error:
        logger.warning("checkpoint %d is complete and published, but not marked so: %s", checkpoint_id, error)


class Encoding(NamedTuple):
    """What a state has become by encoding its closed staging files."""

    after: SinkSnapshot
    """The state, for the checkpoint that is to hold it; the very same object if nothing has come of it."""
    failure: Exception | None
    """To be raised once that checkpoint is complete: a staging file that no further try will encode."""
    given_up: int = 0
    """Staging files that were gone, and that are looked for no more because their rows were given up."""
    encoded: int = 0
    """Staging files that have become files."""
    encode_ms: float = 0.0
    set_aside: tuple[str, ...] = ()
    """Directories of the rows that were set aside, relative to the directory of checkpoints."""

    def check(self) -> None:
        """Raise what the encode met.

        Raises:
            PartMissing, PartDamaged: A staging file can never be encoded.
        """
        if self.failure is not None:
            raise self.failure


class StagedParts:
    """Encodes, sets aside and deletes the staging files of one sink.

    Args:
        store: Where they are.
        storage: The sink's checkpoints.
        encoder: Encodes them.
        recover_command: Makes ``partfile recover`` for this sink with further words, for messages.
    """

    def __init__(
        self,
        store: PartStore,
        storage: CheckpointStorage,
        encoder: StagingEncoder,
        *,
        recover_command: Callable[..., str],
    ) -> None:
        self._store = store
        self._storage = storage
        self._encoder = encoder
        self._recover_command = recover_command
        self._retries = EncodeRetries()

    def encode(
        self,
        before: SinkSnapshot,
        checkpoint_id: int,
        now_ms: int,
        *,
        gives_up: Collection[str] = (),
        at_once: bool = False,
        sets_aside: Collection[str] = (),
    ) -> Encoding:
        """Encode the closed staging files of a state.

        A storage failure leaves a staging file closed, to be tried again with the next checkpoint, then less and less
        often.

        Args:
            before: The state.
            checkpoint_id: The checkpoint that is to hold the result; it must be complete before a file is published.
            now_ms: The coordinator's time, in milliseconds since 1970.
            gives_up: Final paths of staging files that are given up if they are gone, with a line in the log.
            at_once: Try also those that have failed and are left alone for a while, since this is the end or the state
                is for a savepoint. It makes no wait longer.
            sets_aside: Final paths of staging files that are set aside instead.
        """
        staging_files = before.closed if at_once else self._retries.due(before.closed, now_ms)
        if not staging_files:
            return Encoding(before, None)
        began = stopwatch_ms()
        aside = [self._set_aside(one) for one in staging_files if _path_of(one) in sets_aside]
        rest = [one for one in staging_files if _path_of(one) not in sets_aside]
        encoded = [self._judged(self._looked_at(one), gives_up) for one in self._encoder.encode(rest)] if rest else []
        encoded += [self._judged(one, gives_up) for one in aside]
        self._retries.note(encoded, now_ms, at_once=at_once)
        took_ms, done = stopwatch_ms() - began, sum(one.is_done and not one.set_aside for one in encoded)
        for one in encoded:
            if isinstance(one.problem, StoreError):
                what = "is left for later" if at_once else f"is tried again {self._when(one.staging_file, now_ms)}"
                logger.warning("staging file %s is not wholly encoded yet, and %s: %s", _path(one), what, one.problem)
        fatal = next((one for one in encoded if _is_fatal(one)), None)
        if not any(one.files is not None or one.is_given_up for one in encoded):
            return Encoding(before, self._explained(fatal), encode_ms=took_ms)
        after = plan.after_encoding(before, encoded, checkpoint_id)
        given_up = sum(one.is_given_up for one in encoded)
        directories = tuple(one.set_aside for one in encoded if one.set_aside)
        return Encoding(after, self._explained(fatal), given_up, done, took_ms, directories)

    def _set_aside(self, staging_file: ClosedStagingFile) -> EncodeResult:
        try:
            directory = set_aside(self._store, self._storage.store, staging_file)
        except PartfileError as error:
            return EncodeResult(staging_file, problem=error)
        logger.warning("staging file %s is set aside: its rows are in %s", _path_of(staging_file), directory)
        return EncodeResult(staging_file, files=(), set_aside=directory)

    def discard(self, snapshot: SinkSnapshot, oldest_retained_id: int) -> SinkSnapshot:
        """Delete the encoded staging files that no retained checkpoint needs any more, and take them out of the state.

        One that cannot be deleted is left to the cleaner, so that the state stays bounded.

        Args:
            snapshot: A state that a completed checkpoint holds.
            oldest_retained_id: Id of the oldest checkpoint that is still there.
        """
        gone = plan.disposable(snapshot.encoded, oldest_retained_id)
        if not gone:
            return snapshot
        discard_each(
            lambda one: self._store.discard(one.part),
            gone,
            self._store.persist_threads,
            lambda one: f"staging file {one.part.path_of(one.part.in_progress)}",
        )
        names = {staging_file.part.in_progress for staging_file in gone}
        return replace(
            snapshot,
            encoded=tuple(
                staging_file for staging_file in snapshot.encoded if staging_file.part.in_progress not in names
            ),
        )

    def _when(self, staging_file: ClosedStagingFile, now_ms: int) -> str:
        left_ms = self._retries.left_ms(staging_file, now_ms)
        return f"in {left_ms / 1000:.0f} s at the earliest" if left_ms else "with the next checkpoint"

    def _looked_at(self, one: EncodeResult) -> EncodeResult:
        """What became of a staging file; that it is gone is believed only once it is missed from here as well."""
        if not (isinstance(one.problem, PartMissing) and self._encoder.is_elsewhere):
            return one
        try:
            # Where a staging file is many objects, the last of them says nothing of the others.
            if not self._store.is_staged(one.staging_file.part):
                return one
            with closing(self._store.open_staging_file(one.staging_file.part, fences=True)) as file:
                # On some stores only reading shows that a file is too short.
                file.seek(max(0, one.staging_file.part.valid_length - 1))
                file.read(1)
        except PartfileError as error:
            return replace(one, problem=error)
        there = NotReady(
            f"staging file {_path(one)!r} was missed by the worker that was to encode it, and is there: "
            f"{one.problem.message}",
            hint=(
                "It is tried again later. All executors must see the base path as the driver does. Compare on each "
                "host: ls -ld BASE"
            ),
            path=_path(one),
        )
        return replace(one, problem=there)

    def _judged(self, one: EncodeResult, gives_up: Collection[str]) -> EncodeResult:
        if not isinstance(one.problem, PartMissing) or _path(one) not in gives_up:
            return one
        logger.error("given up, because of --accept-missing: %s", one.problem.sentence)
        return replace(one, is_given_up=True)

    def _explained(self, fatal: EncodeResult | None) -> Exception | None:
        """The problem of a staging file with its sink, and with the command that lets the sink go on without it."""
        if fatal is None or fatal.problem is None:
            return None
        where, error = f"sink {self._storage.job!r} at {self._store.base!r}", fatal.problem
        if not isinstance(error, PartfileError):
            error = PartfileError(f"{type(error).__name__}: {error}")
        hint = error.hint.replace(RECOVER, self._recover_command())
        if not isinstance(error, CommitError):
            # Its rows are whole, and every other part is done with.
            command = self._recover_command("--set-aside", _path(fatal))
            hint = joined_hints(
                hint, f"Or set it aside, its rows kept as Arrow files, so that the sink goes on: {command}"
            )
        explained = type(error)(f"{where}: {error.message}", hint=hint, path=error.path)
        explained.__cause__ = error
        return explained


def _is_fatal(one: EncodeResult) -> bool:
    return one.problem is not None and not one.is_given_up and not isinstance(one.problem, StoreError)


def _path(one: EncodeResult) -> str:
    return _path_of(one.staging_file)


def _path_of(staging_file: ClosedStagingFile) -> str:
    return staging_file.part.path_of(staging_file.part.name)
