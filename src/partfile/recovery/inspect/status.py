"""``status``: the sinks of a base as their checkpoints show them, stuck parts first.

Reads checkpoints alone: it lists no bucket and looks at no part, so its cost does not depend on finished files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self, get_args

from pydantic import Field, JsonValue

from partfile import errors
from partfile.errors import PartfileError, joined_hints
from partfile.recovery.documents import Json
from partfile.recovery.inspect.checkpoints import is_marker_held
from partfile.recovery.inspect.files import OPEN_STATES, KnownState, parts_of
from partfile.recovery.inspect.tree import ScanReport
from partfile.sink.states import SET_ASIDE_DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from partfile.recovery.inspect.checkpoints import SeenLog
    from partfile.recovery.inspect.files import KnownPart, SeenBase
    from partfile.stores.base import Store


@dataclass(frozen=True, slots=True)
class SinkFacts:
    """The facts about a sink that an explanation needs."""

    is_running: bool | None
    """Whether its driver is alive; None if that is unknown."""
    quiet_s: float
    """Since its newest checkpoint, in seconds."""
    quiet_after_s: float
    """Beyond this silence a sink counts as stopped where no lock can tell."""
    is_kept: bool
    """A clean stop kept the open parts for the next run."""

    @property
    def is_quiet(self) -> bool:
        """Whether it has been silent for so long that something is wrong."""
        return self.quiet_s > self.quiet_after_s

    @property
    def has_stopped(self) -> bool:
        """Whether it is not running, or probably not."""
        return self.is_running is False or (self.is_running is None and self.is_quiet)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a part is there, and what will become of it."""

    why: str
    """Why it is there, in words that parts with one cause share."""
    outcome: str
    """The outcome, in one sentence, likewise."""
    is_stuck: bool = False
    is_for_recover: bool = False
    """Whether ``partfile recover`` mends it."""


def explain(part: KnownPart, sink: SinkFacts) -> Explanation:
    """Explain a part that the state in force names and that is not finished.

    Args:
        part: The part.
        sink: Its sink.
    """
    if part.state in OPEN_STATES:
        return _on_open(part, sink)
    if part.state == "encoded-staging-file":
        why = f"checkpoint {part.since} holds the file that it was encoded into; older ones may need the staging file"
        return Explanation(why, "the sink deletes it once those are not retained any more")
    promised, done = "a checkpoint is complete and promises it", "published"
    if part.state == "closed-staging-file":
        promised, done = "a checkpoint is complete and has it closed", "encoded"
    does = _fate(part)
    if sink.has_stopped:
        why = f"{promised}, but {_stopped(sink)} before it was {done}"
        return Explanation(why, f"the next start, or recover, {does}", is_stuck=True, is_for_recover=True)
    if sink.is_quiet:
        why = f"{promised}, but it could not be {done}; the log of the sink says why"
        return Explanation(why, f"the sink tries again with its next checkpoint, and then {does}", is_stuck=True)
    return Explanation(promised, f"the sink {does}, now or with its next checkpoint")


def _fate(part: KnownPart) -> str:
    """The next step for a part that is not finished, as a phrase."""
    if part.is_shared:
        those = " without one yet" if part.finished_buckets else ""
        return f"encodes its valid bytes into a file for each of its buckets{those} and publishes those"
    if part.is_staging_file:
        return "encodes its valid bytes into the part and publishes that"
    return "publishes it" if part.state == "pending" else "cuts it to its valid bytes and publishes it"


def _on_open(part: KnownPart, sink: SinkFacts) -> Explanation:
    if sink.is_kept:
        return Explanation("a clean stop kept it open, as on_stop='keep' says", "the next start goes on with it")
    if not sink.has_stopped:
        then = ", and is encoded then" if part.is_staging_file else ""
        return Explanation("the sink has it open", f"it grows until its rolling policy closes it{then}")
    return Explanation(
        f"{_stopped(sink)} while it was open; checkpoint {part.checkpoint_id} vouches for its valid bytes",
        f"the next start, or recover, {_fate(part)}",
        is_stuck=True,
        is_for_recover=True,
    )


def _stopped(sink: SinkFacts) -> str:
    return "the sink stopped" if sink.is_running is False else "the sink fell silent, and has probably stopped,"


class PartStatus(Json):
    """One part that is not finished."""

    path: str
    """Its final path, relative to the base; of a staging file that buckets share, the name of its file in each of
    them."""
    bucket: str
    """Its directory, relative to the base; empty for the base."""
    state: KnownState
    """in-progress: open. pending: to be published as it is. abandoned: to be cut and published. staging-file: rows of
    an open columnar part. closed-staging-file: such rows, to be encoded into the part."""
    valid_length: int
    """Bytes that the checkpoint vouches for."""
    rows: int
    """Rows that the checkpoint vouches for."""
    buckets: int | None
    """So many buckets at least share this staging file, which becomes a file in each; null of anything else."""
    finished_buckets: int | None
    """So many of them have their file already; null of anything else."""
    subtask: int | None
    """The subtask that has it in the next batch; null for a part that is not open."""
    checkpoint_id: int
    """The newest checkpoint that names it."""
    age_s: float | None
    """Since its last write, or since the checkpoint that promised it; null where that is not retained."""
    is_stuck: bool
    """Whether nothing will become of it by itself."""
    why: str
    """Why it is there."""
    outcome: str
    """The outcome, in one sentence."""
    is_for_recover: bool
    """Whether ``partfile recover`` mends it."""


