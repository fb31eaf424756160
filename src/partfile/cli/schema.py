"""The verbs ``schema`` and ``sql``: the columns of a tree, and the statement by which an engine reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, TypeVar, get_args

import typer
from pydantic import Field

from partfile.cli.command import Call, verb
from partfile.cli.completion import complete_word
from partfile.cli.exit_codes import DONE, FINDINGS
from partfile.errors import ConfigError, NotFound, PartfileError
from partfile.readers.filesystem import valid_length_filesystem
from partfile.readers.schema import schemas_held
from partfile.readers.sql import Dialect, Engine, Tree, column_lines, type_in
from partfile.readers.streams import finished
from partfile.recovery.documents import Json
from partfile.recovery.inspect.places import no_sink_at, sinks_in
from partfile.sink.newest_state import newest_states
from partfile.sink.schema import schema_in, united
from partfile.stores.registry import absolute
from partfile.stores.urls import local_path

if TYPE_CHECKING:
    from partfile.sink.states import RowSchema


Word = TypeVar("Word", bound=str)


class ColumnReport(Json):
    """One column of a tree."""

    name: str
    """Its name."""
    type: str
    """In the words of ``--format``."""
    in_path: bool
    """Whether its values are in the names of directories alone."""
    mixed: bool
    """Whether earlier rows have a type that this one does not hold."""


class SchemaReport(Json):
    """The output of ``schema --json``."""

    schema_name: Literal["partfile.schema"] = Field("partfile.schema", alias="schema")
    schema_version: Literal[1] = 1
    base: str
    """The base path as it was given."""
    types_of: Dialect
    """Whose types they are."""
    columns: tuple[ColumnReport, ...]
    """Those of directories among them."""


class SqlReport(Json):
    """The output of ``sql --json``."""

    schema_name: Literal["partfile.sql"] = Field("partfile.sql", alias="schema")
    schema_version: Literal[1] = 1
    base: str
    """The base path as it was given."""
    engine: Engine
    """Who reads."""
    statement: str
    """One statement or more, each ended by a semicolon."""


@verb()
def schema(
    call: Call,
    *,
    format: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="F",
            help="Whose types: arrow, spark, duckdb or hive.",
            autocompletion=complete_word(get_args(Dialect)),
        ),
    ] = "arrow",
) -> int:
    """Print the columns of the rows of PATH with their types, by the newest checkpoint of each sink.

    Columns of directories are among them; for hive they stand behind PARTITIONED BY. Ends with 1 where a column has
    rows of several types, of which no type holds all values. Safe while the sink runs.
    """
    dialect = _one_of("--format", format, get_args(Dialect))
    held = _held(call, reads_files=False)
    columns = schema_in(held)
    report = SchemaReport(
        base=call.place.base,
        types_of=dialect,
        columns=tuple(
            ColumnReport(
                name=column.name,
                type=type_in(dialect, column.type),
                in_path=column.name in held.path_columns,
                mixed=column.name in held.mixed,
            )
            for column in columns
        ),
    )
    if call.out.as_json:
        call.out.report(report)
    else:
        for line in column_lines(columns, dialect, held.path_columns):
            call.out.line(line)
        if held.mixed:
            names = ", ".join(held.mixed)
            call.out.note(f"partfile: {names}: earlier rows have values that this type does not hold")
    return FINDINGS if held.mixed else DONE


@verb()
def sql(
    call: Call,
    *,
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            metavar="E",
            help="Who reads: duckdb or spark.",
            autocompletion=complete_word(get_args(Engine)),
        ),
    ] = "duckdb",
) -> int:
    """Print the SQL statement that reads the finished files of PATH with their true types.

    It names every option of the engine's reader: columns, keys of directories, and how binary values and intervals are
    decoded. Lists the whole tree. Safe while the sink runs; files that are finished later are read too.
    """
    chosen = _one_of("--engine", engine, get_args(Engine))
    # Where there is no sink, that is said before a tree is listed.
    _held(call, reads_files=True)
    # Files come before the checkpoint that is told: it has the columns of each.
    shown = valid_length_filesystem(call.place.base, call.place.storage_options)
    with call.out.progress("listing files"):
        files = finished(shown)
    held = _held(call, reads_files=True)
    if held.mixed:
        raise PartfileError(
            f"rows below {call.place.base!r} have values of several types in {', '.join(map(repr, held.mixed))}",
            hint=(
                "No one statement reads them. Read such a column as text: "
                f"partfile.read(PATH, schema={{{held.mixed[0]!r}: 'string', ...}}); lines of JSON by "
                "partfile.read(PATH, format='text')."
            ),
            path=call.place.base,
        )
    cut = [file.path for file in files if not file.is_whole]
    if cut:
        raise PartfileError(
            f"{cut[0]!r} counts up to the length in its sidecar, and an engine would read on ({len(cut)} such files)",
            hint="Read the tree in Python: partfile.read(PATH) or partfile.read_spark(spark, PATH)",
            path=cut[0],
        )
    is_local = "file" in shown.fs.protocol
    base = absolute(local_path(call.place.base)) if is_local else call.place.base.rstrip("/")
    statement = Tree.of(base, [file.path for file in files], held).statement(chosen)
    if call.out.as_json:
        call.out.report(SqlReport(base=call.place.base, engine=chosen, statement=statement))
    else:
        for line in statement.splitlines():
            call.out.line(line)
    return DONE


def _one_of(option: str, given: str, words: tuple[Word, ...]) -> Word:
    for word in words:
        if given == word:
            return word
    raise ConfigError(f"{option} {given!r} is not known", hint=f"There are {', '.join(words)}.")


def _held(call: Call, *, reads_files: bool) -> RowSchema:
    """What the newest checkpoints hold.

    Args:
        call: The call of the verb.
        reads_files: Whether it is for a statement that reads files, whichever sink has written them.

    Raises:
        NotFound: There is no such sink, or no schema; or the base is not there.
        ConfigError: A sink is named beside which others have written.
    """
    store = call.place.open_checkpoints()
    if store is None:
        raise no_sink_at(call.place)
    with store:
        # Checkpoints elsewhere are found by a mistyped base too, and a statement that reads nothing is no answer.
        call.place.open_base().close()
        jobs = sinks_in(store, call.place, call.uid)
        others = {job.uid for job in sinks_in(store, call.place)} - {job.uid for job in jobs}
        if others and reads_files:
            raise ConfigError(
                f"files of {', '.join(sorted(others))} lie in the same tree, and a statement reads all of them",
                hint="Leave --uid out.",
            )
        states = newest_states(store, [job.name for job in jobs])
        found = united(schemas_held(states, call.place.base, call.place.storage_options))
    if found is None:
        raise NotFound(
            f"no checkpoint at {call.place.checkpoint_url!r} has the schema of its rows",
            hint="It is there from the first checkpoint with rows on. See what there is: partfile status PATH",
            path=call.place.checkpoint_url,
        )
    return found
