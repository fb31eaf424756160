"""Kill the process before and after requests of the life cycle on S3; restart; compare."""

from __future__ import annotations

import signal
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from partfile.stores.s3.client import CHANGING_CALLS
from partfile.testing.faults import KillAt, count_calls
from support.s3.life import MIB, SMALL, Stream, options_of
from support.sinks.life_cycle import in_child

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from partfile.testing.faults import When
    from support.s3.server import S3Server


pytestmark = pytest.mark.slow

SAMPLES = {"moto": 4, "rclone": 2, "radosgw": 2}


def small(server: S3Server) -> Stream:
    """Parts of two rows each: everything is side objects and PUTs."""
    return Stream(_base(server), options_of(server), rolling=SMALL)


def large(server: S3Server) -> Stream:
    """Two parts of 12 MiB that stay open: uploads, side objects and claims."""
    return Stream(_base(server), options_of(server), row_bytes=2 * MIB, rows_a_checkpoint=2)


def distinct(server: S3Server) -> Stream:
    """Small parts of rows that come again: runs of keys are written, merged and deleted."""
    return small(server)._replace(again=3)


def _base(server: S3Server) -> str:
    return f"s3://{server.bucket()}/base"


@pytest.mark.drawn(2)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", [small, large, distinct])
@pytest.mark.fault("D14")
def test_a_kill_at_a_request_loses_and_doubles_nothing(
    s3_server: S3Server,
    kind: Callable[[S3Server], Stream],
    when: When,
    chosen: Callable[[int, int], list[int]],
) -> None:
    """D14: SIGKILL at request n: committed rows are read once, after a restart all rows once; no file has changed."""
    calls = count_calls(lambda recorder: kind(s3_server).run_to_the_end(recorder), CHANGING_CALLS)
    for number in chosen(calls, SAMPLES[s3_server.name]):
        stream = kind(s3_server)
        killer = KillAt(number, when, only=CHANGING_CALLS)
        code = in_child(lambda stream=stream, killer=killer: stream.run_to_the_end(killer))  # type: ignore[misc]
        assert code == -signal.SIGKILL, f"request {number} of {calls}"
        seen = stream.finished()
        assert max(stream.rows_seen().values(), default=1) == 1
        assert in_child(stream.run_to_the_end) == 0, f"request {number} of {calls}"
        stream.assert_exactly_once()
        after = stream.finished()
        assert {path: after.get(path) for path in seen} == seen


@pytest.mark.drawn(1)
@pytest.mark.parametrize("kind", [small, large])
@pytest.mark.fault("D14")
def test_what_a_consumer_takes_after_a_kill_is_each_row_once(
    s3_server: S3Server, kind: Callable[[S3Server], Stream], chosen: Callable[[int, int], list[int]]
) -> None:
    """R5: the objects that a killed process has shown are gone before the next start; none comes again."""
    takes = {"consumers_take_files": True}
    calls = count_calls(lambda recorder: kind(s3_server).run_to_the_end(recorder, **takes), CHANGING_CALLS)
    for number in chosen(calls, SAMPLES[s3_server.name]):
        stream = kind(s3_server)
        killer = KillAt(number, "after", only=CHANGING_CALLS)
        code = in_child(lambda stream=stream, killer=killer: stream.run_to_the_end(killer, **takes))  # type: ignore[misc]
        assert code == -signal.SIGKILL, f"request {number} of {calls}"
        taken = stream.take()
        assert in_child(lambda stream=stream: stream.run_to_the_end(**takes)) == 0, f"request {number} of {calls}"  # type: ignore[misc]
        assert taken + stream.take() == Counter(range(stream.rows)), f"request {number} of {calls}"


@pytest.mark.drawn(1)
@pytest.mark.parametrize("kind", [small, large])
@pytest.mark.fault("K16")
def test_a_second_kill_loses_and_doubles_nothing(
    s3_server: S3Server,
    kind: Callable[[S3Server], Stream],
    rng: random.Random,
    chosen: Callable[[int, int], list[int]],
) -> None:
    """The start that follows a kill is killed too, at a request of its own at random; then all rows are there once."""
    calls = count_calls(lambda recorder: kind(s3_server).run_to_the_end(recorder), CHANGING_CALLS)
    for number in chosen(calls, 1):
        stream, second = kind(s3_server), rng.randint(1, calls)
        for call in (number, second):
            killer = KillAt(call, "after", only=CHANGING_CALLS)
            code = in_child(lambda stream=stream, killer=killer: stream.run_to_the_end(killer))  # type: ignore[misc]
            # A start that has less to do than that ends well.
            assert code in {-signal.SIGKILL, 0}, f"request {call} after {number} of {calls}"
            assert max(stream.rows_seen().values(), default=1) == 1
        assert in_child(stream.run_to_the_end) == 0, f"requests {number} and {second} of {calls}"
        stream.assert_exactly_once()
