"""A strict object store in memory behind the seam of the S3 store: it refuses whatever any server may refuse.

What AWS, Ceph's gateway and others do differently is a value, ``Rules``. Objects appear whole; an upload is gone once
it has been completed or aborted; preconditions are checked where the rules say so; nothing is ever renamed. One request
is done at a time, whichever threads they come from.
"""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from botocore.exceptions import ClientError

from partfile.errors import FileTooLarge
from partfile.stores.s3.client import ReceivedPiece, S3Calls, S3Object, S3Page, S3Upload, S3UploadPage
from support.sinks.life_cycle import visible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from partfile.stores.s3.handle import Piece


LEAST_PIECE_BYTES = 20
"""Of every upload part but the last: 5 MiB in small."""
_STATUSES = {"NoSuchKey": 404, "NoSuchUpload": 404, "PreconditionFailed": 412, "404": 404}


class Rules(NamedTuple):
    """What a server does its own way."""

    name: str
    conditions_on_puts: bool = True
    """A PUT with If-None-Match is refused where the key is taken."""
    conditions_on_completions: bool = True
    """So is a completion."""
    leaves_out: bool = True
    """A completion need not name every upload part that was sent."""
    gapless_numbers: bool = False
    """A completion must name upload parts from 1 on without a gap, where they have checksums."""


class Object(NamedTuple):
    """What is under a key."""

    data: bytes
    metadata: tuple[tuple[str, str], ...]
    modified_at_ms: int


class Upload(NamedTuple):
    """An upload that is open."""

    key: str
    metadata: tuple[tuple[str, str], ...]
    parts: tuple[tuple[int, bytes, int | None], ...] = ()
    """Number, bytes and checksum, by number."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Everything that an S3 bucket holds: a picture of it."""

    objects: tuple[tuple[str, Object], ...] = ()
    uploads: tuple[tuple[str, Upload], ...] = ()
    requests: int = field(default=0, compare=False)
    """How many there have been: the server's clock, and where it gets upload ids from."""

    def finished(self) -> dict[str, bytes]:
        """See ``crash.worlds.Picture.finished``."""
        return visible({key.removeprefix("base/"): found.data for key, found in self.objects})

    def staged(self) -> list[str]:
        """See ``crash.worlds.Picture.staged``; a part that is not finished is an upload."""
        return [f"{upload.key} {name}" for name, upload in self.uploads]


