"""Every reader returns the same rows of the same trees, whose files end in tails that do not count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import partfile as pf
from partfile.readers.dataset import arrow_format, shown_path
from partfile.readers.files import codec_of
from support.files.trees import (
    COMMON_KINDS,
    GARBAGE,
    HALF,
    KINDS,
    ROWS,
    finished_of,
    rows,
    sidecars,
    text_of,
    write_tree,
)

if TYPE_CHECKING:
    from pathlib import Path


SCHEMA = pa.schema({"id": pa.int64(), "text": pa.string(), "bucket": pa.string()})
TEXT_SCHEMA = pa.schema({"value": pa.string(), "bucket": pa.string()})
EXPECTED = sorted((text, bucket) for _, text, bucket in rows())


def texts_and_buckets(table: pa.Table) -> list[tuple[str, str]]:
    """The rows of a table by what every format has: text and bucket."""
    text = "text" if "text" in table.column_names else "value"
    return sorted(zip(table[text].to_pylist(), table["bucket"].to_pylist(), strict=True))


def of_kinds(*kinds: tuple[str, str | None]) -> pytest.MarkDecorator:
    """Run a test on the trees of some kinds alone."""
    return pytest.mark.parametrize("tree", kinds, indirect=True, ids=name_of)


def name_of(kind: tuple[str, str | None]) -> str:
    """How a kind is called in the name of a test."""
    return f"{kind[0]}-{kind[1]}"


@pytest.fixture(scope="module", params=KINDS, ids=name_of)
def tree(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A base path with a hostile name, and the format of its files."""
    format, compression = request.param
    base = tmp_path_factory.mktemp("trees") / "base (1) 100% ü=x"
    write_tree(base, format, compression)
    return base, format


def test_the_trees_have_tails(tree: tuple[Path, str]) -> None:
    """What follows would prove nothing otherwise: each bucket has a file with a sidecar and bytes beyond its length."""
    base, _ = tree
    found = sidecars(base)
    assert len(found) == 7
    for sidecar in found:
        valid, content = int(sidecar.read_text()), finished_of(sidecar).read_bytes()
        assert content[valid:].endswith(GARBAGE)


def test_the_dataset_honours_valid_lengths(tree: tuple[Path, str]) -> None:
    """``read`` gives every row once, twice in a row, with the format found by the names of the files."""
    base, format = tree
    dataset = pf.read(base, schema=TEXT_SCHEMA if format == "text" else SCHEMA)
    for _ in range(2):
        assert texts_and_buckets(dataset.to_table()) == EXPECTED
    if format != "text":
        assert sorted(dataset.to_table()["id"].to_pylist()) == list(range(ROWS))


def test_the_columns_need_not_be_named(tree: tuple[Path, str]) -> None:
    """Without a schema the columns are those of the files and of the directories."""
    base, format = tree
    dataset = pf.read(base)
    assert dataset.schema.equals(TEXT_SCHEMA if format == "text" else SCHEMA)
    assert texts_and_buckets(dataset.to_table()) == EXPECTED


def test_a_filter_on_buckets_leaves_other_files_out(tree: tuple[Path, str]) -> None:
    """Hive columns prune files: those of other buckets are no part of the scan."""
    base, format = tree
    dataset = pf.read(base, schema=TEXT_SCHEMA if format == "text" else SCHEMA)
    some = ds.field("bucket") == "x=y"
    assert texts_and_buckets(dataset.to_table(filter=some)) == [row for row in EXPECTED if row[1] == "x=y"]
    names = [fragment.path for fragment in dataset.get_fragments(filter=some)]
    assert names
    assert all("bucket=x%3Dy" in name for name in names)


def test_the_file_system_cuts_every_file(tree: tuple[Path, str]) -> None:
    """Found, sized, read whole and in pieces: each file is its valid prefix, and nothing else is found."""
    base, _ = tree
    shown = pf.valid_length_filesystem(base)
    valid = {str(finished_of(sidecar)): int(sidecar.read_text()) for sidecar in sidecars(base)}
    visible = [path for path in base.rglob("part-*") if not path.parent.name.startswith("_")]
    expected = {str(path): path.read_bytes()[: valid.get(str(path))] for path in visible}
    assert {name: shown.cat_file(name) for name in shown.find(shown.base)} == expected
    for name, content in expected.items():
        assert shown.size(name) == shown.info(name)["size"] == len(content)
        assert shown.cat_file(name, start=len(content) - 3, end=len(content) + 99) == content[-3:]
        with shown.open(name) as file:
            assert file.seek(0, 2) == len(content)
            assert file.read() == b""
            file.seek(1)
            assert file.read() == content[1:]
    assert sum(entry["size"] for entry in shown.find(shown.base, detail=True).values()) == shown.du(shown.base)


