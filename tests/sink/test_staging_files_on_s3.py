"""Staging files on a model of S3: objects that have changed, are lost, or are missed by a worker."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from partfile.errors import PartDamaged, PartMissing
from partfile.sink.encode import encode_staging_file
from partfile.sink.operator import ActivePart
from partfile.sink.states import OpenPart, StagingFile
from partfile.stores.s3 import sides
from partfile.stores.s3.handle import S3Staging, side_path
from partfile.stores.s3.store import S3Store
from partfile.testing.faults import Recorder, intercept
from partfile.testing.store import new_staging_file
from partfile.writers import arrow_staging
from partfile.writers.arrow_staging import StagingFormat
from support.crash.worlds import Process
from support.s3.lost_objects import OBJECTS, leave_a_staging_file, start
from support.s3.model import ModelCalls, refusal
from support.s3.model_worlds import AWS, OPTIONS, make_small

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.testing.faults import Call


# Staging files on a model of S3: an object that has changed is told, and so is a staging file of other bytes than was
# written.


@pytest.fixture(params=["short", "long"])
def _length(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short staging files are compared in memory, long ones where they are."""
    if request.param == "long":
        monkeypatch.setattr(arrow_staging, "MOST_WHOLE_BYTES", 0)


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


def rows(first: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": range(first, first + 50), "s": [f"text {n}" for n in range(50)]})


def shared_rows(first: int) -> pa.RecordBatch:
    """The same as they lie in a staging file that two buckets share."""
    return rows(first).append_column("bucket", pa.array(["a", "b"] * 25, pa.large_string()))


def staged(store: S3Store, persists: int, *, shared: bool = False) -> OpenPart:
    """A staging file that was persisted so often, and resumed each time."""
    staging_file, make = (
        StagingFile(spec={"format": "parquet"}, crc32=0, shared=shared),
        shared_rows if shared else rows,
    )
    part = OpenPart(
        part=new_staging_file("" if shared else "day=1"),
        count=0,
        schema_fingerprint="",
        epoch=1,
        created_at_ms=0,
        last_write_ms=0,
        rows=0,
        staging_file=staging_file,
    )
    active = ActivePart(store.create(part.part), StagingFormat(), make(0).schema, part)
    for number in range(persists):
        active.write(make(50 * number), 0)
        part = active.suspend()
        active = ActivePart(store.resume(part.part), StagingFormat(), make(0).schema, part)
    active.close()
    return part


def encode(store: S3Store, part: OpenPart, **staging_file: int) -> bytes:
    """What a staging file becomes once it is published."""
    assert part.staging_file is not None
    (file,) = encode_staging_file(store, part.part, part.staging_file.model_copy(update=staging_file), part.rows)
    store.publish(file.part, "auto")
    return store.read_file(file.part.path_of(file.part.name), 1 << 20)


@pytest.mark.usefixtures("_length", "_small")
@pytest.mark.fault("F18")
def test_a_staging_file_of_many_objects_is_encoded() -> None:
    """Its checksum went on over each restore and over what was merged."""
    with S3Store("s3://model/base", OPTIONS, calls=ModelCalls(AWS)) as store:
        part = staged(store, 9)
        assert pq.read_table(pa.BufferReader(encode(store, part)))["n"].to_pylist() == list(range(450))


@pytest.mark.usefixtures("_length", "_small")
@pytest.mark.fault("F18")
@pytest.mark.parametrize("place", [0.05, 0.5, 0.95])
def test_a_flipped_bit_in_an_object_is_told(place: float) -> None:
    """By the object's own checksum, before any of it is decoded; no file is left."""
    calls = ModelCalls(AWS)
    with S3Store("s3://model/base", OPTIONS, calls=calls) as store:
        part = staged(store, 3)
        staging = S3Staging.of(part.part)
        assert staging is not None
        key = f"base/{side_path(staging.sides[-1].name)}"
        data = bytearray(store.read_file(side_path(staging.sides[-1].name), 1 << 20))
        data[int(place * len(data))] ^= 1
        calls.put(key, bytes(data), {}, if_absent=False)
        before = calls.picture()
        with pytest.raises(PartDamaged, match="is not what was written"):
            encode(store, part)
        assert calls.picture() == before


@pytest.mark.usefixtures("_length", "_small")
@pytest.mark.fault("F18")
@pytest.mark.parametrize("shared", [False, True])
def test_objects_of_another_staging_file_are_told(*, shared: bool) -> None:
    """Each is whole, and yet together they are not what was written.

    Nothing but the staging file's own checksum knows.
    """
    calls = ModelCalls(AWS)
    with S3Store("s3://model/base", OPTIONS, calls=calls) as store:
        part = staged(store, 3, shared=shared)
        assert part.staging_file is not None
        assert part.staging_file.crc32 is not None
        before = calls.picture()
        with pytest.raises(PartDamaged, match="is not what was written: the CRC-32"):
            encode(store, part, crc32=part.staging_file.crc32 ^ 1)
        assert calls.picture() == before
        assert sum(file.rows for file in encode_staging_file(store, part.part, part.staging_file, part.rows)) == 150


# A staging file of several objects on a model of S3, of which one is lost or changed, and is missed by a worker.

PLACES = pytest.mark.parametrize("place", range(OBJECTS))


@pytest.fixture
def _read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each object is read by itself, as those of more than 8 MiB are."""
    make_small(monkeypatch)
    monkeypatch.setattr(sides, "_AT_ONCE_BYTES", 1)


def process(calls: ModelCalls, interceptor: Any = None) -> Process:
    """A process that works in a bucket."""
    seen = intercept(calls, interceptor) if interceptor else calls
    options = OPTIONS.model_copy(update={"upload_part_bytes": 1 << 20})
    return Process("s3://model/base", lambda url, _options: S3Store(url, options, calls=seen))


def left(calls: ModelCalls) -> list[str]:
    """The keys of the objects of a staging file whose sink has died."""
    return [f"base/{path}" for path in leave_a_staging_file(process(calls), random.Random(4), 200)]


def finished(calls: ModelCalls) -> list[str]:
    """What readers see."""
    return [path for path in calls.picture().finished() if path.endswith(".parquet")]


@pytest.mark.usefixtures("_read_one_by_one")
@PLACES
@pytest.mark.fault("F7")
def test_a_staging_file_that_has_lost_any_object_stops_the_start(place: int) -> None:
    """By name; whichever object it is. Who accepts that gives the staging file up, and nothing waits any more."""
    calls = ModelCalls(AWS)
    calls.delete(left(calls)[place])
    with pytest.raises(PartMissing, match=r"(?s)'life' at .*side object .* is not there"):
        start(process(calls), process(calls))
    report = start(process(calls), process(calls), gives_up=True)
    assert (report.given_up, report.encoded) == (1, 0)
    assert not process(calls).owes()
    assert finished(calls) == []


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.usefixtures("_read_one_by_one")
@PLACES
@pytest.mark.parametrize(
    "harm", [flipped, lambda data: data[:-1], lambda data: data + b"x"], ids=["bit", "less", "more"]
)
@pytest.mark.fault("F18")
def test_a_staging_file_with_a_changed_object_is_damaged_and_not_given_up(
    place: int, harm: Callable[[bytes], bytes]
) -> None:
    """As on a local disk. Once what was written is back, every row comes."""
    calls = ModelCalls(AWS)
    key = left(calls)[place]
    written = calls.get(key, 1 << 20)
    calls.put(key, harm(written), {}, if_absent=False)
    for gives_up in (False, True):
        with pytest.raises(PartDamaged, match=r"(?s)is damaged: side object .* is not what was written"):
            start(process(calls), process(calls), gives_up=gives_up)
    assert process(calls).owes()
    calls.put(key, written, {}, if_absent=False)
    assert start(process(calls), process(calls), gives_up=True).encoded == 1
    assert len(finished(calls)) == 1


@pytest.mark.usefixtures("_read_one_by_one")
@PLACES
def test_an_object_that_only_a_worker_misses_is_not_given_up(place: int, caplog: pytest.LogCaptureFixture) -> None:
    """R13: its view is another one; the staging file is tried again, and every row comes.

    The coordinator reads one object.
    """
    calls = ModelCalls(AWS)
    key = left(calls)[place]
    blind = ModelCalls(AWS, calls.picture())
    blind.delete(key)
    asked = Recorder({"head", "get"})
    with caplog.at_level(logging.WARNING, "partfile"):
        report = start(process(calls, asked), process(blind), gives_up=True)
    assert (report.given_up, report.encoded) == (0, 0)
    assert "missed by the worker that was to encode it, and is there" in caplog.text
    of_sides = [call.name for call in asked.calls if "/_sides/" in str(call.arguments[0])]
    assert of_sides == ["head"] * OBJECTS + ["get"]
    assert start(process(calls), process(calls), gives_up=True).encoded == 1
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


@pytest.mark.usefixtures("_read_one_by_one")
def test_a_server_that_does_not_answer_the_coordinator_loses_nothing() -> None:
    """Gone is only what a server says is not there: nothing is given up, and nothing stops."""
    calls, away = ModelCalls(AWS), Away()
    calls.delete(left(calls)[0])
    report = start(process(calls, away), process(calls), gives_up=True)
    assert away.asked > 0
    assert (report.given_up, report.encoded) == (0, 0)
    assert process(calls).owes()
    assert start(process(calls), process(calls), gives_up=True).given_up == 1
