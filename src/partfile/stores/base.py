"""The interface of a store. Each docstring says what a method guarantees.

Paths are relative to the base. ``partfile.testing.store.StoreContract`` is the suite that a store must pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, Protocol, Self, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator

from partfile.stores.paths import check_file_name, check_relative_path

if TYPE_CHECKING:
    import io
    from collections.abc import Iterable, Iterator
    from types import TracebackType


LeftoverKind = Literal["upload", "side object", "claim"]


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something staged that is no file of a listing, as a store finds it."""

    kind: LeftoverKind
    path: str
    """Of the object; of an upload that of the file which it would become. Relative to the base."""
    name: str
    """Final name of the part that it belongs to; empty where nothing says."""
    size: int | None
    """In bytes; None where the store does not say."""
    modified_at_ms: int
    """By the store's clock, in milliseconds since 1970; of an upload when it was begun."""
    upload: str | None = None
    """Id of the upload, if it is one."""


class CleaningStore(Protocol):
    """What a cleaner asks of a store. No other caller deletes anything by these."""

    @property
    def moves_files(self) -> bool:
        """Whether ``remove`` can move a file instead of deleting it. Asks storage nothing."""

    def remove(self, path: str, into: str | None) -> bool:
        """Delete one file that is not needed, or move it to another directory; for the cleaner alone (R6).

        Literally this one name. Takes the lease first where there are leases, and then sees that the path still names
        what was leased. Idempotence: nothing there counts as done. After a crash it is under one of the two names.

        Args:
            path: The file.
            into: The directory that takes it, under the same name; its path has a random token. It is
                made if need be. None deletes the file.

        Returns:
            Whether it was there.

        Raises:
            LeaseUnavailable: A task is writing it.
            NotApplied: It is no regular file, or this store does not move files.
        """

    def hide(self, path: str, name: str) -> None:
        """Rename one file in its directory, after taking its lease, replacing nothing; durable when this returns.

        For stores that move files. A process that has the file open is fenced, or keeps its lease and the file its
        name.

        Args:
            path: The file.
            name: What it gets, without a directory.

        Raises:
            NotFound: It is not there.
            LeaseUnavailable: A task is writing it.
            AlreadyExists: The name is taken.
            NotApplied: It has another name elsewhere, is not a regular file, or this store does not move files.
        """

    def is_being_written(self, path: str) -> bool | None:
        """Whether a task has a staged file open now; None where files have no leases. For callers that must not fence.

        Takes no lease that is held or renewed, and keeps none. A file that is not there is not being written.

        Raises:
            StoreError: It cannot be known, for instance without the right to write there.
        """

    def leftovers(self, parts: Iterable[PartHandle], before_ms: int) -> Iterator[Leftover]:
        """Yield what is staged and is no file that ``list`` shows, in no order; nothing where every part is one.

        Args:
            parts: What belongs to one of them is left out.
            before_ms: What was changed then or later is left out as well, by the store's clock, in milliseconds.
        """

    def drop_leftover(self, leftover: Leftover) -> bool:
        """Delete one of them for good; whether it was there. Idempotent."""


