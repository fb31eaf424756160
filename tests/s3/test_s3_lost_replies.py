"""Replies that are lost, servers that fail or throttle: at each kind of request, the stream ends exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from s3_faults import error, internal_error, lost_reply, reset, slow_down
from s3_life import MIB, Stream
from s3_proxy import S3Proxy
from s3_store_support import options_of

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

    from s3_faults import Fault
    from s3_server import S3Server

CHANGING = [
    "PutObject",
    "CreateMultipartUpload",
    "UploadPart",
    "CompleteMultipartUpload",
    "DeleteObjects",
]
FEW = 2
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
    go_wrong(moto, proxy, operation, FAULTS[fault], chosen)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["radosgw", "rclone"])
def test_requests_that_go_wrong_on_other_servers(
    request: pytest.FixtureRequest, name: str, rng: random.Random, chosen: Callable[[int, int], list[int]]
) -> None:
    """N2, N3: the same on servers that honour fewer preconditions; some requests at random, with --long all of them."""
    server: S3Server = request.getfixturevalue(name)
    all_of_them = [(operation, fault) for operation in CHANGING for fault in FAULTS]
    is_long = request.config.getoption("--long")
    with S3Proxy(server) as proxy:
        for operation, fault in all_of_them if is_long else rng.sample(all_of_them, FEW):
            go_wrong(server, proxy, operation, FAULTS[fault], chosen)


def go_wrong(
    server: S3Server, proxy: S3Proxy, operation: str, fault: Fault, chosen: Callable[[int, int], list[int]]
) -> None:
    """Run a stream for each chosen request of one kind, which goes wrong."""
    proxy.forget()
    stream = stream_through(proxy, server)
    stream.run_to_the_end()
    count, files = proxy.count()[operation], len(stream.finished())
    if not count:
        # Where parts roll at each checkpoint, none of these has an upload.
        assert server.name == "rclone"
        return
    for position in chosen(count, 1):
        stream = stream_through(proxy, server)
        injection = proxy.inject(fault, operation=operation, first=position)
        stream.run_to_the_end()
        proxy.heal()
        assert injection.struck.is_set(), (operation, position)
        stream.assert_exactly_once()
        assert len(stream.finished()) == files
