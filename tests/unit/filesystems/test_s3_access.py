"""What the S3 store says in its requests, and what it makes of replies that no test server gives."""

from __future__ import annotations

import base64
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from s3_store_support import warm_up
from s3_stub import RESET, Heard, S3Stub, Said, refused

import partfile as pf
from partfile.errors import AlreadyExists, NotApplied, OutcomeUnknown, StoreError
from partfile.sink.layout import SubtaskContext
from partfile.sink.operator import SinkOperator
from partfile.sink.states import SubtaskSnapshot
from partfile.stores.s3.store import S3Store
from partfile.testing.store import new_part

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20
BASE = "s3://bucket/base"
REPLIES = {
    "CreateMultipartUpload": Said(body="<R><UploadId>u</UploadId></R>"),
    "CompleteMultipartUpload": Said(body="<R><ETag>e</ETag></R>"),
    "HeadObject": refused(404, "NoSuchKey"),
}


def accepting(heard: Heard) -> Said:
    """A server that does everything it is asked, whatever the condition, and has nothing."""
    return REPLIES.get(heard.request.operation, Said())


def without_condition(heard: Heard) -> Said:
    """A server that answers 501 to If-None-Match, as several do."""
    return refused(501, "NotImplemented") if "if-none-match" in heard.headers else accepting(heard)


def in_turn(operation: str, *said: Said | None) -> Callable[[Heard], Said | None]:
    """A server that gives these replies to an operation, one after the other, the last one for good."""
    replies = list(said)

    def answer(heard: Heard) -> Said | None:
        if heard.request.operation != operation:
            return accepting(heard)
        return replies.pop(0) if replies[1:] else replies[0]

    return answer


@pytest.mark.parametrize("checksum", ["when_supported", "when_required"])
def test_what_is_written_goes_with_its_checksum(checksum: str) -> None:
    """Each object and upload part with that of its bytes, and the upload says that there are some; or none at all."""
    with S3Stub(accepting) as stub, S3Store(BASE, stub.options(checksum=checksum)) as store:
        stream = store.create(new_part())
        stream.write(bytes(6 * MIB))
        stream.persist()
        stream.write(b"tail")
        stream.persist()
        store.create_file("x", b"file")
        written = [heard for heard in stub.heard if heard.request.operation in {"PutObject", "UploadPart"}]
        assert {len(heard.body) for heard in written} >= {6 * MIB, 4}
        for heard in written:
            crc32 = base64.b64encode(zlib.crc32(heard.body).to_bytes(4, "big")).decode()
            expected = crc32 if checksum == "when_supported" else None
            assert heard.headers.get("x-amz-checksum-crc32") == expected


def test_every_request_carries_what_the_user_asked_for() -> None:
    """Encryption goes with every object, ACL and storage class with finished files alone, who pays with everything."""
    asked = {"acl": "private", "storage_class": "STANDARD_IA", "requester_pays": True}
    kms = {"server_side_encryption": "aws:kms", "sse_kms_key_id": "key-1"}
    with S3Stub(accepting) as stub, S3Store(BASE, stub.options(**asked, **kms)) as store:
        small, large = store.create(new_part()), store.create(new_part())
        small.write(b"small")
        large.write(bytes(6 * MIB))
        stub.answer = partial(_with_side, b"small")
        store.publish(small.close_for_commit(), "auto")
        store.publish(large.close_for_commit(), "auto")
        store.create_file("x", b"file")
    assert all(heard.headers["x-amz-request-payer"] == "requester" for heard in stub.heard if heard.request.key)
    seen = set()
    for heard in stub.heard:
        operation = heard.request.operation
        if operation in {"PutObject", "CreateMultipartUpload"}:
            seen.add((operation, is_finished := "part-" in heard.request.key.rpartition("/")[2]))
            assert heard.headers["x-amz-server-side-encryption"] == "aws:kms"
            assert heard.headers["x-amz-server-side-encryption-aws-kms-key-id"] == "key-1"
            assert heard.headers.get("x-amz-acl") == ("private" if is_finished else None)
            assert heard.headers.get("x-amz-storage-class") == ("STANDARD_IA" if is_finished else None)
    assert seen == {("PutObject", False), ("PutObject", True), ("CreateMultipartUpload", True)}


