"""The store over any file system of fsspec: parts roll at each checkpoint, and are published by the best it has."""

from __future__ import annotations

import logging
import os
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from partfile.errors import (
    AlreadyExists,
    ConfigError,
    FileTooLarge,
    NotApplied,
    NotFound,
    OutcomeUnknown,
    PartfileError,
    StoreError,
)
from partfile.stores.base import STATE_DIRECTORY, Capabilities, StoredFile
from partfile.stores.checksums import crc32_of
from partfile.stores.fsspec import stream
from partfile.stores.fsspec.client import Entry, FsspecAccess, FsspecCalls
from partfile.stores.fsspec.schemes import MOVING, FsspecUrl, Way, scheme_named
from partfile.stores.parts import (
    FsspecStaging,
    check_handle,
    checked_for_publishing,
    checked_staging_file,
    part_conflict,
    part_missing,
    part_refused,
    part_too_short,
    split_path,
    staged_names,
    staging_files_refused,
)
from partfile.stores.paths import check_relative_path, may_hold_parts, new_token

if TYPE_CHECKING:
    import builtins
    import io
    from collections.abc import Iterable, Iterator, Mapping
    from types import TracebackType

    from partfile.stores.base import Cut, Leftover, PartHandle, PartStream


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


def remove(access: FsspecAccess, path: str, into: str | None) -> bool:
    """Delete one file, or move it to another directory; see ``CleaningStore.remove``."""
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
    """Make the marker if it is not there; it excludes no other process, for there are no locks (R13)."""
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
        # What is left of it does no harm.
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
        raise AlreadyExists(f"{access.shown(path)!r} was written by another process as well", path=path)


logger = logging.getLogger("partfile")
_MOST_DIGITS = 20
_LENGTH = re.compile(rb"0|[1-9][0-9]*")


def finalize_part(access: FsspecAccess, handle: PartHandle) -> PartHandle:
    """See to it that the part can be published; see ``PartStore.finalize``."""
    if not _is_finished(access, handle) and not _staged(access, handle) and not _is_finished(access, handle):
        raise _gone(handle)
    return handle


def publish_part(access: FsspecAccess, handle: PartHandle) -> None:
    """Make a part finished; see ``PartStore.publish``."""
    _check_sidecar(access, handle)
    staging = FsspecStaging.of(handle)
    if _is_finished(access, handle):
        _drop_same_file(access, handle, staging)
        return
    if staging is None or not _staged(access, handle):
        # Another coordinator may have published it since the look at its name.
        if _is_finished(access, handle):
            return
        raise _gone(handle)
    try:
        _give_name(access, handle, staging)
    except StoreError as error:
        if not _is_finished(access, handle):
            raise _gone(handle) if isinstance(error, NotFound) else error from None
    else:
        if learn_way(access) is Way.COPY and not _is_finished(access, handle):
            raise part_missing(handle, "it was copied, and is not there")
    _drop_staged(access, handle, staging)


def discard_part(access: FsspecAccess, handle: PartHandle) -> bool:
    """Delete what is staged of a part; see ``PartStore.discard``. There is no lease: only age tells an orphan."""
    staging = FsspecStaging.of(handle)
    names = {handle.in_progress, handle.pending, *((staging.file, *staging.spent) if staging else ())}
    removed = [access.remove(handle.path_of(name)) for name in sorted(names)]
    return any(removed)


def _give_name(access: FsspecAccess, handle: PartHandle, staging: FsspecStaging) -> None:
    source, name = handle.path_of(staging.file), handle.path_of(handle.name)
    match learn_way(access):
        case Way.LINK:
            access.link(source, name)
        case Way.CREATE:
            data = access.read(source, handle.valid_length)
            if crc32_of(data) != staging.crc32:
                raise part_missing(handle, "its staged file is not what was written")
            access.create(name, data)
        case Way.RENAME:
            access.rename(source, name)
        case Way.COPY:
            access.copy(source, name)


def _is_finished(access: FsspecAccess, handle: PartHandle) -> bool:
    """Whether the finished file is there and ours.

    Raises:
        CommitConflict: It is there, and is another one.
    """
    path = handle.path_of(handle.name)
    size = access.size(path)
    if size is None:
        return False
    if size != handle.valid_length:
        raise part_conflict(handle, f"it is there with {size} bytes, the checkpoint says {handle.valid_length}")
    staging = FsspecStaging.of(handle)
    if staging is not None and access.checksum(path, size) != staging.crc32:
        raise part_conflict(handle, f"a file of {size} bytes is there that is not this part")
    return True


