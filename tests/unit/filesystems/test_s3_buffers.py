"""What the open parts of one S3 store hold in memory, while the server is slow."""

from __future__ import annotations

import gc
import time
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from partfile.errors import NotApplied
from partfile.stores.s3.client import S3Calls, Traits, this_process
from partfile.stores.s3.options import S3Options
from partfile.stores.s3.store import S3Store
from partfile.testing.store import new_part

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MIB = 1 << 20


class SlowServer(S3Calls):
    """Takes zeros, after a while, and keeps none of them."""

    upload_part_s = 0.1
    error: Exception | None = None
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
        self.under_way += 1
        self.most_at_once = max(self.most_at_once, self.under_way)
        time.sleep(self.upload_part_s)
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
    server.upload_part_s = 0.5
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
        time.sleep(3 * server.upload_part_s)
        assert store._budgets.get()._held_bytes == 0
