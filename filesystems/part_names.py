"""Names of parts and files: checked, split, and given a token that nobody else knows."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from partfile.filesystems.errors import ConfigError
from partfile.filesystems.relative_paths import check_relative_path
from partfile.filesystems.tokens import TOKEN_HEX_DIGITS, new_token

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.filesystems.port import PartHandle

_TOKEN = re.compile(rf"[0-9a-f]{{{TOKEN_HEX_DIGITS}}}")


def split_path(path: str) -> tuple[str, str]:
    """Split a relative path into its directory and its name."""
    parent, _, name = check_relative_path(path).rpartition("/")
    if not name:
        raise ConfigError(f"{path!r} names no file below the base", path=path)
    return parent, name


def check_handle(handle: PartHandle) -> PartHandle:
    """Return the handle if none of its names leaves its bucket; it may have been made around its validation.

    Raises:
        ConfigError: One of them does.
    """
    check_relative_path(handle.bucket)
    for name in (handle.name, handle.in_progress, handle.pending, handle.sidecar):
        if not name or "/" in check_relative_path(name):
            raise ConfigError(f"{name!r} is not a file name", path=name)
    return handle


def with_fresh_token(handle: PartHandle) -> PartHandle:
    """The same part under staged names that nobody else knows; their affixes stay, so that they stay hidden."""
    token = new_token()
    return _with_token(handle, lambda _: token)


def rewritten(handle: PartHandle) -> PartHandle:
    """The same part under the staged names of its cut copy, for stores where that takes over from the original.

    Its token follows from the original's, so that whoever comes later finds it; it is as much this part's alone.
    """
    return _with_token(handle, lambda seed: hashlib.sha256(seed.encode()).hexdigest()[:TOKEN_HEX_DIGITS])


def _with_token(handle: PartHandle, token_for: Callable[[str], str]) -> PartHandle:
    def renamed(name: str) -> str:
        found = [match.span() for match in _TOKEN.finditer(name)]
        if not found:
            return f"{name}.{token_for(name)}"
        start, end = found[-1]
        return name[:start] + token_for(name[start:end]) + name[end:]

    return handle.model_copy(update={"in_progress": renamed(handle.in_progress), "pending": renamed(handle.pending)})
