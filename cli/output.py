"""Where a verb writes: lines and colours for people, or JSON for programs; progress beside it."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from partfile.cli.escaping import shown
from partfile.cli.inspection.document import json_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pydantic import BaseModel

Style = Literal["bold", "dim", "red", "yellow", "green", "bold red"]


class Output:
    """Writes to standard output; notes and progress go to standard error.

    Args:
        as_json: Print nothing but JSON.
        no_color: No colours, also on a terminal; ``NO_COLOR`` in the environment says the same.
    """

    def __init__(self, *, as_json: bool = False, no_color: bool = False) -> None:
        self.as_json = as_json
        # None asks rich to look at the environment, which False would overrule.
        self._console = Console(
            no_color=no_color or None, highlight=False, markup=False, emoji=False, soft_wrap=True, file=sys.stdout
        )
        self._errors = Console(
            no_color=no_color or None, highlight=False, markup=False, emoji=False, soft_wrap=True, stderr=True
        )

    def report(self, model: BaseModel) -> None:
        """Print a verb's one JSON document."""
        sys.stdout.write(f"{json_text(model, indent=2)}\n")

    def json_line(self, model: BaseModel) -> None:
        """Print one line of a stream of JSON documents."""
        sys.stdout.write(f"{json_text(model)}\n")

    def line(self, text: str = "", style: Style | None = None) -> None:
        """Print one line for people, escaped."""
        if style is None or not self._console.is_terminal:
            sys.stdout.write(f"{shown(text)}\n")
        else:
            self._console.print(Text(shown(text), style=style))

    def table(self, head: Sequence[str], rows: Iterable[Sequence[str]], *, indent: int = 0) -> None:
        """Print rows in columns as wide as they need to be; nothing is cut off, and the last one is ragged."""
        lines = [[shown(cell) for cell in row] for row in rows]
        if not lines:
            return
        widths = [max(map(cell_len, column)) for column in zip(head, *lines, strict=True)]
        for number, row in enumerate([list(head), *lines]):
            cells = [cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
            self.line((" " * indent + "  ".join(cells)).rstrip(), "bold" if number == 0 else None)

    def note(self, text: str, style: Style | None = None) -> None:
        """Print one line to standard error."""
        self.flush()
        self._errors.print(Text(shown(text), style=style or ""))

    def raw(self, data: bytes) -> None:
        """Write bytes as they are."""
        sys.stdout.buffer.write(data)

    def flush(self) -> None:
        """Hand everything over, so that a reader who has gone is noticed while it can be dealt with."""
        sys.stdout.flush()

    @contextmanager
    def progress(self, description: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """Show on a terminal how far long work has come; yields what is to be called with so many steps more.

        Args:
            description: What is done.
            total: All steps, if it is known.
        """
        if self.as_json or not self._errors.is_terminal:
            yield lambda _steps: None
            return
        count = TextColumn("{task.completed:,.0f}") if total is None else MofNCompleteColumn()
        bar = SpinnerColumn() if total is None else BarColumn()
        columns = (TextColumn("{task.description}"), bar, count, TimeElapsedColumn())
        with Progress(*columns, console=self._errors, transient=True) as progress:
            task = progress.add_task(shown(description), total=total)
            yield lambda steps: progress.update(task, advance=steps)
