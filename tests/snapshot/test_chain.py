"""Two coordinators cannot both win (S7), and the link is the commit point (S1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from partfile.filesystems.errors import AlreadyExists, Fenced, OutcomeUnknown, SnapshotCorrupt, StoreError
from partfile.filesystems.faults import ActAt, FailAt, intercept
from partfile.filesystems.local import LocalStore
from partfile.snapshot.chain import Link, subsumable
from partfile.snapshot.coordinator import CheckpointCoordinator
from partfile.snapshot.model import InlineHandle, OperatorState
from partfile.snapshot.storage import CheckpointStorage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from partfile.filesystems.faults import Interceptor
    from partfile.snapshot.model import CheckpointMetadata

CREATE = ["create_file"]


def storage(base: Path, interceptor: Interceptor | None = None) -> CheckpointStorage:
    store = LocalStore(str(base))
    return CheckpointStorage(store if interceptor is None else intercept(store, interceptor), "job")


def coordinator(base: Path, interceptor: Interceptor | None = None, *, retained: int = 2) -> CheckpointCoordinator:
    return CheckpointCoordinator(storage(base, interceptor), writer="0", retained=retained)


def holding(text: str) -> dict[str, OperatorState]:
    handle = InlineHandle(data=text.encode())
    return {"o": OperatorState(parallelism=0, coordinator=handle)}


def held(link: CheckpointMetadata | None) -> str | None:
    if link is None:
        return None
    handle = link.operators["o"].coordinator
    assert isinstance(handle, InlineHandle)
    return handle.data.decode()


def start(one: CheckpointCoordinator, seen: Callable[[str | None], object] = lambda _text: None) -> CheckpointMetadata:
    def restore(link: CheckpointMetadata | None, _id: int) -> dict[str, OperatorState]:
        seen(held(link))
        return holding(held(link) or "fresh")

    return one.start(restore, 0)


def complete(one: CheckpointCoordinator, text: str) -> CheckpointMetadata:
    one.trigger(0)
    return one.complete(holding(text))


def test_a_start_creates_the_next_link_with_the_restored_state(tmp_path: Path) -> None:
    """A second start holds what the first one's last checkpoint held, one generation and one id further."""
    first = coordinator(tmp_path)
    assert (start(first).checkpoint_id, first.newest.generation) == (1, 1)
    complete(first, "a")
    second = coordinator(tmp_path)
    link = start(second)
    assert (held(link), link.checkpoint_id, link.generation, link.kind) == ("a", 3, 2, "fence")


def test_the_old_coordinator_is_fenced_at_its_next_link(tmp_path: Path) -> None:
    """Once another has started, whatever the first one completes is Fenced and leaves the chain as it is."""
    first, second = coordinator(tmp_path), coordinator(tmp_path)
    start(first)
    start(second)
    with pytest.raises(Fenced, match="taken over"):
        complete(first, "zombie")
    assert held(complete(second, "b")) == "b"
    assert held(coordinator(tmp_path).look()) == "b"


@pytest.mark.parametrize("batches", range(1, 6))
def test_a_freed_name_is_no_way_back(batches: int, tmp_path: Path) -> None:
    """A coordinator that slept while its next name was used and deleted again creates it, and is fenced all the same.

    This is the hazard of chains with retention: creating the name works, so only the check of the predecessor tells.
    """
    sleeper, other = coordinator(tmp_path), coordinator(tmp_path)
    start(sleeper)
    name = sleeper.newest.checkpoint_id + 1
    start(other)
    for number in range(batches):
        complete(other, f"b{number}")
        other.subsume()
    was_freed = storage(tmp_path).read_link(name) is None
    assert was_freed == (batches >= 2)
    with pytest.raises(Fenced):
        complete(sleeper, "zombie")
    assert held(coordinator(tmp_path).look()) == f"b{batches - 1}"


def test_a_first_start_that_slept_begins_again(tmp_path: Path) -> None:
    """A start that saw an empty chain, and creates link 1 only after others used and freed it, restores theirs."""

    def others_go_on() -> None:
        other = coordinator(tmp_path)
        start(other)
        for number in range(4):
            complete(other, f"b{number}")
            other.subsume()

    sleeper = coordinator(tmp_path, ActAt(1, others_go_on, only=CREATE))
    seen: list[str | None] = []
    link = start(sleeper, seen.append)
    assert seen == [None, "b3"]
    assert (held(link), link.checkpoint_id) == ("b3", 6)


def test_a_start_that_slept_after_creating_begins_again(tmp_path: Path) -> None:
    """The predecessor is checked after the link is there: others may have gone on in between, from an older link."""
    first = coordinator(tmp_path)
    start(first)

    def others_go_on() -> None:
        for number in range(3):
            complete(first, f"b{number}")
            first.subsume()

    seen: list[str | None] = []
    link = start(coordinator(tmp_path, ActAt(1, others_go_on, only=CREATE)), seen.append)
    assert seen == ["fresh", "b2"]
    assert link.checkpoint_id == 5


