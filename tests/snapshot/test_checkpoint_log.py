"""The checkpoint log: two coordinators cannot both win, and a checkpoint is the commit point."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from partfile.errors import AlreadyExists, Fenced, NotApplied, OutcomeUnknown, SnapshotCorrupt, StoreError
from partfile.snapshot.checkpoint_log import LogEntry, subsumable
from partfile.snapshot.events import CoordinatorRules
from partfile.testing.faults import ActAt, CrashAt, FailAt, SimulatedCrash
from support.state.checkpoint_owner import Owner, held, storage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from partfile.snapshot.documents import CheckpointMetadata, OperatorState
    from partfile.testing.faults import Call, Interceptor, When


# Two coordinators cannot both win (R7), and the checkpoint is the commit point (R1).

CREATE = ["create_file"]
TOLERANT = CoordinatorRules(tolerable_failures=9)


def test_a_start_creates_the_next_checkpoint_with_the_restored_state(tmp_path: Path) -> None:
    """A second start holds what the first one's last checkpoint held, an epoch further and beyond all its ids."""
    first = Owner(tmp_path)
    assert (first.start().checkpoint_id, first.checkpoints.newest.epoch) == (1, 1)
    first.complete("a")
    second = Owner(tmp_path)
    checkpoint = second.start()
    assert (held(checkpoint), checkpoint.checkpoint_id, checkpoint.epoch, checkpoint.kind) == ("a", 5, 2, "takeover")


def test_the_old_coordinator_is_fenced_at_its_next_checkpoint(tmp_path: Path) -> None:
    """Once another has started, whatever the first one completes is Fenced and leaves the checkpoint log as it is."""
    first, second = Owner(tmp_path), Owner(tmp_path)
    first.start()
    second.start()
    with pytest.raises(Fenced, match="taken over"):
        first.complete("zombie")
    assert held(second.complete("b")) == "b"
    assert held(Owner(tmp_path).checkpoints.look()) == "b"


@pytest.mark.parametrize("what", ["link", "job"])
def test_a_coordinator_whose_own_end_was_deleted_says_so(what: str, tmp_path: Path) -> None:
    """There is no other coordinator to look for; it stops all the same, since what it adds would follow nothing."""
    owner = Owner(tmp_path)
    last = owner.start()
    store = storage(tmp_path)
    shutil.rmtree(tmp_path / store.directory / (f"chk-{last.checkpoint_id}" if what == "link" else ""))
    with pytest.raises(Fenced, match=f"checkpoint {last.checkpoint_id} of job .* was deleted, and no other") as raised:
        owner.complete("a")
    assert str(store.path(f"chk-{last.checkpoint_id}/_metadata")) in (raised.value.path or "")
    assert f"partfile recover PATH --uid {store.job} --restore-from SAVEPOINT" in raised.value.hint


def test_an_id_that_another_took_is_told_as_that_whatever_was_deleted(tmp_path: Path) -> None:
    """Its predecessor may be gone because the other one has subsumed it."""
    owner = Owner(tmp_path)
    last = owner.start()
    store = storage(tmp_path)
    store.create_checkpoint(last.model_copy(update={"checkpoint_id": last.checkpoint_id + 1, "nonce": "0" * 32}))
    shutil.rmtree(tmp_path / store.directory / f"chk-{last.checkpoint_id}")
    with pytest.raises(Fenced, match="another coordinator has taken over"):
        owner.complete("a")


@pytest.mark.parametrize("batches", range(5))
@pytest.mark.fault("D10")
def test_a_freed_name_is_no_way_back(batches: int, tmp_path: Path) -> None:
    """A coordinator that slept while its next name was used and deleted again creates it, and is fenced all the same.

    This is the hazard of checkpoint logs with retention: creating the name works, so only the check of the predecessor
    tells.
    """
    sleeper, other = Owner(tmp_path), Owner(tmp_path)
    sleeper.start()
    name = sleeper.checkpoints.newest.checkpoint_id + 1
    other.start()
    for number in range(batches):
        other.complete(f"b{number}")
    was_freed = storage(tmp_path).read_checkpoint(name) is None
    assert was_freed == (batches >= 1)
    with pytest.raises(Fenced, match="another coordinator has taken over"):
        sleeper.complete("zombie")
    assert held(Owner(tmp_path).checkpoints.look()) == (f"b{batches - 1}" if batches else "fresh")


