"""``verify`` beside a sink that moves on at the worst moment: between two of its looks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from life_cycle import batch, make_sink, run_to_the_end

from partfile.recovery.inspect.places import Place
from partfile.recovery.inspect.verify import verify
from partfile.stores.local.store import LocalStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from partfile.recovery.inspect.verify import VerifyReport
    from partfile.stores.base import StoredFile


class WatchedStore(LocalStore):
    """A store whose listings are counted, each after something has happened."""

    def __init__(self, base: str, happens: Callable[[int], object]) -> None:
        super().__init__(base, create_base=False)
        self._happens = happens
        self.listings = 0

    def list(self, directory: str = "") -> Iterator[StoredFile]:
        """List, after it has happened."""
        self.listings += 1
        self._happens(self.listings)
        yield from super().list(directory)


def looked(base: Path, happens: Callable[[int], object]) -> tuple[VerifyReport, int]:
    """What verify finds while something happens before each listing, and how often it listed."""
    place = Place(str(base))
    checkpoints: Any = place.open_checkpoints()
    with WatchedStore(str(base), happens) as store, checkpoints:
        return verify(place, store, checkpoints, None, lambda _steps: None), store.listings


def test_what_is_finished_after_the_first_reading_is_judged_by_the_second(tmp_path: Path) -> None:
    """Parts with numbers beyond the counter that was read first are right by the one that is read afterwards."""
    with make_sink(tmp_path).local() as out:
        out.write(batch(0, 8), position=8)
        out.checkpoint()

        def moves_on(_listing: int) -> None:
            out.write(batch(8, 8), position=16)
            out.checkpoint()
            out.write(batch(16, 8), position=24)
            out.checkpoint()

        report, listings = looked(tmp_path, moves_on)
    assert report.errors == []
    assert listings == 1


def test_a_part_that_is_published_and_moved_away_meanwhile_is_not_missing(tmp_path: Path) -> None:
    """What had to be there by the first reading is not missed if the checkpoints do not name it any more."""
    with make_sink(tmp_path).local() as out:
        out.write(batch(0, 2), position=2)
        out.checkpoint()

        def is_consumed(_listing: int) -> None:
            out.write(batch(2, 8), position=10)
            out.checkpoint()
            out.checkpoint()
            for path in tmp_path.glob("bucket=*/part-*"):
                path.unlink()

        report, listings = looked(tmp_path, is_consumed)
    assert report.errors == []
    assert listings == 1


def test_what_is_seen_once_is_no_finding(tmp_path: Path) -> None:
    """Parts between two names, as each is for an instant while it is published, are looked at again."""
    run_to_the_end(make_sink(tmp_path))
    finished = sorted(tmp_path.glob("bucket=*/part-*"))

    def staged_name(path: Path) -> Path:
        return path.with_name(f"_{path.name}.{'c' * 32}.pending")

    def is_linked(listing: int) -> None:
        # At each look it is another part's turn.
        staged_name(finished[listing - 1]).hardlink_to(finished[listing - 1])
        if listing > 1:
            staged_name(finished[listing - 2]).unlink()

    report, listings = looked(tmp_path, is_linked)
    assert report.errors == []
    assert listings == 2
