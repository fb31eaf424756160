"""Whether a file system of fsspec really refuses a name that is taken, asked once a process; and what to say of it."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from partfile.filesystems.errors import AlreadyExists, ConfigError, PartfileError, StoreError
from partfile.filesystems.fsspec_schemes import Way
from partfile.filesystems.port import STATE_DIRECTORY
from partfile.filesystems.tokens import new_token

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partfile.filesystems.fsspec_access import FsspecAccess

EXCLUSIVE = frozenset({Way.LINK, Way.CREATE})
"""The ways that replace nothing."""
_DATA = b"probe"


class _Learned:
    """What this process has found out, by base and options: those may name another server."""

    def __init__(self) -> None:
        self._ways: dict[tuple[int, tuple[str, str]], Way] = {}

    def get(self, place: tuple[str, str]) -> Way | None:
        return self._ways.get((os.getpid(), place))

    def put(self, place: tuple[str, str], way: Way) -> None:
        self._ways[os.getpid(), place] = way


# Sharing among all stores of a process is what it is for: a server is asked once.
_LEARNED = _Learned()


def learn_way(access: FsspecAccess) -> Way:
    """The best way of this file system to give a file its name; where none is claimed nothing is asked.

    Raises:
        StoreError: It cannot be reached, or refuses these credentials.
    """
    claimed = access.scheme.way
    if claimed not in EXCLUSIVE:
        return claimed
    way = _LEARNED.get(access.place)
    if way is None:
        way = claimed if _refuses(access, claimed) else Way.COPY
        _LEARNED.put(access.place, way)
    return way


def hazards(access: FsspecAccess) -> Iterator[str]:
    """What about this file system can hurt a sink, in sentences."""
    way = learn_way(access)
    shown = f"{access.url.scheme}://"
    yield f"{shown} takes no appended bytes: every part rolls at each checkpoint, so parts are as small as batches"
    if way not in EXCLUSIVE:
        yield (
            f"{shown} is not known to refuse a name that is taken: two drivers that write with one uid are only "
            "detected, not prevented, and a file that appears between a look and the publishing is replaced"
        )
    if way is Way.COPY:
        yield f"{shown} is not known to show a file only when it is whole: readers may see part of one being published"
    if not access.scheme.is_durable:
        yield f"{shown} does not say when bytes are durable: what was committed may be lost when power fails"
    if access.url.scheme == "memory":
        yield "memory:// ends with this process, and no other process sees it"


def _refuses(access: FsspecAccess, way: Way) -> bool:
    """Give one name twice, with bytes and without: one client was seen to replace a file by an empty one."""
    source, name = (f"{STATE_DIRECTORY}/_probe.{new_token()}" for _ in range(2))
    try:
        access.write(source, _DATA)
        if way is Way.LINK:
            return _links(access, source, name) and not _links(access, source, name)
        access.create(name, _DATA)
        return all(_is_refused(access, name, data) for data in (b"", b"other"))
    except ConfigError:
        # A client that knows no condition.
        return False
    finally:
        for path in (source, name):
            with suppress(PartfileError):
                access.remove(path)
        access.remove_directory(STATE_DIRECTORY)


def _links(access: FsspecAccess, source: str, name: str) -> bool:
    try:
        access.link(source, name)
    except StoreError:
        # Taken, or on a disk without links.
        return False
    return True


def _is_refused(access: FsspecAccess, name: str, data: bytes) -> bool:
    try:
        access.create(name, data)
    except AlreadyExists:
        return access.read(name, len(_DATA)) == _DATA
    return False
