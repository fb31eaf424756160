"""Claims: who may extend a part on S3, where nothing can be leased.

Each version of a part that was given out names a claim, which is won once, for good, by creating an object. So of all
who ever hold that version (two attempts with number 0, a zombie, a rival) one extends it, and every number of an upload
part beyond those of the version is that one's alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.filesystems.errors import AlreadyExists
from partfile.filesystems.s3_staging import claim_path

if TYPE_CHECKING:
    from partfile.filesystems.port import PartHandle
    from partfile.filesystems.s3_access import S3Access


def win_claim(access: S3Access, handle: PartHandle, number: int) -> bool:
    """Claim the right to extend a part from the version that names this claim; False if somebody has it already.

    Args:
        access: The store's objects.
        handle: The part.
        number: Of the claim.
    """
    try:
        access.create(claim_path(handle, number), b"")
    except AlreadyExists:
        return False
    return True
