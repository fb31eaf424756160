"""Small whole files on a file system of fsspec: checkpoint metadata and state; and markers, which are no locks."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from partfile.filesystems.errors import AlreadyExists, NotApplied, NotFound, OutcomeUnknown, PartfileError
from partfile.filesystems.fsspec_access import Entry
from partfile.filesystems.fsspec_probe import learn_way
from partfile.filesystems.fsspec_schemes import MOVING, Way
from partfile.filesystems.part_names import split_path
from partfile.filesystems.tokens import new_token

if TYPE_CHECKING:
    from partfile.filesystems.fsspec_access import FsspecAccess
    from partfile.filesystems.port import StoredFile

_RIVALS_ARE_DONE_AFTER_S = 0.2


def create_whole(access: FsspecAccess, path: str, data: bytes) -> None:
    """Create a file; see ``MetadataStore.create_file``. Exclusive and whole as far as the file system can."""
    split_path(path)
    way = learn_way(access)
    if way is Way.CREATE:
        access.create(path, data)
        return
    if way is not Way.LINK and access.info(path) is not None:
        raise AlreadyExists(f"{access.shown(path)!r} is there already", path=path)
    if way is Way.COPY:
        access.write(path, data)
    else:
        _create_through_another_name(access, path, data, way)
    if way is not Way.LINK:
        _read_back(access, path, data)


def read_whole(access: FsspecAccess, path: str, max_bytes: int) -> bytes:
    """Read a whole file; see ``MetadataStore.read_file``."""
    split_path(path)
    return access.read(path, max_bytes)


def is_file(access: FsspecAccess, path: str) -> bool:
    """Whether a file is there now."""
    split_path(path)
    return access.info(path) is not None


def names_in(access: FsspecAccess, directory: str) -> list[str]:
    """The names directly in a directory; empty if it is not there."""
    return [entry.path.rpartition("/")[2] for entry in access.entries(directory)]


def delete_one(access: FsspecAccess, path: str) -> None:
    """Delete one file by its literal name; absent counts as done."""
    split_path(path)
    access.remove(path)


def delete_flat(access: FsspecAccess, directory: str) -> None:
    """Delete the files directly in a directory, and the directory; absent counts as done."""
    split_path(directory)
    found = list(access.entries(directory))
    for entry in found:
        if not entry.is_file:
            raise NotApplied(f"{access.shown(directory)!r} holds the directory {entry.path!r}", path=directory)
    for entry in found:
        access.remove(entry.path)
    access.remove_directory(directory)


def look_at(access: FsspecAccess, path: str) -> StoredFile | None:
    """One file as a listing shows it; see ``PartStore.look_at``."""
    split_path(path)
    found = access.info(path)
    return None if found is None else access.stored(Entry(path, is_file=True, found=found))


def take_away(access: FsspecAccess, path: str, into: str | None) -> bool:
    """Delete one file, or move it to another directory; see ``CleaningStore.take_away``."""
    _, name = split_path(path)
    if into is None:
        return access.remove(path)
    if access.scheme.way not in MOVING:
        raise NotApplied(f"{access.shown(path)!r} cannot be moved but by a copy", hint="Delete it.", path=path)
    try:
        access.make_directory(into)
        access.rename(path, f"{into}/{name}")
    except NotFound:
        return False
    return True


def show_marker(access: FsspecAccess, path: str) -> bool:
    """Make the marker if it is not there; nobody is kept from it, for there are no locks (S13)."""
    split_path(path)
    if access.info(path) is None:
        with suppress(AlreadyExists):
            create_whole(access, path, b"")
    return True


def marker_is_shown(access: FsspecAccess, path: str) -> bool:
    """Whether the marker is visible: then driver and executor mean the same place."""
    split_path(path)
    if access.info(path) is None:
        raise NotFound(
            f"marker {access.shown(path)!r} is not visible from this process",
            hint="Driver and executors must share one file system: memory:// and a directory of one host are not.",
            path=path,
        )
    return True


def _create_through_another_name(access: FsspecAccess, path: str, data: bytes, way: Way) -> None:
    directory, _ = split_path(path)
    temporary = f"{directory}/_tmp.{new_token()}" if directory else f"_tmp.{new_token()}"
    access.write(temporary, data)
    try:
        if way is Way.LINK:
            access.link(temporary, path)
        else:
            access.rename(temporary, path)
    finally:
        # What is left of it harms nobody.
        with suppress(PartfileError):
            access.remove(temporary)


def _read_back(access: FsspecAccess, path: str, data: bytes) -> None:
    """Where a name can be taken twice, see whose bytes are there."""
    # Who looked before this file was there has written his own by then, unless he slept: a rival is seen, no more.
    time.sleep(_RIVALS_ARE_DONE_AFTER_S)
    try:
        found = access.read(path, max(len(data), 1) * 2)
    except NotFound as error:
        raise OutcomeUnknown(f"{access.shown(path)!r} was written and is not there", path=path) from error
    except NotApplied:
        found = b""
    if found != data:
        raise AlreadyExists(f"{access.shown(path)!r} was written by somebody else as well", path=path)
