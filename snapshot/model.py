"""What a checkpoint persists: operator state, its handles and the metadata of one link of the chain."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue, field_validator

from partfile.filesystems.port import Persisted, check_relative_path

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

    @property
    def ref(self) -> LinkRef:
        """This link as a reference."""
        return LinkRef(checkpoint_id=self.checkpoint_id, nonce=self.nonce)

    @property
    def holds_state(self) -> bool:
        """Whether a restore can begin here."""
        return self.kind != "tombstone"
