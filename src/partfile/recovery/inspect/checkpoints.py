"""The checkpoints of each sink as they stand: links, holes, damage, strays. The sink may be running."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from partfile.errors import NotApplied, SnapshotCorrupt, SnapshotError, StoreError
from partfile.recovery.documents import Json
from partfile.recovery.inspect.savepoints import SavepointEntry
from partfile.sink.newest_state import newest_state, state_of
from partfile.snapshot import documents
from partfile.snapshot.checkpoint_log import is_of_damage
from partfile.snapshot.storage import CheckpointStorage

if TYPE_CHECKING:
    from partfile.errors import PartfileError
    from partfile.recovery.inspect.places import Job
    from partfile.sink.newest_state import NewestState
    from partfile.sink.plan import SinkSnapshot
    from partfile.snapshot.documents import CheckpointMetadata
    from partfile.stores.base import MetadataStore


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
            continue  # The scan for damage reports it.
        if state is not None:
            states[seen.checkpoint_id] = state
    return states


def is_running(chain: SeenChain) -> bool | None:
    """Whether a driver holds the job's marker; see ``is_marker_held``."""
    return is_marker_held(chain.storage)


def is_marker_held(storage: CheckpointStorage) -> bool | None:
    """Whether a driver holds the job's marker; None where that cannot be known.

    A sink in plain Python holds none, and some stores have no locks. On HDFS the marker of a driver that died counts
    as held for a minute, and a user without write permission cannot know.
    """
    from partfile.sink.coordinator import MARKER  # noqa: PLC0415 - the largest import; --help and TAB need no driver.

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
        path = storage.path(documents.metadata_path(number))
        if not storage.store.file_exists(path):
            return SnapshotCorrupt(
                f"checkpoint {number} of job {storage.job!r} has something else than a file in the place of its link",
                hint="Find out what it is and which program put it there, and move it away. Nothing was changed.",
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


def stray_ids(chain: SeenChain) -> set[int]:
    """The ids of links that never counted: the one after names another predecessor."""
    return {
        before.checkpoint_id
        for before, after in pairwise(chain.links)
        if before.link is not None
        and after.link is not None
        and after.checkpoint_id == before.checkpoint_id + 1
        and after.link.predecessor != before.link.ref
        # Damaged when that one was created over it, and put back since: it did count.
        and not (after.link.predecessor is not None and is_of_damage(after.link.predecessor))
    }


def doubtful_ids(chain: SeenChain) -> set[int]:
    """The ids of links that have probably never counted: those, and the ones below a hole that a stray makes.

    Retention deletes the oldest first and leaves no hole. A coordinator that was asleep then takes a freed name, and
    is fenced: its link stands alone below the others, until the next start deletes it.
    """
    beyond = (before.checkpoint_id for before, after in holes(chain) if not is_deletion(before, after))
    highest = max(beyond, default=0)
    return stray_ids(chain) | {seen.checkpoint_id for seen in chain.links if seen.checkpoint_id <= highest}


def holes(chain: SeenChain) -> list[tuple[SeenLink, SeenLink]]:
    """The links on both sides of each hole, the older one first."""
    return [
        (before, after) for before, after in pairwise(chain.links) if after.checkpoint_id > before.checkpoint_id + 1
    ]


def is_deletion(before: SeenLink, after: SeenLink) -> bool:
    """Whether another program must have deleted what was in a hole.

    A checkpoint that has a later one of its own generation did count. A fence tells nothing: of two starts that race
    both make one of the same generation.
    """
    if before.link is None or after.link is None:
        return False
    is_one_history = (before.link.chain_id, before.link.generation) == (after.link.chain_id, after.link.generation)
    return is_one_history and before.link.kind == "checkpoint"


Publication = Literal["published", "owed", "nothing to publish", "unknown"]


class LinkReport(Json):
    """One retained link."""

    checkpoint_id: int
    """Its id, which is never used again."""
    kind: Literal["checkpoint", "fence", "tombstone", "damaged", "deleted"]
    """fence: a start's. tombstone: closes an id that did not complete. deleted: only what it published is known."""
    generation: int | None
    """Raised by every start."""
    time_ms: int | None
    """The coordinator's time, in milliseconds since the epoch."""
    age_s: float | None
    """Since then."""
    writer: str | None
    """Version of partfile that wrote it."""
    predecessor_id: int | None
    """Id of the link before it; null for the first."""
    ids_ahead: int | None
    """So many ids after its own its coordinator might trigger before its next link."""
    publication: Publication
    """Whether all its pending parts are known to have their final names."""
    open_parts: int | None
    """Parts that it holds open, staged ones among them; null where it holds no state."""
    pending_parts: int | None
    """Parts that it promises to publish."""
    rolled_stages: int | None
    """Stages that it promises to encode."""
    spent_stages: int | None
    """Stages that have been encoded, and that older checkpoints may need."""
    query_id: str | None
    """Spark's."""
    batch_id: int | None
    """The last batch of that query that it holds."""
    state_bytes: int | None
    """Of its state, in the link and in files."""
    is_in_force: bool
    """Whether a start goes on from its state."""
    is_stray: bool
    """It never counted: the link after it names another predecessor. It does no harm."""
    problem: str
    """Why it cannot be read; empty if it can."""


class ChainReport(Json):
    """The links of one sink or writer."""

    uid: str
    """The sink."""
    writer: int
    """0 for the sink itself."""
    job: str
    """The directory of the chain: ``uid``, or ``uid~writer``."""
    problem: str
    """Why a start would be refused; empty if it would not."""
    hint: str
    """What to do about it."""
    links: tuple[LinkReport, ...]
    """By id."""


class CheckpointsReport(Json):
    """What ``checkpoints --json`` prints."""

    schema_name: Literal["partfile.checkpoints"] = Field("partfile.checkpoints", alias="schema")
    schema_version: Literal[1] = 1
    checkpoints_at: str
    """Where its checkpoints are."""
    chains: tuple[ChainReport, ...]
    """Each sink and writer, by name."""
    savepoints: tuple[SavepointEntry, ...] = ()
    """With ``--savepoint-dir``."""


def chain_report(chain: SeenChain, now_ms: int) -> ChainReport:
    """What there is to say of a chain, its links in their order."""
    states, strays = states_of(chain), stray_ids(chain)
    links = [_link_report(seen, chain, states, strays, now_ms) for seen in chain.links]
    links += [_deleted(number) for number in chain.lost_ids if chain.problem is not None]
    return ChainReport(
        uid=chain.job.uid,
        writer=chain.job.writer,
        job=chain.job.name,
        problem=chain.problem.message if chain.problem else "",
        hint=chain.problem.hint if chain.problem else "",
        links=tuple(sorted(links, key=lambda link: link.checkpoint_id)),
    )


def _link_report(
    seen: SeenLink, chain: SeenChain, states: dict[int, SinkSnapshot], strays: set[int], now_ms: int
) -> LinkReport:
    link, state = seen.link, states.get(seen.checkpoint_id)
    query = None if state is None else state.position.query
    newest = chain.newest
    return LinkReport(
        checkpoint_id=seen.checkpoint_id,
        kind="damaged" if link is None else link.kind,
        generation=None if link is None else link.generation,
        time_ms=None if link is None else link.time_ms,
        age_s=None if link is None else max(0.0, (now_ms - link.time_ms) / 1000),
        writer=None if link is None else link.writer,
        predecessor_id=None if link is None or link.predecessor is None else link.predecessor.checkpoint_id,
        ids_ahead=None if link is None else link.ids_ahead,
        publication=_publication(seen, state),
        open_parts=None if state is None else sum(map(len, state.open.values())),
        pending_parts=None if state is None else len(state.pending),
        rolled_stages=None if state is None else len(state.rolled),
        spent_stages=None if state is None else len(state.spent),
        query_id=None if query is None else query.query_id,
        batch_id=None if query is None else query.batch_id,
        state_bytes=None if link is None else sum(handle.size_bytes for handle in link.handles()),
        is_in_force=newest is not None and newest.link.checkpoint_id == seen.checkpoint_id,
        is_stray=seen.checkpoint_id in strays,
        problem="" if seen.problem is None else seen.problem.message,
    )


def _publication(seen: SeenLink, state: SinkSnapshot | None) -> Publication:
    if seen.is_published:
        return "published"
    if seen.link is not None and not seen.link.holds_state:
        return "nothing to publish"
    if state is None:
        return "unknown"
    return "owed" if state.pending else "nothing to publish"


def _deleted(checkpoint_id: int) -> LinkReport:
    return LinkReport(
        checkpoint_id=checkpoint_id,
        kind="deleted",
        generation=None,
        time_ms=None,
        age_s=None,
        writer=None,
        predecessor_id=None,
        ids_ahead=None,
        publication="published",
        open_parts=None,
        pending_parts=None,
        rolled_stages=None,
        spent_stages=None,
        query_id=None,
        batch_id=None,
        state_bytes=None,
        is_in_force=False,
        is_stray=False,
        problem="its _metadata is gone",
    )
