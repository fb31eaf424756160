"""The kind of each file below a base: finished, staged, orphan, sidecar, temporary, foreign. Pure.

Deleting and repairing go by this too, so a file that is not surely ours is foreign.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from partfile.errors import NotFound, RecoveryRefused
from partfile.readers.files import DEFAULT_SIDECARS, SidecarNaming, is_hidden
from partfile.recovery.inspect.checkpoints import doubtful_ids, read_checkpoint_log, states_of
from partfile.recovery.inspect.places import Job, jobs_in
from partfile.sink.policies import HIDING_PREFIXES, PartNaming, number_in, numbers_in
from partfile.sink.restore import BaseTie
from partfile.sink.settings import RestoreSettings
from partfile.snapshot.documents import is_temporary
from partfile.stores.base import STATE_DIRECTORY
from partfile.stores.parts import is_staged_file, staged_names
from partfile.stores.paths import TOKEN_HEX_DIGITS, is_relative_path
from partfile.stores.registry import has_directories, is_same_place, path_inside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from partfile.errors import PartfileError
    from partfile.recovery.inspect.checkpoints import SeenLog
    from partfile.recovery.inspect.places import Place
    from partfile.sink.plan import SinkSnapshot
    from partfile.sink.policies import PartNumber
    from partfile.sink.states import StagingFile
    from partfile.stores.base import PartHandle, Store, StoredFile


_TOKEN = rf"\.[0-9a-f]{{{TOKEN_HEX_DIGITS}}}"
_REST = re.compile(rf"{_TOKEN}(.*)", re.DOTALL)
_TOKENS = re.compile(_TOKEN)


@dataclass(frozen=True, slots=True)
class StagedNaming:
    """The prefix and suffix of a staged name, around the final name and the token."""

    prefix: str
    suffix: str

    def final_of(self, name: str) -> str | None:
        """The final name of the part whose staged name this is; None if it is no such name, or that would be hidden."""
        found = re.fullmatch(rf"{re.escape(self.prefix)}([^_.].*){_TOKEN}{re.escape(self.suffix)}", name)
        return found[1] if found else None


_DEFAULTS = PartNaming()
DEFAULT_STAGED = (
    StagedNaming(_DEFAULTS.in_progress_prefix, _DEFAULTS.in_progress_suffix),
    StagedNaming(_DEFAULTS.pending_prefix, _DEFAULTS.pending_suffix),
)


def tokens_in(name: str) -> list[str]:
    """The places in a name that look like the token of a staged file."""
    return _TOKENS.findall(name)


def sidecar_namings(parts: Iterable[PartHandle]) -> tuple[SidecarNaming, ...]:
    """The affixes that the parts' own sidecars have."""
    found: dict[SidecarNaming, None] = {}
    for part in parts:
        prefix, name, suffix = part.sidecar.partition(part.name)
        if name and prefix.startswith(("_", ".")):
            found[SidecarNaming(prefix, suffix)] = None
    found.pop(DEFAULT_SIDECARS, None)
    return (*found, DEFAULT_SIDECARS)


def staged_namings(parts: Iterable[PartHandle]) -> tuple[StagedNaming, ...]:
    """The affixes that the parts' own staged names have."""
    found: dict[StagedNaming, None] = {}
    for part in parts:
        for staged in (part.in_progress, part.pending):
            prefix, name, rest = staged.partition(part.name)
            match = _REST.fullmatch(rest)
            if name and match and prefix.startswith(HIDING_PREFIXES):
                found[StagedNaming(prefix, match[1])] = None
    return (*(one for one in found if one not in DEFAULT_STAGED), *DEFAULT_STAGED)


FileKind = Literal[
    "finished",
    "staged",
    "orphan",
    "sidecar",
    "lone-sidecar",
    "temporary",
    "checkpoint",
    "unknown-chain",
    "foreign",
]

MEANING: dict[FileKind, str] = {
    "finished": "a finished part of a sink here",
    "staged": "a part that a retained checkpoint names, under a name from before it was finished; or a staging "
    "file of one",
    "orphan": "a staged file of a sink here that no retained checkpoint names",
    "sidecar": "holds the valid length of a part that is there",
    "lone-sidecar": "holds the valid length of a part that is not there",
    "temporary": "a file that a process was about to rename into place",
    "checkpoint": "a checkpoint of a sink that keeps them below its base",
    "unknown-chain": "called like a part, but of a chain that no retained checkpoint here knows",
    "foreign": "nothing of a sink here",
}


