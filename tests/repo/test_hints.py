"""Every hint ends in something that a user can type, and every ConfigError has a hint.

The check reads the source of partfile. It takes each expression that becomes a hint, works out the texts that it can
be, and looks in the last sentence of each for an option with a value, a command, a call or an address.
"""

from __future__ import annotations

import ast
import re
from itertools import product
from pathlib import Path

import pytest

import partfile.errors
from partfile.errors import PartfileError, joined_hints, page_url

PACKAGE = Path(__file__).parents[2] / "src/partfile"

KINDS = frozenset(
    name
    for name, found in vars(partfile.errors).items()
    if isinstance(found, type) and issubclass(found, PartfileError)
)
"""The names of the errors. A pair of one of them and a text is a row of a table of hints."""

TO_TYPE = re.compile(
    r"""
      (?<![\w-])--[a-z][a-z-]+                          # an option of the command line
    | \b[A-Za-z_][\w.-]*=[\w'"{\[(/~\\:-]                # an option or an environment variable with its value
    | \b[A-Za-z_][\w.]*\((?!s\))                        # a call
    | (\b[a-z][a-z0-9+]*|\{scheme\})://[\w/{]                     # an address
    | \bpartfile\ [a-z]+(\ [a-z]+)?\ ([A-Z]{3,}|\{)    # a command of partfile
    | \bpip\ install\ ['\w{-]
    | \b(hdfs\ (dfs|dfsadmin|ec|fsck|getconf)|aws\ (s3|s3api))\ [\w-]
    | \b(chmod|cp|df|dmesg|export|fuser|kinit|ls|lsattr|mount|mv|rm|ulimit)\ (-\w|[A-Z]{3,}|[ug]\+)
    | \{\w+\}=[\w(\['"{]                              # an option whose name the code puts in
    | \{\w*URL\} | \./\{                                # an address that the code makes
    | \{[^}]*command[^}]*\}                             # a command that the code makes
    """,
    re.VERBOSE,
)

_SENTENCES = re.compile(r"(?<=[.?]) (?=[A-Z])")

_GOES_ON = "partfile goes on by itself: there is nothing to do"
_INTERNAL = "told to the code that calls a store, which is partfile's own"

NOTHING_TO_TYPE: dict[str, str] = {
    "It is tried again later.": _GOES_ON,
    "It is tried again later. What ended the job is in the logs of driver and executors.": _GOES_ON,
    "{meant}{listed}": "names of options, of which the message has the wrong one",
    "The part is tried again.": _GOES_ON,
    "It publishes the part, or has done so; if this one still goes on, the part is tried again.": _GOES_ON,
    "Close it and start another part; never persist this one.": _INTERNAL,
    "Encode it into a part of its own, and publish that one.": _INTERNAL,
    "Delete it.": _INTERNAL,
    "Find out what it is and who put it there, move it away, and put the file back from a copy.": (
        "what moves a file depends on the store"
    ),
}
"""Hints that end in nothing to type, and why that is right."""

_VALUE = "the message says which values there are"

SAID_BY_THE_MESSAGE: dict[str, str] = {
    (
        "max_concurrent {self.limits.max_concurrent} and spare_ids {self.spare_ids} make {self.ids_ahead} "
        "checkpoints ahead of the newest; it must be 1 to {MAX_IDS_AHEAD}"
    ): _VALUE,
    "{name} is {getattr(self, name)}; it must be at least 1": _VALUE,
    "write_buffer_bytes is {write_buffer_bytes}; it must be at least 1": _VALUE,
    "{type(self).__name__}: {_problems(error)}": _VALUE,
    "parallelism is {parallelism}; at least one subtask must run": _VALUE,
    "there is no subtask {subtask}; there are 0 to {len(operators) - 1}": _VALUE,
    "an element of the list state {self.info.name} is None": _INTERNAL,
    "WebHDFS needs at least one address": _INTERNAL,
    "{path} is not an absolute path in HDFS": _INTERNAL,
    "a NameNode says to read {path} at {address}, and not what to ask there": "a fault of the server",
    "the base itself is not a file": _INTERNAL,
    "{path} names no file below the base": _INTERNAL,
    "{name} is not a file name": _INTERNAL,
}
"""Messages of a ConfigError without a hint, and why that is right."""


