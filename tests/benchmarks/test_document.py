"""docs/BENCHMARKS.md is made from a record, and the same record makes the same document."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from document import NAME, PLOTS, TEMPLATE, document_text, write_document
from figures import Report
from goals import GOALS
from records import Record
from runs import Run, with_files

DOCS = Path(__file__).parents[2] / "docs"


def made_record() -> Record:
    """A record with something for each plot."""
    native, ours = (
        with_files(Run(f"shuffled {name}", seconds=seconds, rows=1000, cpu_s=1.0), [1000 * seconds, 3000])
        for name, seconds in (("native parquet", 2), ("partfile parquet staged", 1))
    )
    throughput = Report([GOALS["P1 shuffled"].figure([2.5])], [native, ours], missing={"a peer": "it is not there"})
    curves = {"partfile json": [300.0, 310.0], "native parquet": [320.0, 400.0]}
    long = Report(
        extra={"batch_ms": curves, "metadata_bytes": {name: {1: 10, 2: 11} for name in curves}},
    )
    suites = {name: report.as_json() for name, report in {"throughput": throughput, "long": long}.items()}
    machine: dict[str, str | int | float] = {
        "cores": 2,
        "cpu": "a cpu",
        "memory_gib": 1.5,
        "kernel": "6",
        "java": "17",
        "pyspark": "4.3",
    }
    return Record("2026-01-01T000000", 1.0, machine, json.loads(json.dumps(suites)))


def test_the_document_says_what_was_found_and_what_was_not() -> None:
    """Figures, goals, reasons, the machine and the plots that were drawn are in it."""
    text = document_text(made_record(), ["latency"], TEMPLATE.read_text())
    assert "| P1 shuffled: Parquet by hour, rows/s / native Parquet | 2.50 | >= 2.00 | met |" in text
    assert "- a peer: it is not there." in text
    assert "2 cores (a cpu), 1.5 GiB" in text
    assert f"({PLOTS}/latency.svg)" in text
    assert f"({PLOTS}/metadata.svg)" not in text
    assert "no measurement" not in text


def test_a_look_says_that_it_is_none() -> None:
    """A document of a share of the data says so above the table."""
    text = document_text(replace(made_record(), share=0.25), [], TEMPLATE.read_text())
    assert "no measurement**: only a share of 0.25" in text


def test_the_same_record_draws_the_same_bytes(tmp_path: Path) -> None:
    """Plots have no date and no chance in them, so that a commit shows what has changed."""
    pytest.importorskip("matplotlib", reason="the plots need the extra bench")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_document(made_record(), tmp_path / name)
    plots = sorted((tmp_path / "one" / PLOTS).iterdir())
    assert [path.stem for path in plots] == ["file-sizes", "latency", "metadata", "throughput"]
    assert all(path.read_bytes() == (tmp_path / "two" / PLOTS / path.name).read_bytes() for path in plots)
    assert all(f"({PLOTS}/{path.name})" in (tmp_path / "one" / NAME).read_text() for path in plots)


def test_a_plot_without_data_goes_away(tmp_path: Path) -> None:
    """The plot of an older record is not left beside a newer document."""
    pytest.importorskip("matplotlib", reason="the plots need the extra bench")
    write_document(made_record(), tmp_path)
    write_document(replace(made_record(), suites={}), tmp_path)
    assert list((tmp_path / PLOTS).iterdir()) == []


def test_the_committed_document_has_a_row_for_each_goal() -> None:
    """A goal that is added or changed shows as missing until the document is made again."""
    text = (DOCS / NAME).read_text()
    assert [goal.title for goal in GOALS.values() if f"| {goal.title} |" not in text] == []


def test_the_committed_document_has_the_method_of_the_template() -> None:
    """A method that is changed is changed in both."""
    method = TEMPLATE.read_text().partition("## Method")[2]
    assert method
    assert (DOCS / NAME).read_text().endswith(method)
