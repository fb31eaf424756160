"""What the tests of the checkpoint coordinator's state machine share: a machine that is told events one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from partfile.snapshot.documents import FileHandle
from partfile.snapshot.events import (
    Acknowledged,
    CoordinatorRules,
    DeletionFinished,
    IdClosed,
    LinkCreated,
    Requested,
    RequestKind,
    RequestLimits,
    SetTimer,
    SubtasksKnown,
    Triggered,
)
from partfile.snapshot.machine import begin, step

if TYPE_CHECKING:
    from partfile.snapshot.events import Action, Event

USER, PERIODIC, SAVEPOINT = RequestKind.USER, RequestKind.PERIODIC, RequestKind.SAVEPOINT
FENCE_ID = 1
_Kind = TypeVar("_Kind")


def handle(checkpoint_id: int, subtask: int) -> FileHandle:
    """The state of one subtask, told apart by its path."""
    return FileHandle(path=f"chk-{checkpoint_id}/{subtask}.state", size_bytes=1, crc32=0)


def rules(max_concurrent: int = 1, min_pause_ms: int = 0, **others: Any) -> CoordinatorRules:
    """Rules with two limits by name."""
    return CoordinatorRules(limits=RequestLimits(max_concurrent, min_pause_ms), **others)


class Machine:
    """A state machine after its start, with a clock that stands still until it is moved. Timers are left aside."""

    def __init__(self, chosen: CoordinatorRules | None = None) -> None:
        self.state, self.first_actions = begin(FENCE_ID, chosen or rules(max_concurrent=9))
        self.now_ms = 1_000_000
        self.state = step(self.state, DeletionFinished(), self.now_ms)[0]
        self.actions: tuple[Action, ...] = ()

    def tell(self, event: Event) -> list[Action]:
        """What is to be done about one event."""
        self.state, self.actions = step(self.state, event, self.now_ms)
        return [action for action in self.actions if not isinstance(action, SetTimer)]

    def request(self, kind: RequestKind = USER, **others: Any) -> int:
        """Ask for a checkpoint that is triggered at once; return its id."""
        checkpoint_id = self.state.next_id
        self.tell(Requested(kind, f"s{checkpoint_id}", **others))
        assert self.state.triggering == checkpoint_id
        self.tell(Triggered(checkpoint_id))
        return checkpoint_id

    def expect(self, checkpoint_id: int, subtasks: int = 1) -> list[Action]:
        """Tell the number of subtasks."""
        return self.tell(SubtasksKnown(checkpoint_id, subtasks))

    def acknowledge(self, checkpoint_id: int, subtask: int = 0, submission: str | None = None) -> list[Action]:
        """One subtask acknowledges."""
        told = submission or f"s{checkpoint_id}"
        return self.tell(Acknowledged(checkpoint_id, subtask, told, handle(checkpoint_id, subtask)))

    def fill(self, checkpoint_id: int) -> list[Action]:
        """The only subtask acknowledges."""
        self.expect(checkpoint_id)
        return self.acknowledge(checkpoint_id)

    def complete(self, checkpoint_id: int) -> list[Action]:
        """The only subtask acknowledges and the link is created."""
        self.fill(checkpoint_id)
        while self.state.linking not in {None, checkpoint_id}:
            assert self.state.linking is not None
            self.tell(IdClosed(self.state.linking))
        return self.tell(LinkCreated(checkpoint_id))


def only(kind: type[_Kind], actions: list[Action]) -> list[_Kind]:
    """The actions of one kind, in order."""
    return [action for action in actions if isinstance(action, kind)]
