"""The output of a verb: lines and colours for a person, JSON for a program; progress and errors beside it."""

from __future__ import annotations

import json
import logging
import re
import shlex
import sys
import threading
import traceback
import unicodedata
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from partfile.cli.exit_codes import code_of
from partfile.errors import ConfigError, PartfileError
from partfile.quantities import DURATION_HINT, SECONDS, SIZE_HINT, bytes_in, seconds_in
from partfile.recovery.documents import Json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pydantic import BaseModel

    from partfile.recovery.ownership import FailedJob


_OBEYED = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode's categories of control and format characters, lone surrogates, separators of lines and paragraphs."""


def shown(text: str) -> str:
    r"""A text with everything that a terminal would obey written as ``\xNN``, ``\uNNNN`` or ``\UNNNNNNNN``."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(character) for character in text)


_OPTIONS = ("checkpoint_dir", "restore_from", "savepoint_dir", "storage_options")
_WORDS = ("cut",)
"""Options that are words as well: meant only where a value follows."""
_NAMES = "|".join((*_OPTIONS, *(f"{word}(?==)" for word in _WORDS)))
_NAMED = re.compile(rf"'(?:[^'\\]|\\.)*'|\b(?P<name>{_NAMES})\b(?P<value>=)?")
_MODEL = re.compile(r"^\w+Settings: ")
_AT_A_BASE = re.compile(r"\b(partfile (?!savepoint\b)[a-z]+) PATH\b")
"""A command in a hint of what knows no base."""
_SPELLED = {"savepoint_dir": "--to", "storage_options": "--storage-option"}


def in_words_of_a_command(text: str) -> str:
    """A message or hint with ``--restore-from X`` for ``restore_from=X``, and so on; what is quoted stays."""
    return _NAMED.sub(_spelled, _MODEL.sub("", text))


def _spelled(match: re.Match[str]) -> str:
    name = match["name"]
    if name is None:
        return match[0]
    option = _SPELLED.get(name, f"--{name.replace('_', '-')}")
    return f"{option} " if match["value"] else option


def json_text(
    model: BaseModel, *, indent: int | None = None, in_words: Callable[[str], str] = in_words_of_a_command
) -> str:
    """A document as JSON in ASCII alone: names are in it literally, and a terminal obeys none of it.

    Args:
        model: The document.
        indent: Of its levels; None is one line.
        in_words: Makes its messages and hints those of a command.
    """
    told = _told_by_a_command(model.model_dump(mode="json", by_alias=True), in_words)
    return json.dumps(told, indent=indent).replace("\x7f", "\\u007f")


def _told_by_a_command(value: Any, in_words: Callable[[str], str]) -> Any:
    if isinstance(value, list):
        return [_told_by_a_command(one, in_words) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        name: in_words(one) if name in {"message", "hint"} and one else _told_by_a_command(one, in_words)
        for name, one in value.items()
    }


def shell_word(text: str) -> str:
    """A text as one word for a shell; one that a terminal would obey in the ``$'...'`` form of bash, zsh and ksh."""
    safe = shown(text)
    if safe == text:
        return shlex.quote(text)
    inside = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{shown(inside)}'"


def command_line(words: Iterable[str]) -> str:
    """A command that can be copied from the terminal and means the same there."""
    return " ".join(map(shell_word, words))


def _escaped(character: str) -> str:
    if unicodedata.category(character) not in _OBEYED:
        return character
    number = ord(character)
    if number <= 0xFF:  # noqa: PLR2004 - two digits
        # An escape of one byte would stand for a byte, not for the character, beyond ASCII.
        return f"\\x{number:02x}" if number < 0x80 else f"\\u{number:04x}"  # noqa: PLR2004
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"  # noqa: PLR2004


Style = Literal["bold", "dim", "red", "yellow", "green", "bold red"]


class Output:
    """Writes to standard output; notes and progress go to standard error.

    Args:
        as_json: Print nothing but JSON.
        no_color: No colours, also on a terminal; ``NO_COLOR`` in the environment says the same.
        place: The words of the command that say where the sink is, for commands in hints; none where that is not known.
    """

    def __init__(self, *, as_json: bool = False, no_color: bool = False, place: Sequence[str] = ()) -> None:
        # In functions, since --help and TAB need no terminal of rich.
        from rich.console import Console  # noqa: PLC0415

        self.as_json = as_json
        self._place = command_line(place)
        # None asks rich to look at the environment, which False would overrule.
        self._console = Console(
            no_color=no_color or None, highlight=False, markup=False, emoji=False, soft_wrap=True, file=sys.stdout
        )
        self._errors = Console(
            no_color=no_color or None, highlight=False, markup=False, emoji=False, soft_wrap=True, stderr=True
        )

    @property
    def is_for_a_person(self) -> bool:
        """Whether a person sees what is noted: standard error is a terminal, and no program reads JSON."""
        return self._errors.is_terminal and not self.as_json

    @contextmanager
    def silence_told(self, text: str, after_s: float) -> Iterator[None]:
        """Note a text if what is done inside takes longer than ``after_s`` seconds."""
        timer = threading.Timer(after_s, self.note, (text, "yellow"))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def in_words(self, text: str) -> str:
        """A message or hint as ``in_words_of_a_command`` has it, with the sink's place for the word PATH."""
        told = in_words_of_a_command(text)
        return _AT_A_BASE.sub(lambda found: f"{found[1]} {self._place}", told) if self._place else told

    def report(self, model: BaseModel) -> None:
        """Print a verb's one JSON document."""
        sys.stdout.write(f"{json_text(model, indent=2, in_words=self.in_words)}\n")

    def json_line(self, model: BaseModel) -> None:
        """Print one line of a stream of JSON documents."""
        sys.stdout.write(f"{json_text(model, in_words=self.in_words)}\n")

    def line(self, text: str = "", style: Style | None = None) -> None:
        """Print one line for people, escaped."""
        if style is None or not self._console.is_terminal:
            sys.stdout.write(f"{shown(text)}\n")
        else:
            from rich.text import Text  # noqa: PLC0415

            self._console.print(Text(shown(text), style=style))

    def table(self, head: Sequence[str], rows: Iterable[Sequence[str]], *, indent: int = 0) -> None:
        """Print rows in columns as wide as they need to be; nothing is cut off, and the last one is ragged."""
        from rich.cells import cell_len  # noqa: PLC0415

        lines = [[shown(cell) for cell in row] for row in rows]
        if not lines:
            return
        widths = [max(map(cell_len, column)) for column in zip(head, *lines, strict=True)]
        for number, row in enumerate([list(head), *lines]):
            cells = [cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
            self.line((" " * indent + "  ".join(cells)).rstrip(), "bold" if number == 0 else None)

    def note(self, text: str, style: Style | None = None) -> None:
        """Print one line to standard error."""
        from rich.text import Text  # noqa: PLC0415

        self.flush()
        self._errors.print(Text(shown(text), style=style or ""))

    @contextmanager
    def state_shown(self, text: str) -> Iterator[Callable[[str], None]]:
        """Show one line on a terminal while something runs, with the time that has passed.

        Args:
            text: The line at first; what is yielded is called with another one.
        """
        if not self.is_for_a_person:
            yield lambda _text: None
            return
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

        columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        with Progress(*columns, console=self._errors, transient=True) as progress:
            task = progress.add_task(shown(text), total=None)
            yield lambda new: progress.update(task, description=shown(new))

    def raw(self, data: bytes) -> None:
        """Write bytes as they are."""
        sys.stdout.buffer.write(data)

    def flush(self) -> None:
        """Flush everything, so that a reader that has gone is noticed while it can be dealt with."""
        sys.stdout.flush()

    @contextmanager
    def progress(self, description: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """Show on a terminal how far long work has come; yields what is to be called with so many steps more.

        Args:
            description: What is done.
            total: All steps, if it is known.
        """
        if not self.is_for_a_person:
            yield lambda _steps: None
            return
        from rich.progress import (  # noqa: PLC0415
            BarColumn,
            MofNCompleteColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
        )

        count = TextColumn("{task.completed:,.0f}") if total is None else MofNCompleteColumn()
        bar = SpinnerColumn() if total is None else BarColumn()
        columns = (TextColumn("{task.description}"), bar, count, TimeElapsedColumn())
        with Progress(*columns, console=self._errors, transient=True) as progress:
            task = progress.add_task(shown(description), total=total)
            yield lambda steps: progress.update(task, advance=steps)


def seconds_of(text: str, option: str) -> float:
    """The seconds that ``90s``, ``15m``, ``24h``, ``7d`` or ``2w`` stand for.

    Args:
        text: As it was written.
        option: The option it was given as, for the message.

    Raises:
        ConfigError: It is something else.
    """
    found = seconds_in(text)
    if found is None:
        raise ConfigError(f"{option} {text!r} is not a duration", hint=DURATION_HINT.replace("--older-than", option))
    return found


def bytes_of(text: str, option: str) -> int:
    """The bytes that ``5242880``, ``512K``, ``5M`` or ``5MiB`` stand for; units are powers of 1024.

    Args:
        text: As it was written.
        option: The option it was given as, for the message.

    Raises:
        ConfigError: It is something else.
    """
    found = bytes_in(text)
    if found is None:
        raise ConfigError(f"{option} {text!r} is not a size", hint=SIZE_HINT.replace("--min-bytes", option))
    return found


def shown_seconds(seconds: float | None) -> str:
    """A duration as people say it, in two units at most; ``?`` if it is not known."""
    if seconds is None:
        return "?"
    left = max(0, int(seconds))
    words: list[str] = []
    for unit in ("d", "h", "m", "s"):
        count, left = divmod(left, SECONDS[unit])
        if count or (unit == "s" and not words):
            words.append(f"{count}{unit}")
        if len(words) == 2 or (words and not count):  # noqa: PLR2004 - two units
            break
    return " ".join(words[:2])


def counted(number: int, noun: str) -> str:
    """A number with its noun, which gets an s unless there is one."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def shown_bytes(count: int | None) -> str:
    """A size as people say it; ``?`` if it is not known."""
    if count is None:
        return "?"
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:  # noqa: PLR2004 - the next unit
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


class WarningReport(Json):
    """The warning that ``--json`` prints to standard error; the verb goes on."""

    schema_name: Literal["partfile.warning"] = Field("partfile.warning", alias="schema")
    schema_version: Literal[1] = 1
    message: str
    """The warning."""


class _Notes(logging.Handler):
    """Prints warnings beside the output. A plan is made again before it is done, and would say everything twice."""

    def __init__(self, out: Output) -> None:
        super().__init__(logging.WARNING)
        self._out = out
        self._told: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Print a message that has not been printed yet."""
        text = self._out.in_words(record.getMessage().replace("\nHint: ", " Hint: "))
        if text in self._told:
            return
        self._told.add(text)
        # A reader of standard error that has gone is no reason to leave work half done.
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


class ErrorReport(Json):
    """The error that ``--json`` prints to standard error when a verb fails."""

    schema_name: Literal["partfile.error"] = Field("partfile.error", alias="schema")
    schema_version: Literal[1] = 1
    error: str
    """Name of the error's class, one of those in ``partfile.errors`` as a rule."""
    message: str
    """The error, with the name of the file, option or column at fault."""
    hint: str
    """Advice for the operator; may be empty."""
    path: str | None
    """The path at fault."""
    checkpoint_id: int | None
    """The checkpoint at fault."""
    exit_code: int
    """The exit code of the process."""


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


def report_of(error: BaseException, in_words: Callable[[str], str]) -> ErrorReport:
    """Describe an error.

    Args:
        error: What was raised.
        in_words: Makes its message and its hint those of a command.
    """
    known = error if isinstance(error, PartfileError) else None
    return ErrorReport(
        error=type(error).__name__,
        message=in_words(known.message) if known else f"unexpected {type(error).__name__}: {error}",
        hint=in_words(known.hint) if known else "Run it again with --debug, and report what it shows.",
        path=known.path if known else None,
        checkpoint_id=known.checkpoint_id if known else None,
        exit_code=code_of(error),
    )


def tell_failed(failed: Iterable[FailedJob], out: Output) -> None:
    """Print to standard error what is wrong with jobs that were left."""
    for one in failed:
        out.note(f"partfile: sink {one.job} is left: {out.in_words(one.problem.message)}", "red")
        if one.problem.hint:
            out.note(f"Hint: {out.in_words(one.problem.hint)}")


def tell_unread(directories: Iterable[str], out: Output) -> None:
    """Print to standard error which directories below the base were passed over."""
    for directory in sorted(directories):
        out.note(f"partfile: not looked at, since this user may not read it: {directory}", "yellow")


def tell(error: BaseException, out: Output, *, debug: bool) -> int:
    """Print an error to standard error, and return what the process is to end with."""
    report = report_of(error, out.in_words)
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
