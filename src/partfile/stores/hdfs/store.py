"""The HDFS store: parts leased by the NameNode, fenced by lease recovery, published by rename without overwrite."""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, Self

from partfile.errors import (
    AlreadyExists,
    FileTooLarge,
    LeaseUnavailable,
    NotApplied,
    NotFound,
    NotReady,
    OutcomeUnknown,
    StoreError,
)
from partfile.stores.base import STATE_DIRECTORY, Capabilities, StoredFile
from partfile.stores.hdfs import stream as hdfs_stages
from partfile.stores.hdfs import stream as hdfs_stream
from partfile.stores.hdfs.client import HdfsAccess, HdfsCalls, HdfsMarkers, close_durable, recover_lease, rename_staged
from partfile.stores.hdfs.options import HdfsOptions
from partfile.stores.parts import (
    check_handle,
    checked_for_publishing,
    checked_staging_file,
    part_conflict,
    part_missing,
    part_too_short,
    rewritten,
    split_path,
    staged_names,
    with_fresh_token,
)
from partfile.stores.paths import check_relative_path, may_hold_parts, new_token
from partfile.stores.retry import Backoff
from partfile.stores.urls import HdfsUrl

if TYPE_CHECKING:
    import builtins
    import io
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    from partfile.stores.base import Cut, Leftover, PartHandle
    from partfile.stores.hdfs.client import HdfsStatus


def discard_part(access: HdfsAccess, handle: PartHandle) -> bool:
    """Delete the staged names of a part after taking its lease; see ``PartStore.discard``."""
    # In the order in which a part moves, so that none is missed.
    names = (handle.in_progress, handle.pending, rewritten(handle).pending)
    taken = [remove(access, handle.path_of(name), None) for name in names]
    return any(taken)


def remove(access: HdfsAccess, path: str, into: str | None) -> bool:
    """Delete or move one file that is not being written; see ``CleaningStore.remove``."""
    split_path(path)
    try:
        # Not by recovery: a part that is being written is no orphan.
        writer = access.append(path)
        if into is None:
            try:
                return access.delete(path)
            finally:
                with suppress(NotFound):
                    access.close_file(writer, path)
        # A file that is renamed while it is open could not be closed by this writer. Who opens it by the old name
        # between these two calls goes on under the other one, and finds before he acknowledges that he lost his.
        close_durable(access, writer, path)
        access.make_directories(into)
        rename_staged(access, path, f"{into}/{split_path(path)[1]}")
    except NotFound:
        return False
    return True


def is_being_written(access: HdfsAccess, path: str) -> bool:
    """Whether a writer has a file open and renews its lease; see ``CleaningStore.is_being_written``."""
    split_path(path)
    try:
        # HDFS refuses it to anybody else while the lease is renewed.
        writer = access.append(path, is_repeated=False)
    except NotFound:
        return False
    except LeaseUnavailable as error:
        # HDFS itself closes files whose writer does not renew its lease.
        return "RecoveryInProgressException" not in error.message
    access.close_file(writer, path)
    return False


_MAX_ATTEMPTS = 3


def create_whole(access: HdfsAccess, path: str, data: bytes) -> None:
    """Create a file exclusively and whole or not at all; see ``MetadataStore.create_file``.

    What certainly was not created is tried again under another temporary name, so that a NameNode that restarts
    meanwhile is no reason to fail.
    """
    backoff = Backoff(access.options.call_timeout_s)
    for attempt in count(1):
        obstacle = _create_once(access, path, data)
        if obstacle is None:
            return
        if attempt == _MAX_ATTEMPTS or not backoff.pause():
            reason = f"{path!r} was not created: {obstacle.message}"
            raise NotApplied(reason, hint=obstacle.hint, path=path) from obstacle


