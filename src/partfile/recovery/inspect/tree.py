"""``list``: every part and every file below a base, one after the other, filtered and in pages."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, get_args

from pydantic import Field

from partfile.errors import DirectoriesUnreadable, FileTooLarge, NotFound, SnapshotCorrupt
from partfile.readers.files import DEFAULT_SIDECARS, MAX_SIDECAR_BYTES
from partfile.recovery.documents import Json
from partfile.recovery.inspect.checkpoints import read_checkpoint_log
from partfile.recovery.inspect.files import FileKind, classified, is_of, parts_of
from partfile.sink.policies import unmarked

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from partfile.recovery.inspect.files import Classified, ClassifiedFile, KnownPart, PartIndex, SeenBase
    from partfile.sink.policies import PartNumber
    from partfile.stores.base import MetadataStore, Store, StoredFile


_LOOKS = 2
"""A part that moves between two looks is under a later name at the second."""


def missing_parts(
    parts: Iterable[KnownPart], seen_paths: Collection[str], base: Store, checkpoints: MetadataStore | None
) -> list[KnownPart]:
    """The parts that are under none of their names, and that the checkpoints still name after that was seen.

    A part whose file a consumer may have taken is not missed.

    Args:
        parts: Those that have to be there.
        seen_paths: Those of their paths that a listing has shown.
        base: The store of the parts.
        checkpoints: That of the checkpoints.

    Raises:
        StoreError: A store cannot be read.
    """
    candidates = [part for part in parts if not part.may_be_taken and not _is_seen(part, seen_paths)]
    gone = [part for part in candidates if not _is_there(part, base)]
    if not gone or checkpoints is None:
        return gone
    still = {_key(part) for job in {part.job for part in gone} for part in _current(checkpoints, gone, job.name)}
    return [part for part in gone if _key(part) in still]


def current_parts(seen: SeenBase, uid: str | None) -> list[KnownPart]:
    """The parts of the chosen sinks that have to be there."""
    jobs = {log.job for log in seen.chosen(uid)}
    return [part for part in seen.known.current if part.job in jobs]


def _is_seen(part: KnownPart, seen_paths: Collection[str]) -> bool:
    return any(path in seen_paths for path in part.all_paths)


def _key(part: KnownPart) -> tuple[str, str]:
    # A staging file and the file that it has been encoded into have one final path.
    return part.path, part.handle.in_progress


def _is_there(part: KnownPart, base: Store) -> bool:
    if part.is_staging_file:
        return base.is_staged(part.handle)
    if base.file_exists(part.path):
        return True
    if not part.is_file:
        return base.is_staged(part.handle) or base.file_exists(part.path)
    return any(base.is_staged(part.handle) or base.file_exists(part.path) for _ in range(_LOOKS))


def _current(checkpoints: MetadataStore, gone: Sequence[KnownPart], name: str) -> list[KnownPart]:
    (job,) = {part.job for part in gone if part.job.name == name}
    log = read_checkpoint_log(checkpoints, job)
    if log.newest is None:
        return []
    found = parts_of(log, log.newest.checkpoint.checkpoint_id, log.newest.state)
    return [part for part in found if part.is_current]


MAX_EXAMPLES = 20


class KindTotal(Json):
    """The files of one kind."""

    files: int
    """Number of files."""
    bytes: int
    """Of all of them, as stored."""
    examples: tuple[str, ...]
    """The first paths that were seen; ``partfile list`` shows all."""


class ScanReport(Json):
    """The result of listing the whole tree."""

    kinds: dict[FileKind, KindTotal]
    """Only kinds that were found."""
    is_complete: bool
    """Whether every retained checkpoint could be read. If not, what looks like an orphan may be a part that counts."""
    unreadable: tuple[str, ...] = ()
    """Directories that this user may not read: what is in them is not known."""
    missing: tuple[str, ...]
    """Final paths of parts that the newest checkpoint vouches for and that are under none of their names."""


def scan(
    seen: SeenBase, base: Store, checkpoints: MetadataStore | None, uid: str | None, step: Callable[[int], None]
) -> ScanReport:
    """Classify every file below the base.

    Args:
        seen: What the checkpoints said before.
        base: The store of the parts.
        checkpoints: That of the checkpoints; asked again if a part seems to be missing.
        uid: Only files of this sink; None is all, foreign ones included.
        step: Told how many files more have been looked at.

    Raises:
        StoreError: A store cannot be read.
    """
    files: Counter[FileKind] = Counter()
    sizes: Counter[FileKind] = Counter()
    examples: dict[FileKind, list[str]] = {}
    parts = current_parts(seen, uid)
    wanted = {path for part in parts for path in part.all_paths}
    found: set[str] = set()
    unread: list[str] = []
    for one in all_files(seen, base, step, unread):
        if one.file.path in wanted:
            found.add(one.file.path)
        if not is_of(one.what.job, uid):
            continue
        kind = one.what.kind
        files[kind] += 1
        sizes[kind] += one.file.size
        if len(examples.setdefault(kind, [])) < MAX_EXAMPLES:
            examples[kind].append(one.file.path)
    return ScanReport(
        kinds={
            kind: KindTotal(files=count, bytes=sizes[kind], examples=tuple(examples[kind]))
            for kind, count in sorted(files.items())
        },
        is_complete=seen.known.is_complete,
        unreadable=tuple(sorted(unread)),
        missing=tuple(part.path for part in missing_parts(parts, found, base, checkpoints)),
    )


def all_files(
    seen: SeenBase, base: Store, step: Callable[[int], None], unread: list[str], directory: str = ""
) -> Iterator[ClassifiedFile]:
    """Every file below a directory of the base with what it is, as the listing yields them; sidecars last.

    Args:
        seen: What the checkpoints say.
        base: The store of the parts.
        step: Told how many files more have been looked at.
        unread: Gets the directories that this user may not read; they are passed over.
        directory: Only what is below this one.
    """
    return classified(_counted(readable_files(base, unread, directory), step), seen.known, base.file_exists)


def readable_files(base: Store, unread: list[str], directory: str = "") -> Iterator[StoredFile]:
    """Every file below a directory of the base; directories that this user may not read are told and passed over."""
    try:
        yield from base.list(directory)
    except DirectoriesUnreadable as error:
        unread += error.directories


def _counted(files: Iterator[StoredFile], step: Callable[[int], None]) -> Iterator[StoredFile]:
    for file in files:
        step(1)
        yield file


ListedState = Literal[
    "finished",
    "in-progress",
    "pending",
    "abandoned",
    "staging-file",
    "closed-staging-file",
    "encoded-staging-file",
    "missing",
    "orphan",
    "sidecar",
    "lone-sidecar",
    "temporary",
    "checkpoint",
    "unknown-chain",
    "foreign",
]
STATES: tuple[ListedState, ...] = get_args(ListedState)


class ListedPart(Json):
    """The output of ``list --json`` for each file, one a line."""

    schema_name: Literal["partfile.part"] = Field("partfile.part", alias="schema")
    schema_version: Literal[1] = 1
    path: str
    """Of the file, relative to the base; the final path of a part that is no file yet, as on S3, or is missing."""
    state: ListedState
    """The kind of the file, or the state in which a checkpoint has the part. staging-file: rows of a columnar part that
    is open. closed-staging-file: such rows, to be encoded into the part. encoded-staging-file: they have been, and only
    older checkpoints need it. missing: it has to be there, and is under none of its names."""
    job: str | None
    """The sink, or the writer ``uid~n``, that it belongs to; null if it belongs to none."""
    bucket: str
    """Its directory, relative to the base; empty for the base."""
    size_bytes: int | None
    """Of the file as stored; null where there is none."""
    valid_length: int | None
    """Bytes that a retained checkpoint vouches for, or that a sidecar holds; null if none does."""
    rows: int | None
    """Rows in these bytes, by that checkpoint; null if none names it. 0 of an encoded staging file, whose rows the part
    has."""
    checkpoint_id: int | None
    """The newest retained checkpoint that names it."""
    subtask: int | None
    """As in its name."""
    count: int | None
    """The part counter in its name."""
    buckets: int | None = None
    """So many buckets at least share the staging file, which becomes a file in each; null of anything else."""
    age_s: float | None
    """Since it was last changed, by the store's clock, or since its last write where it is no file."""
    is_current: bool
    """Whether the state in force names it as a part that is not finished."""


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters on files to show."""

    uid: str | None = None
    states: frozenset[str] = frozenset()
    """Empty is all."""
    bucket: str = ""
    """This directory and what is below it."""
    older_than_s: float = 0.0
    min_bytes: int = 0

    def take(self, part: ListedPart) -> bool:
        """Whether a file passes; one whose age or size is not known passes no limit on it."""
        return (
            (not self.states or part.state in self.states)
            and (not self.older_than_s or (part.age_s is not None and part.age_s >= self.older_than_s))
            and (not self.min_bytes or (part.size_bytes or 0) >= self.min_bytes)
        )


def listed(
    seen: SeenBase,
    base: Store,
    checkpoints: MetadataStore | None,
    filters: Filters,
    *,
    now_ms: int,
    step: Callable[[int], None],
    unread: list[str],
) -> Iterator[ListedPart]:
    """Every file that passes the filters, in no order, and at the end the parts that are no files.

    Memory does not grow with the number of files.

    Args:
        seen: What the checkpoints said before.
        base: The store of the parts.
        checkpoints: That of the checkpoints; asked again if a part seems to be missing.
        filters: Which ones are wanted.
        now_ms: Ages are counted to here, in milliseconds since 1970.
        step: Told how many files more have been looked at.
        unread: Gets the directories that this user may not read; they are passed over.

    Raises:
        ConfigError: The bucket is no path below the base.
        StoreError: A store cannot be read.
    """
    parts = [part for part in current_parts(seen, filters.uid) if is_below(part.path, filters.bucket)]
    wanted = {path for part in parts for path in part.all_paths}
    found: set[str] = set()
    for one in all_files(seen, base, step, unread, filters.bucket):
        if one.file.path in wanted:
            found.add(one.file.path)
        if is_of(one.what.job, filters.uid):
            part = _of_file(one, _length_of(one, base), now_ms)
            if filters.take(part):
                yield part
    gone = missing_parts((part for part in parts if part.is_file), found, base, checkpoints)
    unseen = [part for part in parts if not part.is_file and found.isdisjoint(part.all_paths)]
    for known in (*gone, *unseen):
        part = _of_part(known, now_ms, "missing" if known.is_file else known.state)
        if filters.take(part):
            yield part


def page(parts: Iterable[ListedPart], after: str, limit: int | None) -> list[ListedPart]:
    """The first ``limit`` parts by path that come after a path; so a listing without an order is read in pages.

    Args:
        parts: A whole listing; every page goes through it.
        after: The last path of the page before; empty for the first.
        limit: Parts in a page; None is all.
    """
    later = (part for part in parts if part.path > after)
    if limit is None:
        return sorted(later, key=lambda part: part.path)
    return heapq.nsmallest(limit, later, key=lambda part: part.path)


def is_below(path: str, bucket: str) -> bool:
    """Whether a path lies in a bucket or deeper; the empty bucket is the base."""
    return not bucket or path.startswith(f"{bucket}/")


def _length_of(one: ClassifiedFile, base: Store) -> int | None:
    """The bytes that a checkpoint vouches for, or that a sidecar holds."""
    if one.what.kind in {"sidecar", "lone-sidecar"}:
        try:
            content = base.read_file(one.file.path, MAX_SIDECAR_BYTES)
            return DEFAULT_SIDECARS.length_in(content, one.file.path)
        except (NotFound, FileTooLarge, SnapshotCorrupt):
            return None
    return None if one.what.part is None else one.what.part.handle.valid_length


def _of_file(one: ClassifiedFile, valid_length: int | None, now_ms: int) -> ListedPart:
    what, part = one.what, one.what.part
    return ListedPart(
        path=one.file.path,
        state=_state(what),
        job=None if what.job is None else what.job.name,
        bucket=one.file.path.rpartition("/")[0],
        size_bytes=one.file.size,
        valid_length=valid_length,
        rows=None if part is None or what.kind not in {"staged", "finished"} else part.rows,
        checkpoint_id=None if part is None else part.checkpoint_id,
        subtask=None if what.number is None else what.number.subtask,
        count=None if what.number is None else what.number.count,
        buckets=None if part is None else part.buckets,
        age_s=max(0.0, (now_ms - one.file.modified_at_ms) / 1000),
        is_current=part is not None and part.is_current and what.kind == "staged",
    )


def _state(what: Classified) -> ListedState:
    if what.kind != "staged":
        return what.kind
    return "orphan" if what.part is None else what.part.state


def _of_part(part: KnownPart, now_ms: int, state: ListedState) -> ListedPart:
    number = part.number
    return ListedPart(
        path=part.lookup_path,
        state=state,
        job=part.job.name,
        bucket=part.handle.bucket,
        size_bytes=None,
        valid_length=part.handle.valid_length,
        rows=part.rows,
        checkpoint_id=part.checkpoint_id,
        subtask=None if number is None else number.subtask,
        count=None if number is None else number.count,
        buckets=part.buckets,
        age_s=None if part.last_write_ms is None else max(0.0, (now_ms - part.last_write_ms) / 1000),
        is_current=True,
    )


LITTER: frozenset[FileKind] = frozenset({"orphan", "temporary", "lone-sidecar", "unknown-chain", "foreign"})
"""Kinds of files that are not needed, or unknown."""


@dataclass(slots=True)
class Tree:
    """The facts of one listing that the checks need. Grows with finished files by one number each."""

    counts: Counter[FileKind] = field(default_factory=Counter)
    sizes: dict[str, int] = field(default_factory=dict)
    """Of the files that checkpoints name, by path, in bytes."""
    finished: dict[str, Classified] = field(default_factory=dict)
    """Those that checkpoints name, by path."""
    beyond: list[Classified] = field(default_factory=list)
    """With a number beyond what the counter was before."""
    twice: list[Classified] = field(default_factory=list)
    early: list[tuple[Classified, KnownPart]] = field(default_factory=list)
    """Files of a multi-bucket staging file, in one of its buckets, and that staging file, which waits to be encoded."""
    sidecars: dict[str, Classified] = field(default_factory=dict)
    """By the final path of their parts."""
    identities: dict[str, list[Classified]] = field(default_factory=dict)
    """Files with several names."""
    litter: dict[FileKind, list[Classified]] = field(default_factory=dict)
    """The first files of each kind that is not needed."""
    elsewhere: dict[str, str] = field(default_factory=dict)
    """Paths of files with the name of a part that has to be there, by the key of that part."""


def read_tree(files: Iterable[ClassifiedFile], known: PartIndex) -> Tree:
    """Go through a listing.

    Args:
        files: Every file with what it is.
        known: What the checkpoints said before it was listed.
    """
    tree = Tree()
    numbers = _Numbers(known)
    staging_files = {unmarked(part.handle.name): part for part in known.current if part.is_shared}
    names = _wanted(known)
    for one in files:
        what, file = one.what, one.file
        tree.counts[what.kind] += 1
        is_moved = _note_moved(tree, file.path, names.get(file.path.rpartition("/")[2], ()))
        if file.identity is not None:
            tree.identities.setdefault(file.identity, []).append(what)
        if what.part is not None and what.kind in {"finished", "staged"}:
            tree.sizes[file.path] = file.size
        if what.kind == "finished" and what.number is not None:
            tree.twice.extend(numbers.taken_twice(what, what.number))
            if what.number.count > known.chains[what.number.chain].max_count:
                tree.beyond.append(what)
            _note_finished(
                tree, what, staging_files.get(unmarked(file.path.rpartition("/")[2])) if staging_files else None
            )
        elif what.kind == "sidecar" and what.final_path is not None:
            tree.sidecars[what.final_path] = what
        elif what.kind in LITTER and not is_moved and len(tree.litter.setdefault(what.kind, [])) < MAX_EXAMPLES:
            tree.litter[what.kind].append(what)
    return tree


def _wanted(known: PartIndex) -> dict[str, list[KnownPart]]:
    """The parts that have to be there, by every name they can have."""
    found: dict[str, list[KnownPart]] = {}
    for part in known.current:
        for path in part.all_paths:
            found.setdefault(path.rpartition("/")[2], []).append(part)
    return found


def _note_finished(tree: Tree, what: Classified, staging_file: KnownPart | None) -> None:
    """Note a finished file; it comes too early if it has the name of a multi-bucket staging file not yet encoded."""
    if what.part is not None:
        tree.finished[what.path] = what
    # A staging file that waits for one bucket has been encoded for others; the base may be one of those.
    if staging_file is not None and not staging_file.has_file_in(what.path.rpartition("/")[0]):
        tree.early.append((what, staging_file))


class _Numbers:
    """The numbers of finished files: one each, or one name each where buckets have shared a staging file."""

    def __init__(self, known: PartIndex) -> None:
        self._chains = known.chains
        self._places = {chain: place for place, chain in enumerate(sorted(known.chains))}
        self._seen: set[int] = set()
        self._named: dict[int, str] = {}
        """A file of each number that files in several buckets may have, all of one staging file's name."""

    def taken_twice(self, what: Classified, number: PartNumber) -> list[Classified]:
        """Note a file; the one, it or an earlier one, that has a number which it must not have."""
        packed = (number.count * 10**9 + number.subtask) * len(self._places) + self._places[number.chain]
        shared_from = self._chains[number.chain].shared_from
        if shared_from is None or number.count < shared_from:
            is_twice = packed in self._seen
            self._seen.add(packed)
            return [what] if is_twice else []
        known = self._named.setdefault(packed, what.path)
        name, own = unmarked(what.path.rpartition("/")[2]), unmarked(known.rpartition("/")[2])
        if name == own:
            return []
        # A copy beside its original has a longer name; files are listed in any order.
        if (len(name), name) > (len(own), own):
            return [what]
        self._named[packed] = what.path
        return [replace(what, path=known)]


def _note_moved(tree: Tree, path: str, wanted: Sequence[KnownPart]) -> bool:
    """Whether a file has the name of a part that has to be in another directory.

    No two parts share a name but the files of one multi-bucket staging file: where a moved one belongs is unknown.
    """
    if len(wanted) != 1 or path in wanted[0].all_paths:
        return False
    tree.elsewhere[wanted[0].key] = path
    return True
