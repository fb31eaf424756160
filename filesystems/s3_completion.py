"""Complete the upload of a part on S3: send what is beside it, name all of it, and tell why S3 makes no file of it.

What is in side objects goes under the numbers that follow those of the handle: where upload parts carry checksums, S3
wants numbers from 1 on without a gap. A zombie that has the claim of the handle may send other bytes under the same
numbers. Then the ETags that the completion names do not agree, no file is made, and they are sent again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.filesystems.backoff import Backoff
from partfile.filesystems.errors import NotFound
from partfile.filesystems.part_errors import part_missing
from partfile.filesystems.s3_errors import S3Failure, Verdict
from partfile.filesystems.s3_sides import committed_bytes
from partfile.filesystems.s3_staging import Piece

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from partfile.filesystems.port import PartHandle
    from partfile.filesystems.s3_access import S3Access
    from partfile.filesystems.s3_calls import ReceivedPiece
    from partfile.filesystems.s3_staging import S3Staging

_TRIES = 4
"""A zombie sends each number once, and once more if a reply is lost."""


def complete_part(access: S3Access, handle: PartHandle, staging: S3Staging, upload: str) -> None:
    """Make a finished file of an upload and what is beside it; each request is a single attempt.

    Args:
        access: The store's objects.
        handle: The part.
        staging: What it is made of.
        upload: Id of its upload.

    Raises:
        S3Failure: A request failed; what became of the part is for the caller to find out.
        PartMissing: S3 has other upload parts than the handle says, or makes no file of what it has.
        PartDamaged: A side object of it is not what was written.
    """
    pieces: Sequence[Piece] = [*staging.pieces, *_sent_sides(access, handle, staging, upload)]
    backoff = Backoff(access.options.attempt_timeout_s)
    for tries_left in reversed(range(_TRIES)):
        try:
            access.complete_upload_once(handle.path_of(handle.name), upload, pieces)
        except S3Failure as failure:
            if failure.verdict is not Verdict.INVALID_PARTS:
                raise
            corrected = _corrected(access, handle, staging, upload, pieces)
            if corrected == pieces and not tries_left:
                raise part_missing(handle, f"S3 makes no file of its upload parts: {failure.text}") from failure
            if not tries_left or not backoff.pause():
                raise
            pieces = corrected or [*staging.pieces, *_sent_sides(access, handle, staging, upload)]
        else:
            return


def _corrected(
    access: S3Access, handle: PartHandle, staging: S3Staging, upload: str, pieces: Sequence[Piece]
) -> Sequence[Piece] | None:
    """What a completion has to name, by what the server has; None if what was beside the part is to be sent again.

    Raises:
        PartMissing: An upload part of the handle is not what was sent.
    """
    received = _received(access, handle.path_of(handle.name), upload)
    found = []
    for index, piece in enumerate(pieces):
        is_own = index < len(staging.pieces)
        there = _as_received(piece, received, is_contested=not is_own)
        if there is None and is_own:
            raise part_missing(handle, f"S3 has another upload part {piece.number} of it, or none")
        if there is None:
            return None
        found.append(there)
    return found


def _sent_sides(access: S3Access, handle: PartHandle, staging: S3Staging, upload: str) -> Iterator[Piece]:
    """Send what is in side objects as the last upload parts."""
    for number, sides in enumerate(staging.tail, start=staging.next_number):
        data = committed_bytes(access, handle, sides)
        crc32 = staging.checksum_of(data, sends_checksums=access.options.sends_checksums)
        etag = access.upload_part_once(handle.path_of(handle.name), upload, number, data, crc32)
        yield Piece(number=number, etag=etag, size_bytes=len(data), crc32=crc32)


def _received(access: S3Access, path: str, upload: str) -> dict[int, ReceivedPiece]:
    try:
        return {piece.number: piece for piece in access.received_pieces(path, upload)}
    except NotFound as error:
        raise S3Failure(Verdict.MISSING, error.message) from error


def _as_received(piece: Piece, received: Mapping[int, ReceivedPiece], *, is_contested: bool) -> Piece | None:
    """The same upload part under the ETag that the server has for it; None if it has another one.

    Where ETags are not made of the bytes alone (SSE-KMS), a request that arrives after its repetition was acknowledged
    changes the ETag and nothing else.
    """
    there = received.get(piece.number)
    if there is None or not piece.is_same(there.etag, there.size_bytes, there.crc32, is_contested=is_contested):
        return None
    return piece.model_copy(update={"etag": there.etag})