def texts_of(  # noqa: C901, PLR0911 - a case for each kind of expression
    node: ast.expr, constants: dict[str, ast.expr]
) -> set[str]:
    """The texts that an expression can be, each value that the code puts in as ``{its source}``.

    None for an expression that passes on a hint from elsewhere: that one is looked at where it is written.
    """
    match node:
        case ast.Constant(value=str(text)):
            return {text}
        case ast.JoinedStr(values=parts):
            return {"".join(each) for each in product(*(texts_of(part, constants) or {""} for part in parts))}
        case ast.FormattedValue(value=value):
            return texts_of(value, constants) or {f"{{{ast.unparse(value)}}}"}
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            sides = [texts_of(side, constants) or {f"{{{ast.unparse(side)}}}"} for side in (left, right)]
            return {first + second for first, second in product(*sides)}
        case ast.IfExp(body=body, orelse=other):
            return texts_of(body, constants) | texts_of(other, constants)
        case ast.BoolOp(values=values):
            return set().union(*(texts_of(value, constants) for value in values))
        case ast.Dict(values=values):
            return set().union(*(texts_of(value, constants) for value in values))
        case ast.Call(func=ast.Name(id="page_url")):
            return {page_url("PAGE")}
        case ast.Call(func=ast.Attribute(value=text, attr="strip" | "lstrip" | "rstrip")):
            return texts_of(text, constants)
        case ast.Name(id=name) if name in constants:
            return texts_of(constants[name], constants)
    return set()


def constants_of(tree: ast.Module) -> dict[str, ast.expr]:
    """The values of the names of a module that are written in capitals."""
    return {
        statement.targets[0].id: statement.value
        for statement in tree.body
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
        if statement.targets[0].id.isupper()
    }


def is_hint(name: str) -> bool:
    """Whether what is called so holds a hint, or a table of hints."""
    return re.fullmatch(r"(\w*_)?(hints?|instead)", name.lower()) is not None


def hints_of(tree: ast.Module) -> list[tuple[int, ast.expr]]:
    """The expressions that become hints, each with its line."""
    found: list[ast.expr] = []
    for node in ast.walk(tree):
        match node:
            case ast.keyword(arg=str(name), value=value) if is_hint(name):
                found.append(value)
            case ast.Assign(targets=[ast.Name(id=name) | ast.Attribute(attr=name)], value=value) if is_hint(name):
                found.append(value)
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                pairs = zip(names, values, strict=False)
                found += [value for name, value in pairs if isinstance(name, ast.Name) and is_hint(name.id)]
            case ast.Tuple(elts=[ast.Name(id=name), value]) if name in KINDS:
                found.append(value)
            case ast.Call(args=[ast.Name(id=name), value]) if name in KINDS:
                found.append(value)
            case ast.FunctionDef(name=name) if is_hint(name):
                found += [each.value for each in ast.walk(node) if isinstance(each, ast.Return) and each.value]
    return [(value.lineno, value) for value in found]


def vague_hints(tree: ast.Module) -> list[tuple[int, str]]:
    """The hints whose last sentence holds nothing to type, each with its line."""
    constants = constants_of(tree)
    texts = {(line, text) for line, value in hints_of(tree) for text in texts_of(value, constants)}
    return sorted(
        (line, text)
        for line, text in texts
        if text and text not in NOTHING_TO_TYPE and not TO_TYPE.search(_SENTENCES.split(text)[-1])
    )


