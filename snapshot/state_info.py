"""What a snapshot says of each state: name, type, how it is dealt out, and the codec of its elements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from partfile.filesystems.port import Persisted

Mode = Literal["split", "union", "broadcast", "key-groups"]
"""How a state is dealt out at a restore.

split: each element to one subtask, when the parallelism changes. union: all elements to all. broadcast: all subtasks
hold one map, and each gets one copy of it. key-groups: by ranges of key groups.
"""

StateType = Literal["OPERATOR", "BROADCAST", "KEY_VALUE", "PRIORITY_QUEUE"]

MODES_OF_TYPE: dict[StateType, frozenset[Mode]] = {
    "OPERATOR": frozenset({"split", "union"}),
    "BROADCAST": frozenset({"broadcast"}),
    "KEY_VALUE": frozenset({"key-groups"}),
    "PRIORITY_QUEUE": frozenset({"key-groups"}),
}


class CodecInfo(Persisted):
    """Which codec wrote a value."""

    name: Annotated[str, Field(min_length=1, max_length=255)]
    version: Annotated[int, Field(ge=1)]


class StateMetaInfo(Persisted):
    """One state of a snapshot, without its elements. Source: Flink's ``StateMetaInfoSnapshot``, as of 1.20."""

    name: Annotated[str, Field(min_length=1, max_length=255)]
    type: StateType
    mode: Mode
    codecs: dict[str, CodecInfo]
    """By what is encoded: ``element``, or ``key`` and ``value``."""
    options: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _mode_belongs_to_the_type(self) -> Self:
        if self.mode not in MODES_OF_TYPE[self.type]:
            raise ValueError(f"state {self.name!r} of type {self.type} cannot have the mode {self.mode!r}")
        return self


@dataclass(frozen=True, slots=True)
class NamedState:
    """One operator state of one subtask: its elements in order, each as its codec wrote it.

    A broadcast map is a single element, a JSON list of ``[key, value]`` pairs.
    """

    info: StateMetaInfo
    elements: tuple[bytes, ...]

    @property
    def mode(self) -> Mode:
        """How it is dealt out."""
        return self.info.mode


States = dict[str, NamedState]
