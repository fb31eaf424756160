"""A link that a fenced coordinator leaves under a freed name: nobody goes on from it, and the next start deletes it.

It is not deleted by its creator, who cannot tell it from a link that another start has gone on from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from checkpoint_owner import Owner, held, storage

from partfile.errors import Fenced
from partfile.testing.faults import ActAt

if TYPE_CHECKING:
    from pathlib import Path


def leave_a_stray(base: Path, sleeper: Owner, other: Owner, batches: int = 3) -> None:
    """The other goes on until the sleeper's next name is free again; then the sleeper wakes up."""
    for number in range(batches):
        other.complete(f"b{number}")
    with pytest.raises(Fenced):
        sleeper.complete("zombie")
    assert storage(base).list_links()[0] == 2


def sleeper_and_other(base: Path) -> tuple[Owner, Owner]:
    """One that knows link 1 as the newest, and one that has started since."""
    sleeper, other = Owner(base), Owner(base)
    sleeper.start()
    other.start()
    return sleeper, other


@pytest.mark.item("DL-11")
def test_a_stray_link_is_deleted_by_the_next_start(tmp_path: Path) -> None:
    """The fenced one deletes nothing, the row has a hole; a start goes on from the newest and subsumes the stray."""
    sleeper, other = sleeper_and_other(tmp_path)
    leave_a_stray(tmp_path, sleeper, other)
    assert storage(tmp_path).list_links() == [2, 6, 7]
    other.complete("c")
    assert storage(tmp_path).list_links() == [2, 7, 8]
    assert held(Owner(tmp_path).start()) == "c"
    assert storage(tmp_path).list_links() == [8, 9, 10, 11]


def test_a_link_that_another_start_went_on_from_is_no_stray(tmp_path: Path) -> None:
    """Its creator slept before it looked, and finds its predecessor subsumed: fenced, but the link is in the chain."""

    def others_go_on() -> None:
        Owner(tmp_path).start()

    sleeper = Owner(tmp_path, ActAt(3, others_go_on, "after", only=["create_file"]))
    sleeper.start()
    sleeper.complete("a")
    with pytest.raises(Fenced):
        sleeper.complete("b")
    assert storage(tmp_path).list_links() == [3, 4, 5, 6]
    own, after, newest = (storage(tmp_path).read_link(number) for number in (3, 4, 6))
    assert held(own) == held(newest) == "b"
    assert own is not None
    assert after is not None
    assert after.predecessor == own.ref


@pytest.mark.parametrize("batches", [3, 4])
@pytest.mark.fault("S12")
def test_a_slow_list_does_not_go_on_from_a_stray(tmp_path: Path, batches: int) -> None:
    """A start that lists names before, and looks at them after, others went on: the stray alone seems to be there.

    Its next name is free and its predecessor stands, so only the link above tells that the chain has gone on.
    """
    sleeper, other = sleeper_and_other(tmp_path)
    seen: list[str | None] = []
    late = Owner(
        tmp_path, ActAt(2, lambda: leave_a_stray(tmp_path, sleeper, other, batches), "before", only=["list_names"])
    )
    link = late.start(seen.append)
    assert seen == ["zombie", f"b{batches - 1}"]
    assert (held(link), link.checkpoint_id) == (f"b{batches - 1}", batches + 7)
    with pytest.raises(Fenced):
        other.complete("c")


@pytest.mark.parametrize("retained", [1, 2])
def test_a_first_link_that_is_stray_does_not_stop_its_own_start(tmp_path: Path, retained: int) -> None:
    """It is of a chain of its own; beside a single retained link that would tell of a copy from elsewhere."""

    def others_go_on() -> None:
        other = Owner(tmp_path, retained=retained)
        other.start()
        for number in range(3):
            other.complete(f"b{number}")

    late = Owner(tmp_path, ActAt(1, others_go_on, only=["create_file"]), retained=retained)
    assert held(late.start()) == "b2"
    assert storage(tmp_path).list_links() == ([7] if retained == 1 else [4, 5, 6, 7])