def _staged(access: FsspecAccess, handle: PartHandle) -> bool:
    staging = FsspecStaging.of(handle)
    size = None if staging is None else access.size(handle.path_of(staging.file))
    if size is None:
        return False
    if size < handle.valid_length:
        raise part_too_short(handle, size)
    if size > handle.valid_length:
        raise part_missing(handle, f"its staged file has {size} bytes, so it is not what was written")
    return True


def _drop_same_file(access: FsspecAccess, handle: PartHandle, staging: FsspecStaging | None) -> None:
    """Delete the staged name where it is another name of the finished file; a copy of it is the cleaner's."""
    if staging is None or access.scheme.way is not Way.LINK:
        return
    staged, finished = access.info(handle.path_of(staging.file)), access.info(handle.path_of(handle.name))
    if staged and finished and staged["ino"] == finished["ino"]:
        _drop_staged(access, handle, staging)


def _drop_staged(access: FsspecAccess, handle: PartHandle, staging: FsspecStaging) -> None:
    """Delete what a finished part was staged in. It is published whether that works or not."""
    try:
        for name in (staging.file, *staging.spent):
            access.remove(handle.path_of(name))
    except PartfileError as error:
        logger.warning(
            "part %r is published; its staged file stays, for the cleaner: %s", handle.path_of(handle.name), error
        )


def _check_sidecar(access: FsspecAccess, handle: PartHandle) -> None:
    """No sidecar is ever written here. Readers would believe one that is there."""
    try:
        content = access.read(handle.path_of(handle.sidecar), _MOST_DIGITS)
    except NotFound:
        return
    except FileTooLarge:
        content = b""
    if not _LENGTH.fullmatch(content) or int(content) != handle.valid_length:
        raise part_conflict(handle, f"its sidecar {handle.sidecar!r} says {content!r}, not {handle.valid_length}")


def _gone(handle: PartHandle) -> Exception:
    return part_missing(handle, "its staged file is gone, and no finished file is there")


_PARTS_IN_MEMORY = 2
"""Parts that are published at a time where that means to read and send them."""


