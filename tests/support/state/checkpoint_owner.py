"""An owner of a checkpoint coordinator for tests: notes what it is told, and can take checkpoints step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from partfile.snapshot.coordinator import CheckpointCoordinator, CoordinatorSettings
from partfile.snapshot.documents import FileHandle, InlineHandle, OperatorState
from partfile.snapshot.events import RequestKind
from partfile.snapshot.storage import CheckpointStorage, FileStreamSettings
from partfile.snapshot.streams import Scope
from partfile.stores.local.store import LocalStore
from partfile.testing.faults import intercept

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from partfile.snapshot.documents import CheckpointMetadata, StateHandle
    from partfile.snapshot.events import CheckpointRequest, FailureReason, PendingCheckpoint, Refusal
    from partfile.testing.faults import Interceptor


def storage(base: Path, interceptor: Interceptor | None = None, **streams: int) -> CheckpointStorage:
    """The checkpoints of the job below ``base``."""
    store: Any = LocalStore(str(base))
    if interceptor is not None:
        store = intercept(store, interceptor)
    return CheckpointStorage(store, "job", FileStreamSettings(**streams))


def holding(text: str) -> dict[str, OperatorState]:
    """Operator states that hold one text."""
    handle = InlineHandle(data=text.encode())
    return {"o": OperatorState(parallelism=0, coordinator=handle)}


def held(checkpoint: CheckpointMetadata | None) -> str | None:
    """The text that a checkpoint holds."""
    if checkpoint is None:
        return None
    handle = checkpoint.operators["o"].coordinator
    assert isinstance(handle, InlineHandle)
    return handle.data.decode()


def write_text(keep: CheckpointStorage, checkpoint_id: int, text: str) -> FileHandle:
    """A state file of a checkpoint that holds a text."""
    stream = keep.stream_factory(checkpoint_id).create(Scope.EXCLUSIVE)
    stream.write(text.encode())
    handle = stream.close_and_get_handle()
    assert isinstance(handle, FileHandle)
    return handle


class Owner:
    """The hooks, and what was told through them; ``checkpoints`` is its coordinator.

    Args:
        base: Where the checkpoints are: a directory, or their storage.
        interceptor: Led through by every call of their store.
        settings: More settings of the coordinator.
    """

    def __init__(self, base: Path | CheckpointStorage, interceptor: Interceptor | None = None, **settings: Any) -> None:
        self.storage = (
            base if isinstance(base, CheckpointStorage) else storage(base, interceptor, inline_threshold_bytes=0)
        )
        self.now_ms = 0
        self.text = ""
        self.triggered: list[PendingCheckpoint] = []
        self.told: list[tuple[str, int]] = []
        self.completed: list[int] = []
        self.refusals: list[tuple[int, Refusal | FailureReason, Exception | None]] = []
        self.failed_jobs: list[tuple[int, FailureReason]] = []
        self.raising: set[str] = set()
        """The hooks that fail."""
        self.checkpoints = CheckpointCoordinator(
            self.storage, self, lambda: self.now_ms, CoordinatorSettings(writer="0", **settings)
        )

    def trigger_tasks(self, pending: PendingCheckpoint) -> None:
        """Note it."""
        self._fail("trigger_tasks")
        self.triggered.append(pending)

    def collect_states(self, pending: PendingCheckpoint) -> Mapping[str, OperatorState]:
        """The text, and the states as they were acknowledged."""
        self._fail("collect_states")
        (state,) = holding(self.text).values()
        return {"o": state.model_copy(update={"subtasks": pending.subtasks()})}

    def notify_complete(self, checkpoint_id: int) -> None:
        """Note it."""
        self._fail("notify_complete")
        self.told.append(("complete", checkpoint_id))

    def notify_aborted(self, checkpoint_id: int, reason: FailureReason, completed_id: int) -> None:  # noqa: ARG002
        """Note it."""
        self._fail("notify_aborted")
        self.told.append(("aborted", checkpoint_id))

    def fulfilled(self, pending: PendingCheckpoint) -> None:
        """Note it."""
        self.completed.append(pending.checkpoint_id)

    def refused(
        self,
        request: CheckpointRequest,
        reason: Refusal | FailureReason,
        checkpoint_id: int | None,  # noqa: ARG002
        cause: Exception | None,
    ) -> None:
        """Note it."""
        self.refusals.append((request.number, reason, cause))

    def fail_job(self, checkpoint_id: int, reason: FailureReason) -> None:
        """Note it."""
        self.failed_jobs.append((checkpoint_id, reason))

    def start(self, seen: Callable[[str | None], object] = lambda _text: None) -> CheckpointMetadata:
        """Begin an epoch with the text that the newest checkpoint holds."""

        def restore(checkpoint: CheckpointMetadata | None, _id: int) -> dict[str, OperatorState]:
            seen(held(checkpoint))
            return holding(held(checkpoint) or "fresh")

        return self.checkpoints.start(restore)

    def trigger(self, kind: RequestKind = RequestKind.USER) -> PendingCheckpoint:
        """Begin a checkpoint."""
        before = len(self.triggered)
        self.checkpoints.request(kind)
        assert len(self.triggered) == before + 1
        return self.triggered[-1]

    def complete(self, text: str) -> CheckpointMetadata:
        """Take a checkpoint without subtasks that holds a text; raise the error by which it fails."""
        self.text = text
        pending = self.trigger()
        refused = len(self.refusals)
        self.checkpoints.know_subtasks(pending.checkpoint_id, 0)
        for _, reason, cause in self.refusals[refused:]:
            raise cause or AssertionError(reason)
        return self.checkpoints.newest

    def complete_with(self, *handles: StateHandle | None) -> CheckpointMetadata:
        """Complete the triggered checkpoint, which its subtasks acknowledge with these handles."""
        pending = self.triggered[-1]
        for subtask, handle in enumerate(handles):
            self.checkpoints.acknowledge(pending.checkpoint_id, subtask, pending.submission, handle)
        refused = len(self.refusals)
        self.checkpoints.know_subtasks(pending.checkpoint_id, len(handles))
        for _, reason, cause in self.refusals[refused:]:
            raise cause or AssertionError(reason)
        return self.checkpoints.newest

    def _fail(self, hook: str) -> None:
        if hook in self.raising:
            raise RuntimeError(f"deliberate: {hook}")
