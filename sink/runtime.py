"""What a running sink holds on the coordinator's side: its stores and its coordinator."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from partfile.filesystems.errors import StoreError
from partfile.sink.commits import CommitSettings
from partfile.sink.coordinator import SinkCoordinator
from partfile.sink.encoding import StagesInProcess
from partfile.sink.restore_on_demand import RestoreOnDemand
from partfile.snapshot.storage import open_storage
from partfile.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.sink.encoding import StageEncoder
    from partfile.sink.restore_settings import RestoreSettings
    from partfile.snapshot.storage import CheckpointStorage

MARKER = "_marker"
_MOST_ENCODE_THREADS = 4
"""Each holds a row group in memory."""
logger = logging.getLogger("partfile")


class Runtime:
    """The stores and the coordinator of one run of a sink.

    Args:
        settings: The sink's options.
        job: The name of the chain of checkpoints: the uid, or a name made from it.
        interval_ms: Between periodic checkpoints; None takes none.
        encoder: Makes what encodes rolled stages, given the storage of the checkpoints; None does it in this process.
        encoded: Told how many stages more were encoded in this process, or could not be; from any thread.
    """

    def __init__(
        self,
        settings: RestoreSettings,
        job: str,
        *,
        interval_ms: int | None = None,
        encoder: Callable[[CheckpointStorage], StageEncoder] | None = None,
        encoded: Callable[[int], None] = lambda _stages: None,
    ) -> None:
        self.job = job
        self.store = settings.open_store(settings.base, settings.storage_options)
        try:
            self.storage = open_storage(
                settings.checkpoints, job, settings.checkpoint_options, opener=settings.open_store
            )
        except BaseException:
            self.store.close()
            raise
        self._warn(settings)
        self.coordinator = SinkCoordinator(
            self.store,
            self.storage,
            CommitSettings(
                rolling=settings.rolling,
                cut=settings.cut,
                publish_threads=settings.publish_threads,
                accept_missing=settings.accept_missing,
                retained_checkpoints=settings.retained_checkpoints,
                writer=__version__,
                interval_ms=interval_ms,
            ),
            RestoreOnDemand(settings, self.store, self.storage),
            StagesInProcess(
                self.store, _encode_threads(settings.publish_threads), encoded, sink_format=settings.sink_format
            )
            if encoder is None
            else encoder(self.storage),
        )

    @property
    def may_append(self) -> bool:
        """Whether a later process can append to a part that this one leaves open."""
        return self.store.capabilities.append

    @property
    def may_stage(self) -> bool:
        """Whether parts can be staged: appended to by a later process, and read back by whoever encodes them."""
        return self.may_append and self.store.capabilities.stages

    @property
    def tasks_may_keep(self) -> bool:
        """Whether tasks may leave parts open if they find the marker held: where parts are leased it must be a lock."""
        return self.may_append and (self.storage.store.markers_are_locks or not self.store.capabilities.lease)

    @property
    def marker_path(self) -> str:
        """The file whose lock proves a shared file system with real locks (S13)."""
        return marker_path_of(self.job)

    def close(self) -> None:
        """Release the stores; may be called twice."""
        self.store.close()
        self.storage.store.close()

    def _warn(self, settings: RestoreSettings) -> None:
        """Say what about the places can hurt; that asking fails is for the restore to tell."""
        now_ms, longest_open_s = settings.clock(), settings.rolling.rollover_interval_s
        try:
            found = {*self.store.hazards(now_ms=now_ms, longest_open_s=longest_open_s)}
            found |= {*self.storage.store.hazards(now_ms=now_ms, longest_open_s=longest_open_s)}
            is_staged = settings.stage_recipe is None or self.may_stage
        except StoreError:
            return
        for hazard in sorted(found):
            logger.warning("%s: %s", settings.uid, hazard)
        if not is_staged:
            logger.warning(
                "%s: %s cannot append to a part and read it back, so columnar parts roll at every checkpoint",
                settings.uid,
                self.store.base,
            )


def marker_path_of(job: str) -> str:
    """The marker of a chain of checkpoints, in the store that these are in."""
    return f"{job}/{MARKER}"


def _encode_threads(publish_threads: int | None) -> int:
    """Stages encoded at the same time: no more than parts are published, nor than there are processors."""
    return min(publish_threads or _MOST_ENCODE_THREADS, _MOST_ENCODE_THREADS, os.cpu_count() or 1)
