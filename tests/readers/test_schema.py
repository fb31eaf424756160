"""What checkpoints tell of the schema gives text its true types back, and directories theirs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest

import partfile as pf
from partfile.errors import ConfigError, NotFound, PartDamaged, SnapshotCorrupt
from partfile.readers import text_values
from partfile.sink.schema import plain_rows
from support.files.trees import sidecars, write_tree
from support.files.typed_rows import DAY, NESTED, NOON, SCALARS, written

if TYPE_CHECKING:
    from pathlib import Path


def read_back(base: Path, **options: Any) -> pa.Table:
    return pf.read(base, **options).to_table().sort_by("id")


def assert_equal(found: pa.Table, rows: pa.Table) -> None:
    assert set(found.column_names) == set(rows.column_names)
    for name in rows.column_names:
        assert (name, found[name].type) == (name, plain_rows(rows.schema).field(name).type)
        # Text of Arrow's shows nanoseconds, which Python drops; of structs it shows what lies below a null.
        shown = pa.Table.to_pylist if pa.types.is_nested(rows[name].type) else str
        assert (name, shown(found.select([name]))) == (
            name,
            shown(rows.select([name]).cast(found.select([name]).schema)),
        )


CASES = [("json", name, array) for name, array in (SCALARS | NESTED).items()]
CASES += [("csv", name, array) for name, array in SCALARS.items()]


@pytest.mark.parametrize(("format", "name", "column"), CASES, ids=[f"{format}-{name}" for format, name, _ in CASES])
def test_a_column_comes_back_as_it_was(format: str, name: str, column: Any, tmp_path: Path) -> None:
    """Type and values, nulls among them, and the key of the directory that looks like a number."""
    rows = written(tmp_path / "base", format, {name: column})
    assert_equal(read_back(tmp_path / "base"), rows)
    assert_equal(read_back(tmp_path / "base", schema=pf.read_schema(tmp_path / "base")), rows)


@pytest.mark.parametrize("compression", [None, "gzip", "zstd", "snappy"])
@pytest.mark.parametrize("format", ["json", "csv"])
def test_all_columns_come_back_together(format: str, compression: str | None, tmp_path: Path) -> None:
    """In every compression, by a table, by batches, in DuckDB, and one column alone."""
    columns = SCALARS if format == "csv" else SCALARS | NESTED
    rows = written(tmp_path / "base", format, columns, compression=compression)
    assert_equal(read_back(tmp_path / "base"), rows)
    dataset = pf.read(tmp_path / "base")
    assert sum(batch.num_rows for batch in dataset.to_batches()) == dataset.count_rows() == 3
    assert dataset.to_table(columns=["bytes"]).num_columns == 1
    some = pf.read(tmp_path / "base", schema=pa.schema({"bytes": pa.binary(), "key": pa.string()}))
    found = duckdb.from_arrow(some).aggregate("max(bytes), min(key)").fetchall()
    assert found == [(b"\x00\xff", "007")]


def test_directories_have_their_types(tmp_path: Path) -> None:
    """Of every type that a Hive bucketer takes and a name tells; an instant's zone it does not tell."""
    keys = {
        "text": pa.array(["1", None]),
        "number": pa.array([1, None], pa.int16()),
        "flag": pa.array([True, None]),
        "day": pa.array([DAY, None]),
        "local": pa.array([NOON, None], pa.timestamp("us")),
    }
    with pf.FileSink(tmp_path, uid="keys", format="parquet", bucketer=pf.HiveBucketer(*keys)).local() as out:
        out.write(pa.table({"id": [0, 1], **keys}))
    found = pf.read(tmp_path).to_table().sort_by("id")
    for name, column in keys.items():
        assert (found[name].type, found[name].to_pylist()) == (column.type, column.to_pylist())


@pytest.mark.parametrize("options", [{"header": False}, {"separator": ";"}, {"null_value": "\\N"}])
def test_csv_is_read_as_it_was_written(options: dict[str, Any], tmp_path: Path) -> None:
    """The options of the format are in the checkpoint."""
    rows = written(tmp_path / "base", "csv", SCALARS, format_options=options)
    assert_equal(read_back(tmp_path / "base"), rows)


def test_numbers_in_quotes_are_read(tmp_path: Path) -> None:
    """JSON for strict parsers has NaN and the infinities as texts."""
    rows = written(tmp_path / "base", "json", {"x": SCALARS["double"]}, format_options={"non_finite": "string"})
    assert_equal(read_back(tmp_path / "base"), rows)
    with pf.FileSink(tmp_path / "one", uid="one", format_options={"non_finite": "string"}).local() as out:
        out.write(rows.drop_columns(["key"]))
    assert_equal(read_back(tmp_path / "one"), rows.drop_columns(["key"]))
    schema = pf.read_schema(tmp_path / "one")
    assert_equal(read_back(tmp_path / "one", schema=schema), rows.drop_columns(["key"]))


