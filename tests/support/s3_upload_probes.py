"""Questions to an S3 server about multipart uploads: what S3 leaves open, or servers do their own way.

Each has a short answer: ``done``, or status and code of the refusal, or a word of the question's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from s3_place import WRONG_ETAG, outcome

if TYPE_CHECKING:
    from s3_place import Place

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
    """Is a part refused that somebody has sent again, with other bytes, since its ETag was told?"""
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
