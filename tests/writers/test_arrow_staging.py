"""Arrow staging files: each persisted length reads back, checksums, held batches, few writes."""

from __future__ import annotations

import gc
import io
import zlib
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partfile.errors import PartDamaged, UnsupportedTypeError
from partfile.writers.arrow_staging import (
    ChecksummedStream,
    HeldRows,
    StagingFormat,
    StreamFile,
    check_staging_file,
    read_staging_file,
    weight,
)
from partfile.writers.parquet import ParquetFormat

if TYPE_CHECKING:
    import random


# Staging files: each length that a persist returned reads back, can be continued, and nothing else passes for one.

_SCHEMA = pa.schema(
    [pa.field("n", pa.int64(), nullable=False), pa.field("s", pa.string(), metadata={"mark": "1"})], {"all": "2"}
)


def _batch(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(numbers, pa.int64()), pa.array([str(n) for n in numbers])], schema=_SCHEMA)


def _read(data: bytes, length_bytes: int | None = None) -> pa.Table:
    schema, batches = read_staging_file(io.BytesIO(data), len(data) if length_bytes is None else length_bytes)
    return pa.Table.from_batches(batches, schema)


def test_every_persisted_length_reads_back(memory_part: Any) -> None:
    """Random writes, persists and reopenings leave the rows before each persist, and no more, at its length."""

    @given(st.lists(st.sampled_from(["write", "empty", "persist", "reopen"]), max_size=20))
    def check(steps: list[str]) -> None:
        part = memory_part()
        writer = StagingFormat().open(part, _SCHEMA)
        written: list[int] = []
        persisted = [(writer.persist(), 0)]
        for number, step in enumerate(steps):
            if step in {"write", "empty"}:
                rows = range(number if step == "write" else 0)
                writer.write(_batch(*rows))
                written += rows
            else:
                persisted.append((writer.persist(), len(written)))
                assert persisted[-1][0] == part.position
                writer = StagingFormat().open(part, _SCHEMA) if step == "reopen" else writer
        writer.close()
        persisted.append((part.position, len(written)))
        for length, rows_then in persisted:
            table = _read(bytes(part.data), length)
            assert table["n"].to_pylist() == written[:rows_then]
            assert table["s"].to_pylist() == [str(n) for n in written[:rows_then]]
            assert table.schema.equals(_SCHEMA, check_metadata=True)

    check()


def test_arrow_itself_reads_a_staging_file(memory_part: Any) -> None:
    """A staging file that two processes wrote is an Arrow IPC stream to any reader, with LZ4 buffers."""
    part = memory_part()
    for start in (0, 5000):
        writer = StagingFormat().open(part, _SCHEMA)
        writer.write(_batch(*range(start, start + 5000)))
        writer.persist()
    assert pa.ipc.open_stream(bytes(part.data)).read_all()["n"].to_pylist() == list(range(10_000))
    assert part.position < 0.8 * _batch(*range(10_000)).nbytes


def test_a_persist_without_rows_adds_nothing(memory_part: Any) -> None:
    """Neither a second persist nor an empty batch nor a writer that goes on adds a byte."""
    part = memory_part()
    writer = StagingFormat().open(part, _SCHEMA)
    assert writer.persist() == _SCHEMA.serialize().size
    writer.write(_batch(1))
    length = writer.persist()
    writer.write(_batch())
    assert writer.persist() == length
    StagingFormat().open(part, _SCHEMA).close()
    assert part.position == length


def test_small_slices_become_large_messages(memory_part: Any) -> None:
    """Slices between two persists share messages; a batch larger than a message is cut into several."""
    part = memory_part()
    writer = StagingFormat().open(part, _SCHEMA)
    for at in range(1000):
        writer.write(_batch(at))
    writer.persist()
    writer.write(_batch(*range(500_000)))
    writer.persist()
    sizes = [batch.num_rows for batch in read_staging_file(io.BytesIO(part.data), part.position)[1]]
    assert sizes[0] == 1000
    assert sum(sizes) == 501_000
    assert 10_000 < max(sizes[1:]) <= 65_536
    assert max(sizes[1:]) - min(sizes[1:]) < len(sizes)


def test_a_held_slice_does_not_keep_its_batch(memory_part: Any) -> None:
    """One row of each batch for a rare bucket takes the memory of these rows, not of the batches."""
    writer = StagingFormat().open(memory_part(), _SCHEMA)
    before = pa.total_allocated_bytes()
    for at in range(20):
        writer.write(_batch(*range(50_000)).slice(at, 1))
    assert pa.total_allocated_bytes() - before < 100_000


