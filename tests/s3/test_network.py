"""The network between a sink and S3, beyond single lost replies: hanging, slow, malformed, gone, and every position."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from partfile.errors import NotApplied, OutcomeUnknown, PartfileError, StoreError
from partfile.stores.s3.client import this_process
from partfile.stores.s3.options import S3Options
from partfile.stores.s3.store import S3Store
from partfile.stores.s3.stream import S3PartStream
from partfile.testing.store import new_part
from support.processes.deadline import wait_until
from support.s3.life import MIB, Stream, options_of, warm_up, written_open
from support.s3.proxy import (
    Answer,
    Fault,
    S3Proxy,
    error,
    internal_error,
    late_reply,
    late_request,
    lost_reply,
    reply_given_up,
    request_given_up,
    reset,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.s3.server import S3Server


pytestmark = pytest.mark.slow
SLACK_S = 30.0
"""Beyond the deadlines, on a busy machine. Without deadlines nothing would end while the server is away."""


ATTEMPT_S = 2.0
"""How long a request is waited for that is never answered; one that a busy server answers later is asked again."""
GIVEN_UP = {"request": request_given_up(), "reply": reply_given_up()}
LATE = {"request": late_request(0.8), "reply": late_reply(0.8)}
LOST_IN_TURN = 5
"""Requests of a life whose replies are lost, on each server, unless all are."""


@pytest.fixture
def proxy(moto: S3Server) -> Iterator[S3Proxy]:
    """A proxy in front of the server that honours every precondition."""
    with S3Proxy(moto) as proxy:
        yield proxy


def stream_on(proxy: S3Proxy, server: S3Server, **options: object) -> Stream:
    """Two parts of 6 MiB each, in uploads with tails in side objects, over three checkpoints."""
    base = f"s3://{server.bucket()}/base"
    return Stream(base, options_of(proxy, **options), rows=6, row_bytes=2 * MIB, rows_a_checkpoint=2)


@pytest.mark.drawn(5)
@pytest.mark.parametrize("fault", [lost_reply(), reset(), reply_given_up()], ids=["lost", "reset", "late"])
@pytest.mark.parametrize("operation", ["AbortMultipartUpload", "DeleteObject", "DeleteObjects"])
@pytest.mark.fault("N2")
def test_an_abort_or_delete_whose_reply_is_lost(
    s3_server: S3Server, s3_proxy: S3Proxy, operation: str, fault: Fault
) -> None:
    """N2: it is asked again, and what is not there any more counts as done."""
    options = options_of(s3_proxy, attempt_timeout_s=ATTEMPT_S)
    with S3Store(f"s3://{s3_server.bucket()}/base", options) as store:
        assert store.capabilities.durable
        handle = written_open(store, [bytes(6 * MIB), b"tail"])
        store.create_file("x", b"")
        injection = s3_proxy.inject(fault, operation=operation)
        assert store.discard(handle)
        store.delete_file("x")
        assert injection.struck.is_set()
        assert store.list_names("_partfile/_sides") == []
        assert not store.file_exists("x")
        assert not store.discard(handle)
    uploads = s3_server.filesystem().call_s3("list_multipart_uploads", Bucket=store.base.split("/")[2])
    assert not uploads.get("Uploads")


@pytest.mark.drawn(2)
@pytest.mark.parametrize("late", ["request", "reply"])
@pytest.mark.parametrize("operation", ["PutObject", "UploadPart", "CompleteMultipartUpload", "CreateMultipartUpload"])
@pytest.mark.fault("N9")
def test_a_request_that_is_slower_than_an_attempt_may_be(
    moto: S3Server, proxy: S3Proxy, operation: str, late: str
) -> None:
    """N9: it is given up, and done behind the back of its repetition; nothing is lost, doubled or half there."""
    # A completion has the whole time of its call, and is waited for.
    fault = (LATE if operation == "CompleteMultipartUpload" else GIVEN_UP)[late]
    stream = stream_on(proxy, moto, attempt_timeout_s=ATTEMPT_S)
    injection = proxy.inject(fault, operation=operation, first=2)
    stream.run_to_the_end()
    assert injection.struck.is_set()
    wait_until(lambda: all(one.status is not None for one in proxy.exchanges), "what was given up is not done")
    stream.assert_exactly_once()
    assert len(stream.finished()) == 2


@pytest.mark.fault("N1", "N9")
def test_a_server_that_hangs_is_given_up_in_time(moto: S3Server) -> None:
    """N1, N9: stopped, it takes connections and never answers; a call ends at its deadline, and works afterwards."""
    with S3Store(f"s3://{moto.bucket()}/base", options_of(moto, call_timeout_s=10.0, attempt_timeout_s=3.0)) as store:
        warm_up(store)
        store.create_file("x", b"1")
        moto.pause()
        try:
            for ask, kind in (
                (lambda: store.read_file("x", 1), NotApplied),
                (lambda: store.delete_file("x"), OutcomeUnknown),
            ):
                started = time.monotonic()
                with pytest.raises(kind):
                    ask()
                assert time.monotonic() - started < 10 + SLACK_S
        finally:
            moto.resume()
        store.create_file("y", b"1")
        assert store.read_file("y", 1) == b"1"


@pytest.mark.parametrize("fault", [error(429, "TooManyRequests"), error(502, "BadGateway"), error(503, "SlowDown")])
@pytest.mark.fault("N3")
def test_a_burst_at_every_request_is_waited_out(moto: S3Server, proxy: S3Proxy, fault: Fault) -> None:
    """N3: five requests in a row are turned away, again and again, and the stream ends as ever."""
    stream = stream_on(proxy, moto)
    proxy.inject(fault, first=5, times=5)
    proxy.inject(fault, first=25, times=5)
    proxy.inject(fault, first=45, times=5)
    stream.run_to_the_end()
    stream.assert_exactly_once()


@pytest.mark.fault("N3")
def test_retries_are_few_and_end(moto: S3Server, proxy: S3Proxy) -> None:
    """N3: pauses double, so a deadline of four seconds bounds the attempts as well."""
    with S3Store(f"s3://{moto.bucket()}/base", options_of(proxy, call_timeout_s=4.0)) as store:
        warm_up(store)
        proxy.inject(error(503, "SlowDown"), times=None)
        started = time.monotonic()
        with pytest.raises(NotApplied, match="SlowDown"):
            store.read_file("x", 1)
        assert time.monotonic() - started < 4 + SLACK_S
        assert 2 <= proxy.count()["GetObject"] <= 9


@pytest.mark.parametrize("body", [b"", b"<not xml", b"<html>a proxy's own page</html>"])
@pytest.mark.parametrize("reaches_server", [True, False])
@pytest.mark.fault("N4")
def test_a_success_that_makes_no_sense(moto: S3Server, proxy: S3Proxy, body: bytes, reaches_server: bool) -> None:
    """N4: a completion that is answered by 200 and anything else than its result is looked after, not believed."""
    stream = stream_on(proxy, moto)
    fault = Fault(reaches_server=reaches_server, answer=Answer(status=200, body=body))
    injection = proxy.inject(fault, operation="CompleteMultipartUpload")
    stream.run_to_the_end()
    assert injection.struck.is_set()
    stream.run_to_the_end()
    stream.assert_exactly_once()


@pytest.mark.parametrize("status", [(412, "PreconditionFailed"), (409, "ConditionalRequestConflict")])
@pytest.mark.parametrize("reaches_server", [True, False])
@pytest.mark.parametrize("size", [10, 6 * MIB])
@pytest.mark.fault("N5")
def test_a_refused_condition_is_looked_after(
    moto: S3Server, proxy: S3Proxy, status: tuple[int, str], reaches_server: bool, size: int
) -> None:
    """N5: done all the same, the file is ours; not done, it is tried again, then or with the next checkpoint."""
    with S3Store(f"s3://{moto.bucket()}/base", options_of(proxy)) as store:
        handle = written_open(store, [bytes(size)])
        operation = "PutObject" if size == 10 else "CompleteMultipartUpload"
        proxy.inject(error(*status, reaches_server=reaches_server), operation=operation, key="*part-0")
        for _ in range(2):
            try:
                store.publish(handle, "auto")
            except StoreError:
                assert not list(store.list())
        assert [file.size for file in store.list()] == [size]


@pytest.mark.fault("N11")
def test_a_name_that_does_not_resolve_and_a_port_without_a_server() -> None:
    """N11: an error within the deadline, with what to look at; a PUT may have been sent on a connection before."""
    for endpoint in ("http://no-such-host.invalid:1", "http://127.0.0.1:1"):
        options = {"endpoint_url": endpoint, "key": "k", "secret": "s", "path_style": True, "call_timeout_s": 4.0}
        checked = S3Options.of(options)
        # A client takes seconds to be made where others work.
        this_process().client(checked)
        with S3Store("s3://bucket/x", checked) as store:
            started = time.monotonic()
            with pytest.raises(OutcomeUnknown) as raised:
                store.create_file("x", b"")
            assert "endpoint_url" in raised.value.hint
            with pytest.raises(NotApplied):
                store.read_file("x", 1)
            assert time.monotonic() - started < 2 * 4 + SLACK_S


@pytest.mark.fault("N11")
def test_an_endpoint_that_goes_away_and_comes_back(moto: S3Server, proxy: S3Proxy) -> None:
    """N11: the batch fails, the state stays as it was, and the next start goes on from it."""
    stream = stream_on(proxy, moto)
    out = stream.sink().local().open()
    out.write(stream.batch(0, 3), position=3)
    out.checkpoint()
    out.close()
    proxy.inject(reset(), times=None)
    hasty = stream._replace(options=options_of(proxy, call_timeout_s=0.3))
    with pytest.raises(PartfileError):
        hasty.run_to_the_end()
    proxy.heal()
    stream.run_to_the_end()
    stream.assert_exactly_once()


@pytest.mark.drawn(1)
@pytest.mark.fault("N2")
@pytest.mark.timeout(1800)
def test_every_request_of_a_life_lost_in_turn(
    s3_server: S3Server, s3_proxy: S3Proxy, chosen: Callable[[int, int], list[int]]
) -> None:
    """N2: the reply to request n and the next is lost; with --long for each n, else for each of a few."""
    stream_on(s3_proxy, s3_server).run_to_the_end()
    total = len(s3_proxy.exchanges)
    for first in chosen(total, LOST_IN_TURN):
        stream = stream_on(s3_proxy, s3_server)
        injection = s3_proxy.inject(lost_reply(), first=first, times=2)
        stream.run_to_the_end()
        s3_proxy.heal()
        assert injection.struck.is_set(), f"request {first} of {total}"
        stream.assert_exactly_once()


@pytest.mark.fault("N8")
def test_a_part_has_at_most_ten_thousand_upload_parts(moto: S3Server) -> None:
    """N8: beyond them the stream fails by name before it sends, and what was persisted is published."""
    with S3Store(f"s3://{moto.bucket()}/base", options_of(moto)) as store:
        stream = store.create(new_part())
        stream.write(bytes(5 * MIB))
        handle = stream.persist()
        assert isinstance(stream, S3PartStream)
        stream._number = 10_000
        stream.write(bytes(5 * MIB))
        with pytest.raises(NotApplied, match="upload parts") as raised:
            stream.persist()
        assert "earlier" in raised.value.hint
        store.publish(handle, "auto")
        assert [file.size for file in store.list()] == [5 * MIB]


@pytest.mark.fault("N7")
def test_an_internal_error_at_the_completion_of_an_upload_that_is_gone(moto: S3Server, proxy: S3Proxy) -> None:
    """N7: some servers answer 500 where others say NoSuchUpload; either is told by name and in time."""
    with S3Store(f"s3://{moto.bucket()}/base", options_of(proxy)) as store:
        handle = written_open(store, [bytes(6 * MIB)])
        store.discard(handle)
        proxy.inject(internal_error(), operation="CompleteMultipartUpload", times=None)
        started = time.monotonic()
        with pytest.raises(PartfileError, match="neither its upload nor its finished file is there"):
            store.publish(handle, "auto")
        assert time.monotonic() - started < 10 + SLACK_S
