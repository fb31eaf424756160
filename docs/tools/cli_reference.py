"""``docs/CLI.md``, made from the commands themselves: ``make docs`` writes it."""

from __future__ import annotations

import ast
import inspect
import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Any, get_args

from typer.main import get_command

from partfile.cli.clean import CleanReport
from partfile.cli.command import COMMON_OPTIONS, MEANINGS
from partfile.cli.main import LazyVerb, app
from partfile.cli.output import ErrorReport, WarningReport
from partfile.cli.recover import AdoptReport, RecoverReport
from partfile.cli.run import CheckpointReport, RunReport
from partfile.cli.savepoint import CreateReport, DisposeReport
from partfile.cli.schema import SchemaReport, SqlReport
from partfile.cli.state import ForgetReport
from partfile.recovery.inspect.checkpoints import CheckpointsReport
from partfile.recovery.inspect.files import MEANING
from partfile.recovery.inspect.keys import StateReport
from partfile.recovery.inspect.savepoints import SavepointList, SavepointReport
from partfile.recovery.inspect.status import StatusReport
from partfile.recovery.inspect.tree import ListedPart
from partfile.recovery.inspect.verify import INVARIANTS, VerifyReport

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydantic import BaseModel


DOCUMENTS: dict[str, type[BaseModel]] = {
    "status": StatusReport,
    "list": ListedPart,
    "schema": SchemaReport,
    "sql": SqlReport,
    "checkpoints": CheckpointsReport,
    "state": StateReport,
    "verify": VerifyReport,
    "savepoint list": SavepointList,
    "savepoint show": SavepointReport,
    "recover": RecoverReport,
    "recover --adopt-layout": AdoptReport,
    "clean": CleanReport,
    "run --json, each checkpoint": CheckpointReport,
    "run": RunReport,
    "state --forget": ForgetReport,
    "savepoint create": CreateReport,
    "savepoint dispose": DisposeReport,
}
"""What each verb prints with ``--json``."""

_HEAD = """\
# partfile: the command line

<!-- Made by `make docs` from the code; a test compares. -->

    partfile VERB PATH [OPTIONS]          or  python -m partfile VERB PATH [OPTIONS]

Tells what each file of a sink is, why it is there and what will become of it. PATH is the base path of a sink: a local
path, or a URL such as `hdfs://...` or `s3://...`. Credentials of a store are found as the sink finds them; what is not
found is passed by `--storage-options-file`, and shown nowhere. A local path is opened only where Python names files in
UTF-8: in a locale of another encoding set `PYTHONUTF8=1`.

Verbs that read change nothing, take no lock that a sink would wait for, and are safe at any time, also while the sink
runs: what vanishes meanwhile is left out, and what seems wrong is looked at again before it is told. On HDFS, where a
Spark driver has run, `status` asks for the lease of its marker to learn whether it lives; without the right to write
there it cannot know. `status` reads checkpoints alone, so the size of the tree does not matter; `status --scan`, `list`
and `verify` list the tree once, `verify` twice if something seems wrong.

`run` is the only verb that runs a job, and takes a Python file instead of PATH: [PIPELINE.md](PIPELINE.md).

Verbs that mend something print a plan with its digest, and do nothing. `--apply` does the plan that it prints,
`--apply --plan DIGEST` the one that was printed with this digest; if the sink has moved on meanwhile, or another such
command was faster, it is refused and nothing of it is done. The sink is taken over first, as its own next start would:
it goes on afterwards from where it stood. One that seems to run is left alone unless `--fence` is given: that stops it
for good, at its next checkpoint at the latest. A sink seems to run while a Spark driver holds its marker (on local
disk and HDFS), which it does as soon as it has restored. If its driver is gone, the marker is free, and the sink counts
as stopped at once. Where no lock can
tell, it seems to run while its newest checkpoint is younger than `--idle-for`. A sink in plain Python has no marker;
on local disk and HDFS `--apply` asks whether a process holds the lease of a part that its newest checkpoint names as
open, as such a sink does from its first row after that checkpoint to the next one. Between two rows that come seldom it
shows nothing, and on S3 no sink does: one that is alive and has been silent for longer is fenced as if it were dead,
and loses no row by it. Likewise `status` calls nothing of such a sink stuck before `--quiet-after` has passed since its
newest checkpoint; it says so, and which command to type if you know that it has stopped. What is killed on the way is
ended by the same command run again, with `--fence` or after `--idle-for`.

What is no sink's part is told as foreign, and no verb looks into a symbolic link. A directory that no part can be in,
by its name, is passed over with a warning.

Names are printed with control characters, and characters that turn the direction of text, escaped (`\\x1b`,
`\\u202e`); `--json` holds them literally. A command that is printed to be copied is quoted for a shell. What `cat`
prints is data, and is not escaped. Completion for bash, zsh and fish, also of the
sinks and parts of a local base: `partfile --install-completion`.
"""

_JSON = """\
## JSON

With `--json` a verb prints one document to standard output, `list` and `run` one document a line; an error is a
document on standard error, and so is a warning. Each has `schema` and `schema_version`. Within a version fields are
only added; `null` means that it cannot be known. Times are milliseconds since 1970, paths relative to the base.
"""