def test_older_files_are_read_with_the_schema_of_now(tmp_path: Path) -> None:
    """A column that was added is null in them, and a number as wide as it is now."""
    for column in ({"n": pa.array([1], pa.int8())}, {"n": pa.array([2**40]), "raw": pa.array([b"\xff"])}):
        with pf.FileSink(tmp_path, uid="evolving", on_schema_change="evolve").local() as out:
            out.write(pa.table(column))
    assert pf.read(tmp_path).schema == pa.schema({"n": pa.int64(), "raw": pa.binary()})
    rows = pf.read(tmp_path).to_table().sort_by("n").to_pylist()
    assert rows == [{"n": 1, "raw": None}, {"n": 2**40, "raw": b"\xff"}]


def test_columns_of_other_files_are_found(tmp_path: Path) -> None:
    """What no sink has written is guessed as before, and no column of it is lost."""
    with pf.FileSink(tmp_path, uid="one").local() as out:
        out.write(pa.table({"zip": ["007"]}))
    (tmp_path / "other.json").write_text('{"zip": "7", "more": 1.5}\n')
    assert pf.read(tmp_path).to_table().sort_by("zip").to_pylist() == [
        {"zip": "007", "more": None},
        {"zip": "7", "more": 1.5},
    ]


def test_values_of_other_files_decide_where_a_type_does_not_hold_them(tmp_path: Path) -> None:
    """A fraction in a column of integers, and a directory that is no number."""
    with pf.FileSink(tmp_path, uid="one", bucketer=pf.HiveBucketer("k")).local() as out:
        out.write(pa.table({"n": [1], "k": [7]}))
    (tmp_path / "k=x").mkdir()
    (tmp_path / "k=x" / "other.json").write_text('{"n": 1.5}\n')
    rows = pf.read(tmp_path).to_table().sort_by("n").to_pylist()
    assert rows == [{"n": 1.0, "k": "7"}, {"n": 1.5, "k": "x"}]


def test_files_of_one_name_with_several_options_are_refused(tmp_path: Path) -> None:
    """No one reading is right for all; without a header, columns that were added are no columns of all files."""
    for separator in ",;":
        options = {"separator": separator}
        with pf.FileSink(tmp_path / "a", uid="a", format="csv", format_options=options).local() as out:
            out.write(pa.table({"x": [1], "y": [2]}))
    with pytest.raises(ConfigError, match=r"files of CSV below .* have been written with several options"):
        pf.read(tmp_path / "a")
    for columns in ({"x": [1]}, {"x": [1], "y": [2]}):
        with pf.FileSink(tmp_path / "b", uid="b", format="csv", format_options={"header": False}).local() as out:
            out.write(pa.table(columns))
    with pytest.raises(ConfigError, match=r"files of CSV below .* with columns at several places"):
        pf.read(tmp_path / "b")


def test_the_schema_of_read_schema_reads_what_it_says(tmp_path: Path) -> None:
    """Lines of text, whatever their column was called; keys whose type no directory tells are text."""
    with pf.FileSink(tmp_path / "text", uid="t", format="text").local() as out:
        out.write(pa.table({"line": ["a"]}))
    schema = pf.read_schema(tmp_path / "text")
    assert pf.read(tmp_path / "text", schema=schema).to_table().to_pylist() == [{"value": "a"}]
    keys = {
        "price": pa.array([1, None], pa.decimal128(9, 2)),
        "at": pa.array([NOON, None], pa.timestamp("us")).cast(pa.timestamp("us", "Asia/Tokyo")),
    }
    with pf.FileSink(tmp_path / "keys", uid="k", bucketer=pf.HiveBucketer(*keys)).local() as out:
        out.write(pa.table({"id": [0, 1], **keys}))
    found = read_back(tmp_path / "keys", schema=pf.read_schema(tmp_path / "keys"))
    assert found["price"].to_pylist() == ["1.00", None]
    assert found["at"].type == pa.string()
    assert read_back(tmp_path / "keys")["id"].to_pylist() == [0, 1]


def test_without_partitioning_directories_are_no_columns(tmp_path: Path) -> None:
    """A key that is in no file is no column of nulls either."""
    rows = written(tmp_path, "json", {"b": SCALARS["bytes"]})
    found = read_back(tmp_path, partitioning=None)
    assert found.schema == pa.schema({"id": pa.int64(), "b": pa.binary()})
    assert found["b"].to_pylist() == rows["b"].to_pylist()