def _with_side(side: bytes, heard: Heard) -> Said:
    return Said(body=side.decode()) if heard.request.operation == "GetObject" else accepting(heard)


def test_an_object_that_was_created_perhaps_is_not_called_absent() -> None:
    """Its reply is lost, its repetition finds something there, and nobody may look whose it is."""
    lost_then_there = in_turn("PutObject", None, refused(412, "PreconditionFailed"))

    def answer(heard: Heard) -> Said | None:
        return refused(403, "AccessDenied") if heard.request.operation == "HeadObject" else lost_then_there(heard)

    with S3Stub(answer) as stub, S3Store(BASE, stub.options()) as store:
        with pytest.raises(OutcomeUnknown, match="who created"):
            store.create_file("link", b"")
        assert stub.operations() == ["PutObject", "PutObject", "HeadObject"]


def test_an_object_that_was_created_and_cannot_be_looked_at_is_not_called_absent() -> None:
    """Where the server ignores conditions, and is gone when the object is read back."""
    answer = in_turn("HeadObject", REPLIES["HeadObject"], refused(403, "AccessDenied"))
    with S3Stub(answer) as stub, S3Store(BASE, stub.options(conditional_writes=False)) as store:
        with pytest.raises(OutcomeUnknown, match="who created"):
            store.create_file("link", b"")
        assert stub.operations() == ["HeadObject", "PutObject", "HeadObject"]


def test_a_request_whose_connection_is_reset_after_the_deed_is_not_called_undone() -> None:
    """The client reports it as a connection that could not be made; then the server stays away."""
    with S3Stub() as stub:
        options = stub.options(call_timeout_s=2.0)
        with S3Store(BASE, options) as store:
            warm_up(store)
            stub.answer = lambda _: RESET
            with pytest.raises(OutcomeUnknown, match="link"):
                store.create_file("link", b"")
            assert "PutObject" in stub.operations()
    with S3Store(BASE, options) as store:
        # A PUT is repeated by the client itself, so that a refused connection tells nothing of the one before.
        with pytest.raises(OutcomeUnknown, match="link"):
            store.create_file("link", b"")
        with pytest.raises(NotApplied, match="link"):
            store.read_file("link", 1)


def test_a_rival_that_replaced_an_object_is_seen_where_conditions_are_ignored() -> None:
    """It was absent before, and is another one afterwards."""
    answer = in_turn("HeadObject", REPLIES["HeadObject"], Said(headers={"x-amz-meta-partfile-write": "other"}))
    with S3Stub(answer) as stub, S3Store(BASE, stub.options(conditional_writes=False)) as store:
        with pytest.raises(AlreadyExists, match="at the same time"):
            store.create_file("link", b"")
        assert stub.operations() == ["HeadObject", "PutObject", "HeadObject"]


def test_a_server_that_knows_no_condition_is_used_without() -> None:
    """501 says at once that it is not honoured: it is not asked again, and no upload of the probe stays."""
    with S3Stub(without_condition) as stub, S3Store(BASE, stub.options(conditional_writes=None)) as store:
        began_s = time.monotonic()
        assert not store.capabilities.exclusive_create
        assert not store.capabilities.no_replace
        assert time.monotonic() - began_s < 3
        operations = stub.operations()
        assert operations.count("AbortMultipartUpload") == operations.count("CreateMultipartUpload") == 1


def test_what_is_told_of_put_is_not_believed_of_completions() -> None:
    """With conditional_writes=True they are tried all the same, so that a look goes before where they are ignored."""
    with S3Stub(accepting) as stub, S3Store(BASE, stub.options(conditional_writes=True)) as store:
        assert store.capabilities.exclusive_create
        assert not store.capabilities.no_replace
        assert stub.operations().count("CompleteMultipartUpload") == 1
        assert store._access._learnt.puts is None


