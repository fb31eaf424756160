"""Probes: the server's treatment of conditional requests, and settings of an S3 bucket that can hurt a sink."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from partfile.errors import ConfigError, NotFound, PartfileError
from partfile.stores.base import STATE_DIRECTORY
from partfile.stores.hadoop import read_configuration
from partfile.stores.paths import new_token
from partfile.stores.retry import Backoff
from partfile.stores.s3.errors import RETRIED, S3Failure, Verdict
from partfile.stores.s3.handle import Piece, S3Staging

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from partfile.stores.hadoop import HadoopConfiguration
    from partfile.stores.s3.client import Traits
    from partfile.stores.s3.requests import S3Access


_DAY_S = 86_400
_ARCHIVES = {"GLACIER", "DEEP_ARCHIVE"}
"""Storage classes whose objects have to be restored before they can be read."""
_COMMITTERS = {"directory", "partitioned", "magic", "staging"}
"""S3A's committers that keep uploads open."""


def rule_hazards(rules: Sequence[dict[str, Any]], prefix: str, longest_open_s: float) -> Iterator[str]:
    """The lifecycle rules that hurt a sink, in sentences.

    Args:
        rules: As S3 gives them.
        prefix: Of the base, without slashes at its ends.
        longest_open_s: How long a part can stay open, in seconds.
    """
    enabled = [rule for rule in rules if rule.get("Status") == "Enabled" and not _has_tags(rule)]
    days = [rule["AbortIncompleteMultipartUpload"]["DaysAfterInitiation"] for rule in enabled if _aborts(rule, prefix)]
    if not days:
        yield "no lifecycle rule aborts incomplete uploads: what crashed tasks leave costs until it is cleaned"
    elif min(days) * _DAY_S <= longest_open_s:
        yield (
            f"a lifecycle rule aborts uploads after {min(days)} days, and parts stay open for up to "
            f"{longest_open_s:.0f} s: rows will be lost; allow for the longest outage as well"
        )
    state = f"{prefix}/{STATE_DIRECTORY}/".lstrip("/")
    for rule in enabled:
        if _meets(rule, state):
            yield from _state_hazards(rule)


def hadoop_hazards(configuration: HadoopConfiguration, bucket: str) -> Iterator[str]:
    """The harm that S3A, Hadoop's client, may do to uploads of others, as far as Hadoop's files tell.

    Args:
        configuration: Hadoop's.
        bucket: Name of the S3 bucket, for which properties may be set apart.

    Source: Hadoop's ``S3AFileSystem.initializeMultipartUploads`` and its committers, as of 3.4.
    """

    def told(name: str) -> str:
        own = configuration.value(f"fs.s3a.bucket.{bucket}.{name}")
        return (own or configuration.value(f"fs.s3a.{name}")).lower()

    if told("multipart.purge") == "true":
        yield (
            "fs.s3a.multipart.purge is set: every S3A client that opens the S3 bucket aborts uploads older than "
            f"{told('multipart.purge.age') or _DAY_S} s, those of open parts as well: unset it"
        )
    if told("committer.name") in _COMMITTERS and told("committer.abort.pending.uploads") != "false":
        yield (
            "S3A's committers abort every upload below the directory of their job: let no such job write below this "
            "base, or set fs.s3a.committer.abort.pending.uploads to false"
        )


def _state_hazards(rule: dict[str, Any]) -> Iterator[str]:
    expiration = rule.get("Expiration", {})
    if "Days" in expiration or "Date" in expiration:
        when = f"after {expiration['Days']} days" if "Days" in expiration else f"on {expiration['Date']:%Y-%m-%d}"
        yield (
            f"a lifecycle rule deletes what is below {STATE_DIRECTORY} {when}: a sink that has stood still for so long "
            "finds checkpoints and open parts gone; let the rule name the directories of finished files alone"
        )
    if any(each.get("StorageClass") in _ARCHIVES for each in rule.get("Transitions", [])):
        yield (
            f"a lifecycle rule archives what is below {STATE_DIRECTORY}, where it cannot be read any more: let the "
            "rule name the directories of finished files alone"
        )


def _aborts(rule: dict[str, Any], prefix: str) -> bool:
    # Uploads stand under the keys of finished files, which begin with the base and a slash.
    keys = f"{prefix}/".lstrip("/")
    return "DaysAfterInitiation" in rule.get("AbortIncompleteMultipartUpload", {}) and _meets(rule, keys)


def _meets(rule: dict[str, Any], place: str) -> bool:
    """Whether a rule is for keys that begin with ``place``, or for some of them."""
    narrowed = rule.get("Filter", {})
    start = str(narrowed.get("And", narrowed).get("Prefix", rule.get("Prefix", "")))
    return place.startswith(start) or start.startswith(place)


def _has_tags(rule: dict[str, Any]) -> bool:
    """Whether a rule is for objects with tags alone, which partfile's have not."""
    narrowed = rule.get("Filter", {})
    return "Tag" in narrowed or bool(narrowed.get("And", {}).get("Tags"))


