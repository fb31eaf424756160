"""The README's examples run as they stand, and the links of every document lead somewhere."""

from __future__ import annotations

import ast
import inspect
import os
import re
import signal
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path
from textwrap import dedent
from typing import Any

import pyarrow as pa
import pytest

import options_reference
import partfile as pf
from partfile import errors
from partfile.sink.clock import system_clock_ms
from partfile.sink.policies import ReplayRules
from partfile.sink.settings import SinkSettings
from partfile.stores.hdfs.options import HdfsOptions
from partfile.stores.s3.options import S3Options
from support.processes.command_line import told
from support.repo.documents import python_blocks
from support.sinks.life_cycle import in_child

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "partfile"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])

TUTORIAL = "docs/TUTORIAL.md"
"""Its blocks go on from one another and from its commands, so they have a test of their own."""
GROWING = "docs/SNAPSHOTS.md"
"""Its blocks go on from one another: they run in their order, as one."""
FLIGHTS = """
import partfile, pyarrow
days = ["2013-01-01", "2013-01-01", "2013-01-02"]
rows = pyarrow.table({"id": [1, 2, 3], "carrier": ["AA", "UA", "AA"], "day": days})
with partfile.FileSink("landing/flights", uid="flights", bucketer=partfile.HiveBucketer("day")).local() as out:
    out.write(rows)
"""
"""Writes what the blocks of docs/READING.md read."""

SPARK = [pytest.mark.spark, pytest.mark.slow]
PYTHON_WORKERS = "import os, sys\nos.environ['PYSPARK_PYTHON'] = sys.executable\n"


def _marks_of(document: str, block: str) -> list[Any]:
    if "pyspark" in block:
        return SPARK
    return [] if document == "README.md" else [pytest.mark.slow]


def blocks_of(document: str) -> list[str]:
    """What runs in a process of its own: a block, or all blocks of a document that grows."""
    blocks = python_blocks(document)
    return ["\n".join(blocks)] if document == GROWING else blocks


def every_block() -> list[Any]:
    """Each Python block of the README and of docs, but those that have a test of their own."""
    documents = [path.relative_to(ROOT).as_posix() for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]]
    documents.remove(TUTORIAL)
    return [
        pytest.param(document, block, id=f"{document}-{at}", marks=_marks_of(document, block))
        for document in documents
        for at, block in enumerate(blocks_of(document), start=1)
        if not (document == "README.md" and "SparkSession" in block)
        # tests/spark/test_kafka.py and tests/pipeline/test_kafka.py follow those guides.
        if "landing/orders/*" not in block and '"kafka"' not in block and "localhost:9092" not in block
    ]


