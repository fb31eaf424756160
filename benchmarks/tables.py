"""Text tables for the terminal and for Markdown, and the lines that point noisy runs out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rounds import NOISY_CORES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from records import Record


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with columns of one width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """The same as a table of Markdown, whose first row is its head."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]])


def noise_lines(record: Record) -> list[str]:
    """What to know about others' load: which runs count although there was some, and how many rounds were repeated."""
    noisy = [run for run in record.runs if run["foreign_cores"] > NOISY_CORES and not run["discarded"]]
    lines = [
        f"noisy: {run['case']} (round {run['round']}) ran beside {run['foreign_cores']:.2f} cores of others' load"
        for run in noisy
    ]
    if noisy:
        lines.append("The figures of noisy rounds are to be read with care; run again on a quiet machine.")
    if repeated := sum(run["discarded"] for run in record.runs):
        lines.append(f"{repeated} runs were repeated because of others' load and count for nothing.")
    return lines
