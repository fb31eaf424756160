"""The ``staging`` of a handle: the objects of an unfinished part on S3, and what follows from them. Pure."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Annotated, Self
from urllib.parse import quote

from pydantic import Field, JsonValue, ValidationError

from partfile.errors import SnapshotCorrupt
from partfile.stores.base import STATE_DIRECTORY, PartHandle, Persisted
from partfile.stores.checksums import crc32_of
from partfile.stores.s3.options import LEAST_PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence


SIDE_DIRECTORY = f"{STATE_DIRECTORY}/_sides"
"""Directory of the bytes that are too few for an upload part. No uid begins with ``_``, so no sink's state is there."""
CLAIM_DIRECTORY = f"{STATE_DIRECTORY}/_claims"
PART_METADATA = "partfile-part"
"""Name of the object metadata that says which part a finished file is."""
OWNER_METADATA = "partfile-name"
"""Name of the object metadata that says to which final name what is staged belongs, percent-encoded."""

HIGHEST_NUMBER = 10_000
"""The highest number of an upload part that S3 takes. Writers leave it to the coordinator, which publishes."""
MOST_PIECES = 9_000
"""A part with so many upload parts is not extended any more, so that those of one more batch find numbers."""
MOST_SIDES = 1_000
"""Likewise with side objects: each is named by every checkpoint until the part is finished."""
MOST_CLAIMS = 100_000
"""Likewise with claims, which are deleted one by one when the part is finished."""
_PIECES_A_SIZE = 1_000
_GROUP_BYTES = 8 << 20
# Anchored: a pattern of pydantic's may match anywhere.
_NAME = r"^[0-9a-f]{32}\.[0-9a-f]{32}$"


class Piece(Persisted):
    """One upload part that the server has acknowledged."""

    number: Annotated[int, Field(ge=1, le=HIGHEST_NUMBER)]
    etag: str
    size_bytes: Annotated[int, Field(ge=0)]
    crc32: Annotated[int | None, Field(ge=0)] = None
    """None where checksums are not sent."""

    def is_same(self, etag: str, size_bytes: int, crc32: int | None, *, is_contested: bool) -> bool:
        """Whether what the server has under this number are the same bytes, though its ETag may differ.

        Args:
            etag: Of what it has.
            size_bytes: Likewise.
            crc32: Likewise; None where it does not say.
            is_contested: Whether others may have sent other bytes under the number, so that length alone says nothing.
        """
        is_told = self.crc32 is not None and crc32 is not None
        if is_contested and not is_told:
            return etag == self.etag
        return size_bytes == self.size_bytes and (not is_told or crc32 == self.crc32)


class SideObject(Persisted):
    """One object with bytes that are not in the upload."""

    name: Annotated[str, Field(pattern=_NAME)]
    size_bytes: Annotated[int, Field(ge=1)]
    crc32: Annotated[int, Field(ge=0)]


