"""A start that its user sends back to an older checkpoint while the newest link cannot be read (S7, S12)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from checkpoint_owner import Owner, held, holding, storage, write_text

from partfile.errors import Fenced, NotApplied, OutcomeUnknown, SnapshotCorrupt, SnapshotVersionError
from partfile.snapshot.documents import FORMAT_VERSION, MAX_IDS_AHEAD
from partfile.testing.faults import ActAt, FailAt

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from partfile.snapshot.checkpoint_log import DamagedEnd
    from partfile.snapshot.documents import CheckpointMetadata, OperatorState

CREATE = ["create_file"]


VERSIONS = f"checkpoint {FORMAT_VERSION} ".encode(), f"checkpoint {FORMAT_VERSION + 1} ".encode()


def link_file(base: Path, checkpoint_id: int) -> Path:
    return base / "job" / f"chk-{checkpoint_id}" / "_metadata"


def damage(base: Path, *ids: int) -> None:
    for number in ids:
        link_file(base, number).write_bytes(link_file(base, number).read_bytes()[:-9])


def three_links(base: Path, retained: int = 9) -> Owner:
    """A fence and two checkpoints, ``a`` and ``b``."""
    one = Owner(base, retained=retained)
    one.start()
    one.complete("a")
    one.complete("b")
    return one


def go_back(one: Owner, seen: Callable[[DamagedEnd | str | None], object] = lambda _: None) -> CheckpointMetadata:
    """Start with ``old`` where the newest state cannot be read."""

    def restore(link: CheckpointMetadata | None, _id: int) -> dict[str, OperatorState]:
        seen(held(link))
        return holding(held(link) or "fresh")

    def over(end: DamagedEnd, _id: int) -> dict[str, OperatorState]:
        seen(end)
        return holding("old")

    return one.checkpoints.start(restore, over)


@pytest.mark.item("DL-10")
def test_the_fence_goes_above_the_damaged_link(tmp_path: Path) -> None:
    """The link after it names it by a digest, and no generation of the chain can be as high; nothing is deleted."""
    three_links(tmp_path)
    damage(tmp_path, 2, 3)
    bytes_before = link_file(tmp_path, 3).read_bytes()
    link = go_back(Owner(tmp_path, retained=9))
    assert (held(link), link.checkpoint_id, link.kind) == ("old", 6, "fence")
    assert link.generation == 1 + 2 + 1
    tombstone = storage(tmp_path).read_link(4)
    assert tombstone is not None
    assert tombstone.predecessor is not None
    assert tombstone.predecessor.checkpoint_id == 3
    assert tombstone.predecessor.nonce.startswith("damaged-")
    assert link_file(tmp_path, 3).read_bytes() == bytes_before
    assert storage(tmp_path).list_links() == [1, 2, 3, 4, 5, 6]
    first = storage(tmp_path).read_link(1)
    assert first is not None
    assert link.chain_id == first.chain_id


@pytest.mark.item("DL-10", "DL-11")
def test_the_next_start_passes_the_damaged_link_by(tmp_path: Path) -> None:
    """It needs no option; the damaged link does not count as retained, and goes when retention passes it."""
    three_links(tmp_path, retained=2)
    damage(tmp_path, 3)
    went_back = Owner(tmp_path, retained=2)
    go_back(went_back)
    assert storage(tmp_path).list_links() == [2, 3, 4, 5, 6]
    again = Owner(tmp_path, retained=9)
    assert held(again.start()) == "old"
    assert storage(tmp_path).list_links() == [2, 3, 4, 5, 6, 7, 8, 9]
    last = Owner(tmp_path, retained=2)
    assert held(last.start()) == "old"
    assert storage(tmp_path).list_links() == [9, 10, 11, 12]


@pytest.mark.item("DL-10")
def test_a_tombstone_above_the_damaged_link_is_the_predecessor(tmp_path: Path) -> None:
    """It can be read, but holds no state; so the newest state is still the one that cannot be."""
    one = three_links(tmp_path)
    one.checkpoints.abort(one.trigger().checkpoint_id)
    damage(tmp_path, 3)
    with pytest.raises(SnapshotCorrupt, match="chk-3/_metadata"):
        Owner(tmp_path).start()
    link = go_back(Owner(tmp_path, retained=9))
    tombstone, after = (storage(tmp_path).read_link(number) for number in (4, 5))
    assert tombstone is not None
    assert after is not None
    assert after.predecessor == tombstone.ref
    assert (link.checkpoint_id, link.generation) == (tombstone.reserved_through + 1, 2)


def test_a_damaged_link_that_is_put_back_meanwhile_is_believed(tmp_path: Path) -> None:
    """The digest tells: the fence does not count, and the start begins again."""
    three_links(tmp_path)
    good = link_file(tmp_path, 3).read_bytes()
    damage(tmp_path, 3)
    seen: list[DamagedEnd | str | None] = []
    put_back = ActAt(1, lambda: link_file(tmp_path, 3).write_bytes(good), "after", only=CREATE)
    link = go_back(Owner(tmp_path, put_back, retained=9), seen.append)
    assert [isinstance(one, str) for one in seen] == [False, True]
    assert link.checkpoint_id == 6


@pytest.mark.parametrize("batches", [0, 3])
def test_a_start_that_slept_while_a_rival_went_back_begins_again(tmp_path: Path, batches: int) -> None:
    """The rival took the link, or used its name and freed it: it begins with the rival's state, without an error."""
    three_links(tmp_path, retained=2)
    damage(tmp_path, 3)

    def rival() -> None:
        one = Owner(tmp_path, retained=2)
        go_back(one)
        for number in range(batches):
            one.complete(f"r{number}")

    seen: list[DamagedEnd | str | None] = []
    link = go_back(Owner(tmp_path, ActAt(1, rival, only=CREATE)), seen.append)
    assert seen[1:] == [f"r{batches - 1}" if batches else "old"]
    assert link.checkpoint_id == batches + 9