def test_a_kept_key_is_of_its_type(tmp_path: Path) -> None:
    """In the file and in the directory; an instant too, whose directory says no zone."""
    keys = {"zip": pa.array(["007", "8", None]), "at": pa.array([NOON, NOON, None], pa.timestamp("us", "UTC"))}
    for name, column in keys.items():
        sink = pf.FileSink(tmp_path / name, uid="kept", bucketer=pf.HiveBucketer(name, keep_columns=True))
        with sink.local() as out:
            out.write(pa.table({"id": [0, 1, 2], name: column}))
    assert read_back(tmp_path / "zip")["zip"].to_pylist() == ["007", "8", None]
    assert read_back(tmp_path / "at")["id"].to_pylist() == [0, 1, 2]


@pytest.mark.parametrize("stray", ["file", "broken link"])
def test_what_other_programs_leave_among_checkpoints_is_passed_over(tmp_path: Path, stray: str) -> None:
    """Types are told all the same: guessed, ``007`` would be 7."""
    write_zips(tmp_path / "base", "007")
    entry = tmp_path / "base" / "_partfile" / ".DS_Store"
    entry.symlink_to("nowhere") if stray == "broken link" else entry.touch()
    assert pf.read_schema(tmp_path / "base").field("zip").type == pa.string()
    assert pf.read(tmp_path / "base", include="pending").to_table()["zip"].to_pylist() == ["007"]


def test_a_directory_of_checkpoints_that_is_named_must_be_of_the_base(tmp_path: Path) -> None:
    """Another sink's types would change values; so would guesses, where the directory was mistyped."""
    write_zips(tmp_path / "ours", "007", checkpoint_dir=str(tmp_path / "checkpoints"))
    write_zips(tmp_path / "other", 7, checkpoint_dir=str(tmp_path / "wrong"))
    for directory, words in (
        ("wrong", "are of the base '.*other', not of '.*ours'.*--moved-from"),
        ("wrng", "no checkpoints at"),
    ):
        for read in (pf.read, pf.read_schema):
            with pytest.raises(NotFound, match=rf"(?s)(?=.*checkpoint_dir=).*{words}"):
                read(tmp_path / "ours", checkpoint_dir=tmp_path / directory)
    found = pf.read(tmp_path / "ours", checkpoint_dir=tmp_path / "checkpoints").to_table()
    assert found["zip"].to_pylist() == ["007"]


def write_zips(base: Path, zip_code: object, **options: Any) -> None:
    """One row of CSV, whose value looks like a number."""
    with pf.FileSink(base, uid="zips", format="csv", **options).local() as out:
        out.write(pa.table({"zip": [zip_code]}))


def test_years_of_four_digits_are_read(tmp_path: Path) -> None:
    """All of them; of another one, which no sink writes, the file is named."""
    days = pa.array([-719_528, -1, 2_932_896, None], pa.int32()).cast(pa.date32())
    with pf.FileSink(tmp_path, uid="years").local() as out:
        out.write(pa.table({"n": range(4), "day": days}))
    found = pf.read(tmp_path).to_table().sort_by("n")["day"].combine_chunks()
    assert found.cast(pa.int32()).to_pylist() == days.cast(pa.int32()).to_pylist()
    (tmp_path / "odd.json").write_text('{"n":4,"day":"+10000-01-01"}\n')
    with pytest.raises(PartDamaged, match=r"odd.json' holds values of other types"):
        pf.read(tmp_path).to_table()


def test_a_column_of_several_types_is_guessed(tmp_path: Path) -> None:
    """No type reads all its rows; ``read_schema`` names it, and the others keep their types."""
    for column in (pa.array([1]), pa.array([1.5])):
        with pf.FileSink(tmp_path, uid="mixed").local() as out:
            out.write(pa.table({"a": column, "b": pa.array([b"\xff"])}))
    with pytest.raises(ConfigError, match=r"have values of several types in 'a'"):
        pf.read_schema(tmp_path)
    found = pf.read(tmp_path).to_table().sort_by("a")
    assert found.to_pylist() == [{"a": 1.0, "b": b"\xff"}, {"a": 1.5, "b": b"\xff"}]


