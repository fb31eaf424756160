"""Settle and publish on the local file system (S3, S5).

A part moves in one direction: in-progress, pending, finished. Whoever moves or cuts it holds its lock from before the
check of its length until its staged name is gone, and a part whose lock cannot be had is copied instead. So no finished
file is ever open for appending: a task opens parts by their in-progress name alone, and checks it under the lock.
"""

from __future__ import annotations

import stat
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from partfile.filesystems.errors import (
    AlreadyExists,
    NotApplied,
    NotFound,
    OutcomeUnknown,
    StoreError,
)
from partfile.filesystems.local_copy import copy_prefix
from partfile.filesystems.local_errors import translated
from partfile.filesystems.local_files import MAX_ATTEMPTS, create_whole, read_whole
from partfile.filesystems.local_stream import rename_back, rename_part
from partfile.filesystems.local_tree import LocalTree, identity
from partfile.filesystems.part_errors import part_conflict, part_missing, part_too_short
from partfile.filesystems.part_names import with_fresh_token

if TYPE_CHECKING:
    import os

    from partfile.filesystems.port import Cut, PartHandle

_MAX_SIDECAR_BYTES = 20


class _Job(NamedTuple):
    """One settle or publish: what is asked for, and the bucket's directory."""

    directory: int
    handle: PartHandle
    cut: Cut
    is_publish: bool


class _Seen(NamedTuple):
    """What was found under the names of a part."""

    staged: str | None
    finished: os.stat_result | None


def settle_part(tree: LocalTree, handle: PartHandle, cut: Cut) -> PartHandle:
    """Cut a part to its valid length and make it pending; see ``PartStore.settle``."""
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
    # Whoever linked it may have crashed before this, and he may have copied it, so its staged names do not tell.
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
        # A file with a name that is not ours must not change: it may belong to somebody else.
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

    Only there is it cut. So a pending part of the right length needs no fsync, while an in-progress one does: somebody
    may have crashed between cutting and syncing it, and the tail would come back with the power.
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
            # Nobody but this call knows the name of the copy.
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
