"""What a handle says of a part on a file system of fsspec: one whole staged file, and how to know its bytes again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Self, cast

from pydantic import Field, JsonValue, ValidationError

from partfile.filesystems.errors import ConfigError, SnapshotCorrupt
from partfile.filesystems.port import Persisted
from partfile.filesystems.relative_paths import check_relative_path

if TYPE_CHECKING:
    from partfile.filesystems.port import PartHandle


class FsspecStaging(Persisted):
    """The staged file of one part. It is written once and never changed."""

    file: str
    """Its name, in the directory of the part."""
    crc32: Annotated[int, Field(ge=0)]
    """Of the valid bytes, which are the whole file."""
    spent: tuple[str, ...] = ()
    """Names of staged files whose bytes are in this one too."""

    @classmethod
    def of(cls, handle: PartHandle) -> Self | None:
        """What the handle says; None if the part was never written.

        Raises:
            SnapshotCorrupt: It cannot be read, or leaves the directory of the part.
        """
        if not handle.staging:
            return None
        try:
            staging = cls.model_validate_json(json.dumps(handle.staging))
        except ValidationError as error:
            raise SnapshotCorrupt(f"part {handle.path_of(handle.name)!r} has another store's staging") from error
        for name in (staging.file, *staging.spent):
            if not _is_file_name(name):
                raise SnapshotCorrupt(f"part {handle.path_of(handle.name)!r} names {name!r}, which is no file name")
        return staging

    def added_to(self, handle: PartHandle, valid_length: int) -> PartHandle:
        """The handle with this staged file, at a length in bytes."""
        staging = cast("dict[str, JsonValue]", self.model_dump(mode="json"))
        return handle.model_copy(update={"valid_length": valid_length, "staging": staging})


def _is_file_name(name: str) -> bool:
    try:
        return bool(name) and "/" not in check_relative_path(name)
    except ConfigError:
        return False
