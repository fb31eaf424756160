"""Copying the valid prefix of a part whose own file must not change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.filesystems.local_errors import translated
from partfile.filesystems.local_files import READ_BYTES
from partfile.filesystems.part_errors import part_too_short

if TYPE_CHECKING:
    from partfile.filesystems.local_tree import LocalTree
    from partfile.filesystems.port import PartHandle


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
