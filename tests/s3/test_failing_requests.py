"""Requests to S3 that fail or lose their reply: at each kind of request, the stream ends exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from partfile.errors import PartfileError
from partfile.stores.s3.store import S3Store
from partfile.testing.store import new_part
from support.s3.life import MIB, Stream, options_of
from support.s3.proxy import (
    Fault,
    S3Proxy,
    error,
    error_in_success,
    internal_error,
    lost_reply,
    reset,
    slow_down,
    truncated_body,
)

if TYPE_CHECKING:
    import random
    from collections import Counter
    from collections.abc import Callable, Iterator

    from support.s3.server import S3Server


# Replies that are lost, servers that fail or throttle: at each kind of request, the stream ends exactly once.

pytestmark = pytest.mark.slow

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


@pytest.mark.drawn(6)
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


# Requests to S3 that fail in one way each: publications, creations, bursts, bodies, a server that stays away.


@pytest.mark.fault("N4")
def test_an_error_in_the_body_of_a_success_is_an_error(moto: S3Server, proxy: S3Proxy) -> None:
    """N4: a completion that is answered by 200 and an error is not believed, and is done again."""
    for reaches_server in (True, False):
        stream = stream_through(proxy, moto)
        injection = proxy.inject(
            error_in_success(reaches_server=reaches_server), operation="CompleteMultipartUpload", times=2
        )
        stream.run_to_the_end()
        proxy.heal()
        assert injection.struck.is_set()
        stream.assert_exactly_once()


@pytest.mark.drawn(4)
@pytest.mark.parametrize("size", [10, 6 * MIB])
@pytest.mark.parametrize("fault", [error_in_success(), lost_reply(), slow_down()], ids=["200", "lost", "503"])
def test_one_call_publishes_although_a_request_fails(
    s3_server: S3Server, s3_proxy: S3Proxy, fault: Fault, size: int
) -> None:
    """A publication is not left to the next checkpoint because of a single failure, on any server.

    They answer a second completion in different ways: it is done again, or the upload is not there.
    """
    proxy = s3_proxy
    with S3Store(f"s3://{s3_server.bucket()}/base", options_of(proxy)) as store:
        # What is tried once is no publication.
        assert store.capabilities.durable
        stream = store.create(new_part())
        stream.write(bytes(size))
        handle = stream.close_for_commit()
        injection = proxy.inject(fault, operation="CompleteMultipartUpload", key=f"*/{handle.name}")
        store.publish(handle, "auto")
        assert injection.struck.is_set()
        assert [file.size for file in store.list()] == [size]


@pytest.mark.parametrize("operation", ["GetObject", "HeadObject", "ListObjectsV2"])
@pytest.mark.parametrize("fault", [reset(), slow_down(), internal_error()], ids=["reset", "503", "500"])
@pytest.mark.fault("N3")
def test_a_burst_of_failing_reads_is_waited_out(moto: S3Server, proxy: S3Proxy, operation: str, fault: Fault) -> None:
    """N3: reads are asked again until the deadline."""
    with S3Store(f"s3://{moto.bucket()}/base", options_of(proxy)) as store:
        store.create_file("x", b"data")
        injection = proxy.inject(fault, operation=operation, times=3)
        assert store.file_exists("x")
        assert store.read_file("x", 4) == b"data"
        assert store.list_names("") == ["x"]
        assert injection.struck.is_set()


@pytest.mark.fault("F11")
def test_a_body_that_ends_too_soon_is_not_believed(moto: S3Server, proxy: S3Proxy) -> None:
    """A GET that delivers less than it promised is asked again."""
    with S3Store(f"s3://{moto.bucket()}/base", options_of(proxy)) as store:
        store.create_file("x", bytes(1000))
        proxy.inject(truncated_body(10), operation="GetObject")
        assert store.read_file("x", 1000) == bytes(1000)


@pytest.mark.parametrize("fault", [lost_reply(), slow_down(), reset()], ids=["lost", "503", "reset"])
@pytest.mark.fault("N1", "N3")
def test_a_server_that_does_not_come_back_is_given_up_at_the_deadline(
    moto: S3Server, proxy: S3Proxy, fault: Fault
) -> None:
    """N1, N3: a call ends at its deadline with an error of ours, and later goes on where it stood."""
    stream = stream_through(proxy, moto)
    hasty = stream._replace(options=options_of(proxy, call_timeout_s=0.5))
    proxy.inject(fault, operation="UploadPart", times=None)
    with pytest.raises(PartfileError):
        hasty.run_to_the_end()
    proxy.heal()
    stream.run_to_the_end()
    stream.assert_exactly_once()


def test_a_creation_whose_reply_is_lost_is_known_again(s3_server: S3Server, s3_proxy: S3Proxy) -> None:
    """The checkpoint that was created by an attempt without a reply is ours: no tombstone, no takeover, on any."""
    with S3Store(f"s3://{s3_server.bucket()}/base", options_of(s3_proxy)) as store:
        store.create_file("first", b"")
        injection = s3_proxy.inject(lost_reply(), operation="PutObject", key="*/link")
        store.create_file("link", b"mine")
        assert injection.struck.is_set()
        assert store.read_file("link", 4) == b"mine"
