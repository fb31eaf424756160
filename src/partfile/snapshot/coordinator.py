"""The asynchronous coordinator of one job's checkpoints, for subtasks that run concurrently.

``CheckpointCoordinator`` takes events, asks the state machine, and ``Execution`` does what that decides. The sink does
not run through it: it takes one checkpoint at a time. Both complete through the same checkpoint log.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from partfile.errors import Fenced, NotApplied, PartfileError, UnencodableState
from partfile.snapshot import events
from partfile.snapshot.checkpoint_log import MAX_START_ATTEMPTS, CheckpointLog, DamagedEnd
from partfile.snapshot.documents import FileHandle, checkpoint_directory, is_state_file
from partfile.snapshot.events import CoordinatorRules, FailureReason
from partfile.snapshot.machine import begin, step
from partfile.snapshot.piece_list import named_files
from partfile.stores.paths import new_token, number_between

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from partfile.snapshot.documents import CheckpointMetadata, OperatorState, StateHandle
    from partfile.snapshot.events import (
        Action,
        CheckpointRequest,
        CoordinatorState,
        PendingCheckpoint,
        Refusal,
        RequestKind,
    )
    from partfile.snapshot.storage import CheckpointStorage


logger = logging.getLogger("partfile")


def discard(storage: CheckpointStorage, checkpoint_id: int, handle: StateHandle | None) -> bool:
    """Delete a state file, unless it is shared or that checkpoint's ``_metadata`` names it.

    Only that ``_metadata`` can name it (R11), and it never changes. A list goes with its pieces, and the document of an
    incremental snapshot with the other files in ``chk-N``. Those in ``shared/`` are its strategy's to delete. A failure
    is logged: what stays goes with its directory.

    Returns:
        Whether anything was deleted.
    """
    own = f"{checkpoint_directory(checkpoint_id)}/"
    if handle is None or (isinstance(handle, FileHandle) and not handle.path.startswith(own)):
        return False
    shown = storage.shown(handle)
    try:
        # The list last: what fails on the way can be tried again.
        found = [file for file in (*named_files(storage, handle), handle) if isinstance(file, FileHandle)]
        of_own = [file for file in found if file.path.startswith(own)]
        files = [file for file in of_own if file == handle or is_state_file(file.path.removeprefix(own))]
        checkpoint = storage.read_checkpoint(checkpoint_id) if files else None
        named = [] if checkpoint is None else checkpoint.handles()
        if handle in named:
            return False
        for file in files:
            if file not in named:
                storage.store.delete_file(storage.path(file.path))
    except PartfileError as error:
        logger.warning("%s of checkpoint %d stays for now: %s", shown, checkpoint_id, error)
        return False
    return bool(files)


class Execution:
    """Does one action after the other, and tells what came of it.

    Args:
        storage: The job's checkpoints.
        log: The coordinator's view of their checkpoints.
        hooks: What the owner does.
        settings: How the coordinator is set up.
        tell: Takes the events that answer an action; they are looked at after the actions that are left.
    """

    def __init__(
        self,
        storage: CheckpointStorage,
        log: CheckpointLog,
        hooks: CheckpointHooks,
        settings: CoordinatorSettings,
        tell: Callable[[events.Event], None],
    ) -> None:
        self._storage = storage
        self._log = log
        self._hooks = hooks
        self._settings = settings
        self._tell = tell
        self._deleting = threading.Lock()
        self._causes: dict[int, Exception] = {}
        """The errors behind failures that the state machine has still to look at, by checkpoint."""
        self.lost: Exception | None = None
        """The error by which the checkpoint log was lost."""

    def do(self, action: events.Action, now_ms: int) -> None:
        """Do one action."""
        match action:
            case events.TriggerTasks(pending):
                self._trigger(pending)
            case events.CreateCheckpoint(pending):
                self._create_checkpoint(pending)
            case events.CloseId(checkpoint_id):
                self._close(checkpoint_id, now_ms)
            case events.DiscardState(checkpoint_id, handle, stray):
                if discard(self._storage, checkpoint_id, handle):
                    logger.info("checkpoint %d: deleted a state, since %s", checkpoint_id, stray.value)
            case events.Subsume():
                self._settings.submit_deletion(self._subsume)
            case events.SetTimer(at_ms):
                self._settings.set_timer(at_ms)
            case events.Stop(reason):
                logger.error("job %s: the coordinator stops, since %s", self._storage.job, reason.value)
            case _:
                self._tell_owner(action)

    def _trigger(self, pending: PendingCheckpoint) -> None:
        try:
            self._hooks.trigger_tasks(pending)
        except Exception as error:  # noqa: BLE001 - whatever the owner's reason is
            self._causes[pending.checkpoint_id] = error
            self._tell(events.TriggerFailed(pending.checkpoint_id))
        else:
            self._tell(events.Triggered(pending.checkpoint_id))

    def _create_checkpoint(self, pending: PendingCheckpoint) -> None:
        checkpoint_id = pending.checkpoint_id
        try:
            operators = self._hooks.collect_states(pending)
            entry = self._log.next_entry("checkpoint", checkpoint_id, pending.time_ms, operators)
        except Exception as error:  # noqa: BLE001 - whatever the owner's reason is
            self._failed(checkpoint_id, error)
            return
        try:
            self._log.extend(entry)
        except (NotApplied, UnencodableState) as error:
            self._failed(checkpoint_id, error)
        except Exception as error:  # noqa: BLE001 - an unclassified error may have come after it happened
            self._lose(checkpoint_id, error)
        else:
            self._tell(events.CheckpointCreated(checkpoint_id))

    def _failed(self, checkpoint_id: int, error: Exception) -> None:
        self._causes[checkpoint_id] = error
        is_closed = self._log.newest.checkpoint_id == checkpoint_id
        self._tell(events.CreationFailed(checkpoint_id, is_closed=is_closed))

    def _close(self, checkpoint_id: int, now_ms: int) -> None:
        try:
            self._log.extend(self._log.next_entry("tombstone", checkpoint_id, now_ms, {}))
        except (NotApplied, UnencodableState) as error:
            logger.warning("the aborted checkpoint %d could not be closed, trying again: %s", checkpoint_id, error)
            self._tell(events.CloseFailed(checkpoint_id))
        except Exception as error:  # noqa: BLE001 - an unclassified error may have come after it happened
            self._lose(checkpoint_id, error)
        else:
            self._tell(events.IdClosed(checkpoint_id))

    def _lose(self, checkpoint_id: int, error: Exception) -> None:
        self._causes[checkpoint_id] = error
        self.lost = error
        is_fenced = isinstance(error, Fenced)
        self._tell(events.CreationFenced(checkpoint_id) if is_fenced else events.CreationUnknown(checkpoint_id))

    def _subsume(self) -> None:
        """Delete what retention does not keep; a failure is logged, and the next round tries again."""
        try:
            with self._deleting:
                self._log.subsume()
        except PartfileError as error:
            logger.warning("job %s: older checkpoints could not be deleted: %s", self._storage.job, error)
        finally:
            self._tell(events.DeletionFinished())

    def _tell_owner(self, action: events.Action) -> None:
        """Call the owner. Its error changes nothing: what is complete stays complete."""
        try:
            match action:
                case events.NotifyComplete(checkpoint_id):
                    self._hooks.notify_complete(checkpoint_id)
                case events.NotifyAborted(checkpoint_id, reason, completed_id):
                    self._hooks.notify_aborted(checkpoint_id, reason, completed_id)
                case events.FulfilRequest(pending):
                    self._hooks.fulfilled(pending)
                case events.RefuseRequest(request, refusal, aborted_id):
                    cause = self.lost if aborted_id is None else self._causes.pop(aborted_id, self.lost)
                    self._hooks.refused(request, refusal, aborted_id, cause)
                case events.FailJob(checkpoint_id, reason):
                    self._hooks.fail_job(checkpoint_id, reason)
        except Exception:
            logger.exception("job %s: the owner did not take %s", self._storage.job, type(action).__name__)


class CheckpointCoordinator:
    """Completes the checkpoints of one job.

    Knows which state a checkpoint holds, never what it means: its owner does, by the hooks. An owner may drive it step
    by step in its own thread, or from several threads and by a timer that calls ``tick``; one event is taken at a time.
    Once the checkpoint log is lost, every call raises the error by which it was lost.

    Args:
        storage: The job's checkpoints.
        hooks: What the owner does.
        clock: The coordinator's time, in milliseconds since 1970.
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
        self._log = CheckpointLog(
            storage, retained=settings.retained, ids_ahead=settings.rules.ids_ahead, writer=settings.writer
        )
        self._execution = Execution(storage, self._log, hooks, settings, self._report)
        self._state: CoordinatorState | None = None
        self._events: deque[events.Event] = deque()
        self._is_working = False
        self._lock = threading.RLock()

    @property
    def newest(self) -> CheckpointMetadata:
        """The newest checkpoint, created by this coordinator."""
        return self._log.newest

    @property
    def attempted_takeovers(self) -> frozenset[str]:
        """Nonces of the takeovers that ``start`` has tried to create, whether one was made or not."""
        return self._log.attempted_takeovers

    @property
    def completed_id(self) -> int:
        """Id of the newest completed checkpoint; an aborted id's tombstone is none."""
        return self._begun().completed_id

    @property
    def oldest_id(self) -> int:
        """Id of the oldest checkpoint that is still there, retained or about to be deleted."""
        return self._log.oldest_id

    @property
    def state(self) -> CoordinatorState:
        """The state of the machine, as of the last event."""
        return self._begun()

    def look(self) -> CheckpointMetadata | None:
        """The newest checkpoint that holds state, without changing anything."""
        return self._log.look().restored

    def start(
        self,
        restore: Callable[[CheckpointMetadata | None, int], Mapping[str, OperatorState]],
        go_back: Callable[[DamagedEnd, int], Mapping[str, OperatorState]] | None = None,
    ) -> CheckpointMetadata:
        """Begin an epoch: create the takeover, and only then own the job (R7).

        Then the tasks are told once more that the restored state is complete, and older checkpoints are deleted.

        Args:
            restore: From the newest checkpoint that holds state (None for a fresh job) and the id of the checkpoint to
                come, makes the operator states to begin with. It is called again if another coordinator was faster, and
                may raise to refuse; then nothing has been created.
            go_back: Makes them from an older checkpoint that a user chose, where the newest state cannot be read, or
                raises; None refuses (R12).

        Raises:
            SnapshotCorrupt: The newest state cannot be read; nothing has been created.
        """
        with self._lock:
            for _ in range(MAX_START_ATTEMPTS):
                end = self._log.see()
                if not isinstance(end, DamagedEnd):
                    operators = restore(end.restored, end.next_id)
                elif go_back is not None:
                    operators = go_back(end, end.next_id)
                else:
                    raise end.error
                takeover = self._log.take_over(end, self._clock(), operators)
                if takeover is not None:
                    break
            else:
                raise self._log.outrun()
            self._execution.lost = None
            self._state, actions = begin(takeover.checkpoint_id, self._settings.rules)
            self._work(actions)
            return takeover

    def request(self, kind: RequestKind, *, is_forced: bool = False, stops_job: bool = False) -> int:
        """Ask for a checkpoint; return the number by which the hooks tell what becomes of it.

        Args:
            kind: Who asks.
            is_forced: Whether it may exceed the number of concurrent checkpoints and the pause between them.
            stops_job: Whether nothing more is written after it.
        """
        with self._lock:
            number = self._begun().next_request
            self._tell(events.Requested(kind, new_token(), is_forced=is_forced, stops_job=stops_job))
            return number

    def start_periodic(self) -> None:
        """Take checkpoints at intervals; the first comes at random between the minimum pause and the interval."""
        rules = self._settings.rules
        self._tell(events.PeriodicStarted(self._settings.draw(rules.min_pause_ms, rules.period_ms)))

    def stop_periodic(self) -> None:
        """Stop that, and give up what is under way or waits."""
        self._tell(events.PeriodicStopped())

    def tick(self) -> int | None:
        """Do what time asks for; return when it asks next, in milliseconds since 1970, or None."""
        self._tell(events.Tick(new_token()))
        return self._begun().due_ms()

    def know_subtasks(self, checkpoint_id: int, subtasks: int) -> None:
        """Tell how many subtasks a checkpoint has, 0 to n-1; it cannot be complete before."""
        self._tell(events.SubtasksKnown(checkpoint_id, subtasks))

    def acknowledge(self, checkpoint_id: int, subtask: int, submission: str, handle: StateHandle | None) -> None:
        """Take one subtask's state. Late, unknown and duplicate ones do no harm."""
        self._tell(events.Acknowledged(checkpoint_id, subtask, submission, handle))

    def decline(
        self, checkpoint_id: int, subtask: int, submission: str, reason: FailureReason = FailureReason.DECLINED
    ) -> None:
        """A subtask could not take its part."""
        self._tell(events.Declined(checkpoint_id, subtask, submission, reason))

    def task_failed(self, subtask: int) -> None:
        """A subtask died: what it has not acknowledged is aborted."""
        self._tell(events.TaskFailed(subtask))

    def abort(self, checkpoint_id: int, reason: FailureReason = FailureReason.TASK_FAILED) -> None:
        """Give a checkpoint up and close its id with a tombstone, so that it is never used again."""
        self._tell(events.GivenUp(checkpoint_id, reason))

    def shut_down(self) -> None:
        """End: everything queued or pending fails, and nothing more is begun."""
        with self._lock:
            if self._state is not None and self._state.stopped is None:
                self._tell(events.Shutdown())

    def _begun(self) -> CoordinatorState:
        if self._state is None:
            raise PartfileError("this coordinator holds no checkpoint; start it first")
        return self._state

    def _tell(self, event: events.Event) -> None:
        """Take an event, and all that follow from it.

        Raises:
            Fenced: Another coordinator has taken over.
            OutcomeUnknown: A checkpoint may be complete; begin a new epoch to find out.
        """
        with self._lock:
            self._begun()
            self._report(event)
            if self._execution.lost is not None:
                raise self._execution.lost

    def _report(self, event: events.Event) -> None:
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


