"""The S3 store: parts are uploads and side objects, extended by claims, published by one request, never copied."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Self

from partfile.filesystems import s3_cleaning, s3_files, s3_parts, s3_stage_stream, s3_stages, s3_stream
from partfile.filesystems.capabilities import Capabilities
from partfile.filesystems.errors import NotFound
from partfile.filesystems.part_errors import part_refused
from partfile.filesystems.part_names import check_handle
from partfile.filesystems.port import STATE_DIRECTORY
from partfile.filesystems.relative_paths import check_relative_path
from partfile.filesystems.s3_access import S3Access
from partfile.filesystems.s3_buffers import BufferBudget
from partfile.filesystems.s3_calls import S3Calls
from partfile.filesystems.s3_garbage import Garbage
from partfile.filesystems.s3_options import S3Options
from partfile.filesystems.s3_probe import hazards, learn_puts, learn_traits
from partfile.filesystems.s3_process import OncePerProcess
from partfile.filesystems.s3_url import S3Url
from partfile.filesystems.stages import checked_for_publishing, checked_stage

if TYPE_CHECKING:
    import builtins
    import io
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    from partfile.filesystems.cleaning_port import Leftover
    from partfile.filesystems.port import Cut, PartHandle, StoredFile
    from partfile.filesystems.s3_claimed_stream import ClaimedStream

_THREADS = 16
"""Parts at a time, of which each does little but wait for the server."""


class S3Store:
    """Part files and metadata below one prefix of an S3 bucket.

    Opening it asks S3 nothing. It may be shared between threads; the client is made with the first request, one a
    process, so a forked child may use it too.

    Args:
        url: ``s3://bucket/prefix``; literally.
        options: How to connect, how long to wait, what to add to what is written.
        create_base: False insists that something is there, for reading; a prefix needs no making.
        calls: The requests; another object only to inject faults.

    Raises:
        ConfigError: The URL or an option cannot be used.
        NotFound: The base is not there, where it has to be.
    """

    def __init__(
        self,
        url: str,
        options: S3Options | None = None,
        *,
        create_base: bool = True,
        calls: S3Calls | None = None,
    ) -> None:
        options = options or S3Options()
        parsed = S3Url.of(url)
        self._access = S3Access(parsed, options, calls or S3Calls(parsed.bucket, options))
        self._budgets = OncePerProcess(partial(BufferBudget, options.max_buffered_bytes))
        self._garbages = OncePerProcess(partial(Garbage, self._access))
        if not create_base and not next(self._access.pages("", deep=True)).objects:
            raise NotFound(f"nothing is below the base {self.base!r}", hint="Check the URL.", path=self.base)

    @property
    def base(self) -> str:
        """The URL of the base."""
        return self._access.base

    @property
    def capabilities(self) -> Capabilities:
        """What the server can do; asks it, once a process, what it does with conditional requests."""
        traits = learn_traits(self._access)
        return Capabilities(
            append=bool(traits.puts),
            lease=False,
            fence=False,
            truncate=False,
            no_replace=bool(traits.puts and traits.completes),
            durable=True,
            shared=True,
            staged_files=False,
            stages=True,
            exclusive_create=bool(traits.puts),
            publish_threads=self.persist_threads,
        )

    @property
    def persist_threads(self) -> int:
        """As many as there may be requests, within reason."""
        return min(self._access.options.max_parallel_requests, _THREADS)

    @property
    def stages_travel(self) -> bool:
        """Yes."""
        return True

    @property
    def checks_reads(self) -> bool:
        """Yes: a handle has a checksum of each side object."""
        return True

    def check_path(self, path: str) -> None:
        """See ``PartStore.check_path``."""
        self._access.check_path(path)

    def create(self, handle: PartHandle) -> ClaimedStream:
        """See ``PartStore.create``; nothing is there before the first persist or upload part."""
        create = s3_stage_stream.create_stage if handle.is_stage else s3_stream.create_part
        return create(self._access, self._budgets.get(), check_handle(handle))

    def resume(self, handle: PartHandle) -> ClaimedStream:
        """See ``PartStore.resume``; from one handle it works once, whoever tries."""
        handle = check_handle(handle)
        if not learn_puts(self._access):
            raise part_refused(handle, "the server ignores If-None-Match, so nobody can claim it")
        resume = s3_stage_stream.resume_stage if handle.is_stage else s3_stream.resume_part
        return resume(self._access, self._budgets.get(), handle)

    def settle(self, handle: PartHandle, cut: Cut) -> PartHandle:  # noqa: ARG002 - there is nothing to cut.
        """See ``PartStore.settle``."""
        return s3_parts.settle_part(self._access, checked_for_publishing(handle))

    def publish(self, handle: PartHandle, cut: Cut) -> None:  # noqa: ARG002 - there is nothing to cut.
        """See ``PartStore.publish``."""
        s3_parts.publish_part(self._access, self._garbages.get(), checked_for_publishing(handle))

    def open_stage(self, handle: PartHandle, *, fences: bool = False) -> io.BufferedReader:  # noqa: ARG002 - nobody is in the way.
        """See ``PartStore.open_stage``; its side objects, a few at a time."""
        return s3_stages.open_stage(self._access, checked_stage(handle))

    def goes_back(self, handle: PartHandle) -> bool:
        """See ``PartStore.goes_back``; not where a completion has to name what later versions have sent."""
        return s3_parts.part_goes_back(self._access, check_handle(handle))

    def is_staged(self, handle: PartHandle) -> bool:
        """See ``PartStore.is_staged``; its upload and every side object."""
        return s3_parts.part_is_staged(self._access, check_handle(handle))

    def discard(self, handle: PartHandle) -> bool:
        """See ``PartStore.discard``."""
        # What a published part has left is no orphan's.
        self._garbages.get().delete()
        discard = s3_stages.discard_stage if handle.is_stage else s3_cleaning.discard_part
        return discard(self._access, check_handle(handle))

    def list(self, directory: str = "") -> Iterator[StoredFile]:
        """See ``PartStore.list``; a staged part is no file and does not show."""
        if check_relative_path(directory).split("/", maxsplit=1)[0] == STATE_DIRECTORY:
            return
        for page in self._access.pages(directory, deep=True):
            for found in page.objects:
                path = self._access.relative(found.key)
                if path and not path.startswith(f"{STATE_DIRECTORY}/") and not path.endswith("/"):
                    yield s3_files.stored(path, found)

    def look_at(self, path: str) -> StoredFile | None:
        """See ``PartStore.look_at``."""
        return s3_files.look_at(self._access, path)

    @property
    def moves_files(self) -> bool:
        """See ``CleaningStore.moves_files``; what is moved here is copied, and an upload cannot even be that."""
        return False

    def take_away(self, path: str, into: str | None) -> bool:
        """See ``CleaningStore.take_away``; there are no leases here."""
        return s3_cleaning.take_away(self._access, path, into)

    def is_being_written(self, path: str) -> bool | None:  # noqa: ARG002 - nobody can know.
        """See ``CleaningStore.is_being_written``; there are no leases here."""
        return None

    def leftovers(self, parts: Iterable[PartHandle], before_ms: int) -> Iterator[Leftover]:
        """See ``CleaningStore.leftovers``; a HEAD for each side object and claim."""
        return s3_cleaning.leftovers(self._access, parts, before_ms)

    def drop_leftover(self, leftover: Leftover) -> bool:
        """See ``CleaningStore.drop_leftover``."""
        return s3_cleaning.drop_leftover(self._access, leftover)

    def create_file(self, path: str, data: bytes) -> None:
        """See ``MetadataStore.create_file``; a server that ignores conditions is found out first."""
        check_relative_path(path)
        learn_puts(self._access)
        s3_files.create_whole(self._access, path, data)

    def read_file(self, path: str, max_bytes: int) -> bytes:
        """See ``MetadataStore.read_file``."""
        return s3_files.read_whole(self._access, path, max_bytes)

    def file_exists(self, path: str) -> bool:
        """See ``MetadataStore.file_exists``."""
        return s3_files.is_file(self._access, path)

    def list_names(self, directory: str) -> builtins.list[str]:
        """See ``MetadataStore.list_names``."""
        return s3_files.names_in(self._access, directory)

    def delete_file(self, path: str) -> None:
        """See ``MetadataStore.delete_file``."""
        s3_files.delete_one(self._access, path)

    def delete_directory(self, directory: str) -> None:
        """See ``MetadataStore.delete_directory``."""
        s3_files.delete_flat(self._access, directory)

    @property
    def markers_are_locks(self) -> bool:
        """See ``MetadataStore.markers_are_locks``."""
        return False

    def hold_marker(self, path: str) -> bool:
        """See ``MetadataStore.hold_marker``; the marker is no lock, and stays."""
        return s3_files.show_marker(self._access, path)

    def marker_is_held(self, path: str) -> bool:
        """See ``MetadataStore.marker_is_held``; whether it is visible, which is all that a task needs to know."""
        return s3_files.marker_is_shown(self._access, path)

    def hazards(self, *, now_ms: int, longest_open_s: float) -> Iterator[str]:
        """See ``MetadataStore.hazards``."""
        return hazards(self._access, now_ms=now_ms, longest_open_s=longest_open_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Delete what finished parts have left; the client stays with its process. May be called twice."""
        self._garbages.get().delete()
        self._access.close()
