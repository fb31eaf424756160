"""Savepoints in a store: snapshots that belong to the user. Create, read, list and delete them.

A savepoint is one directory, ``{target}/savepoint-{job, 6 characters}-{random}``, with ``_metadata`` and state files
side by side. It shares no file with any checkpoint, names nothing outside, and nothing here ever deletes one unasked.
Source: Flink's savepoints, as of 1.20.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, NamedTuple, Self

from pydantic import Field, model_validator

from partfile.errors import AlreadyExists, ConfigError, NotApplied, NotFound, SnapshotError, StoreError
from partfile.snapshot import documents
from partfile.snapshot.documents import (
    CheckpointRef,
    FileHandle,
    OperatorState,
    decode_document,
    encode_document,
    handles_of,
    read_document,
    unreadable,
)
from partfile.snapshot.storage import pointer_to
from partfile.stores.base import Persisted
from partfile.stores.paths import new_token
from partfile.stores.registry import open_store

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from partfile.stores.base import MetadataStore


class SavepointMetadata(Persisted):
    """A snapshot that belongs to the user. Names files of its own directory alone, so it can be moved and copied."""

    savepoint_id: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    """Drawn for this savepoint; how a job recognises the one it was restored from, wherever that lies by then."""
    job: str
    """The uid of the job it was taken of."""
    taken_by: CheckpointRef
    """The checkpoint that rolled and published everything for it."""
    time_ms: int
    """The coordinator's time, in milliseconds since 1970; for people."""
    writer: str
    """Version of partfile that wrote it."""
    ends_the_job: bool
    """Whether the job was stopped with it: nothing was written afterwards."""
    operators: dict[str, OperatorState]
    """The state of every operator that has some, by the operator's id."""

    @model_validator(mode="after")
    def _names_only_its_own_files(self) -> Self:
        for handle in handles_of(self.operators):
            if isinstance(handle, FileHandle) and "/" in handle.path:
                raise ValueError(f"it names {handle.path}, which is not in its directory")
        return self


SCHEMA = "savepoint"
MAX_NAMES = 10
_SHORT_JOB_CHARACTERS = 6
_RANDOM_CHARACTERS = 12
_METADATA = "_metadata"
_STARTED = "_started"
_NAME = re.compile(r"savepoint-[A-Za-z0-9._~-]{1,6}-[0-9a-f]{12}")


class FoundSavepoint(NamedTuple):
    """One entry of a list of savepoints."""

    directory: str
    """Its name below the target."""
    metadata: SavepointMetadata | None
    problem: str
    """Why there is no metadata: it was never finished, is being disposed of, or cannot be read. Else empty."""


def reserve_savepoint(target: MetadataStore, job: str) -> str:
    """Take a name for a savepoint and prove that its directory can be written and read, before any work is done for it.

    Idempotence: none; each call takes another name. What it leaves is deleted by ``delete_savepoint``.

    Args:
        target: The store of the directory in which savepoints are made.
        job: The uid of the job; its first six characters are part of the name.

    Returns:
        The name of the new directory below the target.

    Raises:
        StoreError: The target cannot be written to or read from.
    """
    for _ in range(MAX_NAMES):
        directory = f"savepoint-{job[:_SHORT_JOB_CHARACTERS]}-{new_token()[:_RANDOM_CHARACTERS]}"
        probe = f"{directory}/{_STARTED}"
        if target.list_names(directory):
            continue
        try:
            target.create_file(probe, job.encode())
        except AlreadyExists:
            continue
        if target.read_file(probe, len(job.encode())) != job.encode():
            raise NotApplied(f"what was written to {probe!r} reads back as something else", path=probe)
        return directory
    raise NotApplied(
        f"{MAX_NAMES} names for a savepoint of job {job!r} were all taken",
        hint="Look what else writes to this directory, or choose another one, as file:///data/savepoints.",
    )


def complete_savepoint(target: MetadataStore, directory: str, metadata: SavepointMetadata) -> None:
    """Complete a reserved savepoint: create its ``_metadata``.

    Atomicity: before this it is none, afterwards it is whole. Durability: it survives power loss when this returns.

    Raises:
        AlreadyExists: It is complete already.
        UnencodableState: ``read_savepoint`` would refuse it; nothing was created.
    """
    path = f"{directory}/{_METADATA}"
    data = encode_document(SCHEMA, metadata)
    try:
        decode_document(SCHEMA, SavepointMetadata, data, path)
    except SnapshotError as error:
        raise unreadable(f"savepoint {directory!r}", error) from error
    target.create_file(path, data)
    with suppress(StoreError):
        target.delete_file(f"{directory}/{_STARTED}")


def is_savepoint_name(directory: str) -> bool:
    """Whether a directory is called as savepoints are."""
    return bool(_NAME.fullmatch(directory))