@dataclass(frozen=True, slots=True)
class Classified:
    """One path and what it is."""

    path: str
    kind: FileKind
    job: Job | None = None
    """The sink or writer that it belongs to, where that is known."""
    number: PartNumber | None = None
    """The number in its name, of a part or a staged file of a known chain."""
    part: KnownPart | None = None
    """The part of a retained checkpoint that it is, or whose sidecar it is."""
    final_path: str | None = None
    """The part's final path, of a sidecar."""


@dataclass(frozen=True, slots=True)
class ClassifiedFile:
    """One listed file and what it is."""

    file: StoredFile
    what: Classified


def classify(path: str, known: PartIndex) -> Classified:
    """Classify a path below the base by its name and by the checkpoints.

    A path does not tell whether the part of a sidecar is there: see ``classified``.

    Args:
        path: Relative to the base.
        known: What the checkpoints say; from before the file was listed, or from after it.
    """
    staged = known.staged.get(path)
    if staged is not None:
        return Classified(path, "staged", staged.job, number_in(staged.handle.name, known.chains), staged)
    inside = known.state_directory
    if inside is not None and path.startswith(f"{inside}/"):
        return Classified(path, "checkpoint")
    directory, _, name = path.rpartition("/")
    if (directory and is_hidden(directory)) or not is_relative_path(path):
        return Classified(path, "foreign")
    if not is_hidden(name):
        return _visible(path, name, known)
    if is_temporary(name):
        return Classified(path, "temporary")
    return _sidecar(path, directory, name, known) or _hidden(path, name, known)


def classified(
    files: Iterable[StoredFile], known: PartIndex, is_there: Callable[[str], bool]
) -> Iterator[ClassifiedFile]:
    """Classify files of a listing as they come; sidecars come last, once it is known whether their parts are there.

    Holds nothing but the sidecars in memory.

    Args:
        files: The listing.
        known: What the checkpoints say.
        is_there: Whether a path below the base is there now; asked for the final path of each sidecar.
    """
    sidecars = []
    for file in files:
        what = classify(file.path, known)
        if what.kind == "sidecar":
            sidecars.append(ClassifiedFile(file, what))
        else:
            yield ClassifiedFile(file, what)
    for one in sidecars:
        part, final = one.what.part, one.what.final_path
        # It is made before the final name of its part.
        is_early = part is not None and part.is_current
        if is_early or (final is not None and is_there(final)):
            yield one
        else:
            yield ClassifiedFile(one.file, Classified(one.what.path, "lone-sidecar", one.what.job, one.what.number))


def _visible(path: str, name: str, known: PartIndex) -> Classified:
    number = number_in(name, known.chains)
    if number is not None:
        return Classified(path, "finished", known.chains[number.chain].job, number, known.parts.get(path))
    return Classified(path, "unknown-chain" if numbers_in(name) else "foreign")


def _sidecar(path: str, directory: str, name: str, known: PartIndex) -> Classified | None:
    for naming in known.sidecars:
        if not (name.startswith(naming.prefix) and name.endswith(naming.suffix)):
            continue
        final = name[len(naming.prefix) : len(name) - len(naming.suffix)]
        number = number_in(final, known.chains) if final else None
        if number is not None:
            final_path = f"{directory}/{final}" if directory else final
            job = known.chains[number.chain].job
            return Classified(path, "sidecar", job, number, known.parts.get(final_path), final_path)
    return None


def _hidden(path: str, name: str, known: PartIndex) -> Classified:
    """Only the whole grammar makes a name ours: a copy, a note or a checksum of others may hold a token too.

    And only one path: a copy of a part that a checkpoint names is kept.
    """
    if not known.tokens.isdisjoint(tokens_in(name)):
        return Classified(path, "foreign")
    finals = [final for naming in known.stagings if (final := naming.final_of(name)) is not None]
    for final in finals:
        number = number_in(final, known.chains)
        if number is not None:
            return Classified(path, "orphan", known.chains[number.chain].job, number)
    return Classified(path, "unknown-chain" if any(map(numbers_in, finals)) else "foreign")