class CheckpointHooks(Protocol):
    """Called in order, one at a time, with the coordinator's lock held. They may report events; these wait their turn.

    What the notifications raise is logged, and changes nothing about the checkpoint. They are best effort: after a
    crash or an error the next one, or the next start, tells the same again.
    """

    def trigger_tasks(self, pending: PendingCheckpoint) -> None:
        """Tell the tasks to take a checkpoint. Raises if that is impossible; then the checkpoint is aborted."""

    def collect_states(self, pending: PendingCheckpoint) -> Mapping[str, OperatorState]:
        """Join the acknowledged states into one state for each operator. Raises to abort the checkpoint."""

    def notify_complete(self, checkpoint_id: int) -> None:
        """The checkpoint and all before it are complete and durable."""

    def notify_aborted(self, checkpoint_id: int, reason: FailureReason, completed_id: int) -> None:
        """The checkpoint will never be complete; ``completed_id`` is the newest that is."""

    def fulfilled(self, pending: PendingCheckpoint) -> None:
        """A request has become a completed checkpoint."""

    def refused(
        self,
        request: CheckpointRequest,
        reason: Refusal | FailureReason,
        checkpoint_id: int | None,
        cause: Exception | None,
    ) -> None:
        """There will be no checkpoint for a request.

        Args:
            request: What was asked for.
            reason: Why there is none.
            checkpoint_id: The aborted checkpoint, if it had been triggered.
            cause: The error behind the reason, if there was one.
        """

    def fail_job(self, checkpoint_id: int, reason: FailureReason) -> None:
        """Too many checkpoints have failed, or one that had to succeed."""


def at_once(work: Callable[[], None]) -> None:
    """Do the work here and now."""
    work()


def no_timer(at_ms: int) -> None:
    """Set no timer: the caller of ``tick`` learns the time from what it returns."""


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """Settings that the owner of a coordinator chooses."""

    writer: str
    """Version of the program, written into every checkpoint."""
    retained: int = 2
    """Checkpoints holding state that are kept, at least 1."""
    rules: CoordinatorRules = field(default_factory=CoordinatorRules)
    draw: Callable[[int, int], int] = number_between
    """Draws the delay of the first periodic checkpoint, in milliseconds, both ends included."""
    submit_deletion: Callable[[Callable[[], None]], object] = at_once
    """Runs the deletion of subsumed checkpoints, for instance the ``submit`` of an executor."""
    set_timer: Callable[[int], object] = no_timer
    """Told when to call ``tick`` next, in milliseconds since 1970; it replaces the time told before."""