_SKEW_MS = 60_000


class ServerProbe:
    """Finds out what a server really does, by requests on objects of its own below the state directory.

    Args:
        access: The store's objects. What was found out is noted there, for every store of this process.
    """

    def __init__(self, access: S3Access) -> None:
        self._access = access

    def learn_puts(self) -> bool:
        """Whether the server honours If-None-Match on PUT; found out once a process.

        Raises:
            StoreError: The server cannot be reached, or refuses these credentials.
        """
        if self._access.traits.puts is None:
            with self._probe_object() as path:
                self._access.learn(self._access.traits._replace(puts=not self._access.try_put(path)))
        return bool(self._access.traits.puts)

    def learn_traits(self) -> Traits:
        """The server's treatment of If-None-Match; found out once a process.

        Raises:
            StoreError: The server cannot be reached, or refuses these credentials.
        """
        puts = self.learn_puts()
        if self._access.traits.completes is None:
            with self._probe_object() as path:
                self._access.learn(self._access.traits._replace(puts=puts, completes=self._refuses_completion(path)))
        return self._access.traits

    def learn_leaving_out(self) -> bool:
        """Whether a completion may leave out upload parts that were sent; found out once a process.

        Raises:
            StoreError: The server cannot be reached, or refuses these credentials.
        """
        if self._access.traits.leaves_out is None:
            self._access.learn(self._access.traits._replace(leaves_out=self._leaves_out()))
        return bool(self._access.traits.leaves_out)

    @contextmanager
    def _probe_object(self) -> Iterator[str]:
        """An object under a random name; one that cannot be deleted stays."""
        with self._probe_path() as path:
            self._access.put(path, b"")
            yield path

    @contextmanager
    def _probe_path(self) -> Iterator[str]:
        path = f"{STATE_DIRECTORY}/_probe.{new_token()}"
        try:
            yield path
        finally:
            with suppress(PartfileError):
                self._access.delete(path)

    def _refuses_completion(self, path: str) -> bool:
        upload = self._access.create_upload(path, {})
        is_refused = not self._access.try_complete(path, upload, [self._piece(path, upload, 1)])
        if is_refused:
            self._access.abort_upload(path, upload)
        return is_refused

    def _leaves_out(self) -> bool:
        backoff = Backoff(self._access.options.call_timeout_s)
        while True:
            try:
                return self._left_out()
            except S3Failure as failure:
                # What became of this upload is unknown; the next one is another.
                if failure.verdict not in RETRIED or not backoff.pause():
                    raise failure.as_error("probe", self._access.base, reads=True) from failure

    def _left_out(self) -> bool:
        with self._probe_path() as path:
            upload = self._access.create_upload(path, {})
            first, _second = (self._piece(path, upload, number) for number in (1, 2))
            try:
                self._access.complete_upload_once(path, upload, [first])
            except S3Failure as failure:
                with suppress(PartfileError):
                    self._access.abort_upload(path, upload)
                if failure.verdict is not Verdict.INVALID_PARTS:
                    raise
                return False
        return True

    def _piece(self, path: str, upload: str, number: int) -> Piece:
        data = b"probe"
        crc32 = S3Staging().checksum_of(data, sends_checksums=self._access.options.sends_checksums)
        etag = self._access.upload_part(path, upload, number, data, crc32)
        return Piece(number=number, etag=etag, size_bytes=len(data), crc32=crc32)

    def hazards(self, *, now_ms: int, longest_open_s: float) -> Iterator[str]:
        """The hazards of the S3 bucket, in sentences; passes over what it may not ask.

        Args:
            now_ms: This host's time, in milliseconds since 1970.
            longest_open_s: How long a part can stay open, in seconds.
        """
        traits = self.learn_traits()
        if not traits.puts:
            yield (
                "the server ignores If-None-Match: two drivers that write with one uid are only detected, not "
                "prevented, and parts roll at every checkpoint"
            )
        elif not traits.completes:
            yield "the server ignores If-None-Match when an upload completes: a look goes before instead"
        server_date = self._access.ask(self._access.calls.server_date)
        if server_date:
            skew_ms = int(parsedate_to_datetime(server_date).timestamp() * 1000) - now_ms
            if abs(skew_ms) > _SKEW_MS:
                yield f"the clocks of the server and of this host are {abs(skew_ms) // 1000} s apart: set them right"
        try:
            if self._access.ask(self._access.calls.versioning) == "Enabled":
                yield (
                    "the S3 bucket keeps old versions: staged objects stay, and cost, until a lifecycle rule expires "
                    "them"
                )
        except PartfileError:
            pass
        yield from self._lifecycle(longest_open_s)
        with suppress(ConfigError):
            yield from hadoop_hazards(read_configuration(os.environ), self._access.url.bucket)

    def _lifecycle(self, longest_open_s: float) -> Iterator[str]:
        try:
            rules = self._access.ask(self._access.calls.lifecycle_rules)
        except NotFound:
            rules = []
        except PartfileError:
            return
        yield from rule_hazards(rules, self._access.url.prefix, longest_open_s)
