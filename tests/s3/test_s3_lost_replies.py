"""Replies that are lost, servers that fail or throttle: at each kind of request, the stream ends exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from s3_faults import error, internal_error, lost_reply, reset, slow_down
from s3_life import MIB, Stream
from s3_proxy import S3Proxy
from s3_store_support import options_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from s3_server import S3Server

CHANGING = [
    "PutObject",
    "CreateMultipartUpload",
    "UploadPart",
    "CompleteMultipartUpload",
    "DeleteObjects",
]
FAULTS = {
    "its reply is lost": lost_reply(),
    "it does not arrive": reset(),
    "it is done and answered by 500": internal_error(reaches_server=True),
    "it is answered by 500": internal_error(),
    "it is throttled": slow_down(),
    "it meets another one": error(409, "ConditionalRequestConflict"),
}


@pytest.fixture
def proxy(moto: S3Server) -> Iterator[S3Proxy]:
    """A proxy in front of the server that honours every precondition."""
    with S3Proxy(moto) as proxy:
        yield proxy


def stream_through(proxy: S3Proxy, server: S3Server) -> Stream:
    """Two parts of 6 MiB each, in uploads with tails in side objects, over six checkpoints."""
    base = f"s3://{server.bucket()}/base"
    return Stream(base, options_of(proxy), rows=6, row_bytes=2 * MIB, rows_a_checkpoint=1)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("operation", CHANGING)
def test_a_request_that_goes_wrong_once(
    moto: S3Server, proxy: S3Proxy, operation: str, fault: str, chosen: Callable[[int, int], list[int]]
) -> None:
    """N2, N3: whatever becomes of a single request, the stream goes on, and every row is in one file."""
    stream = stream_through(proxy, moto)
    stream.run_to_the_end()
    count = proxy.count()[operation]
    assert count
    for position in chosen(count, 1):
        stream = stream_through(proxy, moto)
        injection = proxy.inject(FAULTS[fault], operation=operation, first=position)
        stream.run_to_the_end()
        proxy.heal()
        assert injection.struck.is_set()
        stream.assert_exactly_once()
        assert len(stream.finished()) == 2
