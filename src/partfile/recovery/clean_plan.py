"""The plan of ``clean``: files that no checkpoint needs, decided from checkpoints, names and ages alone (R6). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, takewhile
from typing import TYPE_CHECKING, Any, Literal

from partfile.recovery.documents import Json, Plan
from partfile.recovery.ownership import FailedJob
from partfile.sink.policies import number_in
from partfile.snapshot import documents
from partfile.snapshot.checkpoint_log import LogEntry, subsumable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from partfile.recovery.inspect.files import ClassifiedFile
    from partfile.snapshot.documents import CheckpointMetadata, CheckpointRef
    from partfile.stores.base import Leftover, StoredFile


ItemKind = Literal[
    "orphan",
    "temporary",
    "upload",
    "side object",
    "claim",
    "state file",
    "run file",
    "stray checkpoint",
    "old checkpoint",
]
Side = Literal["base", "checkpoints"]
Action = Literal["quarantine", "delete", "leave"]

MEANING: dict[ItemKind, str] = {
    "orphan": "a staged file that no retained checkpoint names",
    "temporary": "a file that a process was about to rename into place",
    "upload": "an upload of a part that no retained checkpoint names",
    "side object": "bytes of a part that no retained checkpoint names",
    "claim": "left by a part that no retained checkpoint names",
    "state file": "state that no checkpoint names",
    "run file": "keys that no retained checkpoint names",
    "stray checkpoint": "a checkpoint that never counted",
    "old checkpoint": "a checkpoint beyond those to retain",
}


class CleaningOptions(Json):
    """Options of a cleaning."""

    older_than_s: float = 86_400
    """Nothing younger is touched, in seconds by the store's clock."""
    delete: bool = False
    """Delete instead of moving to the quarantine."""
    retain: int | None = None
    """Checkpoints with state to keep of each sink; null deletes none that counts."""


class CleaningItem(Json):
    """One thing that no checkpoint needs."""

    kind: ItemKind
    """The kind of the item."""
    side: Side
    """Whether the path is relative to the base, or to the directory of checkpoints."""
    path: str
    """The file or object; of an upload the file that it would become."""
    job: str | None
    """The sink or writer that it belonged to, where that is known."""
    size: int | None
    """In bytes; null where the store does not say."""
    modified_at_ms: int
    """When it was last changed, by the store's clock, in milliseconds since 1970."""
    upload: str | None = None
    """Id of the upload, if it is one."""
    action: Action
    """leave: this store can only delete, and that was not asked for."""


class CleanedLog(Json):
    """A job that is taken over, and the checkpoint by which its files were judged."""

    job: str
    """The uid, or ``uid~n`` for writer n."""
    checkpoint_id: int
    """The newest checkpoint with state."""
    nonce: str
    """The nonce of that checkpoint, which no other of its id has."""


class DoubtfulCheckpoint(Json):
    """A checkpoint that is left: one between it and the newest is missing, so it is unknown whether it counted."""

    job: str
    """The uid, or ``uid~n`` for writer n."""
    checkpoint_id: int
    """Its id."""


class CleaningPlan(Plan):
    """The plan of ``clean``."""

    base: str = ""
    """The base that was meant, with links resolved: a copy of it has plans of its own."""
    options: CleaningOptions
    """The options that were given."""
    logs: tuple[CleanedLog, ...]
    """The sinks that are taken over: those with something to remove. No other is touched."""
    items: tuple[CleaningItem, ...]
    """The items that no checkpoint needs, by kind."""
    doubtful: tuple[DoubtfulCheckpoint, ...] = ()
    """Checkpoints that are left for the operator to look at."""
    young: int = 0
    """Orphans that are left because they are younger than was told."""
    unreadable: tuple[str, ...] = ()
    """Directories that this user may not read: nothing in them was looked at."""
    failed: tuple[FailedJob, ...] = ()
    """Sinks whose checkpoints cannot be read; none of their files is touched."""

    @property
    def to_do(self) -> tuple[CleaningItem, ...]:
        """The items that are not left where they are."""
        return tuple(item for item in self.items if item.action != "leave")

    def decisions(self) -> dict[str, Any]:
        """The items to remove and the checkpoints that judged them, without the items that are left."""
        logs = [log.model_dump(mode="json") for log in self.logs]
        to_do = [item.model_dump(mode="json") for item in self.to_do]
        return {"base": self.base, "options": self.options.model_dump(mode="json"), "logs": logs, "to_do": to_do}


_MARKS = {documents.PUBLISHED, documents.RELEASED}
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """One directory of a checkpoint."""

    checkpoint_id: int
    checkpoint: CheckpointMetadata | None
    """None if it has none that can be read."""
    files: tuple[StoredFile, ...]
    """By paths relative to the directory of all checkpoints."""

    @property
    def has_metadata(self) -> bool:
        """Whether it has one, be it damaged."""
        return self.checkpoint is not None or any(_name(file) == documents.METADATA for file in self.files)


