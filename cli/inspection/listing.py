"""Every part and every file below a base, one after the other, filtered and in pages."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from pydantic import Field

from partfile.cli.inspection.bases import is_of
from partfile.cli.inspection.document import Json
from partfile.cli.inspection.presence import current_parts, missing_parts
from partfile.cli.inspection.scan import all_files
from partfile.filesystems.errors import FileTooLarge, NotFound, SnapshotCorrupt
from partfile.recovery.layout import DEFAULT_SIDECARS, MAX_SIDECAR_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from partfile.cli.inspection.bases import SeenBase
    from partfile.cli.inspection.classification import Classified, ClassifiedFile
    from partfile.cli.inspection.knowledge import KnownPart
    from partfile.filesystems.metadata_port import MetadataStore
    from partfile.filesystems.port import Store

ListedState = Literal[
    "finished",
    "in-progress",
    "pending",
    "abandoned",
    "stage",
    "rolled-stage",
    "spent-stage",
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
    """What ``list --json`` prints for each file, one a line."""

    schema_name: Literal["partfile.part"] = Field("partfile.part", alias="schema")
    schema_version: Literal[1] = 1
    path: str
    """Of the file, relative to the base; the final path of a part that is no file yet, as on S3, or is missing."""
    state: ListedState
    """What kind of file it is, or in which state a checkpoint has the part. stage: rows of a columnar part that is
    open. rolled-stage: such rows, to be encoded into the part. spent-stage: they have been, and only older checkpoints
    need it. missing: it has to be there, and is under none of its names."""
    job: str | None
    """The sink, or the writer ``uid~n``, that it belongs to; null if nobody's."""
    bucket: str
    """Its directory, relative to the base; empty for the base."""
    size_bytes: int | None
    """Of the file as stored; null where there is none."""
    valid_length: int | None
    """Bytes that a retained checkpoint vouches for, or that a sidecar holds; null if none does."""
    rows: int | None
    """Rows in these bytes, by that checkpoint; null if none names it. 0 of a spent stage, whose rows the part has."""
    checkpoint_id: int | None
    """The newest retained checkpoint that names it."""
    subtask: int | None
    """As in its name."""
    count: int | None
    """The part counter in its name."""
    buckets: int | None = None
    """So many buckets at least share the stage, which becomes a file in each; null of anything else."""
    age_s: float | None
    """Since it was last changed, by the store's clock, or since its last write where it is no file."""
    is_current: bool
    """Whether the state in force names it as a part that is not finished."""


@dataclass(frozen=True, slots=True)
class Filters:
    """Which files are wanted."""

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
        now_ms: Ages are counted to here, in milliseconds since the epoch.
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
    """What vouches for how much of a file: a checkpoint, or what a sidecar holds."""
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
