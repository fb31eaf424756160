"""The tables of ``docs/OPTIONS.md``, made from the docstring of FileSink: ``make docs`` writes them."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from partfile.sink.file_sink import FileSink

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).parents[1] / "OPTIONS.md"
TABLES = {"Args": "You will use", "When something is wrong": "When something is wrong", "For experts": "For experts"}
"""The sections of the docstring, and what their tables are called."""

_BEGIN = "<!-- make docs writes from here -->\n"
_END = "<!-- to here -->\n"
_SECTION = re.compile(r"^(\S[^\n]*):\n((?:    .*\n|\n)+)", re.MULTILINE)
_OPTION = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
_OPEN_DEFAULT = "required"


class Option(NamedTuple):
    """An option as the docstring has it."""

    name: str
    default: str
    text: str


def options() -> dict[str, list[Option]]:
    """The options of FileSink, by the section that they are in."""
    sections = dict(_SECTION.findall(f"{inspect.getdoc(FileSink)}\n"))
    return {section: [_option(*found) for found in _OPTION.findall(sections[section])] for section in TABLES}


def page(text: str) -> str:
    """The text of the page with the tables of now."""
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    return f"{before}{begin}\n{''.join(_tables())}{end}{after}"


def _option(name: str, text: str) -> Option:
    words, _, default = " ".join(text.split()).partition(" Default: ")
    return Option(name, default.removesuffix(".") or _OPEN_DEFAULT, words)


def _tables() -> Iterator[str]:
    for section, found in options().items():
        yield f"## {TABLES[section]}\n\n| option | default | what it does |\n| --- | --- | --- |\n"
        for option in found:
            yield f"| `{option.name}` | {_linked(option.default)} | {_linked(option.text)} |\n"
        yield "\n"


def _linked(text: str) -> str:
    """Markdown of a sentence, where the pages that it names are links."""
    text = re.sub(r'See "([^"]+)" in OPTIONS\.md', lambda found: f"See [{found[1]}](#{_anchor(found[1])})", text)
    return re.sub(r"\b([A-Z0-9_]+\.md)\b", r"[\1](\1)", text).replace("``", "`").replace("|", "\\|")


def _anchor(heading: str) -> str:
    return heading.lower().replace(" ", "-")


if __name__ == "__main__":
    sys.stdout.write(page(PAGE.read_text()))