def test_the_coordinator_of_the_damaged_link_is_fenced_by_it(tmp_path: Path) -> None:
    """It is alive and knows the state that nobody can read; only one of the two wins the next link."""
    one = three_links(tmp_path)
    damage(tmp_path, 3)
    go_back(Owner(tmp_path))
    with pytest.raises(Fenced, match="taken over"):
        one.complete("c")
    assert held(Owner(tmp_path).checkpoints.look()) == "old"


def test_damage_under_a_live_coordinator_is_told(tmp_path: Path) -> None:
    """Its own newest link cannot be read any more: no reason to believe that another has taken over."""
    one = three_links(tmp_path)
    damage(tmp_path, 3)
    with pytest.raises(SnapshotCorrupt, match="chk-3/_metadata"):
        one.complete("c")
    assert held(Owner(tmp_path).start()) == "c"


def test_nothing_is_known_where_no_link_can_be_read(tmp_path: Path) -> None:
    """There is no chain to go on from, and nothing is created."""
    three_links(tmp_path)
    damage(tmp_path, 1, 2, 3)
    with pytest.raises(SnapshotCorrupt, match="chk-3/_metadata"):
        go_back(Owner(tmp_path))
    assert storage(tmp_path).list_links() == [1, 2, 3]


def test_links_of_two_chains_are_refused(tmp_path: Path) -> None:
    """One was copied here; nobody can tell which chain the damaged link was of."""
    for name in ("here", "there"):
        three_links(tmp_path / name)
    link_file(tmp_path / "here", 1).write_bytes(link_file(tmp_path / "there", 1).read_bytes())
    damage(tmp_path / "here", 3)
    with pytest.raises(SnapshotCorrupt, match="chk-3/_metadata"):
        go_back(Owner(tmp_path / "here"))


def test_a_later_version_is_no_damage(tmp_path: Path) -> None:
    """What a newer partfile wrote can be read by it: upgrade."""
    three_links(tmp_path)
    path = link_file(tmp_path, 3)
    path.write_bytes(path.read_bytes().replace(*VERSIONS, 1))
    with pytest.raises(SnapshotVersionError, match=f"version {FORMAT_VERSION + 1}"):
        go_back(Owner(tmp_path))


def test_a_link_that_cannot_be_read_now_is_no_damage(tmp_path: Path) -> None:
    """A failing store says nothing about the link."""
    three_links(tmp_path)
    damage(tmp_path, 3)
    with pytest.raises(NotApplied, match="deliberate"):
        go_back(Owner(tmp_path, FailAt(2, NotApplied("deliberate"), only=["read_file"])))
    unread = FailAt(6, NotApplied("deliberate"), only=["read_file"])
    with pytest.raises(OutcomeUnknown, match="does not say"):
        go_back(Owner(tmp_path, unread, retained=9))
    assert held(go_back(Owner(tmp_path, retained=9))) == "old"


def test_a_huge_link_is_not_read(tmp_path: Path) -> None:
    """It is larger than any that was written; that is all that has to be known of it."""
    three_links(tmp_path)
    with link_file(tmp_path, 3).open("ab") as file:
        file.truncate(1 << 30)
    assert held(go_back(Owner(tmp_path, retained=9))) == "old"


@pytest.mark.item("CC-06", "DL-10")
@pytest.mark.parametrize("tried", [0, 9])
def test_no_id_that_may_have_been_triggered_is_used_again(tmp_path: Path, tried: int) -> None:
    """How many ids the damaged link reserves only it says: as many as any other, and each that has a directory."""
    three_links(tmp_path)
    damage(tmp_path, 3)
    if tried:
        write_text(storage(tmp_path, inline_threshold_bytes=0), tried, "x")
    first = storage(tmp_path).read_link(1)
    assert first is not None
    ahead = first.ids_ahead
    assert go_back(Owner(tmp_path, retained=9)).checkpoint_id == max(3 + ahead, tried) + 1


@pytest.mark.item("CC-06")
@pytest.mark.fault("M5")
def test_a_directory_that_no_coordinator_made_closes_no_ids(tmp_path: Path) -> None:
    """M5: it would take tombstones without end; the damage is told instead, and nothing is created."""
    three_links(tmp_path)
    damage(tmp_path, 3)
    (link_file(tmp_path, 3).parent.parent / f"chk-{3 + MAX_IDS_AHEAD + 1}").mkdir()
    links = storage(tmp_path).list_links()
    with pytest.raises(SnapshotCorrupt):
        go_back(Owner(tmp_path, retained=9))
    assert storage(tmp_path).list_links() == links
