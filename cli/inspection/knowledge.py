"""What the retained checkpoints of a base know of its files: whose chain, which part, under which names. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from partfile.cli.inspection.affixes import DEFAULT_STAGED, StagedNaming, sidecar_namings, staged_namings, tokens_in
from partfile.cli.inspection.strays import doubtful_ids
from partfile.filesystems.staged_names import is_staged_file, staged_names
from partfile.recovery.layout import DEFAULT_SIDECARS, SidecarNaming
from partfile.sink.naming import numbers_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from partfile.cli.inspection.chains import SeenChain
    from partfile.cli.inspection.places import Job
    from partfile.filesystems.port import PartHandle
    from partfile.sink.naming import PartNumber
    from partfile.sink.planning import SinkSnapshot
    from partfile.sink.states import Stage

KnownState = Literal["in-progress", "pending", "abandoned", "stage", "rolled-stage", "spent-stage"]
"""in-progress: open. pending: to be published as it is. abandoned: to be cut and published. stage: rows of an open
columnar part. rolled-stage: to be encoded into the part, up to its valid length. spent-stage: encoded, kept for older
checkpoints."""
OPEN_STATES: tuple[KnownState, ...] = ("in-progress", "stage")
"""Of parts that grow until something closes them."""


@dataclass(frozen=True, slots=True)
class KnownPart:
    """A part that a retained checkpoint names."""

    job: Job
    handle: PartHandle
    state: KnownState
    """As the newest checkpoint has it that names the part."""
    checkpoint_id: int
    """That checkpoint."""
    since: int | None
    """The first checkpoint that holds it in this state; None while it is open."""
    is_current: bool
    """Whether the state in force names it and its publication is not known to be done: it has to be there."""
    subtask: int | None
    """Who has it in the next batch; None of a part that is not open."""
    rows: int
    """Rows that count in its valid bytes; 0 of a spent stage, whose rows are in the encoded file."""
    created_at_ms: int | None
    """By the coordinator's clock; None of a part that is not open."""
    last_write_ms: int | None
    is_doubtful: bool = False
    """Whether only checkpoints name it that have probably never counted: it may have become another file."""
    stage: Stage | None = None
    """What becomes of it, if it is a stage that is not encoded yet."""
    crc32: int | None = None
    """Of its valid bytes, of a stage or of a file that one was encoded into; None where no checkpoint says it."""

    @property
    def path(self) -> str:
        """Its final path; of a stage that of the file it is encoded into."""
        return self.handle.path_of(self.handle.name)

    @property
    def is_stage(self) -> bool:
        """Whether it is a stage: it is never finished itself, and its length says nothing of the finished file."""
        return self.handle.is_stage

    @property
    def is_shared(self) -> bool:
        """Whether it is a stage that becomes a file a bucket, all of its final name."""
        return self.stage is not None and self.stage.shared

    @property
    def buckets(self) -> int | None:
        """So many buckets at least share this stage; None if none do, or it is spent, so that its files tell."""
        return self.stage.least_buckets if self.stage is not None and self.stage.shared else None

    @property
    def finished_buckets(self) -> int | None:
        """How many of those have their file already, so that its rows there are left out; None as of ``buckets``."""
        return len(self.stage.finished_buckets) if self.stage is not None and self.stage.shared else None

    def has_file_in(self, bucket: str) -> bool:
        """Whether it is a shared stage, and a bucket has its file of it already."""
        return self.stage is not None and bucket in self.stage.finished_buckets

    @property
    def key(self) -> str:
        """What tells it from any other: its final path; of a shared stage its own, for a file may have the final one.

        That is the file of the bucket that is the base.
        """
        return self.handle.path_of(self.handle.in_progress) if self.is_shared else self.path

    @property
    def all_paths(self) -> tuple[str, ...]:
        """The paths under which its bytes can be, in the order of its life."""
        return self.staged_paths if self.is_stage else (*self.staged_paths, self.path)

    @property
    def lookup_path(self) -> str:
        """Where to look for it: a stage has its own name alone, any other part its final one in the end."""
        return self.staged_paths[0] if self.is_stage and self.is_file else self.path

    @property
    def is_file(self) -> bool:
        """Whether it is a file before it is finished."""
        return is_staged_file(self.handle)

    @property
    def number(self) -> PartNumber | None:
        """What its name says; None if it was named by another version."""
        return next(iter(numbers_in(self.handle.name)), None)

    @property
    def staged_paths(self) -> tuple[str, ...]:
        """The paths it can have before it is finished, in the order of its life."""
        return tuple(map(self.handle.path_of, staged_names(self.handle)))


@dataclass(frozen=True, slots=True)
class KnownChain:
    """A chain id that stands in part names."""

    job: Job
    max_count: int
    """The highest part counter of its retained checkpoints; -1 before the first part."""
    shared_from: int | None = None
    """From this counter on, files of several buckets may have one number; None if no two of them have."""


