"""What a checkpoint persists: handles of operator state, and the metadata of one link of the chain."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, field_validator, model_serializer, model_validator

from partfile.filesystems.port import Persisted
from partfile.filesystems.relative_paths import check_relative_path
from partfile.snapshot import layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LinkKind = Literal["checkpoint", "fence", "tombstone"]
"""checkpoint: holds state. fence: holds the restored state under a new generation. tombstone: closes an aborted id."""

CheckpointId = Annotated[int, Field(ge=1, le=layout.MAX_CHECKPOINT_ID)]


class InlineHandle(Persisted):
    """State that is small enough to travel inside the acknowledgement and the metadata.

    Its JSON form holds ``text`` where the bytes are UTF-8, so that a person can read it, else ``base64``.
    """

    kind: Literal["inline"] = "inline"
    data: bytes

    @property
    def size_bytes(self) -> int:
        """Length of the state."""
        return len(self.data)

    @model_validator(mode="before")
    @classmethod
    def _from_json_form(cls, value: object) -> object:
        if not isinstance(value, dict) or "data" in value:
            return value
        fields = dict(value)
        text, base64 = fields.pop("text", None), fields.pop("base64", None)
        if isinstance(text, str) and base64 is None:
            return {**fields, "data": text.encode()}
        if isinstance(base64, str) and text is None:
            return {**fields, "data": b64decode(base64, validate=True)}
        raise ValueError("inline state has either text or base64")

    @model_serializer
    def _json_form(self) -> dict[str, str]:
        try:
            return {"kind": self.kind, "text": self.data.decode()}
        except UnicodeDecodeError:
            return {"kind": self.kind, "base64": b64encode(self.data).decode()}


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
    handle: StateHandle | None
    """None if the subtask has no state."""


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
    chain_id: str
    """Drawn for the chain's first link and carried by all: a link that was copied here from elsewhere has another."""
    generation: Annotated[int, Field(ge=1)]
    """Raised by every start; the newest link's generation is the one that may go on."""
    nonce: str
    """Drawn by the coordinator for this link; how it recognises its own."""
    predecessor: LinkRef | None
    ids_ahead: int = 0
    """So many ids after its own its coordinator may trigger before its next link; who succeeds it closes them. 0 in
    format version 1, which had no such promise."""
    time_ms: int
    """The coordinator's batch time, in milliseconds since the epoch; for people, never for decisions."""
    writer: str
    """Version of partfile that wrote it."""
    operators: dict[str, OperatorState] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _reserves_few_ids(self) -> Self:
        if not 0 <= self.ids_ahead <= layout.MAX_IDS_AHEAD:
            raise ValueError(f"it reserves {self.ids_ahead} ids")
        return self

    @model_validator(mode="after")
    def _names_only_what_it_keeps(self) -> Self:
        own = (f"{layout.checkpoint_directory(self.checkpoint_id)}/", f"{layout.SHARED}/", f"{layout.TASK_OWNED}/")
        for handle in handles_of(self.operators):
            if isinstance(handle, FileHandle) and not handle.path.startswith(own):
                raise ValueError(f"it names {handle.path}, which may be deleted before it (S11)")
        return self

    @property
    def ref(self) -> LinkRef:
        """This link as a reference."""
        return LinkRef(checkpoint_id=self.checkpoint_id, nonce=self.nonce)

    def handles(self) -> list[InlineHandle | FileHandle]:
        """Every handle of state in it."""
        return list(handles_of(self.operators))

    @property
    def reserved_through(self) -> int:
        """The last id that its coordinator may have triggered."""
        return self.checkpoint_id + self.ids_ahead

    @property
    def holds_state(self) -> bool:
        """Whether a restore can begin here."""
        return self.kind != "tombstone"


def handles_of(operators: Mapping[str, OperatorState]) -> Iterator[InlineHandle | FileHandle]:
    """Every handle of the operators' states."""
    for operator in operators.values():
        for handle in (*(one.handle for one in operator.subtasks), operator.coordinator):
            if handle is not None:
                yield handle
