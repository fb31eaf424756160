"""The local store: parts leased by flock, published by link, durable by fsync of files and directories."""

from __future__ import annotations

import io
import logging
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from partfile.errors import (
    AlreadyExists,
    DirectoriesUnreadable,
    LeaseUnavailable,
    NotApplied,
    NotFound,
    OutcomeUnknown,
    StoreError,
)
from partfile.stores.base import STATE_DIRECTORY, Capabilities, StoredFile
from partfile.stores.local import stream
from partfile.stores.local import tree as local_files
from partfile.stores.local.posix import PosixCalls, translated
from partfile.stores.local.stream import rename_back, rename_part
from partfile.stores.local.tree import MAX_ATTEMPTS, READ_BYTES, LocalTree, create_whole, identity, read_whole
from partfile.stores.parts import (
    SeekableFile,
    check_handle,
    checked_for_publishing,
    checked_staging_file,
    part_conflict,
    part_missing,
    part_too_short,
    split_path,
    staged_names,
    staging_file_gone,
    staging_file_too_short,
    with_fresh_token,
)
from partfile.stores.paths import check_relative_path, is_unicode, may_hold_parts

if TYPE_CHECKING:
    import builtins
    import os
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    from partfile.stores.base import Cut, Leftover, PartHandle


def discard_part(tree: LocalTree, handle: PartHandle) -> bool:
    """Delete the staged names of a part under its lock; see ``PartStore.discard``."""
    # In the order in which a part moves, so that none is missed.
    taken = [remove(tree, handle.path_of(name), None) for name in (handle.in_progress, handle.pending)]
    return any(taken)


def remove(tree: LocalTree, path: str, into: str | None) -> bool:
    """Delete or move one file under its lock; see ``CleaningStore.remove``."""
    parent, name = split_path(path)
    try:
        with tree.directory(parent) as directory:
            descriptor = tree.open_regular(directory, name, path, "modify")
            locked = False
            try:
                with translated("lock", tree.shown(path)):
                    locked = tree.calls.lock(descriptor)
                if not locked:
                    raise LeaseUnavailable(f"{path!r} is being written, so it is left", path=path)
                if not tree.names(directory, name, path, descriptor):
                    return False
                if into is not None:
                    return _move(tree, directory, path, into)
                if tree.status_open(descriptor, path).st_nlink > 1:
                    # Its other name may be a finished one that is not durable yet; losing both would lose the part.
                    tree.sync_directory(directory, path)
                return tree.drop_name(directory, name, path)
            finally:
                tree.release(descriptor, path, locked=locked)
    except NotFound:
        return False


def is_being_written(tree: LocalTree, path: str) -> bool:
    """Whether a task holds the lock of a file; see ``CleaningStore.is_being_written``."""
    parent, name = split_path(path)
    try:
        with tree.directory(parent) as directory:
            descriptor = tree.open_regular(directory, name, path, "read")
    except NotFound:
        return False
    free = False
    try:
        with translated("lock", tree.shown(path)):
            free = tree.calls.lock_shared(descriptor)
    finally:
        tree.release(descriptor, path, locked=free)
    return not free


def _move(tree: LocalTree, directory: int, path: str, into: str) -> bool:
    _, name = split_path(path)
    with tree.directory(into, create=True) as new_directory:
        with translated("move", tree.shown(path)):
            tree.calls.move(directory, name, new_directory)
        tree.sync_names(into)
    return True


def copy_prefix(tree: LocalTree, handle: PartHandle, source: int, target: int) -> None:
    """Append exactly the valid prefix of one open file to another.

    Raises:
        PartMissing: The source ends before it.
    """
    path = handle.path_of(handle.name)
    offset = 0
    while offset < handle.valid_length:
        with translated("read", tree.shown(path)):
            data = tree.calls.read(source, min(READ_BYTES, handle.valid_length - offset), offset)
        if not data:
            raise part_too_short(handle, offset)
        tree.write_all(target, data, path)
        offset += len(data)


_MAX_SIDECAR_BYTES = 20


class _Job(NamedTuple):
    """One finalize or publish: what is asked for, and the bucket's directory."""

    directory: int
    handle: PartHandle
    cut: Cut
    is_publish: bool


class _Seen(NamedTuple):
    """What was found under the names of a part."""

    staged: str | None
    finished: os.stat_result | None


def finalize_part(tree: LocalTree, handle: PartHandle, cut: Cut) -> PartHandle:
    """Cut a part to its valid length and make it pending; see ``PartStore.finalize``."""
    return _commit(tree, handle, cut, is_publish=False)


