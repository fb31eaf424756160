"""Cutting a closed part of HDFS to its valid length: in place, by a copy, or by a sidecar."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from partfile.filesystems.backoff import Backoff
from partfile.filesystems.errors import AlreadyExists, NotApplied, OutcomeUnknown, StoreError
from partfile.filesystems.hdfs_files import create_whole, read_whole
from partfile.filesystems.hdfs_lease import close_durable
from partfile.filesystems.part_errors import part_conflict, part_too_short
from partfile.filesystems.part_names import with_fresh_token

if TYPE_CHECKING:
    from partfile.filesystems.hdfs_access import HdfsAccess
    from partfile.filesystems.port import Cut, PartHandle

_COPY_BYTES = 4 << 20
_MAX_SIDECAR_BYTES = 20


def cut_pending(access: HdfsAccess, handle: PartHandle, cut: Cut) -> PartHandle:
    """Cut a part that is under its pending name, closed, and longer than its valid length.

    Returns:
        What is pending now: the same part, or a copy of its valid prefix with a token of its own.

    Raises:
        CommitConflict: Another sidecar stands beside it.
        NotApplied: It cannot be cut this way, or not yet.
    """
    if cut == "valid-length":
        _note_length(access, handle)
        return handle
    if cut == "truncate" or (cut == "auto" and access.truncates):
        try:
            _truncate(access, handle)
        except NotApplied:
            # That there is no way to truncate may only be found by trying.
            if cut == "truncate" or access.truncates:
                raise
        else:
            return handle
    return _copy_prefix(access, handle)


def check_sidecar(access: HdfsAccess, handle: PartHandle) -> bool:
    """Whether the part has a sidecar; one that says another length is not ours to change."""
    path = handle.path_of(handle.sidecar)
    if access.status(path) is None:
        return False
    try:
        content = read_whole(access, path, _MAX_SIDECAR_BYTES)
    except NotApplied as error:
        raise part_conflict(handle, f"sidecar {path!r} cannot be read") from error
    if content != _as_sidecar(handle):
        raise part_conflict(
            handle, f"sidecar {path!r} says {content[:_MAX_SIDECAR_BYTES]!r}, not {handle.valid_length}"
        )
    return True


def _truncate(access: HdfsAccess, handle: PartHandle) -> None:
    path = handle.path_of(handle.pending)
    backoff = Backoff(access.options.truncate_timeout_s)
    # Until then a reader may see the old length, and nobody can append.
    while not access.truncate(path, handle.valid_length):
        if not backoff.pause():
            raise NotApplied(
                f"{path!r}: cutting it has not ended within {access.options.truncate_timeout_s:g} s",
                hint="Look at the DataNodes that hold the last block of this file; the part is tried again.",
                path=path,
            )
    status = access.status(path)
    length = None if status is None else status.length_bytes
    if length != handle.valid_length:
        raise OutcomeUnknown(f"{path!r} has {length} bytes after a cut to {handle.valid_length}", path=path)


def _copy_prefix(access: HdfsAccess, handle: PartHandle) -> PartHandle:
    """Copy the valid prefix; the original is left to the cleaner. Reading needs its lease to be recovered already."""
    copy = with_fresh_token(handle)
    source, target = handle.path_of(handle.pending), copy.path_of(copy.pending)
    reader = access.open(source)
    if len(reader) < handle.valid_length:
        raise part_too_short(handle, len(reader))
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
    return copy


def _note_length(access: HdfsAccess, handle: PartHandle) -> None:
    """Create the sidecar, durably, before the final name can appear."""
    try:
        create_whole(access, handle.path_of(handle.sidecar), _as_sidecar(handle))
    except AlreadyExists:
        check_sidecar(access, handle)


def _as_sidecar(handle: PartHandle) -> bytes:
    return str(handle.valid_length).encode("ascii")
