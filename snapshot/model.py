"""What a checkpoint persists: operator state, its handles and the metadata of one link of the chain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, JsonValue, field_validator, model_validator

from partfile.filesystems.port import Persisted, check_relative_path
from partfile.snapshot import layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Mode = Literal["split", "union", "broadcast"]
"""How a state is dealt out at a restore.

split: each element to one subtask, when the parallelism changes. union: all elements to all. broadcast: all subtasks
hold one map, as ``[key, value]`` pairs, and each gets one copy of it.
"""

LinkKind = Literal["checkpoint", "fence", "tombstone"]
"""checkpoint: holds state. fence: holds the restored state under a new generation. tombstone: closes an aborted id."""

CheckpointId = Annotated[int, Field(ge=1)]


class NamedState(Persisted):
    """One state of one subtask: its elements in order, each a JSON value."""

    mode: Mode
    elements: tuple[JsonValue, ...]


States = dict[str, NamedState]


class InlineHandle(Persisted):
    """State that is small enough to travel inside the acknowledgement and the metadata."""

    kind: Literal["inline"] = "inline"
    states: States


class FileHandle(Persisted):
    """State in a file of its own, inside the directory of the checkpoint that names it, or in ``shared/`` (S11)."""

    kind: Literal["file"] = "file"
    path: str
    """Relative to the job's directory, so that the whole tree can be moved."""
    size_bytes: Annotated[int, Field(ge=0)]
    crc32: Annotated[int, Field(ge=0, lt=1 << 32)]

    @field_validator("path")
    @classmethod
    def _path_is_below_the_job(cls, value: str) -> str:
        return check_relative_path(value)


StateHandle = Annotated[InlineHandle | FileHandle, Field(discriminator="kind")]


class SubtaskState(Persisted):
    """What one subtask acknowledged, or what is carried for one that did not run."""

    subtask: Annotated[int, Field(ge=0)]
    handle: StateHandle


class OperatorState(Persisted):
    """The state of one operator: its subtasks' list states and its coordinator's own."""

    parallelism: Annotated[int, Field(ge=0)]
    """Subtasks that took part in the last checkpoint; the elements of all of them are in ``subtasks``."""
    subtasks: tuple[SubtaskState, ...] = ()
    coordinator: StateHandle | None = None


class LinkRef(Persisted):
    """Which link of the chain is meant: its id and the nonce it carries."""

    checkpoint_id: CheckpointId
    nonce: str


class CheckpointMetadata(Persisted):
    """One link of the chain: the content of ``chk-N/_metadata``, whose creation is the commit point (S1)."""

    checkpoint_id: CheckpointId
    kind: LinkKind
    job: str
    """The uid of the job; a link that was moved here from another job is refused."""
    generation: Annotated[int, Field(ge=1)]
    """Raised by every start; the newest link's generation is the one that may go on."""
    nonce: str
    """Drawn by the coordinator for this link; how it recognises its own."""
    predecessor: LinkRef | None
    time_ms: int
    """The coordinator's batch time, in milliseconds since the epoch; for people, never for decisions."""
    writer: str
    """Version of partfile that wrote it."""
    operators: dict[str, OperatorState] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _names_only_what_it_keeps(self) -> Self:
        own = (f"{layout.checkpoint_directory(self.checkpoint_id)}/", f"{layout.SHARED}/", f"{layout.TASK_OWNED}/")
        for handle in file_handles(self.operators):
            if not handle.path.startswith(own):
                raise ValueError(f"it names {handle.path}, which may be deleted before it (S11)")
        return self

    @property
    def ref(self) -> LinkRef:
        """This link as a reference."""
        return LinkRef(checkpoint_id=self.checkpoint_id, nonce=self.nonce)

    @property
    def holds_state(self) -> bool:
        """Whether a restore can begin here."""
        return self.kind != "tombstone"


def file_handles(operators: Mapping[str, OperatorState]) -> Iterator[FileHandle]:
    """Every file that the operators' states are in."""
    for operator in operators.values():
        for handle in (*(one.handle for one in operator.subtasks), operator.coordinator):
            if isinstance(handle, FileHandle):
                yield handle
