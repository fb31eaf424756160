"""The state that the newest checkpoint of a sink holds, read while the sink may be running. Changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

from partfile.errors import NotApplied, NotFound, NotReady, SnapshotCorrupt
from partfile.sink import plan
from partfile.snapshot.checkpoint_log import CheckpointLog
from partfile.snapshot.storage import CheckpointStorage
from partfile.stores.registry import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from partfile.sink.plan import SinkSnapshot
    from partfile.snapshot.documents import CheckpointMetadata, CheckpointRef
    from partfile.stores.base import MetadataStore, PartHandle, Store


Made = TypeVar("Made")

_MAX_LOOKS = 10


class NewestState(NamedTuple):
    """The state that is in force."""

    newest: CheckpointMetadata
    """The newest checkpoint, perhaps a tombstone."""
    checkpoint: CheckpointMetadata
    """The newest checkpoint that holds state."""
    state: SinkSnapshot
    is_published: bool
    """Whether its pending parts have their final names, so that no start looks for them again."""


def newest_state(storage: CheckpointStorage) -> NewestState | None:
    """The state of the newest checkpoint; None if there has never been any.

    Args:
        storage: The checkpoints of the sink.

    Raises:
        SnapshotCorrupt: It cannot be read; never the one before it (R12).
        SnapshotVersionError: A newer partfile wrote it.
        NotReady: The checkpoints change faster than they can be read.
    """
    for _ in range(_MAX_LOOKS):
        newest, checkpoint = CheckpointLog(storage).look()
        if newest is None or checkpoint is None:
            return None
        is_published = storage.is_published(checkpoint.checkpoint_id)
        state = state_of(storage, checkpoint)
        if state is not None:
            return NewestState(newest, checkpoint, state, is_published)
    raise _outrun(storage)


def made_of_newest(storage: CheckpointStorage, make: Callable[[NewestState], Made]) -> Made | None:
    """What a function makes of the newest state; None if there has never been any.

    The function is called again with a newer state where a file that it read was deleted because the sink has gone on.

    Args:
        storage: The checkpoints of the sink.
        make: Reads files that the state names; may be called several times.

    Raises:
        SnapshotCorrupt: As of ``newest_state``; or a file is damaged that a checkpoint which is still there names.
        SnapshotVersionError, NotReady: As of ``newest_state``.
    """
    for _ in range(_MAX_LOOKS):
        newest = newest_state(storage)
        if newest is None:
            return None
        try:
            return make(newest)
        except SnapshotCorrupt:
            if is_retained(storage, newest.checkpoint):
                raise
    raise _outrun(storage)


def _outrun(storage: CheckpointStorage) -> NotReady:
    return NotReady(f"the checkpoints of {storage.job!r} change faster than they can be read", path=storage.directory)


def newest_states(store: Store, jobs: Iterable[str]) -> Iterator[NewestState]:
    """The newest state of each of these directories of checkpoints that has one; what is no directory is passed over.

    Raises:
        SnapshotCorrupt, SnapshotVersionError, NotReady: As of ``newest_state``.
    """
    for job in jobs:
        try:
            held = newest_state(CheckpointStorage(store, job))
        except NotApplied as error:
            if not is_no_directory(store, job, error):
                raise
        else:
            if held is not None:
                yield held


def is_no_directory(store: MetadataStore, path: str, error: NotApplied) -> bool:
    """Whether a path could not be listed since something else is in its place, as a file of another program."""
    return isinstance(error.__cause__, NotADirectoryError) or store.file_exists(path)


def state_of(storage: CheckpointStorage, checkpoint: CheckpointMetadata) -> SinkSnapshot | None:
    """The state that a checkpoint holds; None if it was deleted meanwhile because the sink has gone on.

    Raises:
        SnapshotCorrupt: It cannot be read although the checkpoint is there.
    """
    try:
        return plan.restored_state(checkpoint.operators, storage.read_state)
    except SnapshotCorrupt:
        if is_retained(storage, checkpoint):
            raise
        return None


def is_retained(storage: CheckpointStorage, checkpoint: CheckpointMetadata | CheckpointRef) -> bool:
    """Whether a checkpoint is still there. If it is not, files that it names may be gone as well.

    Raises:
        SnapshotCorrupt: It could be read, and cannot be any more.
    """
    found = storage.read_checkpoint(checkpoint.checkpoint_id)
    return found is not None and found.nonce == checkpoint.nonce


def pending_parts(checkpoint_url: str, storage_options: Mapping[str, object] | None = None) -> list[PartHandle]:
    """The pending parts of every sink whose checkpoints are in one directory.

    Each is vouched for at its valid length, so that its rows count already. Parts that are still open are not among
    them, nor staging files: only the file that a staging file has been encoded into. A part may be finished by the time
    this returns.

    Args:
        checkpoint_url: The directory of checkpoints, which holds one directory a sink.
        storage_options: What the store's client needs; none for local files.

    Raises:
        NotFound: The directory is not there.
        SnapshotCorrupt: A newest checkpoint cannot be read; never the one before it (R12).
    """
    try:
        store = open_store(checkpoint_url, storage_options, create_base=False)
    except NotFound as error:
        raise NotFound(
            f"there are no checkpoints at {checkpoint_url!r}, so it is not known which parts are pending",
            hint=(
                "Say where the sink keeps its checkpoints: checkpoint_dir=DIRECTORY; or read finished files alone: "
                "include='finished'"
            ),
            path=checkpoint_url,
        ) from error
    with store:
        states = [held for held in newest_states(store, sorted(store.list_names(""))) if not held.is_published]
        return [pending.part for held in states for pending in held.state.pending]