def bare_config_errors(tree: ast.Module) -> list[tuple[int, str]]:
    """Each ConfigError without a hint: its line and its message."""
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "ConfigError"
    ]
    bare = [call for call in calls if not any(keyword.arg in ("hint", None) for keyword in call.keywords)]
    return sorted((call.lineno, next(iter(texts_of(call.args[0], {})), "")) for call in bare)


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    """The modules of partfile, by their paths in it."""
    return {str(path.relative_to(PACKAGE)): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def module(text: str) -> ast.Module:
    """A module that raises an error with this hint, given as source."""
    return ast.parse(f"raise ConfigError('message', hint={text})")


@pytest.mark.parametrize(
    "hint",
    [
        "'Write format=\\'json\\'.'",
        "'Leave it out, or pass --uid U.'",
        "f'See what is there: hdfs dfs -ls {path}'",
        "'pip install orjson'",
        "'Join them: first.unionByName(second)'",
        "'Write s3://bucket/prefix.'",
        "'Hold fewer files open: ulimit -n 65536'",
        "f'Each option: {page_url(\"S3\")}'",
        "f'Go back: {settings.recover_command()}'",
        "error.hint",
    ],
)
def test_a_hint_with_something_to_type_passes(hint: str) -> None:
    """Commands, options, calls and addresses; and a hint from elsewhere, which is looked at there."""
    assert not vague_hints(module(hint))


@pytest.mark.parametrize(
    "hint",
    [
        "'Check the path.'",
        "'Pass schema=.'",
        "'Move that file(s) away.'",
        "'Look at the server' if known else 'Write a=1'",
        '\'Use "finished" or "pending".\'',
        "'Write format=\\'json\\'. Nothing was changed.'",
        "error.hint or 'Choose another directory.'",
        "f'There are {names}.'",
    ],
)
def test_a_vague_hint_is_found(hint: str) -> None:
    """Each text that an expression can be is looked at by itself."""
    assert len(vague_hints(module(hint))) == 1


def test_a_vague_hint_in_a_table_is_found() -> None:
    """Stores look up what an error number or a verdict means."""
    table = "_A = 'Mount it.'\nT = {1: (NotApplied, _A), 2: Meaning(NotFound, ''), 3: Meaning(NotReady, 'Wait.')}"
    assert [text for _, text in vague_hints(ast.parse(table))] == ["Mount it.", "Wait."]


def test_hints_that_are_joined_stay_sentences() -> None:
    """A command in the middle gets its full stop; one at the end stays as it is to be typed."""
    assert joined_hints("", "Look: ls PATH", "", "Else wait.", "Then type: partfile status PATH") == (
        "Look: ls PATH. Else wait. Then type: partfile status PATH"
    )
    assert joined_hints("") == ""


def test_every_hint_holds_something_to_type(trees: dict[str, ast.Module]) -> None:
    """A user who reads a hint can type what it says."""
    vague = {f"{path}:{line}: {text}" for path, tree in trees.items() for line, text in vague_hints(tree)}
    assert not vague


def test_every_config_error_has_a_hint(trees: dict[str, ast.Module]) -> None:
    """What a user has set wrong is mended by something that the user can type."""
    bare = {
        f"{path}:{line}: {text}"
        for path, tree in trees.items()
        for line, text in bare_config_errors(tree)
        if text not in SAID_BY_THE_MESSAGE
    }
    assert not bare


def test_a_config_error_without_a_hint_is_found() -> None:
    """The keyword is looked for, also where the error is made to be raised elsewhere."""
    source = [
        "raise ConfigError('a')",
        "error = ConfigError('b', path=path)",
        "raise ConfigError('c', hint='Write x=1.')",
    ]
    assert [text for _, text in bare_config_errors(ast.parse("\n".join(source)))] == ["a", "b"]


def test_every_exception_is_still_needed(trees: dict[str, ast.Module]) -> None:
    """A hint or a message that has gone leaves no reason behind."""
    known: set[str] = set()
    for tree in trees.values():
        constants = constants_of(tree)
        known |= {text for _, value in hints_of(tree) for text in texts_of(value, constants)}
    assert set(NOTHING_TO_TYPE) <= known
    assert set(SAID_BY_THE_MESSAGE) <= {text for tree in trees.values() for _, text in bare_config_errors(tree)}
