"""What ``restore_from`` names: a savepoint, or an older checkpoint of the sink's own chain, read and checked."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from partfile.filesystems.errors import (
    ConfigError,
    NotFound,
    RecoveryRefused,
    SnapshotCorrupt,
    SnapshotError,
    StoreError,
)
from partfile.filesystems.opening import is_same_place, open_store, options_for
from partfile.filesystems.tokens import new_chain_id
from partfile.sink import planning
from partfile.sink.planning import SinkSnapshot
from partfile.sink.restoring import RestorePoint, adds_nothing
from partfile.sink.states import OPERATOR
from partfile.snapshot.damage import is_of_damage
from partfile.snapshot.pointers import pointer_to
from partfile.snapshot.restoring import restored_operators
from partfile.snapshot.savepoints import read_savepoint
from partfile.snapshot.storage import CheckpointStorage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partfile.filesystems.port import Store
    from partfile.sink.restore_settings import RestoreSettings
    from partfile.snapshot.model import CheckpointMetadata
    from partfile.snapshot.pointers import Pointer

_MUST_BE = (
    "It must be the directory of a savepoint or of a retained checkpoint of this sink, or the _metadata in it, and no "
    "symbolic link to one."
)


def own_checkpoint_id(settings: RestoreSettings, location: str, storage: CheckpointStorage) -> int | None:
    """The id of the checkpoint of the sink's own chain that is named; None if something else is."""
    pointer = pointer_to(location)
    own = _own_directory(settings, storage)
    is_own = pointer.checkpoint_id is not None and is_same_place(pointer.parent, own, settings.checkpoint_options)
    return pointer.checkpoint_id if is_own else None


def read_restore_point(settings: RestoreSettings, location: str, storage: CheckpointStorage) -> RestorePoint:
    """Read what ``restore_from`` names. Changes nothing.

    Args:
        settings: The sink's options.
        location: What is named.
        storage: The sink's own checkpoints.

    Raises:
        NotFound: It is not there.
        ConfigError: Something else is in its place.
        RecoveryRefused: It is of another sink or writer, or holds state that this job has no operator for.
        SnapshotCorrupt: It cannot be read.
    """
    checkpoint_id = own_checkpoint_id(settings, location, storage)
    if checkpoint_id is not None:
        with _named(location):
            return _own_checkpoint(location, storage, checkpoint_id)
    pointer = pointer_to(location)
    try:
        return _savepoint(settings, location, pointer, storage.job)
    except SnapshotCorrupt as error:
        if pointer.checkpoint_id is None:
            raise
        raise RecoveryRefused(
            f"{location!r} is not a checkpoint of this sink, whose checkpoints are in "
            f"{_own_directory(settings, storage)!r}",
            hint="A checkpoint names staged parts of its own base path; take a savepoint to go elsewhere.",
        ) from error


def _own_directory(settings: RestoreSettings, storage: CheckpointStorage) -> str:
    return f"{settings.checkpoint_url}/{storage.job}"


@contextmanager
def _named(location: str) -> Iterator[None]:
    """Let errors of the block speak of the option."""
    try:
        yield
    except NotFound as error:
        raise NotFound(
            f"restore_from={location!r} is not there: {error.message}",
            # What it may be besides a savepoint, whoever looks for savepoints alone does not say.
            hint=_MUST_BE if error.checkpoint_id is None else error.hint,
            path=error.path,
        ) from error
    except (StoreError, SnapshotError) as error:
        raise type(error)(
            f"restore_from={location!r} cannot be read: {error.message}",
            hint=error.hint if isinstance(error, SnapshotError) else _MUST_BE,
            path=error.path,
            checkpoint_id=error.checkpoint_id,
        ) from error


def _opened(settings: RestoreSettings, location: str, parent: str) -> Store:
    """The store of the directory above.

    Raises:
        NotFound: There is none.
        ConfigError: It is a file, or no store serves its URL.
    """
    options = options_for(parent, settings.base, settings.storage_options)
    try:
        return open_store(parent, options, create_base=False)
    except NotFound as error:
        raise NotFound(
            f"restore_from={location!r} is not there: there is no directory {parent!r}", hint=_MUST_BE, path=error.path
        ) from error
    except ConfigError as error:
        raise ConfigError(
            f"restore_from={location!r} cannot be read: {error.message}", hint=error.hint or _MUST_BE
        ) from error


def _savepoint(settings: RestoreSettings, location: str, pointer: Pointer, job: str) -> RestorePoint:
    with _opened(settings, location, pointer.parent) as store, _named(location):
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
            f"checkpoint {checkpoint_id} of sink {storage.job!r} was deleted, or was aborted",
            hint=f"Retained are {storage.list_links()}.",
            checkpoint_id=checkpoint_id,
        )
    later = [number for number in storage.list_links() if number > checkpoint_id]
    if later:
        _check_followed(storage, link, location, later)
    state = planning.restored_state(link.operators, storage.read_state)
    held = [_held(storage, number, state) for number in later]
    return RestorePoint(
        token=link.nonce,
        location=location,
        state=state,
        is_newest=all(one is not None and adds_nothing(one, state) for one in held),
        was_restored=any(one is not None and one.position.restored_from == link.nonce for one in held),
    )


def _check_followed(storage: CheckpointStorage, link: CheckpointMetadata, location: str, later: list[int]) -> None:
    """Refuse a link from which the chain has not gone on."""
    try:
        successor = storage.read_link(link.checkpoint_id + 1)
    except SnapshotError:
        return  # It cannot be asked; under the name after a stray link there is seldom one at all.
    before = successor.predecessor if successor is not None else None
    if before == link.ref:
        return
    why = "it never counted: the coordinator that made it had been fenced"
    if before is not None and is_of_damage(before):
        why = "its file could not be read when the chain went on after it, from an older checkpoint"
    raise RecoveryRefused(
        f"restore_from={location!r} cannot be gone back to: {why}",
        hint=f"Choose another one of {later}.",
        checkpoint_id=link.checkpoint_id,
    )


def _held(storage: CheckpointStorage, checkpoint_id: int, before: SinkSnapshot) -> SinkSnapshot | None:
    """What a link holds, a tombstone what the point before it does; None if nobody can tell."""
    try:
        link = storage.read_link(checkpoint_id)
        if link is None:
            return None
        return planning.restored_state(link.operators, storage.read_state) if link.holds_state else before
    except SnapshotError:
        return None
