"""The savepoints in a directory and what one holds, as ``partfile savepoint`` shows them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from partfile.errors import SnapshotCorrupt, SnapshotError
from partfile.recovery.documents import Json
from partfile.sink import plan
from partfile.snapshot.documents import FileHandle, handles_of
from partfile.snapshot.savepoints import read_savepoint, savepoints_in
from partfile.snapshot.storage import CheckpointStorage, pointer_to
from partfile.stores.registry import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from partfile.sink.states import RunFile
    from partfile.snapshot.savepoints import FoundSavepoint, SavepointMetadata
    from partfile.stores.base import Store


class SavepointEntry(Json):
    """One savepoint of a directory."""

    directory: str
    """Its name below the directory that was listed."""
    location: str
    """The location that ``restore_from`` takes."""
    job: str | None
    """The sink, or the writer ``uid~n``, it was taken of; null if it cannot be read."""
    checkpoint_id: int | None
    """The checkpoint it was taken by."""
    time_ms: int | None
    """When it was taken, in milliseconds since 1970."""
    ends_the_job: bool | None
    """Whether the sink was stopped with it."""
    problem: str
    """Why it cannot be restored; empty if each of its files is there. ``savepoint show`` reads all of them."""


class SavepointList(Json):
    """The output of ``savepoint list --json``."""

    schema_name: Literal["partfile.savepoint-list"] = Field("partfile.savepoint-list", alias="schema")
    schema_version: Literal[1] = 1
    directory: str
    """As it was given."""
    savepoints: tuple[SavepointEntry, ...]
    """By name."""


class SavepointReport(Json):
    """The output of ``savepoint show --json``."""

    schema_name: Literal["partfile.savepoint"] = Field("partfile.savepoint", alias="schema")
    schema_version: Literal[1] = 1
    location: str
    """As it was given."""
    savepoint_id: str
    """The id by which a sink recognises it, wherever it lies."""
    job: str
    """The sink, or the writer ``uid~n``, it was taken of."""
    checkpoint_id: int
    """The checkpoint it was taken by."""
    time_ms: int
    """When it was taken, in milliseconds since 1970."""
    writer: str
    """Version of partfile that wrote it."""
    ends_the_job: bool
    """Whether the sink was stopped with it."""
    operators: tuple[str, ...]
    """Names of the operators whose state it holds."""
    state_bytes: int
    """Of all of it."""
    keys: int
    """Keys of rows in it, where the sink deduplicates; else 0."""
    problem: str
    """Why it cannot be restored; empty if it can."""


def savepoints_at(
    directory: str, storage_options: Mapping[str, object], uid: str | None = None
) -> list[SavepointEntry]:
    """The savepoints in a directory, by name.

    Args:
        directory: Where they are made.
        storage_options: What its store is opened with.
        uid: Only those of this sink and its writers, or of one writer, and those that do not say; None is all.
    """
    with open_store(directory, storage_options, create_base=False) as store:
        found = [_entry(store, directory, one) for one in savepoints_in(store)]
    return [one for one in found if uid is None or one.job is None or uid in {one.job, one.job.partition("~")[0]}]


def savepoint_report(location: str, storage_options: Mapping[str, object]) -> SavepointReport:
    """What a savepoint holds; reads all of it.

    Raises:
        NotFound: There is no complete savepoint.
        SnapshotCorrupt: Its metadata cannot be read.
    """
    pointer = pointer_to(location)
    with open_store(pointer.parent, storage_options, create_base=False) as store:
        held = read_savepoint(store, pointer.directory)
        keys, problem = _looked_at(held, CheckpointStorage(store, pointer.directory), _check_run)
    return SavepointReport(
        location=location,
        savepoint_id=held.savepoint_id,
        job=held.job,
        checkpoint_id=held.taken_by.checkpoint_id,
        time_ms=held.time_ms,
        writer=held.writer,
        ends_the_job=held.ends_the_job,
        operators=tuple(sorted(held.operators)),
        state_bytes=sum(handle.size_bytes for handle in handles_of(held.operators)),
        keys=keys,
        problem=problem,
    )


def _entry(store: Store, directory: str, found: FoundSavepoint) -> SavepointEntry:
    held, problem = found.metadata, found.problem
    if held is not None:
        _, problem = _looked_at(held, CheckpointStorage(store, found.directory), partial(_check_is_there, store))
    return SavepointEntry(
        directory=found.directory,
        location=f"{directory.rstrip('/')}/{found.directory}",
        job=held.job if held else None,
        checkpoint_id=held.taken_by.checkpoint_id if held else None,
        time_ms=held.time_ms if held else None,
        ends_the_job=held.ends_the_job if held else None,
        problem=problem,
    )


def _looked_at(
    held: SavepointMetadata, storage: CheckpointStorage, check: Callable[[CheckpointStorage, RunFile], None]
) -> tuple[int, str]:
    """How many keys a savepoint holds, and why it cannot be restored; empty if it can."""
    keys = 0
    try:
        seen = plan.restored_state(held.operators, storage.read_state).position.seen_keys
        for run in () if seen is None else seen.runs:
            keys += run.keys
            check(storage, run)
    except SnapshotError as error:
        return keys, error.message
    return keys, ""


def _check_is_there(store: Store, storage: CheckpointStorage, run: RunFile) -> None:
    if not isinstance(run.handle, FileHandle):
        return
    found, shown = store.look_at(storage.path(run.handle.path)), storage.shown(run.handle)
    if found is None or found.size != run.handle.size_bytes:
        what = "is missing" if found is None else "is not the one the savepoint names"
        raise SnapshotCorrupt(f"state file {shown} {what}", path=shown)


def _check_run(storage: CheckpointStorage, run: RunFile) -> None:
    from partfile.sink.deduplicate import check_run  # noqa: PLC0415 - few savepoints have keys, and numpy takes long.

    check_run(storage, run)
