"""Small whole files on S3: checkpoint metadata and state; and markers, which are no locks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.filesystems.errors import AlreadyExists, NotApplied, NotFound
from partfile.filesystems.part_names import split_path
from partfile.filesystems.port import StoredFile

if TYPE_CHECKING:
    from partfile.filesystems.s3_access import S3Access
    from partfile.filesystems.s3_calls import S3Object


def create_whole(access: S3Access, path: str, data: bytes) -> None:
    """Create a file exclusively and whole or not at all; see ``MetadataStore.create_file``."""
    split_path(path)
    access.create(path, data)


def read_whole(access: S3Access, path: str, max_bytes: int) -> bytes:
    """Read a whole file; see ``MetadataStore.read_file``."""
    split_path(path)
    return access.get(path, max_bytes)


def is_file(access: S3Access, path: str) -> bool:
    """Whether a file is there now."""
    split_path(path)
    return access.head(path) is not None


def look_at(access: S3Access, path: str) -> StoredFile | None:
    """One object as a listing shows it; see ``PartStore.look_at``."""
    split_path(path)
    found = access.head(path)
    return stored(path, found) if found is not None else None


def stored(path: str, found: S3Object) -> StoredFile:
    """An object as a listing shows it."""
    return StoredFile(path=path, size=found.size, modified_at_ms=found.modified_at_ms)


def names_in(access: S3Access, directory: str) -> list[str]:
    """The names directly in a directory; empty if it is not there."""
    names = []
    for page in access.pages(directory, deep=False):
        found = [one.key for one in page.objects] + [prefix.rstrip("/") for prefix in page.prefixes]
        start = len(directory) + 1 if directory else 0
        names += [access.relative(key)[start:] for key in found]
    return [name for name in names if name]


def delete_one(access: S3Access, path: str) -> None:
    """Delete one file by its literal name; absent counts as done."""
    split_path(path)
    access.delete(path)


def delete_flat(access: S3Access, directory: str) -> None:
    """Delete the files directly in a directory, and so the directory; absent counts as done."""
    split_path(directory)
    paths: list[str] = []
    for page in access.pages(directory, deep=False):
        if page.prefixes:
            deeper = access.relative(page.prefixes[0])
            raise NotApplied(f"{access.shown(directory)!r} holds the directory {deeper!r}", path=directory)
        paths += [access.relative(one.key) for one in page.objects]
    access.delete_many(paths)


def show_marker(access: S3Access, path: str) -> bool:
    """Make the marker if it is not there; nobody is kept from it, for S3 has no locks (S13)."""
    split_path(path)
    if access.head(path) is None:
        try:
            access.create(path, b"")
        except AlreadyExists:
            return True
    return True


def marker_is_shown(access: S3Access, path: str) -> bool:
    """Whether the marker is visible: then driver and executor mean the same S3 bucket."""
    split_path(path)
    if access.head(path) is None:
        raise NotFound(
            f"marker {access.shown(path)!r} is not visible from this host",
            hint="Driver and executors must share one S3 bucket: check the URL, endpoint_url and credentials of each.",
            path=path,
        )
    return True