@of_kinds(("json", None), ("json", "gzip"), ("csv", None), ("csv", "gzip"))
def test_pyarrow_reads_through_the_file_system(tree: tuple[Path, str]) -> None:
    """A dataset that is made of the wrapper by pyarrow's own means has the same rows."""
    base, format = tree
    shown = pf.valid_length_filesystem(base)
    dataset = ds.dataset(shown.base, filesystem=shown, format=arrow_format(format), partitioning="hive", schema=SCHEMA)
    assert texts_and_buckets(dataset.to_table()) == EXPECTED


@pytest.mark.drawn
@pytest.mark.timeout(240)
def test_a_scan_can_be_given_up(tree: tuple[Path, str]) -> None:
    """Streams that are read, or dropped after one batch, end: where Python opens files pyarrow alone would hang."""
    base, format = tree
    dataset = pf.read(base, schema=TEXT_SCHEMA if format == "text" else SCHEMA)
    for _ in range(3):
        assert texts_and_buckets(dataset.scanner().to_reader().read_all()) == EXPECTED
        for stream in (dataset.scanner(columns=["bucket"]).to_reader(), dataset.to_batches()):
            assert next(iter(stream)).num_rows
            del stream
        assert (dataset.count_rows(), dataset.head(3).num_rows) == (ROWS, 3)


@pytest.mark.timeout(240)
def test_duckdb_reads_the_dataset(tree: tuple[Path, str]) -> None:
    """DuckDB takes the dataset by the name of a Python variable."""
    base, format = tree
    events = pf.read(base, schema=TEXT_SCHEMA if format == "text" else SCHEMA)
    text = events.schema.names[-2]
    with duckdb.connect() as connection:
        connection.register("events", events)
        found = connection.execute(f"SELECT {text}, bucket FROM events").fetchall()  # noqa: S608
        assert sorted(found) == EXPECTED
        assert len(connection.execute("SELECT * FROM events LIMIT 2").fetchall()) == 2
        some = connection.execute("SELECT count(*) FROM events WHERE bucket = 'a b'").fetchone()
    assert some == (ROWS // 7,)


@of_kinds(*[kind for kind in COMMON_KINDS if kind[0] != "text"])
def test_duckdb_reads_through_the_file_system(tree: tuple[Path, str]) -> None:
    """DuckDB's own readers of JSON and CSV read what the wrapper shows."""
    base, format = tree
    shown = pf.valid_length_filesystem(base)
    files = [f"partfile://{name}" for name in shown.find(shown.base)]
    reader = "read_json($files, format = 'newline_delimited'" if format == "json" else "read_csv($files, header = true"
    columns = "columns = {'id': 'BIGINT', 'text': 'VARCHAR'}"
    more = (
        ""
        if format == "json"
        else """, delim = ',', quote = '"', escape = '"', auto_detect = false, new_line = '\\n'"""
    )
    with duckdb.connect() as connection:
        connection.register_filesystem(shown)
        query = f"SELECT text, bucket FROM {reader}, {columns}{more}, hive_partitioning = true)"  # noqa: S608
        assert sorted(connection.execute(query, {"files": files}).fetchall()) == EXPECTED


@of_kinds(("csv", None), ("csv", "gzip"), ("csv", "zstd"))
def test_pandas_reads_through_the_file_system(tree: tuple[Path, str]) -> None:
    """Pandas reads an open file of the wrapper."""
    base, _ = tree
    shown = pf.valid_length_filesystem(base)
    found: list[str] = []
    for name in shown.find(shown.base):
        with shown.open(name) as file:
            options: dict[str, Any] = {"compression": codec_of(name)}
            found += pd.read_csv(file, **options)["text"].tolist()
    assert sorted(found) == sorted(text_of(number) for number in range(ROWS))


def test_half_of_the_rows_are_in_cut_files(tree: tuple[Path, str]) -> None:
    """The rows before the crash come from the files with a sidecar."""
    base, format = tree
    cut = [
        shown_path(str(finished_of(sidecar)), is_stored=format not in ("text", "avro")) for sidecar in sidecars(base)
    ]
    dataset = pf.read(base, schema=TEXT_SCHEMA if format == "text" else SCHEMA)
    fragments = [one for one in dataset.get_fragments() if one.path in cut]
    assert sum(one.count_rows() for one in fragments) == HALF
