"""Coordinators under random schedules, over a real directory; oracle: the checkpoints that are there.

Checkpoints are asked for, triggered, acknowledged in any order and more than once, declined, timed out and given up;
checkpoints and tombstones fail or get lost; notifications are lost; coordinators crash, and two of them run at once.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from partfile.errors import Fenced, NotApplied, OutcomeUnknown, PartfileError
from partfile.snapshot.documents import FileHandle
from partfile.snapshot.events import CoordinatorRules, RequestKind, RequestLimits
from support.crash.worlds import temporary_directory
from support.state.checkpoint_owner import Owner, storage, write_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from partfile.snapshot.documents import CheckpointMetadata, OperatorState, StateHandle
    from partfile.snapshot.events import PendingCheckpoint
    from partfile.testing.faults import Call


# A coordinator's owner for random schedules: it checks what it is told, and can have its next checkpoint fail.

RULES = CoordinatorRules(
    limits=RequestLimits(max_concurrent=3, min_pause_ms=50), timeout_ms=400, interval_ms=200, tolerable_failures=10**6
)


class NextCommitFails:
    """Fails the next creation of a checkpoint, if told to."""

    def __init__(self) -> None:
        self.fault: tuple[type[PartfileError], bool] | None = None
        self.passed = 0
        """Checkpoints that are created before the one that fails."""

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
        self.faults = NextCommitFails()
        super().__init__(base, self.faults, rules=RULES, draw=lambda least, _most: least)
        self.ids = ids
        self.believed: dict[int, str] = {}
        """The nonces of the checkpoints that this coordinator takes for its own, by id."""
        self.violations: list[str] = []
        """What a hook has seen; raising there would be taken for the hook's own failure."""

    def trigger_tasks(self, pending: PendingCheckpoint) -> None:
        """No coordinator has ever used the id, for a checkpoint or a takeover, and it is beyond every checkpoint."""
        self.check(pending.checkpoint_id not in self.ids, f"id {pending.checkpoint_id} again")
        self.check(pending.checkpoint_id > self.checkpoints.newest.checkpoint_id, "an id that has a checkpoint")
        self.ids.add(pending.checkpoint_id)
        super().trigger_tasks(pending)

    def collect_states(self, pending: PendingCheckpoint) -> Mapping[str, OperatorState]:
        """Only of a checkpoint that everybody has acknowledged."""
        self.check(pending.is_acknowledged, "collected too early")
        return super().collect_states(pending)

    def notify_complete(self, checkpoint_id: int) -> None:
        """Its checkpoint is there, holds state and is this coordinator's; the notification may get lost."""
        checkpoint = self.storage.read_checkpoint(checkpoint_id)
        self.check(checkpoint is not None and checkpoint.holds_state, f"told of {checkpoint_id} without a checkpoint")
        self.check(checkpoint == self.checkpoints.newest, f"told of {checkpoint_id}, which is not its own")
        self.believed[checkpoint_id] = self.checkpoints.newest.nonce
        super().notify_complete(checkpoint_id)

    def fulfilled(self, pending: PendingCheckpoint) -> None:
        """Its checkpoint is there."""
        checkpoint = self.storage.read_checkpoint(pending.checkpoint_id)
        self.check(checkpoint == self.checkpoints.newest, f"fulfilled {pending.checkpoint_id} without a checkpoint")
        super().fulfilled(pending)

    def check(self, holds: bool, violation: str) -> None:
        """Note what must not be."""
        if not holds:
            self.violations.append(violation)


WHO = st.integers(0, 1)
EXAMPLES = 2 * settings().max_examples
SELDOM = st.integers(0, 3)
FAULTS = st.sampled_from([(NotApplied, False), (OutcomeUnknown, False), (OutcomeUnknown, True)])


