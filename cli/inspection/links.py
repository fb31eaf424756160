"""Each retained link of a chain, as ``partfile checkpoints`` shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from partfile.cli.inspection.chains import states_of
from partfile.cli.inspection.document import Json
from partfile.cli.inspection.savepoints import SavepointEntry
from partfile.cli.inspection.strays import stray_ids

if TYPE_CHECKING:
    from partfile.cli.inspection.chains import SeenChain, SeenLink
    from partfile.sink.planning import SinkSnapshot

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
