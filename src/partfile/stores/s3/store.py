"""The S3 store: parts are uploads and side objects, extended by claims, published by one request, never copied."""

from __future__ import annotations

import io
import logging
import re
import threading
from functools import partial
from typing import TYPE_CHECKING, Self
from urllib.parse import unquote

from partfile.errors import (
    AlreadyExists,
    ConfigError,
    NotApplied,
    NotFound,
    NotReady,
    PartDamaged,
    PartfileError,
    PartMissing,
    SnapshotCorrupt,
)
from partfile.stores.base import STATE_DIRECTORY, Capabilities, Leftover, StoredFile
from partfile.stores.parts import (
    check_handle,
    check_new,
    checked_for_publishing,
    checked_staging_file,
    part_conflict,
    part_gone,
    part_missing,
    part_refused,
    split_path,
    staging_file_gone,
    staging_file_too_short,
)
from partfile.stores.paths import check_relative_path
from partfile.stores.retry import Backoff
from partfile.stores.s3.client import OncePerProcess, S3Calls
from partfile.stores.s3.errors import RETRIED, UNCERTAIN, S3Failure, Verdict
from partfile.stores.s3.handle import (
    CLAIM_DIRECTORY,
    OWNER_METADATA,
    PART_METADATA,
    SIDE_DIRECTORY,
    Piece,
    S3Staging,
    claim_path,
    part_id,
    side_path,
    staged_paths,
)
from partfile.stores.s3.options import S3Options
from partfile.stores.s3.probe import ServerProbe
from partfile.stores.s3.requests import S3Access
from partfile.stores.s3.sides import BUFFER_BYTES, SideObjects, StagingFileReader, staging_of_staging_file
from partfile.stores.s3.stream import CLAIMED, BufferBudget, ClaimedPart, S3PartStream, S3StagingStream
from partfile.stores.urls import S3Url

if TYPE_CHECKING:
    import builtins
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

    from partfile.stores.base import Cut, LeftoverKind, PartHandle
    from partfile.stores.s3.client import ReceivedPiece, S3Object
    from partfile.stores.s3.stream import ClaimedStream


logger = logging.getLogger("partfile")

_PLACES: tuple[tuple[LeftoverKind, str, re.Pattern[str]], ...] = (
    ("side object", SIDE_DIRECTORY, re.compile(r"([0-9a-f]{32})\.[0-9a-f]{32}")),
    ("claim", CLAIM_DIRECTORY, re.compile(r"([0-9a-f]{32})\.[0-9]{1,9}")),
)
_MOST_WAITING = 500
_TRIES = 4
"""A zombie sends each number once, and once more if a reply is lost."""
_GONE = "neither its upload nor its finished file is there"
_BROKEN_FOR_S = 10.0
"""How long a server that has answered 500 is believed to be busy with what is gone."""
_THREADS = 16
"""Parts at a time, of which each does little but wait for the server."""


