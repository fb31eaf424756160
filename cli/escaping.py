"""How names from storage stand in text: no control character, no change of direction, quoted where a shell reads.

Names come from data and from whoever can write to the base. A terminal obeys escape sequences and characters that turn
the direction of text, so none is printed as it is (H9). JSON carries names literally.
"""

from __future__ import annotations

import shlex
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_OBEYED = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode's categories of control and format characters, lone surrogates, separators of lines and paragraphs."""


def shown(text: str) -> str:
    r"""A text with everything that a terminal would obey written as ``\xNN``, ``\uNNNN`` or ``\UNNNNNNNN``."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(character) for character in text)


def shell_word(text: str) -> str:
    """A text as one word for a shell; one that a terminal would obey in the ``$'...'`` form of bash, zsh and ksh."""
    safe = shown(text)
    if safe == text:
        return shlex.quote(text)
    inside = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{shown(inside)}'"


def command_line(words: Iterable[str]) -> str:
    """A command that can be copied from the terminal and means the same there."""
    return " ".join(map(shell_word, words))


def _escaped(character: str) -> str:
    if unicodedata.category(character) not in _OBEYED:
        return character
    number = ord(character)
    if number <= 0xFF:  # noqa: PLR2004 - two digits
        # An escape of one byte would stand for a byte, not for the character, beyond ASCII.
        return f"\\x{number:02x}" if number < 0x80 else f"\\u{number:04x}"  # noqa: PLR2004
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"  # noqa: PLR2004