def _create_once(access: HdfsAccess, path: str, data: bytes) -> StoreError | None:
    """Try to create a file; returns why it was not created, if another attempt may do better."""
    parent, _ = split_path(path)
    temporary = f"{parent}/_tmp.{new_token()}" if parent else f"_tmp.{new_token()}"
    try:
        _write_whole(access, temporary, data)
    except BaseException as error:
        _drop(access, temporary)
        if isinstance(error, AlreadyExists | OutcomeUnknown):
            # Whatever became of the temporary file, it will never be renamed.
            return error
        raise
    try:
        access.rename(temporary, path)
    except (NotFound, OutcomeUnknown) as error:
        return _decide(access, temporary, path, data, error)
    except BaseException:
        _drop(access, temporary)
        raise
    return None


def _write_whole(access: HdfsAccess, path: str, data: bytes) -> None:
    writer = access.create(path)
    if data:
        access.write(writer, memoryview(data), path)
        access.sync(writer, path)
    close_durable(access, writer, path)


def _drop(access: HdfsAccess, temporary: str) -> None:
    # Only the call that made it knows the name.
    with suppress(StoreError):
        access.delete(temporary)


def _decide(access: HdfsAccess, temporary: str, path: str, data: bytes, error: StoreError) -> StoreError | None:
    """Find out what became of a creation whose reply was lost; returns the error if it was not created.

    Deleting the temporary file decides: if that works, no rename that is still under way can find it.
    """
    try:
        if access.delete(temporary):
            return error
        content = read_whole(access, path, len(data))
    except FileTooLarge:
        content = None
    except StoreError as unseen:
        # Whatever keeps us from looking, the rename may have been done: not even NotFound says that it was not.
        reason = f"{path!r} may have been created: {unseen.message}"
        raise OutcomeUnknown(reason, hint=unseen.hint, path=path) from error
    if content != data:
        raise AlreadyExists(f"{path!r} is there already", path=path) from error
    return None


def read_whole(access: HdfsAccess, path: str, max_bytes: int) -> bytes:
    """Read a whole file; see ``MetadataStore.read_file``."""
    split_path(path)
    reader = access.open(path)
    size = len(reader)
    if size > max_bytes:
        raise FileTooLarge(f"{access.shown(path)!r} is longer than {max_bytes} bytes", path=path)
    return access.read(reader, 0, size, path) if size else b""


def is_file(access: HdfsAccess, path: str) -> bool:
    """Whether a file is there now."""
    split_path(path)
    status = access.status(path)
    return status is not None and not status.is_directory


def look_at(access: HdfsAccess, path: str) -> StoredFile | None:
    """One file as a listing shows it; see ``PartStore.look_at``."""
    split_path(path)
    status = access.status(path)
    return stored(path, status) if status is not None and not status.is_directory else None


def stored(path: str, status: HdfsStatus) -> StoredFile:
    """A file as a listing shows it."""
    return StoredFile(path=path, size=status.length_bytes, modified_at_ms=status.modified_at_ms)


def names_in(access: HdfsAccess, path: str) -> list[str]:
    """The names directly in a directory; empty if it is not there."""
    return [status.name for status in access.list_status(path) if status.name]


def delete_one(access: HdfsAccess, path: str) -> None:
    """Delete one file by its literal name; absent counts as done."""
    split_path(path)
    access.delete(path)


def delete_flat(access: HdfsAccess, path: str) -> None:
    """Delete a directory and the files directly in it; absent counts as done."""
    split_path(path)
    # Counted rather than listed: a checkpoint has a file for each of its subtasks.
    deeper = access.count_directories(path)
    if deeper:
        raise NotApplied(f"{access.shown(path)!r} holds {deeper} directories", path=path)
    access.delete(path, recursive=True)


_COPY_BYTES = 4 << 20
_MAX_SIDECAR_BYTES = 20


