"""Stages on a model of S3: an object that has changed is told, and so is a stage of other bytes than was written."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from s3_model import ModelCalls
from s3_worlds import AWS, OPTIONS, make_small

from partfile.errors import PartDamaged
from partfile.sink.encode import encode_stage
from partfile.sink.operator import ActivePart
from partfile.sink.states import OpenPart, Stage
from partfile.stores.s3.handle import S3Staging, side_path
from partfile.stores.s3.store import S3Store
from partfile.testing.store import new_stage
from partfile.writers import arrow_stage
from partfile.writers.arrow_stage import StageFormat

pytestmark = pytest.mark.fault("S18")


@pytest.fixture(autouse=True, params=["short", "long"])
def _length(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short stages are compared in memory, long ones where they are."""
    if request.param == "long":
        monkeypatch.setattr(arrow_stage, "MOST_WHOLE_BYTES", 0)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


def rows(first: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": range(first, first + 50), "s": [f"text {n}" for n in range(50)]})


def shared_rows(first: int) -> pa.RecordBatch:
    """The same as they lie in a stage that two buckets share."""
    return rows(first).append_column("bucket", pa.array(["a", "b"] * 25, pa.large_string()))


def staged(store: S3Store, persists: int, *, shared: bool = False) -> OpenPart:
    """A stage that was persisted so often, and resumed each time."""
    stage, make = Stage(recipe={"format": "parquet"}, crc32=0, shared=shared), shared_rows if shared else rows
    part = OpenPart(
        part=new_stage("" if shared else "day=1"),
        count=0,
        schema_fingerprint="",
        generation=1,
        created_at_ms=0,
        last_write_ms=0,
        rows=0,
        stage=stage,
    )
    active = ActivePart(store.create(part.part), StageFormat(), make(0).schema, part)
    for number in range(persists):
        active.write(make(50 * number), 0)
        part = active.suspend()
        active = ActivePart(store.resume(part.part), StageFormat(), make(0).schema, part)
    active.close()
    return part


def encode(store: S3Store, part: OpenPart, **stage: int) -> bytes:
    """What a stage becomes once it is published."""
    assert part.stage is not None
    (file,) = encode_stage(store, part.part, part.stage.model_copy(update=stage), part.rows)
    store.publish(file.part, "auto")
    return store.read_file(file.part.path_of(file.part.name), 1 << 20)


def test_a_stage_of_many_objects_is_encoded() -> None:
    """Its checksum went on over each restore and over what was merged."""
    with S3Store("s3://model/base", OPTIONS, calls=ModelCalls(AWS)) as store:
        part = staged(store, 9)
        assert pq.read_table(pa.BufferReader(encode(store, part)))["n"].to_pylist() == list(range(450))


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


@pytest.mark.parametrize("shared", [False, True])
def test_objects_of_another_stage_are_told(*, shared: bool) -> None:
    """Each is whole, and yet together they are not what was written: nothing but the stage's own checksum knows."""
    calls = ModelCalls(AWS)
    with S3Store("s3://model/base", OPTIONS, calls=calls) as store:
        part = staged(store, 3, shared=shared)
        assert part.stage is not None
        assert part.stage.crc32 is not None
        before = calls.picture()
        with pytest.raises(PartDamaged, match="is not what was written: the CRC-32"):
            encode(store, part, crc32=part.stage.crc32 ^ 1)
        assert calls.picture() == before
        assert sum(file.rows for file in encode_stage(store, part.part, part.stage, part.rows)) == 150
