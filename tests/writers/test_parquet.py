"""Parquet parts that roll at each checkpoint, and the options of their files."""

from __future__ import annotations

import gc
import io
import random
import tempfile
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

from partfile.errors import ConfigError, NotFound, UnsupportedTypeError
from partfile.writers.external_sort import ExternalSort
from partfile.writers.parquet import FEWEST_ROWS, ParquetFormat
from partfile.writers.registry import resolve_format

# Parquet parts that roll at each checkpoint.

_SCHEMA = pa.schema({"n": pa.int64(), "s": pa.string()})


def _batch(start: int, rows: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(range(start, start + rows)), pa.array(["é"] * rows)], schema=_SCHEMA)


def _read(part: Any) -> Any:
    return pq.ParquetFile(io.BytesIO(part.data))


def test_many_slices_become_few_row_groups(memory_part: Any) -> None:
    """Small batches are held back, so row groups have the size that was asked for, and rows keep their order."""
    part = memory_part()
    writer = ParquetFormat(row_group_rows=1000).open(part, _SCHEMA)
    for at in range(250):
        writer.write(_batch(at * 10, 10))
    writer.close()
    file = _read(part)
    assert [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)] == [1000, 1000, 500]
    assert file.read()["n"].to_pylist() == list(range(2500))
    assert file.schema_arrow.equals(_SCHEMA)


def test_bytes_end_a_row_group_too(memory_part: Any) -> None:
    """Memory is bounded by bytes: a row group is written as soon as its rows weigh enough."""
    part = memory_part()
    writer = ParquetFormat(row_group_bytes=1000).open(part, _SCHEMA)
    empty = part.position
    writer.write(_batch(0, 200))
    assert part.position > empty
    writer.write(_batch(200, 200))
    writer.close()
    assert _read(part).num_row_groups == 2


def test_a_held_slice_does_not_keep_its_batch(memory_part: Any) -> None:
    """One row of each batch for a rare bucket takes the memory of these rows, not of the batches."""
    writer = ParquetFormat().open(memory_part(), _SCHEMA)
    before = pa.total_allocated_bytes()
    for at in range(20):
        writer.write(_batch(at, 50_000).slice(at, 1))
    assert pa.total_allocated_bytes() - before < 100_000
    writer.close()


def test_a_part_of_no_rows_is_a_file_all_the_same(memory_part: Any) -> None:
    """Closing without a row writes schema and footer."""
    part = memory_part()
    writer = ParquetFormat().open(part, _SCHEMA)
    writer.write(_batch(0, 0))
    writer.close()
    assert _read(part).read().equals(_SCHEMA.empty_table())


@pytest.mark.parametrize("codec", ["snappy", "zstd", "gzip", "lz4", "brotli", "none"])
def test_the_codec_is_passed_on(codec: str, memory_part: Any) -> None:
    """Pages are compressed as asked, and the suffix stays what readers look for."""
    part = memory_part()
    form = ParquetFormat(compression=codec)
    writer = form.open(part, _SCHEMA)
    writer.write(_batch(0, 10))
    writer.close()
    column = _read(part).metadata.row_group(0).column(0)
    assert column.compression == {"none": "UNCOMPRESSED"}.get(codec, codec.upper())
    assert form.suffix == ".parquet"


def test_a_part_cannot_be_persisted_half_way(memory_part: Any) -> None:
    """The format says that it is not appendable, and its writer refuses a persist rather than promise a broken file."""
    assert not ParquetFormat().appendable
    writer = ParquetFormat().open(memory_part(), _SCHEMA)
    with pytest.raises(ConfigError, match="persisted"):
        writer.persist()
    writer.close()


def test_types_that_parquet_lacks_are_refused_by_name() -> None:
    """The column at fault is named, not the file."""
    schema = pa.schema({"ok": pa.int8(), "bad": pa.month_day_nano_interval()})
    with pytest.raises(UnsupportedTypeError, match="'bad' of type month_day_nano_interval"):
        ParquetFormat().check(schema)
    with pytest.raises(UnsupportedTypeError, match="at least one column"):
        ParquetFormat().check(pa.schema([]))
    ParquetFormat().check(_SCHEMA)


@pytest.mark.parametrize("options", [{"compression": "lzo"}, {"row_group_rows": 0}, {"row_group_bytes": 0}])
def test_useless_options_are_refused(options: dict[str, Any]) -> None:
    """An unknown codec and empty row groups are refused at once."""
    with pytest.raises(ConfigError):
        ParquetFormat(**options)


