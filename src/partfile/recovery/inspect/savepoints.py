"""The savepoints in a directory and what one holds, as ``partfile savepoint`` shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from partfile.recovery.documents import Json
from partfile.snapshot.documents import handles_of
from partfile.snapshot.savepoints import list_savepoints, show_savepoint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from partfile.snapshot.savepoints import FoundSavepoint


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
    """Why it cannot be restored; empty if it can."""


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


def savepoints_at(
    directory: str, storage_options: Mapping[str, object], uid: str | None = None
) -> list[SavepointEntry]:
    """The savepoints in a directory, by name.

    Args:
        directory: Where they are made.
        storage_options: What its store is opened with.
        uid: Only those of this sink and its writers, or of one writer, and those that do not say; None is all.
    """
    found = [_entry(directory, one) for one in list_savepoints(directory, storage_options)]
    return [one for one in found if uid is None or one.job is None or uid in {one.job, one.job.partition("~")[0]}]


def savepoint_report(location: str, storage_options: Mapping[str, object]) -> SavepointReport:
    """The metadata of a savepoint.

    Raises:
        NotFound: There is no complete savepoint.
        SnapshotCorrupt: It cannot be read.
    """
    held = show_savepoint(location, storage_options)
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
    )


def _entry(directory: str, found: FoundSavepoint) -> SavepointEntry:
    held = found.metadata
    return SavepointEntry(
        directory=found.directory,
        location=f"{directory.rstrip('/')}/{found.directory}",
        job=held.job if held else None,
        checkpoint_id=held.taken_by.checkpoint_id if held else None,
        time_ms=held.time_ms if held else None,
        ends_the_job=held.ends_the_job if held else None,
        problem=found.problem,
    )
