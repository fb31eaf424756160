"""What a server really does with conditional requests, and what about an S3 bucket can hurt a sink."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from partfile.filesystems.errors import NotFound, PartfileError
from partfile.filesystems.port import STATE_DIRECTORY
from partfile.filesystems.s3_process import Traits
from partfile.filesystems.s3_staging import Piece
from partfile.filesystems.tokens import new_token

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partfile.filesystems.s3_access import S3Access

_SKEW_MS = 60_000
_DAY_S = 86_400


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
            access.learn(Traits(puts=puts, completes=_refuses_completion(access, path)))
    return access.traits


@contextmanager
def _probe_object(access: S3Access) -> Iterator[str]:
    """An object that nobody else knows; one that cannot be deleted stays."""
    path = f"{STATE_DIRECTORY}/_probe.{new_token()}"
    access.put(path, b"")
    yield path
    with suppress(PartfileError):
        access.delete(path)


def _refuses_completion(access: S3Access, path: str) -> bool:
    upload = access.create_upload(path, {})
    piece = Piece(number=1, etag=access.upload_part(path, upload, 1, b"probe"), size_bytes=5)
    is_refused = not access.try_complete(path, upload, [piece])
    if is_refused:
        access.abort_upload(path, upload)
    return is_refused


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
    yield from _rules(access, longest_open_s)


def _rules(access: S3Access, longest_open_s: float) -> Iterator[str]:
    try:
        rules = access.ask(access.calls.lifecycle_rules)
    except NotFound:
        rules = []
    except PartfileError:
        return
    own = [rule for rule in rules if rule.get("Status") == "Enabled" and _applies(rule, access.url.prefix)]
    days = [rule["AbortIncompleteMultipartUpload"]["DaysAfterInitiation"] for rule in own if _aborts(rule)]
    if not days:
        yield "no lifecycle rule aborts incomplete uploads: what crashed tasks leave costs until it is cleaned"
    elif min(days) * _DAY_S <= longest_open_s:
        yield (
            f"a lifecycle rule aborts uploads after {min(days)} days, and parts stay open for up to "
            f"{longest_open_s:.0f} s: rows will be lost; allow for the longest outage as well"
        )


def _aborts(rule: dict[str, Any]) -> bool:
    return "DaysAfterInitiation" in rule.get("AbortIncompleteMultipartUpload", {})


def _applies(rule: dict[str, Any], prefix: str) -> bool:
    start = str(rule.get("Filter", {}).get("Prefix", rule.get("Prefix", "")))
    return prefix.startswith(start) or start.startswith(prefix)
