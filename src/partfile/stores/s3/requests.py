"""Requests of the S3 store: path, deadline, retries, concurrency limit, errors."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from partfile.errors import AlreadyExists, ConfigError, NotApplied, NotFound, OutcomeUnknown, PartfileError
from partfile.stores.paths import check_relative_path, new_token
from partfile.stores.retry import Backoff
from partfile.stores.s3.client import GivenUp, NoFreeSlot, Traits, this_process
from partfile.stores.s3.errors import RETRIED, UNCERTAIN, S3Failure, Verdict, failure_of
from partfile.stores.s3.handle import claim_path, owner_metadata

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from partfile.stores.base import PartHandle
    from partfile.stores.s3.client import ReceivedPiece, S3Calls, S3Object, S3Page, S3Upload
    from partfile.stores.s3.handle import Piece
    from partfile.stores.s3.options import S3Options
    from partfile.stores.urls import S3Url


Result = TypeVar("Result")
_SHORTEST_ATTEMPT_S = 0.2
_TELLING = {Verdict.MISSING, Verdict.TAKEN}
"""Verdicts that hold whatever an earlier attempt may have done."""


def patiently(options: S3Options, work: Callable[[], Result], as_error: Callable[[S3Failure], PartfileError]) -> Result:
    """Do a call, again and again after growing pauses while that may help, up to its deadline.

    Args:
        options: The deadlines.
        work: One request.
        as_error: What to raise for the failure that counts.

    Raises:
        PartfileError: It failed for good, or the deadline has passed.
    """
    backoff = Backoff(options.call_timeout_s)
    unanswered: S3Failure | None = None
    answered: S3Failure | None = None
    while True:
        try:
            return _attempt(options, work, backoff, options.attempt_timeout_s)
        except S3Failure as failure:
            if failure.verdict in UNCERTAIN:
                unanswered = failure
            else:
                answered = failure
            # An attempt without time would only put "no answer" in the place of what the server says.
            if failure.verdict in RETRIED and backoff.pause() and backoff.left_s > _SHORTEST_ATTEMPT_S:
                continue
            # What an earlier attempt may have done is not undone by a later one that was turned away.
            told = unanswered if unanswered and failure.verdict not in _TELLING else failure
            if told is unanswered and answered is not None:
                told = S3Failure(told.verdict, f"{told.text}; another attempt was answered: {answered.text}")
            raise as_error(told) from failure


def once(options: S3Options, work: Callable[[], Result], timeout_s: float) -> Result:
    """Do a call by a single attempt, whose failure the caller judges.

    Args:
        options: How many requests may be under way.
        work: The request.
        timeout_s: Longest time without anything moving, in seconds.

    Raises:
        S3Failure: It failed.
    """
    return _attempt(options, work, Backoff(timeout_s), timeout_s)


def verdict_of(error: PartfileError) -> Verdict | None:
    """The outcome of the last attempt of a call; None if it failed before any."""
    return error.__cause__.verdict if isinstance(error.__cause__, S3Failure) else None


def _attempt(options: S3Options, work: Callable[[], Result], backoff: Backoff, timeout_s: float) -> Result:
    limit_s = min(timeout_s, backoff.left_s)
    try:
        with this_process().client(options).slot(backoff, timeout_s):
            return work()
    except NoFreeSlot:
        text = f"{options.max_parallel_requests} other requests are under way, and none gets on"
        raise S3Failure(Verdict.BUSY, text) from None
    except GivenUp:
        text = f"nothing moved for {limit_s:.3g} s"
        raise S3Failure(Verdict.UNANSWERED, text) from None
    except PartfileError:
        raise
    except Exception as error:
        raise failure_of(error) from error


WRITE_METADATA = "partfile-write"
"""Name of the object metadata by which a writer whose reply was lost recognises its object."""
DELETED_AT_ONCE = 1000
_RIVALS_ARE_DONE_AFTER_S = 0.2
_MAX_KEY_BYTES = 1024
_WITHOUT_MANY = {Verdict.REFUSED, Verdict.UNSUPPORTED, Verdict.DENIED}
"""Answers of servers that do not delete many objects by one request."""


class S3Access:
    """The objects below one prefix. Paths are relative to it; may be shared between threads.

    A request that the server turned away or did not answer is sent again, after growing pauses, up to one deadline.

    Args:
        url: The place.
        options: The deadlines.
        calls: The requests; another object only to inject faults.
    """

    def __init__(self, url: S3Url, options: S3Options, calls: S3Calls) -> None:
        self.base = str(url)
        self.url = url
        self.options = options
        self.calls = calls
        self._closed = False

    @property
    def traits(self) -> Traits:
        """The facts known about the server's conditional requests."""
        told = self.options.conditional_writes
        if told is not None:
            return self._learnt._replace(puts=told)
        return self._learnt

    @property
    def _learnt(self) -> Traits:
        return this_process().traits.get((self.options.endpoint_url, self.url.bucket), Traits())

    def learn(self, traits: Traits) -> None:
        """Note what was found out, for every store of this process."""
        if self.options.conditional_writes is not None:
            # What one sink is told of PUT is not what another one of this process would find out.
            traits = traits._replace(puts=self._learnt.puts)
        this_process().traits[self.options.endpoint_url, self.url.bucket] = traits

    def shown(self, path: str) -> str:
        """A relative path as messages show it."""
        return f"{self.base}/{path}" if path else self.base

    def check_path(self, path: str) -> None:
        """Refuse a path that no object can have, before anything is promised of it; raises ConfigError."""
        self._key(path)

    def close(self) -> None:
        """Refuse every further request by path."""
        self._closed = True

    def create(self, path: str, data: bytes, metadata: Mapping[str, str] | None = None) -> None:
        """Create an object exclusively; raises AlreadyExists where another one is there.

        Where the server ignores conditions it looks before and after instead, so that a rival is seen, not prevented.
        Where it cannot look afterwards it raises OutcomeUnknown, for the object may be there, and ours.
        """
        key, nonce = self._key(path), {**(metadata or {}), WRITE_METADATA: new_token()}
        trusts = self.traits.puts is not False
        if not trusts and self.head(path) is not None:
            raise AlreadyExists(f"{path!r} is there already", path=path)
        put = partial(self.calls.put, key, data, nonce, if_absent=trusts)
        try:
            self._change("create", path, put)
        except AlreadyExists:
            # An attempt whose reply was lost finds its own object.
            if not self._wrote(path, nonce):
                raise
            return
        if trusts:
            return
        # A rival that looked before has written by now; the last writer wins.
        time.sleep(_RIVALS_ARE_DONE_AFTER_S)
        if not self._wrote(path, nonce):
            raise AlreadyExists(f"{path!r} was created by another process at the same time", path=path)

    def win_claim(self, handle: PartHandle, number: int) -> bool:
        """Claim the right to extend a part from the version that names this claim; False if it is taken.

        Args:
            handle: The part.
            number: Of the claim.
        """
        try:
            self.create(claim_path(handle, number), b"", owner_metadata(handle))
        except AlreadyExists:
            return False
        return True

    def try_put(self, path: str) -> bool:
        """Write an empty object where there is none; whether the server ignored or does not know that condition."""
        try:
            self._change("probe", path, partial(self.calls.put, self._key(path), b"", {}, if_absent=True))
        except AlreadyExists:
            return False
        except NotApplied as error:
            if verdict_of(error) is not Verdict.UNSUPPORTED:
                raise
        return True

    def try_complete(self, path: str, upload: str, pieces: Sequence[Piece]) -> bool:
        """Complete an upload where there is no object; whether the server ignored or does not know that condition."""
        complete = partial(self.calls.complete_upload, self._key(path), upload, pieces, if_absent=True)
        try:
            self._change("probe", path, complete)
        except AlreadyExists:
            return False
        except NotFound:
            # Only this process knows the upload: an attempt whose reply was lost has completed it.
            return True
        except NotApplied as error:
            if verdict_of(error) is not Verdict.UNSUPPORTED:
                raise
            self.abort_upload(path, upload)
        return True

    def put(self, path: str, data: bytes, metadata: Mapping[str, str] | None = None) -> None:
        """Write an object, instead of any that is there."""
        self._change("write", path, partial(self.calls.put, self._key(path), data, metadata or {}, if_absent=False))

    def get(self, path: str, max_bytes: int) -> bytes:
        """Read a whole object; raises NotFound and FileTooLarge."""
        return self._look("read", path, partial(self.calls.get, self._key(path), max_bytes))

    def head(self, path: str) -> S3Object | None:
        """The object under a path; None if there is none."""
        try:
            return self._look("look at", path, partial(self.calls.head, self._key(path)))
        except NotFound:
            return None

    def pages(self, directory: str, *, deep: bool) -> Iterator[S3Page]:
        """List what is in a directory, directly or at any depth, in pages; empty if there is none."""
        return self._pages(self._prefix(directory), directory, deep=deep)

    def pages_beginning(self, path: str) -> Iterator[S3Page]:
        """List what is in one directory and has a path that begins like this, in pages."""
        return self._pages(self._key(path), path, deep=False)

    def _pages(self, prefix: str, path: str, *, deep: bool) -> Iterator[S3Page]:
        token = None
        while True:
            page = self._look("list", path, partial(self.calls.list_page, prefix, deep=deep, token=token))
            yield page
            token = page.next_token
            if token is None:
                return

    def uploads(self) -> Iterator[S3Upload]:
        """Every upload below the base that is neither completed nor aborted."""
        prefix, after = self._prefix(""), None
        while True:
            page = self._look("list the uploads below", "", partial(self.calls.upload_page, prefix, after))
            yield from page.uploads
            after = page.next_after
            if after is None:
                return

    def relative(self, key: str) -> str:
        """The path of a key that a listing gave."""
        return key[len(self._prefix("")) :]

    def delete(self, path: str) -> None:
        """Delete an object; absent counts as done."""
        self._change("delete", path, partial(self.calls.delete, self._key(path)))

    def delete_many(self, paths: Sequence[str]) -> None:
        """Delete objects, many by one request where the server can."""
        for start in range(0, len(paths), DELETED_AT_ONCE):
            some = paths[start : start + DELETED_AT_ONCE]
            keys = [self._key(path) for path in some]
            failed = keys
            try:
                failed = self._change("delete", some[0], partial(self.calls.delete_many, keys)) if some[1:] else keys
            except NotApplied as error:
                # Some servers want a header in this one request that s3fs does not send. Others fail with any request.
                if verdict_of(error) not in _WITHOUT_MANY:
                    raise
            for path, key in zip(some, keys, strict=True):
                if key in failed:
                    self.delete(path)

    def create_upload(self, path: str, metadata: Mapping[str, str]) -> str:
        """Begin an upload; one whose reply is lost stays behind for the lifecycle rule or the cleaner."""
        return self._change("begin an upload of", path, partial(self.calls.create_upload, self._key(path), metadata))

    def upload_part(self, path: str, upload: str, number: int, data: bytes, crc32: int | None) -> str:
        """Send one upload part; raises NotFound where the upload is not open any more."""
        send = partial(self.calls.upload_part, self._key(path), upload, number, data, crc32)
        return self._change("upload a part of", path, send)

    def received_pieces(self, path: str, upload: str) -> list[ReceivedPiece]:
        """The upload parts that the server holds; raises NotFound where the upload is not open any more."""
        ask = partial(self.calls.received_pieces, self._key(path), upload)
        return self._look("look at the upload of", path, ask)

    def upload_is_open(self, path: str, upload: str) -> bool:
        """Whether an upload is neither completed nor aborted."""
        try:
            self._look("look at the upload of", path, partial(self.calls.look_at_upload, self._key(path), upload))
        except NotFound:
            return False
        return True

    def abort_upload(self, path: str, upload: str) -> None:
        """Give an upload up; one that is not open counts as done."""
        try:
            self._change("abort the upload of", path, partial(self.calls.abort_upload, self._key(path), upload))
        except NotFound:
            return

    def complete_upload_once(self, path: str, upload: str, pieces: Sequence[Piece]) -> None:
        """Complete an upload by a single attempt, which has the time of a whole call; raises S3Failure."""
        condition = self.traits.completes is not False
        work = partial(self.calls.complete_upload, self._key(path), upload, pieces, if_absent=condition)
        # The server puts the file together before it answers.
        once(self.options, work, self.options.call_timeout_s)

    def upload_part_once(self, path: str, upload: str, number: int, data: bytes, crc32: int | None) -> str:
        """Send one upload part by a single attempt; raises S3Failure."""
        work = partial(self.calls.upload_part, self._key(path), upload, number, data, crc32)
        return once(self.options, work, self.options.attempt_timeout_s)

    def ask(self, work: Callable[[], Result]) -> Result:
        """Ask the server something about the S3 bucket as a whole."""
        return self._look("ask about", "", work)

    def _wrote(self, path: str, nonce: Mapping[str, str]) -> bool:
        try:
            found = self.head(path)
        except PartfileError as error:
            raise OutcomeUnknown(
                f"cannot tell which writer created {self.shown(path)!r}: {error.message}", hint=error.hint, path=path
            ) from error
        return found is not None and found.metadata.get(WRITE_METADATA) == nonce[WRITE_METADATA]

    def _key(self, path: str) -> str:
        check_relative_path(path)
        self._check_open()
        key = self.url.key_of(path)
        if len(key.encode()) > _MAX_KEY_BYTES:
            raise ConfigError(
                f"the key of {path[:80]!r}... is longer than {_MAX_KEY_BYTES} bytes",
                hint="Choose a bucketer with shorter directories: pf.DateTimeBucketer('time', '%Y-%m-%d').",
                path=path,
            )
        return key

    def _prefix(self, directory: str) -> str:
        check_relative_path(directory)
        self._check_open()
        key = self.url.key_of(directory).rstrip("/")
        return f"{key}/" if key else ""

    def _check_open(self) -> None:
        if self._closed:
            raise NotApplied(f"the store of {self.base!r} is closed", path=self.base)

    def _look(self, doing: str, path: str, work: Callable[[], Result]) -> Result:
        return patiently(self.options, work, lambda failure: failure.as_error(doing, self.shown(path), reads=True))

    def _change(self, doing: str, path: str, work: Callable[[], Result]) -> Result:
        return patiently(self.options, work, lambda failure: failure.as_error(doing, self.shown(path), reads=False))