def is_complete(target: MetadataStore, directory: str) -> bool:
    """Whether there is a complete savepoint of this name."""
    return target.file_exists(f"{directory}/{_METADATA}")


def read_savepoint(target: MetadataStore, directory: str) -> SavepointMetadata:
    """Read a savepoint's metadata.

    Raises:
        NotFound: There is no complete savepoint of this name.
        SnapshotCorrupt: It cannot be read.
        SnapshotVersionError: A newer partfile wrote it.
    """
    path = f"{directory}/{_METADATA}"
    try:
        data = read_document(target, path)
    except NotFound as error:
        raise NotFound(
            f"{directory!r} in {target.base!r} is not a savepoint: it has no {_METADATA}",
            hint=(
                "Name the directory of a savepoint or its _metadata. See which there are: partfile savepoint list DIR"
            ),
            path=path,
        ) from error
    except NotApplied as error:
        if not target.file_exists(directory):
            raise
        raise NotFound(
            f"{directory!r} in {target.base!r} is not a savepoint: it is a file",
            hint=(
                "Name the directory of a savepoint or its _metadata. See which there are: partfile savepoint list DIR"
            ),
            path=directory,
        ) from error
    return decode_document(SCHEMA, SavepointMetadata, data, f"{target.base}/{path}")


def savepoints_in(target: MetadataStore) -> list[FoundSavepoint]:
    """Every savepoint in a directory by name, those that are unfinished or damaged included."""
    found = []
    for directory in sorted(name for name in target.list_names("") if _NAME.fullmatch(name)):
        try:
            found.append(FoundSavepoint(directory, read_savepoint(target, directory), ""))
        except NotFound:
            found.append(FoundSavepoint(directory, None, "it was never finished, or is being disposed of"))
        except (SnapshotError, NotApplied) as error:
            # What is no directory, or may not be read, is no reason to hide the others.
            found.append(FoundSavepoint(directory, None, error.message))
    return found


def is_file_of_savepoint(name: str) -> bool:
    """Whether a file in the directory of a savepoint is called as its own are; others are the user's."""
    return name in {_METADATA, _STARTED} or documents.is_state_file(name) or documents.is_temporary(name)


def delete_savepoint(target: MetadataStore, directory: str) -> None:
    """Delete a savepoint, or what is left of an unfinished one: its metadata first, then its data, then the directory.

    Files of others stay, and the directory with them. Idempotent. A crash on the way leaves something that is no
    savepoint any more and can be disposed of again.

    Raises:
        ConfigError: It is neither a savepoint nor called like one; nothing was deleted.
    """
    if not _NAME.fullmatch(directory) and ("/" in directory or not _reads(target, directory)):
        raise ConfigError(
            f"{directory!r} is not a savepoint; nothing was deleted",
            hint=(
                "Savepoints are directories with a _metadata of theirs, or called savepoint-JOB-RANDOM. See which "
                "there are: partfile savepoint list DIR"
            ),
            path=directory,
        )
    target.delete_file(f"{directory}/{_METADATA}")
    names = target.list_names(directory)
    if all(map(is_file_of_savepoint, names)):
        target.delete_directory(directory)
        return
    for name in filter(is_file_of_savepoint, names):
        target.delete_file(f"{directory}/{name}")


def _reads(target: MetadataStore, directory: str) -> bool:
    try:
        read_savepoint(target, directory)
    except (ConfigError, NotFound, SnapshotError):
        return False
    return True


def list_savepoints(
    directory: str | os.PathLike[str], storage_options: Mapping[str, object] | None = None
) -> list[FoundSavepoint]:
    """Every savepoint in a directory, by name; of those that are unfinished or damaged the problem is told.

    Raises:
        StoreError: The directory is not there, or cannot be read.
    """
    with open_store(str(directory), storage_options, create_base=False) as store:
        return savepoints_in(store)


def show_savepoint(
    location: str | os.PathLike[str], storage_options: Mapping[str, object] | None = None
) -> SavepointMetadata:
    """The metadata of a savepoint: job, checkpoint, time, operators.

    Args:
        location: Its directory or the ``_metadata`` in it.
        storage_options: What the store's client needs.

    Raises:
        NotFound: There is no complete savepoint.
        SnapshotCorrupt: It cannot be read.
    """
    pointer = pointer_to(str(location))
    with open_store(pointer.parent, storage_options, create_base=False) as store:
        return read_savepoint(store, pointer.directory)


def dispose_savepoint(location: str | os.PathLike[str], storage_options: Mapping[str, object] | None = None) -> None:
    """Delete a savepoint, or what a crash left of one. Idempotent.

    Raises:
        ConfigError: It is neither a savepoint nor called like one; nothing was deleted.
    """
    pointer = pointer_to(str(location))
    with open_store(pointer.parent, storage_options, create_base=False) as store:
        delete_savepoint(store, pointer.directory)
