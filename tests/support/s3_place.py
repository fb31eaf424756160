"""One key on an S3 server, where tests ask what the server makes of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

if TYPE_CHECKING:
    from collections.abc import Callable

    import s3fs

WRONG_ETAG = '"00000000000000000000000000000000"'


class Place:
    """One key of a bucket, where one question is asked.

    Args:
        client: An s3fs that does not retry.
        bucket: The bucket.
        key: The key.
    """

    def __init__(self, client: s3fs.S3FileSystem, bucket: str, key: str) -> None:
        self.client = client
        self.names = {"Bucket": bucket, "Key": key}
        self.upload_id = ""

    def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """Ask for an operation on this key, on the open upload if there is one to name."""
        names: dict[str, Any] = dict(self.names)
        if operation in {"upload_part", "list_parts", "complete_multipart_upload", "abort_multipart_upload"}:
            names["UploadId"] = self.upload_id
        answer: dict[str, Any] = self.client.call_s3(operation, **{**names, **parameters})
        return answer

    def ask(self, operation: str, **parameters: Any) -> str:
        """Ask for it; return how it went."""
        return outcome(lambda: self.call(operation, **parameters))

    def begin(self, **parameters: Any) -> None:
        """Open a multipart upload."""
        self.upload_id = self.call("create_multipart_upload", **parameters)["UploadId"]

    def part(self, number: int, body: bytes) -> dict[str, Any]:
        """Send a part; return how a completion names it."""
        return {"PartNumber": number, "ETag": self.call("upload_part", PartNumber=number, Body=body)["ETag"]}

    def complete(self, *parts: dict[str, Any], **parameters: Any) -> str:
        """Complete the upload; return how it went."""
        return self.ask("complete_multipart_upload", MultipartUpload={"Parts": list(parts)}, **parameters)

    def content(self, start: int | None = None, end: int | None = None) -> bytes:
        """What the object holds, or the bytes from ``start`` until before ``end``."""
        body: bytes = self.client.cat_file("{Bucket}/{Key}".format(**self.names), start=start, end=end)
        return body

    def exists(self) -> bool:
        """Whether there is an object."""
        return self.ask("head_object") == "done"


def outcome(call: Callable[[], object]) -> str:
    """How a call went: ``done``, or status and code of the refusal."""
    try:
        call()
    except OSError as error:
        cause = error.__cause__
        if not isinstance(cause, ClientError):
            raise
        status = cause.response["ResponseMetadata"]["HTTPStatusCode"]
        return f"{status} {cause.response['Error']['Code']}"
    return "done"
