"""Requests of the S3 store: what they say, how long they take, and what is made of odd replies."""

from __future__ import annotations

import asyncio
import base64
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import partfile as pf
from partfile.errors import AlreadyExists, NotApplied, OutcomeUnknown, PartfileError, StoreError
from partfile.sink.layout import SubtaskContext
from partfile.sink.operator import SinkOperator
from partfile.sink.states import SubtaskSnapshot
from partfile.stores import retry
from partfile.stores.retry import Backoff
from partfile.stores.s3 import client as s3_client
from partfile.stores.s3.client import (
    BUFFERED_BYTES,
    LEAST_BYTES_A_S,
    MovingBody,
    NoFreeSlot,
    Progress,
    S3Calls,
    S3Client,
    this_process,
)
from partfile.stores.s3.options import S3Options
from partfile.stores.s3.requests import S3Access
from partfile.stores.s3.store import S3Store
from partfile.stores.urls import S3Url
from partfile.testing.store import new_part
from support.processes.deadline import PATIENCE_S
from support.s3.life import warm_up
from support.s3.stub import RESET, Heard, S3Stub, Said, refused

if TYPE_CHECKING:
    from collections.abc import Callable


# What the S3 store says in its requests, and what it makes of replies that no test server gives.

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
    assert seen == {("PutObject", False), ("CreateMultipartUpload", True)}


def _with_side(side: bytes, heard: Heard) -> Said:
    return Said(body=side.decode()) if heard.request.operation == "GetObject" else accepting(heard)


def test_an_object_that_was_created_perhaps_is_not_called_absent() -> None:
    """Its reply is lost, its repetition finds something there, and no process may look whose it is."""
    lost_then_there = in_turn("PutObject", None, refused(412, "PreconditionFailed"))

    def answer(heard: Heard) -> Said | None:
        return refused(403, "AccessDenied") if heard.request.operation == "HeadObject" else lost_then_there(heard)

    with S3Stub(answer) as stub, S3Store(BASE, stub.options()) as store:
        with pytest.raises(OutcomeUnknown, match="which writer created"):
            store.create_file("link", b"")
        assert stub.operations() == ["PutObject", "PutObject", "HeadObject"]


def test_an_object_that_was_created_and_cannot_be_looked_at_is_not_called_absent() -> None:
    """Where the server ignores conditions, and is gone when the object is read back."""
    answer = in_turn("HeadObject", REPLIES["HeadObject"], refused(403, "AccessDenied"))
    with S3Stub(answer) as stub, S3Store(BASE, stub.options(conditional_writes=False)) as store:
        with pytest.raises(OutcomeUnknown, match="which writer created"):
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
        warm_up(store)
        began_s = time.monotonic()
        assert not store.capabilities.exclusive_create
        assert not store.capabilities.no_replace
        assert time.monotonic() - began_s < 20
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
    """No other process knows the upload of a probe; so the server has completed it, whatever the condition."""
    answer = in_turn("CompleteMultipartUpload", None, refused(404, "NoSuchUpload"))
    with S3Stub(answer) as stub, S3Store(BASE, stub.options()) as store:
        assert not store.capabilities.no_replace
        assert stub.operations().count("CompleteMultipartUpload") == 2


def test_deleting_many_waits_once_for_a_server_that_is_away() -> None:
    """Each of them alone would only wait again; closing a store takes one call's time."""
    with S3Stub() as stub, S3Store(BASE, stub.options(call_timeout_s=4.0)) as store:
        warm_up(store)
        stub.answer = lambda _: refused(503, "SlowDown")
        store._garbages.get().add([f"path-{number}" for number in range(20)])
        asked = len(stub.heard)
        began_s = time.monotonic()
        store.close()
        # Twenty calls of four seconds would take eighty.
        assert time.monotonic() - began_s < 40
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
        context = SubtaskContext(subtask=0, attempt=0, epoch=1, chain="0" * 8, batch_time_ms=0)
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
        context = SubtaskContext(subtask=0, attempt=0, epoch=1, chain="0" * 8, batch_time_ms=0)
        operator.open(context, SubtaskSnapshot(subtask=0))
        operator.write(pa.record_batch({"row": ["x"]}))
        with pytest.raises(StoreError, match="_sides"):
            operator.snapshot(1)
        asked = len(stub.heard)
        operator.close()
        assert len(stub.heard) == asked


