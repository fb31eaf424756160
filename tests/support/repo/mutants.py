"""Deliberate bugs, each a small change of a copy of the tree, so that what is shipped has no switches."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "tests" / "mutants"


@dataclass(frozen=True, slots=True)
class Change:
    """One text that takes the place of another, which is in its file once."""

    old: str
    new: str

    def applied_to(self, source: str) -> str:
        """The changed source; raises ValueError unless the old text is there exactly once."""
        found = source.count(self.old)
        if found != 1:
            raise ValueError(f"{self.old.strip().splitlines()[0]!r} is there {found} times")
        return source.replace(self.old, self.new)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One bug."""

    name: str
    rule: str
    """What it breaks: a rule of docs/PROTOCOL.md, or a section of the design."""
    file: str
    changes: tuple[Change, ...]
    tests: tuple[str, ...]
    """Files of tests, or tests, of which at least one has to fail."""

    def source(self) -> str:
        """The file with the bug."""
        source = (ROOT / self.file).read_text()
        for change in self.changes:
            source = change.applied_to(source)
        return source


def mutants() -> list[Mutant]:
    """All of them, in the order of their files."""
    found = []
    for path in sorted(FOLDER.glob("*.toml")):
        found += [_mutant(entry) for entry in tomllib.loads(path.read_text())["mutant"]]
    return found


def _mutant(entry: dict[str, Any]) -> Mutant:
    changes = tuple(Change(pair["old"], pair["new"]) for pair in (entry, *entry.get("more", [])))
    return Mutant(entry["name"], entry["rule"], entry["file"], changes, tuple(entry["tests"]))