def cut_pending(access: HdfsAccess, handle: PartHandle, cut: Cut) -> PartHandle:
    """Cut a part that is under its pending name, closed, and longer than its valid length.

    Returns:
        What is pending: the same part, or the copy of its valid prefix (``part_names.rewritten``).

    Raises:
        CommitConflict: Another sidecar stands beside it.
        NotApplied: It cannot be cut this way, or not yet.
    """
    is_noted = check_sidecar(access, handle)
    # A rewrite that a dead process began is finished, however the part is cut now: its copy would stay behind.
    if _has_copy(access, handle):
        _put_aside(access, handle)
        return rewritten(handle)
    if cut == "valid-length":
        if not is_noted:
            _note_length(access, handle)
        return handle
    if cut == "truncate" or (cut == "auto" and access.truncates):
        try:
            is_done = access.truncate(handle.path_of(handle.pending), handle.valid_length)
        except (NotFound, NotReady, LeaseUnavailable):
            # They are about the file as it is, which another process may be cutting: it must not be read now.
            raise
        except NotApplied:
            if cut == "truncate":
                raise
        else:
            _wait_until_cut(access, handle, is_done=is_done)
            return handle
    return _rewrite(access, handle)


def check_sidecar(access: HdfsAccess, handle: PartHandle) -> bool:
    """Whether the part has a sidecar; one that says another length is not ours to change."""
    path = handle.path_of(handle.sidecar)
    if access.status(path) is None:
        return False
    try:
        content = read_whole(access, path, _MAX_SIDECAR_BYTES)
    except FileTooLarge as error:
        raise part_conflict(handle, f"sidecar {path!r} is none: it is too long") from error
    if content != _as_sidecar(handle):
        raise part_conflict(
            handle, f"sidecar {path!r} says {content[:_MAX_SIDECAR_BYTES]!r}, not {handle.valid_length}"
        )
    return True


def _wait_until_cut(access: HdfsAccess, handle: PartHandle, *, is_done: bool) -> None:
    """Wait for a truncate that HDFS has begun; until then a reader may see the old length, and no writer can append."""
    path = handle.path_of(handle.pending)
    backoff = Backoff(access.options.truncate_timeout_s)
    while not is_done:
        if not backoff.pause():
            raise NotApplied(
                f"{path!r}: cutting it has not ended within {access.options.truncate_timeout_s:g} s",
                hint="Look at the DataNodes that hold the last block of this file; the part is tried again.",
                path=path,
            )
        try:
            is_done = access.truncate(path, handle.valid_length)
        except (NotFound, NotReady, LeaseUnavailable):
            raise
        except (NotApplied, OutcomeUnknown):
            # The web server went away in the middle. HDFS goes on by itself, and has closed the file when it is done.
            recover_lease(access, path)
            is_done = True
    status = access.status(path)
    length = None if status is None else status.length_bytes
    if length != handle.valid_length:
        raise OutcomeUnknown(f"{path!r} has {length} bytes after a cut to {handle.valid_length}", path=path)


def _rewrite(access: HdfsAccess, handle: PartHandle) -> PartHandle:
    """Let a copy of the valid prefix take over from the original, which is left to the cleaner.

    The copy is made under a name with a token of its own, gets the one that follows from the handle when it is whole,
    and then the original loses its pending name, all before the final name appears. So after a crash the part is found,
    and after a finished file was moved away nothing is left that could be published again.
    """
    copy, private = rewritten(handle), with_fresh_token(handle)
    target = private.path_of(private.pending)
    _copy_prefix(access, handle, target)
    try:
        rename_staged(access, target, copy.path_of(copy.pending))
    except AlreadyExists:
        # A rival's, with the same bytes.
        with suppress(StoreError):
            access.delete(target)
    _put_aside(access, handle)
    return copy


def _has_copy(access: HdfsAccess, handle: PartHandle) -> bool:
    """Whether a part has been copied already; a copy of another length, as before a rollback, is put aside."""
    copy = rewritten(handle)
    status = access.status(copy.path_of(copy.pending))
    if status is not None and status.length_bytes != handle.valid_length:
        _put_aside(access, copy)
        return False
    return status is not None