def test_many_small_slices_are_joined(memory_part: Any) -> None:
    """A slice of one row costs a hundred times its own bytes while it is held, so slices are joined."""
    part = memory_part()
    writer = StagingFormat().open(part, _SCHEMA)
    before = pa.total_allocated_bytes()
    for at in range(5000):
        writer.write(_batch(at))
    assert pa.total_allocated_bytes() - before < 300_000
    writer.persist()
    assert _read(bytes(part.data))["n"].to_pylist() == list(range(5000))


def test_a_writer_that_is_given_up_writes_nothing_more(memory_part: Any) -> None:
    """Once a writer is dropped without a persist, no byte reaches its staging file from the collector."""
    part = memory_part()
    writer = StagingFormat().open(part, _SCHEMA)
    writer.write(_batch(1))
    before = part.position
    del writer
    gc.collect()
    assert part.position == before


def _staging_file(memory_part: Any) -> tuple[bytes, set[int]]:
    """A staging file, and the lengths at which it is whole."""
    part = memory_part()
    writer = StagingFormat().open(part, _SCHEMA)
    whole = {writer.persist()}
    for at in range(3):
        writer.write(_batch(at, at + 1))
        whole.add(writer.persist())
    return bytes(part.data), whole


def test_a_length_within_a_message_is_refused(memory_part: Any) -> None:
    """Each length that is not the end of a message is damage, wherever the file itself ends, and whole ones are not."""
    data, whole = _staging_file(memory_part)
    for length in range(len(data) + 1):
        for file in (data, data[:length]):
            if length in whole:
                _read(file, length)
            else:
                with pytest.raises(PartDamaged, match=f"valid length of {length} bytes: after byte"):
                    _read(file, length)


def test_a_file_that_is_shorter_than_its_valid_length_is_refused(memory_part: Any) -> None:
    """A staging file that lost its end is damaged even where what is left is whole."""
    data, whole = _staging_file(memory_part)
    for length in whole - {len(data)}:
        with pytest.raises(PartDamaged, match="ends before its valid length"):
            _read(data[:length], len(data))


def test_what_is_no_staging_file_is_refused(memory_part: Any) -> None:
    """Other bytes, an end mark in the middle and zeros after a crash of the disk are damage."""
    data, _ = _staging_file(memory_part)
    end_mark = b"\xff\xff\xff\xff\0\0\0\0"
    cut = _SCHEMA.serialize().size
    for broken in (b'{"n":1}\n' * 40, bytes(400), data[:cut] + end_mark + data[cut:], data + end_mark, data[cut:]):
        with pytest.raises(PartDamaged):
            _read(broken)


def test_what_comes_after_the_valid_length_is_never_read(memory_part: Any) -> None:
    """A zombie may have added half a message, and the reader does not ask for a byte of it."""
    data, _ = _staging_file(memory_part)
    file = io.BytesIO(data + data[-50:])
    schema, batches = read_staging_file(file, len(data))
    assert pa.Table.from_batches(batches, schema).num_rows == 6
    assert file.tell() == len(data)


def test_a_staging_file_is_read_message_by_message(memory_part: Any) -> None:
    """Reading holds one message, not the staging file, and asks for no more than it gives."""
    part = memory_part()
    writer = StagingFormat().open(part, _SCHEMA)
    for at in range(50):
        writer.write(_batch(*range(at, at + 50_000)))
        writer.persist()
    file = io.BytesIO(part.data)
    before = pa.total_allocated_bytes()
    _, batches = read_staging_file(file, part.position)
    next(batches)
    assert file.tell() < part.position / 20
    most = max(pa.total_allocated_bytes() for _ in batches)
    assert most - before < 5_000_000


def test_a_failure_of_storage_is_not_damage(memory_part: Any) -> None:
    """A store that cannot read says so itself, and the staging file is not blamed; short reads are no end."""
    data, _ = _staging_file(memory_part)
    failure: Exception = OSError(5, "gone")

    class Flaky(io.BytesIO):
        def read(self, size_bytes: int | None = -1, /) -> bytes:
            if self.tell() > 300:
                raise failure
            return super().read(min(size_bytes or 0, 7))

    with pytest.raises(OSError, match="gone"):
        list(read_staging_file(Flaky(data), len(data))[1])
    _, batches = read_staging_file(Flaky(data[:300]), _SCHEMA.serialize().size)
    assert list(batches) == []


_WORDS = pa.dictionary(pa.int8(), pa.string())