class S3Store:
    """Part files and metadata below one prefix of an S3 bucket.

    Opening it asks S3 nothing. It may be shared between threads; the client is made with the first request, one a
    process, so a forked child may use it too.

    Args:
        url: ``s3://bucket/prefix``; literally.
        options: How to connect, how long to wait, what to add to what is written.
        create_base: False insists that something is there, for reading; a prefix needs no making.
        calls: The requests; another object only to inject faults.

    Raises:
        ConfigError: The URL or an option cannot be used.
        NotFound: The base is not there, where it has to be.
    """

    def __init__(
        self,
        url: str,
        options: S3Options | None = None,
        *,
        create_base: bool = True,
        calls: S3Calls | None = None,
    ) -> None:
        options = options or S3Options()
        parsed = S3Url.of(url)
        self._access = S3Access(parsed, options, calls or S3Calls(parsed.bucket, options))
        self._sides = SideObjects(self._access)
        self._probe = ServerProbe(self._access)
        self._budgets = OncePerProcess(partial(BufferBudget, options.max_buffered_bytes))
        self._garbages = OncePerProcess(partial(Garbage, self._access))
        if not create_base and not next(self._access.pages("", deep=True)).objects:
            raise NotFound(
                f"nothing is below the base {self.base!r}",
                hint=f"See what is there: aws s3 ls {self.base.rpartition('/')[0]}/",
                path=self.base,
            )

    @property
    def base(self) -> str:
        """The URL of the base."""
        return self._access.base

    @property
    def capabilities(self) -> Capabilities:
        """What the server can do; asks it, once a process, what it does with conditional requests."""
        traits = self._probe.learn_traits()
        return Capabilities(
            append=bool(traits.puts),
            lease=False,
            fence=False,
            truncate=False,
            no_replace=bool(traits.puts and traits.completes),
            durable=True,
            shared=True,
            staged_files=False,
            staging_files=True,
            exclusive_create=bool(traits.puts),
            publish_threads=self.persist_threads,
        )

    @property
    def persist_threads(self) -> int:
        """As many as there may be requests, within reason."""
        return min(self._access.options.max_parallel_requests, _THREADS)

    @property
    def staging_files_travel(self) -> bool:
        """Yes."""
        return True

    @property
    def checks_reads(self) -> bool:
        """Yes: a handle has a checksum of each side object."""
        return True

    def check_path(self, path: str) -> None:
        """Refuse a path that leaves the base, or is too long for a key."""
        self._access.check_path(path)

    # A part, in the order of its life.

    def create(self, handle: PartHandle) -> ClaimedStream:
        """Begin a part; asks nothing, and nothing is there before the first persist or upload part."""
        self._access.check_path(check_handle(handle).path_of(handle.name))
        check_new(handle)
        part = ClaimedPart(self._access, self._budgets.get(), handle, S3Staging())
        return S3StagingStream(part) if handle.is_staging_file else S3PartStream(part)

    def resume(self, handle: PartHandle) -> ClaimedStream:
        """Win the claim of this version of the part; from one handle it works once, whichever attempt tries."""
        check_handle(handle)
        if not self._probe.learn_puts():
            raise part_refused(handle, "the server ignores If-None-Match, so no process can claim it")
        staging = staging_of_staging_file(handle) if handle.is_staging_file else S3Staging.of(handle)
        if staging is None:
            raise part_refused(handle, "it was never created")
        if staging.size_bytes != handle.valid_length:
            raise part_refused(handle, f"it has {staging.size_bytes} bytes instead of {handle.valid_length}")
        if staging.why_full:
            raise part_refused(handle, staging.why_full)
        if not self._access.win_claim(handle, staging.claims):
            raise part_refused(handle, CLAIMED)
        part = ClaimedPart(self._access, self._budgets.get(), handle, staging, is_claimed=True)
        return S3StagingStream(part) if handle.is_staging_file else S3PartStream(part)

    def prepare(self, handle: PartHandle) -> PartHandle:
        """The handle with the id of an upload in it, which is begun for a part whose bytes are all in side objects.

        An upload can be completed once. Because a checkpoint holds its id first, every coordinator completes the same
        one, and a finished file that a consumer has moved does not come back (R5).
        """
        staging = _staging_of(checked_for_publishing(handle))
        if staging.upload is not None:
            return handle
        upload = self._access.create_upload(_path(handle), {PART_METADATA: part_id(handle)})
        begun = {"upload": upload, "has_checksums": self._access.options.sends_checksums}
        return handle.model_copy(update={"staging": staging.model_copy(update=begun).as_json()})

    def publish(self, handle: PartHandle, cut: Cut) -> None:  # noqa: ARG002 - there is nothing to cut.
        """Complete the part's upload, once; then look, and try again while it is not known."""
        staging, garbage = _staging_of(checked_for_publishing(handle)), self._garbages.get()
        if staging.upload is None:
            raise NotReady(f"part {_path(handle)!r} has no upload in its checkpoint yet", path=_path(handle))
        if self._access.traits.completes is False and self._is_finished(handle):
            garbage.add(staged_paths(handle, staging))
            return
        backoff, grace = Backoff(self._access.options.call_timeout_s), Backoff(_BROKEN_FOR_S)
        uncertain: S3Failure | None = None
        while True:
            try:
                self._complete(handle, staging, staging.upload)
            except (PartMissing, PartDamaged) as error:
                # Its staged objects go when it is finished.
                if not self._is_finished(handle):
                    self._check_is_open(handle, staging.upload, error)
                    raise
            except S3Failure as failure:
                uncertain = failure if failure.verdict in UNCERTAIN else uncertain
                if not self._is_finished(handle):
                    if uncertain and uncertain.verdict is Verdict.BROKEN and not grace.left_s:
                        self._check_hope(handle, staging.upload, uncertain)
                    # A completion that is not waited for any more may go on, while its upload is not open any more.
                    if (failure.verdict in RETRIED or uncertain) and backoff.pause():
                        continue
                    self._check_hope(handle, staging.upload, uncertain or failure)
                    raise (uncertain or failure).as_error(
                        "publish", self._access.shown(_path(handle)), reads=False
                    ) from failure
            garbage.add(staged_paths(handle, staging))
            return

    def _complete(self, handle: PartHandle, staging: S3Staging, upload: str) -> None:
        """Make a finished file of an upload and what is beside it; each request is a single attempt.

        Args:
            handle: The part.
            staging: What it is made of.
            upload: Id of its upload.

        Raises:
            S3Failure: A request failed; what became of the part is for the caller to find out.
            PartMissing: S3 has other upload parts than the handle says, or makes no file of what it has.
            PartDamaged: A side object of it is not what was written.
        """
        pieces: Sequence[Piece] = [*staging.pieces, *self._sent_sides(handle, staging, upload)]
        backoff = Backoff(self._access.options.attempt_timeout_s)
        for tries_left in reversed(range(_TRIES)):
            try:
                self._access.complete_upload_once(handle.path_of(handle.name), upload, pieces)
            except S3Failure as failure:
                if failure.verdict is not Verdict.INVALID_PARTS:
                    raise
                corrected = self._corrected(handle, staging, upload, pieces)
                if corrected == pieces and not tries_left:
                    raise part_missing(handle, f"S3 makes no file of its upload parts: {failure.text}") from failure
                if not tries_left or not backoff.pause():
                    raise
                pieces = corrected or [*staging.pieces, *self._sent_sides(handle, staging, upload)]
            else:
                return

    def _corrected(
        self, handle: PartHandle, staging: S3Staging, upload: str, pieces: Sequence[Piece]
    ) -> Sequence[Piece] | None:
        """What a completion has to name, by what the server has; None if what was beside the part is to be sent again.

        Raises:
            PartMissing: An upload part of the handle is not what was sent.
        """
        received = self._received(handle.path_of(handle.name), upload)
        found = []
        for index, piece in enumerate(pieces):
            is_own = index < len(staging.pieces)
            there = _as_received(piece, received, is_contested=not is_own)
            if there is None and is_own:
                raise part_missing(handle, f"S3 holds a different upload part {piece.number}, or none")
            if there is None:
                return None
            found.append(there)
        return found

    def _sent_sides(self, handle: PartHandle, staging: S3Staging, upload: str) -> Iterator[Piece]:
        """Send what is in side objects as the last upload parts."""
        for number, sides in enumerate(staging.tail, start=staging.next_number):
            data = self._sides.read_committed(handle, sides)
            crc32 = staging.checksum_of(data, sends_checksums=self._access.options.sends_checksums)
            etag = self._access.upload_part_once(handle.path_of(handle.name), upload, number, data, crc32)
            yield Piece(number=number, etag=etag, size_bytes=len(data), crc32=crc32)

    def _received(self, path: str, upload: str) -> dict[int, ReceivedPiece]:
        try:
            return {piece.number: piece for piece in self._access.received_pieces(path, upload)}
        except NotFound as error:
            raise S3Failure(Verdict.MISSING, error.message) from error

    def _is_finished(self, handle: PartHandle) -> bool:
        """Whether the finished file is there and ours.

        Raises:
            CommitConflict: It is there, and is another one.
        """
        found = self._access.head(_path(handle))
        if found is None:
            return False
        if found.metadata.get(PART_METADATA) != part_id(handle):
            raise part_conflict(
                handle,
                f"an object of {found.size} bytes is there that is not this part",
                hint="Nothing was replaced. Move it away and start again: aws s3 mv OBJECT ELSEWHERE",
            )
        if found.size != handle.valid_length:
            raise part_conflict(
                handle, f"it is there with {found.size} bytes, the checkpoint says {handle.valid_length}"
            )
        return True

    def _check_hope(self, handle: PartHandle, upload: str, failure: S3Failure) -> None:
        """Raise PartMissing if a part that is not finished cannot be any more; some servers answer 500 to that.

        Where a completion was not answered it may be done yet: that part is only owed.
        """
        if failure.verdict in {Verdict.MISSING, Verdict.BROKEN}:
            self._check_is_open(handle, upload, failure)

    def _check_is_open(self, handle: PartHandle, upload: str, cause: Exception) -> None:
        """Raise PartMissing if neither the upload nor the finished file of a part is there."""
        # Completed by another process between the two looks, it is finished.
        if not self._access.upload_is_open(_path(handle), upload) and not self._is_finished(handle):
            raise part_gone(handle, _GONE) from cause

    def open_staging_file(self, handle: PartHandle, *, fences: bool = False) -> io.BufferedReader:  # noqa: ARG002 - no lease is in the way.
        """Open a staging file to read its valid bytes: its side objects, a few at a time. Asks nothing before that."""
        staging = staging_of_staging_file(checked_staging_file(handle))
        if staging is None:
            raise staging_file_gone(handle)
        if staging.size_bytes < handle.valid_length:
            raise staging_file_too_short(handle, staging.size_bytes)
        return io.BufferedReader(StagingFileReader(self._sides, handle, staging), BUFFER_BYTES)

    def goes_back(self, handle: PartHandle) -> bool:
        """Whether a part can be published at this length; not where a completion has to name what was sent since."""
        staging = S3Staging.of(check_handle(handle))
        if staging is None or any(self._access.head(side_path(side.name)) is None for side in staging.sides):
            return False
        if staging.upload is None:
            return True
        try:
            received = self._access.received_pieces(_path(handle), staging.upload)
        except NotFound:
            return False
        # What later versions have sent cannot be taken back; the last number that is named replaces what was sent under
        # it.
        end = staging.next_number + len(staging.tail)
        return all(piece.number < end for piece in received) or self._probe.learn_leaving_out()

    def is_staged(self, handle: PartHandle) -> bool:
        """Whether the upload and every side object of a part are there."""
        staging = S3Staging.of(check_handle(handle))
        if staging is None:
            return False
        if staging.upload is not None and not self._access.upload_is_open(_path(handle), staging.upload):
            return False
        return all(self._access.head(side_path(side.name)) is not None for side in staging.sides)

    def discard(self, handle: PartHandle) -> bool:
        """Delete what is staged of a part. There is no lease: only age tells an orphan."""
        # What a published part has left is no orphan's.
        self._garbages.get().delete()
        if check_handle(handle).is_staging_file:
            return self._discard_staging_file(handle)
        staging = S3Staging.of(handle)
        if staging is None:
            return False
        found = [side_path(name) for name in (*staging.spent, *(side.name for side in staging.sides))]
        found = [path for path in found if self._access.head(path) is not None]
        self._access.delete_many([*found, *(claim_path(handle, number) for number in range(staging.claims + 1))])
        is_open = staging.upload is not None and self._access.upload_is_open(
            handle.path_of(handle.name), staging.upload
        )
        if is_open and staging.upload is not None:
            self._access.abort_upload(handle.path_of(handle.name), staging.upload)
        return bool(found) or is_open

    def _discard_staging_file(self, handle: PartHandle) -> bool:
        """Delete every side object of a staging file, those of older versions included, and its claims."""
        staging = staging_of_staging_file(handle) or S3Staging()
        # What was merged is in no handle, so that handles stay small; but its name says whose it is.
        pages = self._access.pages_beginning(f"{SIDE_DIRECTORY}/{part_id(handle)}.")
        found = {self._access.relative(one.key) for page in pages for one in page.objects}
        named = {side_path(side.name) for side in staging.sides}
        claims = [claim_path(handle, number) for number in range(staging.claims + 1)]
        self._access.delete_many([*sorted(found | named), *claims])
        return bool(found)

    # Listing and cleaning.

    def list(self, directory: str = "") -> Iterator[StoredFile]:
        """Every object below a directory; a staged part is no file and does not show."""
        if check_relative_path(directory).split("/", maxsplit=1)[0] == STATE_DIRECTORY:
            return
        for page in self._access.pages(directory, deep=True):
            for found in page.objects:
                path = self._access.relative(found.key)
                if path and not path.startswith(f"{STATE_DIRECTORY}/") and not path.endswith("/"):
                    yield _stored(path, found)

    def look_at(self, path: str) -> StoredFile | None:
        """One object as a listing shows it; None if there is none."""
        split_path(path)
        found = self._access.head(path)
        return _stored(path, found) if found is not None else None

    @property
    def moves_files(self) -> bool:
        """No: what is moved here is copied, and an upload cannot even be that."""
        return False

    def remove(self, path: str, into: str | None) -> bool:
        """Delete one object; whether it was there. There are no leases here."""
        split_path(path)
        if into is not None:
            raise NotApplied(
                f"{self._access.shown(path)!r} cannot be moved but by a copy", hint="Delete it.", path=path
            )
        is_there = self._access.head(path) is not None
        self._access.delete(path)
        return is_there

    def hide(self, path: str, name: str) -> None:
        """Refused: an object has no other name."""
        raise NotApplied(f"{path!r} cannot become {name!r}: S3 renames nothing", path=path)

    def is_being_written(self, path: str) -> bool | None:  # noqa: ARG002 - it cannot be known.
        """Unknown: there are no leases here."""
        return None

    def leftovers(self, parts: Iterable[PartHandle], before_ms: int) -> Iterator[Leftover]:
        """Uploads, side objects and claims of other parts than these; a HEAD for each side object and claim."""
        marks = {mark for part in parts for mark in _marks(part)}
        for one in self._access.uploads():
            path = self._access.relative(one.key)
            if one.upload not in marks and one.begun_at_ms < before_ms and _is_of_a_part(path):
                name = path.rpartition("/")[2]
                yield Leftover(
                    kind="upload", path=path, name=name, upload=one.upload, size=None, modified_at_ms=one.begun_at_ms
                )
        for kind, directory, pattern in _PLACES:
            for page in self._access.pages(directory, deep=False):
                for found in page.objects:
                    path = self._access.relative(found.key)
                    match = pattern.fullmatch(path[len(directory) + 1 :])
                    if match and match[1] not in marks and found.modified_at_ms < before_ms:
                        yield self._leftover(kind, path, found)

    def _leftover(self, kind: LeftoverKind, path: str, found: S3Object) -> Leftover:
        # Listings show no metadata. Gone by now, it belongs to no sink.
        seen = self._access.head(path)
        name = unquote(seen.metadata.get(OWNER_METADATA, "")) if seen else ""
        return Leftover(kind=kind, path=path, name=name, size=found.size, modified_at_ms=found.modified_at_ms)

    def drop_leftover(self, leftover: Leftover) -> bool:
        """Delete one of them; whether it was there."""
        if leftover.upload is None:
            return self.remove(leftover.path, None)
        is_open = self._access.upload_is_open(leftover.path, leftover.upload)
        self._access.abort_upload(leftover.path, leftover.upload)
        return is_open

    # Whole files: checkpoints, state, sidecars.

    def create_file(self, path: str, data: bytes) -> None:
        """Create a file exclusively, whole or not at all; a server that ignores conditions is found out first."""
        split_path(path)
        self._probe.learn_puts()
        self._access.create(path, data)

    def read_file(self, path: str, max_bytes: int) -> bytes:
        """Read a whole file; a longer one is refused."""
        split_path(path)
        return self._access.get(path, max_bytes)

    def local_path(self, path: str) -> str | None:  # noqa: ARG002 - of the protocol.
        """None: no file of it is on this host."""
        return None

    def file_exists(self, path: str) -> bool:
        """Whether a file is there now."""
        return self.look_at(path) is not None

    def list_names(self, directory: str) -> builtins.list[str]:
        """The names directly in a directory; empty if it is not there."""
        names = []
        for page in self._access.pages(directory, deep=False):
            found = [one.key for one in page.objects] + [prefix.rstrip("/") for prefix in page.prefixes]
            start = len(directory) + 1 if directory else 0
            names += [self._access.relative(key)[start:] for key in found]
        return [name for name in names if name]

    def delete_file(self, path: str) -> None:
        """Delete one file by its literal name; absent counts as done."""
        split_path(path)
        self._access.delete(path)

    def delete_directory(self, directory: str) -> None:
        """Delete the files directly in a directory, and so the directory; absent counts as done."""
        split_path(directory)
        paths: builtins.list[str] = []
        for page in self._access.pages(directory, deep=False):
            if page.prefixes:
                deeper = self._access.relative(page.prefixes[0])
                raise NotApplied(f"{self._access.shown(directory)!r} holds the directory {deeper!r}", path=directory)
            paths += [self._access.relative(one.key) for one in page.objects]
        self._access.delete_many(paths)

    # Markers, and the store itself.

    @property
    def markers_are_locks(self) -> bool:
        """No: a marker is an object that stays."""
        return False

    def hold_marker(self, path: str) -> bool:
        """Make the marker if it is not there; it excludes no other process, for S3 has no locks (R13)."""
        split_path(path)
        if self._access.head(path) is None:
            try:
                self._access.create(path, b"")
            except AlreadyExists:
                return True
        return True

    def marker_is_held(self, path: str) -> bool:
        """Whether the marker is visible: then driver and executor mean the same S3 bucket."""
        split_path(path)
        if self._access.head(path) is None:
            raise NotFound(
                f"marker {self._access.shown(path)!r} is not visible from this host",
                hint=(
                    "Driver and executors must share one S3 bucket: check URL, endpoint_url and credentials. "
                    "Compare on each host: aws s3 ls BASE/"
                ),
                path=path,
            )
        return True

    def hazards(self, *, now_ms: int, longest_open_s: float) -> Iterator[str]:
        """What the server, its lifecycle rules and these options can do to a sink, in sentences."""
        return self._probe.hazards(now_ms=now_ms, longest_open_s=longest_open_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Delete what finished parts have left; the client stays with its process. May be called twice."""
        self._garbages.get().delete()
        self._access.close()


class Garbage:
    """What may be deleted: nothing needs it, and leaving it does no harm, so no failure counts. Thread safe.

    Args:
        access: The store's objects.
    """

    def __init__(self, access: S3Access) -> None:
        self._access = access
        self._lock = threading.Lock()
        # Each once: a server was seen to crash over a key that one request named twice.
        self._paths: dict[str, None] = {}

    def add(self, paths: Iterable[str]) -> None:
        """Delete these, soon."""
        with self._lock:
            self._paths |= dict.fromkeys(paths)
            is_full = len(self._paths) >= _MOST_WAITING
        if is_full:
            self.delete()

    def delete(self) -> None:
        """Delete what waits."""
        with self._lock:
            paths, self._paths = list(self._paths), {}
        try:
            self._access.delete_many(paths)
        except PartfileError as error:
            logger.warning("%d staged objects of finished parts stay, for the cleaner: %s", len(paths), error)


def _path(handle: PartHandle) -> str:
    return handle.path_of(handle.name)


def _staging_of(handle: PartHandle) -> S3Staging:
    staging = S3Staging.of(handle)
    if staging is None:
        raise part_missing(handle, "it was never created on S3")
    if staging.size_bytes != handle.valid_length:
        raise SnapshotCorrupt(
            f"part {_path(handle)!r} is made of {staging.size_bytes} bytes, the checkpoint says {handle.valid_length}",
            path=_path(handle),
        )
    return staging


def _as_received(piece: Piece, received: Mapping[int, ReceivedPiece], *, is_contested: bool) -> Piece | None:
    """The same upload part under the ETag that the server has for it; None if it has another one.

    Where ETags are not made of the bytes alone (SSE-KMS), a request that arrives after its repetition was acknowledged
    changes the ETag and nothing else.
    """
    there = received.get(piece.number)
    if there is None or not piece.is_same(there.etag, there.size_bytes, there.crc32, is_contested=is_contested):
        return None
    return piece.model_copy(update={"etag": there.etag})


def _is_of_a_part(path: str) -> bool:
    """Whether a part can have this path; keys of others may hold anything."""
    try:
        return bool(split_path(path))
    except ConfigError:
        return False


def _marks(handle: PartHandle) -> list[str]:
    """The part's id, which its side objects and claims begin with, and the id of its upload."""
    staging = S3Staging.of(handle)
    upload = [] if staging is None or staging.upload is None else [staging.upload]
    return [part_id(handle), *upload]


def _stored(path: str, found: S3Object) -> StoredFile:
    """An object as a listing shows it."""
    return StoredFile(path=path, size=found.size, modified_at_ms=found.modified_at_ms)