class ModelCalls(S3Calls):
    """The requests of the S3 store to one bucket of the model.

    Args:
        rules: What the server does its own way.
        bucket: What it holds.
    """

    def __init__(self, rules: Rules, bucket: Bucket | None = None) -> None:
        held = bucket or Bucket()
        self.rules = rules
        self._objects = dict(held.objects)
        self._uploads = dict(held.uploads)
        self._requests = held.requests
        self._turn = threading.RLock()

    def picture(self) -> Bucket:
        """What is there now."""
        with self._turn:
            return Bucket(tuple(sorted(self._objects.items())), tuple(sorted(self._uploads.items())), self._requests)

    def put(self, key: str, data: bytes, metadata: Mapping[str, str], *, if_absent: bool) -> None:
        """See ``S3Calls.put``."""
        with self._turn:
            if if_absent and self.rules.conditions_on_puts and key in self._objects:
                raise refusal("PreconditionFailed")
            self._write(key, bytes(data), tuple(sorted(metadata.items())))

    def get(self, key: str, max_bytes: int) -> bytes:
        """See ``S3Calls.get``."""
        data = self._object(key).data
        if len(data) > max_bytes:
            raise FileTooLarge(f"{key!r} is longer than {max_bytes} bytes", path=key)
        return data

    def head(self, key: str) -> S3Object:
        """See ``S3Calls.head``."""
        found = self._object(key)
        return S3Object(key, len(found.data), found.modified_at_ms, dict(found.metadata))

    def list_page(self, prefix: str, *, deep: bool, token: str | None = None) -> S3Page:
        """See ``S3Calls.list_page``; pages of two, so that the first is not taken for all."""
        with self._turn:
            names = sorted({_shown(key, prefix, deep=deep) for key in self._objects if key.startswith(prefix)})
            rest = [name for name in names if token is None or name > token]
            page = rest[:2]
            found = [
                S3Object(key, len(one.data), one.modified_at_ms, {}) for key in page if (one := self._objects.get(key))
            ]
            prefixes = [name for name in page if name not in self._objects]
            return S3Page(found, prefixes, page[-1] if len(rest) > len(page) else None)

    def delete(self, key: str) -> None:
        """See ``S3Calls.delete``."""
        with self._turn:
            self._objects.pop(key, None)

    def delete_many(self, keys: Sequence[str]) -> list[str]:
        """See ``S3Calls.delete_many``."""
        for key in keys:
            self.delete(key)
        return []

    def create_upload(self, key: str, metadata: Mapping[str, str]) -> str:
        """See ``S3Calls.create_upload``."""
        with self._turn:
            self._requests += 1
            name = f"upload-{self._requests}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"
            self._uploads[name] = Upload(key, tuple(sorted(metadata.items())))
            return name

    def upload_part(self, key: str, upload: str, number: int, data: bytes, crc32: int | None) -> str:
        """See ``S3Calls.upload_part``."""
        with self._turn:
            found = self._upload(key, upload)
            others = [part for part in found.parts if part[0] != number]
            self._uploads[upload] = found._replace(parts=tuple(sorted([*others, (number, bytes(data), crc32)])))
            return _etag(data)

    def complete_upload(self, key: str, upload: str, pieces: Sequence[Piece], *, if_absent: bool) -> None:
        """See ``S3Calls.complete_upload``."""
        with self._turn:
            found = self._upload(key, upload)
            if if_absent and self.rules.conditions_on_completions and key in self._objects:
                raise refusal("PreconditionFailed")
            sent = {number: (data, crc32) for number, data, crc32 in found.parts}
            numbers = [piece.number for piece in pieces]
            if not numbers or numbers != sorted(set(numbers)):
                raise refusal("InvalidPartOrder")
            if any(piece.number not in sent or piece.etag != _etag(sent[piece.number][0]) for piece in pieces):
                raise refusal("InvalidPart")
            if not self.rules.leaves_out and len(numbers) < len(sent):
                raise refusal("InvalidPart")
            has_checksums = any(sent[number][1] is not None for number in numbers)
            if self.rules.gapless_numbers and has_checksums and numbers != list(range(1, len(numbers) + 1)):
                raise refusal("InvalidPartOrder")
            if any(len(sent[number][0]) < LEAST_PIECE_BYTES for number in numbers[:-1]):
                raise refusal("EntityTooSmall")
            del self._uploads[upload]
            self._write(key, b"".join(sent[number][0] for number in numbers), found.metadata)

    def abort_upload(self, key: str, upload: str) -> None:
        """See ``S3Calls.abort_upload``."""
        with self._turn:
            self._upload(key, upload)
            del self._uploads[upload]

    def look_at_upload(self, key: str, upload: str) -> None:
        """See ``S3Calls.look_at_upload``."""
        self._upload(key, upload)

    def upload_page(self, prefix: str, after: tuple[str, str] | None = None) -> S3UploadPage:
        """See ``S3Calls.upload_page``; all on one page, begun before anything else."""
        assert after is None
        found = [S3Upload(one.key, name, 0) for name, one in self._uploads.items() if one.key.startswith(prefix)]
        return S3UploadPage(found, None)

    def received_pieces(self, key: str, upload: str) -> list[ReceivedPiece]:
        """See ``S3Calls.received_pieces``."""
        return [
            ReceivedPiece(number, _etag(data), len(data), crc32)
            for number, data, crc32 in self._upload(key, upload).parts
        ]

    def lifecycle_rules(self) -> list[dict[str, Any]]:
        """One that aborts uploads late enough."""
        rule = {"Status": "Enabled", "Filter": {}, "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 99}}
        return [rule]

    def server_date(self) -> str:
        """It does not say."""
        return ""

    def versioning(self) -> str:
        """Off."""
        return ""

    def _write(self, key: str, data: bytes, metadata: tuple[tuple[str, str], ...]) -> None:
        self._requests += 1
        self._objects[key] = Object(data, metadata, self._requests)

    def _object(self, key: str) -> Object:
        if key not in self._objects:
            raise refusal("404")
        return self._objects[key]

    def _upload(self, key: str, upload: str) -> Upload:
        found = self._uploads.get(upload)
        if found is None or found.key != key:
            raise refusal("NoSuchUpload")
        return found


def refusal(code: str) -> OSError:
    """What a server refuses, as s3fs raises it."""
    status = _STATUSES.get(code, 400)
    answer: Any = {"Error": {"Code": code, "Message": "the model"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    error = OSError(22, code)
    error.__cause__ = ClientError(answer, "Request")
    return error


def without_clock(bucket: Bucket) -> Bucket:
    """The same bucket, so that two that differ in nothing but when things were written are equal."""
    return replace(bucket, objects=tuple((key, found._replace(modified_at_ms=0)) for key, found in bucket.objects))


def _shown(key: str, prefix: str, *, deep: bool) -> str:
    rest = key[len(prefix) :]
    return key if deep or "/" not in rest else f"{prefix}{rest.split('/', 1)[0]}/"


def _etag(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()
