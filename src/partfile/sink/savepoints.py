"""Savepoints of a sink, written where nothing is staged any more (R12)."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from partfile.errors import ConfigError, PartfileError, StoreError
from partfile.sink.plan import with_copied_runs
from partfile.sink.restore_rules import damage_told
from partfile.sink.settings import check_directory
from partfile.sink.states import OPERATOR
from partfile.snapshot.documents import OperatorState
from partfile.snapshot.operator_state import write_operator_state
from partfile.snapshot.savepoints import (
    SavepointMetadata,
    complete_savepoint,
    delete_savepoint,
    is_complete,
    reserve_savepoint,
)
from partfile.snapshot.streams import FileStreamFactory
from partfile.stores.paths import new_token
from partfile.stores.registry import absolute, options_for, path_inside
from partfile.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partfile.sink.coordinator import SinkCoordinator
    from partfile.sink.settings import RestoreSettings
    from partfile.stores.base import Store


@dataclass(frozen=True, slots=True)
class ReservedSavepoint:
    """A savepoint in the making: its directory is there and can be written."""

    settings: RestoreSettings
    """The sink's options."""
    store: Store
    directory: str
    location: str
    """The location that ``restore_from`` takes."""

    def complete(self, coordinator: SinkCoordinator, now_ms: int, *, ends_the_job: bool) -> str:
        """Write the coordinator's state, of which nothing is staged any more, and return the location.

        Raises:
            PartfileError: A part could not be published; there is no savepoint.
            StoreError: It could not be written; there is no savepoint.
            SnapshotCorrupt: A run of keys is missing or damaged; there is no savepoint.
            Fenced: Another coordinator has taken the sink over; there is no savepoint.
        """
        state = coordinator.state
        if state.open or state.pending or state.closed:
            raise PartfileError(
                f"{len(state.pending)} parts could not be published, and {len(state.closed)} staging files not be "
                "encoded, "
                "so there can be no savepoint",
                hint=(
                    "The log says why. Mend that and ask again, by savepoint(): they are tried at once then, "
                    "however long they wait."
                ),
                checkpoint_id=coordinator.newest_checkpoint_id,
            )
        if ends_the_job:
            # As at every clean end: no staging file stays beside its finished file.
            coordinator.discard_staging_files(now_ms)
            state = coordinator.state
        streams = FileStreamFactory(self.store, self.directory, None)
        taken_by = coordinator.newest_checkpoint
        # What is left of encoded staging files is deleted as the sink goes on; no restore of the savepoint needs it.
        state = replace(state, encoded=())
        if state.position.seen_keys is not None:
            stands = "There is no savepoint."
            told = damage_told(self.settings.uid, self.settings.forget_command(coordinator.job), stands)
            with coordinator.fence_told(), told:
                state = with_copied_runs(state, coordinator.storage.read_bytes, streams, now_ms)
        handle = write_operator_state(state.to_states(), streams)
        complete_savepoint(
            self.store,
            self.directory,
            SavepointMetadata(
                savepoint_id=new_token(),
                job=coordinator.job,
                taken_by=taken_by,
                time_ms=now_ms,
                writer=__version__,
                ends_the_job=ends_the_job,
                operators={OPERATOR: OperatorState(parallelism=state.position.parallelism, coordinator=handle)},
            ),
        )
        return self.location


def directory_for_savepoints(settings: RestoreSettings, job: str, directory: str | os.PathLike[str] | None) -> str:
    """The directory for savepoints of a checkpoint log, as a URL or an absolute path. Opens nothing.

    Args:
        settings: The sink's options; ``savepoint_dir`` is the default directory.
        job: The name of the checkpoint log.
        directory: What was asked for; None takes the default.

    Raises:
        ConfigError: There is neither, or savepoints would not outlive the sink there.
    """
    chosen: object = settings.savepoint_dir if directory is None else directory
    if chosen is None:
        raise ConfigError(
            "there is no directory for the savepoint",
            hint="Write savepoint('/data/savepoints'), or give the sink savepoint_dir='/data/savepoints'.",
        )
    if not isinstance(chosen, str | os.PathLike) or not str(chosen).strip():
        raise ConfigError(
            f"{chosen!r} names no directory for a savepoint",
            hint="Write for instance savepoint_dir='/data/savepoints'.",
        )
    check_directory(os.fspath(chosen), settings.base, "savepoint_dir", settings.storage_options)
    url = absolute(os.fspath(chosen))
    if path_inside(url, f"{settings.checkpoint_url}/{job}", settings.checkpoint_options) is not None:
        raise ConfigError(
            f"the directory for savepoints {url!r} lies inside the sink's own checkpoints, which it deletes",
            hint="Choose a directory elsewhere, as file:///data/savepoints.",
        )
    return url


@contextmanager
def reserved_savepoint(
    settings: RestoreSettings, job: str, directory: str | os.PathLike[str] | None
) -> Iterator[ReservedSavepoint]:
    """Reserve a savepoint before any work is done for it, and delete what is left of it if that fails.

    Args:
        settings: The sink's options; ``savepoint_dir`` is the default directory.
        job: The name of the checkpoint log.
        directory: Where to make it; None takes the default.

    Raises:
        ConfigError: There is neither.
        StoreError: The directory cannot be written or read.
    """
    url = directory_for_savepoints(settings, job, directory)
    with _opened(settings, url) as store:
        name = reserve_savepoint(store, job)
        try:
            yield ReservedSavepoint(settings, store, name, f"{url.rstrip('/')}/{name}")
        except BaseException:
            with suppress(StoreError):
                if not is_complete(store, name):
                    delete_savepoint(store, name)
            raise


def _opened(settings: RestoreSettings, url: str) -> Store:
    try:
        return settings.open_store(url, options_for(url, settings.base, settings.storage_options))
    except PartfileError as error:
        raise type(error)(
            f"savepoints cannot be made in {url!r}: {error.message}",
            hint=error.hint or ("Choose another directory, as file:///data/savepoints."),
        ) from error
