"""Files of Avro as Arrow: those that others wrote too, with values that Python has not, and damaged ones."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pytest

import partfile as pf
from partfile.errors import ConfigError, PartDamaged, UnsupportedTypeError
from partfile.readers import avro as avro_file
from partfile.readers import dataset
from partfile.readers import dataset as arrow_files
from partfile.readers.avro import AvroFile
from partfile.writers.avro import AvroFormat

if TYPE_CHECKING:
    from pathlib import Path


class Part(bytearray):
    """A part in memory."""

    position = property(bytearray.__len__)
    write = bytearray.extend


def written(batch: pa.RecordBatch, **options: Any) -> bytes:
    """The file that a sink makes of some rows."""
    part: Any = Part()
    writer = AvroFormat(**options).open(part, batch.schema)
    writer.write(batch)
    writer.close()
    return bytes(part)


def read(data: bytes) -> pa.Table:
    # As stores open files: they know no negative size.
    file = AvroFile(io.BufferedReader(io.BytesIO(data)), "x.avro")
    return pa.Table.from_batches(file.batches(), file.schema)


def foreign(fields: list[Any], rows: list[dict[str, Any]], **more: Any) -> bytes:
    """A file that fastavro wrote."""
    target = io.BytesIO()
    schema = {"type": "record", "name": "Row", "namespace": "some.where", "fields": fields, **more}
    fastavro.writer(target, schema, rows)
    return target.getvalue()


def ticks(kind: Any, *values: int | None) -> Any:
    held = pa.int32() if kind.bit_width == 32 else pa.int64()
    return pa.array(values, held).view(kind)


def test_values_beyond_pythons_are_kept() -> None:
    """Dates, instants and spans over the whole range of their types, nanoseconds, and keys that occur twice."""
    ends = (-(2**63), 2**63 - 1, None)
    columns = {
        "day": ticks(pa.date32(), -(2**31), 2**31 - 1, None),
        **{f"at_{unit}": ticks(pa.timestamp(unit, "UTC"), *ends) for unit in ("ms", "us", "ns")},
        **{f"local_{unit}": ticks(pa.timestamp(unit), *ends) for unit in ("ms", "us", "ns")},
        "span": ticks(pa.duration("us"), *ends),
        "tags": pa.array([[("a", 1), ("b", None), ("a", 2)], [], None], pa.map_(pa.string(), pa.int64())),
        "times": pa.array([[("a", [None, 1])], None, []], pa.map_(pa.string(), pa.list_(pa.timestamp("ns")))),
        "huge": pa.array([None, "-1", "9" * 76]).cast(pa.decimal256(76, 0)),
    }
    batch = pa.record_batch(columns)
    for codec in ("none", "deflate", "snappy", "zstd"):
        table = read(written(batch, compression=codec))
        assert table.schema.equals(batch.schema)
        table.validate(full=True)
        assert table.equals(pa.Table.from_batches([batch]))


def test_many_blocks_become_few_batches() -> None:
    """Small blocks are put together, and a large one is not cut."""
    part: Any = Part()
    batch = pa.record_batch({"n": pa.array(range(10_000), pa.int64())})
    writer = AvroFormat(block_bytes=64).open(part, batch.schema)
    writer.write(batch)
    writer.close()
    file = AvroFile(io.BytesIO(part), "x.avro")
    batches = list(file.batches())
    assert [4096 <= len(each) < 4096 + 64 for each in batches] == [True, True, False]
    assert [number for each in batches for number in each["n"].to_pylist()] == list(range(10_000))
    assert read(written(batch.slice(0, 0))).equals(batch.schema.empty_table())


def test_files_of_others_are_read() -> None:
    """Named types that are used again, enumerations, decimals of any length, nulls in the second place."""
    point = {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "double"}]}
    fields = [
        {"name": "a", "type": point},
        {"name": "b", "type": [{"type": "map", "values": "Point"}, "null"]},
        {"name": "c", "type": {"type": "array", "items": ["some.where.Point", "null"]}},
        {"name": "d", "type": {"type": "enum", "name": "Suit", "symbols": ["HEARTS", "SPADES"]}},
        {"name": "e", "type": {"type": "fixed", "name": "Two", "size": 2}},
        {"name": "f", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
        {"name": "g", "type": ["null"]},
        {"name": "h", "type": {"type": "string", "logicalType": "uuid"}},
    ]
    rows: list[dict[str, Any]] = [
        {
            "a": {"x": 0.5},
            "b": {"k": {"x": float(at)}} if at else None,
            "c": [None, {"x": 1.0}],
            "d": "SPADES",
            "e": b"ab",
            "f": number,
            "g": None,
            "h": "6ecd8c99-4036-403d-bf84-cf8400f67836",
        }
        for at, number in enumerate(pa.array(["-1.05", "0.00", "9999999999.99"]).cast(pa.decimal128(12, 2)).to_pylist())
    ]
    table = read(foreign(fields, rows))
    struct = pa.struct([pa.field("x", pa.float64(), nullable=False)])
    kinds = {
        "a": struct,
        "b": pa.map_(pa.string(), pa.field("value", struct, nullable=False)),
        "c": pa.list_(struct),
        "d": pa.string(),
        "e": pa.binary(2),
        "f": pa.decimal128(12, 2),
        "g": pa.null(),
        "h": pa.string(),
    }
    assert table.schema.types == list(kinds.values())
    assert [field.name for field in table.schema if field.nullable] == ["b", "g"]
    expected = [{**row, "b": row["b"] and list(row["b"].items())} for row in rows]
    assert table.to_pylist() == expected


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ([{"name": "u", "type": ["null", "int", "string"]}], "'u' .* a union of int, string has no Arrow type at 'u'"),
        ([{"name": "l", "type": {"type": "array", "items": ["int", "long"]}}], "'l' .* at 'l.item'"),
        ([{"name": "next", "type": ["null", "Row"]}], "'next' .* holds itself, some.where.Row"),
    ],
)
def test_columns_that_arrow_has_not_are_refused_by_name(fields: list[Any], words: str) -> None:
    """A union of several types, and a type that holds itself, are no columns."""
    with pytest.raises(UnsupportedTypeError, match=words):
        read(foreign(fields, []))


def test_values_that_are_no_records_are_refused() -> None:
    """They have no columns."""
    target = io.BytesIO()
    fastavro.writer(target, "long", [1])
    with pytest.raises(UnsupportedTypeError, match="no records"):
        read(target.getvalue())


def test_a_file_that_is_cut_is_damaged() -> None:
    """Wherever it ends but behind a whole block, where the rows of that block are there."""
    batch = pa.record_batch({"n": range(40), "s": ["word"] * 40})
    data = written(batch, block_bytes=80, compression="deflate")
    whole, messages = 0, set()
    for length in range(len(data)):
        try:
            table = read(data[:length])
        except PartDamaged as error:
            messages.add(str(error)[:30])
        else:
            whole += 1
            assert table["n"].to_pylist() == list(range(table.num_rows))
    assert messages == {"'x.avro' is not a whole Avro file: "[:30]}
    assert whole == len(list(fastavro.block_reader(io.BytesIO(data))))


@pytest.mark.parametrize("codec", ["none", "deflate", "snappy", "zstd"])
def test_any_damage_has_one_error(codec: str) -> None:
    """A byte that is changed is damage or other values; no decoder's own error gets out."""
    data = written(pa.record_batch({"n": range(30), "s": ["w"] * 30}), compression=codec)
    for at in range(len(data)):
        broken = bytearray(data)
        broken[at] ^= 0xFF
        try:
            read(bytes(broken))
        except (PartDamaged, UnsupportedTypeError):
            continue


