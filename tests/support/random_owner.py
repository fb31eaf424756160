"""A coordinator's owner for random schedules: it checks what it is told, and can have its next link fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkpoint_owner import Owner

from partfile.snapshot.events import CoordinatorRules, RequestLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from partfile.errors import PartfileError
    from partfile.snapshot.documents import OperatorState
    from partfile.snapshot.events import PendingCheckpoint
    from partfile.testing.faults import Call

RULES = CoordinatorRules(
    limits=RequestLimits(max_concurrent=3, min_pause_ms=50), timeout_ms=400, interval_ms=200, tolerable_failures=10**6
)


class NextLinkFails:
    """Fails the next creation of a link, if told to."""

    def __init__(self) -> None:
        self.fault: tuple[type[PartfileError], bool] | None = None
        self.passed = 0
        """Links that are created before the one that fails."""

    def around(self, call: Call, proceed: Callable[[], object]) -> object:
        """Fail it, done or not."""
        if self.fault is None or call.name != "create_file" or not str(call.arguments[0]).endswith("_metadata"):
            return proceed()
        if self.passed:
            self.passed -= 1
            return proceed()
        (kind, applied), self.fault = self.fault, None
        if applied:
            proceed()
        raise kind("deliberate")


class RandomOwner(Owner):
    """An owner whose notifications are checked when they are told."""

    def __init__(self, base: Path, ids: set[int]) -> None:
        self.faults = NextLinkFails()
        super().__init__(base, self.faults, rules=RULES, draw=lambda least, _most: least)
        self.ids = ids
        self.believed: dict[int, str] = {}
        """The nonces of the links that this coordinator takes for its own, by id."""
        self.violations: list[str] = []
        """What a hook has seen; raising there would be taken for the hook's own failure."""

    def trigger_tasks(self, pending: PendingCheckpoint) -> None:
        """No coordinator has ever used the id, for a checkpoint or a fence, and it is beyond every link."""
        self.check(pending.checkpoint_id not in self.ids, f"id {pending.checkpoint_id} again")
        self.check(pending.checkpoint_id > self.checkpoints.newest.checkpoint_id, "an id that has a link")
        self.ids.add(pending.checkpoint_id)
        super().trigger_tasks(pending)

    def finalise(self, pending: PendingCheckpoint) -> Mapping[str, OperatorState]:
        """Only of a checkpoint that everybody has acknowledged."""
        self.check(pending.is_acknowledged, "finalised too early")
        return super().finalise(pending)

    def notify_complete(self, checkpoint_id: int) -> None:
        """Its link is there, holds state and is this coordinator's; the notification may get lost."""
        link = self.storage.read_link(checkpoint_id)
        self.check(link is not None and link.holds_state, f"told of {checkpoint_id} without a link")
        self.check(link == self.checkpoints.newest, f"told of {checkpoint_id}, which is not its own")
        self.believed[checkpoint_id] = self.checkpoints.newest.nonce
        super().notify_complete(checkpoint_id)

    def fulfilled(self, pending: PendingCheckpoint) -> None:
        """Its link is there."""
        link = self.storage.read_link(pending.checkpoint_id)
        self.check(link == self.checkpoints.newest, f"fulfilled {pending.checkpoint_id} without a link")
        super().fulfilled(pending)

    def check(self, holds: bool, violation: str) -> None:
        """Note what must not be."""
        if not holds:
            self.violations.append(violation)