KnownState = Literal[
    "in-progress", "pending", "abandoned", "staging-file", "closed-staging-file", "encoded-staging-file"
]
"""in-progress: open. pending: to be published as it is. abandoned: to be cut and published. staging-file: rows of an
open columnar part. closed-staging-file: to be encoded into the part, up to its valid length. encoded-staging-file:
encoded, kept for older checkpoints."""
OPEN_STATES: tuple[KnownState, ...] = ("in-progress", "staging-file")
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
    """The subtask that has it in the next batch; None for a part that is not open."""
    rows: int
    """Rows that count in its valid bytes; 0 of an encoded staging file, whose rows are in the encoded file."""
    created_at_ms: int | None
    """By the coordinator's clock; None of a part that is not open."""
    last_write_ms: int | None
    is_doubtful: bool = False
    """Whether only checkpoints name it that have probably never counted: it may have become another file."""
    staging_file: StagingFile | None = None
    """The file that it is to be encoded into, if it is a staging file."""
    may_be_taken: bool = False
    """Whether a consumer may have taken its file: it is promised, and the sink was told that consumers take files."""
    crc32: int | None = None
    """Of its valid bytes, of a staging file or of a file that one was encoded into; None where no checkpoint says
    it."""

    @property
    def path(self) -> str:
        """Its final path; of a staging file that of the file it is encoded into."""
        return self.handle.path_of(self.handle.name)

    @property
    def is_staging_file(self) -> bool:
        """Whether it is a staging file.

        It is never finished itself, and its length says nothing of the finished file.
        """
        return self.handle.is_staging_file

    @property
    def is_shared(self) -> bool:
        """Whether it is a staging file that becomes a file a bucket, all of its final name."""
        return self.staging_file is not None and self.staging_file.shared

    @property
    def buckets(self) -> int | None:
        """The buckets that share this staging file, at least; None if none do, or if it is encoded: its files tell."""
        return self.staging_file.least_buckets if self.staging_file is not None and self.staging_file.shared else None

    @property
    def finished_buckets(self) -> int | None:
        """The number of those that have their file already: their rows in it do not count; None as of ``buckets``."""
        return (
            len(self.staging_file.finished_buckets)
            if self.staging_file is not None and self.staging_file.shared
            else None
        )

    def has_file_in(self, bucket: str) -> bool:
        """Whether it is a multi-bucket staging file, and a bucket has its file of it already."""
        return self.staging_file is not None and bucket in self.staging_file.finished_buckets

    @property
    def key(self) -> str:
        """The identity of the part: its final path.

        A multi-bucket staging file has its own path for it: the file of the bucket that is the base may have the final
        one.
        """
        return self.handle.path_of(self.handle.in_progress) if self.is_shared else self.path

    @property
    def all_paths(self) -> tuple[str, ...]:
        """The paths under which its bytes can be, in the order of its life."""
        return self.staged_paths if self.is_staging_file else (*self.staged_paths, self.path)

    @property
    def lookup_path(self) -> str:
        """The path to look under: a staging file has its own name alone, any other part its final one in the end."""
        return self.staged_paths[0] if self.is_staging_file and self.is_file else self.path

    @property
    def is_file(self) -> bool:
        """Whether it is a file before it is finished."""
        return is_staged_file(self.handle)

    @property
    def number(self) -> PartNumber | None:
        """The number in its name; None if it was named by another version."""
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
class PartIndex:
    """Everything that tells one file below a base from another."""

    chains: Mapping[str, KnownChain] = field(default_factory=dict)
    """By the id in part names."""
    parts: Mapping[str, KnownPart] = field(default_factory=dict)
    """By their keys; no encoded staging files, since the encoded file has that path."""
    staged: Mapping[str, KnownPart] = field(default_factory=dict)
    """By every path that a part can have before it is finished."""
    tokens: frozenset[str] = frozenset()
    """In those paths. Each was drawn for one part, so that a file with one of them under another path is a copy."""
    sidecars: tuple[SidecarNaming, ...] = (DEFAULT_SIDECARS,)
    """The sinks' names for sidecars; the default ones come last."""
    stagings: tuple[StagedNaming, ...] = DEFAULT_STAGED
    """The sinks' affixes of staged files; the default ones come last. Other affixes are those of a foreign file."""
    state_directory: str | None = None
    """The directory of checkpoints below the base, if they do so elsewhere than in ``_partfile``."""
    is_complete: bool = True
    """Whether every retained checkpoint could be read. If not, what looks like an orphan may be none."""

    @property
    def current(self) -> list[KnownPart]:
        """The parts that have to be there, by path."""
        return sorted((part for part in self.parts.values() if part.is_current), key=lambda part: (part.path, part.key))

    def named(self, path: str) -> KnownPart | None:
        """The part that a path means: any of its names.

        The final path in the base stands for a multi-bucket staging file, too, where the base is none of the buckets
        that have their file already.
        """
        known = self.staged.get(path) or self.parts.get(path)
        if known is not None:
            return known
        return next((part for part in self.current if part.path == path and not part.has_file_in("")), None)