@pytest.mark.parametrize("codec", ["none", "deflate", "snappy", "zstd"])
def test_a_count_that_is_changed_is_damage(codec: str) -> None:
    """Whichever of its bits: a block has all of its rows, or the file is refused."""
    data = written(pa.record_batch({"n": range(100), "s": ["w"] * 100}), compression=codec)
    at = next(fastavro.block_reader(io.BytesIO(data))).offset
    assert (data[at : at + 2]) == _number(100)
    for bit in range(16):
        broken = bytearray(data)
        broken[at + bit // 8] ^= 1 << bit % 8
        with pytest.raises(PartDamaged):
            read(bytes(broken))


@pytest.mark.parametrize("length", [-2, -(2**40), 2**40, 2**62])
def test_a_length_that_no_file_has_is_damage(length: int) -> None:
    """Neither the store's refusal of a negative size nor a lack of memory gets out, and nothing is allocated."""
    data = written(pa.record_batch({"n": range(30)}), compression="none")
    at = next(fastavro.block_reader(io.BytesIO(data))).offset + len(_number(30))
    old = len(_number(30))
    with pytest.raises(PartDamaged):
        read(data[:at] + _number(length) + data[at + old :])


def _number(value: int) -> bytes:
    """A number as Avro writes it."""
    target = io.BytesIO()
    fastavro.schemaless_writer(target, "long", value)
    return target.getvalue()


def test_a_long_read_is_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that is larger than what is read at once is whole."""
    monkeypatch.setattr(avro_file, "_READ_BYTES", 7)
    batch = pa.record_batch({"n": range(500), "s": ["word"] * 500})
    assert read(written(batch, compression="none")).to_batches()[0].equals(batch)


def test_batches_of_long_rows_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """They end with some bytes too, so that rows of a megabyte stay below what a column of Arrow holds."""
    monkeypatch.setattr(avro_file, "_BATCH_BYTES", 300)
    batch = pa.record_batch({"s": ["x" * 50] * 40})
    read_back = read(written(batch, block_bytes=100, compression="deflate"))
    # The block that goes over the bound is the last one of its batch.
    assert max(one.num_rows for one in read_back.to_batches()) <= (300 + 200) // 50
    assert read_back["s"].to_pylist() == batch["s"].to_pylist()


class Failing(io.BytesIO):
    """A file whose store fails after some bytes."""

    def read(self, size_bytes: int | None = -1) -> bytes:
        """Fail behind the head."""
        if self.tell() > 150:
            raise ConnectionResetError("gone")
        return super().read(size_bytes)


def test_what_storage_says_is_no_damage() -> None:
    """Its own error comes through, as it would from any other file."""
    data = written(pa.record_batch({"n": range(1000)}), compression="none")
    with pytest.raises(ConnectionResetError):
        list(AvroFile(Failing(data), "x.avro").batches())


def test_without_fastavro_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When files of Avro are read, and not before."""
    (tmp_path / "part-0.avro").write_bytes(written(pa.record_batch({"n": [1]})))
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(ConfigError, match="what reads Avro is not installed") as missing:
        pf.read(tmp_path)
    assert "partfile[avro]" in str(missing.value.hint)


WITHOUT_A_CODEC = """
import sys
sys.modules.update(dict.fromkeys(["cramjam", "zstandard", "backports.zstd"]))
import partfile as pf
from partfile.cli.main import main
try:
    pf.read(sys.argv[1]).to_table()
except pf.ConfigError as error:
    print(error)
sys.argv[1:] = ["cat", sys.argv[1], "part-0.avro"]
main()
"""


@pytest.mark.parametrize(("codec", "name"), [("snappy", "snappy"), ("zstd", "zstandard")])
def test_a_codec_that_is_not_installed_is_no_damage(tmp_path: Path, codec: str, name: str) -> None:
    """``read`` and ``cat`` name the file and its compression, and the command that installs what reads it."""
    (tmp_path / "part-0.avro").write_bytes(written(pa.record_batch({"n": [1]}), compression=codec))
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_A_CODEC, str(tmp_path)], capture_output=True, text=True, check=False
    )
    said = f"is compressed with {name}, and what reads that is not installed\nHint: pip install 'fastavro[{name}]'"
    assert re.search(rf"^'.*part-0\.avro' {re.escape(said)}$", done.stdout, flags=re.MULTILINE), done
    assert re.search(rf"^partfile: '.*part-0\.avro' {re.escape(said)}$", done.stderr, flags=re.MULTILINE), done
    assert done.returncode == 2