@dataclass(frozen=True, slots=True)
class Knowledge:
    """Everything that tells one file below a base from another."""

    chains: Mapping[str, KnownChain] = field(default_factory=dict)
    """By the id in part names."""
    parts: Mapping[str, KnownPart] = field(default_factory=dict)
    """By their keys; no spent stages, since the encoded file has that path."""
    staged: Mapping[str, KnownPart] = field(default_factory=dict)
    """By every path that a part can have before it is finished."""
    tokens: frozenset[str] = frozenset()
    """In those paths. Each was drawn for one part, so that a file with one of them under another path is a copy."""
    sidecars: tuple[SidecarNaming, ...] = (DEFAULT_SIDECARS,)
    """How the sinks name sidecars; the default ones come last."""
    stagings: tuple[StagedNaming, ...] = DEFAULT_STAGED
    """How the sinks name what is staged; the default ones come last. Other affixes are those of a foreign file."""
    state_directory: str | None = None
    """Where checkpoints lie below the base, if they do so elsewhere than in ``_partfile``."""
    is_complete: bool = True
    """Whether every retained checkpoint could be read. If not, what looks like an orphan may be none."""

    @property
    def current(self) -> list[KnownPart]:
        """The parts that have to be there, by path."""
        return sorted((part for part in self.parts.values() if part.is_current), key=lambda part: (part.path, part.key))

    def named(self, path: str) -> KnownPart | None:
        """The part that somebody means by a path: any name of it.

        The final path in the base stands for a shared stage, too, where the base is none of the buckets that have their
        file already.
        """
        known = self.staged.get(path) or self.parts.get(path)
        if known is not None:
            return known
        return next((part for part in self.current if part.path == path and not part.has_file_in("")), None)


def parts_of(chain: SeenChain, checkpoint_id: int, state: SinkSnapshot) -> Iterator[KnownPart]:
    """The parts that one checkpoint names, its stages among them."""
    newest = chain.newest
    doubtful = checkpoint_id in doubtful_ids(chain)
    in_force = newest is not None and checkpoint_id == newest.link.checkpoint_id
    is_owed = newest is not None and not newest.is_published
    for subtask, opened in sorted(state.open.items()):
        for part in opened:
            yield KnownPart(
                job=chain.job,
                handle=part.part,
                state="in-progress" if part.stage is None else "stage",
                checkpoint_id=checkpoint_id,
                since=None,
                is_current=in_force,
                subtask=subtask,
                rows=part.rows,
                created_at_ms=part.created_at_ms,
                last_write_ms=part.last_write_ms,
                is_doubtful=doubtful,
                stage=part.stage,
                crc32=None if part.stage is None else part.stage.crc32,
            )

    def closed(
        part: PartHandle,
        state: KnownState,
        since: int,
        rows: int,
        crc32: int | None,
        *,
        is_current: bool,
        stage: Stage | None = None,
    ) -> KnownPart:
        return KnownPart(
            job=chain.job,
            handle=part,
            state=state,
            checkpoint_id=checkpoint_id,
            since=since,
            is_current=is_current,
            subtask=None,
            rows=rows,
            created_at_ms=None,
            last_write_ms=None,
            is_doubtful=doubtful,
            stage=stage,
            crc32=crc32,
        )

    for pending in state.pending:
        fate: KnownState = "abandoned" if pending.abandoned else "pending"
        yield closed(pending.part, fate, pending.since, pending.rows, pending.crc32, is_current=in_force and is_owed)
    for rolled in state.rolled:
        crc32, stage = rolled.stage.crc32, rolled.stage
        yield closed(rolled.part, "rolled-stage", rolled.since, rolled.rows, crc32, is_current=in_force, stage=stage)
    for spent in state.spent:
        # It is deleted as soon as no older checkpoint needs it, before a newer one says so.
        yield closed(spent.part, "spent-stage", spent.since, 0, None, is_current=False)


def knowledge_of(
    chains: Iterable[tuple[SeenChain, Mapping[int, SinkSnapshot]]], state_directory: str | None = None
) -> Knowledge:
    """Put together what the chains of a base say.

    Args:
        chains: Each with the states of its retained links.
        state_directory: Where checkpoints lie below the base, if they do so elsewhere than in ``_partfile``.
    """
    ids: dict[str, KnownChain] = {}
    parts: dict[str, KnownPart] = {}
    staged: dict[str, KnownPart] = {}
    is_complete = True
    for chain, states in chains:
        is_complete &= chain.problem is None and not chain.lost_ids
        is_complete &= all(seen.link is not None for seen in chain.links)
        is_complete &= states.keys() >= {one.checkpoint_id for one in chain.links if one.link and one.link.holds_state}
        # From the oldest to the newest, so that what is newer stands; and what is in doubt before all.
        doubtful = doubtful_ids(chain)
        for checkpoint_id, state in sorted(states.items(), key=lambda one: (one[0] not in doubtful, one[0])):
            ids[state.position.chain] = _with_state(ids.get(state.position.chain), chain.job, state)
            for part in parts_of(chain, checkpoint_id, state):
                if part.state != "spent-stage":
                    parts[part.key] = part
                staged |= dict.fromkeys(part.staged_paths, part)
    handles = [part.handle for part in parts.values()]
    return Knowledge(
        chains=ids,
        parts=parts,
        staged=staged,
        tokens=frozenset(token for path in staged for token in tokens_in(path)),
        sidecars=sidecar_namings(handles),
        stagings=staged_namings(handles),
        state_directory=state_directory,
        is_complete=is_complete,
    )


def _with_state(before: KnownChain | None, job: Job, state: SinkSnapshot) -> KnownChain:
    """What one more checkpoint adds to what is known of the chain in part names."""
    if before is None:
        return KnownChain(job, state.max_count, state.position.shared_from)
    shared = [count for count in (before.shared_from, state.position.shared_from) if count is not None]
    return KnownChain(job, max(state.max_count, before.max_count), min(shared, default=None))