class MetadataStore(Protocol):
    """Checkpoint metadata and state: files that are created whole, read whole and deleted, and locked markers."""

    @property
    def base(self) -> str:
        """The base as a URL or an absolute path, for messages."""

    def create_file(self, path: str, data: bytes) -> None:
        """Create a file with ``data``, exclusively and whole or not at all, with its directories.

        The commit point of a checkpoint (R1). Atomicity: no reader ever sees a prefix. Durability: when it returns,
        the file and its name survive power loss. Local: temporary file, fsync, link, directory fsync.

        Raises:
            AlreadyExists: The name is taken; nothing was written. It may be our own earlier attempt: read it back.
            OutcomeUnknown: It may or may not be there now.
        """

    def read_file(self, path: str, max_bytes: int) -> bytes:
        """Read a whole file.

        Raises:
            NotFound: It is not there.
            FileTooLarge: It is longer than ``max_bytes``.
            StoreError: It cannot be read.
        """

    def local_path(self, path: str) -> str | None:
        """Where this host has a file itself, so that it can be mapped into memory; None where it has none.

        Asks storage nothing.
        """

    def file_exists(self, path: str) -> bool:
        """Whether a file is there now."""

    def list_names(self, directory: str) -> list[str]:
        """The names directly in a directory, files and directories alike; empty if it is not there.

        Durability: what is listed survives power loss, also if another process made it, because a start builds on
            the checkpoints that it finds.
        """

    def delete_file(self, path: str) -> None:
        """Delete one file by its literal name. Idempotence: absent counts as done."""

    def delete_directory(self, directory: str) -> None:
        """Delete a directory and the files directly in it. Idempotence: absent counts as done."""

    def hold_marker(self, path: str) -> bool:
        """Hold the lock of the marker file at ``path`` (created if need be) until the store is closed (R13).

        Returns:
            Whether this store holds it now; False when another process does.
        """

    def marker_is_held(self, path: str) -> bool:
        """Whether another process holds the marker: proof that this process shares a file system with real locks.

        Raises:
            NotFound: The marker is not visible from here: this is not the coordinator's file system.
        """

    @property
    def markers_are_locks(self) -> bool:
        """Whether a marker that is held cannot be held by another process as well; else it only shows one place."""

    def hazards(self, *, now_ms: int, longest_open_s: float) -> Iterator[str]:
        """What about the place can hurt a sink that writes there, in sentences, for its start. May ask the store.

        Args:
            now_ms: This host's time, in milliseconds since 1970.
            longest_open_s: How long a part can stay open, in seconds.
        """

    def close(self) -> None:
        """Release markers and connections; delete nothing."""


Cut = Literal["auto", "truncate", "rewrite", "valid-length"]
"""How a part that is longer than its valid length is cut; auto is truncate, else rewrite, else it stays abandoned."""

STATE_DIRECTORY = "_partfile"
"""Directory of partfile's own state directly below a base; no part is ever in it."""


class Persisted(BaseModel):
    """Base of what is written to disk: frozen, keyword-only, unknown fields refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        ser_json_bytes="base64",
        val_json_bytes="base64",
        # Shown rather than made null in silence, so that the writer of the document can refuse them.
        ser_json_inf_nan="constants",
    )


class PartHandle(Persisted):
    """From this any process can resume or publish a part. Names only, relative to the base; no open resource.

    The names are recorded, not derived, so that a change of affixes between two runs cannot lose a part.
    """

    bucket: str
    """Directory below the base; empty for the base itself."""
    name: str
    """Final name of the part, fixed when it is created."""
    in_progress: str
    """Name while it is written; carries the attempt's random token."""
    pending: str
    """Name between its roll and its publication; carries the same token."""
    sidecar: str
    """Name of the file that holds the valid length, where a part is published with a tail that does not count."""
    valid_length: Annotated[int, Field(ge=0)]
    """Bytes of the part that are durable and vouched for, in bytes of the file as stored."""
    staging: dict[str, JsonValue] = {}
    """What a store without appendable files needs to go on (upload id, parts); empty on file systems."""
    is_staging_file: bool = False
    """Its bytes are read back and encoded into another part; it is never pending and never finished."""

    @field_validator("bucket")
    @classmethod
    def _bucket_is_below_the_base(cls, value: str) -> str:
        return check_relative_path(value)

    @field_validator("name", "in_progress", "pending", "sidecar")
    @classmethod
    def _name_is_one_segment(cls, value: str) -> str:
        return check_file_name(value)

    def path_of(self, name: str) -> str:
        """The path of one of this part's names, relative to the base."""
        return f"{self.bucket}/{name}" if self.bucket else name

    def at(self, valid_length: int) -> Self:
        """The same part at another valid length, in bytes."""
        return self.model_copy(update={"valid_length": valid_length})


class StoredFile(Persisted):
    """One file as a listing shows it."""

    path: str
    """Relative to the base."""
    size: int
    """In bytes."""
    modified_at_ms: int
    """By the store's clock, in milliseconds since 1970."""
    identity: str | None = None
    """The same for all names of one file; None for a file with one name, as nearly all are, and on stores where no file
    has two."""


