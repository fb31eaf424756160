"""What ``write`` and ``write_all`` of a LocalSink take: frames, streams, dictionaries; and where a run goes on."""

from __future__ import annotations

import os
import signal
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import partfile as pf
from partfile.errors import ConfigError, PartfileError
from partfile.sink.rows import batches_of
from support.sinks.life_cycle import in_child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

TABLE = pa.table({"id": [1, 2, 3], "name": ["a", None, "c"]})
SCHEMA = pa.schema({"id": "int64", "name": "string"})


class ArrayOnly:
    """Has its rows as one array of structs, as nanoarrow does, and nothing else."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> Any:
        """The capsules of pyarrow's own array."""
        return TABLE.combine_chunks().to_struct_array().chunk(0).__arrow_c_array__(requested_schema)


class Indexed(pd.DataFrame):  # type: ignore[misc]  # pandas has no types here.
    """A frame of a user's own class."""


KINDS: dict[str, Callable[[], Any]] = {
    "table": lambda: TABLE,
    "batch": lambda: TABLE.to_batches()[0],
    "reader": TABLE.to_reader,
    "array of structs": ArrayOnly,
    "polars": lambda: pl.from_arrow(TABLE),
    "pandas": TABLE.to_pandas,
    "pandas with an index": lambda: TABLE.to_pandas().set_index(pd.Index(["x", "y", "z"])),
    "a class of pandas' frame": lambda: Indexed(TABLE.to_pandas().set_index(pd.Index(["x", "y", "z"]))),
    "duckdb": lambda: duckdb.connect().from_arrow(TABLE),
    "dictionaries": TABLE.to_pylist,
    "dictionaries with a key left out": lambda: [{"id": 1, "name": "a"}, {"id": 2}, {"name": "c", "id": 3}],
    "a tuple of dictionaries": lambda: tuple(TABLE.to_pylist()),
}


@pytest.mark.parametrize("format", ["json", "csv", "avro", "parquet", "orc"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_rows_is_written(tmp_path: Path, kind: str, format: str) -> None:
    """The same rows, whatever they came in, and no column of an index."""
    with pf.FileSink(tmp_path, uid="rows", format=format).local(schema=SCHEMA) as out:
        out.write(KINDS[kind]())
    found = pf.read(tmp_path, format=format).to_table()
    assert found.schema.names == ["id", "name"]
    assert sorted(found.to_pylist(), key=lambda row: row["id"]) == TABLE.to_pylist()


def test_a_stream_is_read_while_it_is_written(tmp_path: Path) -> None:
    """Of a reader one batch is in memory at a time."""
    read: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(5):
            read.append(number)
            yield pa.record_batch({"id": [number]})

    stream = pa.RecordBatchReader.from_batches(pa.schema({"id": "int64"}), batches())
    taken = batches_of(stream)
    next(taken)
    assert len(read) == 1
    with pf.FileSink(tmp_path, uid="rows").local() as out:
        for batch in taken:
            out.write(batch)
    assert pf.read(tmp_path).count_rows() == 4


def test_a_stream_that_fails_closes_the_sink(tmp_path: Path) -> None:
    """Some of its rows may be in their parts: nothing since the last checkpoint counts. The error is the source's."""

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"id": [2]})
        raise OSError("the source is gone")

    out = pf.FileSink(tmp_path, uid="rows").local().open()
    out.write(pa.table({"id": [1]}), position=1)
    out.checkpoint()
    with pytest.raises(OSError, match="the source is gone"):
        out.write(pa.RecordBatchReader.from_batches(pa.schema({"id": "int64"}), batches()), position=2)
    with pytest.raises(PartfileError, match="not open any more"):
        out.write(pa.table({"id": [3]}))
    with pf.FileSink(tmp_path, uid="rows").local() as again:
        assert again.position == 1
    assert pf.read(tmp_path).to_table().to_pylist() == [{"id": 1}]


