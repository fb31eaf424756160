"""What ``restore_from`` names: read it, and say what a start begins with (S12)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.filesystems.errors import NotFound, RecoveryRefused, SnapshotCorrupt
from partfile.filesystems.opening import is_same_place, open_store
from partfile.filesystems.tokens import new_chain_id
from partfile.sink import planning
from partfile.sink.naming import number_in
from partfile.sink.planning import SinkSnapshot
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
        location = self._settings.restore_from
        if location is None:
            return None
        try:
            point = read_restore_point(self._settings, location, self._storage)
        except NotFound:
            if current is not None and current.position.restored_location == location:
                return None  # It was restored long ago, and its user has deleted it or retention has.
            raise
        choice = choose(current, point)
        if current is not None and choice is Choice.GO_ON:
            return noted(current, point)
        chain = (current or point.state).position.chain
        finished = finished_parts(self._store, chain) if choice is Choice.REFUSE or point.state.max_count >= 0 else ()
        later = later_parts(finished, current, point.state)
        if not self._settings.accept_newer and (choice is Choice.REFUSE or later):
            raise refusal(self._settings.uid, point, later)
        if current is None:
            return onto_an_empty_chain(point, new_chain_id())
        return over_later_parts(current, point)


def read_restore_point(settings: SinkSettings, location: str, storage: CheckpointStorage) -> RestorePoint:
    """Read what ``restore_from`` names. Changes nothing.

    Args:
        settings: The sink's options.
        location: What is named.
        storage: The sink's own checkpoints.

    Raises:
        NotFound: It is not there.
        RecoveryRefused: It is of another sink or writer, or holds state that this job has no operator for.
        SnapshotCorrupt: It cannot be read.
    """
    pointer = pointer_to(location)
    own = f"{settings.checkpoint_url}/{storage.job}"
    if pointer.checkpoint_id is not None and is_same_place(pointer.parent, own):
        return _own_checkpoint(location, storage, pointer.checkpoint_id)
    try:
        return _savepoint(settings, location, pointer, storage.job)
    except SnapshotCorrupt as error:
        if pointer.checkpoint_id is None:
            raise
        raise RecoveryRefused(
            f"{location!r} is not a checkpoint of this sink, whose checkpoints are in {own!r}",
            hint="A checkpoint names staged parts of its own base path; take a savepoint to go elsewhere.",
        ) from error


def _savepoint(settings: SinkSettings, location: str, pointer: Pointer, job: str) -> RestorePoint:
    with open_store(pointer.parent, settings.storage_options, create_base=False) as store:
        savepoint = read_savepoint(store, pointer.directory)
        if _writer(savepoint.job) != _writer(job):
            raise RecoveryRefused(
                f"{location!r} was taken of {savepoint.job!r}, not of the writer {job!r}",
                hint="Each subtask_index has a position and savepoints of its own: name that of this writer.",
            )
        operators = restored_operators(savepoint.operators, {OPERATOR}, allow_non_restored=settings.allow_non_restored)
        states = CheckpointStorage(store, pointer.directory)
        return RestorePoint(
            token=savepoint.savepoint_id,
            location=location,
            state=planning.restored_state(operators, states.read_state)
            if OPERATOR in operators
            else SinkSnapshot.fresh(new_chain_id()),
        )


def _writer(job: str) -> str:
    """Which of a uid's independent writers a chain is of; empty for the only one."""
    return job.partition("~")[2]


def _own_checkpoint(location: str, storage: CheckpointStorage, checkpoint_id: int) -> RestorePoint:
    link = storage.read_link(checkpoint_id)
    if link is None or not link.holds_state:
        raise NotFound(
            f"checkpoint {checkpoint_id} of sink {storage.job!r} is not there, or was aborted",
            hint=f"Retained are {storage.list_links()}.",
            checkpoint_id=checkpoint_id,
        )
    later = [storage.read_link(number) for number in storage.list_links() if number > checkpoint_id]
    return RestorePoint(
        token=link.nonce,
        location=location,
        state=planning.restored_state(link.operators, storage.read_state),
        is_newest=all(one is not None and one.kind != "checkpoint" for one in later),
    )


def finished_parts(store: Store, chain: str) -> Iterator[FinishedPart]:
    """Every finished file below the base that is a part of a chain, by its name. Lists the whole base."""
    for file in store.list():
        number = number_in(file.path.rpartition("/")[2], chain)
        if number is not None:
            yield FinishedPart(file.path, number)
