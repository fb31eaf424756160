"""The state of a sink in a checkpoint: its parts and staging files, the part counter, the position of the stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, JsonValue, field_validator, model_validator

from partfile.errors import SnapshotCorrupt
from partfile.sink.policies import SHARED_PARTS, PartProgress
from partfile.snapshot.documents import StateHandle
from partfile.snapshot.operator_state import ListStateDescriptor, OperatorStateStore
from partfile.snapshot.state_file import JsonCodec, ModelCodec
from partfile.stores.base import PartHandle, Persisted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from partfile.snapshot.state_file import States


OPERATOR = "file-sink"
SET_ASIDE_DIRECTORY = "_set-aside"
"""Beside the checkpoint logs. Has the path of each part that was set aside as a directory, with its rows as Arrow files
in it."""
Crc32 = Annotated[int, Field(ge=0, lt=1 << 32)]


class StagingFile(Persisted):
    """The file that a staging file is to be encoded into."""

    spec: dict[str, JsonValue]
    """The format it is encoded in, as plain data: that of the sink that began it, whatever later runs are set to."""
    encoded_ratio: Annotated[float, Field(gt=0)] = 1.0
    """Estimated bytes of the encoded file for each byte of the staging file."""
    shared: bool = False
    """Whether many buckets share it: then its rows say where they belong, and it becomes a file a bucket."""
    finished_buckets: tuple[str, ...] = ()
    """Buckets of a multi-bucket staging file whose rows are left out: their file has been promised already, or was
    found by a start that goes back over damage."""
    least_buckets: Annotated[int, Field(ge=0)] = 0
    """So many buckets at least share it: the most that one record batch has brought."""
    crc32: Crc32 = 0
    """Of the valid bytes."""


class OpenPart(Persisted):
    """One open part: one element of the split list state, so that rescaling really rebalances."""

    part: PartHandle
    count: Annotated[int, Field(ge=0)]
    """The part counter in its name."""
    schema_fingerprint: str
    """Digest of the columns and the format that it takes: a bucket has one open part a fingerprint."""
    epoch: int
    """The epoch that created it or was handed it by a clean stop; only that one appends to it (R2)."""
    created_at_ms: int
    last_write_ms: int
    rows: Annotated[int, Field(ge=0)]
    staging_file: StagingFile | None = None
    """Set for a staging file; None where the part itself is published."""

    @model_validator(mode="after")
    def _a_staging_file_says_what_it_becomes(self) -> Self:
        if self.part.is_staging_file is not (self.staging_file is not None):
            raise ValueError("a staging file, and nothing else, says what it becomes")
        if self.staging_file is not None and self.staging_file.shared and self.part.bucket:
            raise ValueError("a staging file that buckets share is in none of them")
        return self

    @property
    def key(self) -> tuple[str, str]:
        """The key of the open part inside a subtask: its bucket and the fingerprint of its rows."""
        return self.part.bucket, self.schema_fingerprint

    @property
    def progress(self) -> PartProgress:
        """The facts that the rolling policy decides by."""
        size_bytes = published_size_bytes(self.part.valid_length, self.staging_file)
        return PartProgress(size_bytes, self.rows, self.created_at_ms, self.last_write_ms)


def published_size_bytes(length_bytes: int, staging_file: StagingFile | None) -> int:
    """The size of the finished file of a part of this length; a guess for a staging file.

    A multi-bucket staging file counts as several parts at least, so that it may outgrow a part of one bucket.
    """
    if staging_file is None:
        return length_bytes
    return length_bytes // SHARED_PARTS if staging_file.shared else int(length_bytes * staging_file.encoded_ratio)


def _is_no_staging_file(part: PartHandle) -> PartHandle:
    if part.is_staging_file:
        raise ValueError("a staging file is never published (R5)")
    return part


def _is_staging_file(part: PartHandle) -> PartHandle:
    if not part.is_staging_file:
        raise ValueError("it is not a staging file, and is published as it is")
    return part


class PendingPart(Persisted):
    """A part to be finalized and published once the checkpoint that holds it is complete."""

    part: PartHandle
    rows: Annotated[int, Field(ge=0)]
    since: Annotated[int, Field(ge=1)]
    """The first checkpoint that holds it; an operator repeats it until it has heard of that one's completion."""
    abandoned: bool = False
    """No attempt vouches for bytes beyond the valid length: a zombie may still be writing it."""
    crc32: Crc32 | None = None
    """Of all bytes of a file that a staging file was encoded into; None of any other part."""

    _is_published_as_it_is = field_validator("part")(_is_no_staging_file)