@dataclass(frozen=True, slots=True)
class JobFacts:
    """One job."""

    name: str
    ref: CheckpointRef
    """Its newest checkpoint with state, before this command took it over."""
    moved_at_ms: int
    """When that was created, by the store's clock."""
    chains: frozenset[str]
    """The ids that stand in the names of its parts."""
    checkpoints: tuple[CheckpointFacts, ...]
    """By their ids, ascending, up to that checkpoint."""
    strays: frozenset[int] = frozenset()
    """Ids of checkpoints that never counted: the checkpoint after each names another one in its place."""
    repeats: frozenset[int] = frozenset()
    """Ids of takeovers that hold what the checkpoint before each does: a start or a command made them, and no row
    came."""
    loose: tuple[StoredFile, ...] = ()
    """Files beside them."""
    shared: tuple[StoredFile, ...] = ()
    """Files in ``shared/``."""
    runs: frozenset[str] = frozenset()
    """Paths of the run files that a retained checkpoint names, as those of ``shared``."""


@dataclass(frozen=True, slots=True)
class CleaningFacts:
    """Everything that is looked at."""

    options: CleaningOptions
    now_ms: int
    """By the store's clock, in milliseconds since 1970."""
    jobs: tuple[JobFacts, ...]
    owns_base: bool
    """Whether these are all known jobs of the base, so that what carries no name is probably theirs too."""
    moves: Mapping[Side, bool]
    """Whether each store can move files."""


def cutoff_ms(options: CleaningOptions, now_ms: int) -> int:
    """The time from which on a changed item is too young.

    An orphan may be younger than the newest checkpoint all the same: the cleaner's own checkpoint comes after it, and
    no epoch before that one can have it named any more.
    """
    return now_ms - round(options.older_than_s * 1000)


def _cutoff_of_state_ms(job: JobFacts, facts: CleaningFacts) -> int:
    """The same for files without the name of a part: they must also be older than the newest checkpoint."""
    return min(cutoff_ms(facts.options, facts.now_ms), job.moved_at_ms)


def plan_cleaning(facts: CleaningFacts, files: Iterable[ClassifiedFile], leftovers: Iterable[Leftover]) -> CleaningPlan:
    """Decide.

    Args:
        facts: What is known of the jobs.
        files: Every file below the base with what it is.
        leftovers: What no listing shows and no retained checkpoint names.
    """
    # A listing has no order, and a plan has one digest. State goes in the order that its deletion needs.
    before_ms, young = cutoff_ms(facts.options, facts.now_ms), 0
    items = list[CleaningItem]()
    for item in chain(_orphans(facts, files), _leftovers(facts, leftovers)):
        if item.modified_at_ms < before_ms:
            items.append(item)
        else:
            young += 1
    items.sort(key=_order)
    items += [item for job in facts.jobs for item in _state(facts, job)]
    owners = {item.job for item in items if item.action != "leave"}
    return CleaningPlan(
        options=facts.options,
        logs=tuple(
            CleanedLog(job=job.name, checkpoint_id=job.ref.checkpoint_id, nonce=job.ref.nonce)
            for job in facts.jobs
            # What carries no name may be another job's.
            if job.name in owners or None in owners
        ),
        items=tuple(items),
        young=young,
        doubtful=tuple(one for job in facts.jobs for one in _doubtful(facts, job)),
    )


def _order(item: CleaningItem) -> tuple[str, str, str]:
    return item.kind, item.path, item.upload or ""


def _orphans(facts: CleaningFacts, files: Iterable[ClassifiedFile]) -> Iterator[CleaningItem]:
    jobs = {job.name: job for job in facts.jobs}
    # A sink that keeps its checkpoints elsewhere may write below this base too; it names such a file within seconds.
    oldest = min((facts.now_ms - _DAY_MS, *(_cutoff_of_state_ms(job, facts) for job in facts.jobs)))
    for one in files:
        owner = jobs.get(one.what.job.name) if one.what.job is not None else None
        if one.what.kind == "orphan" and owner is not None:
            yield _item(facts, "orphan", "base", one.file, owner)
        elif one.what.kind == "temporary" and facts.owns_base and one.file.modified_at_ms < oldest:
            yield _item(facts, "temporary", "base", one.file, None)


def _leftovers(facts: CleaningFacts, leftovers: Iterable[Leftover]) -> Iterator[CleaningItem]:
    chains = {one: job for job in facts.jobs for one in job.chains}
    for one in leftovers:
        number = number_in(one.name, chains) if one.name else None
        if number is None:
            continue
        yield CleaningItem(
            kind=one.kind,
            side="base",
            path=one.path,
            job=chains[number.chain].name,
            size=one.size,
            modified_at_ms=one.modified_at_ms,
            upload=one.upload,
            action="delete" if facts.options.delete else "leave",
        )


