"""Paths relative to a base, as every store takes them: checked wherever they come from."""

from __future__ import annotations

import logging
import re
import secrets

from partfile.errors import ConfigError

logger = logging.getLogger("partfile")

MAX_SEGMENT_BYTES = 255
_FORBIDDEN_IN_SEGMENT = re.compile("[\x00-\x1f\x7f/]")


_NAMES = "A directory of a bucketer is made of short names with slashes between them, such as day=2024-02-29/shop=1."


def check_relative_path(path: str) -> str:
    """Return ``path`` if it stays below the base, else raise.

    The second half of a pair assertion: bucketers escape what they make, and every store checks what it is given, since
    metadata is untrusted input too. The empty string is the base itself.

    Args:
        path: A relative path with ``/`` between its segments.

    Returns:
        The same path.

    Raises:
        ConfigError: If it is absolute, has an empty, ``.`` or ``..`` segment, a control character, or a segment of
            more than 255 bytes.
    """
    if not path:
        return path
    for segment in path.split("/"):
        if segment in {"", ".", ".."} or _FORBIDDEN_IN_SEGMENT.search(segment):
            raise ConfigError(f"{path!r} is not a path below the base: bad segment {segment!r}", hint=_NAMES, path=path)
        try:
            too_long = len(segment.encode()) > MAX_SEGMENT_BYTES
        except UnicodeEncodeError as error:
            raise ConfigError(f"{path!r} cannot be encoded as UTF-8", hint=_NAMES, path=path) from error
        if too_long:
            raise ConfigError(
                f"a segment of {path[:80]!r}... is longer than {MAX_SEGMENT_BYTES} bytes", hint=_NAMES, path=path
            )
    return path


def is_relative_path(path: str) -> bool:
    """Whether ``check_relative_path`` takes a path."""
    try:
        check_relative_path(path)
    except ConfigError:
        return False
    return True


def is_unicode(name: str) -> bool:
    """Whether a name can be encoded; undecodable bytes of one arrive as lone surrogates."""
    # No name of ours has any, and no message could show it.
    return not any("\ud800" <= character <= "\udfff" for character in name)


def may_hold_parts(directory: str, shown: str) -> bool:
    """Whether to descend into a directory. Directories that no part can be in are logged and skipped.

    Args:
        directory: Its path relative to the base.
        shown: The base, for the message.
    """
    if is_relative_path(directory):
        return True
    logger.warning(
        "below %r the directory %r is passed over: no part can be in one that is called so", shown, directory
    )
    return False


def check_file_name(name: str) -> str:
    """Return ``name`` if it is the name of one file, else raise.

    Raises:
        ConfigError: It is empty, has a ``/``, or is not a segment of a path.
    """
    if not name or "/" in name:
        raise ConfigError(f"{name!r} is not a file name", path=name)
    return check_relative_path(name)


TOKEN_HEX_DIGITS = 32


def new_token() -> str:
    """Return 128 random bits as 32 hexadecimal digits, from the operating system's generator (R4)."""
    return secrets.token_hex(TOKEN_HEX_DIGITS // 2)


def new_chain_id() -> str:
    """Return the 8 hexadecimal digits that tell the files of one checkpoint log from those of another."""
    return secrets.token_hex(4)


def number_between(least: int, most: int) -> int:
    """Return a random number of the range, both ends included."""
    return least + secrets.randbelow(most - least + 1)
