"""The HDFS store: parts leased by the NameNode, fenced by lease recovery, published by rename without overwrite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from partfile.filesystems import hdfs_cleaning, hdfs_files, hdfs_parts, hdfs_stages, hdfs_stream
from partfile.filesystems.capabilities import Capabilities
from partfile.filesystems.errors import NotFound
from partfile.filesystems.hdfs_access import HdfsAccess
from partfile.filesystems.hdfs_calls import HdfsCalls
from partfile.filesystems.hdfs_markers import HdfsMarkers
from partfile.filesystems.hdfs_options import HdfsOptions
from partfile.filesystems.hdfs_url import HdfsUrl
from partfile.filesystems.part_names import check_handle
from partfile.filesystems.port import STATE_DIRECTORY
from partfile.filesystems.relative_paths import check_relative_path, may_hold_parts
from partfile.filesystems.staged_names import staged_names
from partfile.filesystems.stages import checked_for_publishing, checked_stage

if TYPE_CHECKING:
    import builtins
    import io
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    from partfile.filesystems.cleaning_port import Leftover
    from partfile.filesystems.port import Cut, PartHandle, StoredFile


class HdfsStore:
    """Part files and metadata below one directory of HDFS.

    Opening it asks HDFS nothing. It may be shared between threads; the client is made with the first call, one a
    process, so a forked child may use it too.

    Args:
        url: ``hdfs://authority/path``; literally, as Hadoop takes it; no authority means ``fs.defaultFS``.
        options: How to connect, and how long to wait.
        create_base: False insists that the base is there, for reading; a writer makes it with its first file.
        calls: The calls; another object only to inject faults.

    Raises:
        ConfigError: The URL or an option cannot be used.
        NotFound: The base is not there, where it has to be.
    """

    def __init__(
        self,
        url: str,
        options: HdfsOptions | None = None,
        *,
        create_base: bool = True,
        calls: HdfsCalls | None = None,
    ) -> None:
        options = options or HdfsOptions()
        parsed = HdfsUrl.of(url)
        self._access = HdfsAccess(str(parsed), parsed.path, options, calls or HdfsCalls(parsed.root, options))
        self._markers = HdfsMarkers(self._access)
        if not create_base and self._access.status("") is None:
            raise NotFound(f"the base {self.base!r} is not there", hint="Check the URL.", path=self.base)

    @property
    def base(self) -> str:
        """The URL of the base."""
        return self._access.base

    @property
    def capabilities(self) -> Capabilities:
        """Everything; to cut in place as long as no attempt to reach WebHDFS was in vain."""
        return Capabilities(
            append=True,
            lease=True,
            fence=True,
            truncate=self._access.truncates,
            no_replace=True,
            durable=True,
            shared=True,
            stages=True,
            publish_threads=64,
        )

    @property
    def persist_threads(self) -> int:
        """Many: every call is a round trip, and closing a part waits for a DataNode's report."""
        return 16

    @property
    def stages_travel(self) -> bool:
        """Yes."""
        return True

    @property
    def checks_reads(self) -> bool:
        """Yes: HDFS has a checksum for each 512 bytes, which the client or a DataNode compares."""
        return True

    def check_path(self, path: str) -> None:
        """See ``PartStore.check_path``."""
        check_relative_path(path)

    def create(self, handle: PartHandle) -> hdfs_stream.HdfsPartStream:
        """See ``PartStore.create``."""
        return hdfs_stream.create_part(self._access, check_handle(handle))

    def resume(self, handle: PartHandle) -> hdfs_stream.HdfsPartStream:
        """See ``PartStore.resume``."""
        return hdfs_stream.resume_part(self._access, check_handle(handle))

    def settle(self, handle: PartHandle, cut: Cut) -> PartHandle:
        """See ``PartStore.settle``."""
        return hdfs_parts.settle_part(self._access, checked_for_publishing(handle), cut)

    def publish(self, handle: PartHandle, cut: Cut) -> None:
        """See ``PartStore.publish``."""
        hdfs_parts.publish_part(self._access, checked_for_publishing(handle), cut)

    def open_stage(self, handle: PartHandle, *, fences: bool = False) -> io.BufferedReader:
        """See ``PartStore.open_stage``; what somebody has open is read over WebHDFS, as far as it is not closed."""
        return hdfs_stages.open_stage(self._access, checked_stage(handle), fences=fences)

    def goes_back(self, handle: PartHandle) -> bool:
        """See ``PartStore.goes_back``."""
        check_handle(handle)
        # Since it is cut or copied.
        return True

    def is_staged(self, handle: PartHandle) -> bool:
        """See ``PartStore.is_staged``."""
        check_handle(handle)
        return any(self.file_exists(handle.path_of(name)) for name in staged_names(handle))

    def discard(self, handle: PartHandle) -> bool:
        """See ``PartStore.discard``."""
        return hdfs_cleaning.discard_part(self._access, check_handle(handle))

    def list(self, directory: str = "") -> Iterator[StoredFile]:
        """See ``PartStore.list``; of an open file the size is what its writer has made durable."""
        waiting = [check_relative_path(directory)]
        while waiting:
            path = waiting.pop()
            if path.split("/", maxsplit=1)[0] == STATE_DIRECTORY:
                continue
            for status in self._access.list_status(path):
                below = f"{path}/{status.name}" if path else status.name
                if status.is_directory:
                    if may_hold_parts(below, self.base):
                        waiting.append(below)
                elif status.name:
                    yield hdfs_files.stored(below, status)

    def look_at(self, path: str) -> StoredFile | None:
        """See ``PartStore.look_at``."""
        return hdfs_files.look_at(self._access, path)

    @property
    def moves_files(self) -> bool:
        """See ``CleaningStore.moves_files``."""
        return True

    def take_away(self, path: str, into: str | None) -> bool:
        """See ``CleaningStore.take_away``."""
        return hdfs_cleaning.take_away(self._access, path, into)

    def is_being_written(self, path: str) -> bool | None:
        """See ``CleaningStore.is_being_written``; by who died, for up to 60 s more."""
        return hdfs_cleaning.is_being_written(self._access, path)

    def leftovers(self, parts: Iterable[PartHandle], before_ms: int) -> Iterator[Leftover]:  # noqa: ARG002 - there are none.
        """See ``CleaningStore.leftovers``."""
        yield from ()

    def drop_leftover(self, leftover: Leftover) -> bool:
        """See ``CleaningStore.drop_leftover``."""
        return self.take_away(leftover.path, None)

    def create_file(self, path: str, data: bytes) -> None:
        """See ``MetadataStore.create_file``."""
        hdfs_files.create_whole(self._access, path, data)

    def read_file(self, path: str, max_bytes: int) -> bytes:
        """See ``MetadataStore.read_file``."""
        return hdfs_files.read_whole(self._access, path, max_bytes)

    def file_exists(self, path: str) -> bool:
        """See ``MetadataStore.file_exists``."""
        return hdfs_files.is_file(self._access, path)

    def list_names(self, directory: str) -> builtins.list[str]:
        """See ``MetadataStore.list_names``."""
        return hdfs_files.names_in(self._access, directory)

    def delete_file(self, path: str) -> None:
        """See ``MetadataStore.delete_file``."""
        hdfs_files.delete_one(self._access, path)

    def delete_directory(self, directory: str) -> None:
        """See ``MetadataStore.delete_directory``."""
        hdfs_files.delete_flat(self._access, directory)

    @property
    def markers_are_locks(self) -> bool:
        """See ``MetadataStore.markers_are_locks``."""
        return True

    def hold_marker(self, path: str) -> bool:
        """See ``MetadataStore.hold_marker``."""
        return self._markers.hold(path)

    def marker_is_held(self, path: str) -> bool:
        """See ``MetadataStore.marker_is_held``; that of a process that died counts as held for up to 60 s more."""
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
        """Release markers; the client stays with its process. Deletes nothing; may be called twice."""
        self._markers.close()
        self._access.close()
