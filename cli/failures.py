"""How an error is told: one message with its way out on standard error, never a traceback unless asked for."""

from __future__ import annotations

import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from partfile.cli.inspection.document import Json, json_text
from partfile.cli.inspection.exit_codes import code_of
from partfile.cli.inspection.option_names import in_words_of_a_command
from partfile.filesystems.errors import ConfigError, PartfileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from partfile.cli.changing.failed_jobs import FailedJob
    from partfile.cli.output import Output


class ErrorReport(Json):
    """What ``--json`` prints to standard error when a verb fails."""

    schema_name: Literal["partfile.error"] = Field("partfile.error", alias="schema")
    schema_version: Literal[1] = 1
    error: str
    """Name of the error's class, one of those in ``filesystems/errors.py`` as a rule."""
    message: str
    """What went wrong, with the name of what is at fault."""
    hint: str
    """What to do about it; may be empty."""
    path: str | None
    """The path at fault."""
    checkpoint_id: int | None
    """The checkpoint at fault."""
    exit_code: int
    """What the process ends with."""


@contextmanager
def hinting(hint: str) -> Iterator[None]:
    """Say what to do about an option that cannot be used, where the library that refuses it does not know whose it is.

    Args:
        hint: What is told of a ``ConfigError`` that has no hint of its own.

    Raises:
        ConfigError: The same one.
    """
    try:
        yield
    except ConfigError as error:
        error.hint = error.hint or hint
        raise


def report_of(error: BaseException) -> ErrorReport:
    """What is told of an error."""
    known = error if isinstance(error, PartfileError) else None
    return ErrorReport(
        error=type(error).__name__,
        message=in_words_of_a_command(known.message) if known else f"unexpected {type(error).__name__}: {error}",
        hint=in_words_of_a_command(known.hint) if known else "Run it again with --debug, and report what it shows.",
        path=known.path if known else None,
        checkpoint_id=known.checkpoint_id if known else None,
        exit_code=code_of(error),
    )


def tell_failed(failed: Iterable[FailedJob], out: Output) -> None:
    """Print to standard error what is wrong with jobs that were left."""
    for one in failed:
        out.note(f"partfile: sink {one.job} is left: {one.problem.message}", "red")
        if one.problem.hint:
            out.note(f"Hint: {one.problem.hint}")


def tell_unread(directories: Iterable[str], out: Output) -> None:
    """Print to standard error which directories below the base were passed over."""
    for directory in sorted(directories):
        out.note(f"partfile: not looked at, since this user may not read it: {directory}", "yellow")


def tell(error: BaseException, out: Output, *, debug: bool) -> int:
    """Print an error to standard error, and return what the process is to end with."""
    report = report_of(error)
    if debug:
        for line in "".join(traceback.format_exception(error)).splitlines():
            out.note(line, "dim")
    if out.as_json:
        out.note(json_text(report))
        return report.exit_code
    where = f" (checkpoint {report.checkpoint_id})" if report.checkpoint_id is not None else ""
    at = f" (path {report.path!r})" if report.path is not None and report.path not in report.message else ""
    out.note(f"partfile: {report.message}{at}{where}", "red")
    if report.hint:
        out.note(f"Hint: {report.hint}")
    return report.exit_code
