"""Random tokens: the only place where names get their randomness."""

from __future__ import annotations

import secrets

TOKEN_HEX_DIGITS = 32


def new_token() -> str:
    """Return 128 random bits as 32 hexadecimal digits, from the operating system's generator (S4)."""
    return secrets.token_hex(TOKEN_HEX_DIGITS // 2)


def new_chain_id() -> str:
    """Return the 8 hexadecimal digits that tell the files of one checkpoint chain from those of another."""
    return secrets.token_hex(4)


def number_between(least: int, most: int) -> int:
    """Return a random number of the range, both ends included."""
    return least + secrets.randbelow(most - least + 1)