def test_a_completion_whose_reply_is_lost_is_done_where_the_upload_is_gone() -> None:
    """Nobody else knows the upload of a probe; so the server has completed it, whatever the condition."""
    answer = in_turn("CompleteMultipartUpload", None, refused(404, "NoSuchUpload"))
    with S3Stub(answer) as stub, S3Store(BASE, stub.options()) as store:
        assert not store.capabilities.no_replace
        assert stub.operations().count("CompleteMultipartUpload") == 2


def test_deleting_many_waits_once_for_a_server_that_is_away() -> None:
    """Each of them alone would only wait again; closing a store takes one call's time."""
    with S3Stub() as stub, S3Store(BASE, stub.options(call_timeout_s=4.0)) as store:
        warm_up(store)
        stub.answer = lambda _: refused(503, "SlowDown")
        store._garbages.get().add(["a", "b"])
        asked = len(stub.heard)
        began_s = time.monotonic()
        store.close()
        assert time.monotonic() - began_s < 4 + 3
        assert set(stub.operations()[asked:]) == {"DeleteObjects"}


@pytest.mark.parametrize("answer", [(400, "InvalidRequest"), (501, "NotImplemented")])
def test_objects_are_deleted_one_by_one_where_the_server_cannot_do_many(answer: tuple[int, str]) -> None:
    """Some want a header of that request that the client does not send."""
    with S3Stub(in_turn("DeleteObjects", refused(*answer))) as stub, S3Store(BASE, stub.options()) as store:
        store._access.delete_many(["a", "b"])
        assert stub.operations() == ["DeleteObjects", "DeleteObject", "DeleteObject"]


def test_a_task_that_begins_a_part_tries_nothing() -> None:
    """What the server does with conditions concerns who resumes or publishes; releasing parts asks nothing at all."""
    description = pf.FileSink(BASE, uid="u", format="text").settings.description
    with S3Stub(accepting) as stub, S3Store(BASE, stub.options(conditional_writes=None)) as store:
        operator = SinkOperator(store, description)
        context = SubtaskContext(subtask=0, attempt=0, generation=1, chain="0" * 8, batch_time_ms=0)
        operator.open(context, SubtaskSnapshot(subtask=0))
        operator.write(pa.record_batch({"row": ["x"]}))
        operator.snapshot(1)
        operator.close()
        assert [(heard.request.operation, heard.body) for heard in stub.heard] == [("PutObject", b"x\n")]


def test_a_server_that_is_away_does_not_hide_the_first_error() -> None:
    """A task that fails releases its parts, and tells what went wrong."""
    description = pf.FileSink(BASE, uid="u", format="text").settings.description
    options = {"conditional_writes": None, "call_timeout_s": 1.5}
    with S3Stub(lambda _: refused(503, "SlowDown")) as stub, S3Store(BASE, stub.options(**options)) as store:
        operator = SinkOperator(store, description)
        context = SubtaskContext(subtask=0, attempt=0, generation=1, chain="0" * 8, batch_time_ms=0)
        operator.open(context, SubtaskSnapshot(subtask=0))
        operator.write(pa.record_batch({"row": ["x"]}))
        with pytest.raises(StoreError, match="_sides"):
            operator.snapshot(1)
        asked = len(stub.heard)
        operator.close()
        assert len(stub.heard) == asked


def test_no_attempt_begins_just_before_the_deadline() -> None:
    """It could not be answered, and would hide what the server says."""
    with S3Stub() as stub, S3Store(BASE, stub.options(call_timeout_s=2.0)) as store:
        warm_up(store)
        stub.answer = lambda _: refused(503, "SlowDown")

        def said(_: int) -> str:
            with pytest.raises(StoreError) as raised:
                store.read_file("x", 1)
            return str(raised.value)

        with ThreadPoolExecutor(16) as pool:
            assert all("SlowDown" in text for text in pool.map(said, range(16)))