def test_a_whole_file_is_encoded_at_once(memory_part: Any) -> None:
    """Encoding gives the rows of all batches, in row groups of the size asked for, and says how many rows."""
    part = memory_part()
    form = ParquetFormat(row_group_rows=1000)
    assert form.encode((_batch(at * 10, 10) for at in range(250)), _SCHEMA, part) == 2500
    file = _read(part)
    assert [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)] == [1000, 1000, 500]
    assert file.read()["n"].to_pylist() == list(range(2500))
    nothing = memory_part()
    assert form.encode(iter(()), _SCHEMA, nothing) == 0
    assert _read(nothing).read().equals(_SCHEMA.empty_table())


def test_encoding_holds_one_row_group(memory_part: Any) -> None:
    """Memory does not grow with the file: forty megabytes of rows go through row groups of one."""
    most = 0

    def batches() -> Any:
        nonlocal most
        for at in range(400):
            yield _batch(at * 10_000, 10_000)
            most = max(most, pa.total_allocated_bytes() - before)

    before = pa.total_allocated_bytes()
    assert ParquetFormat(row_group_bytes=1 << 20).encode(batches(), _SCHEMA, memory_part()) == 4_000_000
    assert most < 8 << 20


@pytest.mark.slow
def test_a_part_that_is_given_up_gets_no_footer(memory_part: Any) -> None:
    """An error in the middle, or a writer that is dropped, leaves the part as it is: no footer makes it look whole."""
    part = memory_part()

    def broken() -> Any:
        yield _batch(0, 5000)
        raise NotFound("gone")

    with pytest.raises(NotFound):
        ParquetFormat(row_group_rows=1000).encode(broken(), _SCHEMA, part)
    gc.collect()
    assert part.position > 1000
    assert not bytes(part.data).endswith(b"PAR1")
    dropped = memory_part()
    ParquetFormat().open(dropped, _SCHEMA).write(_batch(0, 10))
    gc.collect()
    assert not dropped.data


# Options of Parquet files: what readers can skip by, dictionaries, order within a part, encryption.


def _batch_of_numbers(*numbers: int | None) -> pa.RecordBatch:
    return pa.record_batch([pa.array(numbers, pa.int64()), pa.array([str(n) for n in numbers])], schema=_SCHEMA)


def _encoded(part: Any, batches: list[pa.RecordBatch], **options: Any) -> Any:
    ParquetFormat(**options).encode(batches, batches[0].schema, part)
    return pq.ParquetFile(io.BytesIO(part.data))


def _column(file: Any, at: int) -> Any:
    return file.metadata.row_group(0).column(at)


def test_readers_can_skip_by_default(memory_part: Any) -> None:
    """Statistics, page indexes and dictionaries are there unless they are switched off."""
    batch = _batch_of_numbers(*[number % 10 for number in range(1000)])
    column = _column(_encoded(memory_part(), [batch]), 0)
    assert (column.statistics.min, column.statistics.max) == (0, 9)
    assert column.has_column_index
    assert column.has_offset_index
    assert column.has_dictionary_page
    off = _column(_encoded(memory_part(), [batch], statistics=False, page_index=False, dictionary=False), 0)
    assert off.statistics is None
    assert not off.has_column_index
    assert not off.has_dictionary_page


def test_dictionaries_can_be_chosen(memory_part: Any) -> None:
    """Only the columns that are named have one."""
    file = _encoded(memory_part(), [_batch_of_numbers(1, 1, 2)], dictionary=("s",))
    assert [_column(file, at).has_dictionary_page for at in (0, 1)] == [False, True]


def _text(numbers: list[int]) -> pa.RecordBatch:
    return pa.record_batch({"s": [f"the text of {number}" for number in numbers]})


