"""Parts of the S3 store without a server: their buffers in memory, and completions that are late, lost or refused."""

from __future__ import annotations

import gc
import threading
import time
import tracemalloc
from functools import partial
from typing import TYPE_CHECKING

import pytest

from partfile.errors import NotApplied, OutcomeUnknown, PartMissing
from partfile.stores.s3.client import S3Calls, Traits, this_process
from partfile.stores.s3.handle import part_id
from partfile.stores.s3.options import S3Options
from partfile.stores.s3.store import S3Store
from partfile.testing.store import new_part
from support.processes.deadline import PATIENCE_S, wait_until
from support.s3.life import warm_up
from support.s3.stub import Heard, S3Stub, Said, refused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from partfile.stores.base import PartHandle


# What the open parts of one S3 store hold in memory, while the server is slow.

MIB = 1 << 20


class SlowServer(S3Calls):
    """Takes zeros, after a while, and keeps none of them."""

    upload_part_s = 0.1
    error: Exception | None = None
    together = threading.Barrier(1)
    """How many upload parts must have come before any of them is answered."""
    lock = threading.Lock()
    under_way = 0
    most_at_once = 0

    def put(self, key: str, data: bytes, metadata: Mapping[str, str], *, if_absent: bool) -> None:
        """Take an object."""

    def get(self, key: str, max_bytes: int) -> bytes:  # noqa: ARG002
        """The zeros of an object."""
        return bytes(max_bytes)

    def create_upload(self, key: str, metadata: Mapping[str, str]) -> str:  # noqa: ARG002
        """Begin an upload."""
        return "upload"

    def upload_part(self, key: str, upload: str, number: int, data: bytes, crc32: int | None) -> str:  # noqa: ARG002
        """Take an upload part."""
        with self.lock:
            self.under_way += 1
            self.most_at_once = max(self.most_at_once, self.under_way)
        self.together.wait(PATIENCE_S)
        # Time for one more to come, where more are sent at a time than should be.
        time.sleep(self.upload_part_s)
        with self.lock:
            self.under_way -= 1
        if self.error is not None:
            raise self.error
        return "etag"


@pytest.fixture
def held() -> Iterator[None]:
    """Counts what is allocated."""
    this_process().traits[None, "bucket"] = Traits(puts=True, completes=True, leaves_out=True)
    gc.collect()
    tracemalloc.start()
    yield
    tracemalloc.stop()


def store_of(max_buffered_bytes: int) -> tuple[S3Store, SlowServer]:
    """A store with so much memory in front of a slow server."""
    options = S3Options(key="k", secret="s", region="us-east-1", max_buffered_bytes=max_buffered_bytes)  # noqa: S106
    server = SlowServer("bucket", options)
    return S3Store("s3://bucket/base", options, calls=server), server


@pytest.mark.slow
@pytest.mark.parametrize(("parts", "write_bytes"), [(20, 8 * MIB), (20, MIB), (1, 100 * MIB)])
@pytest.mark.usefixtures("held")
def test_what_is_on_its_way_counts_as_held(parts: int, write_bytes: int) -> None:
    """However many parts are open, and however large a write is, a slow server does not fill the memory."""
    store, _ = store_of(16 * MIB)
    with store:
        streams = [store.create(new_part(name=f"part-{n}")) for n in range(parts)]
        data = bytes(write_bytes)
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        for _ in range(100 * MIB // (parts * write_bytes) + 1):
            for stream in streams:
                stream.write(data)
        # An upload part that is being made of what waits is there twice for a moment.
        assert tracemalloc.get_traced_memory()[1] - before <= 2 * 16 * MIB + 2 * 8 * MIB + MIB
        for stream in streams:
            stream.close_for_commit()
        assert store._budgets.get()._held_bytes == 0


def test_upload_parts_are_sent_several_at_a_time_while_there_is_room() -> None:
    """Waiting for each would make the upload as slow as one connection."""
    store, server = store_of(256 * MIB)
    server.together = threading.Barrier(4)
    with store:
        stream = store.create(new_part())
        stream.write(bytes(64 * MIB))
        stream.close_for_commit()
    assert server.most_at_once == 4


def test_a_failed_upload_part_gives_its_bytes_back_and_is_heard_of() -> None:
    """A stream that is closed over it, or left, holds nothing either."""
    store, server = store_of(MIB)
    server.error = NotApplied("refused")
    with store:
        stream = store.create(new_part())
        stream.write(bytes(8 * MIB))
        with pytest.raises(NotApplied, match="refused"):
            stream.persist()
        stream.close()
        left = store.create(new_part(name="part-1"))
        left.write(bytes(9 * MIB))
        left.close()
        wait_until(lambda: store._budgets.get()._held_bytes == 0, "a failed upload part keeps its bytes")


# What becomes of a part on S3 whose completion is late, lost, or refused.

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
    """At the deadline too, so that no start gives it up while the server puts it together."""
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
