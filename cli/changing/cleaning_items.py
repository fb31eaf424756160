"""What ``clean`` may take away and what it prints of it."""

from __future__ import annotations

from typing import Any, Literal

from partfile.cli.changing.failed_jobs import FailedJob
from partfile.cli.changing.plans import Plan
from partfile.cli.inspection.document import Json

ItemKind = Literal[
    "orphan", "temporary", "upload", "side object", "claim", "state file", "stray checkpoint", "old checkpoint"
]
Side = Literal["base", "checkpoints"]
Action = Literal["quarantine", "delete", "leave"]

MEANING: dict[ItemKind, str] = {
    "orphan": "a staged file that no retained checkpoint names",
    "temporary": "a file that somebody was about to give its name",
    "upload": "an upload of a part that no retained checkpoint names",
    "side object": "bytes of a part that no retained checkpoint names",
    "claim": "left by a part that no retained checkpoint names",
    "state file": "state that no checkpoint names",
    "stray checkpoint": "a checkpoint that never counted",
    "old checkpoint": "a checkpoint beyond those to retain",
}


class CleaningOptions(Json):
    """What a cleaning may be told."""

    older_than_s: float = 86_400
    """Nothing younger is touched, in seconds by the store's clock."""
    delete: bool = False
    """Delete instead of moving to the quarantine."""
    retain: int | None = None
    """Checkpoints with state to keep of each sink; null deletes none that counts."""


class CleaningItem(Json):
    """One thing that nobody needs."""

    kind: ItemKind
    """What it is."""
    side: Side
    """Whether the path is relative to the base, or to the directory of checkpoints."""
    path: str
    """The file or object; of an upload the file that it would become."""
    job: str | None
    """Whose it was, where that is known."""
    size: int | None
    """In bytes; null where the store does not say."""
    modified_at_ms: int
    """When it was last changed, by the store's clock, in milliseconds since the epoch."""
    upload: str | None = None
    """Id of the upload, if it is one."""
    action: Action
    """leave: this store can only delete, and that was not asked for."""


class CleanedChain(Json):
    """A job that is taken over, and the checkpoint by which its files were judged."""

    job: str
    """The uid, or ``uid~n`` for writer n."""
    checkpoint_id: int
    """The newest checkpoint with state."""
    nonce: str
    """What tells that checkpoint from any other of its id."""


class DoubtfulCheckpoint(Json):
    """A checkpoint that is left: one between it and the newest is missing, so nobody can tell whether it counted."""

    job: str
    """The uid, or ``uid~n`` for writer n."""
    checkpoint_id: int
    """Its id."""


class CleaningPlan(Plan):
    """What ``clean`` does."""

    base: str = ""
    """The base that was meant, with links resolved: a copy of it has plans of its own."""
    options: CleaningOptions
    """What was told."""
    chains: tuple[CleanedChain, ...]
    """The sinks that are taken over, which are those that have something to be taken away; no other is touched."""
    items: tuple[CleaningItem, ...]
    """What nobody needs, by kind."""
    doubtful: tuple[DoubtfulCheckpoint, ...] = ()
    """Checkpoints that are left, and that somebody has to look at."""
    young: int = 0
    """Orphans that are left because they are younger than was told."""
    unreadable: tuple[str, ...] = ()
    """Directories that this user may not read: nothing in them was looked at."""
    failed: tuple[FailedJob, ...] = ()
    """Sinks of which nobody knows what their checkpoints name; nothing of theirs is touched."""

    @property
    def to_do(self) -> tuple[CleaningItem, ...]:
        """The items that are not left where they are."""
        return tuple(item for item in self.items if item.action != "leave")

    def decisions(self) -> dict[str, Any]:
        """What is done, and by which checkpoints; not what is left where it is."""
        chains = [chain.model_dump(mode="json") for chain in self.chains]
        to_do = [item.model_dump(mode="json") for item in self.to_do]
        return {"base": self.base, "options": self.options.model_dump(mode="json"), "chains": chains, "to_do": to_do}
