"""Under which names the bytes of a part that is not finished can be: files, or none on a store without such. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.filesystems.fsspec_staging import FsspecStaging
from partfile.filesystems.part_names import rewritten

if TYPE_CHECKING:
    from partfile.filesystems.port import PartHandle

_FILE = "file"


def is_staged_file(handle: PartHandle) -> bool:
    """Whether a part that is not finished is a file; on S3 it is known by its handle alone."""
    return not handle.staging or _FILE in handle.staging


def staged_names(handle: PartHandle) -> tuple[str, ...]:
    """The names that the part can have before it is finished, in the order in which it moves from one to the next.

    A part that was cut by a copy that takes over from it is that copy, which has a name of its own. A stage keeps its
    only name until it is deleted.

    Raises:
        SnapshotCorrupt: The handle is of no store that there is.
    """
    if not is_staged_file(handle):
        return ()
    if handle.is_stage:
        return (handle.in_progress,)
    staging = FsspecStaging.of(handle)
    sent = () if staging is None else (*staging.spent, staging.file)
    return tuple(dict.fromkeys((handle.in_progress, handle.pending, rewritten(handle).pending, *sent)))
