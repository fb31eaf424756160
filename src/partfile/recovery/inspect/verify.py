"""``verify``: every invariant of a base, checked against checkpoints and files, also while its sinks run."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import Field

from partfile.errors import (
    FileTooLarge,
    NotFound,
    NotReady,
    PartDamaged,
    PartMissing,
    RecoveryRefused,
    SnapshotCorrupt,
    SnapshotError,
    SnapshotVersionError,
    StoreError,
    joined_hints,
    page_url,
)
from partfile.readers.files import DEFAULT_SIDECARS, MAX_SIDECAR_BYTES
from partfile.recovery.documents import Json
from partfile.recovery.inspect.checkpoints import doubtful_ids, holes, is_deletion, states_of, stray_ids
from partfile.recovery.inspect.files import FileKind, is_of, read_base
from partfile.recovery.inspect.places import no_sink_at, odd_entries
from partfile.recovery.inspect.tree import all_files, missing_parts, read_tree, readable_files
from partfile.sink.clock import system_clock_ms
from partfile.sink.plan import needed_runs
from partfile.snapshot import documents
from partfile.snapshot.documents import FileHandle
from partfile.stores.checksums import crc32_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from fsspec import AbstractFileSystem

    from partfile.errors import PartfileError
    from partfile.recovery.inspect.checkpoints import SeenCheckpoint, SeenLog
    from partfile.recovery.inspect.files import Classified, KnownPart, PartIndex, SeenBase
    from partfile.recovery.inspect.places import Job, Place
    from partfile.recovery.inspect.tree import Tree
    from partfile.sink.states import RunFile
    from partfile.stores.base import Store


Code = Literal[
    "of-another-base",
    "state-unreadable",
    "checkpoint-damaged",
    "checkpoint-of-another-log",
    "log-hole",
    "state-file",
    "run-file",
    "name-beyond-counter",
    "name-twice",
    "published-early",
    "staging-file-published",
    "finished-length",
    "finished-differs",
    "part-missing",
    "part-short",
    "checksum-differs",
    "part-unreadable",
    "sidecar-damaged",
    "sidecar-disagrees",
    "staged-name-of-finished",
    "stray-checkpoint",
    "leftover-checkpoint",
    "moved-away",
    "further-name",
    "lone-sidecar",
    "orphan",
    "temporary",
    "unknown-chain",
    "foreign",
    "unreadable",
    "in-the-way",
]

INVARIANTS: dict[Code, str] = {
    "of-another-base": "the checkpoints are of this base",
    "state-unreadable": "the state of the newest checkpoint can be read",
    "checkpoint-damaged": "every retained checkpoint can be read",
    "checkpoint-of-another-log": "all checkpoints of a sink are of one log",
    "log-hole": "checkpoints follow each other without a hole",
    "state-file": "every state file that a checkpoint names is there, and its checksum holds",
    "run-file": "every run of keys that a checkpoint names is there, and is whole; a note where no start needs it",
    "name-beyond-counter": "no finished file has a number beyond the counter of its chain",
    "name-twice": "no two finished files have one number",
    "published-early": "no part that is still open, or still to be encoded, is finished",
    "staging-file-published": "no staging file is a finished file",
    "finished-length": "a finished file has the length that its checkpoint vouches for",
    "finished-differs": "a finished file holds what a staged file of the same part holds",
    "part-missing": "every part or staging file that the newest checkpoint names is under one of its names",
    "part-short": "every such part or staging file has at least its valid length",
    "checksum-differs": "with `--checksums`: staging files, and files that they were encoded into, hold what "
    "was written",
    "part-unreadable": "with `--checksums`: the store hands them out",
    "sidecar-damaged": "a sidecar holds a decimal number",
    "sidecar-disagrees": "a sidecar says what the checkpoint says, and no more than its file holds",
    "staged-name-of-finished": "no finished file has a staged name as well",
}
"""The invariant that a finding of severity ``error`` contradicts. The other codes are notes."""


_AT_ONCE_BYTES = 1 << 20
"""To read of a file before it is compared."""
_GIVE_UP = (
    "No start encodes it as it is. Without a copy give its rows up: "
    f"{page_url('RUNBOOK', '13-a-columnar-part-is-stuck-as-a-staging-file')}"
)
"""What there is to do about a staging file that is not what was written."""


class Finding(Json):
    """One thing that was found."""

    code: Code
    """The invariant that does not hold, or the kind of note."""
    severity: Literal["error", "note"]
    """A note is no damage: what crashes and people leave, and what a start mends by itself."""
    message: str
    """The finding, in one sentence."""
    hint: str = ""
    """Advice for the operator; may be empty."""
    job: str | None = None
    """The sink or writer (``uid~n``) that it is about."""
    path: str | None = None
    """Relative to the base."""
    checkpoint_id: int | None = None
    """The checkpoint that it is about, or that vouches for the part."""

    @property
    def key(self) -> tuple[str, str | None, str | None, int | None]:
        """The identity of the finding, the same when it is found again."""
        return self.code, self.job, self.path, self.checkpoint_id


class CheckpointFiles(Json):
    """The finished files of one checkpoint, as far as retained checkpoints tell."""

    job: str
    """The sink, or the writer ``uid~n``."""
    checkpoint_id: int
    """The first checkpoint that promised them."""
    files: tuple[str, ...]
    """Their paths."""


class VerifyReport(Json):
    """The output of ``verify --json``."""

    schema_name: Literal["partfile.verify"] = Field("partfile.verify", alias="schema")
    schema_version: Literal[1] = 1
    base: str
    """The base path as it was given."""
    checkpoints_at: str
    """The directory of its checkpoints."""
    jobs: tuple[str, ...]
    """The sinks and writers that were checked."""
    files: dict[FileKind, int]
    """Number of files by kind."""
    checkpoints: tuple[CheckpointFiles, ...]
    """The finished files of retained checkpoints that are there."""
    checksums_compared: int | None = None
    """With ``--checksums``: staging files and encoded files that were read and compared; null without it."""
    findings: tuple[Finding, ...]
    """Errors first."""

    @property
    def errors(self) -> list[Finding]:
        """Those that contradict an invariant."""
        return [finding for finding in self.findings if finding.severity == "error"]


def error(code: Code, message: str, hint: str = "", **where: str | int | None) -> Finding:
    """An invariant that does not hold."""
    return Finding.model_validate({"code": code, "severity": "error", "message": message, "hint": hint, **where})


def note(code: Code, message: str, hint: str = "", **where: str | int | None) -> Finding:
    """Something worth knowing that is no damage."""
    return Finding.model_validate({"code": code, "severity": "note", "message": message, "hint": hint, **where})


def found_twice(first: Iterable[Finding], second: Iterable[Finding]) -> list[Finding]:
    """The findings of a second look, without the errors that the first one did not have.

    While a sink runs, a part can be between two names at the instant when it is looked at; never twice the same part.
    """
    before = {finding.key for finding in first}
    return [finding for finding in second if finding.severity == "note" or finding.key in before]


def log_findings(log: SeenLog) -> Iterator[Finding]:
    """Check one checkpoint log; reads every state file that its checkpoints name.

    Raises:
        StoreError: The store cannot be read.
    """
    if log.problem is not None:
        yield error("state-unreadable", log.problem.message, log.problem.hint, job=log.job.name)
    yield from _checkpoint_findings(log)
    doubtful = doubtful_ids(log)
    for seen in log.checkpoints:
        # The files of one that never counted may have gone with the one that did.
        if seen.checkpoint_id not in doubtful:
            yield from _state_findings(log, seen)
    yield from _run_findings(log, doubtful)


def _checkpoint_findings(log: SeenLog) -> Iterator[Finding]:
    """Check what the checkpoints say of each other. Pure."""
    job, newest = log.job.name, log.checkpoints[-1].checkpoint_id if log.checkpoints else 0
    for seen in log.checkpoints:
        if seen.problem is not None:
            hint = seen.problem.hint or (
                "No start needs checkpoints that are older than the newest. Put the file back from a copy, then type: "
                "partfile verify PATH"
            )
            yield error("checkpoint-damaged", seen.problem.message, hint, job=job, checkpoint_id=seen.checkpoint_id)
    # A first checkpoint that never counted is of a checkpoint log of its own.
    older = [
        seen.checkpoint
        for seen in log.checkpoints[:-1]
        if seen.checkpoint is not None and seen.checkpoint.predecessor is not None
    ]
    logs = {
        checkpoint.log_id
        for checkpoint in [*older, log.checkpoints[-1].checkpoint if log.checkpoints else None]
        if checkpoint is not None
    }
    if len(logs) > 1:
        yield error(
            "checkpoint-of-another-log", f"checkpoints of {len(logs)} logs lie together", "One was copied.", job=job
        )
    yield from _stray_findings(log)
    for number in log.lost_ids:
        if number < newest:
            text = f"of checkpoint {number} only the directory is left"
            yield note("leftover-checkpoint", text, "It is no checkpoint any more.", job=job, checkpoint_id=number)


def _stray_findings(log: SeenLog) -> Iterator[Finding]:
    """Find checkpoints that never counted, and holes that only a hand can have made. Pure."""
    job = log.job.name
    for number in sorted(stray_ids(log)):
        text = f"checkpoint {number} never counted: the one after it names another predecessor"
        yield note("stray-checkpoint", text, "It does no harm; it goes with retention.", job=job, checkpoint_id=number)
    for before, after in holes(log):
        older, missing = before.checkpoint_id, after.checkpoint_id - before.checkpoint_id - 1
        text = f"{missing} checkpoints are missing between {older} and {after.checkpoint_id}"
        if is_deletion(before, after):
            hint = (
                "Another program deleted them. A start goes on from the newest, and needs none of them. See what "
                "there is: partfile checkpoints PATH"
            )
            yield error("log-hole", text, hint, job=job, checkpoint_id=older)
        else:
            hint = (
                "The older one is of a coordinator that was fenced. It does no harm, and the next start deletes it. "
                "See both: partfile checkpoints PATH"
            )
            yield note("stray-checkpoint", text, hint, job=job, checkpoint_id=older)


def _state_findings(log: SeenLog, seen: SeenCheckpoint) -> Iterator[Finding]:
    """Check the files that one checkpoint names, unless they go with it meanwhile."""
    if seen.checkpoint is None:
        return
    for handle in seen.checkpoint.handles():
        try:
            log.storage.read_bytes(handle)
        except SnapshotError as problem:
            if not log.storage.store.file_exists(log.storage.path(documents.metadata_path(seen.checkpoint_id))):
                return
            path = handle.path if isinstance(handle, FileHandle) else None
            yield error(
                "state-file",
                problem.message,
                problem.hint or "Put the file back from a copy.",
                job=log.job.name,
                path=None if path is None else log.storage.path(path),
                checkpoint_id=seen.checkpoint_id,
            )


def _run_findings(log: SeenLog, doubtful: Collection[int]) -> Iterator[Finding]:
    """Check each run of keys that checkpoints name once, unless they go with it meanwhile."""
    checked: set[RunFile] = set()
    # The newest first: of what it names as well, no other one is told.
    for checkpoint_id, state in sorted(states_of(log).items(), reverse=True):
        seen = state.position.seen_keys
        if seen is None or checkpoint_id in doubtful:
            continue
        from partfile.sink.deduplicate import check_run  # noqa: PLC0415 - few sinks have runs, and numpy takes long.

        needed = needed_runs(seen, seen.ttl_ms, system_clock_ms())
        for run in seen.runs:
            if run in checked:
                continue
            checked.add(run)
            try:
                check_run(log.storage, run)
            except SnapshotError as problem:
                if not log.storage.store.file_exists(log.storage.path(documents.metadata_path(checkpoint_id))):
                    break
                path = run.handle.path if isinstance(run.handle, FileHandle) else None
                is_newest = log.newest is None or checkpoint_id == log.newest.checkpoint.checkpoint_id
                make, hint = note, _OLD_RUN_HINT
                if run not in needed:
                    hint = (
                        "Its keys are all forgotten: no start needs it, but with a longer ttl. See: partfile state PATH"
                    )
                elif is_newest:
                    make, hint = error, _run_hint(log.job, problem)
                yield make(
                    "run-file",
                    problem.message,
                    hint,
                    job=log.job.name,
                    path=None if path is None else log.storage.path(path),
                    checkpoint_id=checkpoint_id,
                )


def _run_hint(job: Job, problem: SnapshotError) -> str:
    mend = "Put the file back from a copy, since a start that needs it is refused. Without one"
    if isinstance(problem, SnapshotVersionError):
        mend = "Go on with the version of partfile that wrote it. Without that one"
    return (
        f"{mend} see what it held, and let the sink go on without keys: partfile state PATH --uid {job.name} --forget"
    )


_OLD_RUN_HINT = (
    "The newest checkpoint does not need it, so the sink goes on without it. A sink that goes back to this one needs "
    "it: put it back from a copy for that. See how long this checkpoint stays: partfile checkpoints PATH"
)


_LITTER: dict[FileKind, tuple[Code, str]] = {
    "orphan": (
        "orphan",
        "a crash left it, or a sink has just begun it; partfile clean removes it once it is older than --older-than",
    ),
    "temporary": ("temporary", "a crash left it; partfile clean removes it"),
    "lone-sidecar": ("lone-sidecar", "its part was moved away without it"),
    "unknown-chain": ("unknown-chain", "called like a part, of a chain that no checkpoint here knows"),
    "foreign": ("foreign", "no file of a sink here; readers that list the base read it if its name does not hide it"),
}


def file_findings(tree: Tree, before: PartIndex, after: PartIndex, base: Store) -> Iterator[Finding]:
    """Check a listing. Reads sidecars, and nothing else.

    Args:
        tree: What it has shown.
        before: What the checkpoints said before it.
        after: What they said after it.
        base: The store of the parts.

    Raises:
        StoreError: The store cannot be read.
    """
    yield from _name_findings(tree, after)
    lengths = {}
    for final, what in tree.sidecars.items():
        length = _sidecar_length(base, what)
        if isinstance(length, Finding):
            yield length
        elif length is not None:
            lengths[final] = length
    yield from _length_findings(tree, lengths, after)
    yield from _sidecar_findings(tree, lengths, after, base)
    yield from _short_findings(tree, before, after)
    yield from _identity_findings(tree, base)
    yield from _litter_findings(tree)


def _name_findings(tree: Tree, after: PartIndex) -> Iterator[Finding]:
    for what in tree.beyond:
        chain = after.chains.get(what.number.chain) if what.number is not None else None
        if what.number is not None and (chain is None or what.number.count > chain.max_count):
            counter = "?" if chain is None else chain.max_count
            yield error(
                "name-beyond-counter",
                f"number {what.number.count} is beyond the counter {counter} of its chain",
                "Something else made it, or a newer checkpoint was lost.",
                path=what.path,
                job=_job(what),
            )
    for what, staging_file in tree.early:
        now = after.parts.get(staging_file.key)
        if now is not None and now.is_current and now.is_staging_file:
            yield error(
                "published-early",
                f"it is finished, and checkpoint {now.checkpoint_id} still has its rows in a multi-bucket staging file",
                "Something else made it: move it away before the sink finishes the file of this bucket.",
                path=what.path,
                job=_job(what),
                checkpoint_id=now.checkpoint_id,
            )
    for what in tree.twice:
        yield error(
            "name-twice",
            "another finished file has the same chain, subtask and number",
            "Another program copied or moved one of them: their rows may come twice.",
            path=what.path,
            job=_job(what),
        )
    for path, what in tree.finished.items():
        part = after.parts.get(path)
        if part is not None and part.is_current and (part.is_staging_file or part.state == "in-progress"):
            where = "its rows in a staging file" if part.is_staging_file else "it open"
            yield error(
                "published-early",
                f"it is finished, and checkpoint {part.checkpoint_id} still has {where}",
                "Something else made it: move it away before the sink finishes the part.",
                path=path,
                job=_job(what),
                checkpoint_id=part.checkpoint_id,
            )


def _length_findings(tree: Tree, lengths: dict[str, int], after: PartIndex) -> Iterator[Finding]:
    for path, what in tree.finished.items():
        part = after.parts.get(path)
        if (
            part is None
            or part.is_doubtful
            or part.is_staging_file
            or (part.is_current and part.state == "in-progress")
        ):
            continue
        size, valid = tree.sizes[path], part.handle.valid_length
        # Of a part that was open when it was last named it is only known how long it was then.
        is_right = (
            size == valid or (path in lengths and size >= valid) or (part.state == "in-progress" and size > valid)
        )
        if not is_right:
            yield error(
                "finished-length",
                f"it has {size} bytes, and checkpoint {part.checkpoint_id} vouches for {valid}",
                "Another program changed it: put it back from a copy.",
                path=path,
                job=_job(what),
                checkpoint_id=part.checkpoint_id,
            )


def _sidecar_findings(tree: Tree, lengths: dict[str, int], after: PartIndex, base: Store) -> Iterator[Finding]:
    if not lengths:
        return
    # Listed again, since a finished file may have been seen before its sidecar was known to be of interest.
    sizes = {file.path: file.size for file in readable_files(base, []) if file.path in lengths}
    for final, length in lengths.items():
        what, part, size = tree.sidecars[final], after.parts.get(final), sizes.get(final)
        is_closed = part is not None and not part.is_staging_file and part.state != "in-progress"
        is_promised = part is not None and is_closed and not part.is_doubtful
        promised = part.handle.valid_length if part is not None and is_promised else length
        if (size is not None and length > size) or promised != length:
            holds = f", its file has {size}" if size is not None else ""
            yield error(
                "sidecar-disagrees",
                f"it says {length} bytes{holds}, and {promised} were promised",
                "Another program changed one of them: put it back from a copy.",
                path=what.path,
                job=_job(what),
            )


def _sidecar_length(base: Store, what: Classified) -> int | Finding | None:
    try:
        return DEFAULT_SIDECARS.length_in(base.read_file(what.path, MAX_SIDECAR_BYTES), what.path)
    except NotFound:
        return None
    except (SnapshotCorrupt, FileTooLarge) as problem:
        return error("sidecar-damaged", problem.message, problem.hint, path=what.path, job=_job(what))


def _short_findings(tree: Tree, before: PartIndex, after: PartIndex) -> Iterator[Finding]:
    for part in before.current:
        later = after.parts.get(part.key)
        if not part.is_file or later is None or not later.is_current:
            continue
        sizes = [tree.sizes[path] for path in part.all_paths if path in tree.sizes]
        size, valid = max(sizes, default=None), part.handle.valid_length
        if size is not None and size < valid:
            hint = (
                "Data is missing: another program cut it, or the disk lost it. Put it back from a copy, then type: "
                "partfile verify PATH"
            )
            yield error(
                "part-short",
                f"it has {size} bytes, and checkpoint {part.checkpoint_id} vouches for {valid}",
                joined_hints(hint, _GIVE_UP) if part.is_staging_file else hint,
                path=part.lookup_path,
                job=part.job.name,
                checkpoint_id=part.checkpoint_id,
            )


def conflict_findings(place: Place, tree: Tree, after: PartIndex) -> Iterator[Finding]:
    """Compare each file that has the final name of a part which is still owed with the part's staged file (R5).

    No sink leaves other bytes there. Another program does; or the sink itself, after its checkpoints were put back from
    a backup: it counts from an older number on, and meets a name that it has given before. Nothing tells them apart.

    Args:
        place: Where the base is.
        tree: What a listing has shown.
        after: What the checkpoints said after it.

    Raises:
        ConfigError: Nothing can read from there, for want of a package.
    """
    from partfile.recovery.inspect.content import begin_alike  # noqa: PLC0415 - only reading files waits for pyarrow.

    for path in tree.finished:
        part = after.parts.get(path)
        if part is None or not part.is_current or part.is_staging_file or part.state == "in-progress":
            continue
        for other in part.staged_paths:
            if other in tree.sizes and not begin_alike(
                place.base, place.storage_options, (path, other), part.handle.valid_length
            ):
                yield error(
                    "finished-differs",
                    f"it holds other bytes than {other!r}, which checkpoint {part.checkpoint_id} vouches for",
                    "Another program made it: move it out of the base. Or, if checkpoints were put back from a backup, "
                    "this sink made it: then both hold rows, so delete neither, and give it a new name that readers "
                    "see. Either way: mv FILE ELSEWHERE. The next start publishes the other. "
                    f"{page_url('RUNBOOK', '7-a-foreign-file-is-in-the-way')}",
                    path=path,
                    job=part.job.name,
                    checkpoint_id=part.checkpoint_id,
                )


def _identity_findings(tree: Tree, base: Store) -> Iterator[Finding]:
    for names in tree.identities.values():
        finished = [what for what in names if what.kind == "finished"]
        staged = [what for what in names if what.kind in {"staged", "orphan"}]
        for what in finished:
            if not staged:
                text = "the file has a further name, made by another program; a write under that name changes it"
                yield note("further-name", text, path=what.path, job=_job(what))
        for what in staged if finished else ():
            is_owed = what.part is not None and what.part.is_current and what.part.state != "in-progress"
            text = f"it is the same file as the finished {finished[0].path!r}"
            if what.part is not None and what.part.is_staging_file:
                hint = (
                    "Another program linked it, and no reader can read a staging file. Delete this name: rm "
                    f"{shlex.quote(f'{base.base}/{what.path}')}"
                )
                yield error("staging-file-published", text, hint, path=what.path, job=_job(what))
                continue
            make, hint = (note, "The next start drops it.") if is_owed else (error, "Delete this name, not the other.")
            yield make("staged-name-of-finished", text, hint, path=what.path, job=_job(what))


def _litter_findings(tree: Tree) -> Iterator[Finding]:
    for kind, some in tree.litter.items():
        code, text = _LITTER[kind]
        more = tree.counts[kind] - len(some)
        for place, what in enumerate(some):
            rest = f"; and {more} more of the kind" if more and place == len(some) - 1 else ""
            yield note(code, f"{text}{rest}", path=what.path, job=_job(what))


def moved_findings(known: Iterable[KnownPart], tree: Tree, is_there: Callable[[str], bool]) -> Iterator[Finding]:
    """The parts that a published checkpoint finished and that are not there any more: consumers may move them."""
    for part in known:
        if part.is_doubtful or part.is_staging_file or part.state == "in-progress":
            continue
        if part.is_current and (not part.may_be_taken or any(path in tree.sizes for path in part.staged_paths)):
            continue
        if part.path not in tree.finished:
            if is_there(part.path):
                continue
            did = "promised" if part.is_current else "finished"
            text = f"checkpoint {part.checkpoint_id} {did} it, and it is not there: a consumer moved it, or it is lost"
            yield note("moved-away", text, path=part.path, job=part.job.name, checkpoint_id=part.checkpoint_id)


def _job(what: Classified) -> str | None:
    return None if what.job is None else what.job.name


def verify(
    place: Place,
    base: Store,
    checkpoints: Store | None,
    uid: str | None,
    step: Callable[[int], None],
    *,
    checksums: bool = False,
) -> VerifyReport:
    """Check everything; what seems wrong is looked at a second time, since a running sink moves its parts.

    Args:
        place: Where it is.
        base: Its store of parts.
        checkpoints: Its store of checkpoints; None if there are none.
        uid: Only this sink; None is all, and what belongs to none.
        step: Told how many files more have been looked at.
        checksums: Also read what has a checksum, once; nothing of it changes while a sink runs.

    Raises:
        NotFound: There is no sink with this uid, or none at all.
        StoreError: A store cannot be read.
    """
    seen, tree, findings = _look(place, base, checkpoints, uid, step)
    if any(finding.severity == "error" for finding in findings):
        first = findings
        seen, tree, findings = _look(place, base, checkpoints, uid, step)
        findings = found_twice(first, findings)
    compared = compare(place, base, _of(seen, uid), step) if checksums else None
    findings += [] if compared is None else compared.findings
    return VerifyReport(
        base=place.base,
        checkpoints_at=place.checkpoint_url,
        jobs=tuple(log.job.name for log in seen.chosen(uid)),
        files=dict(sorted(tree.counts.items())),
        checkpoints=tuple(_files_of_checkpoints(seen, tree, uid)),
        checksums_compared=None if compared is None else compared.files,
        findings=tuple(sorted(findings, key=lambda finding: finding.severity)),
    )


def _look(
    place: Place, base: Store, checkpoints: Store | None, uid: str | None, step: Callable[[int], None]
) -> tuple[SeenBase, Tree, list[Finding]]:
    before = read_base(place, checkpoints, uid)
    if not before.logs:
        raise no_sink_at(place)
    # Without filtering: what belongs to no sink is reported only where no sink was asked for.
    unread: list[str] = []
    files = (one for one in all_files(before, base, step, unread) if is_of(one.what.job, uid))
    tree = read_tree(files, before.known)
    after = read_base(place, checkpoints, uid)
    chosen = after.chosen(uid)
    findings = [finding for log in chosen for finding in log_findings(log)]
    findings += [_of_another_base(log.job, after.elsewhere[log.job]) for log in chosen if log.job in after.elsewhere]
    conflicts = [*conflict_findings(place, tree, after.known)]
    # Another program's file under a part's name has no length that a checkpoint vouches for.
    foreign = {("finished-length", conflict.path) for conflict in conflicts}
    found = file_findings(tree, before.known, after.known, base)
    findings += (finding for finding in found if (finding.code, finding.path) not in foreign)
    findings += moved_findings(_of(after, uid), tree, base.file_exists)
    findings += conflicts
    current = [part for part in _of(before, uid) if part.is_current]
    missing = missing_parts(current, tree.sizes, base, checkpoints)
    findings += (_missing(part, tree.elsewhere.get(part.key)) for part in missing)
    findings += map(_unreadable, sorted(unread))
    findings += [] if uid is not None or checkpoints is None else map(_in_the_way, odd_entries(checkpoints))
    return after, tree, findings


def _of(seen: SeenBase, uid: str | None) -> list[KnownPart]:
    return [part for part in seen.known.parts.values() if is_of(part.job, uid)]


def _missing(part: KnownPart, found: str | None) -> Finding:
    hint = (
        "Put it back; or, if a consumer moved it, give it up: partfile recover PATH --uid "
        f"{part.job.name} --accept-missing"
    )
    if found is not None:
        directory = found.rpartition("/")[0] or "the base itself"
        hint = f"Moved: it lies in {directory!r}. Put it back: mv FILE {part.handle.bucket or 'BASE'}/"
    return error(
        "part-missing",
        f"checkpoint {part.checkpoint_id} vouches for {part.handle.valid_length} bytes of it, and it is under none "
        "of its names",
        hint,
        path=part.lookup_path,
        job=part.job.name,
        checkpoint_id=part.checkpoint_id,
    )


def _of_another_base(job: Job, problem: PartfileError) -> Finding:
    return error("of-another-base", problem.message, problem.hint, job=job.name)


def _unreadable(directory: str) -> Finding:
    hint = (
        "Nothing is known of what is in it. If a sink writes there, run this as its user. See who may: ls -ld DIRECTORY"
    )
    return note("unreadable", "this user may not read the directory, so it was passed over", hint, path=directory)


def _in_the_way(name: str) -> Finding:
    text = f"{name!r} lies among the checkpoints and is no directory: no sink's, so it was passed over"
    return note("in-the-way", text, "Move it elsewhere unless another program needs it there.")


def _files_of_checkpoints(seen: SeenBase, tree: Tree, uid: str | None) -> Iterator[CheckpointFiles]:
    found: dict[tuple[str, int], list[str]] = {}
    for part in _of(seen, uid):
        if part.since is not None and not part.is_staging_file and not part.is_doubtful and part.path in tree.finished:
            found.setdefault((part.job.name, part.since), []).append(part.path)
    for (job, checkpoint_id), paths in sorted(found.items()):
        yield CheckpointFiles(job=job, checkpoint_id=checkpoint_id, files=tuple(sorted(paths)))


class Compared(NamedTuple):
    """The result of comparing checksums."""

    files: int
    """The number of staging files and files that were read to their end."""
    findings: tuple[Finding, ...]


def compare(place: Place, base: Store, parts: Iterable[KnownPart], step: Callable[[int], None]) -> Compared:
    """Read every staging file and file whose checksum is known, and compare it.

    What is missing or too short is told elsewhere, and on S3 a file that waits for its publication is in an upload that
    no reader can read. One that cannot be read is reported, and the others are compared.

    Args:
        place: Where the base is.
        base: The store of the parts.
        parts: What checkpoints name.
        step: Told how many files more have been read.

    Raises:
        ConfigError: Nothing can read from there, for want of a package.
    """
    from partfile.readers.filesystem import open_for_reading  # noqa: PLC0415 - only reading files waits for it.

    files, findings = 0, list[Finding]()
    behind, root = open_for_reading(place.base, place.storage_options)
    for part in parts:
        if part.crc32 is None or part.is_doubtful:
            continue
        try:
            found = _read(base, behind, root, part)
        except (StoreError, OSError) as problem:
            # Another one's may be read all the same.
            found = _unread(part, problem)
        if isinstance(found, int):
            files += 1
            step(1)
            found = _judged(part, found)
        findings += [] if found is None else [found]
    return Compared(files, tuple(findings))


def _read(base: Store, behind: AbstractFileSystem, root: str, part: KnownPart) -> int | Finding | None:
    """CRC-32 of a part, or the finding to report. None if it has no checksum here or has moved."""
    from partfile.recovery.inspect.content import open_known  # noqa: PLC0415 - likewise.

    try:
        return _crc32_of(
            base.open_staging_file(part.handle) if part.is_staging_file else open_known(behind, root, part)
        )
    except (RecoveryRefused, NotFound, FileNotFoundError):
        return None
    except PartMissing as problem:
        # A file may have been moved away; a staging file that is there has lost bytes.
        return _differs(part, problem.message) if part.is_staging_file and base.is_staged(part.handle) else None
    except PartDamaged as problem:
        return _differs(part, problem.message)


def _judged(part: KnownPart, found: int) -> Finding | None:
    if found == part.crc32:
        return None
    says = f"checkpoint {part.checkpoint_id} says {part.crc32:08x}"
    return _differs(part, f"its {part.handle.valid_length} bytes have the CRC-32 {found:08x}, and {says}")


def _crc32_of(opened: Any) -> int:
    crc32 = 0
    with opened as file:
        while data := file.read(_AT_ONCE_BYTES):
            crc32 = crc32_of(data, crc32)
    return crc32


def _differs(part: KnownPart, what: str) -> Finding:
    hint = (
        "A disk, a copy or another program changed it. Put it back from a copy, then type: partfile verify PATH "
        "--checksums"
    )
    if part.is_staging_file:
        hint = joined_hints(hint, _GIVE_UP)
    return error(
        "checksum-differs",
        what,
        hint,
        path=part.lookup_path,
        job=part.job.name,
        checkpoint_id=part.checkpoint_id,
    )


def _unread(part: KnownPart, problem: StoreError | OSError) -> Finding:
    said, hint = (problem.message, problem.hint) if isinstance(problem, StoreError) else (str(problem), "")
    text = f"its checksum was not compared: {said}"
    if isinstance(problem, NotReady):
        return note("unreadable", text, hint, path=part.lookup_path, job=part.job.name)
    # A staging file that only older checkpoints name is not missed.
    make = error if part.is_current or not part.is_staging_file else note
    hint = hint or (
        "Look after the disk or the store if a second run says the same, as the user of the sink: partfile verify PATH"
    )
    where: dict[str, str | int] = {"path": part.lookup_path, "job": part.job.name, "checkpoint_id": part.checkpoint_id}
    return make("part-unreadable", text, hint, **where)
