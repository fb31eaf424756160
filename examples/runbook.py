"""Makes the outputs in ``docs/RUNBOOK.md`` by causing each failure: ``python runbook.py [--check] [NAME ...]``.

Needs the extra dev, and Java for the failures of Spark. ``--check`` writes nothing, and returns 1 if a command, an
exit code or a verdict in the document is not what there is.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from runbook_failures import LOCAL
from runbook_remote import ON_S3, WITH_SPARK, moto
from runbook_terminal import Terminal, structure
from support.spark.streams import build_session

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet

PAGE = Path(__file__).parents[1] / "docs" / "RUNBOOK.md"
_BLOCK = re.compile(r"(<!-- run (?P<name>[a-z-]+\.[a-z-]+) -->\n\n)(?P<text>(?:(?:    .*)?\n)*?)(<!-- end -->)")
SMALL_BATCHES = {"spark.sql.execution.arrow.maxRecordsPerBatch": "10"}
"""So that a task has begun its parts before it dies."""
FAILURES = (*LOCAL, *ON_S3, *WITH_SPARK)


def main() -> int:
    """Write the outputs into the document, or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some failures only: {', '.join(FAILURES)}")
    options = parser.parse_args()
    made = blocks_of(set(options.names or FAILURES))
    page = PAGE.read_text()
    if options.check:
        differences = compare(page, made)
        print("\n".join(differences) or "docs/RUNBOOK.md is up to date")
        return 1 if differences else 0
    PAGE.write_text(_BLOCK.sub(lambda found: _filled(found, made), page))
    return 0


def blocks_of(names: AbstractSet[str]) -> dict[str, list[str]]:
    """What the terminal shows of some failures, by failure and section."""
    made: dict[str, list[str]] = {}
    for name in LOCAL.keys() & names:
        made |= _run(name, LOCAL[name])
    if ON_S3.keys() & names:
        with tempfile.TemporaryDirectory() as directory, moto(Path(directory)) as server:
            for name in ON_S3.keys() & names:
                made |= _run(name, ON_S3[name], server)
    if WITH_SPARK.keys() & names:
        with build_session("local[2,4]", **SMALL_BATCHES) as spark:
            for name in WITH_SPARK.keys() & names:
                made |= _run(name, WITH_SPARK[name], spark)
    return made


def shown(page: str) -> dict[str, list[str]]:
    """The outputs in a document, by failure and section."""
    return {
        found["name"]: [line.removeprefix("    ") for line in found["text"].splitlines()]
        for found in _BLOCK.finditer(page)
    }


def compare(page: str, made: dict[str, list[str]]) -> list[str]:
    """Where commands, exit codes and verdicts differ; empty if nowhere."""
    there = shown(page)
    differences: list[str] = []
    for name, lines in made.items():
        before, after = structure(there.get(name, [])), structure(lines)
        differences += difflib.unified_diff(before, after, f"{name} in the document", f"{name} as it is", lineterm="")
    return differences


def _run(name: str, cause: Callable[..., None], *given: object) -> dict[str, list[str]]:
    with tempfile.TemporaryDirectory(prefix="partfile-runbook-") as directory:
        terminal = Terminal(Path(directory).resolve())
        cause(terminal, *given)
    return {f"{name}.{section}": lines for section, lines in terminal.sections.items()}


def _filled(found: re.Match[str], made: dict[str, list[str]]) -> str:
    lines = made.get(found["name"])
    if lines is None:
        return found[0]
    text = "".join(f"    {line}\n" if line else "\n" for line in lines)
    return f"{found[1]}{text}\n{found[4]}"


if __name__ == "__main__":
    sys.exit(main())
