"""Publish the parts of a completed checkpoint, several at a time; say which are still owed."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from partfile.filesystems.errors import CommitError, NotReady, PartMissing, StoreError
from partfile.sink.concurrently import Patience, for_each

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partfile.filesystems.port import Cut, PartStore
    from partfile.sink.states import PendingPart

logger = logging.getLogger("partfile")


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

    def publish(self, parts: Sequence[PendingPart]) -> tuple[PendingPart, ...]:
        """Publish each part; return those that could not be published now and are still owed.

        Idempotent. A storage failure leaves the part owed: it stays in the snapshot and is tried again with the next
        checkpoint and at restore. Where storage does not answer, parts that have not begun are owed untried.

        Raises:
            PartMissing: A part that the checkpoint vouches for is gone; the others have been published.
            CommitConflict: Foreign bytes stand in the place of one; the others have been published.
        """
        patience = Patience(self._threads)
        failures = for_each(partial(self._attempt, patience), parts, self._threads, "partfile-publish")
        for failure in failures:
            if isinstance(failure, CommitError):
                where = f"sink {self._job!r} at {self._store.base!r}"
                raise type(failure)(f"{where}: {failure.message}", hint=failure.hint, path=failure.path) from failure
            if failure is not None and not isinstance(failure, StoreError):
                raise failure
        return tuple(part for part, failure in zip(parts, failures, strict=True) if failure is not None)

    def _attempt(self, patience: Patience, part: PendingPart) -> Exception | None:
        if patience.is_over:
            return NotReady("not tried, since storage does not answer", path=part.part.path_of(part.part.name))
        try:
            self._store.publish(part.part, self._cut)
        except PartMissing as error:
            if not self._accept_missing:
                return error
            logger.error("given up, because accept_missing is set: %s", error)  # noqa: TRY400 - no trace needed
        except StoreError as error:
            patience.note(error)
            logger.warning("part %s is not published yet: %s", part.part.path_of(part.part.name), error)
            return error
        except Exception as error:  # noqa: BLE001 - raised by the caller once the other parts are published
            return error
        return None
