"""Questions to an S3 server about objects and uploads: what S3 leaves open, or servers do their own way."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError, FlexibleChecksumError

if TYPE_CHECKING:
    from collections.abc import Callable

    import s3fs


# One key on an S3 server, where tests ask what the server makes of a request.

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


# Questions to an S3 server about objects and buckets: what S3 leaves open, or servers do their own way.
#
# Each has a short answer: ``done``, or status and code of the refusal, or a word of the question's own.

_RIVALS = 8
_WRONG_CRC32 = "AAAAAA=="
_WRONG_MD5 = "AAAAAAAAAAAAAAAAAAAAAA=="


def put_if_absent(place: Place) -> str:
    """Is an object kept if a put must not replace it?"""
    place.call("put_object", Body=b"old")
    answer = place.ask("put_object", Body=b"new", IfNoneMatch="*")
    return answer if place.content() == b"old" else f"{answer}, replaced"


def put_nothing_if_absent(place: Place) -> str:
    """Likewise for a put of no bytes."""
    place.call("put_object", Body=b"old")
    answer = place.ask("put_object", Body=b"", IfNoneMatch="*")
    return answer if place.content() == b"old" else f"{answer}, replaced"


def put_if_absent_by_rivals(place: Place) -> str:
    """How many of several who must not replace an object are told, at once, that they have made it?"""
    answers: list[str] = []
    start = threading.Barrier(_RIVALS)

    def rival(number: int) -> None:
        start.wait()
        answers.append(place.ask("put_object", Body=b"%d" % number, IfNoneMatch="*"))

    threads = [threading.Thread(target=rival, args=(number,)) for number in range(_RIVALS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return "one" if answers.count("done") == 1 else "several"


def put_if_match(place: Place) -> str:
    """Is an object kept if a put must only replace another version?"""
    place.call("put_object", Body=b"old")
    answer = place.ask("put_object", Body=b"new", IfMatch=WRONG_ETAG)
    return answer if place.content() == b"old" else f"{answer}, replaced"


def read_of_a_range(place: Place) -> str:
    """Does a reader of some bytes get them, by a client that checks checksums wherever there are any?"""
    place.call("put_object", Body=b"0123456789")
    try:
        return "done" if place.content(start=3, end=6) == b"345" else "other bytes"
    except FlexibleChecksumError:
        return "the whole object's checksum"


def delete_if_match(place: Place) -> str:
    """Is an object kept if a delete must only meet another version?"""
    place.call("put_object", Body=b"old")
    answer = place.ask("delete_object", IfMatch=WRONG_ETAG)
    return answer if place.exists() else f"{answer}, deleted"


def delete_of_nothing(place: Place) -> str:
    """Is a delete of what is not there fine?"""
    return place.ask("delete_object")


def put_with_wrong_checksum(place: Place) -> str:
    """Is a body that does not have its checksum refused?"""
    return place.ask("put_object", Body=b"body", ChecksumCRC32=_WRONG_CRC32)


def put_with_wrong_md5(place: Place) -> str:
    """Likewise for the older way to say it."""
    return place.ask("put_object", Body=b"body", ContentMD5=_WRONG_MD5)


def checksum_is_kept(place: Place) -> str:
    """Can the checksum of an object be asked for later?"""
    place.call("put_object", Body=b"body", ChecksumAlgorithm="CRC32")
    return "yes" if "ChecksumCRC32" in place.call("head_object", ChecksumMode="ENABLED") else "no"


def wrong_secret_key(place: Place) -> str:
    """Is a request refused that was signed with another key?"""
    options = {**place.client.storage_options, "secret": "another"}
    other = type(place.client)(**options)
    other.retries = 1
    return outcome(lambda: other.call_s3("put_object", **place.names, Body=b"body"))


def lifecycle_of_bucket(place: Place) -> str:
    """What is said of the lifecycle rules of a bucket that has none?"""
    bucket = place.names["Bucket"]
    return outcome(lambda: place.client.call_s3("get_bucket_lifecycle_configuration", Bucket=bucket))


def versioning_of_bucket(place: Place) -> str:
    """What is said of the versioning of a bucket that has none?"""
    return outcome(lambda: place.client.call_s3("get_bucket_versioning", Bucket=place.names["Bucket"]))


OBJECT_PROBES = (
    put_if_absent,
    put_nothing_if_absent,
    put_if_absent_by_rivals,
    put_if_match,
    read_of_a_range,
    delete_if_match,
    delete_of_nothing,
    put_with_wrong_checksum,
    put_with_wrong_md5,
    checksum_is_kept,
    wrong_secret_key,
    lifecycle_of_bucket,
    versioning_of_bucket,
)


# Questions to an S3 server about multipart uploads: what S3 leaves open, or servers do their own way.
#
# Each has a short answer: ``done``, or status and code of the refusal, or a word of the question's own.

MIN_PART_BYTES = 5 * 2**20


def complete_if_absent(place: Place) -> str:
    """Is an object kept if the completion of an upload must not replace it?"""
    place.call("put_object", Body=b"old")
    place.begin()
    answer = place.complete(place.part(1, b"new"), IfNoneMatch="*")
    return answer if place.content() == b"old" else f"{answer}, replaced"


def complete_again(place: Place) -> str:
    """What is said to a completion that was carried out before?"""
    place.begin()
    part = place.part(1, b"body")
    place.complete(part)
    return place.complete(part)


def complete_again_if_absent(place: Place) -> str:
    """Likewise if it must not replace an object, which then is its own."""
    place.begin()
    part = place.part(1, b"body")
    place.complete(part, IfNoneMatch="*")
    return place.complete(part, IfNoneMatch="*")


def complete_again_what_was_replaced(place: Place) -> str:
    """Does a repeated completion bring its object back over a later one?"""
    place.begin()
    part = place.part(1, b"body")
    place.complete(part)
    place.call("put_object", Body=b"later")
    answer = place.complete(part)
    return answer if place.content() == b"later" else f"{answer}, replaced"


def complete_again_what_was_deleted(place: Place) -> str:
    """Does a repeated completion bring back what was deleted?"""
    place.begin()
    part = place.part(1, b"body")
    place.complete(part)
    place.call("delete_object")
    answer = place.complete(part)
    return f"{answer}, there" if place.exists() else answer


def complete_after_abort(place: Place) -> str:
    """What is said to a completion of an upload that was aborted?"""
    place.begin()
    part = place.part(1, b"body")
    place.call("abort_multipart_upload")
    answer = place.complete(part)
    return f"{answer}, there" if place.exists() else answer


def complete_without_parts(place: Place) -> str:
    """Is an upload of no parts an object?"""
    place.begin()
    return place.complete()


def complete_with_small_part(place: Place) -> str:
    """May a part that is not the last be smaller than 5 MiB?"""
    place.begin()
    return place.complete(place.part(1, b"a"), place.part(2, b"b"))


def complete_with_wrong_tag(place: Place) -> str:
    """Is a part that is named with another ETag than its own refused?"""
    place.begin()
    part = place.part(1, b"body")
    return place.complete({**part, "ETag": WRONG_ETAG})


def complete_after_part_was_sent_again(place: Place) -> str:
    """Is a part refused that another process has sent again, with other bytes, since its ETag was told?"""
    place.begin()
    part = place.part(1, b"body")
    again = outcome(lambda: place.part(1, b"other"))
    if again != "done":
        return f"sent again: {again}"
    answer = place.complete(part)
    return answer if not place.exists() else f"{answer}, {place.content().decode()}"


def complete_without_some_parts(place: Place) -> str:
    """May parts that were sent be left out of the completion?"""
    return _complete_some(place, sent=(1, 2, 3), named=(1, 3))


def complete_without_last_part(place: Place) -> str:
    """Likewise for the last one."""
    return _complete_some(place, sent=(1, 2, 3), named=(1, 2))


def complete_with_gaps(place: Place) -> str:
    """May numbers between the parts be missing, and the first not be 1?"""
    return _complete_some(place, sent=(3, 10_000), named=(3, 10_000))


def parts_in_any_order(place: Place) -> str:
    """May a later part be sent before an earlier one?"""
    return _complete_some(place, sent=(2, 1), named=(1, 2))


def parts_named_in_any_order(place: Place) -> str:
    """Are parts put in order that a completion names out of order?"""
    return _complete_some(place, sent=(1, 2), named=(2, 1))


def part_of_completed_upload(place: Place) -> str:
    """What is said to a part that comes after the completion, and does it change the object?"""
    place.begin()
    place.complete(place.part(1, b"body"))
    answer = outcome(lambda: place.part(1, b"late"))
    return answer if place.content() == b"body" else f"{answer}, changed"


def part_of_aborted_upload(place: Place) -> str:
    """What is said to a part that comes after the abortion?"""
    place.begin()
    place.call("abort_multipart_upload")
    return outcome(lambda: place.part(1, b"late"))


def abort_again(place: Place) -> str:
    """What is said to an abortion that was carried out before?"""
    place.begin()
    place.call("abort_multipart_upload")
    return place.ask("abort_multipart_upload")


def abort_what_was_completed(place: Place) -> str:
    """What is said to an abortion of a completed upload, and is its object kept?"""
    place.begin()
    place.complete(place.part(1, b"body"))
    answer = place.ask("abort_multipart_upload")
    return answer if place.exists() else f"{answer}, deleted"


def upload_is_invisible(place: Place) -> str:
    """Is there nothing under the key, by name and by list, before the completion?"""
    place.begin()
    place.part(1, b"body")
    listed = place.client.call_s3("list_objects_v2", Bucket=place.names["Bucket"], Prefix=place.names["Key"])
    return "no" if place.exists() or listed.get("Contents") else "yes"


def upload_is_listed(place: Place) -> str:
    """Is an open upload listed by the prefix of its key, and its parts with their sizes?"""
    place.begin()
    place.part(1, b"body")
    bucket = place.names["Bucket"]
    uploads = place.client.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=place.names["Key"])
    parts = place.call("list_parts")
    found = [upload["UploadId"] for upload in uploads.get("Uploads", [])] == [place.upload_id]
    return "yes" if found and [part["Size"] for part in parts.get("Parts", [])] == [4] else "no"


def upload_keeps_metadata(place: Place) -> str:
    """Does the object have the metadata with which its upload was opened?"""
    place.begin(Metadata={"owner": "me"})
    place.complete(place.part(1, b"body"))
    return "yes" if place.call("head_object")["Metadata"].get("owner") == "me" else "no"


def _complete_some(place: Place, *, sent: tuple[int, ...], named: tuple[int, ...]) -> str:
    """Send parts, complete with some of them, and look whether the object has their bytes in the order of numbers."""
    place.begin()
    bodies = {number: b"%05d" % number * (MIN_PART_BYTES // 5) for number in sent}
    parts = {number: place.part(number, bodies[number]) for number in sent}
    answer = place.complete(*(parts[number] for number in named))
    if answer != "done":
        return answer
    return (
        answer if place.content() == b"".join(bodies[number] for number in sorted(named)) else f"{answer}, other bytes"
    )


UPLOAD_PROBES = (
    complete_if_absent,
    complete_again,
    complete_again_if_absent,
    complete_again_what_was_replaced,
    complete_again_what_was_deleted,
    complete_after_abort,
    complete_without_parts,
    complete_with_small_part,
    complete_with_wrong_tag,
    complete_after_part_was_sent_again,
    complete_without_some_parts,
    complete_without_last_part,
    complete_with_gaps,
    parts_in_any_order,
    parts_named_in_any_order,
    part_of_completed_upload,
    part_of_aborted_upload,
    abort_again,
    abort_what_was_completed,
    upload_is_invisible,
    upload_is_listed,
    upload_keeps_metadata,
)
