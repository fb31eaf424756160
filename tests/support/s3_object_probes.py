"""Questions to an S3 server about objects and buckets: what S3 leaves open, or servers do their own way.

Each has a short answer: ``done``, or status and code of the refusal, or a word of the question's own.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from botocore.exceptions import FlexibleChecksumError
from s3_place import WRONG_ETAG, outcome

if TYPE_CHECKING:
    from s3_place import Place

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
    stranger = type(place.client)(**options)
    stranger.retries = 1
    return outcome(lambda: stranger.call_s3("put_object", **place.names, Body=b"body"))


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
