"""Settle and publish on HDFS (S3, S5).

A part moves in one direction: in-progress, pending, finished. It is renamed to its pending name first, so that nobody
can open it for appending any more; then its lease is recovered, which fences whoever had it open before; only then its
length means something. Other than on the local file system a part never has two names, and none is ever copied because
its lease cannot be had. One that is cut by copying it has a fourth name, that of the copy: see ``hdfs_cut``.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from partfile.filesystems.errors import AlreadyExists, NotApplied, NotFound, OutcomeUnknown
from partfile.filesystems.hdfs_cut import check_sidecar, cut_pending
from partfile.filesystems.hdfs_lease import recover_lease
from partfile.filesystems.hdfs_names import rename_staged
from partfile.filesystems.part_errors import part_conflict, part_missing, part_too_short
from partfile.filesystems.part_names import rewritten

if TYPE_CHECKING:
    from partfile.filesystems.hdfs_access import HdfsAccess
    from partfile.filesystems.hdfs_calls import HdfsStatus
    from partfile.filesystems.port import Cut, PartHandle

_MAX_ATTEMPTS = 10


class _Job(NamedTuple):
    """One settle or publish: what is asked for."""

    handle: PartHandle
    cut: Cut
    is_publish: bool


def settle_part(access: HdfsAccess, handle: PartHandle, cut: Cut) -> PartHandle:
    """Cut a part to its valid length and make it pending; see ``PartStore.settle``."""
    return _commit(access, handle, cut, is_publish=False)


def publish_part(access: HdfsAccess, handle: PartHandle, cut: Cut) -> None:
    """Make a part finished; see ``PartStore.publish``."""
    _commit(access, handle, cut, is_publish=True)


def _commit(access: HdfsAccess, handle: PartHandle, cut: Cut, *, is_publish: bool) -> PartHandle:
    # Nothing is looked at before it is acted upon: each of these calls says itself whether there is anything to do.
    job = _Job(handle, cut, is_publish)
    misses = 0
    for _ in range(_MAX_ATTEMPTS):
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
        # Without a look for a sidecar: whoever makes one leaves the tail that it is about (S4: no other has this name).
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
