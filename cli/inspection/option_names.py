"""Options of a sink, as messages of the library name them, in the words of a command. Pure."""

from __future__ import annotations

import re

_OPTIONS = (
    "accept_missing",
    "accept_newer",
    "checkpoint_dir",
    "moved_from",
    "restore_from",
    "storage_options",
)
_FLAGS = ("accept_missing", "accept_newer")
_WORDS = ("cut",)
"""Options that are words as well: meant only where a value follows."""
_NAMES = "|".join((*_OPTIONS, *(f"{word}(?==)" for word in _WORDS)))
_NAMED = re.compile(rf"'(?:[^'\\]|\\.)*'|\b(?P<name>{_NAMES})\b(?P<value>=True\b|=)?")
_MODEL = re.compile(r"^\w+Settings: ")
_SPELLED = {"storage_options": "--storage-option"}


def in_words_of_a_command(text: str) -> str:
    """A message or hint with ``--accept-missing`` for ``accept_missing=True``, and so on; what is quoted stays."""
    return _NAMED.sub(_spelled, _MODEL.sub("", text))


def _spelled(match: re.Match[str]) -> str:
    name = match["name"]
    if name is None:
        return match[0]
    option = _SPELLED.get(name, f"--{name.replace('_', '-')}")
    return f"{option} " if match["value"] == "=" and name not in _FLAGS else option