def test_a_first_start_that_slept_begins_again(tmp_path: Path) -> None:
    """A start that saw an empty log, and creates checkpoint 1 only after others used and freed it, restores theirs."""

    def others_go_on() -> None:
        other = Owner(tmp_path)
        other.start()
        for number in range(4):
            other.complete(f"b{number}")

    sleeper = Owner(tmp_path, ActAt(1, others_go_on, only=CREATE))
    seen: list[str | None] = []
    checkpoint = sleeper.start(seen.append)
    assert seen == [None, "b3"]
    assert (held(checkpoint), checkpoint.checkpoint_id) == ("b3", 8)


def test_a_start_that_slept_after_creating_begins_again(tmp_path: Path) -> None:
    """The predecessor is checked after the checkpoint is there.

    Others may have gone on in between, from an older checkpoint.
    """
    first = Owner(tmp_path)
    first.start()

    def others_go_on() -> None:
        for number in range(3):
            first.complete(f"b{number}")

    seen: list[str | None] = []
    checkpoint = Owner(tmp_path, ActAt(1, others_go_on, only=CREATE)).start(seen.append)
    assert seen == ["fresh", "b2"]
    assert checkpoint.checkpoint_id == 7


@pytest.mark.item("CC-06")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_start_that_dies_between_its_checkpoints_hands_the_promise_on(call: int, when: When, tmp_path: Path) -> None:
    """Two ids were reserved by the first: they are closed once, and the takeover comes after them."""
    first = Owner(tmp_path)
    first.start()
    used = first.trigger().checkpoint_id
    dying = Owner(tmp_path, CrashAt(call, when, only=CREATE))
    with pytest.raises(SimulatedCrash):
        dying.start()
    last = Owner(tmp_path)
    takeover = last.start()
    assert held(takeover) == "fresh"
    # A takeover that was created and never seen reserves ids of its own.
    assert takeover.checkpoint_id == (7 if (call, when) == (3, "after") else 4)
    kinds = {number: found.kind for number in range(1, 5) if (found := last.storage.read_checkpoint(number))}
    assert kinds[used] == "tombstone" if used in kinds else (call, when) == (3, "after")
    assert held(last.complete("a")) == "a"


@pytest.mark.parametrize("call", [1, 2, 3])
@pytest.mark.fault("D9")
def test_two_starts_at_once_take_the_checkpoints_in_turn(call: int, tmp_path: Path) -> None:
    """Another start comes between any two checkpoints of the first: one of them begins again, and both ids differ."""
    Owner(tmp_path).start()
    takeovers: list[int] = []
    slow = Owner(tmp_path, ActAt(call, lambda: takeovers.append(Owner(tmp_path).start().checkpoint_id), only=CREATE))
    takeovers.append(slow.start().checkpoint_id)
    assert takeovers == [4, 7]
    assert held(slow.complete("a")) == "a"


def test_a_lost_reply_is_read_back(tmp_path: Path) -> None:
    """The checkpoint was created but the store says that the name is taken.

    It is ours, so the checkpoint is complete.
    """
    lost = FailAt(2, AlreadyExists("taken"), applied=True, only=CREATE)
    one = Owner(tmp_path, lost)
    one.start()
    assert held(one.complete("a")) == "a"
    assert held(one.complete("b")) == "b"


@pytest.mark.parametrize("applied", [True, False])
def test_an_unknown_outcome_is_decided_by_the_tombstone(applied: bool, tmp_path: Path) -> None:
    """After an unknown outcome it is complete if it stands in the tombstone's way, and closed if it does not."""
    one = Owner(tmp_path, FailAt(2, OutcomeUnknown("reply lost"), applied=applied, only=CREATE))
    one.start()
    if applied:
        assert held(one.complete("a")) == "a"
    else:
        with pytest.raises(NotApplied, match="closed"):
            one.complete("a")
    assert held(Owner(tmp_path).checkpoints.look()) == ("a" if applied else "fresh")
    again = Owner(tmp_path).start()
    assert again.checkpoint_id == 5


def test_a_coordinator_goes_on_after_the_tombstone_has_decided(tmp_path: Path) -> None:
    """The id is closed, so the next checkpoint takes the one after it."""
    one = Owner(tmp_path, FailAt(2, OutcomeUnknown("reply lost"), only=CREATE), rules=TOLERANT)
    one.start()
    with pytest.raises(NotApplied, match="closed"):
        one.complete("a")
    checkpoint = one.complete("b")
    assert (checkpoint.checkpoint_id, storage(tmp_path).list_completed_ids()) == (3, [1, 2, 3])


