"""The seam below the S3 store: every request it makes through s3fs, one method each.

Keys are whole. ``faults.intercept`` wraps an object of this class: the requests that change something are the points at
which the crash tests kill the process. Never used, for what they do: ``open``, ``rm``, ``mv``, transactions.
"""

from __future__ import annotations

import asyncio
import binascii
import io
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from partfile.errors import FileTooLarge
from partfile.stores.checksums import crc32_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence

    from s3fs import S3FileSystem

    from partfile.stores.retry import Backoff
    from partfile.stores.s3.handle import Piece
    from partfile.stores.s3.options import S3Options


Result = TypeVar("Result")
LEAST_BYTES_A_S = 32 << 10
"""A request that moves bytes more slowly than this is given up as if it moved none."""


BUFFERED_BYTES = 4 << 20
"""Most bytes that the sockets of one connection hold."""


class GivenUp(Exception):
    """Nothing moved for too long, or too little. The request has been cancelled, and may have been done."""


class NoFreeSlot(Exception):
    """As many other requests as may be are under way, and none of them gets on."""


class Progress:
    """Bytes of one request that have moved; noted by the event loop's thread, read by the one that waits.

    Args:
        timeout_s: How long nothing may move, in seconds.
        on_move: Gets the time of each move.
    """

    def __init__(self, timeout_s: float, on_move: Callable[[float], object]) -> None:
        self._timeout_s = timeout_s
        self._on_move = on_move
        self._first_s = self._began_s = self._moved_at_s = time.monotonic()
        self._moved_bytes = 0

    def moved(self, count_bytes: int) -> None:
        """Note that so many bytes have been sent or received."""
        self._moved_bytes += count_bytes
        self._moved_at_s = time.monotonic()
        self._on_move(self._moved_at_s)

    def begin_again(self) -> None:
        """Count from zero: so far the body was only looked at, to sign it."""
        self._began_s, self._moved_bytes = time.monotonic(), 0

    @property
    def moving_s(self) -> float:
        """Seconds between the beginning and the last byte that moved, what the client repeats by itself included."""
        return self._moved_at_s - self._first_s

    @property
    def left_s(self) -> float:
        """Seconds until the request is given up if nothing more moves, never negative."""
        # What seems to have been sent stands in buffers in part, for as long as that many bytes have taken before.
        share = min(1.0, BUFFERED_BYTES / max(1, self._moved_bytes))
        drained_at_s = self._moved_at_s + share * max(0.0, self._moved_at_s - self._began_s)
        slowest_s = self._began_s + self._moved_bytes / LEAST_BYTES_A_S
        return max(0.0, min(drained_at_s, slowest_s) + self._timeout_s - time.monotonic())


class MovingBody(io.BytesIO):
    """A body that tells how much of it the client has taken.

    Args:
        data: The bytes.
        progress: Told.
    """

    def __init__(self, data: bytes, progress: Progress) -> None:
        super().__init__(data)
        self._progress = progress

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Move, and count anew from the beginning."""
        if (offset, whence) == (0, 0):
            self._progress.begin_again()
        return super().seek(offset, whence)

    def read(self, size: int | None = -1, /) -> bytes:
        """Read on, and note how much was read."""
        data = super().read(size)
        if data:
            self._progress.moved(len(data))
        return data


class S3Client:
    """Requests of one process with the same settings. May be shared between threads.

    Args:
        files: The client of s3fs, on an event loop of ours.
        options: How long to wait, and how many requests may be under way.
    """

    def __init__(self, files: S3FileSystem, options: S3Options) -> None:
        self.files = files
        self._slots = threading.BoundedSemaphore(options.max_parallel_requests)
        self._mine = threading.local()
        self._moved_at_s = time.monotonic()

    @contextmanager
    def slot(self, backoff: Backoff, timeout_s: float) -> Iterator[None]:
        """Wait until one more request may be under way; this thread's requests then end with the deadline.

        While other requests get on, waiting for them does not count; nor does, for a few attempts, the time in which
        bytes of this one have moved.

        Args:
            backoff: Its deadline is that of the call; one attempt ends before it if nothing moves.
            timeout_s: Longest time without a byte of an attempt, in seconds.

        Raises:
            NoFreeSlot: The others do not get on either.
        """
        began_s, limit_s = time.monotonic(), _limit_s(backoff, timeout_s)
        while not self._slots.acquire(timeout=limit_s):
            if time.monotonic() - self._moved_at_s > limit_s:
                raise NoFreeSlot
        try:
            if self._moved_at_s > began_s:
                backoff.postpone(time.monotonic() - began_s)
            self._mine.timeout_s, self._mine.moving_s = _limit_s(backoff, timeout_s), 0.0
            yield
        finally:
            self._slots.release()
            backoff.excuse(self._mine.moving_s)

    def run(self, ask: Callable[[Progress], Coroutine[Any, Any, Result]]) -> Result:
        """Run a request on the event loop and wait for it.

        Args:
            ask: Makes the request, and notes what moves.

        Raises:
            GivenUp: As it says.
        """
        progress = Progress(self._mine.timeout_s, self._note)
        future = asyncio.run_coroutine_threadsafe(ask(progress), self.files.loop)
        try:
            while not wait([future], progress.left_s).done:
                if progress.left_s <= 0:
                    raise GivenUp
        finally:
            # An interrupt of the wait gives the request up as well.
            future.cancel()
            self._mine.moving_s += progress.moving_s
        result = future.result()
        self._note(time.monotonic())
        return result

    def _note(self, moved_at_s: float) -> None:
        self._moved_at_s = moved_at_s


def _limit_s(backoff: Backoff, timeout_s: float) -> float:
    return max(0.001, min(backoff.left_s, timeout_s))


Thing = TypeVar("Thing")


class Traits(NamedTuple):
    """The server's treatment of conditional requests; None until one was tried."""

    puts: bool | None = None
    """A PUT with If-None-Match is refused where the key is taken."""
    completes: bool | None = None
    """So is the completion of an upload."""
    leaves_out: bool | None = None
    """A completion need not name every upload part that was sent."""


