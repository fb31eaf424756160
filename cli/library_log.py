"""What the library logs while a command runs: each warning is told once, in the words of the command."""

from __future__ import annotations

import logging
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from partfile.cli.inspection.document import Json, json_text
from partfile.cli.inspection.option_names import in_words_of_a_command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partfile.cli.output import Output


class WarningReport(Json):
    """What ``--json`` prints to standard error of something that ends no verb and should be known."""

    schema_name: Literal["partfile.warning"] = Field("partfile.warning", alias="schema")
    schema_version: Literal[1] = 1
    message: str
    """What there is to know."""


class _Notes(logging.Handler):
    """Prints warnings beside the output. A plan is made again before it is done, and would say everything twice."""

    def __init__(self, out: Output) -> None:
        super().__init__(logging.WARNING)
        self._out = out
        self._told: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Print a message that has not been printed yet."""
        text = in_words_of_a_command(record.getMessage())
        if text in self._told:
            return
        self._told.add(text)
        # A reader of standard error who has gone is no reason to leave work half done.
        with suppress(OSError):
            if self._out.as_json:
                self._out.note(json_text(WarningReport(message=text)))
            else:
                self._out.note(f"warning: {text}", "yellow")


@contextmanager
def warnings_told(out: Output) -> Iterator[None]:
    """Let an output tell what the library warns of."""
    logger, notes = logging.getLogger("partfile"), _Notes(out)
    logger.addHandler(notes)
    try:
        yield
    finally:
        logger.removeHandler(notes)
