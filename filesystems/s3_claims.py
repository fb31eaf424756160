"""Claims: who may extend a part on S3, where nothing can be leased.

Each version of a part that was given out names a claim, which is won by creating an object. It is won once as long as
the part is not finished. So of all who hold that version (two attempts with number 0, a zombie, a rival) one extends
it, and of all writers that one alone has the numbers of upload parts beyond those of the version.

Claims are deleted with what else a finished part has left, and then can be won again. That harms no file: the upload is
gone, the final name is taken by the part itself, and what the winner writes no checkpoint that counts can name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.filesystems.errors import AlreadyExists
from partfile.filesystems.s3_staging import claim_path, owner_metadata

if TYPE_CHECKING:
    from partfile.filesystems.port import PartHandle
    from partfile.filesystems.s3_access import S3Access


def win_claim(access: S3Access, handle: PartHandle, number: int) -> bool:
    """Claim the right to extend a part from the version that names this claim; False if somebody has it.

    Args:
        access: The store's objects.
        handle: The part.
        number: Of the claim.
    """
    try:
        access.create(claim_path(handle, number), b"", owner_metadata(handle))
    except AlreadyExists:
        return False
    return True