class PartsTotal(Json):
    """The parts of a sink in one state."""

    count: int
    """Number of parts."""
    bytes: int
    """Valid bytes."""
    shared: int
    """Multi-bucket staging files among them; encoded ones are not counted."""
    buckets: int | None
    """So many buckets at least share one of those, whichever has most; null if there is none."""
    oldest_age_s: float | None
    """The highest age among them; null if none is known."""


class Problem(Json):
    """Why no start can go on from the newest checkpoint."""

    error: str
    """Name of the error's class."""
    message: str
    """The file that cannot be read, and why."""
    hint: str
    """Advice for the operator; may be empty."""

    @classmethod
    def of(cls, error: PartfileError) -> Self:
        """Describe an error."""
        return cls(error=type(error).__name__, message=error.message, hint=error.hint)

    def to_error(self) -> PartfileError:
        """The error, of the class that it had. It is for an act that changes nothing because of it."""
        kind: type[PartfileError] = getattr(errors, self.error, PartfileError)
        return kind(self.message, hint=joined_hints("Nothing was changed", self.hint))


class SinkStatus(Json):
    """One sink, or one writer of it with a checkpoint log of its own."""

    uid: str
    """The sink."""
    writer: int
    """0 for the sink itself."""
    job: str
    """The directory of its checkpoints: ``uid``, or ``uid~writer``."""
    is_running: bool | None
    """Whether a driver holds its marker; null where no lock can tell: plain Python, and stores without locks."""
    counts_as_stopped: bool
    """Whether its parts are judged as those of a sink that has stopped. If it is not known whether it runs, that is so
    after ``quiet_after_s`` without a checkpoint."""
    epoch: int | None
    """Raised by every start."""
    newest_checkpoint_id: int | None
    """Id of the newest checkpoint."""
    newest_kind: str | None
    """checkpoint; takeover, which a start makes; tombstone, which closes the id of one that did not complete."""
    last_moved_ms: int | None
    """When the newest checkpoint was created, by the coordinator's clock or the store's, whichever says earlier, in
    milliseconds since 1970."""
    quiet_s: float | None
    """Since then."""
    retained_checkpoint_ids: tuple[int, ...]
    """Those whose metadata is there, ascending."""
    query_id: str | None
    """Spark's; null in plain Python."""
    batch_id: int | None
    """The last batch of that query that counts."""
    position: JsonValue
    """Where the input of a sink in plain Python or of a pipeline stands behind the newest checkpoint; null for Spark,
    and where none was passed. That of a topic of Kafka has ``topic``, ``offsets`` and ``ends``, each by partition: the
    offset of the next record that is read, and that behind the last one that the brokers had told of by then."""
    chain: str | None
    """The id in its part names."""
    is_kept: bool
    """A clean stop kept the open parts for the next run."""
    parts: dict[KnownState, PartsTotal]
    """Unfinished parts by state. encoded-staging-file counts staging files that have been encoded; they hold nothing
    up."""
    stuck: tuple[PartStatus, ...]
    """The oldest first."""
    problem: Problem | None
    """Why a start would be refused; null if it would not."""

    @property
    def is_unfinished(self) -> bool:
        """Whether it has parts that are not finished."""
        return any(total.count for state, total in self.parts.items() if state != "encoded-staging-file")

    @property
    def may_be_stuck(self) -> bool:
        """Whether it has parts that are stuck if it has stopped, which is not known yet."""
        return self.is_unfinished and self.is_running is None and not self.counts_as_stopped and not self.is_kept


class StatusReport(Json):
    """The output of ``status --json``."""

    schema_name: Literal["partfile.status"] = Field("partfile.status", alias="schema")
    schema_version: Literal[1] = 1
    base: str
    """The base path as it was given."""
    checkpoints_at: str
    """The directory of its checkpoints."""
    checked_at_ms: int
    """When it was looked at, by this host."""
    quiet_after_s: float
    """A sink that shows nothing else counts as stopped so long after its newest checkpoint, in seconds."""
    sinks: tuple[SinkStatus, ...]
    """Each sink and writer, by name."""
    set_aside: tuple[str, ...] = ()
    """Directories with the rows of parts that were set aside, which no reader of the base sees; relative to
    ``checkpoints_at``."""
    scan: ScanReport | None = None
    """With ``--scan``."""

    @property
    def has_findings(self) -> bool:
        """Whether something is stuck, damaged, missing or set aside."""
        missing = self.scan is not None and bool(self.scan.missing)
        return missing or bool(self.set_aside) or any(sink.stuck or sink.problem for sink in self.sinks)


