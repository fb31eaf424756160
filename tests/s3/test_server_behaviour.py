"""What each S3 server does where they differ, as observed: a version that does something else is to be seen here.

Correctness of partfile rests on none of it; it decides which replies its store has to understand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.s3.probes import OBJECT_PROBES, UPLOAD_PROBES, Place

if TYPE_CHECKING:
    import s3fs

    from support.servers.s3 import S3Server


EXISTS = "412 PreconditionFailed"
GONE = "404 NoSuchUpload"
REPLACED = "done, replaced"
BROKEN = "500 InternalError"

OBSERVED = {
    # The question, and the answers of moto 5.2, rclone 1.75 and radosgw 16.2.
    "put_if_absent": (EXISTS, REPLACED, EXISTS),
    "put_nothing_if_absent": (EXISTS, REPLACED, EXISTS),
    "put_if_absent_by_rivals": ("one", "several", "one"),
    "put_if_match": (EXISTS, REPLACED, EXISTS),
    "put_with_wrong_checksum": ("done", "done", "done"),
    "put_with_wrong_md5": ("done", "400 BadDigest", "400 BadDigest"),
    "checksum_is_kept": ("yes", "yes", "no"),
    "read_of_a_range": ("done", "the whole object's checksum", "done"),
    "delete_if_match": (EXISTS, "done, deleted", "done, deleted"),
    "delete_of_nothing": ("done", "done", "done"),
    "wrong_secret_key": ("done", "403 SignatureDoesNotMatch", "403 SignatureDoesNotMatch"),
    "lifecycle_of_bucket": ("404 NoSuchLifecycleConfiguration", "done", "404 NoSuchLifecycleConfiguration"),
    "versioning_of_bucket": ("done", "done", "done"),
    "complete_if_absent": (EXISTS, REPLACED, REPLACED),
    "complete_again": ("done", GONE, "done"),
    "complete_again_if_absent": ("done", GONE, "done"),
    "complete_again_what_was_replaced": ("500 500", GONE, BROKEN),
    "complete_again_what_was_deleted": ("500 500", GONE, BROKEN),
    "complete_after_abort": ("500 500", GONE, BROKEN),
    "complete_without_parts": ("400 MalformedXML", "done", "400 MalformedXML"),
    "complete_with_small_part": ("400 EntityTooSmall", "done", "400 EntityTooSmall"),
    "complete_with_wrong_tag": ("400 InvalidPart", "400 InvalidPart", "400 InvalidPart"),
    "complete_after_part_was_sent_again": ("400 InvalidPart", "sent again: 501 NotImplemented", "400 InvalidPart"),
    "complete_without_some_parts": ("done", "400 InvalidPart", "400 InvalidPart"),
    "complete_without_last_part": ("done", "400 InvalidPart", "400 InvalidPart"),
    "complete_with_gaps": ("done", "400 InvalidPart", "done"),
    "parts_in_any_order": ("done", "done", "done"),
    "parts_named_in_any_order": ("done, other bytes", "400 InvalidPartOrder", "done"),
    "part_of_completed_upload": ("500 500", GONE, GONE),
    "part_of_aborted_upload": ("500 500", GONE, GONE),
    "abort_again": (GONE, GONE, GONE),
    "abort_what_was_completed": (GONE, GONE, GONE),
    "upload_is_invisible": ("yes", "yes", "yes"),
    "upload_is_listed": ("yes", "yes", "yes"),
    "upload_keeps_metadata": ("yes", "yes", "yes"),
}
SERVERS = ("moto", "rclone", "radosgw")


def test_the_server_answers_as_observed(s3_server: S3Server, s3: s3fs.S3FileSystem, bucket: str) -> None:
    """Preconditions, repeated requests, odd uploads and checksums: each answer is the one in the table."""
    answers = {probe.__name__: probe(Place(s3, bucket, probe.__name__)) for probe in (*OBJECT_PROBES, *UPLOAD_PROBES)}
    column = SERVERS.index(s3_server.name)
    assert answers == {question: row[column] for question, row in OBSERVED.items()}