class S3Process:
    """The clients of this process. s3fs runs an event loop in a thread, which a forked child does not have."""

    def __init__(self) -> None:
        self.process_id = os.getpid()
        self.traits: dict[tuple[str | None, str], Traits] = {}
        """The facts found out, by endpoint and S3 bucket."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._clients: dict[S3Options, S3Client] = {}

    @property
    def pool(self) -> ThreadPoolExecutor:
        """Threads for several requests at once; how many are under way is bounded by the client's turns."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(max_workers=32, thread_name_prefix="partfile-s3")
            return self._pool

    def client(self, options: S3Options) -> S3Client:
        """The one client for these settings, made when it is first asked for."""
        with self._lock:
            if options not in self._clients:
                if self._loop is None:
                    self._loop = _running_loop()
                self._clients[options] = S3Client(_new_client(options, self._loop), options)
            return self._clients[options]


class OncePerProcess(Generic[Thing]):
    """Something of which each process has its own, made again after a fork; what has locks cannot be inherited.

    Args:
        make: Makes it.
    """

    def __init__(self, make: Callable[[], Thing]) -> None:
        self._make = make
        self._made = [(os.getpid(), make())]

    def get(self) -> Thing:
        """That of the process that asks."""
        # Not under a lock: one that was held at the fork would stay held in the child.
        process_id, thing = self._made[-1]
        if process_id != os.getpid():
            # The other is kept, so that nothing of it is closed here: sockets and event queue are the parent's as well.
            thing = self._make()
            self._made.append((os.getpid(), thing))
        return thing


# The one piece of global state: sharing a client among all stores of a process is what it is for.
_CURRENT = OncePerProcess(S3Process)


def this_process() -> S3Process:
    """The clients and threads of the process that calls this."""
    return _CURRENT.get()


def _running_loop() -> asyncio.AbstractEventLoop:
    # Not fsspec's own loop, which it shares with whatever else the process does.
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="partfile-s3-loop", daemon=True).start()
    return loop


def _new_client(options: S3Options, loop: asyncio.AbstractEventLoop) -> S3FileSystem:
    from s3fs import S3FileSystem  # noqa: PLC0415 - only an s3:// URL needs it.

    client = options.client
    # How long nothing may move is judged by S3Client alone; this one would count while a body is being sent.
    client["config_kwargs"]["read_timeout"] = None
    files = S3FileSystem(**client, loop=loop, skip_instance_cache=True, use_listings_cache=False)
    files.retries = 1
    return files


CHANGING_CALLS = frozenset(
    {
        "put",
        "delete",
        "delete_many",
        "create_upload",
        "upload_part",
        "complete_upload",
        "abort_upload",
    }
)
"""Methods that change objects or uploads: the points at which dying makes a difference."""

