"""The README's examples run as they stand, and the links of every document lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pyarrow as pa
import pytest
from command_line import told
from life_cycle import in_child

import partfile as pf
from partfile.sink.clock import system_clock_ms
from partfile.sink.policies import AdmissionRules
from partfile.sink.settings import SinkSettings
from partfile.stores.hdfs.options import HdfsOptions
from partfile.stores.s3.options import S3Options

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])

FIVE_FLIGHTS = """
import datetime, pyarrow as pa, pyarrow.parquet as pq, pathlib
pathlib.Path("incoming").mkdir()
at = [datetime.datetime(2013, 1, day, tzinfo=datetime.UTC) for day in (1, 1, 2, 2, 3)]
rows = {"at": pa.array(at, pa.timestamp("us", "UTC")), "user": list("abcde"), "amount": [1.5, None, 3.0, 4.0, 5.0]}
pq.write_table(pa.table(rows), "incoming/0.parquet")
"""


def examples() -> list[str]:
    """The Python blocks of the README."""
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)


def run(script: str, directory: Path) -> None:
    """Run a script in a process of its own."""
    done = subprocess.run([sys.executable, "-c", script], cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def finished(directory: Path) -> list[str]:
    """The names of the files that a reader sees, without what makes them unique, and with their directories."""
    names = [path.relative_to(directory).as_posix() for path in directory.rglob("part-*")]
    return sorted(re.sub(r"part-[0-9a-f]{8}-\d+-\d+", "part", name) for name in names)


def test_the_plain_example_writes_each_row_once_however_often_it_runs(tmp_path: Path) -> None:
    """The example without Spark goes on from its position: a second run adds nothing."""
    (plain,) = [block for block in examples() if "sink.local()" in block]
    for _ in range(2):
        run(plain, tmp_path)
        rows = [line for path in (tmp_path / "landing" / "numbers").glob("part-*.csv") for line in path.open()]
        assert sorted(rows) == sorted([*(f"{number}\n" for number in range(10)), "id\n"])


@pytest.mark.spark
def test_the_spark_example_writes_one_file_a_day(tmp_path: Path) -> None:
    """The example with Spark, its trigger replaced by one that ends, publishes everything at its end."""
    (spark,) = [block for block in examples() if "SparkSession" in block]
    ending = spark.replace('{"processingTime": "10 seconds"}', '{"availableNow": True}')
    assert ending != spark
    run(FIVE_FLIGHTS + ending, tmp_path)
    days = ["2013-01-01", "2013-01-02", "2013-01-03"]
    assert finished(tmp_path / "landing" / "events") == [f"{day}/part.json.gz" for day in days]


def test_what_the_command_line_shows_is_what_it_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's status of a killed sink is, but for the chain's id, what the command prints of such a one."""
    monkeypatch.chdir(tmp_path)
    assert in_child(die_with_open_parts) == 0
    shown = re.search(r"    \$ (partfile status .*)\n((?:    .*\n|\n)+)", (ROOT / "README.md").read_text())
    assert shown is not None
    words = shown[1].split()[1:]
    assert without_chain(told(*words, code=1)).rstrip() == without_chain(dedent(shown[2])).rstrip()


def die_with_open_parts() -> None:
    """Two hours ago a sink was killed between two checkpoints."""
    sink = pf.FileSink(
        "landing/events",
        uid="events",
        bucketer=pf.HiveBucketer("day"),
        clock=lambda: system_clock_ms() - 7_505_000,
    )
    out = sink.local().open()
    for days in (["2013-01-01"], ["2013-01-01", "2013-01-02"]):
        out.write(pa.table({"day": days, "amount": [1.5] * len(days)}))
        out.checkpoint()
    os._exit(0)


def without_chain(text: str) -> str:
    """A text without what makes part names unique."""
    return re.sub(r"part-[0-9a-f]{8}-", "part-", text)


@pytest.mark.parametrize("kit", ["OperatorHarness", "SinkHarness"])
def test_the_examples_of_the_test_kits_run(tmp_path: Path, kit: str) -> None:
    """The complete examples of docs/SNAPSHOTS.md run as they stand, with what they assert."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "SNAPSHOTS.md").read_text(), flags=re.DOTALL)
    (example,) = [block for block in blocks if f"import {kit}" in block]
    assert "assert" in example
    run(example, tmp_path)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_links_of_a_document_lead_somewhere(document: Path) -> None:
    """Each relative link names a file or directory that is there."""
    links = re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text())
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_every_option_of_hdfs_is_documented_with_its_default() -> None:
    """docs/HDFS.md has a row for each field of HdfsOptions, and the defaults that are numbers."""
    text = (ROOT / "docs" / "HDFS.md").read_text()
    table = text[text.index("| `storage_options` |") : text.index("### Which properties")]
    rows = dict(re.findall(r"^\| `([a-z_]+)` \| (.*?) \|", table, flags=re.MULTILINE))
    del rows["storage_options"]
    assert rows.keys() == HdfsOptions.model_fields.keys()
    numbers = {name: field.default for name, field in HdfsOptions.model_fields.items() if name.endswith("_timeout_s")}
    assert {name: float(rows[name]) for name in numbers} == numbers


def test_every_option_of_s3_is_documented_with_its_default() -> None:
    """docs/S3.md has a row for each field of S3Options, and the defaults that are numbers or a word."""
    text = (ROOT / "docs" / "S3.md").read_text()
    table = text[text.index("| `storage_options` |") : text.index("## Permissions")]
    rows = dict(re.findall(r"^\| `([a-z_0-9]+)` \| (.*?) \|", table, flags=re.MULTILINE))
    del rows["storage_options"]
    assert rows.keys() == S3Options.model_fields.keys()
    for name, field in S3Options.model_fields.items():
        if name.endswith("_bytes"):
            assert rows[name] == f"{field.default >> 20} MiB"
        elif isinstance(field.default, bool):
            assert rows[name] == str(field.default)
        elif isinstance(field.default, int | float):
            assert float(rows[name]) == field.default
        elif field.default is not None:
            assert rows[name] == f"`{field.default}`"


def test_every_option_is_documented() -> None:
    """docs/OPTIONS.md has a row for each option that FileSink takes, and none for another."""
    rows = re.findall(r"^\| (`[a-z_`, ]+`) \|", (ROOT / "docs" / "OPTIONS.md").read_text(), flags=re.MULTILINE)
    documented = {name for row in rows for name in re.findall("[a-z_]+", row)}
    fields = {*SinkSettings.model_fields, *AdmissionRules.model_fields, "format_options", "compression"}
    assert documented == fields - {"rules"}