NOON = datetime(2020, 1, 1, 12)  # noqa: DTZ001 - a local time, as Arrow's timestamps without a zone are.
LOSSY: list[tuple[Any, Any]] = [
    (19.99, pa.int64()),
    (np.float64(4.5), pa.int32()),
    (np.float32(4.5), pa.int32()),
    (float("nan"), pa.int64()),
    (Decimal("1.5"), pa.int64()),
    ([1, 1.5], pa.list_(pa.int64())),
    ({"x": 1.5}, pa.struct({"x": pa.int64()})),
    (1e300, pa.float32()),
    (1e300, pa.float16()),
    (NOON, pa.date32()),
    (NOON.replace(microsecond=1), pa.timestamp("s")),
    (NOON.replace(microsecond=1), pa.timestamp("ms")),
    (time(1, 2, 3, 4), pa.time32("s")),
    (timedelta(microseconds=1), pa.duration("ms")),
    (1.7, pa.timestamp("us")),
    ([[1], [1.5]], pa.large_list(pa.list_(pa.int64(), 1))),
    (NOON.replace(tzinfo=timezone(timedelta(hours=2))), pa.timestamp("us")),
    (NOON.replace(hour=0, tzinfo=UTC), pa.date32()),
    (pd.NaT, pa.timestamp("us")),
    (pd.Timestamp(1, unit="ns"), pa.timestamp("us")),
    (pd.Timestamp(1, unit="ns"), pa.date32()),
    (pd.Timedelta(1, unit="ns"), pa.duration("us")),
    (time(5, tzinfo=UTC), pa.time64("us")),
    ({"a": 1.5}, pa.map_(pa.string(), pa.int64())),
    ([("a", 1.5)], pa.map_(pa.string(), pa.int64())),
    ([(1.5, "a")], pa.map_(pa.int64(), pa.string())),
    (np.array([1.5]), pa.list_(pa.int64())),
    (pd.Series([1.5]), pa.list_(pa.int64())),
    ({1.5}, pa.list_(pa.int64())),
    ([1.5], pa.list_view(pa.int64())),
    ([1.5], pa.large_list_view(pa.int64())),
    (1.5, pa.dictionary(pa.int32(), pa.int64())),
    (1.5, pa.run_end_encoded(pa.int32(), pa.int64())),
]
"""Values of which pyarrow keeps a part in silence."""

WHOLE: list[tuple[Any, Any, Any]] = [
    (19.0, pa.int64(), 19),
    (2, pa.float64(), 2.0),
    (1.25, pa.float32(), 1.25),
    (1.1, pa.float32(), pa.scalar(1.1, pa.float32()).as_py()),
    (float("inf"), pa.float32(), float("inf")),
    (Decimal("1.25"), pa.decimal128(5, 2), Decimal("1.25")),
    (NOON.replace(hour=0), pa.date32(), date(2020, 1, 1)),
    (pd.Timestamp(1, unit="us"), pa.timestamp("us"), pd.Timestamp(1, unit="us").to_pydatetime()),
    (np.array([1.0, 2.0]), pa.list_(pa.int64()), [1, 2]),
    ({"a": 1.0}, pa.map_(pa.string(), pa.int64()), [("a", 1)]),
    (NOON.replace(second=1), pa.timestamp("s"), NOON.replace(second=1)),
    (NOON.replace(microsecond=1), pa.timestamp("us"), NOON.replace(microsecond=1)),
    (NOON.replace(tzinfo=UTC), pa.timestamp("us", "UTC"), NOON.replace(tzinfo=UTC)),
    (timedelta(milliseconds=1), pa.duration("ms"), timedelta(milliseconds=1)),
    ([1, None], pa.list_(pa.int64()), [1, None]),
]


@pytest.mark.parametrize(("value", "kind", "kept"), WHOLE)
def test_what_a_type_keeps_whole_is_taken(value: Any, kind: Any, kept: Any) -> None:
    """Nothing becomes something else."""
    (batch,) = batches_of([{"v": value}], pa.schema([pa.field("v", kind)]))
    assert batch["v"].to_pylist() == [kept]


