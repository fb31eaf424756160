"""What a running sink holds on the coordinator's side: its stores and its coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.sink.commits import CommitSettings
from partfile.sink.coordinator import SinkCoordinator
from partfile.sink.restore_on_demand import RestoreOnDemand
from partfile.snapshot.storage import open_storage
from partfile.version import __version__

if TYPE_CHECKING:
    from partfile.sink.settings import SinkSettings

MARKER = "_marker"


class Runtime:
    """The stores and the coordinator of one run of a sink.

    Args:
        settings: The sink's options.
        job: The name of the chain of checkpoints: the uid, or a name made from it.
        interval_ms: Between periodic checkpoints; None takes none.
    """

    def __init__(self, settings: SinkSettings, job: str, *, interval_ms: int | None = None) -> None:
        self.job = job
        self.store = settings.open_store(settings.base, settings.storage_options)
        try:
            self.storage = open_storage(
                settings.checkpoints, job, settings.checkpoint_options, opener=settings.open_store
            )
        except BaseException:
            self.store.close()
            raise
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
        )

    @property
    def marker_path(self) -> str:
        """The file whose lock proves a shared file system with real locks (S13)."""
        return f"{self.job}/{MARKER}"

    def close(self) -> None:
        """Release the stores; may be called twice."""
        self.store.close()
        self.storage.store.close()