def publish_part(tree: LocalTree, handle: PartHandle, cut: Cut) -> None:
    """Make a part finished; see ``PartStore.publish``."""
    _commit(tree, handle, cut, is_publish=True)


def _commit(tree: LocalTree, handle: PartHandle, cut: Cut, *, is_publish: bool) -> PartHandle:
    misses = 0
    try:
        with tree.directory(handle.bucket) as directory:
            job = _Job(directory, handle, cut, is_publish)
            for _ in range(MAX_ATTEMPTS):
                seen = _look(tree, job)
                if seen.finished is not None:
                    _accept_finished(tree, job, seen.finished)
                    return handle
                if seen.staged is None:
                    misses += 1
                    if misses > 1:
                        raise part_missing(handle, "it is under none of its names")
                    continue
                # A name that vanishes meanwhile is looked for again.
                with suppress(NotFound):
                    done = _commit_staged(tree, job, seen.staged)
                    if done is not None:
                        return done
    except NotFound as error:
        raise part_missing(handle, "its bucket is not there") from error
    raise NotApplied(f"part {handle.path_of(handle.name)!r} keeps moving", path=handle.path_of(handle.name))


def _look(tree: LocalTree, job: _Job) -> _Seen:
    """Look under each name in the order in which a part moves, so that one that moves meanwhile is still seen."""
    handle = job.handle
    in_progress, pending, finished = (
        tree.status(job.directory, name, handle.path_of(name))
        for name in (handle.in_progress, handle.pending, handle.name)
    )
    staged = handle.pending if pending is not None else handle.in_progress if in_progress is not None else None
    return _Seen(staged, finished)


def _accept_finished(tree: LocalTree, job: _Job, finished: os.stat_result) -> None:
    """Check that the finished file is ours, make its name durable, and drop a staged name of the same file."""
    handle, path = job.handle, job.handle.path_of(job.handle.name)
    if not stat.S_ISREG(finished.st_mode):
        raise part_conflict(handle, f"{path!r} is not a regular file")
    noted = _check_sidecar(tree, job)
    if finished.st_size != handle.valid_length and not (noted and finished.st_size > handle.valid_length):
        raise part_conflict(
            handle, f"{path!r} is there with {finished.st_size} bytes, the checkpoint says {handle.valid_length}"
        )
    # The process that linked it may have crashed before it synced the directory, so sync it again.
    tree.sync_directory(job.directory, path)
    for name in (handle.in_progress, handle.pending):
        staged = tree.status(job.directory, name, handle.path_of(name))
        if staged is not None and identity(staged) == identity(finished):
            tree.drop_name(job.directory, name, handle.path_of(name))


def _commit_staged(tree: LocalTree, job: _Job, name: str) -> PartHandle | None:
    """Commit the part found under a staged name; None if it has moved and must be looked for again."""
    _check_sidecar(tree, job)
    path = job.handle.path_of(name)
    descriptor = tree.open_regular(job.directory, name, path, "modify")
    locked = False
    try:
        with translated("lock", tree.shown(path)):
            locked = tree.calls.lock(descriptor)
        if not locked:
            return _commit_copy(tree, job, descriptor)
        # Looked at again under the lock: a rival may have moved or even published it before we had it.
        if not tree.names(job.directory, name, path, descriptor) or _look(tree, job).finished is not None:
            return None
        return _commit_locked(tree, job, name, descriptor)
    finally:
        tree.release(descriptor, path, locked=locked)


def _commit_locked(tree: LocalTree, job: _Job, name: str, descriptor: int) -> PartHandle | None:
    handle, path = job.handle, job.handle.path_of(name)
    status = tree.status_open(descriptor, path)
    is_long = status.st_size > handle.valid_length
    if status.st_size < handle.valid_length:
        raise part_too_short(handle, status.st_size)
    if status.st_nlink != 1 or (is_long and job.cut == "rewrite"):
        # A file with a name that is not ours must not change: it may belong to another program.
        return _commit_copy(tree, job, descriptor)
    if is_long and job.cut == "valid-length":
        _note_length(tree, job)
    elif is_long or name == handle.in_progress:
        if not _cut_in_place(tree, job, name, descriptor):
            return _commit_copy(tree, job, descriptor)
        name = handle.in_progress
    if name == handle.in_progress:
        rename_part(tree, job.directory, handle, descriptor)
    return _link_finished(tree, job, handle, descriptor) if job.is_publish else handle