def test_a_lost_reply_is_read_back(tmp_path: Path) -> None:
    """The link was created but the store says that the name is taken: it is ours, so the checkpoint is complete."""
    lost = FailAt(2, AlreadyExists("taken"), applied=True, only=CREATE)
    one = coordinator(tmp_path, lost)
    start(one)
    assert held(complete(one, "a")) == "a"
    assert held(complete(one, "b")) == "b"


@pytest.mark.parametrize("applied", [True, False])
def test_an_unknown_outcome_is_decided_by_the_tombstone(applied: bool, tmp_path: Path) -> None:
    """After an unknown outcome the link is complete if it stands in the tombstone's way, and closed if it does not."""
    one = coordinator(tmp_path, FailAt(2, OutcomeUnknown("reply lost"), applied=applied, only=CREATE))
    start(one)
    if applied:
        assert held(complete(one, "a")) == "a"
    else:
        with pytest.raises(OutcomeUnknown, match="closed"):
            complete(one, "a")
    assert held(coordinator(tmp_path).look()) == ("a" if applied else "fresh")
    again = start(coordinator(tmp_path))
    assert again.checkpoint_id == 3


def test_an_unknown_outcome_that_stays_unknown_ends_the_generation(tmp_path: Path) -> None:
    """If the tombstone's outcome is unknown too, the error says so, and a new start finds out."""
    failing = FailAt(2, OutcomeUnknown("reply lost"), persistent=True, only=CREATE)
    one = coordinator(tmp_path, failing)
    start(one)
    with pytest.raises(OutcomeUnknown):
        complete(one, "a")
    assert held(start(coordinator(tmp_path))) == "fresh"


def test_an_aborted_id_is_closed_and_the_next_one_goes_on(tmp_path: Path) -> None:
    """A tombstone takes the aborted id; it holds no state, and restore passes it by."""
    one = coordinator(tmp_path)
    start(one)
    complete(one, "a")
    one.trigger(0)
    one.abort()
    assert held(coordinator(tmp_path).look()) == "a"
    assert complete(one, "b").checkpoint_id == 4
    assert one.completed_id == 4


def test_restore_never_falls_back_behind_an_unreadable_link(tmp_path: Path) -> None:
    """A damaged newest link is refused, although an older one could be read, and nothing is created (S12)."""
    one = coordinator(tmp_path)
    start(one)
    complete(one, "a")
    complete(one, "b")
    path = tmp_path / "job" / "chk-3" / "_metadata"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(SnapshotCorrupt, match="chk-3/_metadata"):
        start(coordinator(tmp_path))
    with pytest.raises(SnapshotCorrupt, match="chk-3/_metadata"):
        coordinator(tmp_path).look()
    assert sorted(p.name for p in (tmp_path / "job").iterdir()) == ["chk-1", "chk-2", "chk-3"]


def test_a_refused_start_creates_nothing(tmp_path: Path) -> None:
    """A restore that raises leaves the healthy coordinator in place."""
    healthy = coordinator(tmp_path)
    start(healthy)

    def refuse(_link: CheckpointMetadata | None, _id: int) -> dict[str, OperatorState]:
        raise RuntimeError("not this one")

    with pytest.raises(RuntimeError, match="not this one"):
        coordinator(tmp_path).start(refuse, 0)
    assert held(complete(healthy, "a")) == "a"


def test_retention_keeps_the_newest_two_and_deletes_oldest_first(tmp_path: Path) -> None:
    """Older links go strictly oldest first, each link before the rest of its directory."""
    one = coordinator(tmp_path)
    start(one)
    for number in range(4):
        complete(one, f"b{number}")
    assert one.subsume() == [1, 2, 3]
    assert storage(tmp_path).list_links() == [4, 5]


def test_tombstones_do_not_count_as_retained() -> None:
    """However many tombstones follow, the newest links that hold state stay."""
    links = [Link(number, holds_state=number < 4) for number in range(1, 6)]
    assert subsumable(links, 2) == [1]
    assert subsumable(links, 1) == [1, 2]
    assert subsumable([*links, Link(6, holds_state=True)], 1) == [1, 2, 3, 4, 5]


def test_a_deletion_that_fails_is_tried_again(tmp_path: Path) -> None:
    """A crash or failure between deleting a link and its directory leaves a directory without a link, no more."""
    failing = FailAt(1, StoreError("deliberate"), only=["delete_directory"])
    one = coordinator(tmp_path, failing)
    start(one)
    complete(one, "a")
    complete(one, "b")
    with pytest.raises(StoreError):
        one.subsume()
    assert storage(tmp_path).list_links() == [2, 3]
    assert one.subsume() == [1]
    assert held(start(coordinator(tmp_path))) == "b"
