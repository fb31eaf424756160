"""Makes docs/BENCHMARKS.md from a record, its template and the plots."""

from __future__ import annotations

from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from goals import GOALS
from records import NOT_MEASURED, table_rows
from tables import markdown, noise_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from records import Record

TEMPLATE = Path(__file__).parent / "document.template"
NAME = "BENCHMARKS.md"
PLOTS = "benchmarks"
"""The directory of the plots beside the document."""
CAPTIONS = {
    "throughput": "Rows a second of each sink: median of the rounds, the line from the slowest to the fastest.",
    "file-sizes": "The files that each sink leaves of the same shuffled rows.",
    "latency": "How long each micro-batch takes over a long stream with 24 parts open (suite `long`).",
    "metadata": "Metadata that each batch writes: partfile's checkpoint, and the log of Spark's own sink.",
}
DOCUMENT_HEAD = ("figure", "value", "goal", "met", "rounds", "what was seen")
_NOT_THE_WHOLE = (
    "**This is a look and no measurement**: only a share of {share:g} of the data was written. Its figures say that "
    "the suites work, and nothing else.\n"
)


def write_document(record: Record, directory: Path) -> Path:
    """Write the document and its plots; says so where matplotlib is missing.

    Args:
        record: What was measured.
        directory: Where ``BENCHMARKS.md`` goes.
    """
    try:
        from plots import draw_plots  # noqa: PLC0415 - matplotlib is in the extra bench
    except ImportError:
        print("no plots: matplotlib is not installed (extra bench)")
        drawn = []
    else:
        drawn = draw_plots(record, directory / PLOTS)
    path = directory / NAME
    path.write_text(document_text(record, drawn, TEMPLATE.read_text()))
    print(f"document: {path}")
    return path


def document_text(record: Record, plots: Sequence[str], template: str) -> str:
    """The document.

    Args:
        record: What was measured.
        plots: Names of those that were drawn.
        template: Its text, with ``$name`` for what comes from the record.
    """
    whole = "" if record.share >= 1 else _NOT_THE_WHOLE.format(share=record.share)
    return Template(template).substitute(
        share=whole,
        started=record.started,
        machine=machine_text(record),
        table=markdown([DOCUMENT_HEAD, *table_rows(record)[1:]]),
        missing=missing_text(record),
        noise="".join(f"- {line}\n" for line in noise_lines(record)) or "- None in any run that counts.\n",
        plots="\n".join(f"![{CAPTIONS[name]}]({PLOTS}/{name}.svg)\n\n{CAPTIONS[name]}\n" for name in plots),
    )


def machine_text(record: Record) -> str:
    """One sentence about the machine, one about the versions."""
    machine = dict(record.machine)
    hardware = f"{machine.pop('cores')} cores ({machine.pop('cpu')}), {machine.pop('memory_gib')} GiB of memory"
    system = f"Linux {machine.pop('kernel')}, {machine.pop('java')}"
    versions = ", ".join(f"{name} {version}" for name, version in machine.items())
    return f"{hardware}; {system}; {versions}."


def missing_text(record: Record) -> str:
    """A list of what could not be measured."""
    reasons = {row[0]: row[5] for row in table_rows(record) if row[1] == NOT_MEASURED}
    reasons |= {name: why for name, why in record.missing.items() if name not in GOALS}
    return "".join(f"- {name}: {why}.\n" for name, why in reasons.items()) or "- Nothing.\n"