def parts_of(log: SeenLog, checkpoint_id: int, state: SinkSnapshot) -> Iterator[KnownPart]:
    """The parts that one checkpoint names, its staging files among them."""
    newest = log.newest
    doubtful = checkpoint_id in doubtful_ids(log)
    in_force = newest is not None and checkpoint_id == newest.checkpoint.checkpoint_id
    is_owed = newest is not None and not newest.is_published
    for subtask, opened in sorted(state.open.items()):
        for part in opened:
            yield KnownPart(
                job=log.job,
                handle=part.part,
                state="in-progress" if part.staging_file is None else "staging-file",
                checkpoint_id=checkpoint_id,
                since=None,
                is_current=in_force,
                subtask=subtask,
                rows=part.rows,
                created_at_ms=part.created_at_ms,
                last_write_ms=part.last_write_ms,
                is_doubtful=doubtful,
                staging_file=part.staging_file,
                crc32=None if part.staging_file is None else part.staging_file.crc32,
            )

    def known(
        part: PartHandle,
        state: KnownState,
        since: int,
        rows: int,
        crc32: int | None,
        *,
        is_current: bool,
        staging_file: StagingFile | None = None,
    ) -> KnownPart:
        return KnownPart(
            job=log.job,
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
            staging_file=staging_file,
            crc32=crc32,
        )

    for pending in state.pending:
        fate: KnownState = "abandoned" if pending.abandoned else "pending"
        promised = known(
            pending.part, fate, pending.since, pending.rows, pending.crc32, is_current=in_force and is_owed
        )
        yield replace(promised, may_be_taken=state.position.consumers_take_files)
    for closed in state.closed:
        crc32, staging_file = closed.staging_file.crc32, closed.staging_file
        yield known(
            closed.part,
            "closed-staging-file",
            closed.since,
            closed.rows,
            crc32,
            is_current=in_force,
            staging_file=staging_file,
        )
    for encoded in state.encoded:
        # It is deleted as soon as no older checkpoint needs it, before a newer one says so.
        yield known(encoded.part, "encoded-staging-file", encoded.since, 0, None, is_current=False)


