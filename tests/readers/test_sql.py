"""The statement that ``partfile sql`` prints reads a tree as it was written; types have the words of each engine."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest

import partfile as pf
from partfile.errors import ConfigError
from partfile.readers.sql import Tree, column_lines
from partfile.sink.schema import row_schema_after
from support.files.trees import sidecars, write_tree
from support.files.typed_rows import NESTED, SCALARS, written
from support.processes.command_line import run, told, told_json

if TYPE_CHECKING:
    from pathlib import Path

    from partfile.readers.sql import Engine


NOT_IN_DUCKDB = {"nanos", "short", "wide", "span", "half"}
"""Nanoseconds, more than 38 digits, and intervals, which DuckDB hands over in another type: looked at apart."""


def by_duckdb(base: Path) -> Any:
    """The rows that the statement selects, as a relation."""
    (statement,) = told("sql", base).split(";\n")[:-1]
    return duckdb.sql(statement)


FORMS: list[tuple[str, dict[str, Any]]] = [
    ("json", {}),
    ("json", {"compression": "zstd"}),
    ("csv", {"compression": "gzip"}),
    ("csv", {"format_options": {"header": False, "separator": "|", "null_value": "\\N"}}),
    ("parquet", {}),
]


@pytest.mark.parametrize(("format", "options"), FORMS, ids=str)
def test_duckdb_reads_every_column_by_the_statement(format: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Values, nulls and keys of directories, below a path with quotes and brackets."""
    base = tmp_path / "it's [1] *"
    columns = {name: column for name, column in SCALARS.items() if name not in NOT_IN_DUCKDB}
    rows = written(base, format, columns if format == "csv" else columns | NESTED, **options)
    found = by_duckdb(base).to_arrow_table().sort_by("id")
    assert set(found.column_names) == set(rows.column_names)
    for name in rows.column_names:
        assert (name, found[name].to_pylist()) == (name, rows[name].to_pylist())


@pytest.mark.parametrize("format", ["json", "csv"])
def test_duckdb_reads_intervals(format: str, tmp_path: Path) -> None:
    """Negative ones too, in which each part has the sign."""
    written(tmp_path, format, {"span": SCALARS["span"]})
    spans = by_duckdb(tmp_path).order("id").select(duckdb.SQLExpression("epoch_us(span)")).fetchall()
    assert spans == [(-86_399_999_995,), (None,), (9999 * 86_400_000_000,)]


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
def test_duckdb_reads_what_has_evolved(format: str, tmp_path: Path) -> None:
    """Files from before a column was added have nulls in it."""
    for column in ({"n": pa.array([1], pa.int8())}, {"n": pa.array([2**40]), "raw": pa.array([b"\xff"])}):
        with pf.FileSink(tmp_path, uid="evolving", on_schema_change="evolve", format=format).local() as out:
            out.write(pa.table(column))
    found = by_duckdb(tmp_path).to_arrow_table().sort_by("n").to_pylist()
    assert found == [{"n": 1, "raw": None}, {"n": 2**40, "raw": b"\xff"}]


def test_the_statement_is_there_before_the_first_file(tmp_path: Path) -> None:
    """A sink whose parts are all open: the format is in the checkpoint."""
    out = pf.FileSink(tmp_path, uid="open", compression="gzip", bucketer=pf.HiveBucketer("k")).local().open()
    out.write(pa.table({"id": [1], "k": ["007"]}))
    out.checkpoint()
    statement = told("sql", tmp_path)
    assert "/**/*.json.gz'" in statement
    out.finish()
    assert told("sql", tmp_path) == statement
    assert by_duckdb(tmp_path).to_arrow_table().to_pylist() == [{"id": 1, "k": "007"}]


def test_what_no_statement_reads_is_refused(tmp_path: Path) -> None:
    """Files with a sidecar, columns of several types, formats that the engine has no reader for."""
    write_tree(tmp_path / "cut", "json", None)
    assert sidecars(tmp_path / "cut")
    result = run("sql", tmp_path / "cut")
    assert result.exit_code == 1
    assert "counts up to the length in its sidecar" in result.stderr
    for column in (pa.array([1]), pa.array(["x"])):
        with pf.FileSink(tmp_path / "mixed", uid="mixed").local() as out:
            out.write(pa.table({"a": column}))
    result = run("sql", tmp_path / "mixed")
    assert (result.exit_code, "values of several types in 'a'" in result.stderr) == (1, True)
    tree = tree_of(pa.schema({"a": pa.int64()}), "part.json", base="hdfs://n/base")
    with pytest.raises(ConfigError, match=r"(?s)DuckDB does not read HDFS.*--engine spark"):
        tree.statement("duckdb")
    with pytest.raises(ConfigError, match="DuckDB takes the backslash in"):
        tree_of(pa.schema({"a": pa.int64()}), "part.json", base="/a\\b").statement("duckdb")
    with pytest.raises(ConfigError, match=r"DuckDB has no type for the values of 'a', which is struct<>"):
        tree_of(pa.schema({"a": pa.list_(pa.struct([]))}), "part.json").statement("duckdb")
    tree = tree_of(pa.schema({"a": pa.int64()}), "part.orc")
    with pytest.raises(ConfigError, match="DuckDB has no reader for orc files"):
        tree.statement("duckdb")
    unread: list[tuple[str, Engine]] = [("bz2", "duckdb"), ("snappy", "duckdb"), ("lz4", "spark")]
    for codec, engine in unread:
        with pytest.raises(ConfigError, match="does not read lines compressed by"):
            tree_of(pa.schema({"a": pa.int64()}), f"part.json.{codec}").statement(engine)
    with pytest.raises(ConfigError, match="the engines take 'a' and 'A' for one column"):
        tree_of(pa.schema({"a": pa.int64(), "A": pa.int64()}), "part.json").statement("spark")


