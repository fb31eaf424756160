"""The command ``partfile``: its verbs in one place."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from partfile.cli import savepoint
from partfile.cli.cat import cat
from partfile.cli.checkpoints import checkpoints
from partfile.cli.clean import clean_
from partfile.cli.list import list_parts
from partfile.cli.recover import recover_
from partfile.cli.savepoint import create, dispose_
from partfile.cli.status import status
from partfile.cli.verify import verify
from partfile.version import __version__

app = typer.Typer(
    name="partfile",
    help="Look at what a partfile sink has written, and mend what a crash has left. Verbs that read are safe at any "
    "time, also while the job runs; those that change something print a plan and do nothing without --apply.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(epilog="Example: partfile status /data/flights --scan")(status)
app.command("list", epilog="Example: partfile list /data/flights --state orphan --older-than 24h")(list_parts)
app.command(epilog="Example: partfile cat /data/flights 2013-01-01/part-0a1b2c3d-0-4.json.gz | head")(cat)
app.command(epilog="Example: partfile checkpoints /data/flights --uid flights")(checkpoints)
app.command(epilog="Example: partfile verify /data/flights --json")(verify)
app.command("recover", epilog="Example: partfile recover /data/flights --uid flights --apply")(recover_)
app.command("clean", epilog="Example: partfile clean /data/flights --older-than 2d --apply")(clean_)
savepoint.app.command(
    "create", epilog="Example: partfile savepoint create /data/flights --to /data/savepoints --apply"
)(create)
savepoint.app.command(
    "dispose", epilog="Example: partfile savepoint dispose /data/savepoints/savepoint-flight-0123456789ab --apply"
)(dispose_)
app.add_typer(savepoint.app, name="savepoint")


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
