"""Cutting a closed part of HDFS to its valid length: in place, by a copy, or by a sidecar."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from partfile.filesystems.backoff import Backoff
from partfile.filesystems.errors import (
    AlreadyExists,
    FileTooLarge,
    LeaseUnavailable,
    NotApplied,
    NotFound,
    NotReady,
    OutcomeUnknown,
    StoreError,
)
from partfile.filesystems.hdfs_files import create_whole, read_whole
from partfile.filesystems.hdfs_lease import close_durable, recover_lease
from partfile.filesystems.hdfs_names import rename_staged
from partfile.filesystems.part_errors import part_conflict
from partfile.filesystems.part_names import rewritten, with_fresh_token

if TYPE_CHECKING:
    from partfile.filesystems.hdfs_access import HdfsAccess
    from partfile.filesystems.port import Cut, PartHandle

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
    # Whoever began to rewrite it and died is gone on with, by every way of cutting: else his copy would stay behind.
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
            # They are about the file as it is, which may be being cut by somebody: nobody may read it now.
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
    """Wait for a truncate that HDFS has begun; until then a reader may see the old length, and nobody can append."""
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

    The copy is made under a name that nobody else knows, gets the one that follows from the handle when it is whole,
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
            f"{source!r} shows {len(reader)} of {handle.valid_length} bytes: somebody cuts it or takes its lease",
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
        # Nobody but this call knows the name of the copy.
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