@pytest.mark.parametrize("rows", [FEWEST_ROWS, 1 << 17])
def test_a_column_whose_values_never_come_again_has_no_dictionary(memory_part: Any, rows: int) -> None:
    """Whether values that do come again lie beside each other or far apart, and whether there are few or many."""
    once = list(range(rows))
    batches = {
        "once": (once, False),
        "twice in all": ([number // 2 for number in random.Random(1).sample(once, rows)], True),
        "four times beside each other": ([number // 4 for number in once], True),
        "far apart": ([number % 1000 for number in once], True),
        "always": ([7] * rows, True),
    }
    for name, (numbers, is_worth_it) in batches.items():
        batch = _text(numbers)
        file = _encoded(memory_part(), [batch])
        assert _column(file, 0).has_dictionary_page is is_worth_it, name
        assert file.read() == pa.Table.from_batches([batch]), name


def test_nulls_are_no_values_that_come_again(memory_part: Any) -> None:
    """A column that is mostly empty is judged by the values that it has."""
    values = [f"the text of {number}" if number % 10 == 0 else None for number in range(1 << 15)]
    batch = pa.record_batch({"s": values, "none": pa.nulls(1 << 15, pa.string())})
    file = _encoded(memory_part(), [batch])
    assert not _column(file, 0).has_dictionary_page
    assert file.read() == pa.Table.from_batches([batch])


def test_fewer_bytes_are_written_where_no_value_comes_again(memory_part: Any) -> None:
    """A dictionary that is given up when it is full has cost its bytes."""
    batch, sizes = _text([number * 7919 % 1_000_003 for number in range(100_000)]), {}
    for dictionary in (True, ("s",)):
        part = memory_part()
        _encoded(part, [batch], dictionary=dictionary)
        sizes[dictionary] = part.position
    assert sizes[True] < sizes["s",]


def test_all_columns_have_one_where_some_are_nested_and_in_short_files(memory_part: Any) -> None:
    """The columns below a nested one have names of their own; few rows cost less than to look at them."""
    numbers = list(range(1 << 15))
    nested = pa.record_batch({"s": [str(number) for number in numbers], "l": [[number] for number in numbers]})
    file = _encoded(memory_part(), [nested])
    assert [_column(file, at).has_dictionary_page for at in (0, 1)] == [True, True]
    assert _column(_encoded(memory_part(), [_text(numbers[: FEWEST_ROWS - 1])]), 0).has_dictionary_page


def test_a_bloom_filter_needs_no_dictionary(memory_part: Any) -> None:
    """It is made for values that never come again as well, which are what it is for."""
    batch, sizes = _text(list(range(1 << 15))), []
    for columns in ((), ("s",)):
        part = memory_part()
        assert not _column(_encoded(part, [batch], bloom_filter_columns=columns), 0).has_dictionary_page
        sizes.append(part.position)
    assert sizes[1] > sizes[0] + (1 << 15)


def test_an_extension_of_a_nested_type_is_nested(memory_part: Any) -> None:
    """Its values lie in a column below it, for which no option asks."""
    numbers = pa.array([[number % 7, 1] for number in range(1 << 15)], pa.list_(pa.int64(), 2))
    kind = pa.fixed_shape_tensor(pa.int64(), (2,))
    batch = pa.record_batch({"t": pa.ExtensionArray.from_storage(kind, numbers)})
    assert _column(_encoded(memory_part(), [batch]), 0).has_dictionary_page


def test_columns_whose_values_arrow_cannot_count_keep_dictionaries(memory_part: Any) -> None:
    """Rows that Arrow writes are written, whether or not it can tell how often their values come."""
    texts = pa.array([f"the text of {number}" for number in range(1 << 15)])
    identities = pa.array([number.to_bytes(16, "big") for number in range(1 << 15)], pa.binary(16))
    columns = {
        "dictionary": texts.dictionary_encode(),
        "identity": pa.ExtensionArray.from_storage(pa.uuid(), identities),
        "nothing": pa.nulls(1 << 15),
    }
    for name, values in columns.items():
        batch = pa.record_batch({name: values})
        file = _encoded(memory_part(), [batch])
        assert _column(file, 0).has_dictionary_page, name
        assert file.read()[name].to_pylist() == values.to_pylist(), name


def test_a_file_without_rows_is_a_file(memory_part: Any) -> None:
    """Nothing tells then what is worth a dictionary."""
    assert _encoded(memory_part(), [_batch_of_numbers()]).read() == _SCHEMA.empty_table()


def test_bloom_filters_take_their_place(memory_part: Any) -> None:
    """A filter is made for the columns that are named, as large as its values need, also in structs."""
    batch = pa.record_batch({"a": [{"b": number} for number in range(1000)], "c": list(range(1000))})

    def size(**options: Any) -> int:
        part = memory_part()
        _encoded(part, [batch], **options)
        return int(part.position)

    plain = size()
    small = size(bloom_filter_columns=("c",))
    assert plain + 500 < small < plain + 10_000
    assert size(bloom_filter_columns=("c", "a.b")) > small + 500


@pytest.mark.parametrize("run_bytes", [1 << 30, 100_000, 8_000])
def test_rows_are_sorted_within_a_part(run_bytes: int, memory_part: Any) -> None:
    """Rows are in the order of the columns, in one run or in many; none is lost, and the file says so."""
    chance = random.Random(run_bytes)
    numbers = [chance.choice([None, *range(50)]) for _ in range(20_000)]
    tags = list(range(20_000))
    schema = pa.schema({"n": pa.int64(), "x": pa.float64(), "tag": pa.int64()})
    values = [chance.choice([None, float("nan"), 0.5, -1.0]) for _ in tags]
    table = pa.record_batch([pa.array(numbers), pa.array(values, pa.float64()), pa.array(tags)], schema=schema)
    file = _encoded(
        memory_part(),
        [table.slice(at, 700) for at in range(0, 20_000, 700)],
        sort_by=("n", "x"),
        row_group_bytes=run_bytes,
        row_group_rows=3000,
    )
    expected = pa.Table.from_batches([table]).sort_by([("n", "ascending"), ("x", "ascending")])
    back = file.read()
    # The third column is the order in which equal keys came.
    assert back["tag"].to_pylist() == expected["tag"].to_pylist()
    assert str(back["x"].to_pylist()) == str(expected["x"].to_pylist())
    order = file.metadata.row_group(0).sorting_columns
    assert [(each.column_index, each.descending, each.nulls_first) for each in order] == [
        (0, False, False),
        (1, False, False),
    ]


@pytest.mark.slow
def test_sorting_holds_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory does not grow with the rows: eighty megabytes are sorted in a few runs of four, whose files vanish."""
    files: list[Any] = []
    make = tempfile.TemporaryFile

    def temporary(**options: Any) -> Any:
        files.append(make(**options))
        return files[-1]

    monkeypatch.setattr("tempfile.TemporaryFile", temporary)
    before = pa.total_allocated_bytes()
    chance = random.Random(2)
    runs = ExternalSort(_SCHEMA, ["n"], 4 << 20)
    for _ in range(200):
        runs.add(_batch_of_numbers(*[chance.randrange(10**9) for _ in range(20_000)]))
    most = 0
    rows = 0
    last = -1
    for batch in runs.batches():
        most = max(most, pa.total_allocated_bytes() - before)
        numbers = batch["n"].to_pylist()
        assert last <= numbers[0]
        last = numbers[-1]
        assert numbers == sorted(numbers)
        rows += len(numbers)
    assert rows == 4_000_000
    assert len(files) > 10
    assert most < 100 << 20
    assert all(file.closed for file in files)


def test_nothing_sorts_to_nothing(memory_part: Any) -> None:
    """A part without rows, or whose batches are empty, is a file all the same."""
    file = _encoded(memory_part(), [_batch_of_numbers(), _batch_of_numbers()], sort_by=("n",))
    assert file.read().num_rows == 0


class _NoVault(pe.KmsClient):  # type: ignore[misc]  # pyarrow has no types here.
    """Hands keys out as they are."""

    def wrap_key(self, key_bytes: bytes, _master_key: str) -> bytes:
        """The key, as text."""
        return key_bytes.hex().encode()

    def unwrap_key(self, wrapped_key: bytes | str, _master_key: str) -> bytes:
        """The key, from its text."""
        return bytes.fromhex(wrapped_key if isinstance(wrapped_key, str) else wrapped_key.decode())


def _keys() -> Any:
    return pe.CryptoFactory(lambda _connection: _NoVault()), pe.KmsConnectionConfig()


def _encryption() -> Any:
    factory, connection = _keys()
    settings = pe.EncryptionConfiguration(footer_key="footer", column_keys={"key": ["n", "s"]})
    return factory.file_encryption_properties(connection, settings)


def test_encryption_is_passed_on(memory_part: Any) -> None:
    """What the function returns encrypts the file: without the keys it is closed, with them the rows are there."""
    part = memory_part()
    form = ParquetFormat(encryption=_encryption)
    form.check(_SCHEMA)
    form.encode([_batch_of_numbers(1, 2)], _SCHEMA, part)
    with pytest.raises(OSError, match="encrypt"):
        pq.ParquetFile(io.BytesIO(part.data))
    factory, connection = _keys()
    keys = factory.file_decryption_properties(connection)
    file: Any = pq.ParquetFile(io.BytesIO(part.data), decryption_properties=keys)
    assert file.read()["n"].to_pylist() == [1, 2]
    assert "0x" not in repr(form)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sort_by": ("x",)}, "sort_by names 'x'"),
        ({"bloom_filter_columns": ("x.y",)}, "bloom_filter_columns names 'x'"),
        ({"dictionary": ("x",)}, "dictionary names 'x'"),
    ],
)
def test_columns_that_are_not_there_are_refused(options: dict[str, Any], words: str) -> None:
    """An option that names no column of the file is refused by name, at the first batch."""
    with pytest.raises(ConfigError, match=words):
        ParquetFormat(**options).check(_SCHEMA)


def test_columns_that_have_no_order_are_refused() -> None:
    """Nested columns cannot be sorted by."""
    with pytest.raises(UnsupportedTypeError, match="names 'l', and Arrow cannot sort by its type list"):
        ParquetFormat(sort_by=("l",)).check(pa.schema({"l": pa.list_(pa.int8())}))


@pytest.mark.parametrize("option", ["row_group_rows", "row_group_bytes"])
@pytest.mark.parametrize("value", [0, 10**30])
def test_a_row_group_that_no_file_can_have_is_refused(option: str, value: int) -> None:
    """It is refused when the format is made, not when the first rows are written."""
    with pytest.raises(ConfigError, match=rf"(?s){option}={value} is not from 1 .*Write for instance {option}=\d+\."):
        resolve_format("parquet", None, **{option: value})