class S3Staging(Persisted):
    """The bytes of a part in their order: those in the upload, then those in side objects."""

    claims: Annotated[int, Field(ge=0, le=MOST_CLAIMS)] = 0
    """Number of the claim that a writer has to win before it extends the part. Each can be won once."""
    closed: bool = False
    """No task extends it any more."""
    upload: str | None = None
    """Id of the multipart upload under the final name; None as long as all bytes are in side objects. A part that a
    checkpoint holds as pending has one."""
    has_checksums: bool | None = None
    """Whether the upload was begun with checksums, as ``prepare`` notes; None where its upload parts tell."""
    pieces: tuple[Piece, ...] = ()
    sides: tuple[SideObject, ...] = ()
    names_all: bool | None = None
    """Whether a completion has to name every upload part that was sent, as Ceph's gateway wants it; None as long as
    nothing depends on it. Then bytes go into the upload only once a checkpoint vouches for them."""
    spent: tuple[Annotated[str, Field(pattern=_NAME)], ...] = ()
    """Side objects whose bytes are in the upload by now. They are deleted with the others when the part is finished:
    until then an older checkpoint may name them."""

    @classmethod
    def of(cls, handle: PartHandle) -> Self | None:
        """The staging in a handle; None if the part was never created on S3.

        Raises:
            SnapshotCorrupt: It is not what this store writes, or its pieces do not make up its valid length.
        """
        if not handle.staging:
            return None
        try:
            staging = cls.model_validate(handle.staging)
        except ValidationError as error:
            raise SnapshotCorrupt(f"part {handle.name!r} has no staging of an S3 store: {error}") from error
        numbers = [piece.number for piece in staging.pieces]
        if numbers != sorted(set(numbers)) or (numbers and staging.upload is None):
            raise SnapshotCorrupt(f"part {handle.name!r} has upload parts {numbers} of upload {staging.upload!r}")
        return staging

    @property
    def size_bytes(self) -> int:
        """Length of the part."""
        return self.uploaded_bytes + self.tail_bytes

    @property
    def uploaded_bytes(self) -> int:
        """Bytes in the upload."""
        return sum(piece.size_bytes for piece in self.pieces)

    @property
    def tail_bytes(self) -> int:
        """Bytes in side objects."""
        return _bytes_in(self.sides)

    def checksum_of(self, data: bytes, *, sends_checksums: bool) -> int | None:
        """The checksum that goes with one more upload part; S3 wants all of an upload alike.

        Args:
            data: Its bytes.
            sends_checksums: Whether those of a fresh upload have one.
        """
        begun_so = sends_checksums if self.has_checksums is None else self.has_checksums
        has_checksum = self.pieces[0].crc32 is not None if self.pieces else begun_so
        return crc32_of(data) if has_checksum else None

    @property
    def next_number(self) -> int:
        """The first number that no earlier extension of the part can have used."""
        return self.pieces[-1].number + 1 if self.pieces else 1

    @property
    def grouped_sides(self) -> list[tuple[SideObject, ...]]:
        """The side objects as upload parts from ``next_number`` on; only the last one may be too small.

        Every process that moves them makes the same upload parts of them, under the same numbers.
        """
        groups: list[tuple[SideObject, ...]] = []
        group: tuple[SideObject, ...] = ()
        for side in self.sides:
            group += (side,)
            if _bytes_in(group) >= group_bytes(self.next_number + len(groups)):
                groups.append(group)
                group = ()
        return [*groups, group] if group else groups

    @property
    def tail(self) -> list[tuple[SideObject, ...]]:
        """The side objects as publishing sends them, an upload part each, from ``next_number`` on."""
        # Where all that was sent has to be named, a writer may have begun to move the same bytes under these numbers.
        if self.names_all:
            return self.grouped_sides
        # A file without a byte is one empty upload part.
        return [self.sides] if self.sides or not self.pieces else []

    @property
    def why_full(self) -> str:
        """Why the part must not be extended; empty if there is room."""
        if self.closed:
            return "it was closed"
        if len(self.pieces) >= MOST_PIECES:
            return f"it has {len(self.pieces)} upload parts"
        if len(self.sides) + len(self.spent) >= MOST_SIDES:
            return f"it has {len(self.sides) + len(self.spent)} side objects"
        if self.claims >= MOST_CLAIMS:
            return f"it was extended {self.claims} times"
        return ""

    def after_claim(self) -> S3Staging:
        """The part in the hands of the writer that won its claim."""
        return self.model_copy(update={"claims": self.claims + 1})

    def with_side(self, side: SideObject) -> S3Staging:
        """The part with more bytes in a side object."""
        return self.model_copy(update={"sides": (*self.sides, side)})

    def with_sides_spent(self, upload: str, count: int) -> S3Staging:
        """The part whose first side objects are on their way into the upload."""
        spent = (*self.spent, *(side.name for side in self.sides[:count]))
        return self.model_copy(update={"upload": upload, "sides": self.sides[count:], "spent": spent})

    def with_pieces(self, pieces: Sequence[Piece]) -> S3Staging:
        """The part with more upload parts."""
        return self.model_copy(update={"pieces": (*self.pieces, *pieces)})

    def as_json(self) -> dict[str, JsonValue]:
        """The staging as JSON, for the handle."""
        return self.model_dump(mode="json", exclude_defaults=True) | {"claims": self.claims}


def part_id(handle: PartHandle) -> str:
    """The id of the part, in 32 hexadecimal digits: made of the name that carries the attempt's token (R4)."""
    return hashlib.sha256(handle.path_of(handle.in_progress).encode()).hexdigest()[:32]


def owner_metadata(handle: PartHandle) -> dict[str, str]:
    """Object metadata by which the cleaner knows which part a side object or a claim belongs to."""
    return {OWNER_METADATA: quote(handle.name)}


def claim_path(handle: PartHandle, number: int) -> str:
    """The object whose creation wins a claim."""
    return f"{CLAIM_DIRECTORY}/{part_id(handle)}.{number}"


def side_path(name: str) -> str:
    """The path of a side object."""
    return f"{SIDE_DIRECTORY}/{name}"


def staged_paths(handle: PartHandle, staging: S3Staging) -> list[str]:
    """Every object that belongs to a part and is of no use once it is finished."""
    names = [*staging.spent, *(side.name for side in staging.sides)]
    return [side_path(name) for name in names] + [claim_path(handle, number) for number in range(staging.claims + 1)]


def piece_bytes(number: int, smallest_bytes: int) -> int:
    """The size of an upload part in bytes: twice as many with each thousand, so that 10 000 make 8 TiB."""
    return max(smallest_bytes, LEAST_PIECE_BYTES) << (number // _PIECES_A_SIZE)


def group_bytes(number: int) -> int:
    """The bytes of side objects that make an upload part of this number; the same for all, whatever their options."""
    return piece_bytes(number, _GROUP_BYTES)


def _bytes_in(sides: Sequence[SideObject]) -> int:
    return sum(side.size_bytes for side in sides)
