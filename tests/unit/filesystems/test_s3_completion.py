"""What becomes of a part on S3 whose completion is late, lost, or refused."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import pytest
from s3_store_support import warm_up
from s3_stub import Heard, S3Stub, Said, refused

from partfile.errors import OutcomeUnknown, PartMissing
from partfile.stores.s3.handle import part_id
from partfile.stores.s3.store import S3Store
from partfile.testing.store import new_part

if TYPE_CHECKING:
    from partfile.stores.base import PartHandle

MIB = 1 << 20
BASE = "s3://bucket/base"
GONE = refused(404, "NoSuchUpload")
LOST = None


class Completing:
    """A server that is still putting a file together while it answers as a test says.

    Args:
        said: What it says to completions, one after the other, the last one for good.
        looks: How many looks at the file find nothing before it is there.
    """

    def __init__(self, *said: Said | None, looks: float) -> None:
        self._said = list(said)
        self._looks = looks
        self.handle: PartHandle | None = None

    def __call__(self, heard: Heard) -> Said | None:
        """Answer one request."""
        operation = heard.request.operation
        if operation == "CompleteMultipartUpload":
            return self._said.pop(0) if self._said[1:] else self._said[0]
        if operation == "HeadObject" and self.handle is not None:
            self._looks -= 1
            if self._looks < 0:
                size = {"Content-Length": str(self.handle.valid_length)}
                return Said(headers={"x-amz-meta-partfile-part": part_id(self.handle), **size})
        if operation in {"HeadObject", "ListParts"}:
            return refused(404, "NoSuchKey" if operation == "HeadObject" else "NoSuchUpload")
        return Said(body="<R><UploadId>u</UploadId></R>") if operation == "CreateMultipartUpload" else Said()


def publish_by(server: Completing, call_timeout_s: float) -> None:
    """Publish a part of 6 MiB."""
    with S3Stub(server) as stub, S3Store(BASE, stub.options(call_timeout_s=call_timeout_s)) as store:
        warm_up(store)
        stream = store.create(new_part())
        stream.write(bytes(6 * MIB))
        server.handle = stream.close_for_commit()
        store.publish(server.handle, "auto")


@pytest.mark.parametrize("first", [LOST, refused(500, "InternalError")], ids=["lost", "500"])
def test_a_completion_that_goes_on_unheard_is_waited_for(first: Said | None) -> None:
    """Its upload is not open any more and its file not there yet: that is no lost part."""
    publish_by(Completing(first, GONE, looks=4), call_timeout_s=10)


def test_a_part_whose_completion_may_go_on_is_owed_not_lost() -> None:
    """At the deadline too, so that nobody gives it up while the server puts it together."""
    with pytest.raises(OutcomeUnknown, match="publish"):
        publish_by(Completing(LOST, GONE, looks=float("inf")), call_timeout_s=3)


@pytest.mark.parametrize("said", [GONE, refused(500, "InternalError")], ids=["404", "500"])
def test_a_part_whose_upload_is_gone_is_missing(said: Said) -> None:
    """As servers answer that have no such upload; a 500 alone might be anything, so it is asked again before."""
    with pytest.raises(PartMissing, match="lifecycle"):
        publish_by(Completing(said, looks=float("inf")), call_timeout_s=3)


def test_a_completion_has_the_time_of_a_whole_call() -> None:
    """The server answers when it has put the file together, which takes longer than an attempt may be silent."""

    def slowly(server: Completing, heard: Heard) -> Said | None:
        if heard.request.operation == "CompleteMultipartUpload":
            time.sleep(1.5)
        return server(heard)

    server = Completing(Said(body="<R><ETag>e</ETag></R>"), looks=float("inf"))
    with S3Stub(partial(slowly, server)) as stub:
        options = stub.options(call_timeout_s=10.0, attempt_timeout_s=0.5)
        with S3Store(BASE, options) as store:
            stream = store.create(new_part())
            stream.write(bytes(6 * MIB))
            store.publish(stream.close_for_commit(), "auto")
        assert stub.operations().count("CompleteMultipartUpload") == 1


def test_a_part_of_side_objects_goes_back_while_they_are_there() -> None:
    """One whose side objects have gone with its publication cannot be published at an older length."""
    with S3Stub() as stub, S3Store(BASE, stub.options()) as store:
        stream = store.create(new_part())
        stream.write(b"x")
        handle = stream.persist()
        stub.answer = lambda _: Said(headers={"Content-Length": "1"})
        assert store.goes_back(handle)
        stub.answer = lambda _: refused(404, "NoSuchKey")
        assert not store.goes_back(handle)