def test_files_of_several_schemas_are_one_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns that come later and types that were widened; each file is decoded once a scan, and once to be listed."""
    kinds = [pa.schema({"n": pa.int32()}), pa.schema({"n": pa.int64(), "s": pa.string()})]
    (tmp_path / "b=1").mkdir()
    for at, schema in enumerate(kinds * 3):
        batch = pa.RecordBatch.from_pylist([{"n": at, "s": "x"}], schema)
        (tmp_path / "b=1" / f"part-{at}.avro").write_bytes(written(batch))
    decoded: list[str] = []

    class Counting(AvroFile):
        """Notes what is decoded."""

        def as_arrow_file(self) -> pa.Buffer:
            decoded.append(self._path)
            return super().as_arrow_file()

    monkeypatch.setattr(arrow_files, "AvroFile", Counting)
    monkeypatch.setattr(dataset, "AvroFile", Counting)
    found = pf.read(tmp_path)
    assert found.schema.equals(pa.schema({"n": pa.int64(), "s": pa.string(), "b": pa.int32()}))
    assert len(decoded) <= 1
    decoded.clear()
    rows = found.to_table().sort_by("n").to_pylist()
    assert rows == [{"n": at, "s": "x" if at % 2 else None, "b": 1} for at in range(6)]
    assert len(decoded) == 6
