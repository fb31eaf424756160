"""How long a request to S3 may take, and what becomes of one that is given up."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from s3_stub import RESET, S3Stub, Said

from partfile.errors import PartfileError
from partfile.stores.retry import Backoff
from partfile.stores.s3 import client as s3_client
from partfile.stores.s3.client import (
    BUFFERED_BYTES,
    LEAST_BYTES_A_S,
    MovingBody,
    NoTurn,
    Progress,
    S3Calls,
    S3Client,
    this_process,
)
from partfile.stores.s3.options import S3Options
from partfile.stores.s3.requests import S3Access
from partfile.stores.urls import S3Url

MIB = 1 << 20


def access_to(options: S3Options) -> S3Access:
    """What is below one prefix."""
    return S3Access(S3Url.of("s3://bucket/base"), options, S3Calls("bucket", options))


class Clock:
    """Time that a test sets."""

    now_s = 1000.0

    def monotonic(self) -> float:
        """What it shows."""
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that every Progress goes by."""
    clock = Clock()
    monkeypatch.setattr(s3_client, "time", clock)
    return clock


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
    """A byte a second keeps nobody waiting for ever."""
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
        assert asyncio.run_coroutine_threadsafe(_tasks_that_stay(), loop).result(10) == set()


async def _tasks_that_stay() -> set[asyncio.Task[object]]:
    others = {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}
    return (await asyncio.wait(others, timeout=5))[1] if others else set()


def test_a_slow_link_gets_on() -> None:
    """A body that takes longer than an attempt and a call may arrives by its first attempt, and nothing beside it."""
    # Up to 3 MiB of each body are in the sockets' buffers, and have moved as far as anybody can tell.
    with S3Stub(bytes_a_s=8 * MIB) as stub:
        access = access_to(stub.options(call_timeout_s=1.5, attempt_timeout_s=1.5))
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda number: access.put(f"x{number}", bytes(14 * MIB)), range(2)))
        assert [len(heard.body) for heard in stub.heard] == [14 * MIB] * 2


def test_what_an_attempt_spent_on_moving_bytes_is_not_waiting() -> None:
    """A body that took longer than a call may wait, and was broken off at its end, is sent again."""
    # The client repeats a PUT once by itself where it has used the connection before.
    replies = [RESET, RESET]
    with S3Stub(bytes_a_s=8 * MIB) as stub:
        access = access_to(stub.options(call_timeout_s=3.0, attempt_timeout_s=3.0))
        access.put("client", b"")
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
    assert 40 < backoff.left_s <= 41


def test_so_many_requests_are_under_way_and_no_more() -> None:
    """Whatever number of threads asks."""
    with S3Stub(bytes_a_s=2 * MIB) as stub:
        access = access_to(stub.options(max_parallel_requests=3))
        with ThreadPoolExecutor(12) as pool:
            list(pool.map(lambda number: access.put(f"x{number}", bytes(MIB // 8)), range(12)))
        assert stub.most_under_way == 3
        assert len(stub.heard) == 12


def test_who_waits_for_a_turn_waits_as_long_as_others_get_on() -> None:
    """Their time is not taken from the call that waits; where nothing gets on it is turned away."""
    options = S3Options(max_parallel_requests=1)
    client = S3Client(None, options)
    backoff = Backoff(0.3)
    taken, stop = threading.Event(), threading.Event()

    def hold(*, moves: bool) -> None:
        with client.turn(Backoff(60), 0.2):
            taken.set()
            for _ in range(10):
                stop.wait(0.05)
                if moves:
                    client._note(time.monotonic())
        taken.clear()

    for moves in (True, False):
        other = threading.Thread(target=hold, kwargs={"moves": moves})
        other.start()
        taken.wait()
        if moves:
            with client.turn(backoff, 0.2):
                assert backoff.left_s > 0.2
        else:
            client._moved_at_s -= 60
            with pytest.raises(NoTurn), client.turn(Backoff(60), 0.2):
                pass
        other.join()