class CoordinatorMachine(RuleBasedStateMachine):
    """Two owners on one directory, each at its turn."""

    def __init__(self) -> None:
        super().__init__()
        self.base = temporary_directory("partfile-coordinator-")
        self.now_ms = 1000
        self.keep = storage(self.base)
        self.ids: set[int] = set()
        """Every id that any coordinator has triggered or begun with."""
        self.owners = [RandomOwner(self.base, self.ids), RandomOwner(self.base, self.ids)]
        self.checkpoints: dict[int, str] = {}
        """The nonce of every checkpoint of the checkpoint log, by id."""
        self.sent: list[tuple[int, int, str, StateHandle]] = []
        """Acknowledgements; any may come again, also to the wrong coordinator."""
        self.most_holders = 0
        self.live: set[int] = set()
        self.restart(0)

    @rule(who=WHO, happens=SELDOM, faults=st.lists(st.tuples(st.integers(1, 6), FAULTS), max_size=2))
    def crash(self, who: int, happens: int, faults: list[tuple[int, tuple[type[PartfileError], bool]]]) -> None:
        """A coordinator crashes, without a word, and another takes over; its first starts may die."""
        if happens == 0 or not self.live:
            for checkpoints, fault in faults:
                self.failed_start(who, checkpoints, fault)
            self.restart(who)

    def failed_start(self, who: int, checkpoints: int, fault: tuple[type[PartfileError], bool]) -> None:
        """A start that fails at one of its checkpoints, a tombstone or the takeover.

        Or it was not that far from its end.
        """
        self.owners[who].storage.store.close()
        new = self.owners[who] = RandomOwner(self.base, self.ids)
        new.now_ms = self.now_ms
        new.faults.fault, new.faults.passed = fault, checkpoints - 1
        self.live.discard(who)
        with suppress(NotApplied, OutcomeUnknown):
            self.ids.add(new.start().checkpoint_id)
            self.live.add(who)

    def restart(self, who: int) -> None:
        """A start; it fences the other one, who does not know."""
        self.owners[who].storage.store.close()
        new = self.owners[who] = RandomOwner(self.base, self.ids)
        new.now_ms = self.now_ms
        takeover = new.start().checkpoint_id
        assert takeover not in self.ids
        self.ids.add(takeover)
        new.checkpoints.start_periodic()
        self.live.add(who)

    @rule(who=WHO, kind=st.sampled_from([RequestKind.USER, RequestKind.SAVEPOINT]), stops=st.booleans())
    def request(self, who: int, kind: RequestKind, stops: bool) -> None:
        """A checkpoint is wanted."""
        stops_job = stops and kind is RequestKind.SAVEPOINT
        self.act(who, lambda one: one.checkpoints.request(kind, stops_job=stops_job))

    @rule(who=WHO, ms=st.integers(1, 300))
    def time_passes(self, who: int, ms: int) -> None:
        """The timer goes off, early or late."""
        self.now_ms += ms
        self.act(who, lambda one: one.checkpoints.tick())

    @rule(who=WHO, which=st.integers(0, 3), subtasks=st.integers(0, 2))
    def know_subtasks(self, who: int, which: int, subtasks: int) -> None:
        """The number of subtasks becomes known."""

        def tell(one: RandomOwner) -> None:
            for pending in pending_ids(one, which):
                one.checkpoints.know_subtasks(pending, subtasks)

        self.act(who, tell)

    @rule(who=WHO, which=st.integers(0, 3), subtask=st.integers(0, 2))
    def acknowledge(self, who: int, which: int, subtask: int) -> None:
        """A subtask has written its state."""

        def send(one: RandomOwner) -> None:
            for pending in one.checkpoints.state.pending[which : which + 1]:
                handle = write_text(one.storage, pending.checkpoint_id, str(len(self.sent)))
                self.sent.append((pending.checkpoint_id, subtask, pending.submission, handle))
                one.checkpoints.acknowledge(*self.sent[-1])

        self.act(who, send)

    @rule(who=WHO, which=st.integers(0, 1), subtasks=st.integers(1, 2))
    def complete(self, who: int, which: int, subtasks: int) -> None:
        """Every subtask of one checkpoint acknowledges."""
        for subtask in range(subtasks):
            self.acknowledge(who, which, subtask)
        self.know_subtasks(who, which, subtasks)

    @rule(who=WHO, times=st.integers(1, 4))
    def go_on(self, who: int, times: int) -> None:
        """Checkpoints go well for a while, so that retention deletes what a rival may know as the newest."""
        for _ in range(times):
            self.request(who, RequestKind.USER, stops=False)
            self.complete(who, 0, 1)

    @rule(who=WHO, which=st.integers(0, 5))
    def acknowledge_again(self, who: int, which: int) -> None:
        """A late acknowledgement comes again, perhaps one for another coordinator."""

        def send(one: RandomOwner) -> None:
            for sent in self.sent[::-1][which : which + 1]:
                one.checkpoints.acknowledge(*sent)

        self.act(who, send)

    @rule(who=WHO, which=st.integers(0, 3), deed=st.sampled_from(["decline", "abort", "task"]))
    def fail(self, who: int, which: int, deed: str) -> None:
        """A subtask declines, a task dies, or the owner gives up."""

        def do(one: RandomOwner) -> None:
            for pending in one.checkpoints.state.pending[which : which + 1]:
                if deed == "decline":
                    one.checkpoints.decline(pending.checkpoint_id, 0, pending.submission)
                elif deed == "abort":
                    one.checkpoints.abort(pending.checkpoint_id)
                else:
                    one.checkpoints.task_failed(0)

        self.act(who, do)

    @rule(who=WHO, fault=FAULTS)
    def next_commit_fails(self, who: int, fault: tuple[type[PartfileError], bool]) -> None:
        """The store fails, before or after it has done its work."""
        self.owners[who].faults.fault = fault

    @rule(who=WHO, hook=st.sampled_from(["notify_complete", "notify_aborted", "trigger_tasks", "collect_states"]))
    def owner_fails(self, who: int, hook: str) -> None:
        """A hook fails while the next thing happens."""
        self.owners[who].raising = {hook}

    @rule(who=WHO, happens=SELDOM)
    def shut_down(self, who: int, happens: int) -> None:
        """A clean end."""
        if happens == 0:
            self.act(who, lambda one: one.checkpoints.shut_down())
            self.live.discard(who)

    def act(self, who: int, deed: Callable[[RandomOwner], object]) -> None:
        """Let one owner do something; it may find that it is fenced, or not know, and then it is dead."""
        if who in self.live:
            self.owners[who].now_ms = self.now_ms
            try:
                deed(self.owners[who])
            except (Fenced, OutcomeUnknown):
                self.live.discard(who)
            self.owners[who].raising = set()

    @invariant()
    def checkpoints_have_no_holes_and_never_change(self) -> None:
        """Never two checkpoints with one id; two that hold state are retained, and every state they name is there."""
        log = self.log()
        for checkpoint in log:
            assert self.checkpoints.setdefault(checkpoint.checkpoint_id, checkpoint.nonce) == checkpoint.nonce
        assert log[0].checkpoint_id == max(self.checkpoints)
        assert len([checkpoint for checkpoint in log if checkpoint.holds_state]) >= min(2, self.most_holders)
        self.most_holders = max(self.most_holders, len([checkpoint for checkpoint in log if checkpoint.holds_state]))
        for checkpoint in log:
            for operator in checkpoint.operators.values():
                for state in operator.subtasks:
                    assert isinstance(state.handle, FileHandle)
                    self.keep.read_bytes(state.handle)

    def log(self) -> list[CheckpointMetadata]:
        """The checkpoints from the newest one on, by their predecessors.

        A fenced coordinator's stray checkpoint is none.
        """
        checkpoint = self.keep.read_checkpoint(self.keep.list_completed_ids()[-1])
        log = []
        while checkpoint is not None:
            log.append(checkpoint)
            before = checkpoint.predecessor
            if before is None:
                break
            assert before.checkpoint_id == checkpoint.checkpoint_id - 1
            checkpoint = self.keep.read_checkpoint(before.checkpoint_id)
            if checkpoint is not None and checkpoint.nonce != before.nonce:
                break
        return log

    @invariant()
    def nothing_is_stuck(self) -> None:
        """The next id of the row is pending and not complete, or has not been given; or its tombstone is retried."""
        for who in self.live:
            state = self.owners[who].checkpoints.state
            pending = state.find(state.newest_checkpoint + 1)
            assert state.creating is None
            assert (
                state.retry_ms
                or state.next_id == state.newest_checkpoint + 1
                or (pending and not pending.is_acknowledged)
            )

    @invariant()
    def no_task_was_told_too_much(self) -> None:
        """What was told is complete, and nothing is both complete and aborted."""
        for owner in self.owners:
            assert owner.violations == []
            assert all(self.checkpoints.get(number, nonce) == nonce for number, nonce in owner.believed.items())
            told = {number for what, number in owner.told if what == "complete"} | set(owner.completed)
            assert not told & {number for what, number in owner.told if what == "aborted"}

    def teardown(self) -> None:
        """A last start finds a checkpoint log to go on from."""
        self.restart(0)
        self.checkpoints_have_no_holes_and_never_change()
        for checkpoints in (self.keep, *(owner.storage for owner in self.owners)):
            checkpoints.store.close()
        shutil.rmtree(self.base)


def pending_ids(one: RandomOwner, which: int) -> list[int]:
    """The id of one pending checkpoint, if there are so many."""
    return [pending.checkpoint_id for pending in one.checkpoints.state.pending[which : which + 1]]


CoordinatorMachine.TestCase.settings = settings(max_examples=EXAMPLES, stateful_step_count=40, deadline=None)
TestCoordinators = pytest.mark.slow(CoordinatorMachine.TestCase)