def _cut_in_place(tree: LocalTree, job: _Job, name: str, descriptor: int) -> bool:
    """Cut the part and leave it, durable at its valid length, under its in-progress name; False if it must be copied.

    Only there is it cut. So a pending part of the right length needs no fsync, while an in-progress one does: a process
    may have crashed between cutting and syncing it, and a power loss would bring the tail back.
    """
    handle, path = job.handle, job.handle.path_of(name)
    if name == handle.pending:
        if tree.status(job.directory, handle.in_progress, handle.path_of(handle.in_progress)) is not None:
            return False
        rename_back(tree, job.directory, handle, descriptor)
    if tree.status_open(descriptor, path).st_size > handle.valid_length:
        try:
            with translated("truncate", tree.shown(path)):
                tree.calls.truncate(descriptor, handle.valid_length)
        except NotApplied:
            if job.cut == "auto":
                return False
            raise
        length = tree.status_open(descriptor, path).st_size
        if length != handle.valid_length:
            raise OutcomeUnknown(f"{path!r} has {length} bytes after a cut to {handle.valid_length}", path=path)
    tree.sync_file(descriptor, path)
    return True


def _link_finished(tree: LocalTree, job: _Job, staged: PartHandle, descriptor: int) -> PartHandle | None:
    """Give a pending part that we hold its final name; None if the name is taken and must be looked at."""
    path = staged.path_of(staged.pending)
    final_path = staged.path_of(staged.name)
    try:
        with translated("publish", tree.shown(path)):
            tree.calls.link(job.directory, staged.pending, staged.name)
    except AlreadyExists:
        return None
    if not tree.names(job.directory, staged.name, final_path, descriptor):
        raise part_conflict(staged, f"{final_path!r} is not the file that was published")
    tree.sync_directory(job.directory, final_path)
    tree.drop_name(job.directory, staged.pending, path)
    return job.handle


def _commit_copy(tree: LocalTree, job: _Job, source: int) -> PartHandle | None:
    """Commit a copy of the valid prefix, with a token of its own; the original is left to the cleaner."""
    handle = job.handle
    copy = with_fresh_token(handle)
    path = copy.path_of(copy.pending)
    size = tree.status_open(source, path).st_size
    if size < handle.valid_length:
        raise part_too_short(handle, size)
    with translated("create", tree.shown(path)):
        descriptor = tree.calls.create(job.directory, copy.pending)
    locked, done = False, None
    try:
        with translated("lock", tree.shown(path)):
            locked = tree.calls.lock(descriptor)
        copy_prefix(tree, handle, source, descriptor)
        tree.sync_file(descriptor, path)
        if job.is_publish:
            done = _link_finished(tree, job, copy, descriptor)
        else:
            tree.sync_directory(job.directory, path)
            done = copy
    finally:
        if done is None:
            # Only this call knows the name of the copy.
            with suppress(StoreError):
                tree.drop_name(job.directory, copy.pending, path)
        tree.release(descriptor, path, locked=locked)
    return done


def _note_length(tree: LocalTree, job: _Job) -> None:
    """Create the sidecar, durably, before the final name can appear."""
    handle = job.handle
    try:
        create_whole(tree, handle.path_of(handle.sidecar), str(handle.valid_length).encode("ascii"))
    except AlreadyExists:
        _check_sidecar(tree, job)


def _check_sidecar(tree: LocalTree, job: _Job) -> bool:
    """Whether the part has a sidecar; one that says another length is not ours to change."""
    handle, path = job.handle, job.handle.path_of(job.handle.sidecar)
    if tree.status(job.directory, handle.sidecar, path) is None:
        return False
    try:
        content = read_whole(tree, path, _MAX_SIDECAR_BYTES)
    except NotApplied as error:
        raise part_conflict(handle, f"sidecar {path!r} cannot be read") from error
    if content != str(handle.valid_length).encode("ascii"):
        raise part_conflict(
            handle, f"sidecar {path!r} says {content[:_MAX_SIDECAR_BYTES]!r}, not {handle.valid_length}"
        )
    return True


_BUFFER_BYTES = 1 << 20


def open_staging_file(tree: LocalTree, handle: PartHandle) -> io.BufferedReader:
    """Open a staging file to read its valid bytes; see ``PartStore.open_staging_file``."""
    path = handle.path_of(handle.in_progress)
    try:
        with tree.directory(handle.bucket) as directory:
            descriptor = tree.open_regular(directory, handle.in_progress, path, "read")
    except NotFound as error:
        raise staging_file_gone(handle) from error
    file = _StagingFileReader(tree, handle, descriptor)
    try:
        file.check_length()
    except BaseException:
        file.close()
        raise
    return io.BufferedReader(file, _BUFFER_BYTES)