def _put_aside(access: HdfsAccess, handle: PartHandle) -> None:
    """Take the pending name from a file, which one coordinator alone can do; the cleaner may have the file."""
    path, aside = handle.path_of(handle.pending), with_fresh_token(handle)
    try:
        rename_staged(access, path, aside.path_of(aside.pending))
    except NotFound as error:
        # To look for the part again could find the copy, which then is another's to publish, or was published long ago.
        raise NotApplied(
            f"{path!r} was taken by another coordinator",
            hint="It publishes the part, or has done so; if this one still goes on, the part is tried again.",
            path=path,
        ) from error


def _copy_prefix(access: HdfsAccess, handle: PartHandle, target: str) -> None:
    """Copy the valid prefix. Reading needs the lease to be recovered already."""
    source = handle.path_of(handle.pending)
    reader = access.open(source)
    if len(reader) < handle.valid_length:
        # The NameNode has just said otherwise: hdfs-native leaves out a block that is being cut or recovered.
        raise NotReady(
            f"{source!r} shows {len(reader)} of {handle.valid_length} bytes: it is being cut, or its lease taken",
            hint="The part is tried again.",
            path=source,
        )
    writer = access.create(target)
    try:
        for offset in range(0, handle.valid_length, _COPY_BYTES):
            count = min(_COPY_BYTES, handle.valid_length - offset)
            data = access.read(reader, offset, count, source)
            access.write(writer, memoryview(data), target)
        access.sync(writer, target)
        close_durable(access, writer, target)
    except BaseException:
        # Only this call knows the name of the copy.
        with suppress(StoreError):
            access.delete(target)
        raise


def _note_length(access: HdfsAccess, handle: PartHandle) -> None:
    """Create the sidecar, durably, before the final name can appear."""
    try:
        create_whole(access, handle.path_of(handle.sidecar), _as_sidecar(handle))
    except AlreadyExists:
        check_sidecar(access, handle)


def _as_sidecar(handle: PartHandle) -> bytes:
    return str(handle.valid_length).encode("ascii")


_MAX_PART_ATTEMPTS = 10


class _Job(NamedTuple):
    """One finalize or publish: what is asked for."""

    handle: PartHandle
    cut: Cut
    is_publish: bool


def finalize_part(access: HdfsAccess, handle: PartHandle, cut: Cut) -> PartHandle:
    """Cut a part to its valid length and make it pending; see ``PartStore.finalize``."""
    return _commit(access, handle, cut, is_publish=False)


def publish_part(access: HdfsAccess, handle: PartHandle, cut: Cut) -> None:
    """Make a part finished; see ``PartStore.publish``."""
    _commit(access, handle, cut, is_publish=True)


def _commit(access: HdfsAccess, handle: PartHandle, cut: Cut, *, is_publish: bool) -> PartHandle:
    # Nothing is looked at before it is acted upon: each of these calls says itself whether there is anything to do.
    job = _Job(handle, cut, is_publish)
    misses = 0
    for _ in range(_MAX_PART_ATTEMPTS):
        # A name that vanishes meanwhile is looked for again.
        with suppress(NotFound):
            return _commit_pending(access, job)
        try:
            rename_staged(access, handle.path_of(handle.in_progress), handle.path_of(handle.pending))
        except NotFound:
            finished = access.status(handle.path_of(handle.name))
            if finished is not None:
                _accept_finished(access, job, finished)
                return handle
            copy = rewritten(handle)
            if access.status(copy.path_of(copy.pending)) is not None:
                return _commit(access, copy, cut, is_publish=is_publish)
            # It may have moved between two looks.
            misses += 1
            if misses > 1:
                raise part_missing(handle, "it is under none of its names") from None
        except AlreadyExists as error:
            raise part_conflict(handle, f"{handle.in_progress!r} and {handle.pending!r} are both there") from error
    raise NotApplied(f"part {handle.path_of(handle.name)!r} keeps moving", path=handle.path_of(handle.name))