@runtime_checkable
class PartStream(Protocol):
    """One open in-progress part, held by its lease. Belongs to the process that opened it.

    Keeps no bytes of its own between two persists; refuses use from another process id (R13).
    """

    @property
    def handle(self) -> PartHandle:
        """The part at the length of the last persist."""

    @property
    def position(self) -> int:
        """Bytes handed over so far, durable or not, counted from the start of the part."""

    def write(self, data: bytes | memoryview) -> None:
        """Append all of ``data``.

        Atomicity: none; a crash leaves a prefix behind, which does not count before the next persist.

        Raises:
            StoreError: Nothing of this part may be persisted any more; release it and start another.
        """

    def persist(self) -> PartHandle:
        """Make all bytes written so far, and the part's name, durable, and return the handle at that length.

        Durability: when it returns, bytes and name survive power loss. Idempotence: a second call without a write
        between returns the same length. On failure: the part is lost to this process; never persist it again, since
        a second fsync may succeed although the first lost data.
        """

    def close_for_commit(self) -> PartHandle:
        """Persist, rename to the pending name and release the lease. The stream cannot be used afterwards.

        Durability: bytes as persist; the rename needs none, since either name is found again.

        Raises:
            PartfileError: It is a staging file, which is persisted and closed instead; nothing was done.
        """

    def verify(self) -> None:
        """Check that the part is still under its in-progress name (R2), before a task acknowledges it.

        Raises:
            LeaseUnavailable: If another process has taken the part away.
        """

    def close(self) -> None:
        """Release the lease and every resource. Deletes nothing, persists nothing, may be called twice."""


