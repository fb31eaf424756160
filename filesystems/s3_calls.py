"""The seam below the S3 store: every request it makes through s3fs, one method each.

Keys are whole. ``faults.intercept`` wraps an object of this class: the requests that change something are the points at
which the crash tests kill the process. Never used, for what they do: ``open``, ``rm``, ``mv``, transactions.
"""

from __future__ import annotations

import binascii
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from partfile.filesystems.checksums import crc32_of
from partfile.filesystems.errors import FileTooLarge
from partfile.filesystems.s3_client import MovingBody
from partfile.filesystems.s3_process import this_process

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from partfile.filesystems.s3_client import Progress
    from partfile.filesystems.s3_options import S3Options
    from partfile.filesystems.s3_staging import Piece

CHANGING_CALLS = frozenset(
    {
        "put",
        "put_finished",
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
    """What a listing or a HEAD says of an object."""

    key: str
    size: int
    modified_at_ms: int
    """By the server's clock, in milliseconds since the epoch."""
    metadata: Mapping[str, str]
    """What its writer noted; empty in a listing."""


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
    """By the server's clock, in milliseconds since the epoch."""


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
        self._put(key, data, metadata, if_absent=if_absent, more=self._options.encryption)

    def put_finished(self, key: str, data: bytes, metadata: Mapping[str, str], *, if_absent: bool) -> None:
        """Write a finished file, whole or not at all."""
        self._put(key, data, metadata, if_absent=if_absent, more={**self._options.encryption, **self._options.finished})

    def get(self, key: str, max_bytes: int) -> bytes:
        """Read a whole object; raises FileTooLarge before it reads one that is longer than allowed."""
        return this_process().client(self._options).run(partial(self._read, key, max_bytes))

    def head(self, key: str) -> S3Object:
        """What is under a key."""
        answer = self._call("head_object", Key=key)
        return S3Object(key, answer["ContentLength"], _ms(answer), answer.get("Metadata", {}))

    def list_page(self, prefix: str, *, deep: bool, token: str | None = None, max_keys: int = 1000) -> S3Page:
        """One page of the keys that begin with ``prefix``: all of them, or those up to the next slash."""
        more: dict[str, Any] = {} if deep else {"Delimiter": "/"}
        if token is not None:
            more["ContinuationToken"] = token
        answer = self._call("list_objects_v2", Prefix=prefix, MaxKeys=max_keys, **more)
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
        """Begin the upload of a finished file, which nobody sees; return its id."""
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

    def _put(
        self, key: str, data: bytes, metadata: Mapping[str, str], *, if_absent: bool, more: Mapping[str, str]
    ) -> None:
        crc32 = crc32_of(data) if self._options.sends_checksums else None
        sent: dict[str, Any] = {"Body": data, "Metadata": metadata, **_checksum(crc32)}
        self._call("put_object", Key=key, **sent, **_condition(if_absent), **more)

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
