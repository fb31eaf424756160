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
from partfile.stores.fsspec.client import Entry, FsspecAccess, FsspecCalls
from partfile.stores.fsspec.schemes import MOVING, FsspecUrl, Way, scheme_named
from partfile.stores.fsspec.stream import FsspecPartStream
from partfile.stores.parts import (
    FsspecStaging,
    check_handle,
    check_new,
    checked_for_publishing,
    checked_staging_file,
    part_conflict,
    part_gone,
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


logger = logging.getLogger("partfile")

EXCLUSIVE = frozenset({Way.LINK, Way.CREATE})
"""The ways that replace nothing."""
_DATA = b"probe"
_MOST_BYTES_OF_PROBE = 1 << 10


class _Learned:
    """Capabilities found out by this process, by base and options: these may name another server."""

    def __init__(self) -> None:
        self._ways: dict[tuple[int, tuple[str, str]], Way] = {}
        self._copying: set[tuple[int, tuple[str, str]]] = set()

    def get(self, place: tuple[str, str]) -> Way | None:
        return self._ways.get((os.getpid(), place))

    def put(self, place: tuple[str, str], way: Way) -> None:
        self._ways[os.getpid(), place] = way

    def copies(self, place: tuple[str, str]) -> bool:
        return (os.getpid(), place) in self._copying

    def put_copies(self, place: tuple[str, str]) -> None:
        self._copying.add((os.getpid(), place))


# Sharing among all stores of a process is what it is for: a server is asked once.
_LEARNED = _Learned()

_RIVALS_ARE_DONE_AFTER_S = 0.2
_MOST_DIGITS = 20
_LENGTH = re.compile(rb"0|[1-9][0-9]*")
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
            raise NotFound(
                f"nothing is below the base {self.base!r}",
                hint=(
                    'Mend the URL. See what is there, with storage_options if there are any: python -c "import '
                    f'fsspec; print(fsspec.filesystem({place.scheme!r}).ls({self.base.rpartition("/")[0]!r}))"'
                ),
                path=self.base,
            )

    @property
    def base(self) -> str:
        """The URL of the base."""
        return str(self._access.url)

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities here; asks, once a process, whether a name that is taken is refused."""
        scheme, way = self._access.scheme, self._way()
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
        """Refuse a path that leaves the base."""
        check_relative_path(path)

    def _way(self) -> Way:
        """The best way of this file system to give a file its name; where none is claimed nothing is asked.

        Raises:
            StoreError: It cannot be reached, or refuses these credentials.
        """
        claimed = self._access.scheme.way
        if claimed not in EXCLUSIVE:
            return claimed
        way = _LEARNED.get(self._access.place)
        if way is None:
            way = claimed if self._refuses(claimed) else Way.COPY
            _LEARNED.put(self._access.place, way)
        return way

    def _refuses(self, way: Way) -> bool:
        """Give one name twice, with bytes and without: one client was seen to replace a file by an empty one."""
        source, name = (f"{STATE_DIRECTORY}/_probe.{new_token()}" for _ in range(2))
        try:
            self._access.write(source, _DATA)
            if way is Way.LINK:
                return self._links(source, name) and not self._links(source, name)
            self._access.create(name, _DATA)
            return all(self._is_refused(name, data) for data in (b"", b"other"))
        except ConfigError:
            # A client that knows no condition.
            return False
        finally:
            for path in (source, name):
                with suppress(PartfileError):
                    self._access.remove(path)
            self._access.remove_directory(STATE_DIRECTORY)

    def _links(self, source: str, name: str) -> bool:
        try:
            self._access.link(source, name)
        except StoreError:
            # Taken, or on a disk without links.
            return False
        return True

    def _is_refused(self, name: str, data: bytes) -> bool:
        try:
            self._access.create(name, data)
        except AlreadyExists:
            return self._access.read(name, len(_DATA)) == _DATA
        return False

    # A part, in the order of its life.

    def create(self, handle: PartHandle) -> FsspecPartStream:
        """Begin a part; asks nothing, and nothing is there before the first persist. Staging files are refused."""
        if check_handle(handle).is_staging_file:
            raise staging_files_refused(handle, self.base)
        check_new(handle)
        return FsspecPartStream(self._access, handle)

    def resume(self, handle: PartHandle) -> PartStream:
        """Always refused: nothing is appended to here."""
        raise part_refused(check_handle(handle), f"{self._access.url.scheme}:// takes no appended bytes")

    def prepare(self, handle: PartHandle) -> PartHandle:
        """The same handle: nothing has to begin before a part is published."""
        return handle

    def publish(self, handle: PartHandle, cut: Cut) -> None:  # noqa: ARG002 - there is nothing to cut.
        """Give the staged file its final name by the best way that there is, and delete the staged one."""
        checked_for_publishing(handle)
        self._check_sidecar(handle)
        staging = FsspecStaging.of(handle)
        if self._is_finished(handle):
            self._drop_same_file(handle, staging)
            return
        if staging is None or not self._is_staged_whole(handle):
            # Another coordinator may have published it since the look at its name.
            if self._is_finished(handle):
                return
            raise _gone(handle)
        try:
            self._give_name(handle, staging)
        except StoreError as error:
            if not self._is_finished(handle):
                raise _gone(handle) if isinstance(error, NotFound) else error from None
        else:
            # A copy that is another file is a conflict. One that is not there was taken by a consumer at once.
            if self._way() is Way.COPY:
                self._is_finished(handle)
        self._drop_staged(handle, staging)

    def _give_name(self, handle: PartHandle, staging: FsspecStaging) -> None:
        source, name = handle.path_of(staging.file), handle.path_of(handle.name)
        match self._way():
            case Way.LINK:
                self._access.link(source, name)
            case Way.CREATE:
                data = self._access.read(source, handle.valid_length)
                if crc32_of(data) != staging.crc32:
                    raise part_missing(handle, "its staged file is not what was written")
                self._access.create(name, data)
            case Way.RENAME:
                self._access.rename(source, name)
            case Way.COPY:
                self._check_copies()
                self._access.copy(source, name)

    def _check_copies(self) -> None:
        """See once, under names that no consumer reads, that a copy is made when the client says so.

        Raises:
            StoreError: It is not, or not whole.
        """
        if _LEARNED.copies(self._access.place):
            return
        source, name = (f"{STATE_DIRECTORY}/_probe.{new_token()}" for _ in range(2))
        failure: StoreError | None = None
        try:
            self._access.write(source, _DATA)
            try:
                self._access.copy(source, name)
            except OutcomeUnknown as error:
                failure = error
            found = self._access.read(name, _MOST_BYTES_OF_PROBE) if self._access.info(name) is not None else None
        finally:
            for path in (source, name):
                with suppress(PartfileError):
                    self._access.remove(path)
        if found != _DATA:
            raise failure or StoreError(
                f"{self._access.url.scheme}:// says that it copied a file, and the copy is "
                f"{'not there' if found is None else 'another one'}",
                hint=(
                    "Nothing was published. Write to another file system, or install a later version of the client "
                    "that fsspec uses for it: pip install --upgrade PACKAGE"
                ),
                path=self._access.shown(name),
            )
        _LEARNED.put_copies(self._access.place)

    def _is_finished(self, handle: PartHandle) -> bool:
        """Whether the finished file is there and ours.

        Raises:
            CommitConflict: It is there, and is another one.
        """
        path = handle.path_of(handle.name)
        size = self._access.size(path)
        if size is None:
            return False
        if size != handle.valid_length:
            raise part_conflict(handle, f"it is there with {size} bytes, the checkpoint says {handle.valid_length}")
        staging = FsspecStaging.of(handle)
        if staging is not None and self._access.checksum(path, size) != staging.crc32:
            raise part_conflict(handle, f"a file of {size} bytes is there that is not this part")
        return True

    def _is_staged_whole(self, handle: PartHandle) -> bool:
        staging = FsspecStaging.of(handle)
        size = None if staging is None else self._access.size(handle.path_of(staging.file))
        if size is None:
            return False
        if size < handle.valid_length:
            raise part_too_short(handle, size)
        if size > handle.valid_length:
            raise part_missing(handle, f"its staged file has {size} bytes, so it is not what was written")
        return True

    def _drop_same_file(self, handle: PartHandle, staging: FsspecStaging | None) -> None:
        """Delete the staged name where it is another name of the finished file; a copy of it is the cleaner's."""
        if staging is None or self._access.scheme.way is not Way.LINK:
            return
        staged, finished = (self._access.info(handle.path_of(name)) for name in (staging.file, handle.name))
        if staged and finished and staged["ino"] == finished["ino"]:
            self._drop_staged(handle, staging)

    def _drop_staged(self, handle: PartHandle, staging: FsspecStaging) -> None:
        """Delete what a finished part was staged in. It is published whether that works or not."""
        try:
            for name in (staging.file, *staging.spent):
                self._access.remove(handle.path_of(name))
        except PartfileError as error:
            logger.warning(
                "part %r is published; its staged file stays, for the cleaner: %s", handle.path_of(handle.name), error
            )

    def _check_sidecar(self, handle: PartHandle) -> None:
        """No sidecar is ever written here. Readers would believe one that is there."""
        try:
            content = self._access.read(handle.path_of(handle.sidecar), _MOST_DIGITS)
        except NotFound:
            return
        except FileTooLarge:
            content = b""
        if not _LENGTH.fullmatch(content) or int(content) != handle.valid_length:
            raise part_conflict(handle, f"its sidecar {handle.sidecar!r} says {content!r}, not {handle.valid_length}")

    def open_staging_file(self, handle: PartHandle, *, fences: bool = False) -> io.BufferedReader:  # noqa: ARG002 - no lease is in the way.
        """Always refused: there are no staging files here."""
        raise staging_files_refused(checked_staging_file(handle), self.base)

    def goes_back(self, handle: PartHandle) -> bool:
        """Yes: a staged file has one length."""
        check_handle(handle)
        return True

    def is_staged(self, handle: PartHandle) -> bool:
        """Whether a file is under one of the part's staged names."""
        check_handle(handle)
        return any(self.file_exists(handle.path_of(name)) for name in staged_names(handle))

    def discard(self, handle: PartHandle) -> bool:
        """Delete what is staged of a part. There is no lease: only age tells an orphan."""
        staging = FsspecStaging.of(check_handle(handle))
        names = {handle.in_progress, handle.pending, *((staging.file, *staging.spent) if staging else ())}
        removed = [self._access.remove(handle.path_of(name)) for name in sorted(names)]
        return any(removed)

    # Listing and cleaning.

    def list(self, directory: str = "") -> Iterator[StoredFile]:
        """Every file below a directory but those of partfile's own state."""
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
        """One file as a listing shows it; None if there is none."""
        split_path(path)
        found = self._access.info(path)
        return None if found is None else self._access.stored(Entry(path, is_file=True, found=found))

    @property
    def moves_files(self) -> bool:
        """Whether a file can be renamed, and not only copied."""
        return self._access.scheme.way in MOVING

    def remove(self, path: str, into: str | None) -> bool:
        """Delete one file, or move it to another directory; there are no leases here."""
        _, name = split_path(path)
        if into is None:
            return self._access.remove(path)
        if self._access.scheme.way not in MOVING:
            raise NotApplied(
                f"{self._access.shown(path)!r} cannot be moved but by a copy", hint="Delete it.", path=path
            )
        try:
            self._access.make_directory(into)
            self._access.rename(path, f"{into}/{name}")
        except NotFound:
            return False
        return True

    def hide(self, path: str, name: str) -> None:
        """Rename a file in its directory after a look that the name is free; there are no leases here."""
        parent, _ = split_path(path)
        hidden = f"{parent}/{name}" if parent else name
        if self._access.scheme.way not in MOVING:
            raise NotApplied(f"{self._access.shown(path)!r} cannot be renamed here", path=path)
        if self._access.size(hidden) is not None:
            raise AlreadyExists(f"{self._access.shown(hidden)!r} is there already", path=hidden)
        self._access.rename(path, hidden)

    def is_being_written(self, path: str) -> bool | None:  # noqa: ARG002 - it cannot be known.
        """Unknown: there are no leases here."""
        return None

    def leftovers(self, parts: Iterable[PartHandle], before_ms: int) -> Iterator[Leftover]:  # noqa: ARG002 - there are none.
        """None: a staged part is a file."""
        yield from ()

    def drop_leftover(self, leftover: Leftover) -> bool:
        """Delete it as any file; none is ever listed."""
        return self.remove(leftover.path, None)

    # Whole files: checkpoints, state, sidecars.

    def create_file(self, path: str, data: bytes) -> None:
        """Create a file, exclusive and whole as far as the file system can."""
        split_path(path)
        way = self._way()
        if way is Way.CREATE:
            self._access.create(path, data)
            return
        if way is not Way.LINK and self._access.info(path) is not None:
            raise AlreadyExists(f"{self._access.shown(path)!r} is there already", path=path)
        if way is Way.COPY:
            self._access.write(path, data)
        else:
            self._create_through_another_name(path, data, way)
        if way is not Way.LINK:
            self._read_back(path, data)

    def _create_through_another_name(self, path: str, data: bytes, way: Way) -> None:
        directory, _ = split_path(path)
        temporary = f"{directory}/_tmp.{new_token()}" if directory else f"_tmp.{new_token()}"
        self._access.write(temporary, data)
        try:
            if way is Way.LINK:
                self._access.link(temporary, path)
            else:
                self._access.rename(temporary, path)
        finally:
            # What is left of it does no harm.
            with suppress(PartfileError):
                self._access.remove(temporary)

    def _read_back(self, path: str, data: bytes) -> None:
        """See whose bytes are there, where a name can be taken twice."""
        # A rival that looked before this file existed has written by now, unless it was paused. So a rival is detected,
        # not excluded.
        time.sleep(_RIVALS_ARE_DONE_AFTER_S)
        try:
            found = self._access.read(path, max(len(data), 1) * 2)
        except NotFound as error:
            raise OutcomeUnknown(f"{self._access.shown(path)!r} was written and is not there", path=path) from error
        except NotApplied:
            found = b""
        if found != data:
            raise AlreadyExists(f"{self._access.shown(path)!r} was written by another process as well", path=path)

    def read_file(self, path: str, max_bytes: int) -> bytes:
        """Read a whole file; a longer one is refused."""
        split_path(path)
        return self._access.read(path, max_bytes)

    def local_path(self, path: str) -> str | None:  # noqa: ARG002 - of the protocol.
        """None: no file of it is on this host."""
        return None

    def file_exists(self, path: str) -> bool:
        """Whether a file is there now."""
        return self.look_at(path) is not None

    def list_names(self, directory: str) -> builtins.list[str]:
        """The names directly in a directory; empty if it is not there."""
        return [entry.path.rpartition("/")[2] for entry in self._access.entries(directory)]

    def delete_file(self, path: str) -> None:
        """Delete one file by its literal name; absent counts as done."""
        split_path(path)
        self._access.remove(path)

    def delete_directory(self, directory: str) -> None:
        """Delete the files directly in a directory, and the directory; absent counts as done."""
        split_path(directory)
        found = list(self._access.entries(directory))
        for entry in found:
            if not entry.is_file:
                raise NotApplied(
                    f"{self._access.shown(directory)!r} holds the directory {entry.path!r}", path=directory
                )
        for entry in found:
            self._access.remove(entry.path)
        self._access.remove_directory(directory)

    # Markers, and the store itself.

    @property
    def markers_are_locks(self) -> bool:
        """No: a marker is a file that stays."""
        return False

    def hold_marker(self, path: str) -> bool:
        """Make the marker if it is not there; it excludes no other process, for there are no locks (R13)."""
        split_path(path)
        if self._access.info(path) is None:
            with suppress(AlreadyExists):
                self.create_file(path, b"")
        return True

    def marker_is_held(self, path: str) -> bool:
        """Whether the marker is visible: then driver and executor mean the same place."""
        split_path(path)
        if self._access.info(path) is None:
            raise NotFound(
                f"marker {self._access.shown(path)!r} is not visible from this process",
                hint=(
                    "Driver and executors must share one file system: memory:// and a directory of one host are "
                    "not. Write for instance s3://bucket/path."
                ),
                path=path,
            )
        return True

    def hazards(self, *, now_ms: int, longest_open_s: float) -> Iterator[str]:  # noqa: ARG002 - of neither.
        """The hazards of this file system, in sentences."""
        way = self._way()
        shown = f"{self._access.url.scheme}://"
        yield f"{shown} takes no appended bytes: every part rolls at each checkpoint, so parts are as small as batches"
        if way not in EXCLUSIVE:
            yield (
                f"{shown} is not known to refuse a name that is taken: two drivers that write with one uid are only "
                "detected, not prevented, and a file that appears between a look and the publishing is replaced"
            )
        if way is Way.COPY:
            yield (
                f"{shown} is not known to show a file only when it is whole: readers may see part of one being "
                "published"
            )
        if not self._access.scheme.is_durable:
            yield f"{shown} does not say when bytes are durable: what was committed may be lost when power fails"
        if self._access.url.scheme == "memory":
            yield "memory:// ends with this process, and no other process sees it"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Refuse further calls; the client stays with its process. May be called twice."""
        self._access.close()


def _gone(handle: PartHandle) -> Exception:
    return part_gone(handle, "its staged file is gone, and no finished file is there")