class PartStore(Protocol):
    """Part files of one base: create, resume, publish, discard, list."""

    @property
    def base(self) -> str:
        """The base as a URL or an absolute path, for messages."""

    @property
    def capabilities(self) -> Capabilities:
        """What this store can do; may ask storage, by trying."""

    @property
    def persist_threads(self) -> int:
        """Parts that a task does well to persist and close at the same time: more than 1 where that is waiting.

        Asks storage nothing, so that a task can always release its parts.
        """

    @property
    def staging_files_travel(self) -> bool:
        """Whether what is staged goes over a network, so that fewer bytes are worth the time of compressing them.

        Asks storage nothing.
        """

    @property
    def checks_reads(self) -> bool:
        """True if the store verifies checksums on read. Does no I/O."""

    def check_path(self, path: str) -> None:
        """Refuse a path that no finished part can have here, before rows are promised to it. Asks storage nothing.

        Raises:
            ConfigError: It is too long, or leaves the base.
        """

    def create(self, handle: PartHandle) -> PartStream:
        """Create the in-progress file of ``handle`` exclusively, with its directories, and take its lease.

        Atomicity: the name is taken by this call alone, or not at all. Durability: only with the first persist.

        Raises:
            AlreadyExists: The name is taken; nothing was touched.
        """

    def resume(self, handle: PartHandle) -> PartStream:
        """Open the in-progress part for appending, as its sole owner (R2).

        Takes the lease without waiting, then checks that the path still names what was leased and that the length is
        exactly ``handle.valid_length``. Never cuts, never creates, never renames.

        Raises:
            LeaseUnavailable: It is leased elsewhere, the name is gone, or the length is another: leave the part
                alone, report it as abandoned.
        """

    def prepare(self, handle: PartHandle) -> PartHandle:
        """The handle by which a part that takes no more rows is published; a checkpoint holds it before that.

        Whatever ``publish`` may do only once begins here, so that its name is durable before it is used: on S3 the
        upload. Everywhere else it is the very same handle.

        Idempotence: what is prepared stays as it is. After a crash, what was begun is a leftover for the cleaner.

        Raises:
            StoreError: It could not be begun.
        """

    def publish(self, handle: PartHandle, cut: Cut) -> None:
        """Make the part finished: cut it to its valid length (R3), then give it its final name, replacing nothing (R5).

        Only a coordinator calls this. Takes the lease first, also from a holder that the store can fence. A part that
        cannot be leased is published as a copy of its valid prefix. With ``cut="valid-length"`` a part that is too long
        gets its sidecar instead of being cut. Looks under each name the part can have by now.

        Atomicity: a reader sees no file or the whole valid part, and what makes it visible takes its staged name away.
        Idempotence: if the final name is there with the valid length (or with its sidecar), only a staged name of the
        same file is dropped. Durability: when it returns, the final name survives power loss.

        Raises:
            PartMissing: It is under none of its names, or shorter than its valid length.
            PartDamaged: The store sees that it is not what was written.
            CommitConflict: The final name is taken by something of another length or with other bytes, or another
                sidecar stands beside it.
            NotReady: It is not prepared.
            PartfileError: It is a staging file.
        """

    def open_staging_file(self, handle: PartHandle, *, fences: bool = False) -> io.BufferedReader:
        """Open a staging file to read exactly its valid length: the file ends there, whatever was added to it since.

        Takes no lease and disturbs no writer, unless ``fences``. Follows no link. The file can seek, reads
        what is asked for, also into a buffer (``readinto``), and keeps little of it; it is for one thread of the
        process that opened it, as long as the store is open.

        Args:
            handle: The staging file.
            fences: No owner appends any more, so a lease may be taken. Without it, the staging file of a dead writer
                may have to wait until its lease ends.

        Raises:
            PartMissing: It is gone, or shorter than its valid length; perhaps only seen on reading.
            PartDamaged: Only seen on reading, and where the store ``checks_reads``: it is not what was written.
            NotReady: It cannot be read for now, since a writer has it open.
            NotApplied: The store has no ``staging files``, or cannot read it.
            PartfileError: It is no staging file.
        """

    def goes_back(self, handle: PartHandle) -> bool:
        """Whether a part that is not finished can be published at this older length, whatever was added to it since.

        Asks, and changes no part; may try out what the store does. Always True where it can be cut or copied; where a
        staged part is no file it is False as well for one that is seen to be gone.
        """

    def is_staged(self, handle: PartHandle) -> bool:
        """Whether all that a part that is not finished is made of is there now, under any of its names.

        Asks, moves no data, and changes nothing. Says nothing of how long it is; one that moves on meanwhile may be
        missed.
        """

    def discard(self, handle: PartHandle) -> bool:
        """Delete the staged names of a part after taking its lease; only what no retained checkpoint names (R6).

        Idempotence: nothing there counts as done. A finished part is never touched.

        Returns:
            Whether anything was deleted.

        Raises:
            LeaseUnavailable: A task is writing it.
        """

    def list(self, directory: str = "") -> Iterator[StoredFile]:
        """Yield every file below ``directory`` except partfile's own state, in no order; tolerate files that vanish."""

    def look_at(self, path: str) -> StoredFile | None:
        """One file as a listing shows it, of partfile's own state as well; None if there is none.

        The time may be that of the listing in whole seconds.
        """


class Store(PartStore, MetadataStore, CleaningStore, Protocol):
    """All ports over one base, as every store implements them."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Capabilities(Persisted):
    """What a store can do, as probed; reported at start, decided upon by the life cycle."""

    append: bool
    """An in-progress part can be appended to by a later process; else parts roll at every checkpoint."""
    lease: bool
    """Two processes cannot append to one part at once."""
    fence: bool
    """A coordinator can take the lease; nothing the old holder writes later counts. Without it, a part whose lease is
    held is copied."""
    truncate: bool
    """A part can be cut in place."""
    no_replace: bool
    """Publishing cannot overwrite."""
    durable: bool
    """Persisted bytes and names survive power loss."""
    shared: bool
    """Other hosts see the same files; a guess for local paths, proven by the marker (R13)."""
    staged_files: bool = True
    """A part that is not finished is a file under its staged name. Else it is known by its handle alone: it shows
    nowhere, one handle can be resumed once, and a finished file tells whose it is."""
    exclusive_create: bool = True
    """Of several creators of one metadata file, one succeeds. Else two coordinators are detected, not prevented."""
    staging_files: bool = False
    """A staging file can be read back up to its valid length, by another process and while it is being written."""
    publish_threads: Annotated[int, Field(ge=1)] = 8
    """Parts that a coordinator does well to publish at the same time, unless the user says otherwise."""