@pytest.mark.parametrize(
    ("rows", "schema", "words"),
    [
        ({"id": 1}, SCHEMA, r"one dictionary.*\nHint: Write a list"),
        ((row for row in [{"id": 1}]), SCHEMA, r"of type generator.*\nHint: .*goes to write_all"),
        ([{"id": 1}, [2]], SCHEMA, "of type list"),
        (7, SCHEMA, "of type int"),
        ("id", SCHEMA, "of type str"),
        (None, SCHEMA, "of type NoneType"),
        ([{"id": 1, "at": 1.5}], None, r'Pass local\(schema={"id": "int64", "at": "double"}\)\.'),
        ([{"id": [1]}], None, r'Pass local\(schema={"name": "string"}\)'),
        ([{None: 1}], None, r'Pass local\(schema={"name": "string"}\)'),
        ([{"s": {"x": 1, "lost": 2}}], pa.schema({"s": pa.struct({"x": pa.int64()})}), "'s' of row 0 .* has 'lost'"),
        (
            [{"l": [{"x": 1}, {"y": 2}]}],
            pa.schema({"l": pa.list_(pa.struct({"x": pa.int64()}))}),
            "'l' of row 0 .* has 'y'",
        ),
        (
            [{"m": {"a": {"x": 1, "y": 2}}}],
            pa.schema({"m": pa.map_(pa.string(), pa.struct({"x": pa.int64()}))}),
            "'m' of row 0 .* has 'y'",
        ),
        ([{"s": [("x", 1), ("y", 2)]}], pa.schema({"s": pa.struct({"x": pa.int64()})}), "takes dictionaries"),
        ([{"at": pd.NaT}], pa.schema({"at": pa.timestamp("us")}), "Hint: Write None for a missing value"),
        ([{"id": 1}, {"id": 2, "nmae": "b"}], SCHEMA, r"row 1 .* has 'nmae', which is no column"),
        ([{"id": "one"}], SCHEMA, "values of 'id' do not fit its type int64"),
        ([{"id": 2**70}], SCHEMA, "values of 'id' do not fit its type int64"),
        (
            [{"id": 1}, {"id": 2}, {"id": "x"}],
            SCHEMA,
            "row 2 of those that were handed over: values of 'id' do not fit",
        ),
        *(
            ([{"v": value}], pa.schema([pa.field("v", kind)]), "'v' of row 0 .* would keep a part alone")
            for value, kind in LOSSY
        ),
        ([{"id": None}], pa.schema([pa.field("id", pa.int64(), nullable=False)]), "row 0 .* has no 'id'"),
        (pa.chunked_array([[1, 2]]), SCHEMA, "rows of type pyarrow.ChunkedArray cannot be converted"),
        (pl.Series([1, 2]), SCHEMA, "rows of type polars.Series cannot be converted"),
        (pd.Series([1, 2]), SCHEMA, "Series"),
        (pl.DataFrame({"a": [object()]}), SCHEMA, "column 'a' of the polars frame holds Python objects"),
        *(
            (pl.DataFrame({"id": [1], "a": [value]}, cast("Any", {"id": pl.Int64, "a": kind})), SCHEMA, words)
            for value, kind, words in [
                (1, pl.Int128, r"column 'a' .* type Int128, .*Cast it to pl\.Int64.*pl\.col\('a'\)"),
                (1, pl.UInt128, "column 'a' .* type UInt128"),
                ([1], pl.List(pl.Int128), r"type List\(Int128\), and Arrow has no Int128.*what is in it"),
                ({"b": 1}, pl.Struct({"b": pl.Int128}), r"'a' .* type Struct\(.*no Int128"),
            ]
        ),
        (pd.DataFrame({"a": [1, "x"]}), SCHEMA, "rows of type pandas.DataFrame cannot be converted"),
    ],
)
def test_what_cannot_be_written_is_refused(tmp_path: Path, rows: Any, schema: Any, words: str) -> None:
    """The error says what they are and what to write instead; nothing is written, and the sink stays open."""
    with pf.FileSink(tmp_path, uid="rows").local(schema=schema) as out:
        with pytest.raises(ConfigError, match=f"(?s){words}"):
            out.write(rows)
        out.write(pa.table({"id": [5]}))
    assert pf.read(tmp_path).to_table().to_pylist() == [{"id": 5}]


