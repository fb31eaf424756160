"""Tokens that a test can foresee: unique within a run, and the same again when the run is repeated."""

from __future__ import annotations

import hashlib


class NumberedTokens:
    """Stands for the module ``secrets`` below ``partfile.stores.paths``.

    Two processes that a test plays one after the other draw from different names, as two real ones would.
    """

    def __init__(self) -> None:
        self.begin("")

    def begin(self, process: str) -> None:
        """From now on this process draws; it begins with its first token."""
        self._process = process
        self._drawn = 0

    def token_hex(self, count: int) -> str:
        """So many bytes in hexadecimal digits, of which none comes twice."""
        self._drawn += 1
        return hashlib.sha256(f"{self._process}/{self._drawn}".encode()).hexdigest()[: 2 * count]

    def randbelow(self, _most: int) -> int:
        """The shortest pause."""
        return 0
