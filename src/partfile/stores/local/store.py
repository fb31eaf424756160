"""The local store: parts leased by flock, published by rename, durable by fsync of files and directories."""

from __future__ import annotations

import errno
import io
import logging
import stat
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Self

from partfile.errors import (
    AlreadyExists,
    DirectoriesUnreadable,
    FileTooLarge,
    LeaseUnavailable,
    NotApplied,
    NotFound,
    OutcomeUnknown,
    StoreError,
)
from partfile.stores.base import STATE_DIRECTORY, Capabilities, StoredFile
from partfile.stores.local.posix import PosixCalls, store_error, translated
from partfile.stores.local.stream import BUFFER_BYTES, LocalPartStream, StagingFileReader
from partfile.stores.local.tree import MAX_ATTEMPTS, READ_BYTES, LocalTree, Markers, identity
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
    with_fresh_token,
)
from partfile.stores.paths import check_relative_path, is_unicode, may_hold_parts, new_token

if TYPE_CHECKING:
    import builtins
    import os
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    from partfile.stores.base import Cut, Leftover, PartHandle


logger = logging.getLogger("partfile")

_MAX_SIDECAR_BYTES = 20


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
        self._markers = Markers(self._tree)

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
        """Refuse a path that leaves the base or cannot be a name here."""
        check_relative_path(path)

    # A part, in the order of its life.

    def create(self, handle: PartHandle) -> LocalPartStream:
        """Create the in-progress file exclusively (``O_EXCL``) and lock it; the names become durable by ``persist``."""
        check_new(check_handle(handle))
        path = handle.path_of(handle.in_progress)
        with self._tree.directory(handle.bucket, create=True) as directory:
            with translated("create", self._tree.shown(path)):
                descriptor = self._tree.calls.create(directory, handle.in_progress)
            # Between the two calls a cleaner may have locked or removed it.
            self._take(directory, handle, descriptor)
        return LocalPartStream(self._tree, handle, descriptor, is_new=True)

    def resume(self, handle: PartHandle) -> LocalPartStream:
        """Open the in-progress file for appending and lock it without waiting; changes nothing."""
        check_handle(handle)
        path = handle.path_of(handle.in_progress)
        try:
            with self._tree.directory(handle.bucket) as directory:
                descriptor = self._tree.open_regular(directory, handle.in_progress, path, "append")
                self._take(directory, handle, descriptor)
        except NotFound as error:
            raise part_refused(handle, "it is no longer under its in-progress name") from error
        return LocalPartStream(self._tree, handle, descriptor, is_new=False)

    def _take(self, directory: int, handle: PartHandle, descriptor: int) -> None:
        """Lock the open part and check that it is the one its name stands for, as long as its handle says."""
        path, locked = handle.path_of(handle.in_progress), False
        try:
            with translated("lock", self._tree.shown(path)):
                locked = self._tree.calls.lock(descriptor)
            refusal = self._why_refused(directory, handle, descriptor) if locked else "another process holds its lock"
        except BaseException:
            self._tree.release(descriptor, path, locked=locked)
            raise
        if refusal:
            self._tree.release(descriptor, path, locked=locked)
            raise part_refused(handle, refusal)

    def _why_refused(self, directory: int, handle: PartHandle, descriptor: int) -> str:
        path = handle.path_of(handle.in_progress)
        if not self._tree.names(directory, handle.in_progress, path, descriptor):
            return "it is no longer under its in-progress name"
        status = self._tree.status_open(descriptor, path)
        if status.st_size != handle.valid_length:
            return f"it has {status.st_size} bytes instead of {handle.valid_length}"
        # Another name may be a finished one, or that of a file that is not ours at all.
        return "" if status.st_nlink == 1 else f"it has {status.st_nlink} names"

    def prepare(self, handle: PartHandle) -> PartHandle:
        """The same handle: nothing has to begin before a part is published."""
        return handle

    def publish(self, handle: PartHandle, cut: Cut) -> None:
        """Cut the part under its lock, and rename it: to pending, then to its final name, which replaces nothing (R5).

        The rename that shows the part to readers takes its staged name away, so a finished file that a consumer moves
        at once never comes back. A part whose lock another process holds, or that cannot be cut, is copied (R3).
        """
        copy, misses = rewritten(checked_for_publishing(handle)), 0
        with self._directory_of(handle) as directory:
            for _ in range(MAX_ATTEMPTS):
                # In the order in which a part moves, so that one that moves meanwhile is still seen.
                names = (handle.in_progress, handle.pending, copy.pending, handle.name)
                found = {name: self._tree.status(directory, name, handle.path_of(name)) for name in names}
                if (finished := found[handle.name]) is not None:
                    self._accept_finished(directory, handle, finished)
                    return
                name = next((name for name in reversed(names) if found[name] is not None), None)
                misses += name is None
                if misses > 1:
                    raise part_gone(handle, "it is under none of its names")
                # What has moved meanwhile, or has been published, is looked for again.
                with suppress(NotFound, AlreadyExists):
                    if name is not None:
                        self._publish_found(directory, handle, name, cut)
                        return
        raise NotApplied(f"part {handle.path_of(handle.name)!r} keeps moving", path=handle.path_of(handle.name))

    def _publish_found(self, directory: int, handle: PartHandle, name: str, cut: Cut) -> None:
        """Publish the part that is under a staged name, or the copy of it.

        Raises:
            NotFound: It is no longer under that name.
            AlreadyExists: The final name has been taken.
        """
        path, copy = handle.path_of(name), rewritten(handle)
        with self._leased(directory, name, path) as (part, is_leased):
            # Looked at again under the lock: a rival may have moved or even published it before we had it.
            if is_leased and not self._tree.names(directory, name, path, part):
                raise NotFound(f"{path!r} has moved", path=path)
            if self._tree.status(directory, handle.name, handle.path_of(handle.name)) is not None:
                raise AlreadyExists(f"{handle.path_of(handle.name)!r} has been published", path=path)
            # Before the part is cut, so that no crash leaves a cut part beside the sidecar of a longer one.
            self._check_sidecar(directory, handle, is_finished=False)
            if name == copy.pending:
                self._check_copy(directory, handle, part, is_leased=is_leased)
                self._publish_copy(directory, handle, part)
            elif is_leased and (cut_name := self._cut_as(directory, handle, name, cut, part)):
                if cut_name == handle.in_progress:
                    self._tree.rename(directory, handle.in_progress, handle.pending, handle.bucket, part)
                self._tree.rename_to_new(directory, handle.pending, handle.name, handle.bucket, part)
                # Durable before it is told: the next checkpoint knows nothing of the part any more (R9).
                self._tree.sync_directory(directory, handle.path_of(handle.name))
            else:
                with self._copied(directory, handle, part) as copied:
                    self._publish_copy(directory, handle, copied, is_new=True)

    def _accept_finished(self, directory: int, handle: PartHandle, finished: os.stat_result) -> None:
        """Check that the finished file is ours, make its name durable, and drop a staged name of the same file."""
        path = handle.path_of(handle.name)
        if not stat.S_ISREG(finished.st_mode):
            raise part_conflict(handle, f"{path!r} is not a regular file")
        noted = self._check_sidecar(directory, handle)
        if finished.st_size != handle.valid_length and not (noted and finished.st_size > handle.valid_length):
            raise part_conflict(
                handle, f"{path!r} is there with {finished.st_size} bytes, the checkpoint says {handle.valid_length}"
            )
        staged = [(name, self._tree.status(directory, name, handle.path_of(name))) for name in staged_names(handle)]
        for name, status in staged:
            if status is not None and identity(status) != identity(finished):
                self._check_same_bytes(directory, handle, name)
        # The process that published it may have crashed before it synced the directory, so sync it again.
        self._tree.sync_directory(directory, path)
        for name, status in staged:
            if status is not None and identity(status) == identity(finished):
                self._tree.drop_name(directory, name, handle.path_of(name))

    def _check_same_bytes(self, directory: int, handle: PartHandle, name: str) -> None:
        """Compare the valid bytes of the finished file with a staged file of the part that is another file.

        Raises:
            CommitConflict: They differ, so the finished file is not this part.
        """
        paths = handle.path_of(handle.name), handle.path_of(name)
        with suppress(NotFound), ExitStack() as opened:
            files = []
            for each, path in zip((handle.name, name), paths, strict=True):
                files.append(self._tree.open_regular(directory, each, path, "read"))
                opened.callback(self._tree.close_descriptor, files[-1], path)
            for offset in range(0, handle.valid_length, READ_BYTES):
                count = min(READ_BYTES, handle.valid_length - offset)
                ours, theirs = (self._read_whole(file, count, offset, paths[0]) for file in files)
                if ours[: len(theirs)] != theirs:
                    raise part_conflict(
                        handle, f"{paths[0]!r} has the length of this part, and other bytes than {paths[1]!r}"
                    )

    def _cut_as(self, directory: int, handle: PartHandle, name: str, cut: Cut, part: int) -> str | None:
        """Cut the leased part to its valid length, durably.

        Returns:
            The staged name that it has then; None if it must be copied instead.

        Raises:
            PartMissing: It is too short.
        """
        path = handle.path_of(name)
        status = self._tree.status_open(part, path)
        is_long = status.st_size > handle.valid_length
        if status.st_size < handle.valid_length:
            raise part_too_short(handle, status.st_size)
        if status.st_nlink != 1 or (is_long and cut == "rewrite"):
            # A file with a name that is not ours must not change: it may belong to another program.
            return None
        if is_long and cut == "valid-length":
            self._note_length(directory, handle)
            return name
        if name == handle.pending and not is_long:
            return name
        if name == handle.pending:
            # Cut under its in-progress name alone. So a pending part of the right length is known to be synced.
            if self._tree.status(directory, handle.in_progress, handle.path_of(handle.in_progress)) is not None:
                return None
            self._tree.rename(directory, handle.pending, handle.in_progress, handle.bucket, part)
        if is_long and not self._truncate(handle, cut, part, path):
            return None
        # Also where it has the right length: a process may have crashed between cutting and syncing it, and a power
        # loss would bring the tail back.
        self._tree.sync_file(part, path)
        return handle.in_progress

    def _truncate(self, handle: PartHandle, cut: Cut, part: int, path: str) -> bool:
        """Cut an open file and see that it was cut; False if the file system refuses and a copy will do."""
        try:
            with translated("truncate", self._tree.shown(path)):
                self._tree.calls.truncate(part, handle.valid_length)
        except NotApplied:
            if cut == "auto":
                return False
            raise
        length = self._tree.status_open(part, path).st_size
        if length != handle.valid_length:
            raise OutcomeUnknown(f"{path!r} has {length} bytes after a cut to {handle.valid_length}", path=path)
        return True

    def _publish_copy(self, directory: int, handle: PartHandle, copied: int, *, is_new: bool = False) -> None:
        """Give the leased copy the final name, after the original has lost its staged name (R3).

        Only the coordinator that takes the name from the original publishes a copy that it has just made.

        Raises:
            NotApplied: Another coordinator has published the part since the copy was begun.
        """
        copy = rewritten(handle)
        is_put_aside = [self._put_aside(directory, handle, name) for name in (handle.in_progress, handle.pending)]
        if is_new and not any(is_put_aside):
            self._tree.drop_name(directory, copy.pending, copy.path_of(copy.pending))
            raise NotApplied(
                f"part {handle.path_of(handle.name)!r} was taken by another coordinator while it was copied",
                hint="It publishes the part, or has done so; if this one still goes on, the part is tried again.",
                path=handle.path_of(handle.name),
            )
        # Durable before the final name shows: after a power loss the original must not come back beside it.
        self._tree.sync_directory(directory, handle.path_of(handle.name))
        self._tree.rename_to_new(directory, copy.pending, handle.name, handle.bucket, copied)
        self._tree.sync_directory(directory, handle.path_of(handle.name))

    def _put_aside(self, directory: int, handle: PartHandle, name: str) -> bool:
        """Take a staged name from a file, which one coordinator alone can do; the cleaner may have the file."""
        aside = with_fresh_token(handle).pending
        try:
            with translated("rename", self._tree.shown(handle.path_of(name))):
                self._tree.calls.rename(directory, name, aside)
        except NotFound:
            return False
        return True

    def _check_copy(self, directory: int, handle: PartHandle, copied: int, *, is_leased: bool) -> None:
        """See that a copy that is found can be published.

        One of another length was made before the sink went back. While the original is there the copy is put aside;
        after that it is all that there is of the part, and is cut.

        Raises:
            NotApplied: Another coordinator has it, or it cannot be cut.
            NotFound: It was put aside; the original is to be copied again.
            PartMissing: It is too short, and the original has no staged name any more.
        """
        copy = rewritten(handle)
        path = copy.path_of(copy.pending)
        if not is_leased:
            raise NotApplied(
                f"{path!r} is being published by another coordinator", hint="The part is tried again.", path=path
            )
        length = self._tree.status_open(copied, path).st_size
        if length == handle.valid_length:
            # The process that named it may have crashed before it synced the directory. A power loss must not take the
            # copy's name and leave the original without its own.
            self._tree.sync_directory(directory, path)
            return
        originals = (handle.in_progress, handle.pending)
        if any(self._tree.status(directory, name, handle.path_of(name)) is not None for name in originals):
            self._put_aside(directory, handle, copy.pending)
            raise NotFound(f"{path!r} is a copy of another length", path=path)
        if length < handle.valid_length:
            raise part_too_short(handle, length)
        self._truncate(handle, "truncate", copied, path)
        self._tree.sync_file(copied, path)

    @contextmanager
    def _copied(self, directory: int, handle: PartHandle, source: int) -> Iterator[int]:
        """Copy the valid prefix of an open part, durably, under the pending name of its copy; leased in the block.

        The copy has a name of its own until it is whole. Its pending name follows from the handle, so a later process
        finds it.

        Raises:
            PartMissing: The part is too short.
            AlreadyExists: Another coordinator has copied it.
        """
        copy, own = rewritten(handle), with_fresh_token(handle)
        path = own.path_of(own.pending)
        size = self._tree.status_open(source, path).st_size
        if size < handle.valid_length:
            raise part_too_short(handle, size)
        with translated("create", self._tree.shown(path)):
            descriptor = self._tree.calls.create(directory, own.pending)
        locked = is_whole = False
        try:
            with translated("lock", self._tree.shown(path)):
                locked = self._tree.calls.lock(descriptor)
            self._copy_prefix(handle, source, descriptor)
            self._tree.sync_file(descriptor, path)
            self._tree.rename_to_new(directory, own.pending, copy.pending, handle.bucket, descriptor)
            self._tree.sync_directory(directory, path)
            is_whole = True
            yield descriptor
        finally:
            if not is_whole:
                # Only this call knows the name.
                with suppress(StoreError):
                    self._tree.drop_name(directory, own.pending, path)
            self._tree.release(descriptor, path, locked=locked)

    def _copy_prefix(self, handle: PartHandle, source: int, target: int) -> None:
        """Append exactly the valid prefix of one open file to another."""
        path = handle.path_of(handle.name)
        offset = 0
        while offset < handle.valid_length:
            with translated("read", self._tree.shown(path)):
                data = self._tree.calls.read(source, min(READ_BYTES, handle.valid_length - offset), offset)
            if not data:
                raise part_too_short(handle, offset)
            self._tree.write_all(target, data, path)
            offset += len(data)

    def _read_whole(self, file: int, count: int, offset: int, path: str) -> bytes:
        """Read so many bytes, or as many as there are."""
        chunks = []
        while count:
            with translated("read", self._tree.shown(path)):
                chunk = self._tree.calls.read(file, count, offset)
            if not chunk:
                break
            chunks.append(chunk)
            count, offset = count - len(chunk), offset + len(chunk)
        return b"".join(chunks)

    @contextmanager
    def _directory_of(self, handle: PartHandle) -> Iterator[int]:
        """Hold the directory of a part open.

        Raises:
            PartMissing: It is not there.
        """
        try:
            with self._tree.directory(handle.bucket) as directory:
                yield directory
        except NotFound as error:
            raise part_gone(handle, "its bucket is not there") from error

    @contextmanager
    def _leased(self, directory: int, name: str, path: str) -> Iterator[tuple[int, bool]]:
        """Open a file and try to lock it: the descriptor, and whether this process holds the lock in the block."""
        descriptor, locked = self._tree.open_regular(directory, name, path, "modify"), False
        try:
            with translated("lock", self._tree.shown(path)):
                locked = self._tree.calls.lock(descriptor)
            yield descriptor, locked
        finally:
            self._tree.release(descriptor, path, locked=locked)

    def _note_length(self, directory: int, handle: PartHandle) -> None:
        """Create the sidecar, durably, before the final name can appear."""
        try:
            self.create_file(handle.path_of(handle.sidecar), str(handle.valid_length).encode("ascii"))
        except AlreadyExists:
            if not self._check_sidecar(directory, handle):
                raise

    def _check_sidecar(self, directory: int, handle: PartHandle, *, is_finished: bool = True) -> bool:
        """Whether the part has a sidecar of its valid length.

        Another length is one from before a rollback if the part has no final name: no reader has looked at it, and it
        is deleted. Beside a finished file it is not ours to change.
        """
        path = handle.path_of(handle.sidecar)
        if self._tree.status(directory, handle.sidecar, path) is None:
            return False
        try:
            content = self.read_file(path, _MAX_SIDECAR_BYTES)
        except NotApplied as error:
            raise part_conflict(handle, f"sidecar {path!r} cannot be read") from error
        if content == str(handle.valid_length).encode("ascii"):
            return True
        if is_finished or not is_length(content):
            raise part_conflict(
                handle, f"sidecar {path!r} says {content[:_MAX_SIDECAR_BYTES]!r}, not {handle.valid_length}"
            )
        self._tree.drop_name(directory, handle.sidecar, path)
        self._tree.sync_directory(directory, path)
        return False

    def open_staging_file(self, handle: PartHandle, *, fences: bool = False) -> io.BufferedReader:  # noqa: ARG002 - no lease is in the way.
        """Open a staging file to read its valid bytes; takes no lock, so its writer is not disturbed."""
        checked_staging_file(handle)
        path = handle.path_of(handle.in_progress)
        try:
            with self._tree.directory(handle.bucket) as directory:
                descriptor = self._tree.open_regular(directory, handle.in_progress, path, "read")
        except NotFound as error:
            raise staging_file_gone(handle) from error
        file = StagingFileReader(self._tree, handle, descriptor)
        try:
            file.check_length()
        except BaseException:
            file.close()
            raise
        return io.BufferedReader(file, BUFFER_BYTES)

    def goes_back(self, handle: PartHandle) -> bool:
        """Yes: whatever was added can be cut."""
        check_handle(handle)
        return True

    def is_staged(self, handle: PartHandle) -> bool:
        """Whether a file is under one of the part's staged names."""
        check_handle(handle)
        return any(self.file_exists(handle.path_of(name)) for name in staged_names(handle))

    def discard(self, handle: PartHandle) -> bool:
        """Delete the part's staged names, each under its lock."""
        check_handle(handle)
        # In the order in which a part moves, so that none is missed.
        taken = [self.remove(handle.path_of(name), None) for name in staged_names(handle)]
        return any(taken)

    # Listing and cleaning.

    def list(self, directory: str = "") -> Iterator[StoredFile]:
        """Every file below a directory; symbolic links, pipes and names that are not UTF-8 are passed over.

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
                    yield _stored(below, status)
        if unreadable:
            first = unreadable[0]
            problem = DirectoriesUnreadable(first.message, hint=first.hint, path=first.path)
            problem.directories = tuple(error.path[len(self.base) + 1 :] for error in unreadable if error.path)
            raise problem

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

    def look_at(self, path: str) -> StoredFile | None:
        """One regular file as a listing shows it; None if there is none, or something else."""
        parent, name = split_path(path)
        try:
            with self._tree.directory(parent) as directory:
                status = self._tree.status(directory, name, path)
        except NotFound:
            return None
        return _stored(path, status) if status is not None and stat.S_ISREG(status.st_mode) else None

    @property
    def moves_files(self) -> bool:
        """Yes: by a rename that replaces nothing."""
        return True

    def remove(self, path: str, into: str | None) -> bool:
        """Delete or move one file under its lock; whether it was there."""
        parent, name = split_path(path)
        try:
            with (
                self._tree.directory(parent) as directory,
                self._leased(directory, name, path) as (descriptor, is_leased),
            ):
                if not is_leased:
                    raise LeaseUnavailable(f"{path!r} is being written, so it is left", path=path)
                if not self._tree.names(directory, name, path, descriptor):
                    return False
                if into is not None:
                    self._move(directory, path, into)
                    return True
                if self._tree.status_open(descriptor, path).st_nlink > 1:
                    # Its other name may be a finished one that is not durable yet; losing both would lose the part.
                    self._tree.sync_directory(directory, path)
                return self._tree.drop_name(directory, name, path)
        except NotFound:
            return False

    def _move(self, directory: int, path: str, into: str) -> None:
        _, name = split_path(path)
        with self._tree.directory(into, create=True) as new_directory:
            with translated("move", self._tree.shown(path)):
                self._tree.calls.move(directory, name, new_directory)
            self._tree.sync_names(into)

    def hide(self, path: str, name: str) -> None:
        """Rename a file under its lock, in its directory, replacing nothing; durable when this returns."""
        parent, old_name = split_path(path)
        with self._tree.directory(parent) as directory, self._leased(directory, old_name, path) as (file, is_leased):
            if not is_leased:
                raise LeaseUnavailable(f"{path!r} is being written, so it is left", path=path)
            if self._tree.status_open(file, path).st_nlink != 1:
                raise NotApplied(f"{path!r} has another name elsewhere, so it is left", path=path)
            self._tree.rename_to_new(directory, old_name, name, parent, file)
            self._tree.sync_directory(directory, path)

    def is_being_written(self, path: str) -> bool | None:
        """Whether a task holds the lock of a file."""
        parent, name = split_path(path)
        try:
            with self._tree.directory(parent) as directory:
                descriptor = self._tree.open_regular(directory, name, path, "read")
        except NotFound:
            return False
        free = False
        try:
            with translated("lock", self._tree.shown(path)):
                free = self._tree.calls.lock_shared(descriptor)
        finally:
            self._tree.release(descriptor, path, locked=free)
        return not free

    def leftovers(self, parts: Iterable[PartHandle], before_ms: int) -> Iterator[Leftover]:  # noqa: ARG002 - there are none.
        """None: a staged part is a file."""
        yield from ()

    def drop_leftover(self, leftover: Leftover) -> bool:
        """Delete it as any file; none is ever listed."""
        return self.remove(leftover.path, None)

    # Whole files: checkpoints, state, sidecars.

    def create_file(self, path: str, data: bytes) -> None:
        """Create a file exclusively, whole or not at all, durable with its name when this returns."""
        parent, name = split_path(path)
        with self._tree.directory(parent, create=True) as directory:
            if self._tree.status(directory, name, path) is None and self._create_by_link(directory, path, data):
                return
            # The process that made it may have crashed before its name was durable, and the caller acts on what it
            # reads.
            self._tree.sync_names(parent)
        raise AlreadyExists(f"{path!r} is there already", path=path)

    def _create_by_link(self, directory: int, path: str, data: bytes) -> bool:
        """Create a temporary file, write, fsync, link it to its name, fsync the directories; False if that is taken."""
        parent, name = split_path(path)
        temporary = f"_tmp.{new_token()}"
        with translated("create", self._tree.shown(path)):
            descriptor = self._tree.calls.create(directory, temporary)
        try:
            try:
                self._tree.write_all(descriptor, data, path)
                self._tree.sync_file(descriptor, path)
                try:
                    with translated("link", self._tree.shown(path)):
                        self._tree.calls.link(directory, temporary, name)
                except AlreadyExists:
                    return False
                self._tree.sync_names(parent)
                return True
            finally:
                # Only this call knows the name, and the file itself stays where it has been linked.
                with suppress(OSError):
                    temporary = self._tree.try_rename_to_new(directory, temporary)
                    self._tree.calls.unlink(directory, temporary)
        finally:
            # All that counts has been synced, or has failed already.
            with suppress(OSError):
                self._tree.calls.close(descriptor)

    def read_file(self, path: str, max_bytes: int) -> bytes:
        """Read a whole file; a longer one is refused without being read to its end."""
        parent, name = split_path(path)
        with self._tree.directory(parent) as directory:
            descriptor = self._tree.open_regular(directory, name, path, "read")
        try:
            with translated("read", self._tree.shown(path)):
                chunks, size = [], 0
                while chunk := self._tree.calls.read(descriptor, min(READ_BYTES, max_bytes + 1 - size), size):
                    chunks.append(chunk)
                    size += len(chunk)
        finally:
            self._tree.close_descriptor(descriptor, path)
        if size > max_bytes:
            raise FileTooLarge(f"{self._tree.shown(path)!r} is longer than {max_bytes} bytes", path=path)
        return b"".join(chunks)

    def local_path(self, path: str) -> str | None:
        """Where the file lies; asks nothing."""
        return f"{self.base}/{path}"

    def file_exists(self, path: str) -> bool:
        """Whether a regular file is there now."""
        return self.look_at(path) is not None

    def list_names(self, directory: str) -> builtins.list[str]:
        """The names directly in a directory, durable by then; empty if it is not there."""
        try:
            with self._tree.directory(directory) as opened, translated("list", self._tree.shown(directory)):
                names = self._tree.calls.list_names(opened)
            # The process that made them may have crashed before they were durable, and the caller builds on what is
            # there.
            self._tree.sync_names(directory)
        except NotFound:
            return []
        except OutcomeUnknown as error:
            if isinstance(error.__cause__, NotFound):
                return []  # Deleted meanwhile, with all that was in it.
            raise NotApplied(error.message, hint=error.hint, path=error.path) from error
        return names

    def delete_file(self, path: str) -> None:
        """Delete one file by its literal name; absent counts as done."""
        parent, name = split_path(path)
        with suppress(NotFound), self._tree.directory(parent) as directory:
            self._tree.drop_name(directory, name, path)

    def delete_directory(self, directory: str) -> None:
        """Delete a directory and the files directly in it; absent counts as done."""
        parent, name = split_path(directory)
        for _ in range(MAX_ATTEMPTS):
            try:
                with self._tree.directory(directory) as opened, translated("list", self._tree.shown(directory)):
                    for entry in self._tree.calls.list_names(opened):
                        self._tree.drop_name(opened, entry, f"{directory}/{entry}")
                with self._tree.directory(parent) as above:
                    if self._remove_empty(above, name, directory):
                        return
            except NotFound:
                return
        raise NotApplied(f"{self._tree.shown(directory)!r} is being filled while it is deleted", path=directory)

    def _remove_empty(self, parent: int, name: str, path: str) -> bool:
        try:
            self._tree.calls.remove_directory(parent, name)
        except OSError as error:
            if error.errno == errno.ENOTEMPTY:
                return False
            raise store_error(error, "remove", self._tree.shown(path)) from error
        return True

    # Markers, and the store itself.

    @property
    def markers_are_locks(self) -> bool:
        """Yes: the lock goes with the process that holds it."""
        return True

    def hold_marker(self, path: str) -> bool:
        """Lock the marker, making it if need be; False if another process holds it."""
        return self._markers.hold(path)

    def marker_is_held(self, path: str) -> bool:
        """Whether another process holds the marker."""
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
        """Release markers and the base; delete nothing. May be called twice."""
        self._markers.close()
        self._tree.close()


def _stored(path: str, status: os.stat_result) -> StoredFile:
    """A file as a listing shows it."""
    return StoredFile(
        path=path,
        size=status.st_size,
        modified_at_ms=status.st_mtime_ns // 1_000_000,
        identity=f"{status.st_dev}:{status.st_ino}" if status.st_nlink > 1 else None,
    )
