"""The coordinator of one job's checkpoints: does what its state machine decides, in one place."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from partfile.filesystems.errors import PartfileError
from partfile.filesystems.tokens import new_token
from partfile.snapshot import events as tells
from partfile.snapshot.chain import Chain
from partfile.snapshot.damage import DamagedEnd
from partfile.snapshot.execution import Execution
from partfile.snapshot.failures import FailureReason
from partfile.snapshot.machine import begin, step

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from partfile.snapshot.actions import Action
    from partfile.snapshot.hooks import CheckpointHooks
    from partfile.snapshot.machine_state import CoordinatorState
    from partfile.snapshot.model import CheckpointMetadata, OperatorState, StateHandle
    from partfile.snapshot.requests import RequestKind
    from partfile.snapshot.settings import CoordinatorSettings
    from partfile.snapshot.storage import CheckpointStorage


class CheckpointCoordinator:
    """Completes the checkpoints of one job.

    Knows which state a link holds, never what it means: its owner does, by the hooks. An owner may drive it step by
    step in its own thread, or from several threads and by a timer that calls ``tick``; one event is taken at a time.
    Once the chain is lost, every call raises the error by which it was lost.

    Args:
        storage: The job's checkpoints.
        hooks: What the owner does.
        clock: The coordinator's time, in milliseconds since the epoch.
        settings: How it is set up.
    """

    def __init__(
        self,
        storage: CheckpointStorage,
        hooks: CheckpointHooks,
        clock: Callable[[], int],
        settings: CoordinatorSettings,
    ) -> None:
        self._clock = clock
        self._settings = settings
        self._chain = Chain(storage, retained=settings.retained)
        self._execution = Execution(storage, self._chain, hooks, settings, self._report)
        self._state: CoordinatorState | None = None
        self._attempted: set[str] = set()
        self._events: deque[tells.Event] = deque()
        self._is_working = False
        self._lock = threading.RLock()

    @property
    def newest(self) -> CheckpointMetadata:
        """The newest link, created by this coordinator."""
        return self._chain.newest

    @property
    def attempted_fences(self) -> frozenset[str]:
        """Nonces of the fences that ``start`` has tried to create, whether one was made or not."""
        return frozenset(self._attempted)

    @property
    def completed_id(self) -> int:
        """Id of the newest completed checkpoint; an aborted id's tombstone is none."""
        return self._begun().completed_id

    @property
    def oldest_id(self) -> int:
        """Id of the oldest link that is still there, retained or about to be deleted."""
        return self._chain.oldest_id

    @property
    def state(self) -> CoordinatorState:
        """What it knows, as of the last event."""
        return self._begun()

    def look(self) -> CheckpointMetadata | None:
        """The newest link that holds state, without changing anything."""
        return self._chain.look()[1]

    def start(
        self,
        restore: Callable[[CheckpointMetadata | None, int], Mapping[str, OperatorState]],
        go_back: Callable[[DamagedEnd, int], Mapping[str, OperatorState]] | None = None,
    ) -> CheckpointMetadata:
        """Begin a generation: create the fence link, and only then own the job (S7).

        Then the tasks are told once more that the restored state is complete, and older checkpoints are deleted.

        Args:
            restore: From the newest link that holds state (None for a fresh job) and the id of the link to come,
                makes the operator states to begin with. It is called again if another coordinator was faster, and
                may raise to refuse; then nothing has been created.
            go_back: Makes them from an older checkpoint that a user chose, where the newest state cannot be read, or
                raises; None refuses (S12).

        Raises:
            SnapshotCorrupt: The newest state cannot be read; nothing has been created.
        """

        def successor(restored: CheckpointMetadata | DamagedEnd | None, checkpoint_id: int) -> CheckpointMetadata:
            generation = restored.generation + 1 if restored else 1
            if not isinstance(restored, DamagedEnd):
                operators = restore(restored, checkpoint_id)
            elif go_back is not None:
                operators = go_back(restored, checkpoint_id)
            else:
                raise restored.error
            fence = self._execution.link("fence", checkpoint_id, generation, self._clock(), operators)
            self._attempted.add(fence.nonce)
            return fence

        with self._lock:
            fence = self._chain.start(successor)
            self._execution.lost = None
            self._state, actions = begin(fence.checkpoint_id, self._settings.rules)
            self._work(actions)
            return fence

    def request(self, kind: RequestKind, *, is_forced: bool = False, stops_job: bool = False) -> int:
        """Ask for a checkpoint; return the number by which the hooks tell what becomes of it.

        Args:
            kind: Who asks.
            is_forced: Whether it may exceed the number of concurrent checkpoints and the pause between them.
            stops_job: Whether nothing more is written after it.
        """
        with self._lock:
            number = self._begun().next_request
            self._tell(tells.Requested(kind, new_token(), is_forced=is_forced, stops_job=stops_job))
            return number

    def start_periodic(self) -> None:
        """Take checkpoints at intervals; the first comes at random between the minimum pause and the interval."""
        rules = self._settings.rules
        self._tell(tells.PeriodicStarted(self._settings.draw(rules.min_pause_ms, rules.period_ms)))

    def stop_periodic(self) -> None:
        """Stop that, and give up what is under way or waits."""
        self._tell(tells.PeriodicStopped())

    def tick(self) -> int | None:
        """Do what time asks for; return when it asks next, in milliseconds since the epoch, or None."""
        self._tell(tells.Tick(new_token()))
        return self._begun().due_ms()

    def know_subtasks(self, checkpoint_id: int, subtasks: int) -> None:
        """Tell how many subtasks a checkpoint has, 0 to n-1; it cannot be complete before."""
        self._tell(tells.SubtasksKnown(checkpoint_id, subtasks))

    def acknowledge(self, checkpoint_id: int, subtask: int, submission: str, handle: StateHandle | None) -> None:
        """Take one subtask's state. Late, unknown and duplicate ones do no harm."""
        self._tell(tells.Acknowledged(checkpoint_id, subtask, submission, handle))

    def decline(
        self, checkpoint_id: int, subtask: int, submission: str, reason: FailureReason = FailureReason.DECLINED
    ) -> None:
        """A subtask could not take its part."""
        self._tell(tells.Declined(checkpoint_id, subtask, submission, reason))

    def task_failed(self, subtask: int) -> None:
        """A subtask died: what it has not acknowledged is aborted."""
        self._tell(tells.TaskFailed(subtask))

    def abort(self, checkpoint_id: int, reason: FailureReason = FailureReason.TASK_FAILED) -> None:
        """Give a checkpoint up and close its id with a tombstone, so that it is never used again."""
        self._tell(tells.GivenUp(checkpoint_id, reason))

    def shut_down(self) -> None:
        """End: everything queued or pending fails, and nothing more is begun."""
        with self._lock:
            if self._state is not None and self._state.stopped is None:
                self._tell(tells.Shutdown())

    def _begun(self) -> CoordinatorState:
        if self._state is None:
            raise PartfileError("this coordinator holds no link; start it first")
        return self._state

    def _tell(self, event: tells.Event) -> None:
        """Take an event, and all that follow from it.

        Raises:
            Fenced: Another coordinator has taken over.
            OutcomeUnknown: A checkpoint may be complete; begin a new generation to find out.
        """
        with self._lock:
            self._begun()
            self._report(event)
            if self._execution.lost is not None:
                raise self._execution.lost

    def _report(self, event: tells.Event) -> None:
        """Take an event; one that comes of an action or a hook waits for those before it."""
        with self._lock:
            self._events.append(event)
            if not self._is_working:
                self._work(())

    def _work(self, actions: tuple[Action, ...]) -> None:
        self._is_working = True
        try:
            self._do_all(actions)
            while self._events:
                self._state, actions = step(self._begun(), self._events.popleft(), self._clock())
                self._do_all(actions)
        finally:
            self._is_working = False
            self._events.clear()

    def _do_all(self, actions: tuple[Action, ...]) -> None:
        for action in actions:
            self._execution.do(action, self._clock())
