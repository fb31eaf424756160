"""The HDFS store: parts leased by the NameNode, fenced by lease recovery, published by rename without overwrite."""

from __future__ import annotations

import io
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Self

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
from partfile.stores.hdfs.client import HdfsAccess, HdfsCalls, HdfsMarkers
from partfile.stores.hdfs.options import HdfsOptions
from partfile.stores.hdfs.stream import BUFFER_BYTES, GONE, HdfsPartStream, StagingFileReader
from partfile.stores.parts import (
    check_handle,
    check_new,
    checked_for_publishing,
    checked_staging_file,
    is_length,
    part_conflict,
    part_gone,
    part_refused,
    part_too_short,
    rewritten,
    split_path,
    staged_names,
    staging_file_gone,
    staging_file_too_short,
    with_fresh_token,
)
from partfile.stores.paths import check_relative_path, may_hold_parts, new_token
from partfile.stores.retry import Backoff
from partfile.stores.urls import HdfsUrl

if TYPE_CHECKING:
    import builtins
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    from hdfs_native._internal import RawFileWriter

    from partfile.stores.base import Cut, Leftover, PartHandle
    from partfile.stores.hdfs.client import HdfsStatus


_CREATE_ATTEMPTS = 3
_COMMIT_ATTEMPTS = 10
_COPY_BYTES = 4 << 20
_MAX_SIDECAR_BYTES = 20


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
            raise NotFound(
                f"the base {self.base!r} is not there",
                hint=f"See what is there: hdfs dfs -ls {self.base.rpartition('/')[0]}",
                path=self.base,
            )

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
        """Refuse a path that leaves the base."""
        check_relative_path(path)

    # A part, in the order of its life.

    def create(self, handle: PartHandle) -> HdfsPartStream:
        """Create the in-progress file exclusively and hold its lease; the name is durable at once."""
        check_new(check_handle(handle))
        return HdfsPartStream(self._access, handle, self._create(handle.path_of(handle.in_progress)))

    def _create(self, path: str) -> RawFileWriter:
        backoff = Backoff(self._access.options.call_timeout_s)
        try:
            return self._access.create(path)
        except OutcomeUnknown:
            if not backoff.pause():
                raise
            # The token is this attempt's alone: what has the name was made by the call whose answer was lost.
            self._access.delete(path)
            return self._access.create(path)

    def resume(self, handle: PartHandle) -> HdfsPartStream:
        """Open the in-progress file for appending, which takes its lease without waiting; changes nothing."""
        path = check_handle(handle).path_of(handle.in_progress)
        try:
            writer = self._access.append(path)
        except NotFound as error:
            raise part_refused(handle, GONE) from error
        except (LeaseUnavailable, AlreadyExists) as error:
            raise part_refused(handle, "another process holds its lease") from error
        refusal = "its length cannot be read"
        try:
            # Only under the lease: before, its last holder may have been writing.
            refusal = self._why_refused(handle, path)
        finally:
            if refusal:
                with suppress(StoreError):
                    self._access.close_file(writer, path)
        if refusal:
            raise part_refused(handle, refusal)
        return HdfsPartStream(self._access, handle, writer)

    def _why_refused(self, handle: PartHandle, path: str) -> str:
        status = self._access.status(path)
        if status is None:
            return GONE
        if status.length_bytes != handle.valid_length:
            return f"it has {status.length_bytes} bytes instead of {handle.valid_length}"
        return ""

    def prepare(self, handle: PartHandle) -> PartHandle:
        """The same handle: nothing has to begin before a part is published."""
        return handle

    def publish(self, handle: PartHandle, cut: Cut) -> None:
        """Rename the part to pending, fence its writer, cut it, and rename it to its final name (R5).

        Pending comes first, so that no task can open the part by the name that it knows once the writer is fenced. The
        last rename replaces nothing, takes the staged name away, and is durable at once.
        """
        checked_for_publishing(handle)
        misses = 0
        # Nothing is looked at before it is acted upon: each of these calls says itself whether there is anything to do.
        for _ in range(_COMMIT_ATTEMPTS):
            # A name that vanishes meanwhile is looked for again.
            with suppress(NotFound):
                self._publish_pending(handle, cut)
                return
            try:
                self._access.move(handle.path_of(handle.in_progress), handle.path_of(handle.pending))
            except NotFound:
                finished = self._access.status(handle.path_of(handle.name))
                if finished is not None:
                    self._accept_finished(handle, finished)
                    return
                copy = rewritten(handle)
                if self._access.status(copy.path_of(copy.pending)) is not None:
                    self.publish(copy, cut)
                    return
                # It may have moved between two looks.
                misses += 1
                if misses > 1:
                    raise part_gone(handle, "it is under none of its names") from None
            except AlreadyExists as error:
                raise part_conflict(handle, f"{handle.in_progress!r} and {handle.pending!r} are both there") from error
        raise NotApplied(f"part {handle.path_of(handle.name)!r} keeps moving", path=handle.path_of(handle.name))

    def _publish_pending(self, handle: PartHandle, cut: Cut) -> None:
        """Publish the part under its pending name; raises NotFound if it is not there, or not any more."""
        path = handle.path_of(handle.pending)
        self._access.fence(path)
        status = self._access.status(path)
        if status is None:
            raise NotFound(f"{path!r} has moved", path=path)
        if status.length_bytes == handle.valid_length:
            # No sidecar check needed: a file with a sidecar is longer than its valid length.
            self._finish(handle, handle)
            return
        finished = self._access.status(handle.path_of(handle.name))
        if finished is not None:
            self._accept_finished(handle, finished, beside=path)
            return
        if status.length_bytes < handle.valid_length:
            raise part_too_short(handle, status.length_bytes)
        self._finish(handle, self._cut_pending(handle, cut))

    def _finish(self, handle: PartHandle, staged: PartHandle) -> None:
        """Give a closed pending part of the right length its final name."""
        path, final_path = staged.path_of(staged.pending), staged.path_of(staged.name)
        try:
            self._access.rename(path, final_path)
        except AlreadyExists:
            finished = self._access.status(final_path)
            if finished is None:
                raise
            self._accept_finished(handle, finished, beside=path)
        except (NotFound, OutcomeUnknown):
            # Renamed by a call whose reply was lost, or by a rival; the final name tells.
            finished = self._access.status(final_path)
            if finished is None or self._access.status(path) is not None:
                raise
            self._accept_finished(handle, finished)

    def _accept_finished(self, handle: PartHandle, finished: HdfsStatus, *, beside: str | None = None) -> None:
        """Check that the finished file is ours. Staged files that are left are others, for the cleaner.

        Args:
            handle: The part.
            finished: What has its final name.
            beside: A closed staged file of the part that is there as well. Both must hold the same valid bytes.
        """
        path = handle.path_of(handle.name)
        if finished.is_directory:
            raise part_conflict(handle, f"{path!r} is a directory")
        length, is_noted = finished.length_bytes, self._check_sidecar(handle)
        if length != handle.valid_length and not (is_noted and length > handle.valid_length):
            raise part_conflict(
                handle, f"{path!r} is there with {length} bytes, the checkpoint says {handle.valid_length}"
            )
        if beside is not None and not self._begin_alike(path, beside, handle.valid_length):
            raise part_conflict(handle, f"{path!r} has the length of this part, and other bytes than {beside!r}")

    def _begin_alike(self, one: str, other: str, length_bytes: int) -> bool:
        """Whether two closed files hold the same bytes, as far as both go and up to a length."""
        readers = [(path, self._access.open(path)) for path in (one, other)]
        end = min(length_bytes, *(len(reader) for _, reader in readers))
        for offset in range(0, end, _COPY_BYTES):
            count = min(_COPY_BYTES, end - offset)
            first, second = (self._access.read(reader, offset, count, path) for path, reader in readers)
            if first != second:
                return False
        return True

    def _cut_pending(self, handle: PartHandle, cut: Cut) -> PartHandle:
        """Cut a part that is under its pending name, closed, and longer than its valid length.

        Returns:
            What is pending: the same part, or the copy of its valid prefix (``rewritten``).

        Raises:
            CommitConflict: Another sidecar stands beside it.
            NotApplied: It cannot be cut this way, or not yet.
        """
        is_noted = self._check_sidecar(handle, is_finished=False)
        # A rewrite that a dead process began is finished, however the part is cut now: its copy would stay behind.
        if self._has_copy(handle):
            self._put_aside(handle)
            return rewritten(handle)
        if cut == "valid-length":
            if not is_noted:
                self._note_length(handle)
            return handle
        if cut == "truncate" or (cut == "auto" and self._access.truncates):
            try:
                is_done = self._access.truncate(handle.path_of(handle.pending), handle.valid_length)
            except (NotFound, NotReady, LeaseUnavailable):
                # They are about the file as it is, which another process may be cutting: it must not be read now.
                raise
            except NotApplied:
                if cut == "truncate":
                    raise
            else:
                self._wait_until_cut(handle, is_done=is_done)
                return handle
        return self._rewrite(handle)

    def _wait_until_cut(self, handle: PartHandle, *, is_done: bool) -> None:
        """Wait for a truncate that HDFS has begun; until then readers may see the old length, and none can append."""
        path = handle.path_of(handle.pending)
        backoff = Backoff(self._access.options.truncate_timeout_s)
        while not is_done:
            if not backoff.pause():
                raise NotApplied(
                    f"{path!r}: cutting it has not ended within {self._access.options.truncate_timeout_s:g} s",
                    hint=(
                        "The part is tried again. Look at the DataNodes that hold the last block of this file: "
                        "hdfs fsck PATH -files -blocks -locations"
                    ),
                    path=path,
                )
            try:
                is_done = self._access.truncate(path, handle.valid_length)
            except (NotFound, NotReady, LeaseUnavailable):
                raise
            except (NotApplied, OutcomeUnknown):
                # The web server went away in the middle. HDFS goes on by itself, and closes the file when it is done.
                self._access.fence(path)
                is_done = True
        status = self._access.status(path)
        length = None if status is None else status.length_bytes
        if length != handle.valid_length:
            raise OutcomeUnknown(f"{path!r} has {length} bytes after a cut to {handle.valid_length}", path=path)

    def _rewrite(self, handle: PartHandle) -> PartHandle:
        """Let a copy of the valid prefix take over from the original, which is left to the cleaner.

        The copy is made under a name with a token of its own. When it is whole, it gets the name that follows from the
        handle. Then the original loses its pending name, all before the final name appears. So after a crash the part
        is found, and after a finished file was moved away nothing is left that could be published again.
        """
        copy, private = rewritten(handle), with_fresh_token(handle)
        target = private.path_of(private.pending)
        self._copy_prefix(handle, target)
        try:
            self._access.move(target, copy.path_of(copy.pending))
        except AlreadyExists:
            # A rival's, with the same bytes.
            with suppress(StoreError):
                self._access.delete(target)
        self._put_aside(handle)
        return copy

    def _has_copy(self, handle: PartHandle) -> bool:
        """Whether a part has been copied already; a copy of another length, as before a rollback, is put aside."""
        copy = rewritten(handle)
        status = self._access.status(copy.path_of(copy.pending))
        if status is not None and status.length_bytes != handle.valid_length:
            self._put_aside(copy)
            return False
        return status is not None

    def _put_aside(self, handle: PartHandle) -> None:
        """Take the pending name from a file, which one coordinator alone can do; the cleaner may have the file."""
        path, aside = handle.path_of(handle.pending), with_fresh_token(handle)
        try:
            self._access.move(path, aside.path_of(aside.pending))
        except NotFound as error:
            # To look for the part again could find the copy, which then is another's to publish, or was published long
            # ago.
            raise NotApplied(
                f"{path!r} was taken by another coordinator",
                hint="It publishes the part, or has done so; if this one still goes on, the part is tried again.",
                path=path,
            ) from error

    def _copy_prefix(self, handle: PartHandle, target: str) -> None:
        """Copy the valid prefix. Reading needs the lease to be recovered already."""
        source = handle.path_of(handle.pending)
        reader = self._access.open(source)
        if len(reader) < handle.valid_length:
            # The NameNode has just said otherwise: hdfs-native leaves out a block that is being cut or recovered.
            raise NotReady(
                f"{source!r} shows {len(reader)} of {handle.valid_length} bytes: it is being cut, or its lease taken",
                hint="The part is tried again.",
                path=source,
            )
        writer = self._access.create(target)
        try:
            for offset in range(0, handle.valid_length, _COPY_BYTES):
                count = min(_COPY_BYTES, handle.valid_length - offset)
                data = self._access.read(reader, offset, count, source)
                self._access.write(writer, memoryview(data), target)
            self._access.sync(writer, target)
            self._access.close_durable(writer, target)
        except BaseException:
            # Only this call knows the name of the copy.
            with suppress(StoreError):
                self._access.delete(target)
            raise

    def _note_length(self, handle: PartHandle) -> None:
        """Create the sidecar, durably, before the final name can appear."""
        try:
            self.create_file(handle.path_of(handle.sidecar), _as_sidecar(handle))
        except AlreadyExists:
            if not self._check_sidecar(handle):
                raise

    def _check_sidecar(self, handle: PartHandle, *, is_finished: bool = True) -> bool:
        """Whether the part has a sidecar of its valid length.

        Another length is one from before a rollback if the part has no final name: no reader has looked at it, and it
        is deleted. Beside a finished file it is not ours to change.
        """
        path = handle.path_of(handle.sidecar)
        if self._access.status(path) is None:
            return False
        try:
            content = self.read_file(path, _MAX_SIDECAR_BYTES)
        except FileTooLarge as error:
            raise part_conflict(handle, f"sidecar {path!r} is none: it is too long") from error
        if content == _as_sidecar(handle):
            return True
        if is_finished or not is_length(content):
            raise part_conflict(
                handle, f"sidecar {path!r} says {content[:_MAX_SIDECAR_BYTES]!r}, not {handle.valid_length}"
            )
        self._access.delete(path)
        return False

    def open_staging_file(self, handle: PartHandle, *, fences: bool = False) -> io.BufferedReader:
        """Open a staging file to read its valid bytes. What a writer has open is read over WebHDFS."""
        path = checked_staging_file(handle).path_of(handle.in_progress)
        try:
            reader = self._access.open(path)
            file = StagingFileReader(self._access, handle, reader)
            if len(reader) < handle.valid_length:
                file.check_length()
                if fences:
                    self._access.fence(path)
                    reader = self._access.open(path)
                    if len(reader) < handle.valid_length:
                        raise staging_file_too_short(handle, len(reader))
                    file = StagingFileReader(self._access, handle, reader)
        except NotFound as error:
            raise staging_file_gone(handle) from error
        if len(reader) < handle.valid_length:
            # Whether the rest can be read at all is better known now than after half of it.
            file.seek(handle.valid_length - 1)
            file.read(1)
            file.seek(0)
        return io.BufferedReader(file, BUFFER_BYTES)

    def goes_back(self, handle: PartHandle) -> bool:
        """Yes: whatever was added can be cut or left out of a copy."""
        check_handle(handle)
        return True

    def is_staged(self, handle: PartHandle) -> bool:
        """Whether a file is under one of the part's staged names."""
        check_handle(handle)
        return any(self.file_exists(handle.path_of(name)) for name in staged_names(handle))

    def discard(self, handle: PartHandle) -> bool:
        """Delete the staged names of a part, and of its copy, each after taking its lease."""
        check_handle(handle)
        # In the order in which a part moves, so that none is missed.
        names = (handle.in_progress, handle.pending, rewritten(handle).pending)
        taken = [self.remove(handle.path_of(name), None) for name in names]
        return any(taken)

    # Listing and cleaning.

    def list(self, directory: str = "") -> Iterator[StoredFile]:
        """Every file below a directory; of an open one the size is what its writer has made durable."""
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
                    yield _stored(below, status)

    def look_at(self, path: str) -> StoredFile | None:
        """One file as a listing shows it; None if there is none."""
        split_path(path)
        status = self._access.status(path)
        return _stored(path, status) if status is not None and not status.is_directory else None

    @property
    def moves_files(self) -> bool:
        """Yes: by a rename that replaces nothing."""
        return True

    def remove(self, path: str, into: str | None) -> bool:
        """Delete or move one file that is not being written; whether it was there."""
        split_path(path)
        try:
            # Not by recovery: a part that is being written is no orphan.
            writer = self._access.append(path)
            if into is None:
                try:
                    return self._access.delete(path)
                finally:
                    with suppress(NotFound):
                        self._access.close_file(writer, path)
            # Closing by name would fail after a rename. A task that opens the old name in between notices at its next
            # verify that it lost the part.
            self._access.close_durable(writer, path)
            self._access.make_directories(into)
            self._access.move(path, f"{into}/{split_path(path)[1]}")
        except NotFound:
            return False
        return True

    def hide(self, path: str, name: str) -> None:
        """Rename a file in its directory, replacing nothing, then fence a process that writes to it."""
        parent, _ = split_path(path)
        hidden = f"{parent}/{name}" if parent else name
        self._access.move(path, hidden)
        self._access.fence(hidden)

    def is_being_written(self, path: str) -> bool | None:
        """Whether a writer has a file open and renews its lease; one that died counts as such for up to 60 s more."""
        split_path(path)
        try:
            # HDFS refuses it to every other client while the lease is renewed.
            writer = self._access.append(path, is_repeated=False)
        except NotFound:
            return False
        except LeaseUnavailable as error:
            # HDFS itself closes files whose writer does not renew its lease.
            return "RecoveryInProgressException" not in error.message
        self._access.close_file(writer, path)
        return False

    def leftovers(self, parts: Iterable[PartHandle], before_ms: int) -> Iterator[Leftover]:  # noqa: ARG002 - there are none.
        """None: a staged part is a file."""
        yield from ()

    def drop_leftover(self, leftover: Leftover) -> bool:
        """Delete it as any file; none is ever listed."""
        return self.remove(leftover.path, None)

    # Whole files: checkpoints, state, sidecars.

    def create_file(self, path: str, data: bytes) -> None:
        """Create a file exclusively, whole or not at all, durable when this returns.

        What certainly was not created is tried again under another temporary name, so that a NameNode that restarts
        meanwhile is no reason to fail.
        """
        backoff = Backoff(self._access.options.call_timeout_s)
        for attempt in count(1):
            obstacle = self._create_once(path, data)
            if obstacle is None:
                return
            if attempt == _CREATE_ATTEMPTS or not backoff.pause():
                reason = f"{path!r} was not created: {obstacle.message}"
                raise NotApplied(reason, hint=obstacle.hint, path=path) from obstacle

    def _create_once(self, path: str, data: bytes) -> StoreError | None:
        """Try to create a file; returns why it was not created, if another attempt may do better."""
        parent, _ = split_path(path)
        temporary = f"{parent}/_tmp.{new_token()}" if parent else f"_tmp.{new_token()}"
        try:
            self._write_whole(temporary, data)
        except BaseException as error:
            self._drop(temporary)
            if isinstance(error, AlreadyExists | OutcomeUnknown):
                # Whatever became of the temporary file, it will never be renamed.
                return error
            raise
        try:
            self._access.rename(temporary, path)
        except (NotFound, OutcomeUnknown) as error:
            return self._decide(temporary, path, data, error)
        except BaseException:
            self._drop(temporary)
            raise
        return None

    def _write_whole(self, path: str, data: bytes) -> None:
        writer = self._access.create(path)
        if data:
            self._access.write(writer, memoryview(data), path)
            self._access.sync(writer, path)
        self._access.close_durable(writer, path)

    def _drop(self, temporary: str) -> None:
        # Only the call that made it knows the name.
        with suppress(StoreError):
            self._access.delete(temporary)

    def _decide(self, temporary: str, path: str, data: bytes, error: StoreError) -> StoreError | None:
        """Find out what became of a creation whose reply was lost; returns the error if it was not created.

        Deleting the temporary file decides: if that works, no rename that is still under way can find it.
        """
        try:
            if self._access.delete(temporary):
                return error
            content = self.read_file(path, len(data))
        except FileTooLarge:
            content = None
        except StoreError as unseen:
            # Whatever keeps us from looking, the rename may have been done: not even NotFound says that it was not.
            reason = f"{path!r} may have been created: {unseen.message}"
            raise OutcomeUnknown(reason, hint=unseen.hint, path=path) from error
        if content != data:
            raise AlreadyExists(f"{path!r} is there already", path=path) from error
        return None

    def read_file(self, path: str, max_bytes: int) -> bytes:
        """Read a whole file; a longer one is refused without being read."""
        split_path(path)
        reader = self._access.open(path)
        size = len(reader)
        if size > max_bytes:
            raise FileTooLarge(f"{self._access.shown(path)!r} is longer than {max_bytes} bytes", path=path)
        return self._access.read(reader, 0, size, path) if size else b""

    def local_path(self, path: str) -> str | None:  # noqa: ARG002 - of the protocol.
        """None: no file of it is on this host."""
        return None

    def file_exists(self, path: str) -> bool:
        """Whether a file is there now."""
        return self.look_at(path) is not None

    def list_names(self, directory: str) -> builtins.list[str]:
        """The names directly in a directory; empty if it is not there."""
        return [status.name for status in self._access.list_status(directory) if status.name]

    def delete_file(self, path: str) -> None:
        """Delete one file by its literal name; absent counts as done."""
        split_path(path)
        self._access.delete(path)

    def delete_directory(self, directory: str) -> None:
        """Delete a directory and the files directly in it; absent counts as done."""
        split_path(directory)
        # Counted rather than listed: a checkpoint has a file for each of its subtasks.
        deeper = self._access.count_directories(directory)
        if deeper:
            raise NotApplied(f"{self._access.shown(directory)!r} holds {deeper} directories", path=directory)
        self._access.delete(directory, recursive=True)

    # Markers, and the store itself.

    @property
    def markers_are_locks(self) -> bool:
        """Yes: an open file's lease ends with the process that holds it, after up to 60 s."""
        return True

    def hold_marker(self, path: str) -> bool:
        """Hold the marker open, making it if need be; False if another process holds it."""
        return self._markers.hold(path)

    def marker_is_held(self, path: str) -> bool:
        """Whether another process holds the marker; one that died counts as holding it for up to 60 s more."""
        return self._markers.is_held(path)

    def hazards(self, *, now_ms: int, longest_open_s: float) -> Iterator[str]:  # noqa: ARG002 - there are none.
        """None: no service takes files away here."""
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


def _stored(path: str, status: HdfsStatus) -> StoredFile:
    """A file as a listing shows it."""
    return StoredFile(path=path, size=status.length_bytes, modified_at_ms=status.modified_at_ms)


def _as_sidecar(handle: PartHandle) -> bytes:
    return str(handle.valid_length).encode("ascii")