def part_index_of(
    logs: Iterable[tuple[SeenLog, Mapping[int, SinkSnapshot]]], state_directory: str | None = None
) -> PartIndex:
    """Put together what the checkpoint logs of a base say.

    Args:
        logs: Each with the states of its retained checkpoints.
        state_directory: Where checkpoints lie below the base, if they do so elsewhere than in ``_partfile``.
    """
    ids: dict[str, KnownChain] = {}
    parts: dict[str, KnownPart] = {}
    staged: dict[str, KnownPart] = {}
    is_complete = True
    for log, states in logs:
        is_complete &= log.problem is None and not log.lost_ids
        is_complete &= all(seen.checkpoint is not None for seen in log.checkpoints)
        is_complete &= states.keys() >= {
            one.checkpoint_id for one in log.checkpoints if one.checkpoint and one.checkpoint.holds_state
        }
        # From the oldest to the newest, so that what is newer stands; and what is in doubt before all.
        doubtful = doubtful_ids(log)
        for checkpoint_id, state in sorted(states.items(), key=lambda one: (one[0] not in doubtful, one[0])):
            ids[state.position.chain] = _with_state(ids.get(state.position.chain), log.job, state)
            for part in parts_of(log, checkpoint_id, state):
                if part.state != "encoded-staging-file":
                    parts[part.key] = part
                staged |= dict.fromkeys(part.staged_paths, part)
    handles = [part.handle for part in parts.values()]
    return PartIndex(
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
    """The facts about the chain in part names, with those of one more checkpoint."""
    if before is None:
        return KnownChain(job, state.max_count, state.position.shared_from)
    shared = [count for count in (before.shared_from, state.position.shared_from) if count is not None]
    return KnownChain(job, max(state.max_count, before.max_count), min(shared, default=None))


@dataclass(frozen=True, slots=True)
class SeenBase:
    """The sinks of a base as their checkpoints show them."""

    logs: tuple[SeenLog, ...]
    """Of every job whose checkpoints are there."""
    known: PartIndex
    """Of every job of this base, so that no sink's file is taken for a foreign one."""
    elsewhere: Mapping[Job, PartfileError] = field(default_factory=dict)
    """Jobs whose checkpoints are of another base, with what says so."""

    def chosen(self, uid: str | None) -> list[SeenLog]:
        """The checkpoint logs of one sink and its writers, or of one writer; None is all.

        Sinks of several bases may share a directory of checkpoints: those of others are left out unless none is of this
        one.
        """
        if uid is not None:
            return [log for log in self.logs if uid in {log.job.uid, log.job.name}]
        return [log for log in self.logs if log.job not in self.elsewhere] or list(self.logs)


def read_base(place: Place, checkpoints: Store | None, uid: str | None = None) -> SeenBase:
    """Read what the checkpoints of a base say. No bucket is listed.

    Args:
        place: Where it is.
        checkpoints: Its store of checkpoints; None if there are none.
        uid: Insist on this sink.

    Raises:
        NotFound: There is no sink with this uid; or all checkpoints are of another base, and this one is not there.
        ConfigError: No sink can be called so.
        StoreError: The store cannot be read.
    """
    if checkpoints is None:
        return SeenBase((), PartIndex())
    if uid is not None:
        jobs_in(checkpoints, uid)
    logs = tuple(read_checkpoint_log(checkpoints, job) for job in jobs_in(checkpoints))
    elsewhere = {log.job: error for log in logs if (error := _of_another_base(place, log)) is not None}
    ours = [log for log in logs if log.job not in elsewhere]
    asked = [log for log in logs if is_of(log.job, uid)]
    if asked and (all(log.job in elsewhere for log in asked) or any(_is_apart(place, log) for log in asked)):
        _check_base(place, asked)
    known = part_index_of([(log, states_of(log)) for log in ours], _state_directory(place))
    return SeenBase(logs, known, elsewhere)


def is_of(job: Job | None, uid: str | None) -> bool:
    """Whether a file belongs to the sink that was asked for; without one asked for, every file does."""
    return uid is None or (job is not None and uid in {job.uid, job.name})


def _of_another_base(place: Place, log: SeenLog) -> PartfileError | None:
    """The error of a start whose log belongs to another base; None if the base is the right one."""
    if log.newest is None:
        return None
    settings = RestoreSettings(
        base=place.base,
        uid=log.job.uid,
        checkpoint_dir=place.checkpoint_dir,
        storage_options=place.storage_options,
    )
    try:
        BaseTie.of(settings).check(log.newest.state.position.base, log.job.name)
    except RecoveryRefused as error:
        return error
    return None


def _is_apart(place: Place, log: SeenLog) -> bool:
    """Whether a sink has written rows and keeps its checkpoints elsewhere: they say nothing of a base that is gone."""
    held = None if log.newest is None else log.newest.state.position.row_schema
    return place.checkpoint_dir is not None and held is not None and has_directories(place.base)


def _check_base(place: Place, logs: Sequence[SeenLog]) -> None:
    """Refuse a base that is not there, naming that of the checkpoints where it is another: it was mistyped then."""
    try:
        place.open_base().close()
    except NotFound as error:
        notes = {log.job.name: log.newest.state.position.base for log in logs if log.newest is not None}
        told = {
            name: note
            for name, note in notes.items()
            if note is not None and not is_same_place(note, place.base, place.storage_options)
        }
        if not told:
            raise
        name, note = next(iter(told.items()))
        elsewhere = f" --checkpoint-dir {shlex.quote(str(place.checkpoint_dir))}" if place.checkpoint_dir else ""
        others = f", and of {len(told) - 1} more sinks elsewhere" if len(told) > 1 else ""
        raise NotFound(
            f"{error.message}: the checkpoints of sink {name!r} are of the base {note!r}{others}",
            hint=f"Type: partfile status {shlex.quote(note)} --uid {name}{elsewhere}",
            path=error.path,
        ) from error


def _state_directory(place: Place) -> str | None:
    inside = path_inside(place.checkpoint_url, place.base, place.storage_options)
    return "/".join(inside) if inside and inside[0] != STATE_DIRECTORY else None
