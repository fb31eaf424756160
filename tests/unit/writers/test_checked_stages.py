"""The checksum of a stage: kept while it is written, over every restore, and compared when it is read."""

from __future__ import annotations

import io
import zlib
from typing import Any

import pyarrow as pa
import pytest

from partfile.errors import PartDamaged
from partfile.writers.arrow_stage import ChecksummedStream, StageFormat, check_stage, read_stage

pytestmark = pytest.mark.fault("S18")

_SCHEMA = pa.schema({"n": pa.int64(), "s": pa.string()})


def _batch(first: int, count: int) -> pa.RecordBatch:
    numbers = range(first, first + count)
    return pa.RecordBatch.from_pydict({"n": numbers, "s": [str(n) for n in numbers]}, schema=_SCHEMA)


def _stage(memory_part: Any, persists: int = 3) -> bytes:
    part = memory_part()
    writer = StageFormat().open(part, _SCHEMA)
    for number in range(persists):
        writer.write(_batch(2 * number, 2))
        writer.persist()
    return bytes(part.data)


def test_each_changed_bit_is_told_before_anything_is_decoded(memory_part: Any) -> None:
    """Arrow would follow a damaged offset to anywhere; what is as it was written passes, whatever comes after it."""
    data = _stage(memory_part)
    crc32 = zlib.crc32(data)
    check_stage(io.BytesIO(data + b"tail"), len(data), crc32)
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(PartDamaged, match="is not what was written: the CRC-32"):
            check_stage(io.BytesIO(damaged), len(data), crc32, "the/stage")
    with pytest.raises(PartDamaged, match=r"'the/stage'.*the file ends"):
        check_stage(io.BytesIO(data[:-1]), len(data), crc32, "the/stage")


def test_a_checksum_is_compared_after_the_last_batch(memory_part: Any) -> None:
    """Every row has been read by then: a wrong one is told, and a right one costs no second pass."""
    data = _stage(memory_part)
    for wrong in (0, 1):
        schema, batches = read_stage(io.BytesIO(data), len(data), "the/stage", zlib.crc32(data) ^ wrong)
        seen: list[int] = []
        if wrong:
            with pytest.raises(PartDamaged, match="'the/stage' is not what was written"):
                seen.extend(batch.num_rows for batch in batches)
        else:
            seen.extend(batch.num_rows for batch in batches)
            assert seen == [2, 2, 2]
        assert schema == _SCHEMA


def test_a_checksum_goes_on_from_its_value_alone(memory_part: Any) -> None:
    """Three writers, each of which knows only what the one before it said, have that of all the bytes."""
    part, crc32 = memory_part(), 0
    for first in range(0, 90_000, 30_000):
        stream = ChecksummedStream(part, crc32)
        writer = StageFormat().open(stream, _SCHEMA)
        writer.write(_batch(first, 30_000))
        assert writer.persist() == stream.position == part.position
        crc32 = stream.crc32
        assert crc32 == zlib.crc32(bytes(part.data))
