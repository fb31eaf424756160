"""Pending parts are read where a checkpoint vouches for them, and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from life_cycle import batch, continue_to, long_sink, seed_with_a_tail

import partfile as pf
from partfile.errors import NotApplied, NotFound, NotReady
from partfile.readers.streams import ReadableFile, with_pending
from partfile.sink.policies import PartNumber
from partfile.stores.local.store import LocalStore
from partfile.stores.parts import rewritten

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pyarrow.dataset as ds

    from partfile.stores.base import Cut, PartHandle

TEXT = pa.schema({"value": pa.string()})


def values(dataset: ds.Dataset, column: str = "value") -> list[Any]:
    return sorted(dataset.to_table()[column].to_pylist())


def numbered(numbers: Iterable[int]) -> list[str]:
    return [f"row-{number:04d}" for number in numbers]


class Unpublishing(LocalStore):
    """A store that cannot publish for now."""

    def publish(self, handle: PartHandle, cut: Cut) -> None:
        """Refuse."""
        raise NotApplied(f"not now: {handle.name}, {cut}")


def unpublishing(url: str, _options: Any) -> LocalStore:
    return Unpublishing(url)


def test_pending_parts_count_as_the_newest_checkpoint_says(tmp_path: Path) -> None:
    """Parts of a dead run are read at their valid length, by names that change meanwhile; open parts are not."""
    seed_with_a_tail(tmp_path)
    out = long_sink(tmp_path, open_store=unpublishing).local().open()
    out.write(batch(4, 2), position=6)
    out.checkpoint()
    assert values(pf.read(tmp_path, schema=TEXT)) == []
    pending = pf.read(tmp_path, include="pending")
    assert values(pending) == numbered(range(4))
    out.close()
    continue_to(long_sink(tmp_path), 12)
    assert values(pending) == numbered(range(4))
    assert values(pf.read(tmp_path, include="pending")) == values(pf.read(tmp_path)) == numbered(range(12))


def test_what_no_checkpoint_names_is_not_pending(tmp_path: Path) -> None:
    """A pending file of an attempt that was given up does not count: its rows come again."""
    continue_to(long_sink(tmp_path), 4)
    token = "ab" * 16
    (tmp_path / "bucket=b0" / f"_part-00000000-0-9.txt.{token}.pending").write_text("row-0004\n")
    assert values(pf.read(tmp_path, include="pending")) == numbered(range(4))


def test_a_part_that_is_finished_by_now_is_read_once() -> None:
    """A checkpoint goes on naming a part until all of its parts are published."""
    part = pf.PartNaming().handle("b", PartNumber("0" * 8, 0, 0), suffix=".txt", token="0" * 32).at(4)
    whole = ReadableFile("b/part-00000000-0-0.txt", 4, ("b/part-00000000-0-0.txt",), is_whole=True)
    other = ReadableFile("a/part", 1, ("a/part",), is_whole=True)
    assert with_pending([other, whole], [part]) == [other, whole]
    (added,) = with_pending([], [part, part])
    assert (added.path, added.valid_length, added.is_whole) == (whole.path, 4, False)
    names = (part.in_progress, part.pending, rewritten(part).pending, part.name)
    assert added.names == tuple(map(part.path_of, names))


def test_pending_parts_need_checkpoints(tmp_path: Path) -> None:
    """Where they are not found the error says so; where the sink keeps them elsewhere, the reader is told."""
    (tmp_path / "part-0.txt").write_text("a\n")
    with pytest.raises(NotFound, match=r"no checkpoints at '.*_partfile'.*checkpoint_dir="):
        pf.read(tmp_path, include="pending")
    base, elsewhere = tmp_path / "base", tmp_path / "checkpoints"
    with pytest.raises(NotReady, match="2 of its parts not be published"):
        continue_to(long_sink(base, checkpoint_dir=elsewhere, open_store=unpublishing), 4)
    assert values(pf.read(base, include="pending", checkpoint_dir=elsewhere)) == numbered(range(4))
