"""Spark streams into a real S3 server for the tests: their sinks, and what another reader finds there."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from botocore.exceptions import BotoCoreError

from support.s3.life import store_options
from support.spark.streams import make_sink
from support.spark.watcher import Polling

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    import s3fs

    import partfile as pf
    from support.s3.life import Place
    from support.s3.proxy import Exchange
    from support.s3.server import S3Server


class Seen(NamedTuple):
    """What a listing says of an object, which no later one may contradict."""

    etag: str
    modified_at: datetime
    size: int


def s3_sink(place: Place, base: str, **options: Any) -> pf.FileSink:
    """A sink of numbered rows; ``place`` is a server or a proxy in front of one."""
    client = store_options(place) | options.pop("storage_options", {})
    return make_sink(base, storage_options=client, **options)


def visible_objects(client: s3fs.S3FileSystem, base: str) -> dict[str, Seen]:
    """What readers of ``base`` see, by key: nothing hidden, nor below what is hidden."""
    bucket, _, prefix = base.removeprefix("s3://").partition("/")
    found: dict[str, Seen] = {}
    more: dict[str, str] = {}
    while True:
        page = client.call_s3("list_objects_v2", Bucket=bucket, Prefix=f"{prefix}/", **more)
        for one in page.get("Contents", []):
            if is_visible(one["Key"].removeprefix(f"{prefix}/")):
                found[one["Key"]] = Seen(one["ETag"], one["LastModified"], one["Size"])
        if not page.get("IsTruncated"):
            return found
        more = {"ContinuationToken": page["NextContinuationToken"]}


def is_visible(path: str) -> bool:
    """Whether readers take a file that has this path below the base."""
    return not any(step.startswith(("_", ".")) for step in path.split("/"))


def ids_on_s3(server: S3Server, base: str) -> Counter[int]:
    """The ids in every object that a reader of ``base`` sees."""
    client = server.filesystem()
    bucket = base.removeprefix("s3://").partition("/")[0]
    found: Counter[int] = Counter()
    for key in visible_objects(client, base):
        found.update(json.loads(line)["id"] for line in client.cat_file(f"{bucket}/{key}").splitlines())
    return found


def pending_uploads(server: S3Server, base: str) -> list[dict[str, Any]]:
    """The uploads of the base's bucket that are neither completed nor aborted."""
    return server.pending_uploads(base.removeprefix("s3://").partition("/")[0])


def published_too_soon(exchanges: Iterable[Exchange], base: str) -> list[str]:
    """The keys of objects that became visible while something was staged that no checkpoint had been written for."""
    prefix = base.removeprefix("s3://").partition("/")[2] + "/"
    staged: list[tuple[str | None, int]] = []
    vouched: dict[str | None, list[int]] = {}
    too_soon = []
    for exchange in exchanges:
        request = exchange.request
        path = request.key.removeprefix(prefix)
        if path.startswith("_partfile/_sides/") and request.method == "PUT":
            staged.append((path.partition(".")[0], exchange.request_bytes))
        elif request.operation == "UploadPart":
            # Who publishes sends what is in side objects of the checkpoint.
            if not any(_holds(lengths, exchange.request_bytes) for lengths in vouched.values()):
                staged.append((None, exchange.request_bytes))
        elif path.endswith("/_metadata") and request.operation == "PutObject" and exchange.status == 200:
            for part, length in staged:
                vouched.setdefault(part, []).append(length)
            vouched.pop(None, None)
            staged = []
        elif staged and is_visible(path) and request.operation in {"PutObject", "CompleteMultipartUpload"}:
            too_soon.append(path)
    return too_soon


def _holds(lengths: Sequence[int], total: int) -> bool:
    """Whether the last few of some side objects of one part have this length together."""
    return any(sum(lengths[start:]) == total for start in range(len(lengths)))


class ObjectWatcher(Polling):
    """Lists what readers see: an object never changes and never goes.

    Args:
        server: The server.
        base: URL of the base of a sink.
    """

    def __init__(self, server: S3Server, base: str) -> None:
        super().__init__(pause_s=0.1, away=(OSError, BotoCoreError))
        self._client = server.filesystem()
        self._base = base
        self.seen: dict[str, Seen] = {}
        self.counts: list[int] = []
        """How many objects each look has found."""

    def _look(self) -> None:
        found = self._found()
        self._problems += [f"{key} is gone" for key in self.seen.keys() - found.keys()]
        self.seen |= found

    def _found(self) -> dict[str, Seen]:
        """What is there, and unchanged."""
        found = visible_objects(self._client, self._base)
        self.counts.append(len(found))
        self._problems += [
            f"{key} was {self.seen[key]} and is {now}" for key, now in found.items() if self.seen.get(key, now) != now
        ]
        return found


class ObjectConsumer(ObjectWatcher):
    """Moves each object away as soon as it is listed: none comes again.

    Args:
        server: As of ``ObjectWatcher``.
        base: Likewise.
        place: URL of the prefix that the objects get, in the same bucket.
    """

    def __init__(self, server: S3Server, base: str, place: str) -> None:
        super().__init__(server, base)
        self._bucket, _, self._prefix = base.removeprefix("s3://").partition("/")
        self._place = place.removeprefix(f"s3://{self._bucket}/")
        self._gone: set[str] = set()

    def _look(self) -> None:
        found = self._found()
        # One whose deletion may have failed is there again as it was; another one of the same key is another object.
        self._problems += [f"{key} has come again" for key in self._gone & found.keys()]
        self.seen |= found
        for key in found:
            name = self._place + key.removeprefix(self._prefix)
            source = {"Bucket": self._bucket, "Key": key}
            self._client.call_s3("copy_object", Bucket=self._bucket, Key=name, CopySource=source)
            self._client.call_s3("delete_object", Bucket=self._bucket, Key=key)
            self._gone.add(key)