def test_columns_called_like_a_wide_integer_are_written(tmp_path: Path) -> None:
    """The types of a frame of polars are looked at, and no names."""
    frame = pl.DataFrame({"Int128": [{"Int128": 1}], "Object": [[2]]})
    with pf.FileSink(tmp_path, uid="rows", format="parquet").local() as out:
        out.write(frame)
    assert pf.read(tmp_path).to_table().to_pylist() == frame.to_dicts()


def numbers(count: int) -> Iterator[dict[str, int]]:
    """A row for each number."""
    yield from ({"id": number} for number in range(count))


IDS = pa.schema({"id": "int64"})


def items_in(position: Any) -> int:
    """How many items count."""
    return 0 if position is None else int(position["items"])


def ids(base: Path) -> list[int]:
    """What a reader finds."""
    return sorted(pf.read(base).to_table()["id"].to_pylist())


def test_all_of_an_iterable_is_written_once_however_often(tmp_path: Path) -> None:
    """The items are counted: a second run adds what is new, and a third one nothing."""
    done = []
    sink = pf.FileSink(tmp_path, uid="rows", on_progress=lambda progress: done.append(progress.rows))
    for count, wrote in ((250, 250), (310, 60), (310, 0)):
        with sink.local(schema=IDS) as out:
            assert out.write_all(numbers(count), checkpoint_every=100) == wrote
    assert ids(tmp_path) == list(range(310))
    assert done[:3] == [100, 100, 50]


@pytest.mark.parametrize("at", [1, 99, 100, 101, 250, 399])
def test_a_run_that_was_killed_goes_on(tmp_path: Path, at: int) -> None:
    """SIGKILL while the source yields any row: the next run passes over what counts, and each row is there once."""

    def dies() -> None:
        def source() -> Iterator[dict[str, int]]:
            for row in numbers(400):
                if row["id"] == at:
                    os.kill(os.getpid(), signal.SIGKILL)
                yield row

        with pf.FileSink(tmp_path, uid="rows").local(schema=IDS) as out:
            out.write_all(source(), checkpoint_every=100)

    assert in_child(dies) == -signal.SIGKILL
    with pf.FileSink(tmp_path, uid="rows").local(schema=IDS) as out:
        assert items_in(out.position) == at // 100 * 100
        out.write_all(numbers(400), checkpoint_every=100)
    assert ids(tmp_path) == list(range(400))


def test_frames_and_dictionaries_may_be_mixed(tmp_path: Path) -> None:
    """Each frame is an item, and each dictionary; what was collected before a frame is written before it."""
    items = [{"id": 0}, {"id": 1}, pl.DataFrame({"id": [2, 3]}), {"id": 4}, pa.table({"id": [5]})]
    for _ in range(2):
        with pf.FileSink(tmp_path, uid="rows").local(schema=IDS) as out:
            out.write_all(items, checkpoint_every=2)
            assert items_in(out.position) == 5
    assert ids(tmp_path) == list(range(6))


def test_a_source_with_offsets_begins_behind_the_position(tmp_path: Path) -> None:
    """With ``position`` nothing is passed over, and the offset of the last item is kept."""
    for first, last in ((0, 30), (30, 50)):
        with pf.FileSink(tmp_path, uid="rows").local(schema=IDS) as out:
            assert (out.position or {"offset": 0}) == {"offset": first}
            rows = ({"id": number} for number in range(first, last))
            out.write_all(rows, checkpoint_every=7, position=lambda row: {"offset": row["id"] + 1})
    assert ids(tmp_path) == list(range(50))


