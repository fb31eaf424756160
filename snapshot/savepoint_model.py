"""What a savepoint holds: the content of its ``_metadata``, whose creation completes it."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from partfile.filesystems.port import Persisted
from partfile.snapshot.model import FileHandle, LinkRef, OperatorState, handles_of


class SavepointMetadata(Persisted):
    """A snapshot that belongs to the user. Names files of its own directory alone, so it can be moved and copied."""

    savepoint_id: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    """Drawn for this savepoint; how a job recognises the one it was restored from, wherever that lies by then."""
    job: str
    """The uid of the job it was taken of."""
    taken_by: LinkRef
    """The checkpoint that rolled and published everything for it."""
    time_ms: int
    """The coordinator's time, in milliseconds since the epoch; for people."""
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