class ClosedStagingFile(Persisted):
    """A staging file that takes no more rows and has not been encoded yet."""

    part: PartHandle
    """Its valid length is what is encoded; bytes after it never count."""
    staging_file: StagingFile
    rows: Annotated[int, Field(ge=0)]
    """The number of rows that the encoded files must hold."""
    since: Annotated[int, Field(ge=1)]
    """The first checkpoint that holds it as closed."""
    abandoned: bool = False
    """A task had to leave it alone, or a start found it open: a zombie may still be writing it."""

    _is_encoded_first = field_validator("part")(_is_staging_file)


class EncodedStagingFile(Persisted):
    """A staging file whose encoded file a checkpoint has promised.

    Deleted once no retained checkpoint names it as data.
    """

    part: PartHandle
    since: Annotated[int, Field(ge=1)]
    """The first checkpoint that holds the encoded files; those before it need the staging file."""
    shared: bool = False
    """Whether it was encoded into a file a bucket."""

    _was_encoded = field_validator("part")(_is_staging_file)


class QueryPosition(Persisted):
    """The position of a query: its last completed batch, and the digest of its offsets."""

    query_id: str
    batch_id: int
    offsets_digest: str | None = None
    """Digest of the engine's own record of the batch's offsets, where it can be read."""
    run_id: str | None = None
    """The engine's id of the run of the query that completed the batch."""


class RowSchema(Persisted):
    """The columns of the rows written so far, as they are to be read.

    Columns may be added and types become wider; ``sink.schema`` has the rules.
    """

    arrow: bytes
    """The Arrow schema, as a message of Arrow's IPC format."""
    path_columns: tuple[str, ...] = ()
    """Columns whose values are in the names of directories alone."""
    mixed: tuple[str, ...] = ()
    """Columns of which earlier rows are of another type that this one does not hold."""
    is_shifted: bool = False
    """Whether columns stand at other places in some files of CSV than in others; without a header, also whether some
    have more of them."""
    format: dict[str, JsonValue] = Field(default_factory=dict)
    """Format spec of the last rows: without options where CSV was written with several, and empty for a format of the
    user's own."""


class RunFile(Persisted):
    """A run of key hashes (``snapshot.run_file``) that a checkpoint names."""

    handle: StateHandle
    """Its file in ``shared/``, or the run itself where it is small."""
    keys: Annotated[int, Field(ge=1)]
    first_ms: int
    """Time of its oldest key, in milliseconds since 1970."""
    last_ms: int
    """Time of its youngest key."""
    first_hash: Annotated[int, Field(ge=0, lt=1 << 32)]
    """The first 32 bits of its lowest hash: a file without any of the keys that are asked for is not opened."""
    last_hash: Annotated[int, Field(ge=0, lt=1 << 32)]
    """Those of its highest."""


class UnneededRun(Persisted):
    """The file of a run that was merged or has expired. Deleted once no retained checkpoint names it (R6)."""

    path: str
    """Relative to the directory of the checkpoint log."""
    since: Annotated[int, Field(ge=1)]
    """The first checkpoint that does not need it; those before it do."""


