"""One chain of checkpoints as it stands: its links and what is wrong with them. The job may be running."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from partfile.filesystems.errors import NotApplied, SnapshotCorrupt, SnapshotError, StoreError
from partfile.sink.newest_state import newest_state, state_of
from partfile.sink.runtime import MARKER
from partfile.snapshot import layout
from partfile.snapshot.storage import CheckpointStorage

if TYPE_CHECKING:
    from partfile.cli.inspection.places import Job
    from partfile.filesystems.errors import PartfileError
    from partfile.filesystems.metadata_port import MetadataStore
    from partfile.sink.newest_state import NewestState
    from partfile.sink.planning import SinkSnapshot
    from partfile.snapshot.model import CheckpointMetadata

_MAX_LOOKS = 3


@dataclass(frozen=True, slots=True)
class SeenLink:
    """One link of a chain, or what is in its place."""

    checkpoint_id: int
    link: CheckpointMetadata | None
    """None if it cannot be read."""
    is_published: bool
    problem: PartfileError | None = None
    """Why it cannot be read."""


@dataclass(frozen=True, slots=True)
class SeenChain:
    """What was seen of one job."""

    job: Job
    storage: CheckpointStorage
    links: tuple[SeenLink, ...]
    """By their ids, ascending."""
    lost_ids: tuple[int, ...]
    """Ids whose link is gone although their parts have been published; the directory is left."""
    newest: NewestState | None
    """What is in force; None if there has never been any state, or it cannot be read."""
    problem: PartfileError | None
    """Why what is in force cannot be read."""

    def time_ms_of(self, checkpoint_id: int) -> int | None:
        """When a retained checkpoint was completed; None if it is not retained any more, or cannot be read."""
        found = (one.link for one in self.links if one.checkpoint_id == checkpoint_id)
        return next((link.time_ms for link in found if link is not None), None)


def read_chain(store: MetadataStore, job: Job) -> SeenChain:
    """Read every link of a job and the state of the newest one.

    Links that are deleted meanwhile, because the job goes on, are left out.

    Args:
        store: The store of the checkpoints.
        job: Whose.

    Raises:
        StoreError: The store cannot be read.
    """
    storage = CheckpointStorage(store, job.name)
    for _ in range(_MAX_LOOKS):
        newest, problem = _newest(storage)
        ids = storage.list_ids()
        links = tuple(link for number in ids.linked if (link := _seen(storage, number)) is not None)
        if newest is None or not links or links[-1].checkpoint_id == newest.newest.checkpoint_id:
            break
    return SeenChain(job, storage, links, tuple(ids.published_without_link), newest, problem)


def states_of(chain: SeenChain) -> dict[int, SinkSnapshot]:
    """The states of the retained links that can be read, by their ids."""
    states = {}
    for seen in chain.links:
        if seen.link is None or not seen.link.holds_state:
            continue
        if chain.newest is not None and seen.checkpoint_id == chain.newest.link.checkpoint_id:
            states[seen.checkpoint_id] = chain.newest.state
            continue
        try:
            state = state_of(chain.storage, seen.link)
        except SnapshotError:
            continue  # Told by whoever looks for damage.
        if state is not None:
            states[seen.checkpoint_id] = state
    return states


def is_running(chain: SeenChain) -> bool | None:
    """Whether a driver holds the job's marker; see ``is_marker_held``."""
    return is_marker_held(chain.storage)


def is_marker_held(storage: CheckpointStorage) -> bool | None:
    """Whether a driver holds the job's marker; None where that cannot be known.

    A sink in plain Python holds none, and some stores have no locks. On HDFS the marker of a driver that died counts
    as held for a minute, and whoever may not write there cannot know.
    """
    store = storage.store
    if not store.markers_are_locks:
        return None
    try:
        return store.marker_is_held(storage.path(MARKER))
    except StoreError:
        return None


def _newest(storage: CheckpointStorage) -> tuple[NewestState | None, PartfileError | None]:
    try:
        return newest_state(storage), None
    except SnapshotError as error:
        return None, error
    except NotApplied as error:
        return None, as_damage(storage, error)


def as_damage(storage: CheckpointStorage, error: NotApplied) -> SnapshotCorrupt:
    """What is wrong with a chain that has no file in a link's place: a directory, a pipe, a symbolic link.

    A store that cannot be read proves nothing of the chain, so its error is raised again.

    Args:
        storage: The chain.
        error: What reading it raised.

    Raises:
        NotApplied: That error, if every link is a file.
    """
    for number in storage.list_links():
        path = storage.path(layout.metadata_path(number))
        if not storage.store.file_exists(path):
            return SnapshotCorrupt(
                f"checkpoint {number} of job {storage.job!r} has something else than a file in the place of its link",
                hint="Find out what it is and who put it there, and move it away. Nothing was changed.",
                path=path,
                checkpoint_id=number,
            )
    raise error


def _seen(storage: CheckpointStorage, checkpoint_id: int) -> SeenLink | None:
    try:
        link, problem = storage.read_link(checkpoint_id), None
    except SnapshotError as error:
        link, problem = None, error
    except NotApplied as error:
        link, problem = None, as_damage(storage, error)
    if link is None and problem is None:
        return None
    return SeenLink(checkpoint_id, link, storage.is_published(checkpoint_id), problem)
