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
from support.files.trees import sidecars, write_tree
from support.files.typed_rows import NESTED, SCALARS, written
from support.processes.command_line import run, told, told_json

if TYPE_CHECKING:
    from pathlib import Path


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
    tree = Tree("hdfs://n/base", pa.schema({"a": pa.int64()}), "json", {}, [".json"], [])
    with pytest.raises(ConfigError, match=r"(?s)DuckDB does not read HDFS.*--engine spark"):
        tree.statement("duckdb")
    tree = Tree("/base", pa.schema({"a": pa.int64()}), "orc", {}, [".orc"], [])
    with pytest.raises(ConfigError, match="DuckDB has no reader for orc files"):
        tree.statement("duckdb")


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
    statement = Tree("/base", schema, "json", {}, [".json"], []).statement("duckdb")
    assert re.search(r"""'a"b`c': 'BIGINT'""", statement)