@pytest.mark.parametrize(
    ("kind", "plain", "values"),
    [
        (_WORDS, pa.string(), ["a", None, "b", "a"]),
        (pa.string_view(), pa.large_string(), ["a", None, "b" * 50, "a"]),
        (pa.binary_view(), pa.large_binary(), [b"a", None, b"b" * 50, b""]),
        (pa.list_(_WORDS), pa.list_(pa.string()), [["a"], None, ["b", None], []]),
        (pa.struct({"x": _WORDS}), pa.struct({"x": pa.string()}), [{"x": "a"}, None, {"x": None}, {"x": "c"}]),
        (pa.struct({"x": _WORDS}), pa.struct({"x": pa.string()}), [None] * 4),
        (pa.list_(pa.struct({"x": _WORDS})), pa.list_(pa.struct({"x": pa.string()})), [[None], None, [], [None]]),
        (pa.map_(_WORDS, _WORDS), pa.map_(pa.string(), pa.string()), [[("a", "b")], None, [], [("c", None)]]),
        (pa.month_day_nano_interval(), pa.month_day_nano_interval(), [None, (1, 2, 3), None, None]),
        (pa.null(), pa.null(), [None] * 4),
    ],
)
def test_dictionaries_and_views_are_staged_as_their_values(
    kind: pa.DataType, plain: pa.DataType, values: list[Any], memory_part: Any
) -> None:
    """Values and nulls stay; the type becomes plain, so that no message depends on another, nor on a parent's text."""
    schema = pa.schema({"c": kind})
    StagingFormat().check(schema)
    part = memory_part()
    writer = StagingFormat().open(part, schema)
    batch = pa.record_batch([pa.array(values, kind)], schema=schema)
    writer.write(batch)
    writer.write(batch.slice(1, 2))
    writer.persist()
    table = _read(bytes(part.data))
    assert table["c"].type == plain
    assert table["c"].to_pylist() == values + values[1:3]


def test_run_ends_are_staged_as_their_values(memory_part: Any) -> None:
    """Run-end encoded columns, which Parquet does not know, become plain."""
    runs: Any = pa.RunEndEncodedArray.from_arrays(pa.array([2, 4], pa.int32()), pa.array(["a", None]))
    batch = pa.record_batch([runs], names=["c"])
    part = memory_part()
    writer = StagingFormat().open(part, batch.schema)
    writer.write(batch.slice(1, 2))
    writer.persist()
    assert _read(bytes(part.data)).to_pydict() == {"c": ["a", None]}


