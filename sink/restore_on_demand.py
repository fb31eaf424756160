"""What ``restore_from`` names: read it, and say what a start begins with (S12)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from partfile.filesystems.errors import NotFound, RecoveryRefused
from partfile.filesystems.opening import open_store
from partfile.filesystems.tokens import new_chain_id
from partfile.sink import planning
from partfile.sink.restoring import (
    Choice,
    FinishedPart,
    RestorePoint,
    choose,
    later_parts,
    noted,
    onto_an_empty_chain,
    over_later_parts,
    refusal,
)
from partfile.sink.states import OPERATOR
from partfile.snapshot.pointers import pointer_to
from partfile.snapshot.restoring import restored_operators
from partfile.snapshot.savepoints import read_savepoint
from partfile.snapshot.storage import CheckpointStorage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partfile.filesystems.port import Store
    from partfile.sink.naming import PartNaming
    from partfile.sink.planning import SinkSnapshot
    from partfile.sink.settings import SinkSettings
    from partfile.snapshot.pointers import Pointer


class RestoreOnDemand:
    """Carries out ``restore_from`` and ``accept_newer`` at a start. Changes nothing.

    Args:
        settings: The sink's options.
        store: Where the parts are.
        storage: The sink's own checkpoints.
    """

    def __init__(self, settings: SinkSettings, store: Store, storage: CheckpointStorage) -> None:
        self._settings = settings
        self._store = store
        self._storage = storage

    def begin(self, current: SinkSnapshot | None) -> SinkSnapshot | None:
        """The state to begin with; None if nothing is to be restored on demand.

        Args:
            current: What the newest link holds; None in an empty chain.

        Raises:
            NotFound: What is to be restored is not there.
            RecoveryRefused: The sink has gone on since, or what is to be restored does not fit it.
            SnapshotCorrupt: It cannot be read.
        """
        point = read_restore_point(self._settings, self._storage)
        if point is None:
            return None
        choice = choose(current, point)
        if current is None:
            return onto_an_empty_chain(point, new_chain_id())
        if choice is Choice.GO_ON:
            return noted(current, point)
        if not self._settings.accept_newer:
            finished = finished_parts(self._store, self._settings.naming)
            raise refusal(self._settings.uid, point, later_parts(finished, current, point.state))
        return over_later_parts(current, point, lambda part: self._store.file_exists(part.part.path_of(part.part.name)))


def read_restore_point(settings: SinkSettings, storage: CheckpointStorage) -> RestorePoint | None:
    """Read what ``restore_from`` names; None if nothing is to be restored on demand. Changes nothing.

    Args:
        settings: The sink's options.
        storage: The sink's own checkpoints.

    Raises:
        NotFound: It is not there.
        RecoveryRefused: It is a checkpoint of another sink, or holds state that this job has no operator for.
        SnapshotCorrupt: It cannot be read.
    """
    if settings.restore_from is None:
        return None
    pointer = pointer_to(settings.restore_from)
    if pointer.checkpoint_id is not None:
        return _own_checkpoint(settings, storage, pointer, pointer.checkpoint_id)
    with open_store(pointer.parent, settings.storage_options, create_base=False) as store:
        savepoint = read_savepoint(store, pointer.directory)
        operators = restored_operators(savepoint.operators, {OPERATOR}, allow_non_restored=settings.allow_non_restored)
        states = CheckpointStorage(store, pointer.directory)
        return RestorePoint(
            token=savepoint.savepoint_id,
            location=settings.restore_from,
            state=planning.restored_state(operators, states.read_state),
        )


def _own_checkpoint(
    settings: SinkSettings, storage: CheckpointStorage, pointer: Pointer, checkpoint_id: int
) -> RestorePoint:
    own = f"{settings.checkpoint_url}/{storage.job}"
    if _plain(pointer.parent) != _plain(own):
        raise RecoveryRefused(
            f"{settings.restore_from!r} is not a checkpoint of this sink, whose checkpoints are in {own!r}",
            hint="A checkpoint names staged parts of its own base path; take a savepoint to go elsewhere.",
        )
    link = storage.read_link(checkpoint_id)
    if link is None or not link.holds_state:
        raise NotFound(
            f"checkpoint {checkpoint_id} of sink {settings.uid!r} is not there, or was aborted",
            hint=f"Retained are {storage.list_links()}.",
            checkpoint_id=checkpoint_id,
        )
    later = [storage.read_link(number) for number in storage.list_links() if number > checkpoint_id]
    return RestorePoint(
        token=link.nonce,
        location=str(settings.restore_from),
        state=planning.restored_state(link.operators, storage.read_state),
        is_newest=all(one is not None and one.kind != "checkpoint" for one in later),
    )


def _plain(location: str) -> str:
    return os.path.normpath(location.removeprefix("file://"))


def finished_parts(store: Store, naming: PartNaming) -> Iterator[FinishedPart]:
    """Every file below the base whose final name says that a sink wrote it. Lists the whole base."""
    for file in store.list():
        number = naming.number_of(file.path.rpartition("/")[2])
        if number is not None:
            yield FinishedPart(file.path, number)