@pytest.mark.item("CC-15")
@pytest.mark.parametrize("n", [1, 2])
def test_a_look_that_fails_does_not_decide(n: int, tmp_path: Path) -> None:
    """A predecessor that cannot be read, or a tombstone that cannot be tried, leaves the outcome unknown."""
    unread = FailAt(1, NotApplied("deliberate"), only=["read_file"])
    untried = FailAt(2, NotApplied("deliberate"), only=CREATE)
    base = tmp_path / str(n)
    one = Owner(base, unread) if n == 1 else Owner(base, Both(FailAt(2, OutcomeUnknown("lost"), only=CREATE), untried))
    one.start()
    with pytest.raises(OutcomeUnknown, match=r"(?s)does not say whether the checkpoint at '.*/_metadata' counts"):
        one.complete("a")
    assert one.told == [("complete", 1)]
    assert [held(Owner(base).start())] == (["a"] if n == 1 else ["fresh"])


class Both:
    """Two interceptors, one around the other."""

    def __init__(self, outer: Interceptor, inner: Interceptor) -> None:
        self._outer, self._inner = outer, inner

    def around(self, call: Call, proceed: Callable[[], object]) -> object:
        """Lead the call through both."""
        return self._outer.around(call, lambda: self._inner.around(call, proceed))


def test_an_unknown_outcome_that_stays_unknown_ends_the_epoch(tmp_path: Path) -> None:
    """If the tombstone's outcome is unknown too, the error says so, and a new start finds out."""
    failing = FailAt(2, OutcomeUnknown("reply lost"), persistent=True, only=CREATE)
    one = Owner(tmp_path, failing)
    one.start()
    with pytest.raises(OutcomeUnknown):
        one.complete("a")
    assert held(Owner(tmp_path).start()) == "fresh"


@pytest.mark.fault("D16")
def test_an_aborted_id_is_closed_and_the_next_one_goes_on(tmp_path: Path) -> None:
    """A tombstone takes the aborted id; it holds no state, and restore passes it by."""
    one = Owner(tmp_path)
    one.start()
    one.complete("a")
    one.checkpoints.abort(one.trigger().checkpoint_id)
    assert held(Owner(tmp_path).checkpoints.look()) == "a"
    assert one.complete("b").checkpoint_id == 4
    assert one.checkpoints.completed_id == 4


def test_restore_never_falls_back_behind_an_unreadable_checkpoint(tmp_path: Path) -> None:
    """A damaged newest checkpoint is refused, although an older one could be read, and nothing is created (R12)."""
    one = Owner(tmp_path)
    one.start()
    one.complete("a")
    one.complete("b")
    path = tmp_path / "job" / "chk-3" / "_metadata"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(SnapshotCorrupt, match="chk-3/_metadata"):
        Owner(tmp_path).start()
    with pytest.raises(SnapshotCorrupt, match="chk-3/_metadata"):
        Owner(tmp_path).checkpoints.look()
    assert sorted(p.name for p in (tmp_path / "job").iterdir()) == ["chk-2", "chk-3"]


def test_a_refused_start_creates_nothing(tmp_path: Path) -> None:
    """A restore that raises leaves the healthy coordinator in place."""
    healthy = Owner(tmp_path)
    healthy.start()

    def refuse(_link: CheckpointMetadata | None, _id: int) -> dict[str, OperatorState]:
        raise RuntimeError("not this one")

    with pytest.raises(RuntimeError, match="not this one"):
        Owner(tmp_path).checkpoints.start(refuse)
    assert held(healthy.complete("a")) == "a"


def test_retention_keeps_the_newest_two_and_deletes_oldest_first(tmp_path: Path) -> None:
    """Older checkpoints go strictly oldest first, each checkpoint before the rest of its directory."""
    one = Owner(tmp_path)
    one.start()
    for number in range(4):
        one.complete(f"b{number}")
    assert storage(tmp_path).list_completed_ids() == [4, 5]


@pytest.mark.item("DL-11")
def test_tombstones_do_not_count_as_retained() -> None:
    """However many tombstones follow, the newest checkpoints that hold state stay."""
    entries = [LogEntry(number, holds_state=number < 4) for number in range(1, 6)]
    assert subsumable(entries, 2) == [1]
    assert subsumable(entries, 1) == [1, 2]
    assert subsumable([*entries, LogEntry(6, holds_state=True)], 1) == [1, 2, 3, 4, 5]


