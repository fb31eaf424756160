"""Which operation of S3 an HTTP request is, by path style: told from its first line and headers alone."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


_OF_SERVICE = {"GET": "ListBuckets"}
_OF_BUCKET = {"GET": "ListObjects", "PUT": "CreateBucket", "HEAD": "HeadBucket", "DELETE": "DeleteBucket"}
_OF_OBJECT = {"GET": "GetObject", "PUT": "PutObject", "HEAD": "HeadObject", "DELETE": "DeleteObject"}
_OF_UPLOAD = {
    "PUT": "UploadPart",
    "POST": "CompleteMultipartUpload",
    "DELETE": "AbortMultipartUpload",
    "GET": "ListParts",
}
_BY_QUERY = {
    ("GET", "uploads"): "ListMultipartUploads",
    ("POST", "uploads"): "CreateMultipartUpload",
    ("POST", "delete"): "DeleteObjects",
    ("GET", "versions"): "ListObjectVersions",
    ("GET", "location"): "GetBucketLocation",
    ("GET", "versioning"): "GetBucketVersioning",
    ("PUT", "versioning"): "PutBucketVersioning",
    ("GET", "lifecycle"): "GetBucketLifecycleConfiguration",
    ("PUT", "lifecycle"): "PutBucketLifecycleConfiguration",
}
_COPIES = {"PutObject": "CopyObject", "UploadPart": "UploadPartCopy"}


@dataclass(frozen=True, slots=True)
class S3Request:
    """What an HTTP request asks of S3; ``operation`` has the name that S3's documentation uses."""

    method: str
    operation: str
    bucket: str = ""
    key: str = ""
    upload_id: str = ""
    part_number: int | None = None
    prefix: str = ""
    """Of the keys that a listing is about."""


@dataclass(frozen=True, slots=True)
class RequestPattern:
    """Which requests are meant: those that agree with all that is given.

    Args:
        operation: As S3's documentation names it: ``PutObject``, ``CompleteMultipartUpload``.
        key: Of the object, with ``*`` and ``?`` as in a shell, but ``*`` crosses ``/``.
        method: Of HTTP.
    """

    operation: str = "*"
    key: str = "*"
    method: str = "*"

    def matches(self, request: S3Request) -> bool:
        """Whether a request is meant."""
        return (
            fnmatchcase(request.operation, self.operation)
            and fnmatchcase(request.key, self.key)
            and fnmatchcase(request.method, self.method)
        )


def recognise(method: str, target: str, header_names: Iterable[str]) -> S3Request:
    """The request of S3 behind a request line and the names of its headers, which are in any case.

    An operation that is not known here is called by its method and its query: ``GET ?acl``.
    """
    parts = urlsplit(target)
    bucket, _, key = parts.path.removeprefix("/").partition("/")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    operation = _operation(method, bucket, key, query)
    if any(name.lower() == "x-amz-copy-source" for name in header_names):
        operation = _COPIES.get(operation, operation)
    number = query.get("partNumber", "")
    return S3Request(
        method=method,
        operation=operation,
        bucket=unquote(bucket),
        key=unquote(key),
        upload_id=query.get("uploadId", ""),
        part_number=int(number) if number.isdecimal() else None,
        prefix=query.get("prefix", ""),
    )


def _operation(method: str, bucket: str, key: str, query: Mapping[str, str]) -> str:
    if query.get("list-type") == "2":
        return "ListObjectsV2"
    for name in query:
        if (method, name) in _BY_QUERY:
            return _BY_QUERY[method, name]
    if "uploadId" in query:
        known = _OF_UPLOAD
    elif any(not value for value in query.values()):
        # A name without a value is what S3 calls a subresource: ?acl, ?tagging.
        known = {}
    else:
        known = _OF_OBJECT if key else _OF_BUCKET if bucket else _OF_SERVICE
    return known.get(method, f"{method} ?{'&'.join(sorted(query))}")
