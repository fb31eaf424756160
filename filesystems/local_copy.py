"""Copying the valid prefix of a part whose own file must not change."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from partfile.filesystems.local_errors import part_too_short, translated
from partfile.filesystems.local_files import READ_BYTES
from partfile.filesystems.tokens import TOKEN_HEX_DIGITS, new_token

if TYPE_CHECKING:
    from partfile.filesystems.local_tree import LocalTree
    from partfile.filesystems.port import PartHandle

_TOKEN = re.compile(rf"[0-9a-f]{{{TOKEN_HEX_DIGITS}}}")


def copy_prefix(tree: LocalTree, handle: PartHandle, source: int, target: int) -> None:
    """Append exactly the valid prefix of one open file to another.

    Raises:
        PartMissing: The source ends before it.
    """
    path = handle.path_of(handle.name)
    offset = 0
    while offset < handle.valid_length:
        with translated("read", tree.shown(path)):
            data = tree.calls.read(source, min(READ_BYTES, handle.valid_length - offset), offset)
        if not data:
            raise part_too_short(handle, offset)
        tree.write_all(target, data, path)
        offset += len(data)


def with_fresh_token(handle: PartHandle) -> PartHandle:
    """The same part under staged names that nobody else knows; their affixes stay, so that they stay hidden."""
    token = new_token()

    def renamed(name: str) -> str:
        found = [match.span() for match in _TOKEN.finditer(name)]
        if not found:
            return f"{name}.{token}"
        start, end = found[-1]
        return name[:start] + token + name[end:]

    return handle.model_copy(update={"in_progress": renamed(handle.in_progress), "pending": renamed(handle.pending)})
