"""What parts have left on S3 that nobody needs, for the cleaner alone: uploads, side objects and claims (S6)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

from partfile.filesystems.cleaning_port import Leftover
from partfile.filesystems.errors import ConfigError, NotApplied
from partfile.filesystems.part_names import split_path
from partfile.filesystems.s3_staging import (
    CLAIM_DIRECTORY,
    OWNER_METADATA,
    SIDE_DIRECTORY,
    S3Staging,
    claim_path,
    part_id,
    side_path,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from partfile.filesystems.cleaning_port import LeftoverKind
    from partfile.filesystems.port import PartHandle
    from partfile.filesystems.s3_access import S3Access
    from partfile.filesystems.s3_calls import S3Object

_PLACES: tuple[tuple[LeftoverKind, str, re.Pattern[str]], ...] = (
    ("side object", SIDE_DIRECTORY, re.compile(r"([0-9a-f]{32})\.[0-9a-f]{32}")),
    ("claim", CLAIM_DIRECTORY, re.compile(r"([0-9a-f]{32})\.[0-9]{1,9}")),
)


def discard_part(access: S3Access, handle: PartHandle) -> bool:
    """Delete what is staged of a part; see ``PartStore.discard``. There is no lease: only age tells an orphan."""
    staging = S3Staging.of(handle)
    if staging is None:
        return False
    found = [side_path(name) for name in (*staging.spent, *(side.name for side in staging.sides))]
    found = [path for path in found if access.head(path) is not None]
    access.delete_many([*found, *(claim_path(handle, number) for number in range(staging.claims + 1))])
    is_open = staging.upload is not None and access.upload_is_open(handle.path_of(handle.name), staging.upload)
    if is_open and staging.upload is not None:
        access.abort_upload(handle.path_of(handle.name), staging.upload)
    return bool(found) or is_open


def leftovers(access: S3Access, parts: Iterable[PartHandle], before_ms: int) -> Iterator[Leftover]:
    """Uploads, side objects and claims of other parts than these; see ``CleaningStore.leftovers``."""
    marks = {mark for part in parts for mark in _marks(part)}
    for one in access.uploads():
        path = access.relative(one.key)
        if one.upload not in marks and one.begun_at_ms < before_ms and _is_of_a_part(path):
            name = path.rpartition("/")[2]
            yield Leftover(
                kind="upload", path=path, name=name, upload=one.upload, size=None, modified_at_ms=one.begun_at_ms
            )
    for kind, directory, pattern in _PLACES:
        for page in access.pages(directory, deep=False):
            for found in page.objects:
                path = access.relative(found.key)
                match = pattern.fullmatch(path[len(directory) + 1 :])
                if match and match[1] not in marks and found.modified_at_ms < before_ms:
                    yield _leftover(access, kind, path, found)


def _is_of_a_part(path: str) -> bool:
    """Whether a part can have this path; keys of others may hold anything."""
    try:
        return bool(split_path(path))
    except ConfigError:
        return False


def _marks(handle: PartHandle) -> list[str]:
    """The part's id, which its side objects and claims begin with, and the id of its upload."""
    staging = S3Staging.of(handle)
    upload = [] if staging is None or staging.upload is None else [staging.upload]
    return [part_id(handle), *upload]


def _leftover(access: S3Access, kind: LeftoverKind, path: str, found: S3Object) -> Leftover:
    # Listings show no metadata. Gone by now, it is nobody's.
    seen = access.head(path)
    name = unquote(seen.metadata.get(OWNER_METADATA, "")) if seen else ""
    return Leftover(kind=kind, path=path, name=name, size=found.size, modified_at_ms=found.modified_at_ms)


def drop_leftover(access: S3Access, leftover: Leftover) -> bool:
    """Delete one of them; see ``CleaningStore.drop_leftover``."""
    if leftover.upload is None:
        return take_away(access, leftover.path, None)
    is_open = access.upload_is_open(leftover.path, leftover.upload)
    access.abort_upload(leftover.path, leftover.upload)
    return is_open


def take_away(access: S3Access, path: str, into: str | None) -> bool:
    """Delete one object; see ``CleaningStore.take_away``."""
    split_path(path)
    if into is not None:
        raise NotApplied(f"{access.shown(path)!r} cannot be moved but by a copy", hint="Delete it.", path=path)
    is_there = access.head(path) is not None
    access.delete(path)
    return is_there