def run(script: str, directory: Path) -> str:
    """Run a script in a process of its own; returns what it prints."""
    done = subprocess.run([sys.executable, "-c", script], cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def finished(directory: Path) -> list[str]:
    """The names of the files that a reader sees, without what makes them unique, and with their directories."""
    names = [path.relative_to(directory).as_posix() for path in directory.rglob("part-*")]
    return sorted(re.sub(r"part-[0-9a-f]{8}-\d+-\d+", "part", name) for name in names)


@pytest.mark.parametrize(("document", "block"), every_block())
def test_every_block_runs_as_it_stands(tmp_path: Path, document: str, block: str) -> None:
    """Each Python block of a document ends without an error, in a directory of its own."""
    run((FLIGHTS if document == "docs/READING.md" else "") + PYTHON_WORKERS + block, tmp_path)


def test_the_plain_example_writes_each_row_once_however_often_it_runs(tmp_path: Path) -> None:
    """The README's example without Spark goes on from its position: a second run adds nothing."""
    (plain,) = [block for block in python_blocks("README.md") if "sink.local(" in block]
    for _ in range(2):
        run(plain, tmp_path)
        rows = [line for path in (tmp_path / "readings").glob("part-*.csv") for line in path.open()]
        assert sorted(rows) == sorted([*(f"{number}\n" for number in range(10)), "id\n"])


@pytest.mark.slow
@pytest.mark.spark
def test_the_tutorial_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its blocks and commands one after another; what it says to run again is run again."""
    monkeypatch.chdir(tmp_path)
    steps = re.compile(r"```python\n(.*?)```|^    \$ partfile (.*?)$", re.DOTALL | re.MULTILINE)
    said: list[str] = []
    killed = ""
    for block, command in steps.findall((ROOT / TUTORIAL).read_text()):
        if "SIGKILL" in block:
            killed = block
            done = subprocess.run([sys.executable, "-c", block], capture_output=True, check=False)
            assert done.returncode == -signal.SIGKILL, done.stderr
        elif block:
            said += [run(block, tmp_path) for _ in range(2 if "events = (" in block else 1)]
        elif command.startswith("status"):
            said += [told(*command.split(), code=1), run(killed, tmp_path)]
        else:
            said.append(told(*command.split()))
    words = "\n".join(said)
    expected = ["1000 rows written", "\n0 rows written", "700 rows", "300 rows written"]
    expected += ["1000 rows, 1000 different", "verify: errors=0"]
    assert [one for one in expected if one not in words] == []
    assert re.search(r"2026-01-04 .* 250 ", words)


def test_what_the_command_line_shows_is_what_it_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's status of a killed sink is, but for the chain's id, how the command's own begins."""
    monkeypatch.chdir(tmp_path)
    assert in_child(die_with_open_parts) == 0
    shown = re.search(r"    \$ (partfile status .*)\n((?:    .*\n|\n)+)", (ROOT / "README.md").read_text())
    assert shown is not None
    words = shown[1].split()[1:]
    beginning, _, rest = without_log_id(dedent(shown[2])).partition("...\n")
    assert len(beginning.splitlines()) > 4
    assert not rest.strip()
    assert without_log_id(told(*words, code=1)).startswith(beginning)


def die_with_open_parts() -> None:
    """Two hours ago a sink was killed between two checkpoints."""
    sink = pf.FileSink(
        "events",
        uid="events",
        bucketer=pf.HiveBucketer("day"),
        clock=lambda: system_clock_ms() - 7_505_000,
    )
    out = sink.local().open()
    for days in (["2013-01-01"], ["2013-01-01", "2013-01-02"]):
        out.write(pa.table({"day": days, "amount": [1.5] * len(days)}))
        out.checkpoint()
    os._exit(0)


def without_log_id(text: str) -> str:
    """A text without what makes part names unique."""
    return re.sub(r"part-[0-9a-f]{8}-", "part-", text)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_links_of_a_document_lead_somewhere(document: Path) -> None:
    """Each relative link names a file or directory that is there, and an anchor names a heading of the page."""
    links = re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", document.read_text())
    assert [link for link, _ in links if link and not (document.parent / link).exists()] == []
    pages = [(document.parent / link if link else document, anchor) for link, anchor in links if anchor]
    assert [(page.name, anchor) for page, anchor in pages if anchor not in anchors_of(page)] == []


def anchors_of(page: Path) -> set[str]:
    """The anchors that GitHub makes of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


# An installed package has no documents: hints name addresses, and each leads to a page and a heading that are there.


def pages_named_in(tree: ast.AST) -> list[tuple[str, ...]]:
    """The pages and sections that calls of ``page_url`` name."""
    return [
        tuple(ast.literal_eval(argument) for argument in node.args)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "page_url"
    ]


def test_every_address_in_a_hint_leads_to_a_heading() -> None:
    """A page or a section that was renamed is missed here."""
    texts = [text for path in PACKAGE.rglob("*.py") if "page_url" in (text := path.read_text())]
    named = {each for text in texts for each in pages_named_in(ast.parse(text))}
    assert len(named) > 5
    assert [page for page, *_ in named if not (ROOT / "docs" / f"{page}.md").is_file()] == []
    assert [
        (page, at) for page, *section in named for at in section if at not in anchors_of(ROOT / "docs" / f"{page}.md")
    ] == []


def test_no_text_of_the_program_names_a_file_of_the_repository() -> None:
    """Documentation of the code may; what is printed may not."""
    found = []
    # Also where a text goes on in the next line, after the name of the folder.
    for path in (path for path in PACKAGE.rglob("*.py") if "docs" in path.read_text()):
        tree = ast.parse(path.read_text())
        documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in documentation]
        found += [(path.name, node.lineno) for node in texts if "docs/" in str(node.value)]
    assert found == []


def test_every_place_has_the_address_of_the_hints() -> None:
    """The page of the package in an index, and the docstring that an editor shows."""
    assert f"{errors.DOCUMENTATION_URL}/." in str(pf.FileSink.__doc__)
    settings = ConfigParser()
    settings.read(ROOT / "setup.cfg")
    assert f"Documentation = {errors.DOCUMENTATION_URL}/" in settings["metadata"]["project_urls"].split("\n")


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


def test_every_option_is_documented_once() -> None:
    """The docstring of FileSink has each option that it takes, and no other."""
    documented = [option.name for section in options_reference.options().values() for option in section]
    fields = {*SinkSettings.model_fields, *ReplayRules.model_fields, "format_options", "compression"}
    assert sorted(documented) == sorted(fields - {"rules"})


def test_the_documented_defaults_are_those_of_the_settings() -> None:
    """A default that is a value is the one that the sink has, and where there is none the sink has None."""
    said = {option.name: option.default for section in options_reference.options().values() for option in section}
    fields = {**SinkSettings.model_fields, **ReplayRules.model_fields}
    literals = {name: text.strip("`") for name, text in said.items() if re.fullmatch(r"``[\w\"-]+``", text)}
    assert len(literals) > 12
    assert literals.pop("format") == f'"{inspect.signature(pf.FileSink).parameters["format"].default}"'
    assert {name: ast.literal_eval(text) for name, text in literals.items()} == {
        name: fields[name].default for name in literals
    }
    without = {name for name, text in said.items() if text == "none"} & fields.keys()
    assert {name for name in without if fields[name].get_default(call_default_factory=True)} == set()


def test_the_page_of_options_is_what_the_docstring_says() -> None:
    """``make docs`` has been run."""
    written = options_reference.PAGE.read_text()
    assert options_reference.page(written) == written