def tree_of(schema: pa.Schema, *files: str, base: str = "/base", path_columns: tuple[str, ...] = ()) -> Tree:
    """A tree with some files."""
    held = row_schema_after(None, schema, path_columns=path_columns, format={}, on_change="roll", uid="s")
    return Tree.of(base, files, held)


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_a_column_that_no_directory_tells_is_refused(engine: Any) -> None:
    """A file in the base itself, as of a fallback bucket or another program's, has no key; nor has a key in escapes."""
    schema = pa.schema({"id": pa.int64(), "day": pa.string(), "k'k": pa.string()})
    tree = tree_of(schema, "day=1/part.json", "bad/part.json", path_columns=("day",))
    with pytest.raises(ConfigError, match="'day' is in the names of directories alone, and not every file lies in"):
        tree.statement(engine)
    with pytest.raises(ConfigError, match=r"""directories write column "k'k" as 'k%27k'"""):
        tree_of(schema, "k%27k=1/part.json", path_columns=("k'k",)).statement(engine)


def test_csv_with_a_header_is_read_by_name(tmp_path: Path) -> None:
    """DuckDB reads files of another order, with more columns, quoted line breaks, and a key that is kept."""
    for columns in ({"a": ["1\n2"], "k": ["007"], "b": [1]}, {"b": [2], "k": ["007"], "new": [b"\xff"], "a": ["x"]}):
        sink = pf.FileSink(tmp_path, uid="by-name", format="csv", bucketer=pf.HiveBucketer("k", keep_columns=True))
        with sink.local() as out:
            out.write(pa.table(columns))
    found = by_duckdb(tmp_path).to_arrow_table().sort_by("b").to_pylist()
    first, second = {"a": "1\n2", "k": "007", "b": 1, "new": None}, {"a": "x", "k": "007", "b": 2, "new": b"\xff"}
    assert found == [first, second]
    result = run("sql", tmp_path, "--engine", "spark")
    assert (result.exit_code, "with columns at several places" in result.stderr) == (2, True)


def test_line_breaks_are_read_without_a_header(tmp_path: Path) -> None:
    """By the place of the columns."""
    with pf.FileSink(tmp_path, uid="lines", format="csv", format_options={"header": False}).local() as out:
        out.write(pa.table({"a": ["1\n2", "", None], "b": [1, 2, 3]}))
    assert by_duckdb(tmp_path).order("b").fetchall() == [("1\n2", 1), ("", 2), (None, 3)]


def test_schema_prints_the_words_of_each_engine(tmp_path: Path) -> None:
    """Columns of directories stand apart for Hive; the default is Arrow's."""
    kind = pa.struct({"a b": pa.list_(pa.map_(pa.string(), pa.decimal128(9, 2)))})
    rows = pa.table({"id": pa.array([1], pa.uint64()), "s": pa.array([None], kind), "day": ["x"]})
    with pf.FileSink(tmp_path, uid="words", bucketer=pf.HiveBucketer("day")).local() as out:
        out.write(rows)
    assert told("schema", tmp_path).splitlines() == [f"{field.name}: {field.type}" for field in rows.schema]
    assert told("schema", tmp_path, "--format", "spark").splitlines() == [
        "`id` DECIMAL(20,0),",
        "`s` STRUCT<`a b`: ARRAY<MAP<STRING, DECIMAL(9,2)>>>,",
        "`day` STRING",
    ]
    assert told("schema", tmp_path, "--format", "duckdb").splitlines() == [
        '"id" UBIGINT,',
        '"s" STRUCT("a b" MAP(VARCHAR, DECIMAL(9,2))[]),',
        '"day" VARCHAR',
    ]
    assert told("schema", tmp_path, "--format", "hive").splitlines() == [
        "`id` decimal(20,0),",
        "`s` struct<`a b`:array<map<string,decimal(9,2)>>>",
        "PARTITIONED BY (`day` string)",
    ]
    report = told_json("schema", tmp_path, "--format", "spark")
    assert report["columns"][2] == {"name": "day", "type": "STRING", "in_path": True, "mixed": False}
    assert told_json("sql", tmp_path)["engine"] == "duckdb"


