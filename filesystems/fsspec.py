"""The store over any file system of fsspec: parts roll at each checkpoint, and are published by the best it has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from partfile.filesystems import fsspec_files, fsspec_parts, fsspec_stream
from partfile.filesystems.capabilities import Capabilities
from partfile.filesystems.errors import NotFound
from partfile.filesystems.fsspec_access import FsspecAccess
from partfile.filesystems.fsspec_calls import FsspecCalls
from partfile.filesystems.fsspec_probe import EXCLUSIVE, hazards, learn_way
from partfile.filesystems.fsspec_schemes import MOVING, Way, scheme_named
from partfile.filesystems.fsspec_url import FsspecUrl
from partfile.filesystems.part_errors import part_refused
from partfile.filesystems.part_names import check_handle
from partfile.filesystems.port import STATE_DIRECTORY, StoredFile
from partfile.filesystems.relative_paths import check_relative_path, may_hold_parts
from partfile.filesystems.staged_names import staged_names
from partfile.filesystems.stages import checked_for_publishing, checked_stage, stages_refused

if TYPE_CHECKING:
    import builtins
    import io
    from collections.abc import Iterable, Iterator, Mapping
    from types import TracebackType

    from partfile.filesystems.cleaning_port import Leftover
    from partfile.filesystems.port import Cut, PartHandle, PartStream

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
    def stages_travel(self) -> bool:
        """Yes."""
        return True

    @property
    def checks_reads(self) -> bool:
        """There are no stages."""
        return False

    def check_path(self, path: str) -> None:
        """See ``PartStore.check_path``."""
        check_relative_path(path)

    def create(self, handle: PartHandle) -> fsspec_stream.FsspecPartStream:
        """See ``PartStore.create``; nothing is there before the first persist. Stages are refused."""
        handle = check_handle(handle)
        if handle.is_stage:
            raise stages_refused(handle, self.base)
        return fsspec_stream.create_part(self._access, handle)

    def resume(self, handle: PartHandle) -> PartStream:
        """See ``PartStore.resume``; always refused."""
        raise part_refused(check_handle(handle), f"{self._access.url.scheme}:// takes no appended bytes")

    def settle(self, handle: PartHandle, cut: Cut) -> PartHandle:  # noqa: ARG002 - there is nothing to cut.
        """See ``PartStore.settle``."""
        return fsspec_parts.settle_part(self._access, checked_for_publishing(handle))

    def publish(self, handle: PartHandle, cut: Cut) -> None:  # noqa: ARG002 - there is nothing to cut.
        """See ``PartStore.publish``."""
        fsspec_parts.publish_part(self._access, checked_for_publishing(handle))

    def open_stage(self, handle: PartHandle, *, fences: bool = False) -> io.BufferedReader:  # noqa: ARG002 - nobody is in the way.
        """See ``PartStore.open_stage``; always refused."""
        raise stages_refused(checked_stage(handle), self.base)

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
        return fsspec_parts.discard_part(self._access, check_handle(handle))

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
        return fsspec_files.look_at(self._access, path)

    @property
    def moves_files(self) -> bool:
        """See ``CleaningStore.moves_files``; not where a file is moved by copying it."""
        return self._access.scheme.way in MOVING

    def take_away(self, path: str, into: str | None) -> bool:
        """See ``CleaningStore.take_away``; there are no leases here."""
        return fsspec_files.take_away(self._access, path, into)

    def is_being_written(self, path: str) -> bool | None:  # noqa: ARG002 - nobody can know.
        """See ``CleaningStore.is_being_written``; there are no leases here."""
        return None

    def leftovers(self, parts: Iterable[PartHandle], before_ms: int) -> Iterator[Leftover]:  # noqa: ARG002 - there are none.
        """See ``CleaningStore.leftovers``."""
        yield from ()

    def drop_leftover(self, leftover: Leftover) -> bool:
        """See ``CleaningStore.drop_leftover``."""
        return self.take_away(leftover.path, None)

    def create_file(self, path: str, data: bytes) -> None:
        """See ``MetadataStore.create_file``."""
        fsspec_files.create_whole(self._access, path, data)

    def read_file(self, path: str, max_bytes: int) -> bytes:
        """See ``MetadataStore.read_file``."""
        return fsspec_files.read_whole(self._access, path, max_bytes)

    def file_exists(self, path: str) -> bool:
        """See ``MetadataStore.file_exists``."""
        return fsspec_files.is_file(self._access, path)

    def list_names(self, directory: str) -> builtins.list[str]:
        """See ``MetadataStore.list_names``."""
        return fsspec_files.names_in(self._access, directory)

    def delete_file(self, path: str) -> None:
        """See ``MetadataStore.delete_file``."""
        fsspec_files.delete_one(self._access, path)

    def delete_directory(self, directory: str) -> None:
        """See ``MetadataStore.delete_directory``."""
        fsspec_files.delete_flat(self._access, directory)

    @property
    def markers_are_locks(self) -> bool:
        """See ``MetadataStore.markers_are_locks``."""
        return False

    def hold_marker(self, path: str) -> bool:
        """See ``MetadataStore.hold_marker``; the marker is no lock, and stays."""
        return fsspec_files.show_marker(self._access, path)

    def marker_is_held(self, path: str) -> bool:
        """See ``MetadataStore.marker_is_held``; whether it is visible, which is all that a task needs to know."""
        return fsspec_files.marker_is_shown(self._access, path)

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