def _state(facts: CleaningFacts, job: JobFacts) -> Iterator[CleaningItem]:
    """Checkpoints of a job that are not needed: ``_metadata`` first, then the rest; oldest checkpoint first (R7)."""
    before_ms = _cutoff_of_state_ms(job, facts)
    gone = _doomed(facts, job)
    for file in job.loose:
        if file.modified_at_ms < before_ms and documents.is_temporary(_name(file)):
            yield _item(facts, "temporary", "checkpoints", file, job)
    for file in job.shared:
        if file.modified_at_ms < before_ms and file.path not in job.runs and _holds_state(_name(file)):
            yield _item(facts, "run file", "checkpoints", file, job)
    for one in job.checkpoints:
        kind = gone.get(one.checkpoint_id)
        for file in sorted(one.files, key=lambda file: (_name(file) != documents.METADATA, file.path)):
            if kind is not None and _is_ours(file):
                yield _item(facts, kind, "checkpoints", file, job)
            elif kind is None and file.modified_at_ms < before_ms and _is_unnamed(one, file):
                yield _item(facts, "state file", "checkpoints", file, job)


def _doomed(facts: CleaningFacts, job: JobFacts) -> dict[int, ItemKind]:
    """The checkpoints that go, by their ids, with why.

    Each goes whole or not at all, and those that counted oldest first.
    """
    before_ms = _cutoff_of_state_ms(job, facts)
    young = {
        one.checkpoint_id
        for one in job.checkpoints
        if any(file.modified_at_ms >= before_ms for file in one.files if _is_ours(file))
    }
    gone: dict[int, ItemKind] = dict.fromkeys(job.strays - young, "stray checkpoint")
    if facts.options.retain is not None:
        checkpoints = [
            LogEntry(one.checkpoint_id, _is_retainable(job, one))
            for one in job.checkpoints
            if one.has_metadata and one.checkpoint_id not in job.strays
        ]
        beyond = subsumable(checkpoints, facts.options.retain)
        gone |= dict.fromkeys(takewhile(lambda number: number not in young, beyond), "old checkpoint")
    return gone


def _is_retainable(job: JobFacts, one: CheckpointFacts) -> bool:
    """Whether a checkpoint is a point of its own to go back to.

    A damaged one that the checkpoint log has passed by is none. If a takeover were, each run of this command would drop
    a point.
    """
    return one.checkpoint is not None and one.checkpoint.holds_state and one.checkpoint_id not in job.repeats


def _doubtful(facts: CleaningFacts, job: JobFacts) -> Iterator[DoubtfulCheckpoint]:
    """The checkpoints below a hole, which stay: one that counted is not told there from one that never did."""
    gone, expected, is_whole = _doomed(facts, job), job.ref.checkpoint_id, True
    for one in sorted(job.checkpoints, key=lambda one: one.checkpoint_id, reverse=True):
        if not one.has_metadata or one.checkpoint_id in job.strays:
            continue
        is_whole &= one.checkpoint_id == expected
        expected = one.checkpoint_id - 1
        if not is_whole and one.checkpoint_id not in gone:
            yield DoubtfulCheckpoint(job=job.name, checkpoint_id=one.checkpoint_id)


def _name(file: StoredFile) -> str:
    return file.path.rpartition("/")[2]


def _holds_state(name: str) -> bool:
    return documents.is_state_file(name) or documents.is_temporary(name)


def _is_ours(file: StoredFile) -> bool:
    """Whether a file of a checkpoint's directory has a name that partfile gives there; other files are foreign."""
    name = _name(file)
    return name == documents.METADATA or name in _MARKS or _holds_state(name)


def _is_unnamed(one: CheckpointFacts, file: StoredFile) -> bool:
    """Whether a file of a directory of ours is named by no checkpoint, and by its own name is nothing but that."""
    name = _name(file)
    if one.checkpoint is None and one.has_metadata:
        # What a damaged checkpoint names is unknown; its files go with it.
        return False
    if one.checkpoint is None:
        # Its checkpoint went first, when it was deleted, or was never created.
        return name in _MARKS or _holds_state(name)
    named = {handle.path.rpartition("/")[2] for handle in one.checkpoint.handles() if handle.kind == "file"}
    return name not in named and _holds_state(name)


def _item(facts: CleaningFacts, kind: ItemKind, side: Side, file: StoredFile, job: JobFacts | None) -> CleaningItem:
    return CleaningItem(
        kind=kind,
        side=side,
        path=file.path,
        job=job.name if job else None,
        size=file.size,
        modified_at_ms=file.modified_at_ms,
        action="delete" if facts.options.delete else "quarantine" if facts.moves[side] else "leave",
    )
