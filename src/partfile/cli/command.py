"""The frame of every verb: PATH, the options that find the store, and the exit code of each end."""

from __future__ import annotations

import errno
import inspect
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from partfile.cli.completion import complete_uid
from partfile.cli.exit_codes import DONE, FINDINGS, UNREACHABLE, USAGE
from partfile.cli.output import Output, tell, warnings_told
from partfile.errors import ConfigError, NotApplied, PartfileError, page_url
from partfile.recovery.inspect.places import Place, open_for_looking
from partfile.sink.clock import system_clock_ms
from partfile.stores.registry import with_call_timeout
from partfile.stores.urls import check_no_secret, shown_url

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from partfile.recovery.inspect.places import Looker
    from partfile.stores.base import Store


_MAX_BYTES = 1 << 20
_TOLD_AFTER_S = 3
_CALL_TIMEOUT_S = 10

INTERRUPTED = 130
"""As shells have it: 128 and the number of SIGINT."""
PIPE_CLOSED = 141
"""Likewise for SIGPIPE: the reader of the output has gone, as ``head`` does."""

MEANINGS = {
    DONE: "nothing to do, or done",
    FINDINGS: "there are findings, or what was asked for is refused",
    USAGE: "the command cannot be used as given: an unknown option, no sink at PATH, a uid or part that is not there",
    UNREACHABLE: "the store, or the source of a job, cannot be reached, refuses, or does not answer in time",
    INTERRUPTED: "interrupted from the keyboard",
    PIPE_CLOSED: "the reader of the output has gone",
}
"""What each exit code says, for the documentation."""


def storage_options_of(pairs: Sequence[str], file: str | None) -> dict[str, object]:
    """Options of the store's client; a pair goes before the file.

    Args:
        pairs: ``NAME=VALUE`` each; values are text.
        file: Path of a JSON object, whose values may be of any type.

    Raises:
        ConfigError: A pair has no ``=``, or the file cannot be read; no value is shown.
    """
    options = {} if file is None else _read(file)
    for place, pair in enumerate(pairs, 1):
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ConfigError(
                f"--storage-option number {place} is not of the form NAME=VALUE; it is not shown, for it may be secret",
                hint="Write for instance --storage-option region=eu-west-1.",
            )
        options[name] = value
    return options


def _read(file: str) -> dict[str, object]:
    try:
        with Path(file).open("rb") as opened:
            data = opened.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"--storage-options-file {file!r} cannot be read: {error.strerror}",
            hint="Name a file on this host, and check that you may read it: ls -l FILE",
            path=file,
        ) from None
    try:
        found = json.loads(data) if len(data) <= _MAX_BYTES else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError(
            f"--storage-options-file {file!r} is no JSON object",
            hint='Write for instance {"region": "eu-west-1"} to it; or pass --storage-option region=eu-west-1.',
            path=file,
        )
    return found


