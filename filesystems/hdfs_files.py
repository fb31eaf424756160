"""Small whole files on HDFS: checkpoint metadata, state, sidecars."""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING

from partfile.filesystems.backoff import Backoff
from partfile.filesystems.errors import (
    AlreadyExists,
    FileTooLarge,
    NotApplied,
    NotFound,
    OutcomeUnknown,
    StoreError,
)
from partfile.filesystems.hdfs_lease import close_durable
from partfile.filesystems.part_names import split_path
from partfile.filesystems.port import StoredFile
from partfile.filesystems.tokens import new_token

if TYPE_CHECKING:
    from partfile.filesystems.hdfs_access import HdfsAccess
    from partfile.filesystems.hdfs_calls import HdfsStatus


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
            # Whatever became of the temporary file, nobody will ever rename it.
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
    # Nobody but the call that made it knows the name.
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