@pytest.mark.parametrize("format", ["json", "csv", "parquet", "orc"])
def test_a_column_of_several_types_is_read_as_the_hint_says(format: str, tmp_path: Path) -> None:
    """As text; of JSON the lines."""
    for value in ([1], ["x"]):
        with pf.FileSink(tmp_path, uid="mixed", format=format).local() as out:
            out.write(pa.table({"a": value}))
    with pytest.raises(ConfigError, match=r"partfile.read\(PATH, schema={'a': 'string', ...}\); .*format='text'\)"):
        pf.read_schema(tmp_path)
    told: dict[str, Any] = {"format": "text"} if format == "json" else {"schema": {"a": "string"}}
    found = pf.read(tmp_path, **told).to_table()[0].to_pylist()
    assert sorted(found) == (['{"a":"x"}', '{"a":1}'] if format == "json" else ["1", "x"])


def test_a_tree_without_checkpoints_is_guessed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where there is no sink at all, nothing is said about it; ``read_schema`` says what is missing."""
    (tmp_path / "a.json").write_text('{"a": 1}\n')
    with caplog.at_level(logging.INFO, "partfile"):
        assert pf.read(tmp_path).schema == pa.schema({"a": pa.int64()})
    assert not caplog.records
    with pytest.raises(NotFound, match=r"(?s)there are no checkpoints at .*checkpoint_dir="):
        pf.read_schema(tmp_path)


def test_a_damaged_checkpoint_hides_no_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Finished files are read, with types guessed and a warning; ``read_schema`` refuses."""
    written(tmp_path, "json", {"n": pa.array([1, 2, 3])})
    newest = max(tmp_path.glob("_partfile/typed/chk-*/_metadata"), key=lambda path: int(path.parent.name[4:]))
    newest.write_bytes(newest.read_bytes()[:-9])
    assert sorted(pf.read(tmp_path).to_table()["n"].to_pylist()) == [1, 2, 3]
    assert "types of columns are guessed" in caplog.text
    with pytest.raises(SnapshotCorrupt):
        pf.read_schema(tmp_path)


def test_checkpoints_elsewhere_are_found(tmp_path: Path) -> None:
    """``checkpoint_dir`` as the sink has it; of several sinks one can be named."""
    rows = written(tmp_path / "base", "json", {"b": SCALARS["bytes"]}, checkpoint_dir=tmp_path / "checkpoints")
    assert_equal(read_back(tmp_path / "base", checkpoint_dir=tmp_path / "checkpoints"), rows)
    assert pf.read_schema(tmp_path / "base", checkpoint_dir=tmp_path / "checkpoints", uid="typed").names == [
        "id",
        "key",
        "b",
    ]
    with pytest.raises(NotFound, match="no sink 'other' has checkpoints"):
        pf.read_schema(tmp_path / "base", checkpoint_dir=tmp_path / "checkpoints", uid="other")


def test_valid_lengths_hold(tmp_path: Path) -> None:
    """The tail behind a valid length is no row here either."""
    write_tree(tmp_path, "json", None)
    assert sidecars(tmp_path)
    by_guess = pf.read(tmp_path).to_table().num_rows
    schema = pa.schema({"id": pa.int64(), "text": pa.string(), "bucket": pa.string(), "missing": pa.date32()})
    assert pf.read(tmp_path, schema=schema).to_table().num_rows == by_guess


def test_a_long_line_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """First in its file or not; pyarrow would give nulls, or refuse."""
    monkeypatch.setattr(text_values, "BLOCK_BYTES", 1 << 10)
    form, schema = text_values.TextForm("json"), pa.schema({"b": pa.binary(), "s": pa.string()})
    short, long = b'{"b":"/w==","s":"x"}\n', b'{"b":"/w==","s":"' + b"y" * 5000 + b'"}\n'
    for data in (short + long, long + short, long, short * 200 + long):
        found = pa.ipc.open_file(form.as_arrow_file(data, "f", schema)).read_all()
        assert found["b"].to_pylist() == [b"\xff"] * data.count(b"\n")
        assert sum(len(text) for text in found["s"].to_pylist()) == data.count(b"x") + data.count(b"y")


@pytest.mark.parametrize(
    ("kind", "value"),
    [(pa.binary(), '"?"'), (pa.date32(), '"soon"'), (pa.duration("us"), '"1 day"'), (pa.time64("us"), '"noon"')],
)
def test_values_of_another_form_are_named(kind: Any, value: str, tmp_path: Path) -> None:
    """With the file and a way out."""
    (tmp_path / "a.json").write_text(f'{{"v": {value}}}\n')
    with pytest.raises(PartDamaged, match=r"(?s)a.json' holds values of other types than the schema says.*schema="):
        pf.read(tmp_path, schema=pa.schema({"v": kind})).to_table()
