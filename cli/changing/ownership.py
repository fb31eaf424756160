"""Taking a sink over as its own start does, for as long as a verb needs it."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from partfile.filesystems.errors import StoreError
from partfile.sink.beginning import Beginning
from partfile.sink.restore_on_demand import RestoreOnDemand
from partfile.sink.restore_settings import RestoreSettings
from partfile.sink.runtime import Runtime
from partfile.snapshot import layout
from partfile.snapshot.storage import CheckpointStorage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partfile.cli.changing.stores import Stores
    from partfile.cli.inspection.places import Job, Place
    from partfile.sink.beginning import StartTerms
    from partfile.sink.commits import CommitReport
    from partfile.sink.restore_settings import StoreOpener


def settings_of(place: Place, job: Job, opener: StoreOpener | None = None, **options: object) -> RestoreSettings:
    """The options by which a job is restored; nothing about rows is among them.

    Retention is the sink's own affair: its next start deletes the checkpoints that it does not keep.

    Args:
        place: Where it is.
        job: Whose chain.
        opener: Opens the stores that are written to; None is the usual one.
        **options: Further fields of RestoreSettings.

    Raises:
        ConfigError: One cannot be used.
    """
    if opener is not None:
        options["open_store"] = opener
    return RestoreSettings(
        base=place.base,
        uid=job.uid,
        checkpoint_dir=place.checkpoint_dir,
        storage_options=place.storage_options,
        retained_checkpoints=layout.MAX_CHECKPOINT_ID,
        **options,
    )


def foresee(settings: RestoreSettings, job: Job, stores: Stores, terms: StartTerms) -> None:
    """Let the terms approve what a start would do now. Creates nothing.

    Raises:
        SnapshotCorrupt: The newest checkpoint cannot be read, and no older one was chosen.
        RecoveryRefused: What was chosen cannot be restored.
    """
    storage = CheckpointStorage(stores.checkpoints, job.name)
    on_demand = RestoreOnDemand(settings, stores.base, storage)
    # Whether the store can append is asked by trying, and does not matter: nothing is kept.
    Beginning(storage, on_demand, lambda _position: None, terms, may_keep=False).foresee()


@contextmanager
def taken_over(
    settings: RestoreSettings, job: Job, terms: StartTerms, now_ms: int
) -> Iterator[tuple[Runtime, CommitReport]]:
    """Own a job: fence it, settle, encode and publish unless the terms hold it, and let go of it at the end.

    Args:
        settings: Its options.
        job: The job.
        terms: How to start.
        now_ms: This host's time, in milliseconds since the epoch.

    Raises:
        Fenced: Somebody else was faster.
        PartMissing, PartDamaged, CommitConflict: It is taken over, and a part cannot be encoded or published; the
            others have been.
    """
    runtime = Runtime(settings, job.name, encoded=terms.tried)
    coordinator = runtime.coordinator
    try:
        yield runtime, coordinator.start(lambda _position: None, now_ms, terms)
    finally:
        if coordinator.held_generation is not None:
            # Without it the sink only counts as busy for a while.
            with suppress(StoreError):
                runtime.storage.mark_released(coordinator.newest_checkpoint_id)
        runtime.close()