def test_what_arrow_cannot_hold_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The column at fault is named; Arrow takes every type today, so one is made that it does not take."""

    def refuse(_self: object) -> None:
        raise pa.ArrowNotImplementedError("no such type")

    monkeypatch.setattr("partfile.writers.arrow_staging.StagingWriter.close", refuse)
    with pytest.raises(UnsupportedTypeError, match="'c' of type int8 cannot be staged: no such type"):
        StagingFormat().check(pa.schema({"c": pa.int8()}))


def test_a_staging_file_has_no_suffix_and_can_be_continued() -> None:
    """A staging file is never published, so nothing looks for its suffix; equal formats are equal."""
    assert (StagingFormat().suffix, StagingFormat().appendable) == ("", True)
    assert StagingFormat() == StagingFormat()


# The checksum of a staging file: kept while it is written, over every restore, and compared when it is read.

_CHECKED_SCHEMA = pa.schema({"n": pa.int64(), "s": pa.string()})


def _checked_batch(first: int, count: int) -> pa.RecordBatch:
    numbers = range(first, first + count)
    return pa.RecordBatch.from_pydict({"n": numbers, "s": [str(n) for n in numbers]}, schema=_CHECKED_SCHEMA)


def _checked_staging_file(memory_part: Any, persists: int = 3) -> bytes:
    part = memory_part()
    writer = StagingFormat().open(part, _CHECKED_SCHEMA)
    for number in range(persists):
        writer.write(_checked_batch(2 * number, 2))
        writer.persist()
    return bytes(part.data)


@pytest.mark.fault("F18")
def test_each_changed_bit_is_told_before_anything_is_decoded(memory_part: Any) -> None:
    """Arrow would follow a damaged offset to anywhere; what is as it was written passes, whatever comes after it."""
    data = _checked_staging_file(memory_part)
    crc32 = zlib.crc32(data)
    check_staging_file(io.BytesIO(data + b"tail"), len(data), crc32)
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(PartDamaged, match="is not what was written: the CRC-32"):
            check_staging_file(io.BytesIO(damaged), len(data), crc32, "the/staging file")
    with pytest.raises(PartDamaged, match=r"(?s)'the/staging file'.*the file ends"):
        check_staging_file(io.BytesIO(data[:-1]), len(data), crc32, "the/staging file")


@pytest.mark.fault("F18")
def test_a_checksum_is_compared_after_the_last_batch(memory_part: Any) -> None:
    """Every row has been read by then: a wrong one is told, and a right one costs no second pass."""
    data = _checked_staging_file(memory_part)
    for wrong in (0, 1):
        schema, batches = read_staging_file(io.BytesIO(data), len(data), "the/staging file", zlib.crc32(data) ^ wrong)
        seen: list[int] = []
        if wrong:
            with pytest.raises(PartDamaged, match="'the/staging file' is not what was written"):
                seen.extend(batch.num_rows for batch in batches)
        else:
            seen.extend(batch.num_rows for batch in batches)
            assert seen == [2, 2, 2]
        assert schema == _CHECKED_SCHEMA


@pytest.mark.fault("F18")
def test_a_checksum_goes_on_from_its_value_alone(memory_part: Any) -> None:
    """Three writers, each of which knows only what the one before it said, have that of all the bytes."""
    part, crc32 = memory_part(), 0
    for first in range(0, 90_000, 30_000):
        stream = ChecksummedStream(part, crc32)
        writer = StagingFormat().open(stream, _CHECKED_SCHEMA)
        writer.write(_checked_batch(first, 30_000))
        assert writer.persist() == stream.position == part.position
        crc32 = stream.crc32
        assert crc32 == zlib.crc32(bytes(part.data))


# Batches that are held until they are enough: what they weigh besides their rows is bounded, too.

MANY = 1 << 30
WIDE = pa.schema([(f"c{number}", pa.null() if number % 2 else pa.bool_()) for number in range(1000)])


def _wide(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(rows, column.type) for column in WIDE], schema=WIDE)


def test_a_batch_weighs_something_for_each_column() -> None:
    """A thousand columns of nothing take a megabyte in memory."""
    assert weight(_wide(0)) == 1000 << 10
    assert weight(_wide(80)) == (1000 << 10) + 500 * 20


@pytest.mark.parametrize(("schema", "most"), [(WIDE, 8), (pa.schema([("row", pa.int64())]), 256)])
def test_small_batches_are_joined_before_they_weigh_much(schema: pa.Schema, most: int) -> None:
    """Few of many columns, and more of few; the rows come back as they were."""
    held = HeldRows(schema, MANY, MANY)
    one = pa.RecordBatch.from_arrays([pa.nulls(1, column.type) for column in schema], schema=schema)
    for _ in range(300):
        assert not held.add(one)
        assert len(held._batches) <= most
    table = held.take()
    assert table.num_rows == 300
    assert table.schema == schema


def test_rows_that_weigh_more_than_their_columns_are_not_copied() -> None:
    """However many batches they are in."""
    one = pa.record_batch({"text": ["x" * 10_000]})
    held = HeldRows(one.schema, MANY, MANY)
    for _ in range(500):
        held.add(one)
    assert len(held._batches) == 500


def test_dictionaries_that_do_not_fit_into_one_stay_apart() -> None:
    """Their batches are held as they came, and none is lost."""
    indices = pa.array(range(40), pa.int8())
    batches = [
        pa.record_batch({"word": pa.DictionaryArray.from_arrays(indices, [f"{number}-{i}" for i in range(40)])})
        for number in range(400)
    ]
    held = HeldRows(batches[0].schema, MANY, MANY)
    for one in batches:
        held.add(one)
    words = [word for chunk in held.take()["word"].chunks for word in chunk.to_pylist()]
    assert words == [f"{number}-{i}" for number in range(400) for i in range(40)]


# What Arrow writes in small pieces reaches the stream in few, whole and in order, and only when it may.


class _Stream:
    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    @property
    def position(self) -> int:
        return sum(map(len, self.pieces))

    def write(self, data: bytes | memoryview) -> None:
        self.pieces.append(bytes(data))


def test_small_and_large_pieces_arrive_whole_and_in_order(rng: random.Random) -> None:
    """Whatever the sizes, the stream has all bytes in order at the end of each block, and tell() knew it before."""
    stream, expected = _Stream(), bytearray()
    file = StreamFile(stream)
    for _ in range(20):
        with file.passing():
            for _ in range(rng.randrange(10)):
                piece = rng.randbytes(rng.choice([1, 100, 100_000, 300_000]))
                assert file.write(piece) == len(piece)
                expected += piece
                assert file.tell() == len(expected)
        assert b"".join(stream.pieces) == expected


def test_nothing_arrives_outside_a_block_or_of_one_that_failed() -> None:
    """A file that is collected as garbage, or whose row group failed, adds nothing to the part."""
    stream = _Stream()
    file = StreamFile(stream)
    assert file.write(b"too early") == 9

    def fail() -> None:
        with file.passing():
            file.write(b"half")
            raise OSError("no")

    with pytest.raises(OSError, match="no"):
        fail()
    file.write(b"too late")
    assert stream.pieces == []


def test_a_small_parquet_file_is_a_few_writes() -> None:
    """Each write is a system call: a small file with many columns is not written page by page."""
    rows = pa.record_batch({f"c{number}": [1, 2, 3] for number in range(50)})
    stream = _Stream()
    ParquetFormat().encode([rows], rows.schema, stream)
    assert len(stream.pieces) <= 4
    assert pq.read_table(pa.BufferReader(b"".join(stream.pieces))).to_batches()[0].equals(rows)