def test_a_source_that_fails_leaves_what_was_checkpointed(tmp_path: Path) -> None:
    """Its error comes through; the block publishes nothing beyond the last checkpoint, and a second run ends it."""

    def source(*, fails: bool) -> Iterator[dict[str, int]]:
        yield from numbers(25)
        if fails:
            raise ConnectionError("gone")
        yield {"id": 25}

    sink = pf.FileSink(tmp_path, uid="rows")
    with pytest.raises(ConnectionError), sink.local(schema=IDS) as out:
        out.write_all(source(fails=True), checkpoint_every=10)
    with sink.local(schema=IDS) as out:
        assert items_in(out.position) == 20
        out.write_all(source(fails=False))
    assert ids(tmp_path) == list(range(26))


def test_a_position_that_is_moved_on_in_place_is_copied(tmp_path: Path) -> None:
    """A frame behind dictionaries is fetched before they are written: its position is not theirs."""
    offset = {"offset": 0}

    def source(first: int, fails_at: int) -> Iterator[Any]:
        for number in range(first, 6):
            if number == fails_at:
                raise ConnectionError("gone")
            offset["offset"] = number + 1
            yield {"id": number} if number % 2 else pa.table({"id": [number]})

    for fails_at in (3, 4, 9):
        with pf.FileSink(tmp_path, uid="rows").local(schema=IDS) as out:
            position: Any = out.position or {"offset": 0}
            first = position["offset"]
            try:
                out.write_all(source(first, fails_at), checkpoint_every=1, position=lambda _item: offset)
            except ConnectionError:
                out.close()
    assert ids(tmp_path) == list(range(6))


def test_a_source_may_use_one_dictionary_for_all_rows(tmp_path: Path) -> None:
    """Rows that wait to be written do not change with it."""

    def source() -> Iterator[dict[str, int]]:
        row = {"id": 0}
        for number in range(5):
            row["id"] = number
            yield row

    with pf.FileSink(tmp_path, uid="rows").local(schema=IDS) as out:
        out.write_all(source())
    assert ids(tmp_path) == list(range(5))


def test_rows_of_a_slow_source_do_not_wait_for_others(tmp_path: Path) -> None:
    """With an interval between checkpoints they are written within a quarter of it, and the checkpoint is taken."""
    now_ms = [10**12]
    progress: list[int] = []

    def source() -> Iterator[dict[str, int]]:
        for row in numbers(40):
            now_ms[0] += 1000
            yield row

    sink = pf.FileSink(
        tmp_path, uid="rows", clock=lambda: now_ms[0], on_progress=lambda done: progress.append(done.rows)
    )
    with sink.local(schema=IDS, checkpoint_interval_s=8) as out:
        out.write_all(source())
    assert ids(tmp_path) == list(range(40))
    assert len(progress) >= 5
    assert max(progress) <= 10


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda out: out.write_all(numbers(9), checkpoint_every=0), "checkpoint_every is 0"),
        (lambda out: out.write_all(numbers(9), checkpoint_every="1m"), r"checkpoint_every is '1m'.*interval_s=60"),
        (lambda out: out.write_all(numbers(9), checkpoint_every=True), "checkpoint_every is True"),
        (lambda out: out.write_all(numbers(4)), "the iterable has 4 items, and 5 were written before"),
        (lambda out: out.write_all(numbers(9), position=lambda row: row["id"]), r"has counted 5 items.*position=17"),
        (lambda out: out.write_all(pl.LazyFrame({"id": [1]})), r"a query that has not run.*collect\(\)"),
        (
            lambda out: out.write_all([*numbers(5), {"other": 1}]),
            r"has 'other'.* \(of the rows up to item 6 of the iter",
        ),
        (lambda out: out.write_all([*numbers(4), {"id": 5}, {"id": 6}]), "item 5 of the iterable is another one"),
        (lambda out: out.write_all(numbers(9), position=5), r"position of write_all is 5.*position=lambda item"),
        *(
            (lambda out, rows=rows: out.write_all(rows), "write_all takes an iterable of rows, not")
            for rows in (TABLE, TABLE.to_pandas(), pl.from_arrow(TABLE), {"id": 1}, "text", 5, None, ArrayOnly())
        ),
    ],
)
def test_what_write_all_cannot_do_is_refused(tmp_path: Path, call: Callable[[Any], object], words: str) -> None:
    """Each with its cause; nothing was written by the call, and the next run goes on."""
    sink = pf.FileSink(tmp_path, uid="rows")
    with sink.local(schema=IDS) as out:
        out.write_all(numbers(5))
    with sink.local(schema=IDS) as out, pytest.raises(ConfigError, match=f"(?s){words}"):
        call(out)
    with sink.local(schema=IDS) as out:
        out.write_all(numbers(7))
    assert ids(tmp_path) == list(range(7))