class FsspecStore:
    """Part files and metadata below one place of a file system that fsspec reaches.

    Opening it asks nothing. It may be shared between threads; the client is made with the first call, one a process,
    so a forked child may use it too.

    Args:
        url: ``scheme://place/path``; or ``dir::file:///path``, local files by fsspec's means.
        storage_options: What fsspec's client takes.
        create_base: False insists that something is there, for reading; a base needs no making.
        calls: The calls; another object only to inject faults.

    Raises:
        ConfigError: The URL or an option cannot be used, or the client is not installed.
        NotFound: The base is not there, where it has to be.
    """

    def __init__(
        self,
        url: str,
        storage_options: Mapping[str, object] | None = None,
        *,
        create_base: bool = True,
        calls: FsspecCalls | None = None,
    ) -> None:
        place = FsspecUrl.of(url)
        calls = calls or FsspecCalls(place, storage_options or {})
        self._access = FsspecAccess(place, scheme_named(place.scheme), calls)
        if not create_base and next(self._access.entries(""), None) is None:
            raise NotFound(f"nothing is below the base {self.base!r}", hint="Check the URL.", path=self.base)

    @property
    def base(self) -> str:
        """The URL of the base."""
        return str(self._access.url)

    @property
    def capabilities(self) -> Capabilities:
        """What holds here; asks, once a process, whether a name that is taken is refused."""
        scheme, way = self._access.scheme, learn_way(self._access)
        return Capabilities(
            append=False,
            lease=False,
            fence=False,
            truncate=False,
            no_replace=way in EXCLUSIVE,
            durable=scheme.is_durable,
            shared=scheme.is_shared,
            exclusive_create=way in EXCLUSIVE,
            publish_threads=min(scheme.threads, _PARTS_IN_MEMORY) if way is Way.CREATE else scheme.threads,
        )

    @property
    def persist_threads(self) -> int:
        """As many as the client takes at a time."""
        return self._access.scheme.threads

    @property
    def staging_files_travel(self) -> bool:
        """Yes."""
        return True

    @property
    def checks_reads(self) -> bool:
        """There are no staging files."""
        return False

    def check_path(self, path: str) -> None:
        """See ``PartStore.check_path``."""
        check_relative_path(path)

    def create(self, handle: PartHandle) -> stream.FsspecPartStream:
        """See ``PartStore.create``; nothing is there before the first persist. Staging files are refused."""
        handle = check_handle(handle)
        if handle.is_staging_file:
            raise staging_files_refused(handle, self.base)
        return stream.create_part(self._access, handle)

    def resume(self, handle: PartHandle) -> PartStream:
        """See ``PartStore.resume``; always refused."""
        raise part_refused(check_handle(handle), f"{self._access.url.scheme}:// takes no appended bytes")

    def finalize(self, handle: PartHandle, cut: Cut) -> PartHandle:  # noqa: ARG002 - there is nothing to cut.
        """See ``PartStore.finalize``."""
        return finalize_part(self._access, checked_for_publishing(handle))

    def publish(self, handle: PartHandle, cut: Cut) -> None:  # noqa: ARG002 - there is nothing to cut.
        """See ``PartStore.publish``."""
        publish_part(self._access, checked_for_publishing(handle))

    def open_staging_file(self, handle: PartHandle, *, fences: bool = False) -> io.BufferedReader:  # noqa: ARG002 - no lease is in the way.
        """See ``PartStore.open_staging_file``; always refused."""
        raise staging_files_refused(checked_staging_file(handle), self.base)

    def goes_back(self, handle: PartHandle) -> bool:
        """See ``PartStore.goes_back``."""
        check_handle(handle)
        # Since it has one length.
        return True

    def is_staged(self, handle: PartHandle) -> bool:
        """See ``PartStore.is_staged``."""
        check_handle(handle)
        return any(self.file_exists(handle.path_of(name)) for name in staged_names(handle))

    def discard(self, handle: PartHandle) -> bool:
        """See ``PartStore.discard``."""
        return discard_part(self._access, check_handle(handle))

    def list(self, directory: str = "") -> Iterator[StoredFile]:
        """See ``PartStore.list``."""
        waiting = [check_relative_path(directory)]
        while waiting:
            path = waiting.pop()
            if path.split("/", maxsplit=1)[0] == STATE_DIRECTORY:
                continue
            for entry in self._access.entries(path):
                if not entry.is_file:
                    if may_hold_parts(entry.path, self.base):
                        waiting.append(entry.path)
                elif entry.path.split("/", maxsplit=1)[0] != STATE_DIRECTORY:
                    yield self._access.stored(entry)

    def look_at(self, path: str) -> StoredFile | None:
        """See ``PartStore.look_at``."""
        return look_at(self._access, path)

    @property
    def moves_files(self) -> bool:
        """See ``CleaningStore.moves_files``; not where a file is moved by copying it."""
        return self._access.scheme.way in MOVING

    def remove(self, path: str, into: str | None) -> bool:
        """See ``CleaningStore.remove``; there are no leases here."""
        return remove(self._access, path, into)

    def is_being_written(self, path: str) -> bool | None:  # noqa: ARG002 - it cannot be known.
        """See ``CleaningStore.is_being_written``; there are no leases here."""
        return None

    def leftovers(self, parts: Iterable[PartHandle], before_ms: int) -> Iterator[Leftover]:  # noqa: ARG002 - there are none.
        """See ``CleaningStore.leftovers``."""
        yield from ()

    def drop_leftover(self, leftover: Leftover) -> bool:
        """See ``CleaningStore.drop_leftover``."""
        return self.remove(leftover.path, None)

    def create_file(self, path: str, data: bytes) -> None:
        """See ``MetadataStore.create_file``."""
        create_whole(self._access, path, data)

    def read_file(self, path: str, max_bytes: int) -> bytes:
        """See ``MetadataStore.read_file``."""
        return read_whole(self._access, path, max_bytes)

    def file_exists(self, path: str) -> bool:
        """See ``MetadataStore.file_exists``."""
        return is_file(self._access, path)

    def list_names(self, directory: str) -> builtins.list[str]:
        """See ``MetadataStore.list_names``."""
        return names_in(self._access, directory)

    def delete_file(self, path: str) -> None:
        """See ``MetadataStore.delete_file``."""
        delete_one(self._access, path)

    def delete_directory(self, directory: str) -> None:
        """See ``MetadataStore.delete_directory``."""
        delete_flat(self._access, directory)

    @property
    def markers_are_locks(self) -> bool:
        """See ``MetadataStore.markers_are_locks``."""
        return False

    def hold_marker(self, path: str) -> bool:
        """See ``MetadataStore.hold_marker``; the marker is no lock, and stays."""
        return show_marker(self._access, path)

    def marker_is_held(self, path: str) -> bool:
        """See ``MetadataStore.marker_is_held``; whether it is visible, which is all that a task needs to know."""
        return marker_is_shown(self._access, path)

    def hazards(self, *, now_ms: int, longest_open_s: float) -> Iterator[str]:  # noqa: ARG002 - of neither.
        """See ``MetadataStore.hazards``."""
        return hazards(self._access)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Refuse further calls; the client stays with its process. May be called twice."""
        self._access.close()
