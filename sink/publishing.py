"""Publish the parts of a completed checkpoint, several at a time; say which are still owed."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from partfile.filesystems.errors import CommitError, NotReady, PartMissing, StoreError
from partfile.sink.concurrently import Patience, for_each

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from partfile.filesystems.port import Cut, PartStore
    from partfile.sink.states import PendingPart
    from partfile.snapshot.storage import CheckpointStorage

logger = logging.getLogger("partfile")


@dataclass(frozen=True, slots=True)
class Publication:
    """What became of the parts that did not become finished files."""

    owed: tuple[PendingPart, ...]
    """Could not be published now; tried again."""
    given_up: tuple[PendingPart, ...]
    """Gone, and nobody looks for them again."""


class Publisher:
    """Settles and publishes parts through the store.

    Args:
        store: Where the parts are.
        cut: How a part that is longer than its valid length is cut.
        threads: Parts published at the same time, at least 1; None takes what suits the store.
        job: Whose parts they are, for messages.
        accept_missing: Give a part up that is gone, with a line in the log, instead of stopping.
    """

    def __init__(
        self, store: PartStore, cut: Cut, threads: int | None, *, job: str, accept_missing: bool = False
    ) -> None:
        self._store = store
        self._job = job
        self._cut = cut
        self._threads = threads or store.capabilities.publish_threads
        self._accept_missing = accept_missing

    def publish(
        self,
        parts: Sequence[PendingPart],
        gives_up: Collection[str] | None = None,
        tried: Callable[[int], None] = lambda _parts: None,
    ) -> Publication:
        """Publish each part.

        Idempotent. A storage failure leaves the part owed: it stays in the snapshot and is tried again with the next
        checkpoint and at restore. Where storage does not answer, parts that have not begun are owed untried.

        Args:
            parts: To be published.
            gives_up: Final paths of the only parts that ``accept_missing`` is meant for; None is all.
            tried: Told how many parts more were published, or could not be; from any thread.

        Returns:
            Those that were not published.

        Raises:
            PartMissing: A part that the checkpoint vouches for is gone; the others have been published.
            PartDamaged: One is not what was written, as its store can tell; the others have been published.
            CommitConflict: Foreign bytes stand in the place of one; the others have been published.
        """
        patience = Patience(self._threads)

        def attempt(part: PendingPart) -> Exception | None:
            failure = self._attempt(patience, part)
            tried(1)
            return failure

        failures = for_each(attempt, parts, self._threads, "partfile-publish")
        owed, given_up = [], []
        for part, failure in zip(parts, failures, strict=True):
            if isinstance(failure, PartMissing) and self._may_give_up(part, gives_up):
                given_up.append(part)
                logger.error("given up, because accept_missing is set: %s", failure)
            elif isinstance(failure, CommitError):
                where = f"sink {self._job!r} at {self._store.base!r}"
                raise type(failure)(f"{where}: {failure.message}", hint=failure.hint, path=failure.path) from failure
            elif failure is not None and not isinstance(failure, StoreError):
                raise failure
            elif failure is not None:
                owed.append(part)
        return Publication(tuple(owed), tuple(given_up))

    def _may_give_up(self, part: PendingPart, gives_up: Collection[str] | None) -> bool:
        return self._accept_missing and (gives_up is None or part.part.path_of(part.part.name) in gives_up)

    def _attempt(self, patience: Patience, part: PendingPart) -> Exception | None:
        if patience.is_over:
            return NotReady("not tried, since storage does not answer", path=part.part.path_of(part.part.name))
        try:
            self._store.publish(part.part, self._cut)
        except StoreError as error:
            patience.note(error)
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