@pytest.mark.parametrize(
    ("position", "words"),
    [(lambda _row: None, "position returned None"), (lambda _row: object(), "it must be a JSON value")],
)
def test_a_position_that_cannot_be_kept_is_refused(tmp_path: Path, position: Any, words: str) -> None:
    """With the first item; nothing is written."""
    with pf.FileSink(tmp_path, uid="rows").local(schema=IDS) as out, pytest.raises(ConfigError, match=words):
        out.write_all(numbers(9), position=position)
    assert list(tmp_path.glob("part-*")) == []


def test_items_that_were_counted_are_not_written_again_by_position(tmp_path: Path) -> None:
    """Where the input stands behind them is said once; from there on positions count."""
    sink = pf.FileSink(tmp_path, uid="rows")
    with sink.local(schema=IDS) as out:
        out.write_all(numbers(5))
    with sink.local(schema=IDS) as out:
        out.checkpoint(position=4)
        out.write_all(list(numbers(9))[5:], position=lambda row: row["id"])
        assert out.position == 8
    assert ids(tmp_path) == list(range(9))


def test_a_second_iterable_is_refused_and_a_chain_of_both_is_not(tmp_path: Path) -> None:
    """Its first items would be passed over, as if they counted already."""
    sink = pf.FileSink(tmp_path, uid="rows")
    with sink.local(schema=IDS) as out:
        out.write_all(numbers(2))
        with pytest.raises(PartfileError, match=r"(?s)items of another iterable.*itertools\.chain"):
            out.write_all({"id": number} for number in (7, 8, 9))
    with sink.local(schema=IDS) as out:
        out.write_all(chain(numbers(2), ({"id": number} for number in (7, 8, 9))))
    assert ids(tmp_path) == [0, 1, 7, 8, 9]


@pytest.mark.parametrize(
    "position",
    ["a", 3, -1, 1.5, True, [3], {"items": 3}, {"items": -1, "last": None}, {"items": 2, "last": 1, "more": 1}],
)
def test_a_position_that_is_no_count_is_refused(tmp_path: Path, position: Any) -> None:
    """Another program wrote with positions of its own."""
    write = partial(pf.FileSink(tmp_path, uid="rows").local, schema=IDS)
    with write() as out:
        out.write([{"id": 1}], position=position)
    with write() as out, pytest.raises(ConfigError, match="which is no count of items"):
        out.write_all(numbers(3))


@pytest.mark.parametrize("schema", [{"id": "int65"}, {"id": 7}, {7: "int64"}, ["id"], "id", 7])
def test_what_is_no_schema_is_refused_at_once(tmp_path: Path, schema: Any) -> None:
    """Before the sink is opened, with one that would be."""
    with pytest.raises(ConfigError, match=r"(?s)is no schema.*schema=pa.schema"):
        pf.FileSink(tmp_path, uid="rows").local(schema=schema)


def test_no_rows_are_no_error(tmp_path: Path) -> None:
    """An empty list, an empty frame, an empty stream, an empty iterable."""
    with pf.FileSink(tmp_path, uid="rows").local() as out:
        nothing: list[Any] = [[], TABLE.slice(0, 0), pa.RecordBatchReader.from_batches(IDS, [])]
        for rows in nothing:
            out.write(rows)
        assert out.write_all([]) == 0
    assert list(tmp_path.glob("part-*")) == []