def reference() -> str:
    """The whole document."""
    return "\n".join([*_sections()]).rstrip() + "\n"


def _sections() -> Iterator[str]:
    yield _HEAD
    yield "## Exit codes\n"
    yield from _table(("code", "meaning"), [(str(code), text) for code, text in MEANINGS.items()])
    yield "## Options of every verb\n"
    verbs = dict(_verbs(get_command(app), ""))
    common = [one for one in next(iter(verbs.values())).params if one.name in COMMON_OPTIONS]
    yield from _options(common)
    for name, command in sorted(verbs.items()):
        yield from _verb(name, command)
    yield "## What a file is\n"
    yield from _table(("kind", "meaning"), [(f"`{kind}`", text) for kind, text in MEANING.items()])
    yield "## Invariants\n"
    yield "Errors of `verify`, each with what it contradicts:\n"
    yield from _table(("code", "what holds"), [(f"`{code}`", text) for code, text in INVARIANTS.items()])
    yield _JSON
    for name, model in DOCUMENTS.items():
        yield from _document(f"`partfile {name}`", model)
    yield from _document("An error", ErrorReport)
    yield from _document("A warning", WarningReport)


def _verbs(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Every verb with its name, those of a group under the group's."""
    command = command.loaded() if isinstance(command, LazyVerb) else command
    below = getattr(command, "commands", None)
    if below is None:
        yield name, command
        return
    for word, one in below.items():
        yield from _verbs(one, f"{name} {word}".strip())


def _verb(name: str, command: Any) -> Iterator[str]:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    own = [one for one in command.params if one not in arguments and one.name not in COMMON_OPTIONS]
    own = [one for one in own if one.name != "help"]
    yield f"## partfile {name}\n"
    yield f"    partfile {name} {' '.join(one.metavar for one in arguments)} [OPTIONS]\n"
    yield f"{_text(command.help)}\n"
    yield from _table(("argument", "meaning"), [(f"`{one.metavar}`", _text(one.help)) for one in arguments])
    if own:
        yield from _options(own)
    yield f"{command.epilog.replace('Example: ', 'Example: `')}`\n"


def _options(options: list[Any]) -> Iterator[str]:
    rows = []
    for one in options:
        form = one.opts[0] if getattr(one, "is_flag", False) else f"{one.opts[0]} {one.metavar}"
        default = "" if one.default in {None, False, ""} or not isinstance(one.default, str) else f"`{one.default}`"
        rows.append((f"`{form}`", default, _text(one.help)))
    yield from _table(("option", "default", "meaning"), rows)


def _document(name: str, model: type[BaseModel]) -> Iterator[str]:
    schema, version = (model.model_fields[one].default for one in ("schema_name", "schema_version"))
    yield f"### {name}: `{schema}`, version {version}\n"
    for one in _models(model):
        if one is not model:
            yield f"`{one.__name__}`: {_text(one.__doc__)}\n"
        yield from _table(("field", "type", "meaning"), _fields(one))


def _fields(model: type[BaseModel]) -> list[tuple[str, str, str]]:
    properties = model.model_json_schema(by_alias=True)["properties"]
    meanings = _meanings(model)
    return [
        (f"`{name}`", _type(schema), _text(meanings.get(name)))
        for name, schema in properties.items()
        if name not in {"schema", "schema_version"}
    ]


def _meanings(model: type[BaseModel]) -> dict[str, str]:
    """The text below each field in the source. pydantic finds it too, but at each start of the command."""
    (definition,) = ast.parse(inspect.getsource(model)).body
    meanings = {}
    for field, below in pairwise(definition.body if isinstance(definition, ast.ClassDef) else ()):
        is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if is_text and isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            meanings[field.target.id] = str(ast.literal_eval(below.value))  # type: ignore[attr-defined]
    return meanings


def _models(model: type[BaseModel]) -> list[type[BaseModel]]:
    """A document and those inside it, each once."""
    found = [model]
    for one in found:
        for field in one.model_fields.values():
            found += [inner for inner in _inside(field.annotation) if inner not in found]
    return found


def _inside(annotation: Any) -> list[type[BaseModel]]:
    if hasattr(annotation, "model_fields"):
        return [annotation]
    return [found for inner in get_args(annotation) for found in _inside(inner)]


def _type(schema: dict[str, Any]) -> str:
    """What a field holds, in words."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(one) for one in schema["anyOf"]))
    if "enum" in schema:
        return "one of " + ", ".join(f"`{value}`" for value in schema["enum"])
    if "$ref" in schema:
        return f"`{schema['$ref'].rpartition('/')[2]}`"
    if "items" in schema:
        return f"list of {_type(schema['items'])}"
    inner = schema.get("additionalProperties")
    return f"object of {_type(inner)}" if isinstance(inner, dict) else str(schema["type"])


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
    yield ""


def _text(text: str | None) -> str:
    """Text on one line a paragraph."""
    paragraphs = (text or "").strip().split("\n\n")
    return "\n\n".join(" ".join(one.split()).replace("``", "`") for one in paragraphs)


if __name__ == "__main__":
    sys.stdout.write(reference())