BASE_PATH = "Base path of the sink: a local path, or a URL such as hdfs://... or s3://..."


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a verb: where, of which sink, and where to write."""

    place: Place
    uid: str | None
    """The sink that is meant; None is all of them."""
    out: Output
    now_ms: int
    """When it was called, in milliseconds since 1970."""

    def tell(self, text: str) -> None:
        """Print one line for people; nothing where JSON is asked for."""
        if not self.out.as_json:
            self.out.line(text)


@dataclass(frozen=True, slots=True)
class _Given:
    """The common options as they were given."""

    path: str
    uids: tuple[str, ...]
    checkpoint_dir: str | None
    pairs: tuple[str, ...]
    file: str | None

    def uid(self) -> str | None:
        """The sink that is meant; raises ConfigError."""
        if len(self.uids) > 1:
            raise ConfigError(
                f"--uid is given {len(self.uids)} times", hint="Name one sink: --uid U; left out, it is all."
            )
        return self.uids[0] if self.uids else None

    def place(self, out: Output) -> Place:
        """The place that is meant; raises ConfigError."""
        if self.checkpoint_dir is not None and not self.checkpoint_dir.strip():
            raise ConfigError(
                "--checkpoint-dir is empty", hint="Leave --checkpoint-dir out if the checkpoints are below PATH."
            )
        opener = _opener_for_a_person(out) if out.is_for_a_person else open_for_looking
        return Place(self.path, self.checkpoint_dir, storage_options_of(self.pairs, self.file), opener)


def _opener_for_a_person(out: Output) -> Looker:
    """Opens stores for a person who waits: tells of one that is silent for 3 s, and gives each call up after 10.

    What changes a store opens it by itself, and waits for as long as the sink does.
    """

    def opener(url: str, storage_options: Mapping[str, object]) -> Store:
        options = with_call_timeout(url, storage_options, _CALL_TIMEOUT_S)
        limit_s = options.get("call_timeout_s")
        end = "Ctrl-C ends it" if limit_s is None else f"a call is given up after {limit_s} s"
        with out.silence_told(f"{shown_url(url)} has not answered for {_TOLD_AFTER_S} s; {end}", _TOLD_AFTER_S):
            return open_for_looking(url, options)

    return opener


COMMON_OPTIONS: dict[str, tuple[Any, Any]] = {
    "uid": (
        Annotated[
            list[str] | None,
            typer.Option(
                "--uid", metavar="U", help="Only this sink; U~N is its writer N.", autocompletion=complete_uid
            ),
        ],
        None,
    ),
    "checkpoint_dir": (
        Annotated[
            str | None,
            typer.Option(
                "--checkpoint-dir", metavar="D", help="Where the sink keeps its checkpoints, if not below PATH."
            ),
        ],
        None,
    ),
    "storage_option": (
        Annotated[
            list[str] | None,
            typer.Option(
                "--storage-option",
                metavar="K=V",
                help="Option of the store's client, as storage_options of the sink; may be repeated. Every user of "
                "this host can see a command: put secrets into a file.",
            ),
        ],
        None,
    ),
    "storage_options_file": (
        Annotated[
            str | None,
            typer.Option("--storage-options-file", metavar="F", help="JSON object with options of the store's client."),
        ],
        None,
    ),
    "as_json": (Annotated[bool, typer.Option("--json", help=f"Print JSON: {page_url('CLI', 'json')}")], False),
    "no_color": (Annotated[bool, typer.Option("--no-color", help="No colours, also on a terminal.")], False),
    "debug": (Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")], False),
}
"""Options of every verb, with their defaults."""


def verb(*, path: str = BASE_PATH) -> Callable[[Callable[..., int]], Callable[..., None]]:
    """Make a command of a function that takes a ``Call`` first and returns the exit code.

    Its further parameters are the verb's own arguments and options, as typer reads them. A ``PartfileError`` becomes
    one message and its exit code; Ctrl-C and a reader that has gone end quietly.

    Args:
        path: What the first argument means.
    """

    def decorated(function: Callable[..., int]) -> Callable[..., None]:
        def command(**values: Any) -> None:
            common = {name: values.pop(name) for name in ("path", *COMMON_OPTIONS)}
            place = _place_words(common["path"], common["checkpoint_dir"]) if path == BASE_PATH else ()
            out = Output(as_json=common["as_json"], no_color=common["no_color"], place=place)
            given = _Given(
                common["path"],
                tuple(common["uid"] or ()),
                common["checkpoint_dir"],
                tuple(common["storage_option"] or ()),
                common["storage_options_file"],
            )

            def act() -> int:
                return function(Call(given.place(out), given.uid(), out, system_clock_ms()), **values)

            raise typer.Exit(ended(act, out, debug=common["debug"], applies=bool(values.get("apply"))))

        command.__name__, command.__doc__ = function.__name__, function.__doc__
        _set_signature(command, function, path)
        return command

    return decorated


def _place_words(base: str, checkpoint_dir: str | None) -> tuple[str, ...]:
    """The words that say where the sink is; none if one may hold a secret."""
    try:
        for url in (base, checkpoint_dir or ""):
            check_no_secret(url)
    except ConfigError:
        return ()
    return (base, "--checkpoint-dir", checkpoint_dir) if checkpoint_dir else (base,)


def ended(act: Callable[[], int], out: Output, *, debug: bool, applies: bool = False) -> int:
    """Do what a verb does, and return the exit code; an error is told in words.

    Args:
        act: Returns the exit code of its end.
        out: Where to write.
        debug: Show the traceback of an error.
        applies: Whether it changes something, by a plan.
    """
    try:
        try:
            with warnings_told(out):
                code = act()
            out.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            code = tell(_in_words(error), out, debug=debug)
            _drop_unwritten_output()
        except Exception as error:  # noqa: BLE001 - no traceback for people
            return tell(error, out, debug=debug)
    except KeyboardInterrupt:
        if applies:
            out.note("partfile: interrupted. What it had begun to change is ended by the same command run again.")
        return INTERRUPTED
    except BrokenPipeError:
        _drop_unwritten_output()
        return PIPE_CLOSED
    return code


def _drop_unwritten_output() -> None:
    """Let what Python flushes at its end go nowhere if it cannot be written, instead of raising again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _in_words(error: OSError) -> Exception:
    """The system's error for a file or the output, as an error of ours: it is not a mistake of this program."""
    if isinstance(error, PartfileError):
        return error
    if error.filename is not None:
        hint = "Run it as a user that may read it. See who may: ls -l PATH" if error.errno == errno.EACCES else ""
        return NotApplied(f"{error.filename!r} cannot be read: {error.strerror}", hint=hint)
    if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EBADF}:
        return NotApplied(
            f"the output cannot be written: {error.strerror}",
            hint="Free space, or write it elsewhere. See what is free: df -h PATH",
        )
    return error


def _set_signature(command: Callable[..., None], function: Callable[..., int], path: str) -> None:
    """Let typer see the path, the function's own parameters and the common options, in this order."""
    hints = get_type_hints(function, include_extras=True)
    own = list(inspect.signature(function).parameters.values())[1:]
    kinds = {"kind": inspect.Parameter.KEYWORD_ONLY}
    first = inspect.Parameter("path", annotation=Annotated[str, typer.Argument(metavar="PATH", help=path)], **kinds)
    parameters = [
        first,
        *(one.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[one.name]) for one in own),
        *(
            inspect.Parameter(name, annotation=annotation, default=default, **kinds)
            for name, (annotation, default) in COMMON_OPTIONS.items()
        ),
    ]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    vars(command)["__signature__"] = inspect.Signature(parameters)
