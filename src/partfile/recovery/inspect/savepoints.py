"""The savepoints in a directory and what one holds, as ``partfile savepoint`` shows them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from partfile.errors import NotApplied, SnapshotError, SnapshotVersionError
from partfile.recovery.documents import Json
from partfile.sink import plan
from partfile.sink.clock import system_clock_ms
from partfile.sink.restore import check_runs_are_there
from partfile.sink.settings import savepoint_list_command
from partfile.sink.states import OPERATOR
from partfile.snapshot.documents import FileHandle, handles_of
from partfile.snapshot.savepoints import read_savepoint, savepoints_in
from partfile.snapshot.storage import CheckpointStorage, pointer_to
from partfile.stores.registry import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from partfile.sink.plan import SinkSnapshot
    from partfile.sink.states import RunFile, SeenKeys
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
    """Why it cannot be restored; empty if nothing is known. Only ``savepoint show`` reads its runs of keys."""


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
    keys: int | None
    """Keys of rows in it; 0 where the sink does not deduplicate, null where the state cannot be read."""
    problem: str
    """Why it cannot be restored; empty if it can."""
    hint: str
    """Advice for the operator; empty without a problem."""


def savepoints_at(
    directory: str, storage_options: Mapping[str, object], uid: str | None = None
) -> list[SavepointEntry]:
    """The savepoints in a directory, by name.

    Args:
        directory: Where they are made.
        storage_options: What its store is opened with.
        uid: Only those of this sink and its writers, or of one writer, and those that do not say; None is all.
    """

    def is_asked_for(found: FoundSavepoint) -> bool:
        job = found.metadata.job if found.metadata else None
        return uid is None or job is None or uid in {job, job.partition("~")[0]}

    with open_store(directory, storage_options, create_base=False) as store:
        return [_entry(store, directory, found) for found in savepoints_in(store) if is_asked_for(found)]


def savepoint_report(location: str, storage_options: Mapping[str, object]) -> SavepointReport:
    """What a savepoint holds; reads all of it that a restore needs.

    Raises:
        NotFound: There is no complete savepoint.
        SnapshotCorrupt: Its metadata cannot be read.
        StoreError: The store cannot be read.
    """
    pointer = pointer_to(location)
    with open_store(pointer.parent, storage_options, create_base=False) as store:
        held = read_savepoint(store, pointer.directory)
        state, problem = _looked_at(held, CheckpointStorage(store, pointer.directory), _check_runs)
        seen = None if state is None else state.position.seen_keys
    return SavepointReport(
        location=location,
        savepoint_id=held.savepoint_id,
        job=held.job,
        checkpoint_id=held.taken_by.checkpoint_id,
        time_ms=held.time_ms,
        writer=held.writer,
        ends_the_job=held.ends_the_job,
        operators=tuple(sorted(held.operators)),
        state_bytes=sum(handle.size_bytes for handle in [*handles_of(held.operators), *_files_of(seen)]),
        keys=None if state is None and problem is not None else sum(run.keys for run in _runs_of(seen)),
        problem="" if problem is None else problem.message,
        hint="" if problem is None else _hint(problem, savepoint_list_command(pointer.parent, storage_options)),
    )


def _runs_of(seen: SeenKeys | None) -> tuple[RunFile, ...]:
    return () if seen is None else seen.runs


def _files_of(seen: SeenKeys | None) -> list[FileHandle]:
    return [run.handle for run in _runs_of(seen) if isinstance(run.handle, FileHandle)]


def _hint(problem: SnapshotError, list_command: str) -> str:
    if isinstance(problem, SnapshotVersionError):
        return problem.hint
    return (
        "Put the file back from a copy of the savepoint: until then no sink can begin with it. See which others there "
        f"are: {list_command}"
    )


def _entry(store: Store, directory: str, found: FoundSavepoint) -> SavepointEntry:
    held, problem = found.metadata, found.problem
    if held is not None:
        problem = _problem_of(store, held, CheckpointStorage(store, found.directory))
    return SavepointEntry(
        directory=found.directory,
        location=f"{directory.rstrip('/')}/{found.directory}",
        job=held.job if held else None,
        checkpoint_id=held.taken_by.checkpoint_id if held else None,
        time_ms=held.time_ms if held else None,
        ends_the_job=held.ends_the_job if held else None,
        problem=problem,
    )


def _problem_of(store: Store, held: SavepointMetadata, storage: CheckpointStorage) -> str:
    try:
        _, problem = _looked_at(held, storage, partial(check_runs_are_there, store))
    except NotApplied as error:
        # What may not be read is no reason to hide the others.
        return error.message
    return "" if problem is None else problem.message


def _looked_at(
    held: SavepointMetadata,
    storage: CheckpointStorage,
    check: Callable[[CheckpointStorage, SeenKeys | None, int], None],
) -> tuple[SinkSnapshot | None, SnapshotError | None]:
    """The state of a sink that a savepoint holds, None if there is none; and why it cannot be restored, None if it can.

    The state is None as well if it cannot be read.
    """
    state = None
    try:
        if OPERATOR not in held.operators:
            return None, None
        state = plan.restored_state(held.operators, storage.read_state)
        check(storage, state.position.seen_keys, system_clock_ms())
    except SnapshotError as error:
        return state, error
    return state, None


def _check_runs(storage: CheckpointStorage, seen: SeenKeys | None, now_ms: int) -> None:
    from partfile.sink.deduplicate import check_run  # noqa: PLC0415 - few savepoints have keys, and numpy takes long.

    for run in plan.needed_runs(seen, None if seen is None else seen.ttl_ms, now_ms):
        check_run(storage, run)
