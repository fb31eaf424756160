"""A stage of several objects on a model of S3, of which one is lost or changed, and is missed by a worker."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, Any

import pytest
from crash_worlds import Process
from lost_objects import OBJECTS, leave_a_stage, start
from s3_model import ModelCalls, refusal
from s3_worlds import AWS, OPTIONS, make_small

from partfile.errors import PartDamaged, PartMissing
from partfile.stores.s3 import sides
from partfile.stores.s3.store import S3Store
from partfile.testing.faults import Recorder, intercept

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.testing.faults import Call

PLACES = pytest.mark.parametrize("place", range(OBJECTS))


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each object is read by itself, as those of more than 8 MiB are."""
    make_small(monkeypatch)
    monkeypatch.setattr(sides, "_AT_ONCE_BYTES", 1)


def process(calls: ModelCalls, interceptor: Any = None) -> Process:
    """A process that works in a bucket."""
    seen = intercept(calls, interceptor) if interceptor else calls
    options = OPTIONS.model_copy(update={"upload_part_bytes": 1 << 20})
    return Process("s3://model/base", lambda url, _options: S3Store(url, options, calls=seen))


def left(calls: ModelCalls) -> list[str]:
    """The keys of the objects of a stage whose sink has died."""
    return [f"base/{path}" for path in leave_a_stage(process(calls), random.Random(4), 200)]


def finished(calls: ModelCalls) -> list[str]:
    """What readers see."""
    return [path for path in calls.picture().finished() if path.endswith(".parquet")]


@PLACES
@pytest.mark.fault("S7")
def test_a_stage_that_has_lost_any_object_stops_the_start(place: int) -> None:
    """By name; whichever object it is. Who accepts that gives the stage up, and nothing waits any more."""
    calls = ModelCalls(AWS)
    calls.delete(left(calls)[place])
    with pytest.raises(PartMissing, match=r"'life' at .*side object .* is not there"):
        start(process(calls), process(calls))
    report = start(process(calls), process(calls), accept_missing=True)
    assert (report.given_up, report.encoded) == (1, 0)
    assert not process(calls).owes()
    assert finished(calls) == []


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@PLACES
@pytest.mark.parametrize(
    "harm", [flipped, lambda data: data[:-1], lambda data: data + b"x"], ids=["bit", "less", "more"]
)
@pytest.mark.fault("S18")
def test_a_stage_with_a_changed_object_is_damaged_and_not_given_up(place: int, harm: Callable[[bytes], bytes]) -> None:
    """As on a local disk. Once what was written is back, every row comes."""
    calls = ModelCalls(AWS)
    key = left(calls)[place]
    written = calls.get(key, 1 << 20)
    calls.put(key, harm(written), {}, if_absent=False)
    for accept_missing in (False, True):
        with pytest.raises(PartDamaged, match=r"is damaged: side object .* is not what was written"):
            start(process(calls), process(calls), accept_missing=accept_missing)
    assert process(calls).owes()
    calls.put(key, written, {}, if_absent=False)
    assert start(process(calls), process(calls), accept_missing=True).encoded == 1
    assert len(finished(calls)) == 1


@PLACES
def test_an_object_that_only_a_worker_misses_is_not_given_up(place: int, caplog: pytest.LogCaptureFixture) -> None:
    """S13: its view is another one; the stage is tried again, and every row comes. The coordinator reads one object."""
    calls = ModelCalls(AWS)
    key = left(calls)[place]
    blind = ModelCalls(AWS, calls.picture())
    blind.delete(key)
    asked = Recorder({"head", "get"})
    with caplog.at_level(logging.WARNING, "partfile"):
        report = start(process(calls, asked), process(blind), accept_missing=True)
    assert (report.given_up, report.encoded) == (0, 0)
    assert "missed by who was to encode it, and is there" in caplog.text
    of_sides = [call.name for call in asked.calls if "/_sides/" in str(call.arguments[0])]
    assert of_sides == ["head"] * OBJECTS + ["get"]
    assert start(process(calls), process(calls), accept_missing=True).encoded == 1
    assert len(finished(calls)) == 1


class Away:
    """A server that does not answer when it is asked whether a side object is there."""

    def __init__(self) -> None:
        self.asked = 0

    def around(self, call: Call, proceed: Callable[[], object]) -> object:
        """Refuse a HEAD of a side object, do anything else."""
        if call.name == "head" and "/_sides/" in str(call.arguments[0]):
            self.asked += 1
            raise refusal("SlowDown")
        return proceed()


def test_a_server_that_does_not_answer_the_coordinator_loses_nothing() -> None:
    """Gone is only what a server says is not there: nothing is given up, and nothing stops."""
    calls, away = ModelCalls(AWS), Away()
    calls.delete(left(calls)[0])
    report = start(process(calls, away), process(calls), accept_missing=True)
    assert away.asked > 0
    assert (report.given_up, report.encoded) == (0, 0)
    assert process(calls).owes()
    assert start(process(calls), process(calls), accept_missing=True).given_up == 1