def set_aside_in(checkpoints: Store) -> tuple[str, ...]:
    """The directories with rows that were set aside, relative to the directory of checkpoints."""
    return tuple(_directories_with_files(checkpoints, SET_ASIDE_DIRECTORY))


def _directories_with_files(checkpoints: Store, directory: str) -> Iterator[str]:
    names = sorted(checkpoints.list_names(directory))
    if any(name.endswith(".arrow") for name in names):
        yield directory
        return
    for name in names:
        yield from _directories_with_files(checkpoints, f"{directory}/{name}")


def status_of(
    seen: SeenBase,
    log: SeenLog,
    now_ms: int,
    quiet_after_s: float,
    moved_at_ms: int | None,
    *,
    damage: PartfileError | None = None,
) -> SinkStatus:
    """Report on one sink; asks whether its driver is alive.

    Args:
        seen: Its base.
        log: Its checkpoint log.
        now_ms: Now, in milliseconds since 1970.
        quiet_after_s: A sink that shows nothing else counts as stopped after so long.
        moved_at_ms: When its newest checkpoint was created, by the store's clock, which recover goes by. The time that
            the checkpoint says itself counts where it is earlier: the clock of a host that died may have been ahead.
        damage: Why it does not start although its newest checkpoint can be read.
    """
    newest, checkpoint = log.newest, log.checkpoints[-1].checkpoint if log.checkpoints else None
    moved_at_ms = min(
        (time for time in (moved_at_ms, checkpoint.time_ms if checkpoint else None) if time is not None), default=None
    )
    quiet_s = None if moved_at_ms is None else max(0.0, (now_ms - moved_at_ms) / 1000)
    position = None if newest is None else newest.state.position
    query = None if position is None else position.query
    facts = SinkFacts(
        is_marker_held(log.storage), quiet_s or 0.0, quiet_after_s, position is not None and position.kept
    )
    current = [part for part in seen.known.current if part.job == log.job]
    if newest is not None:
        named = parts_of(log, newest.checkpoint.checkpoint_id, newest.state)
        encoded = [part for part in named if part.state == "encoded-staging-file"]
        # The sink has deleted the others, or the next start does.
        oldest_id = log.checkpoints[0].checkpoint_id
        current += [part for part in encoded if part.since is not None and part.since > oldest_id]
    parts = [_part_status(part, log, facts, now_ms) for part in current]
    problem = log.problem or seen.elsewhere.get(log.job) or damage
    return SinkStatus(
        uid=log.job.uid,
        writer=log.job.writer,
        job=log.job.name,
        is_running=facts.is_running,
        counts_as_stopped=facts.has_stopped,
        epoch=None if checkpoint is None else checkpoint.epoch,
        newest_checkpoint_id=log.checkpoints[-1].checkpoint_id if log.checkpoints else None,
        newest_kind=None if checkpoint is None else checkpoint.kind,
        last_moved_ms=moved_at_ms,
        quiet_s=quiet_s,
        retained_checkpoint_ids=tuple(one.checkpoint_id for one in log.checkpoints),
        query_id=None if query is None else query.query_id,
        batch_id=None if query is None else query.batch_id,
        position=None if position is None else position.user_position,
        chain=None if position is None else position.chain,
        is_kept=facts.is_kept,
        parts=_totals(parts),
        stuck=tuple(sorted((part for part in parts if part.is_stuck), key=lambda part: -(part.age_s or 0))),
        problem=Problem.of(problem) if problem else None,
    )


def _part_status(part: KnownPart, log: SeenLog, facts: SinkFacts, now_ms: int) -> PartStatus:
    since_ms = part.last_write_ms if part.since is None else log.time_ms_of(part.since)
    explanation = explain(part, facts)
    return PartStatus(
        path=part.path,
        bucket=part.handle.bucket,
        state=part.state,
        valid_length=part.handle.valid_length,
        rows=part.rows,
        buckets=part.buckets,
        finished_buckets=part.finished_buckets,
        subtask=part.subtask,
        checkpoint_id=part.checkpoint_id,
        age_s=None if since_ms is None else max(0.0, (now_ms - since_ms) / 1000),
        is_stuck=explanation.is_stuck,
        why=explanation.why,
        outcome=explanation.outcome,
        is_for_recover=explanation.is_for_recover,
    )


def _totals(parts: Sequence[PartStatus]) -> dict[KnownState, PartsTotal]:
    found: dict[KnownState, PartsTotal] = {}
    states: tuple[KnownState, ...] = get_args(KnownState)
    for state in states:
        some = [part for part in parts if part.state == state]
        ages = [part.age_s for part in some if part.age_s is not None]
        buckets = [part.buckets for part in some if part.buckets is not None]
        found[state] = PartsTotal(
            count=len(some),
            bytes=sum(part.valid_length for part in some),
            shared=len(buckets),
            buckets=max(buckets, default=None),
            oldest_age_s=max(ages, default=None),
        )
    return found