_READ_BYTES = 1 << 20
Conditions = dict[str, str]
"""If-None-Match, or nothing where the server does not honour it."""


class S3Object(NamedTuple):
    """An object as a listing or a HEAD shows it."""

    key: str
    size: int
    modified_at_ms: int
    """By the server's clock, in milliseconds since 1970."""
    metadata: Mapping[str, str]
    """Metadata that its writer gave it; empty in a listing."""


class ReceivedPiece(NamedTuple):
    """An upload part as the server holds it."""

    number: int
    etag: str
    size_bytes: int
    crc32: int | None
    """None where the server does not say."""


class S3Page(NamedTuple):
    """One page of a listing."""

    objects: list[S3Object]
    prefixes: list[str]
    next_token: str | None


class S3Upload(NamedTuple):
    """An upload that is neither completed nor aborted."""

    key: str
    upload: str
    begun_at_ms: int
    """By the server's clock, in milliseconds since 1970."""


class S3UploadPage(NamedTuple):
    """One page of a listing of uploads."""

    uploads: list[S3Upload]
    next_after: tuple[str, str] | None


class S3Calls:
    """Requests to one S3 bucket. Raises what s3fs raises; keeps no state but the address.

    Args:
        bucket: The S3 bucket.
        options: How to connect, and what to add to what is written.
    """

    def __init__(self, bucket: str, options: S3Options) -> None:
        self._bucket = bucket
        self._options = options

    def put(self, key: str, data: bytes, metadata: Mapping[str, str], *, if_absent: bool) -> None:
        """Write an object of partfile's own, whole or not at all."""
        crc32 = crc32_of(data) if self._options.sends_checksums else None
        sent: dict[str, Any] = {"Body": data, "Metadata": metadata, **_checksum(crc32)}
        self._call("put_object", Key=key, **sent, **_condition(if_absent), **self._options.encryption)

    def get(self, key: str, max_bytes: int) -> bytes:
        """Read a whole object; raises FileTooLarge before it reads one that is longer than allowed."""
        return this_process().client(self._options).run(partial(self._read, key, max_bytes))

    def head(self, key: str) -> S3Object:
        """The object under a key."""
        answer = self._call("head_object", Key=key)
        return S3Object(key, answer["ContentLength"], _ms(answer), answer.get("Metadata", {}))

    def list_page(self, prefix: str, *, deep: bool, token: str | None = None) -> S3Page:
        """One page of the keys that begin with ``prefix``: all of them, or those up to the next slash."""
        more: dict[str, Any] = {} if deep else {"Delimiter": "/"}
        if token is not None:
            more["ContinuationToken"] = token
        answer = self._call("list_objects_v2", Prefix=prefix, MaxKeys=1000, **more)
        return S3Page(
            [S3Object(found["Key"], found["Size"], _ms(found), {}) for found in answer.get("Contents", [])],
            [found["Prefix"] for found in answer.get("CommonPrefixes", [])],
            answer.get("NextContinuationToken") if answer.get("IsTruncated") else None,
        )

    def delete(self, key: str) -> None:
        """Delete an object; absent counts as done."""
        self._call("delete_object", Key=key)

    def delete_many(self, keys: Sequence[str]) -> list[str]:
        """Delete up to 1000 objects by one request; return those that could not be deleted."""
        answer = self._call("delete_objects", Delete={"Objects": [{"Key": key} for key in keys], "Quiet": True})
        return [failed["Key"] for failed in answer.get("Errors", [])]

    def create_upload(self, key: str, metadata: Mapping[str, str]) -> str:
        """Begin the upload of a finished file, which is invisible; return its id."""
        written = {**self._options.encryption, **self._options.finished}
        if self._options.sends_checksums:
            # Else S3 refuses upload parts with a checksum, or their completion.
            written["ChecksumAlgorithm"] = "CRC32"
        return str(self._call("create_multipart_upload", Key=key, Metadata=metadata, **written)["UploadId"])

    def upload_part(self, key: str, upload: str, number: int, data: bytes, crc32: int | None) -> str:
        """Send one upload part, instead of any that has this number; return its ETag."""
        sent: dict[str, Any] = {"PartNumber": number, "Body": data, **_checksum(crc32)}
        return str(self._call("upload_part", Key=key, UploadId=upload, **sent)["ETag"])

    def complete_upload(self, key: str, upload: str, pieces: Sequence[Piece], *, if_absent: bool) -> None:
        """Make a finished file of exactly these upload parts."""
        # S3 wants to hear every checksum again that it was sent.
        listed = [{"PartNumber": piece.number, "ETag": piece.etag, **_checksum(piece.crc32)} for piece in pieces]
        self._call(
            "complete_multipart_upload",
            Key=key,
            UploadId=upload,
            MultipartUpload={"Parts": listed},
            **_condition(if_absent),
        )

    def abort_upload(self, key: str, upload: str) -> None:
        """Give an upload up, with all that was sent."""
        self._call("abort_multipart_upload", Key=key, UploadId=upload)

    def look_at_upload(self, key: str, upload: str) -> None:
        """Ask whether an upload is still open; raises if it is not."""
        self._call("list_parts", Key=key, UploadId=upload, MaxParts=1)

    def received_pieces(self, key: str, upload: str) -> list[ReceivedPiece]:
        """Every upload part that the server holds, by number; raises if the upload is not open."""
        found: list[ReceivedPiece] = []
        more: dict[str, Any] = {}
        while True:
            answer = self._call("list_parts", Key=key, UploadId=upload, **more)
            found += [
                ReceivedPiece(part["PartNumber"], part["ETag"], part["Size"], _crc32_of(part.get("ChecksumCRC32")))
                for part in answer.get("Parts", [])
            ]
            if not answer.get("IsTruncated") or not found:
                return found
            more = {"PartNumberMarker": found[-1].number}

    def upload_page(self, prefix: str, after: tuple[str, str] | None = None) -> S3UploadPage:
        """One page of the uploads under keys that begin with ``prefix`` and that are neither completed nor aborted."""
        more = {} if after is None else {"KeyMarker": after[0], "UploadIdMarker": after[1]}
        answer = self._call("list_multipart_uploads", Prefix=prefix, **more)
        found = [
            S3Upload(one["Key"], one["UploadId"], int(one["Initiated"].timestamp() * 1000))
            for one in answer.get("Uploads", [])
        ]
        # A page that says it is not the last one and holds nothing would be asked for again for ever.
        ends = not answer.get("IsTruncated") or not found
        return S3UploadPage(found, None if ends else (answer["NextKeyMarker"], answer["NextUploadIdMarker"]))

    def lifecycle_rules(self) -> list[dict[str, Any]]:
        """The rules by which the S3 bucket deletes and aborts by itself."""
        return list(self._call("get_bucket_lifecycle_configuration").get("Rules", []))

    def server_date(self) -> str:
        """The server's clock as HTTP writes it; empty if it does not say."""
        answer = self._call("head_bucket")
        return str(answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", ""))

    def versioning(self) -> str:
        """``Enabled``, ``Suspended``, or nothing."""
        return str(self._call("get_bucket_versioning").get("Status", ""))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return this_process().client(self._options).run(partial(self._ask, method, parameters))

    async def _read(self, key: str, max_bytes: int, progress: Progress) -> bytes:
        body = (answer := await self._ask("get_object", {"Key": key}, progress))["Body"]
        try:
            if answer["ContentLength"] > max_bytes:
                raise FileTooLarge(f"{key!r} is longer than {max_bytes} bytes", path=key)
            chunks = []
            while chunk := await body.read(_READ_BYTES):
                progress.moved(len(chunk))
                chunks.append(chunk)
            return b"".join(chunks)
        finally:
            # One that was read to its end has given its connection back already.
            body.close()

    async def _ask(self, method: str, parameters: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
        body = {"Body": MovingBody(parameters["Body"], progress)} if "Body" in parameters else {}
        files = this_process().client(self._options).files
        # So fsspec names the coroutine behind a method that waits.
        ask = files._call_s3(method, Bucket=self._bucket, **{**parameters, **body})  # noqa: SLF001
        answer: dict[str, Any] = await ask
        return answer


def _condition(if_absent: bool) -> Conditions:
    return {"IfNoneMatch": "*"} if if_absent else {}


def _checksum(crc32: int | None) -> dict[str, str]:
    if crc32 is None:
        return {}
    return {"ChecksumCRC32": binascii.b2a_base64(crc32.to_bytes(4, "big"), newline=False).decode()}


def _crc32_of(checksum: str | None) -> int | None:
    return None if checksum is None else int.from_bytes(binascii.a2b_base64(checksum), "big")


def _ms(found: Mapping[str, Any]) -> int:
    return int(found["LastModified"].timestamp() * 1000)
