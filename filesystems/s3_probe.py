"""What a server really does with conditional requests, and what about an S3 bucket can hurt a sink."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from partfile.filesystems.backoff import Backoff
from partfile.filesystems.errors import ConfigError, NotFound, PartfileError
from partfile.filesystems.hadoop_configuration import read_configuration
from partfile.filesystems.port import STATE_DIRECTORY
from partfile.filesystems.s3_errors import RETRIED, S3Failure, Verdict
from partfile.filesystems.s3_lifecycle import hadoop_hazards, rule_hazards
from partfile.filesystems.s3_staging import Piece, S3Staging
from partfile.filesystems.tokens import new_token

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partfile.filesystems.s3_access import S3Access
    from partfile.filesystems.s3_process import Traits

_SKEW_MS = 60_000


def learn_puts(access: S3Access) -> bool:
    """Whether the server honours If-None-Match on PUT; found out once a process.

    Raises:
        StoreError: The server cannot be reached, or refuses these credentials.
    """
    if access.traits.puts is None:
        with _probe_object(access) as path:
            access.learn(access.traits._replace(puts=not access.try_put(path)))
    return bool(access.traits.puts)


def learn_traits(access: S3Access) -> Traits:
    """What the server does with If-None-Match; found out once a process.

    Raises:
        StoreError: The server cannot be reached, or refuses these credentials.
    """
    puts = learn_puts(access)
    if access.traits.completes is None:
        with _probe_object(access) as path:
            access.learn(access.traits._replace(puts=puts, completes=_refuses_completion(access, path)))
    return access.traits


def learn_leaving_out(access: S3Access) -> bool:
    """Whether a completion may leave out upload parts that were sent; found out once a process.

    Raises:
        StoreError: The server cannot be reached, or refuses these credentials.
    """
    if access.traits.leaves_out is None:
        access.learn(access.traits._replace(leaves_out=_leaves_out(access)))
    return bool(access.traits.leaves_out)


@contextmanager
def _probe_object(access: S3Access) -> Iterator[str]:
    """An object that nobody else knows; one that cannot be deleted stays."""
    with _probe_path(access) as path:
        access.put(path, b"")
        yield path


@contextmanager
def _probe_path(access: S3Access) -> Iterator[str]:
    path = f"{STATE_DIRECTORY}/_probe.{new_token()}"
    try:
        yield path
    finally:
        with suppress(PartfileError):
            access.delete(path)


def _refuses_completion(access: S3Access, path: str) -> bool:
    upload = access.create_upload(path, {})
    is_refused = not access.try_complete(path, upload, [_piece(access, path, upload, 1)])
    if is_refused:
        access.abort_upload(path, upload)
    return is_refused


def _leaves_out(access: S3Access) -> bool:
    backoff = Backoff(access.options.call_timeout_s)
    while True:
        try:
            return _left_out(access)
        except S3Failure as failure:
            # What became of this upload nobody can tell; the next one is another.
            if failure.verdict not in RETRIED or not backoff.pause():
                raise failure.as_error("probe", access.base, reads=True) from failure


def _left_out(access: S3Access) -> bool:
    with _probe_path(access) as path:
        upload = access.create_upload(path, {})
        first, _second = (_piece(access, path, upload, number) for number in (1, 2))
        try:
            access.complete_upload_once(path, upload, [first])
        except S3Failure as failure:
            with suppress(PartfileError):
                access.abort_upload(path, upload)
            if failure.verdict is not Verdict.INVALID_PARTS:
                raise
            return False
    return True


def _piece(access: S3Access, path: str, upload: str, number: int) -> Piece:
    data = b"probe"
    crc32 = S3Staging().checksum_of(data, sends_checksums=access.options.sends_checksums)
    etag = access.upload_part(path, upload, number, data, crc32)
    return Piece(number=number, etag=etag, size_bytes=len(data), crc32=crc32)


def hazards(access: S3Access, *, now_ms: int, longest_open_s: float) -> Iterator[str]:
    """What about the S3 bucket can hurt a sink, in sentences; what may not be asked is passed over.

    Args:
        access: The store's objects.
        now_ms: This host's time, in milliseconds since the epoch.
        longest_open_s: How long a part can stay open, in seconds.
    """
    traits = learn_traits(access)
    if not traits.puts:
        yield (
            "the server ignores If-None-Match: two drivers that write with one uid are only detected, not prevented, "
            "and parts roll at every checkpoint"
        )
    elif not traits.completes:
        yield "the server ignores If-None-Match when an upload completes: a look goes before instead"
    server_date = access.ask(access.calls.server_date)
    if server_date:
        skew_ms = int(parsedate_to_datetime(server_date).timestamp() * 1000) - now_ms
        if abs(skew_ms) > _SKEW_MS:
            yield f"the clocks of the server and of this host are {abs(skew_ms) // 1000} s apart: set them right"
    try:
        if access.ask(access.calls.versioning) == "Enabled":
            yield "the S3 bucket keeps old versions: staged objects stay, and cost, until a lifecycle rule expires them"
    except PartfileError:
        pass
    yield from _lifecycle(access, longest_open_s)
    with suppress(ConfigError):
        yield from hadoop_hazards(read_configuration(os.environ), access.url.bucket)


def _lifecycle(access: S3Access, longest_open_s: float) -> Iterator[str]:
    try:
        rules = access.ask(access.calls.lifecycle_rules)
    except NotFound:
        rules = []
    except PartfileError:
        return
    yield from rule_hazards(rules, access.url.prefix, longest_open_s)