class _StagingFileReader(SeekableFile):
    """The valid bytes of an open staging file.

    Args:
        tree: The store's directories.
        handle: The staging file.
        descriptor: Open for reading; owned by this object from now on.

    Raises:
        PartMissing: On reading what another process has cut off meanwhile.
    """

    def __init__(self, tree: LocalTree, handle: PartHandle, descriptor: int) -> None:
        super().__init__(handle.path_of(handle.in_progress))
        self._tree = tree
        self._handle = handle
        self._descriptor: int | None = descriptor

    @property
    def _end(self) -> int:
        return self._handle.valid_length

    def check_length(self) -> None:
        """See that the valid bytes are there."""
        size = self._tree.status_open(self._opened, self._path).st_size
        if size < self._end:
            raise staging_file_too_short(self._handle, size)

    def readinto(self, buffer: Any) -> int:
        """Read on, at most to the valid length."""
        descriptor = self._opened
        view = memoryview(buffer).cast("B")
        count = min(len(view), self._end - self._position, _BUFFER_BYTES)
        if count <= 0:
            return 0
        with translated("read", self._tree.shown(self._path)):
            taken = self._tree.calls.read_into(descriptor, view[:count], self._position)
        if not taken:
            raise staging_file_too_short(self._handle, self._position)
        self._position += taken
        return taken

    @property
    def _opened(self) -> int:
        if self._descriptor is None:
            raise ValueError(f"{self._path!r} is closed")
        return self._descriptor

    def close(self) -> None:
        """Release the descriptor; may be called twice."""
        descriptor, self._descriptor = self._descriptor, None
        try:
            super().close()
        finally:
            if descriptor is not None:
                self._tree.close_descriptor(descriptor, self._path)


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
        """Everything but sharing, which a path does not tell: the marker proves it (R13)."""
        return Capabilities(
            append=True,
            lease=True,
            fence=False,
            truncate=True,
            no_replace=True,
            durable=True,
            shared=False,
            staging_files=True,
        )

    @property
    def persist_threads(self) -> int:
        """As many as publish: syncs under way together share the journal's commits, and the wait for the disk."""
        return self.capabilities.publish_threads

    @property
    def staging_files_travel(self) -> bool:
        """No: the disk takes them faster than they are compressed."""
        return False

    @property
    def checks_reads(self) -> bool:
        """No: most file systems have no checksum of a file's content."""
        return False

    def check_path(self, path: str) -> None:
        """See ``PartStore.check_path``."""
        check_relative_path(path)

    def create(self, handle: PartHandle) -> stream.LocalPartStream:
        """See ``PartStore.create``."""
        return stream.create_part(self._tree, check_handle(handle))

    def resume(self, handle: PartHandle) -> stream.LocalPartStream:
        """See ``PartStore.resume``."""
        return stream.resume_part(self._tree, check_handle(handle))

    def finalize(self, handle: PartHandle, cut: Cut) -> PartHandle:
        """See ``PartStore.finalize``."""
        return finalize_part(self._tree, checked_for_publishing(handle), cut)

    def publish(self, handle: PartHandle, cut: Cut) -> None:
        """See ``PartStore.publish``."""
        publish_part(self._tree, checked_for_publishing(handle), cut)

    def open_staging_file(self, handle: PartHandle, *, fences: bool = False) -> io.BufferedReader:  # noqa: ARG002 - no lease is in the way.
        """See ``PartStore.open_staging_file``."""
        return open_staging_file(self._tree, checked_staging_file(handle))

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
        return discard_part(self._tree, check_handle(handle))

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

    def remove(self, path: str, into: str | None) -> bool:
        """See ``CleaningStore.remove``."""
        return remove(self._tree, path, into)

    def is_being_written(self, path: str) -> bool | None:
        """See ``CleaningStore.is_being_written``."""
        return is_being_written(self._tree, path)

    def leftovers(self, parts: Iterable[PartHandle], before_ms: int) -> Iterator[Leftover]:  # noqa: ARG002 - there are none.
        """See ``CleaningStore.leftovers``."""
        yield from ()

    def drop_leftover(self, leftover: Leftover) -> bool:
        """See ``CleaningStore.drop_leftover``."""
        return self.remove(leftover.path, None)

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
