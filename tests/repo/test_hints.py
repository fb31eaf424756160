"""Every hint holds something that a user can type, and every ConfigError has a hint.

The check reads the source of partfile. It takes each expression that becomes a hint, works out the texts that it can
be, and looks in each for an option with a value, a command, a call or an address.
"""

from __future__ import annotations

import ast
import re
from itertools import product
from pathlib import Path

import partfile.errors
import pytest
from partfile.errors import PartfileError, page_url

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src/partfile").rglob("*.py"))

KINDS = frozenset(
    name for name, found in vars(partfile.errors).items() if isinstance(found, type) and issubclass(found, PartfileError)
)
"""The names of the errors. A pair of one of them and a text is a row of a table of hints."""

TO_TYPE = re.compile(
    r"""
      (?<![\w-])--[a-z][a-z-]+                          # an option of the command line
    | \b[A-Za-z_][\w.-]*=[\w'"{\[(/~\\:-]                # an option or an environment variable with its value
    | \b[A-Za-z_][\w.]*\((?!s\))                        # a call
    | \b[a-z][a-z0-9+]*://[\w/{]                        # an address
    | \bpartfile\ [a-z]+\ (PATH|DIR|FILE|\{)            # a command of partfile
    | \b(pip\ install|hdfs\ (dfs|dfsadmin|ec|fsck|haadmin|fs)|aws\ s3|aws\ s3api|ulimit\ -|chmod\ |export\ |ls\ -|df\ |kinit\ )
    | \{[^}]*command[^}]*\}                             # a command that the code makes
    """,
    re.VERBOSE,
)

NOTHING_TO_TYPE: dict[str, str] = {}
"""Hints that hold nothing to type, and why that is right."""

SAID_BY_THE_MESSAGE: dict[str, str] = {}
"""Messages of a ConfigError without a hint, and why that is right."""


def texts_of(node: ast.expr, constants: dict[str, ast.expr]) -> set[str]:
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
    """The hints that hold nothing to type, each with its line."""
    constants = constants_of(tree)
    texts = {(line, text) for line, value in hints_of(tree) for text in texts_of(value, constants)}
    return sorted((line, text) for line, text in texts if text and not TO_TYPE.search(text))


def bare_config_errors(tree: ast.Module) -> list[tuple[int, str]]:
    """Each ConfigError without a hint: its line and its message."""
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "ConfigError"
    ]
    bare = [call for call in calls if not any(keyword.arg in ("hint", None) for keyword in call.keywords)]
    return sorted((call.lineno, next(iter(texts_of(call.args[0], {})), "")) for call in bare)


if __name__ == "__main__":
    for p in SOURCES:
        for l, t in vague_hints(ast.parse(p.read_text())):
            print(f"{p.relative_to(ROOT/'src/partfile')}:{l}: {t}")
