"""Does what the coordinator's state machine decides: links, tombstones, deletions, calls of the owner."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from partfile.filesystems.errors import Fenced, NotApplied, PartfileError
from partfile.filesystems.tokens import new_token
from partfile.snapshot import actions as does
from partfile.snapshot import events as tells
from partfile.snapshot.discarding import discard
from partfile.snapshot.model import CheckpointMetadata

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from partfile.snapshot.chain import Chain
    from partfile.snapshot.hooks import CheckpointHooks
    from partfile.snapshot.model import LinkKind, OperatorState
    from partfile.snapshot.pending import PendingCheckpoint
    from partfile.snapshot.settings import CoordinatorSettings
    from partfile.snapshot.storage import CheckpointStorage

logger = logging.getLogger("partfile")


class Execution:
    """Does one action after the other, and tells what came of it.

    Args:
        storage: The job's checkpoints.
        chain: The coordinator's view of their links.
        hooks: What the owner does.
        settings: How the coordinator is set up.
        tell: Takes the events that answer an action; they are looked at after the actions that are left.
    """

    def __init__(
        self,
        storage: CheckpointStorage,
        chain: Chain,
        hooks: CheckpointHooks,
        settings: CoordinatorSettings,
        tell: Callable[[tells.Event], None],
    ) -> None:
        self._storage = storage
        self._chain = chain
        self._hooks = hooks
        self._settings = settings
        self._tell = tell
        self._deleting = threading.Lock()
        self._causes: dict[int, Exception] = {}
        """The errors behind failures that the state machine has still to look at, by checkpoint."""
        self.lost: Exception | None = None
        """The error by which the chain was lost."""

    def link(
        self,
        kind: LinkKind,
        checkpoint_id: int,
        generation: int,
        time_ms: int,
        operators: Mapping[str, OperatorState],
    ) -> CheckpointMetadata:
        """A link that is not part of the chain yet."""
        return CheckpointMetadata(
            checkpoint_id=checkpoint_id,
            kind=kind,
            job=self._storage.job,
            generation=generation,
            nonce=new_token(),
            chain_id=new_token(),
            predecessor=None,
            ids_ahead=self._settings.rules.ids_ahead,
            time_ms=time_ms,
            writer=self._settings.writer,
            operators=dict(operators),
        )

    def do(self, action: does.Action, now_ms: int) -> None:
        """Do one action."""
        match action:
            case does.TriggerTasks(pending):
                self._trigger(pending)
            case does.CreateLink(pending):
                self._create_link(pending)
            case does.CloseId(checkpoint_id):
                self._close(checkpoint_id, now_ms)
            case does.DiscardState(checkpoint_id, handle, stray):
                if discard(self._storage, checkpoint_id, handle):
                    logger.info("checkpoint %d: deleted a state, since %s", checkpoint_id, stray.value)
            case does.Subsume():
                self._settings.submit_deletion(self._subsume)
            case does.SetTimer(at_ms):
                self._settings.set_timer(at_ms)
            case does.Stop(reason):
                logger.error("job %s: the coordinator stops, since %s", self._storage.job, reason.value)
            case _:
                self._tell_owner(action)

    def _trigger(self, pending: PendingCheckpoint) -> None:
        try:
            self._hooks.trigger_tasks(pending)
        except Exception as error:  # noqa: BLE001 - whatever the owner's reason is
            self._causes[pending.checkpoint_id] = error
            self._tell(tells.TriggerFailed(pending.checkpoint_id))
        else:
            self._tell(tells.Triggered(pending.checkpoint_id))

    def _create_link(self, pending: PendingCheckpoint) -> None:
        checkpoint_id, generation = pending.checkpoint_id, self._chain.newest.generation
        try:
            operators = self._hooks.finalise(pending)
            link = self.link("checkpoint", checkpoint_id, generation, pending.time_ms, operators)
        except Exception as error:  # noqa: BLE001 - whatever the owner's reason is
            self._failed(checkpoint_id, error)
            return
        try:
            self._chain.extend(link)
        except NotApplied as error:
            self._failed(checkpoint_id, error)
        except Exception as error:  # noqa: BLE001 - what nobody has classified may have happened
            self._lose(checkpoint_id, error)
        else:
            self._tell(tells.LinkCreated(checkpoint_id))

    def _failed(self, checkpoint_id: int, error: Exception) -> None:
        self._causes[checkpoint_id] = error
        is_closed = self._chain.newest.checkpoint_id == checkpoint_id
        self._tell(tells.LinkFailed(checkpoint_id, is_closed=is_closed))

    def _close(self, checkpoint_id: int, now_ms: int) -> None:
        try:
            self._chain.extend(self.link("tombstone", checkpoint_id, self._chain.newest.generation, now_ms, {}))
        except NotApplied as error:
            logger.warning("the aborted checkpoint %d could not be closed, trying again: %s", checkpoint_id, error)
            self._tell(tells.CloseFailed(checkpoint_id))
        except Exception as error:  # noqa: BLE001 - what nobody has classified may have happened
            self._lose(checkpoint_id, error)
        else:
            self._tell(tells.IdClosed(checkpoint_id))

    def _lose(self, checkpoint_id: int, error: Exception) -> None:
        self._causes[checkpoint_id] = error
        self.lost = error
        is_fenced = isinstance(error, Fenced)
        self._tell(tells.LinkFenced(checkpoint_id) if is_fenced else tells.LinkUnknown(checkpoint_id))

    def _subsume(self) -> None:
        """Delete what retention does not keep; a failure is logged, and the next round tries again."""
        try:
            with self._deleting:
                self._chain.subsume()
        except PartfileError as error:
            logger.warning("job %s: older checkpoints could not be deleted: %s", self._storage.job, error)
        finally:
            self._tell(tells.DeletionFinished())

    def _tell_owner(self, action: does.Action) -> None:
        """Call the owner. Its error changes nothing: what is complete stays complete (CC-14)."""
        try:
            match action:
                case does.NotifyComplete(checkpoint_id):
                    self._hooks.notify_complete(checkpoint_id)
                case does.NotifyAborted(checkpoint_id, reason, completed_id):
                    self._hooks.notify_aborted(checkpoint_id, reason, completed_id)
                case does.FulfilRequest(pending):
                    self._hooks.fulfilled(pending)
                case does.RefuseRequest(request, refusal, aborted_id):
                    cause = self.lost if aborted_id is None else self._causes.pop(aborted_id, self.lost)
                    self._hooks.refused(request, refusal, aborted_id, cause)
                case does.FailJob(checkpoint_id, reason):
                    self._hooks.fail_job(checkpoint_id, reason)
        except Exception:
            logger.exception("job %s: the owner did not take %s", self._storage.job, type(action).__name__)