def test_a_deletion_that_fails_is_tried_again(tmp_path: Path) -> None:
    """The checkpoint is complete all the same, and the next one deletes what is left."""
    failing = FailAt(1, StoreError("deliberate"), only=["delete_directory"])
    one = Owner(tmp_path, failing)
    one.start()
    one.complete("a")
    one.complete("b")
    assert storage(tmp_path).list_completed_ids() == [2, 3]
    assert (tmp_path / "job" / "chk-1").exists()
    one.complete("c")
    assert sorted(path.name for path in (tmp_path / "job").iterdir()) == ["chk-3", "chk-4"]
    assert held(Owner(tmp_path).start()) == "c"


# A checkpoint that a fenced coordinator leaves under a freed name: no start goes on from it, and the next start deletes
# it.
#
# It is not deleted by its creator, who cannot tell it from a checkpoint that another start has gone on from.


def leave_a_stray(base: Path, sleeper: Owner, other: Owner, batches: int = 3) -> None:
    """The other goes on until the sleeper's next name is free again; then the sleeper wakes up."""
    for number in range(batches):
        other.complete(f"b{number}")
    with pytest.raises(Fenced):
        sleeper.complete("zombie")
    assert storage(base).list_completed_ids()[0] == 2


def sleeper_and_other(base: Path) -> tuple[Owner, Owner]:
    """One that knows checkpoint 1 as the newest, and one that has started since."""
    sleeper, other = Owner(base), Owner(base)
    sleeper.start()
    other.start()
    return sleeper, other


@pytest.mark.item("DL-11")
def test_a_stray_checkpoint_is_deleted_by_the_next_start(tmp_path: Path) -> None:
    """The fenced one deletes nothing, the row has a hole; a start goes on from the newest and subsumes the stray."""
    sleeper, other = sleeper_and_other(tmp_path)
    leave_a_stray(tmp_path, sleeper, other)
    assert storage(tmp_path).list_completed_ids() == [2, 6, 7]
    other.complete("c")
    assert storage(tmp_path).list_completed_ids() == [2, 7, 8]
    assert held(Owner(tmp_path).start()) == "c"
    assert storage(tmp_path).list_completed_ids() == [8, 9, 10, 11]


def test_a_checkpoint_that_another_start_went_on_from_is_no_stray(tmp_path: Path) -> None:
    """Its creator slept before it looked, and finds its predecessor subsumed.

    Fenced, but the checkpoint is in the checkpoint log.
    """

    def others_go_on() -> None:
        Owner(tmp_path).start()

    sleeper = Owner(tmp_path, ActAt(3, others_go_on, "after", only=["create_file"]))
    sleeper.start()
    sleeper.complete("a")
    with pytest.raises(Fenced):
        sleeper.complete("b")
    assert storage(tmp_path).list_completed_ids() == [3, 4, 5, 6]
    own, after, newest = (storage(tmp_path).read_checkpoint(number) for number in (3, 4, 6))
    assert held(own) == held(newest) == "b"
    assert own is not None
    assert after is not None
    assert after.predecessor == own.ref


@pytest.mark.parametrize("batches", [3, 4])
@pytest.mark.fault("F12")
def test_a_slow_list_does_not_go_on_from_a_stray(tmp_path: Path, batches: int) -> None:
    """A start that lists names before, and looks at them after, others went on: the stray alone seems to be there.

    Its next name is free and its predecessor stands, so only the checkpoint above tells that the checkpoint log has
    gone on.
    """
    sleeper, other = sleeper_and_other(tmp_path)
    seen: list[str | None] = []
    late = Owner(
        tmp_path, ActAt(2, lambda: leave_a_stray(tmp_path, sleeper, other, batches), "before", only=["list_names"])
    )
    checkpoint = late.start(seen.append)
    assert seen == ["zombie", f"b{batches - 1}"]
    assert (held(checkpoint), checkpoint.checkpoint_id) == (f"b{batches - 1}", batches + 7)
    with pytest.raises(Fenced):
        other.complete("c")


@pytest.mark.parametrize("retained", [1, 2])
def test_a_first_checkpoint_that_is_stray_does_not_stop_its_own_start(tmp_path: Path, retained: int) -> None:
    """It is of a checkpoint log of its own.

    Beside a single retained checkpoint that would tell of a copy from elsewhere.
    """

    def others_go_on() -> None:
        other = Owner(tmp_path, retained=retained)
        other.start()
        for number in range(3):
            other.complete(f"b{number}")

    late = Owner(tmp_path, ActAt(1, others_go_on, only=["create_file"]), retained=retained)
    assert held(late.start()) == "b2"
    assert storage(tmp_path).list_completed_ids() == ([7] if retained == 1 else [4, 5, 6, 7])