# How long a request to S3 may take, and what becomes of one that is given up.


def access_to(options: S3Options) -> S3Access:
    """What is below one prefix, by a client that is made before the first of its calls is timed."""
    with S3Store("s3://bucket/base", options) as store:
        warm_up(store)
    return S3Access(S3Url.of("s3://bucket/base"), options, S3Calls("bucket", options))


class Clock:
    """Time that a test sets. Threads may look at it and let it pass."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.looked = threading.Event()
        """Set by each look."""
        self._lock = threading.Lock()

    def monotonic(self) -> float:
        """What it shows."""
        self.looked.set()
        return self.now_s

    def sleep(self, pause_s: float) -> None:
        """Let so much pass, and no more, however long it takes."""
        time.sleep(pause_s)
        with self._lock:
            self.now_s += pause_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that every request and every Backoff of this test goes by."""
    clock = Clock()
    monkeypatch.setattr(s3_client, "time", clock)
    monkeypatch.setattr(retry, "time", clock)
    return clock


def test_no_attempt_begins_just_before_the_deadline(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could not be answered, and would hide what the server says. Here time passes by pauses alone."""
    reader = threading.current_thread()

    def sleep(pause_s: float) -> None:
        # A request that another test has given up may still be retried in a thread of its own.
        if threading.current_thread() is reader:
            clock.now_s += pause_s
        else:
            time.sleep(pause_s)

    monkeypatch.setattr(clock, "sleep", sleep)
    monkeypatch.setattr(retry, "number_between", lambda _, most: most)  # 50 + 100 + 200 + 400 + 800 ms.
    begun_s: list[float] = []

    def refuse(_: Heard) -> Said:
        begun_s.append(clock.now_s)
        return refused(503, "SlowDown")

    with S3Stub() as stub, S3Store(BASE, stub.options(call_timeout_s=1.6)) as store:
        warm_up(store)
        stub.answer, began_s = refuse, clock.now_s
        with pytest.raises(StoreError, match="SlowDown"):
            store.read_file("x", 1)
    assert clock.now_s - began_s == pytest.approx(1.55)
    assert [round(begun - began_s, 3) for begun in begun_s] == [0, 0.05, 0.15, 0.35, 0.75]


def test_a_request_is_given_up_where_nothing_moves(clock: Clock) -> None:
    """Not after a time that a slow link needs for a large body anyway."""
    progress = Progress(20, lambda _: None)
    progress.moved(BUFFERED_BYTES)
    for _ in range(20):
        clock.now_s += 15
        assert 5 <= progress.left_s < 6
        progress.moved(20 * BUFFERED_BYTES)
        assert 20 <= progress.left_s < 21
    clock.now_s += 21
    assert progress.left_s == 0


def test_what_stands_in_buffers_has_time_to_drain(clock: Clock) -> None:
    """The last bytes that sockets took are on their way for as long as that many have taken before."""
    progress = Progress(20, lambda _: None)
    clock.now_s += 10
    progress.moved(2 * BUFFERED_BYTES)
    assert progress.left_s == 20 + 5


def test_looking_at_a_body_is_not_sending_it(clock: Clock) -> None:
    """It is hashed for the signature, and read again from its start."""
    progress = Progress(20, lambda _: None)
    body = MovingBody(bytes(BUFFERED_BYTES), progress)
    body.read()
    clock.now_s += 5
    body.seek(0)
    clock.now_s += 5
    body.read()
    assert progress.left_s == 20 + 5


def test_a_request_that_hardly_moves_is_given_up_as_well(clock: Clock) -> None:
    """A byte a second keeps no caller waiting for ever."""
    progress = Progress(20, lambda _: None)
    for _ in range(20):
        clock.now_s += 1
        progress.moved(1)
    assert progress.left_s == pytest.approx(20 / LEAST_BYTES_A_S)


def test_a_body_tells_what_was_taken_of_it() -> None:
    """And is the same body."""
    moved: list[float] = []
    body = MovingBody(b"abc", Progress(20, moved.append))
    assert (body.read(2), body.read(), body.read()) == (b"ab", b"c", b"")
    assert len(moved) == 2


@pytest.mark.slow
def test_after_a_stall_while_sending_the_client_works_as_before() -> None:
    """What was given up is cancelled: it keeps no connection of the few that there are."""
    with S3Stub(lambda _: Said(headers={"Connection": "close"})) as stub:
        access = access_to(stub.options(call_timeout_s=4.0, attempt_timeout_s=1.0, max_parallel_requests=2))
        access.put("w", b"")
        stub.is_deaf = True
        with pytest.raises(PartfileError, match="nothing moved"):
            access.put("x", bytes(16 * MIB))
        stub.is_deaf = False
        access.put("y", b"")
        loop = this_process().client(access.options).files.loop
        assert asyncio.run_coroutine_threadsafe(_tasks_that_stay(), loop).result(PATIENCE_S) == set()


async def _tasks_that_stay() -> set[asyncio.Task[object]]:
    others = {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}
    return (await asyncio.wait(others, timeout=60))[1] if others else set()


@pytest.mark.slow
def test_a_slow_link_gets_on(clock: Clock) -> None:
    """A body that takes longer than an attempt and a call may arrives by its first attempt, and nothing beside it.

    Time passes by what the server reads alone, so that no load of the machine is taken for a server that stands still.
    """
    # Up to 3 MiB of each body are in the sockets' buffers, and have moved as far as the client can tell.
    with S3Stub(bytes_a_s=8 * MIB, sleep=clock.sleep) as stub:
        access = access_to(stub.options(call_timeout_s=1.5, attempt_timeout_s=1.5))
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda number: access.put(f"x{number}", bytes(14 * MIB)), range(2)))
        assert [len(heard.body) for heard in stub.heard if heard.request.operation == "PutObject"] == [14 * MIB] * 2


@pytest.mark.slow
def test_what_an_attempt_spent_on_moving_bytes_is_not_waiting(clock: Clock) -> None:
    """A body that took longer than a call may wait, and was broken off at its end, is sent again."""
    # The client repeats a PUT once by itself where it has used the connection before.
    replies = [RESET, RESET]
    with S3Stub(bytes_a_s=8 * MIB, sleep=clock.sleep) as stub:
        access = access_to(stub.options(call_timeout_s=3.0, attempt_timeout_s=3.0))
        access.put("first", b"")
        stub.answer = lambda _: replies.pop() if replies else Said()
        access.put("x", bytes(14 * MIB))
        assert len(stub.heard[-1].body) == 14 * MIB
        assert not replies


def test_excuses_are_few_so_that_every_call_ends() -> None:
    """However long each attempt gets on before it fails."""
    backoff = Backoff(1.0)
    for _ in range(100):
        backoff.excuse(10.0)
        backoff.excuse(0.01)
    # Four of ten seconds beside its own one; a hundred would be a thousand.
    assert 31 < backoff.left_s <= 41


def test_so_many_requests_are_under_way_and_no_more() -> None:
    """Whatever number of threads asks."""
    with S3Stub(bytes_a_s=2 * MIB) as stub:
        access = access_to(stub.options(max_parallel_requests=3))
        with ThreadPoolExecutor(12) as pool:
            list(pool.map(lambda number: access.put(f"x{number}", bytes(MIB // 8)), range(12)))
        assert stub.most_under_way == 3
        assert stub.operations().count("PutObject") == 12


def test_who_waits_for_a_turn_waits_as_long_as_others_get_on(clock: Clock) -> None:
    """Their time is not taken from the call that waits; where nothing gets on it is turned away.

    Time passes where the request that is under way lets it, each time after the one that waits has looked at the clock.
    """
    options = S3Options(max_parallel_requests=1)
    client = S3Client(None, options)
    backoff = Backoff(0.3)
    taken, turned_away = threading.Event(), threading.Event()

    def hold(*, moves: bool) -> None:
        with client.slot(Backoff(60), 0.2):
            clock.looked.clear()
            taken.set()
            for _ in range(4 if moves else 0):
                assert clock.looked.wait(PATIENCE_S)
                clock.looked.clear()
                clock.sleep(0.15)
                client._note(clock.now_s)
            assert moves or turned_away.wait(PATIENCE_S)

    for moves in (True, False):
        other = threading.Thread(target=hold, kwargs={"moves": moves})
        other.start()
        assert taken.wait(PATIENCE_S)
        taken.clear()
        if moves:
            with client.slot(backoff, 0.2):
                assert backoff.left_s > 0.2
        else:
            clock.now_s += 60
            with pytest.raises(NoFreeSlot), client.slot(Backoff(60), 0.2):
                pass
            turned_away.set()
        other.join()