def test_a_mixed_column_is_a_finding(tmp_path: Path) -> None:
    """The newest type is shown, with a note, and the command ends with 1."""
    for column in (pa.array([1]), pa.array(["x"])):
        with pf.FileSink(tmp_path, uid="mixed").local() as out:
            out.write(pa.table({"a": column}))
    result = run("schema", tmp_path)
    assert (result.exit_code, result.stdout) == (1, "a: string\n")
    assert "a: earlier rows have values that this type does not hold" in result.stderr


@pytest.mark.parametrize("verb", ["schema", "sql"])
def test_what_is_not_there_is_named(verb: str, tmp_path: Path) -> None:
    """No sink, a sink without rows, another uid, another word: each ends with 2."""
    pf.FileSink(tmp_path / "empty", uid="empty").local().open().close()
    option = "--format" if verb == "schema" else "--engine"
    for words, said in [
        ((tmp_path,), "no sink has checkpoints"),
        ((tmp_path / "empty",), "has the schema of its rows"),
        ((tmp_path / "empty", "--uid", "other"), "no sink 'other'"),
        ((tmp_path / "empty", option, "oracle"), f"{option} 'oracle' is not known"),
    ]:
        result = run(verb, *words)
        assert (result.exit_code, said in result.stderr) == (2, True)


def test_names_with_quotes_stay_names() -> None:
    """In every engine."""
    schema = pa.schema({'a"b`c': pa.int64()})
    assert column_lines(schema, "duckdb") == ['"a""b`c" BIGINT']
    assert column_lines(schema, "spark") == ['`a"b``c` BIGINT']
    statement = tree_of(schema, "part.json").statement("duckdb")
    assert re.search(r"""'a"b`c': 'BIGINT'""", statement)


def test_a_tab_is_a_tab(tmp_path: Path) -> None:
    """Whatever a terminal would obey is written as an escape that the engine reads."""
    with pf.FileSink(tmp_path, uid="tabs", format="csv", format_options={"separator": "\t"}).local() as out:
        out.write(pa.table({"a": ["x\ty"], "n": [1]}))
    assert by_duckdb(tmp_path).fetchall() == [("x\ty", 1)]
    assert r"sep '\U00000009'" in told("sql", tmp_path, "--engine", "spark")
    for name in ("a\tb", "a\u2028b", ""):
        with pytest.raises(ConfigError, match="no statement has a form for the name of column"):
            tree_of(pa.schema({name: pa.int64()}), "part.csv").statement("duckdb")


def test_keys_of_every_type_are_typed(tmp_path: Path) -> None:
    """Decimals and dates as they are; an instant, whose zone no directory says, is text."""
    keys = {
        "price": pa.array(["1.50", None]).cast(pa.decimal128(9, 2)),
        "day": SCALARS["day"].slice(0, 2),
        "at": SCALARS["instant"].slice(0, 2),
    }
    with pf.FileSink(tmp_path, uid="keys", bucketer=pf.HiveBucketer(*keys)).local() as out:
        out.write(pa.table({"id": [0, 1], **keys}))
    found = by_duckdb(tmp_path).to_arrow_table().sort_by("id")
    assert found["price"].to_pylist() == keys["price"].to_pylist()
    assert found["day"].to_pylist() == keys["day"].to_pylist()
    assert found["at"].to_pylist() == ["2024-02-29 12:00:00.123456", None]


def test_nanoseconds_stay_or_are_refused(tmp_path: Path) -> None:
    """DuckDB has a type for them without a zone alone; decimals of 40 digits in Parquet it would make doubles."""
    with pf.FileSink(tmp_path / "local", uid="nanos").local() as out:
        out.write(pa.table({"at": SCALARS["nanos"]}))
    ns = [value for (value,) in by_duckdb(tmp_path / "local").select(duckdb.SQLExpression('epoch_ns("at")')).fetchall()]
    assert sorted(ns, key=str) == [-1, 1, None]
    for format, kind in (("json", pa.list_(pa.timestamp("ns", "UTC"))), ("parquet", pa.decimal256(40, 0))):
        with pytest.raises(ConfigError, match="DuckDB has no type for the values of 'x'"):
            tree_of(pa.schema({"x": kind}), f"part.{format}").statement("duckdb")


def test_one_sink_of_several_has_no_statement(tmp_path: Path) -> None:
    """It would read the files of the other one, too."""
    for uid in ("one", "two"):
        with pf.FileSink(tmp_path, uid=uid, on_used_base="accept").local() as out:
            out.write(pa.table({uid: [1]}))
    result = run("sql", tmp_path, "--uid", "one")
    assert (result.exit_code, "files of two lie in the same tree" in result.stderr) == (2, True)
    assert told("schema", tmp_path, "--uid", "one") == "one: int64\n"
    assert sorted(by_duckdb(tmp_path).fetchall(), key=str) == [(1, None), (None, 1)]
