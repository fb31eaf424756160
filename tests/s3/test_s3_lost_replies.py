"""Replies that are lost, servers that fail or throttle: at each kind of request, the stream ends exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest
from s3_faults import error, internal_error, lost_reply, reset, slow_down
from s3_life import MIB, Stream
from s3_proxy import S3Proxy
from s3_store_support import options_of

if TYPE_CHECKING:
    import random
    from collections import Counter
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


class Whole(NamedTuple):
    """What the stream comes to where nothing goes wrong."""

    requests: Counter[str]
    files: int


def run_whole(proxy: S3Proxy, server: S3Server) -> Whole:
    """Run it, and count."""
    stream = stream_through(proxy, server)
    stream.run_to_the_end()
    return Whole(proxy.count(), len(stream.finished()))


@pytest.fixture(scope="module")
def whole(moto: S3Server) -> Whole:
    """On the server that honours every precondition."""
    with S3Proxy(moto) as proxy:
        return run_whole(proxy, moto)


@pytest.mark.drawn(10)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("operation", CHANGING)
@pytest.mark.fault("N2", "N3")
def test_a_request_that_goes_wrong_once(  # noqa: PLR0917 - fixtures.
    moto: S3Server, proxy: S3Proxy, whole: Whole, operation: str, fault: str, chosen: Callable[[int, int], list[int]]
) -> None:
    """N2, N3: whatever becomes of a single request, the stream goes on, and every row is in one file."""
    for position in chosen(whole.requests[operation], 1):
        go_wrong(moto, proxy, operation, position, FAULTS[fault], whole.files)


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
        whole = run_whole(proxy, server)
        # Where parts roll at each checkpoint, there may be no upload.
        assert server.name == "rclone" or all(whole.requests[operation] for operation in CHANGING)
        for operation, fault in all_of_them if is_long else rng.sample(all_of_them, FEW):
            for position in chosen(whole.requests[operation], 1):
                go_wrong(server, proxy, operation, position, FAULTS[fault], whole.files)


def go_wrong(  # noqa: PLR0917 - what, where, when and how.
    server: S3Server, proxy: S3Proxy, operation: str, position: int, fault: Fault, files: int
) -> None:
    """Run a stream for one request of one kind, which goes wrong."""
    stream = stream_through(proxy, server)
    injection = proxy.inject(fault, operation=operation, first=position)
    stream.run_to_the_end()
    proxy.heal()
    assert injection.struck.is_set(), (operation, position)
    stream.assert_exactly_once()
    assert len(stream.finished()) == files
