"""The local store: parts leased by flock, published by link, durable by fsync of files and directories."""

from __future__ import annotations

import logging
import stat
from typing import TYPE_CHECKING, Self

from partfile.filesystems import local_cleaning, local_files, local_parts, local_reading, local_stream
from partfile.filesystems.capabilities import Capabilities
from partfile.filesystems.errors import DirectoriesUnreadable, NotApplied, NotFound
from partfile.filesystems.local_errors import translated
from partfile.filesystems.local_tree import LocalTree
from partfile.filesystems.part_names import check_handle
from partfile.filesystems.port import STATE_DIRECTORY, StoredFile
from partfile.filesystems.posix import PosixCalls
from partfile.filesystems.relative_paths import check_relative_path, is_unicode, may_hold_parts
from partfile.filesystems.staged_names import staged_names
from partfile.filesystems.stages import checked_for_publishing, checked_stage

if TYPE_CHECKING:
    import builtins
    import io
    import os
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    from partfile.filesystems.cleaning_port import Leftover
    from partfile.filesystems.port import Cut, PartHandle

logger = logging.getLogger("partfile")


class LocalStore:
    """Part files and metadata below one local directory.

    It may be shared between threads; a forked child should open its own.

    Args:
        base: The base directory; symbolic links in its path are resolved once, here.
        create_base: Make the base, and what is missing above it, with the first file, and insist at once that it can
            be written to; False for reading.
        calls: The system calls; another object only to inject faults.

    Raises:
        ConfigError: The base, or something above it, is a file; or this process does not name files in UTF-8.
        NotApplied: The base is missing, or cannot be written to.
    """

    def __init__(self, base: str, *, create_base: bool = True, calls: PosixCalls | None = None) -> None:
        self._tree = LocalTree(base, calls or PosixCalls(), create_base=create_base)
        self._markers = local_files.Markers(self._tree)

    @property
    def base(self) -> str:
        """The resolved absolute path of the base."""
        return self._tree.base

    @property
    def capabilities(self) -> Capabilities:
        """Everything but sharing, which a path does not tell: the marker proves it (S13)."""
        return Capabilities(
            append=True,
            lease=True,
            fence=False,
            truncate=True,
            no_replace=True,
            durable=True,
            shared=False,
            stages=True,
        )

    @property
    def persist_threads(self) -> int:
        """As many as publish: syncs under way together share the journal's commits, and the wait for the disk."""
        return self.capabilities.publish_threads

    @property
    def stages_travel(self) -> bool:
        """No: the disk takes them faster than they are compressed."""
        return False

    @property
    def checks_reads(self) -> bool:
        """No: most file systems have no checksum of a file's content."""
        return False

    def check_path(self, path: str) -> None:
        """See ``PartStore.check_path``."""
        check_relative_path(path)

    def create(self, handle: PartHandle) -> local_stream.LocalPartStream:
        """See ``PartStore.create``."""
        return local_stream.create_part(self._tree, check_handle(handle))

    def resume(self, handle: PartHandle) -> local_stream.LocalPartStream:
        """See ``PartStore.resume``."""
        return local_stream.resume_part(self._tree, check_handle(handle))

    def settle(self, handle: PartHandle, cut: Cut) -> PartHandle:
        """See ``PartStore.settle``."""
        return local_parts.settle_part(self._tree, checked_for_publishing(handle), cut)

    def publish(self, handle: PartHandle, cut: Cut) -> None:
        """See ``PartStore.publish``."""
        local_parts.publish_part(self._tree, checked_for_publishing(handle), cut)

    def open_stage(self, handle: PartHandle, *, fences: bool = False) -> io.BufferedReader:  # noqa: ARG002 - nobody is in the way.
        """See ``PartStore.open_stage``."""
        return local_reading.open_stage(self._tree, checked_stage(handle))

    def goes_back(self, handle: PartHandle) -> bool:
        """See ``PartStore.goes_back``."""
        check_handle(handle)
        # Since it is cut.
        return True

    def is_staged(self, handle: PartHandle) -> bool:
        """See ``PartStore.is_staged``."""
        check_handle(handle)
        return any(self.file_exists(handle.path_of(name)) for name in staged_names(handle))

    def discard(self, handle: PartHandle) -> bool:
        """See ``PartStore.discard``."""
        return local_cleaning.discard_part(self._tree, check_handle(handle))

    def list(self, directory: str = "") -> Iterator[StoredFile]:
        """See ``PartStore.list``; symbolic links, pipes and names that are not UTF-8 are passed over.

        Raises:
            DirectoriesUnreadable: At the end, of directories below that this user may not read.
        """
        waiting, unreadable = [check_relative_path(directory)], list[NotApplied]()
        while waiting:
            path = waiting.pop()
            if path.split("/", maxsplit=1)[0] == STATE_DIRECTORY:
                continue
            # One directory at a time, so that neither its depth nor a slow caller holds descriptors.
            for name, status in self._entries(path, unreadable if path != directory else None):
                below = f"{path}/{name}" if path else name
                if stat.S_ISDIR(status.st_mode):
                    if may_hold_parts(below, self.base):
                        waiting.append(below)
                elif stat.S_ISREG(status.st_mode):
                    yield local_files.stored(below, status)
        if unreadable:
            first = unreadable[0]
            problem = DirectoriesUnreadable(first.message, hint=first.hint, path=first.path)
            problem.directories = tuple(error.path[len(self.base) + 1 :] for error in unreadable if error.path)
            raise problem

    def look_at(self, path: str) -> StoredFile | None:
        """See ``PartStore.look_at``."""
        return local_files.look_at(self._tree, path)

    @property
    def moves_files(self) -> bool:
        """See ``CleaningStore.moves_files``."""
        return True

    def take_away(self, path: str, into: str | None) -> bool:
        """See ``CleaningStore.take_away``."""
        return local_cleaning.take_away(self._tree, path, into)

    def is_being_written(self, path: str) -> bool | None:
        """See ``CleaningStore.is_being_written``."""
        return local_cleaning.is_being_written(self._tree, path)

    def leftovers(self, parts: Iterable[PartHandle], before_ms: int) -> Iterator[Leftover]:  # noqa: ARG002 - there are none.
        """See ``CleaningStore.leftovers``."""
        yield from ()

    def drop_leftover(self, leftover: Leftover) -> bool:
        """See ``CleaningStore.drop_leftover``."""
        return self.take_away(leftover.path, None)

    def create_file(self, path: str, data: bytes) -> None:
        """See ``MetadataStore.create_file``."""
        local_files.create_whole(self._tree, path, data)

    def read_file(self, path: str, max_bytes: int) -> bytes:
        """See ``MetadataStore.read_file``."""
        return local_files.read_whole(self._tree, path, max_bytes)

    def file_exists(self, path: str) -> bool:
        """See ``MetadataStore.file_exists``."""
        return local_files.is_file(self._tree, path)

    def list_names(self, directory: str) -> builtins.list[str]:
        """See ``MetadataStore.list_names``."""
        return local_files.names_in(self._tree, directory)

    def delete_file(self, path: str) -> None:
        """See ``MetadataStore.delete_file``."""
        local_files.delete_one(self._tree, path)

    def delete_directory(self, directory: str) -> None:
        """See ``MetadataStore.delete_directory``."""
        local_files.delete_flat(self._tree, directory)

    @property
    def markers_are_locks(self) -> bool:
        """See ``MetadataStore.markers_are_locks``."""
        return True

    def hold_marker(self, path: str) -> bool:
        """See ``MetadataStore.hold_marker``."""
        return self._markers.hold(path)

    def marker_is_held(self, path: str) -> bool:
        """See ``MetadataStore.marker_is_held``."""
        return self._markers.is_held(path)

    def hazards(self, *, now_ms: int, longest_open_s: float) -> Iterator[str]:  # noqa: ARG002 - there are none.
        """See ``MetadataStore.hazards``."""
        yield from ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release markers and the base; delete nothing. May be called twice."""
        self._markers.close()
        self._tree.close()

    def _entries(self, path: str, unreadable: builtins.list[NotApplied] | None) -> Iterator[tuple[str, os.stat_result]]:
        try:
            with self._tree.directory(path) as directory, translated("list", self._tree.shown(path)):
                names = self._tree.calls.list_names(directory)
                known = [name for name in names if is_unicode(name)]
                found = [(name, self._tree.calls.stat_name(directory, name)) for name in known]
        except NotFound:
            return
        except NotApplied as error:
            if unreadable is None or not isinstance(error.__cause__, PermissionError):
                raise
            unreadable.append(error)
            return
        if len(known) < len(names):
            logger.warning("%d names in %r are not UTF-8, and are passed over", len(names) - len(known), path or ".")
        yield from ((name, status) for name, status in found if status is not None)
