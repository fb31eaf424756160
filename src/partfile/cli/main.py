"""The command ``partfile``: its verbs, each of which is imported when it is called.

So ``--help``, TAB and a verb wait for no module of another verb.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from partfile.errors import ConfigError
from partfile.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

_EPILOG = "Example: partfile "


class LazyVerb(TyperCommand):
    """Stands for a verb, or for a group of verbs, until it is called.

    Args:
        name: What the user types.
        where: Its module and the function or the group in it, with a colon between them.
        text: What the list of verbs says of it: the first paragraph of its own help.
        example: Shown below its help.
    """

    def __init__(self, name: str, where: str, text: str, example: str = "") -> None:
        super().__init__(name, help=text, rich_markup_mode=None)
        self._where = where
        self._example = example

    def loaded(self) -> Any:
        """The command itself."""
        module, _, name = self._where.partition(":")
        found = getattr(import_module(module), name)
        if not isinstance(found, typer.Typer):
            alone = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None, add_completion=False)
            alone.command(self.name, epilog=_EPILOG + self._example)(found)
            found = alone
        command = typer.main.get_command(found)
        command.name = self.name
        return command

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Let the command itself read its arguments; the context names it, so that it is what runs."""
        return self.loaded().make_context(info_name, args, parent=parent, **extra)


VERBS = (
    LazyVerb(
        "status",
        "partfile.cli.status:status",
        "Show what is stuck, why, and what mends it; then how each sink stands.",
        "status /data/flights --scan",
    ),
    LazyVerb(
        "list",
        "partfile.cli.list:list_parts",
        "List every part and file below PATH: state, size, valid length, rows, checkpoint, subtask, age and path.",
        "list /data/flights --state orphan --older-than 24h",
    ),
    LazyVerb(
        "cat",
        "partfile.cli.cat:cat",
        "Print what counts of a part: the rows up to its valid length, finished or not.",
        "cat /data/flights 2013-01-01/part-0a1b2c3d-0-4.json.gz | head",
    ),
    LazyVerb(
        "schema",
        "partfile.cli.schema:schema",
        "Print the columns of the rows of PATH with their types, by the newest checkpoint of each sink.",
        "schema /data/flights --format spark",
    ),
    LazyVerb(
        "sql",
        "partfile.cli.schema:sql",
        "Print the SQL statement that reads the finished files of PATH with their true types.",
        "sql /data/flights | duckdb",
    ),
    LazyVerb(
        "checkpoints",
        "partfile.cli.checkpoints:checkpoints",
        "List the retained checkpoints of each sink: checkpoints, takeovers, tombstones, published or not, and damage.",
        "checkpoints /data/flights --uid flights",
    ),
    LazyVerb(
        "state",
        "partfile.cli.state:state",
        "Show the keys of each sink that deduplicates: how many, their bytes and ages, and when each run expires.",
        "state /data/events --export keys.parquet",
    ),
    LazyVerb(
        "verify",
        "partfile.cli.verify:verify",
        "Check every invariant of PATH, and say which finished files belong to which checkpoint.",
        "verify /data/flights --json",
    ),
    LazyVerb(
        "recover",
        "partfile.cli.recover:recover_",
        "Publish what a stopped sink has left: each part that a completed checkpoint vouches for, at its valid length.",
        "recover /data/flights --uid flights --apply",
    ),
    LazyVerb(
        "clean",
        "partfile.cli.clean:clean_",
        "Remove what crashes have left and no retained checkpoint names: staged files, uploads, state files.",
        "clean /data/flights --older-than 2d --apply",
    ),
    LazyVerb(
        "run",
        "partfile.cli.run:run",
        "Run the job that a Python file describes, until its source ends or Ctrl-C ends it with a last checkpoint.",
        "run orders.py",
    ),
    LazyVerb(
        "savepoint",
        "partfile.cli.savepoint:app",
        "Savepoints: snapshots that belong to you, which nothing deletes unasked.",
    ),
)
"""In the order of ``--help``."""


class _Verbs(TyperGroup):
    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for one in VERBS:
            self.add_command(one)

    def main(self, args: Sequence[str] | None = None, *more: Any, **options: Any) -> Any:
        """Run a verb and end the process; with ``--json`` a mistake in the words is a document as every error."""
        is_alone = options.get("standalone_mode", True)
        if not is_alone or "--json" not in (sys.argv[1:] if args is None else args):
            return super().main(args, *more, **options)
        try:
            code = super().main(args, *more, **{**options, "standalone_mode": False})
        except Exception as error:
            # Click's errors have no class that every version of typer shows.
            told = getattr(error, "format_message", None)
            if told is None:
                raise
            from partfile.cli.output import Output, tell  # noqa: PLC0415 - what has no mistake waits for no module.

            code = tell(
                ConfigError(told(), hint="See the words: partfile VERB --help"), Output(as_json=True), debug=False
            )
        sys.exit(code)


app = typer.Typer(
    cls=_Verbs,
    name="partfile",
    help="Look at what a partfile sink has written, and mend what a crash has left. Verbs that read are safe at any "
    "time, also while the job runs; those that mend something print a plan and do nothing without --apply. `run` runs "
    "a job without Spark.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"partfile {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of the command itself."""
    del version


def main() -> None:
    """Run the command line of this process, and end it."""
    if sys.stdout is None:
        sys.exit("partfile: standard output is closed. Hint: open it, or send it to /dev/null.")
    app(prog_name="partfile")