class SeenKeys(Persisted):
    """The keys of a sink that deduplicates."""

    columns: tuple[str, ...]
    """The columns that are the key."""
    kinds: tuple[str, ...]
    """The kind of values of each, by which they are hashed."""
    hash_version: int
    ttl_ms: int | None
    """How long the last run remembered a key; None is for ever."""
    time_ms: int
    """The latest time that the sink's clock has told; a clock that was set back brings no key back to life (R8)."""
    runs: tuple[RunFile, ...] = ()
    unneeded: tuple[UnneededRun, ...] = ()

    @model_validator(mode="after")
    def _each_column_has_a_kind(self) -> Self:
        if len(self.columns) != len(self.kinds):
            raise ValueError("each column of a key has a kind")
        return self


class StreamPosition(Persisted):
    """The coordinator's own state."""

    chain: Annotated[str, Field(pattern="^[0-9a-f]{8}$")]
    """8 hexadecimal digits in every part name of this checkpoint log."""
    query: QueryPosition | None = None
    retired_queries: tuple[str, ...] = ()
    """Query ids that another one has been adopted for; refused for good."""
    kept: bool = False
    """The last run ended cleanly and kept its open parts for the next one (``on_stop="keep"``)."""
    parallelism: Annotated[int, Field(ge=0)] = 0
    """Subtasks of the last batch; the open parts are distributed over as many."""
    hash_partitions: int | None = None
    """Number of partitions that buckets are hashed over, where they are."""
    restored_from: str | None = None
    """Token of the savepoint or older checkpoint that this checkpoint log was last restored from on demand."""
    restored_location: str | None = None
    """The location of that snapshot, for a start that finds it deleted."""
    base: str | None = None
    """The base that the checkpoints are of, if they lie outside it."""
    shared_from: int | None = None
    """The lowest part counter of a staging file that buckets shared, whose files have one name; None while none was
    shared."""
    encoded_ratio: float | None = Field(default=None, gt=0)
    """Bytes of encoded files for each byte of their staging files, as the last of them came out; None before the
    first."""
    user_position: JsonValue = None
    """The position that the caller of the plain sink gets back after a restore."""
    row_schema: RowSchema | None = None
    """The schema of the rows; None before the first."""
    consumers_take_files: bool = False
    """Whether the run that promised the pending parts was told that consumers take files: then one of which nothing is
    left has been taken."""
    seen_keys: SeenKeys | None = None
    """The keys of the rows so far; None where the sink does not deduplicate."""


class AssignedPart(Persisted):
    """An open part and the subtask that has it in the next batch."""

    subtask: Annotated[int, Field(ge=0)]
    open: OpenPart


# Nothing here changes a value, so that a checkpoint copies none of thousands of parts.
_OPEN = ListStateDescriptor("open-parts", ModelCodec(OpenPart, shares=True))
_ASSIGNED = ListStateDescriptor("assigned-parts", ModelCodec(AssignedPart, shares=True))
_PENDING = ListStateDescriptor("pending-parts", ModelCodec(PendingPart, shares=True))
_ROLLED = ListStateDescriptor("closed-staging-files", ModelCodec(ClosedStagingFile, shares=True))
_SPENT = ListStateDescriptor("encoded-staging-files", ModelCodec(EncodedStagingFile, shares=True))
_COUNTER = ListStateDescriptor("max-part-counter", JsonCodec())
_POSITION = ListStateDescriptor("stream-position", ModelCodec(StreamPosition, shares=True))


def _add_staging_files(
    states: OperatorStateStore, closed: tuple[ClosedStagingFile, ...], encoded: tuple[EncodedStagingFile, ...]
) -> None:
    """Add the states of staging files; a sink without any pays nothing for them."""
    if closed:
        states.list_state(_ROLLED).update(closed)
    if encoded:
        states.list_state(_SPENT).update(encoded)