def _commit_pending(access: HdfsAccess, job: _Job) -> PartHandle:
    """Commit the part under its pending name; raises NotFound if it is not there, or not any more."""
    handle, path = job.handle, job.handle.path_of(job.handle.pending)
    recover_lease(access, path)
    status = access.status(path)
    if status is None:
        raise NotFound(f"{path!r} has moved", path=path)
    if status.length_bytes == handle.valid_length and job.is_publish:
        # No sidecar check needed: a file with a sidecar is longer than its valid length.
        return _finish(access, job, handle)
    finished = access.status(handle.path_of(handle.name))
    if finished is not None:
        _accept_finished(access, job, finished)
        return handle
    if status.length_bytes < handle.valid_length:
        raise part_too_short(handle, status.length_bytes)
    staged = handle
    if status.length_bytes > handle.valid_length:
        staged = cut_pending(access, handle, job.cut)
    return _finish(access, job, staged) if job.is_publish else staged


def _finish(access: HdfsAccess, job: _Job, staged: PartHandle) -> PartHandle:
    """Give a closed pending part of the right length its final name."""
    path, final_path = staged.path_of(staged.pending), staged.path_of(staged.name)
    try:
        access.rename(path, final_path)
    except AlreadyExists:
        finished = access.status(final_path)
        if finished is None:
            raise
        _accept_finished(access, job, finished)
    except (NotFound, OutcomeUnknown):
        # Renamed by a call whose reply was lost, or by a rival; the final name tells.
        finished = access.status(final_path)
        if finished is None or access.status(path) is not None:
            raise
        _accept_finished(access, job, finished)
    return job.handle


def _accept_finished(access: HdfsAccess, job: _Job, finished: HdfsStatus) -> None:
    """Check that the finished file is ours. Staged files that are left are others, for the cleaner."""
    handle, path = job.handle, job.handle.path_of(job.handle.name)
    if finished.is_directory:
        raise part_conflict(handle, f"{path!r} is a directory")
    length, is_noted = finished.length_bytes, check_sidecar(access, handle)
    if length != handle.valid_length and not (is_noted and length > handle.valid_length):
        raise part_conflict(handle, f"{path!r} is there with {length} bytes, the checkpoint says {handle.valid_length}")


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
            staging_files=True,
            publish_threads=64,
        )

    @property
    def persist_threads(self) -> int:
        """Many: every call is a round trip, and closing a part waits for a DataNode's report."""
        return 16

    @property
    def staging_files_travel(self) -> bool:
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

    def finalize(self, handle: PartHandle, cut: Cut) -> PartHandle:
        """See ``PartStore.finalize``."""
        return finalize_part(self._access, checked_for_publishing(handle), cut)

    def publish(self, handle: PartHandle, cut: Cut) -> None:
        """See ``PartStore.publish``."""
        publish_part(self._access, checked_for_publishing(handle), cut)

    def open_staging_file(self, handle: PartHandle, *, fences: bool = False) -> io.BufferedReader:
        """See ``PartStore.open_staging_file``.

        What a writer has open is read over WebHDFS, as far as it is not closed.
        """
        return hdfs_stages.open_staging_file(self._access, checked_staging_file(handle), fences=fences)

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
        return discard_part(self._access, check_handle(handle))

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
                    yield stored(below, status)

    def look_at(self, path: str) -> StoredFile | None:
        """See ``PartStore.look_at``."""
        return look_at(self._access, path)

    @property
    def moves_files(self) -> bool:
        """See ``CleaningStore.moves_files``."""
        return True

    def remove(self, path: str, into: str | None) -> bool:
        """See ``CleaningStore.remove``."""
        return remove(self._access, path, into)

    def is_being_written(self, path: str) -> bool | None:
        """See ``CleaningStore.is_being_written``; by who died, for up to 60 s more."""
        return is_being_written(self._access, path)

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