class SubtaskSnapshot(Persisted):
    """The state that one subtask hands to the coordinator at a checkpoint."""

    subtask: Annotated[int, Field(ge=0)]
    open: tuple[OpenPart, ...] = ()
    pending: tuple[PendingPart, ...] = ()
    closed: tuple[ClosedStagingFile, ...] = ()
    """Staging files that another process is to encode; repeated like pending parts."""
    encoded: tuple[EncodedStagingFile, ...] = ()
    """Staging files that it has encoded itself; the files are among the pending parts."""
    max_count: Annotated[int, Field(ge=-1)] = -1
    """Highest part counter this subtask knows; -1 before the first part."""

    def to_states(self) -> OperatorStateStore:
        """This snapshot as list states: parts are split, the counter is a union state."""
        states = OperatorStateStore()
        states.list_state(_OPEN).update(self.open)
        states.list_state(_PENDING).update(self.pending)
        _add_staging_files(states, self.closed, self.encoded)
        states.union_list_state(_COUNTER).update((self.max_count,))
        return states

    @classmethod
    def from_states(cls, subtask: int, restored: States) -> Self:
        """The snapshot a subtask begins with, from its share of the list states.

        Raises:
            SnapshotCorrupt: The elements are not what this version writes.
            SnapshotVersionError: Another version wrote them.
        """
        states = OperatorStateStore(restored)
        try:
            counters = [int(str(counter)) for counter in states.union_list_state(_COUNTER).get()]
            return cls(
                subtask=subtask,
                open=states.list_state(_OPEN).get(),
                pending=states.list_state(_PENDING).get(),
                closed=states.list_state(_ROLLED).get(),
                encoded=states.list_state(_SPENT).get(),
                max_count=max(counters, default=-1),
            )
        except ValueError as error:
            raise SnapshotCorrupt(f"the state of subtask {subtask} is not a file sink's: {error}") from error


class CoordinatorSnapshot(Persisted):
    """The state of the sink in a checkpoint: one piece, the coordinator's, whatever the number of subtasks."""

    position: StreamPosition
    open: tuple[AssignedPart, ...] = ()
    pending: tuple[PendingPart, ...] = ()
    """Parts to be published by this checkpoint, or still owed from earlier ones."""
    closed: tuple[ClosedStagingFile, ...] = ()
    """Staging files to be encoded now that this checkpoint is complete, or still to be from earlier ones."""
    encoded: tuple[EncodedStagingFile, ...] = ()
    """Encoded staging files that older retained checkpoints may still name as data."""
    max_count: Annotated[int, Field(ge=-1)] = -1
    """Union maximum of the part counters; -1 before the first part."""

    def to_states(self) -> OperatorStateStore:
        """This snapshot as list states."""
        states = OperatorStateStore()
        states.list_state(_POSITION).update((self.position,))
        states.list_state(_ASSIGNED).update(self.open)
        states.list_state(_PENDING).update(self.pending)
        _add_staging_files(states, self.closed, self.encoded)
        states.union_list_state(_COUNTER).update((self.max_count,))
        return states

    @classmethod
    def from_states(cls, restored: States) -> Self:
        """The coordinator's state of a checkpoint.

        Raises:
            SnapshotCorrupt: The elements are not what this version writes.
            SnapshotVersionError: Another version wrote them.
        """
        states = OperatorStateStore(restored)
        try:
            (position,) = states.list_state(_POSITION).get()
            (counter,) = states.union_list_state(_COUNTER).get()
            return cls(
                position=position,
                open=states.list_state(_ASSIGNED).get(),
                pending=states.list_state(_PENDING).get(),
                closed=states.list_state(_ROLLED).get(),
                encoded=states.list_state(_SPENT).get(),
                max_count=int(str(counter)),
            )
        except ValueError as error:
            raise SnapshotCorrupt(f"the coordinator's state is not a file sink's: {error}") from error


def assigned_to(state: Iterable[SubtaskSnapshot], subtask: int) -> SubtaskSnapshot:
    """The share of one subtask, or an empty one."""
    for snapshot in state:
        if snapshot.subtask == subtask:
            return snapshot
    return SubtaskSnapshot(subtask=subtask)
