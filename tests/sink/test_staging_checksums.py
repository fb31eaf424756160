"""Staging files whose bytes have changed at rest.

Told by their checksum, before anything in them is decoded or published.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import pytest

from partfile.errors import PartDamaged, PartfileError
from partfile.sink.coordinator import Runtime
from partfile.sink.encode import LocalEncoder, encode_staging_file
from partfile.sink.plan import with_closed
from partfile.stores.local.store import LocalStore
from partfile.writers import arrow_staging
from support.sinks.dead import crash_when_promised
from support.sinks.life_cycle import batch, finished_files
from support.sinks.recovery import go_back
from support.sinks.shared_streams import many, shared_in, sharing_sink
from support.sinks.staged_streams import (
    STAGED,
    StagingFiles,
    checkpoint_ids,
    finished_rows,
    names,
    pending_in,
    staged_sink,
    staging_files_in,
)

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from partfile.sink.plan import SinkSnapshot
    from partfile.sink.states import ClosedStagingFile, OpenPart


pytestmark = pytest.mark.fault("F18")


@pytest.fixture(autouse=True, params=["short", "long"])
def _length(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short staging files are compared in memory, long ones where they are."""
    if request.param == "long":
        monkeypatch.setattr(arrow_staging, "MOST_WHOLE_BYTES", 0)


def state_of(base: Path) -> SinkSnapshot:
    """The state in force."""
    runtime = Runtime(staged_sink(base).settings, "life")
    state = runtime.coordinator.look()
    runtime.close()
    assert state is not None
    return state


def opened(base: Path) -> list[OpenPart]:
    return [part for parts in state_of(base).open.values() for part in parts]


def closed(base: Path) -> list[ClosedStagingFile]:
    """The open staging files of a sink, as its next start would roll them."""
    state = state_of(base)
    return list(with_closed(state, state.open[0], 9).closed)


def flip(path: Path, place: int, bit: int = 0) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << bit
    path.write_bytes(data)


def crashed(base: Path, **options: Any) -> None:
    """Two staging files of two rows each that a checkpoint vouches for, and a third row beyond it."""
    out = staged_sink(base, **options).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    out.write(batch(4, 2), position=6)
    out.close()


def test_a_flipped_bit_at_any_place_is_told(tmp_path: Path, rng: random.Random) -> None:
    """In the schema, in a message's head, in a buffer or in its padding.

    No file is left, and the staging file is named.
    """
    crashed(tmp_path)
    store = LocalStore(str(tmp_path))
    staging_file = closed(tmp_path)[0]
    path = tmp_path / staging_file.part.path_of(staging_file.part.in_progress)
    for place in range(staging_file.part.valid_length):
        bit = rng.randrange(8)
        flip(path, place, bit)
        with pytest.raises(PartDamaged, match="is not what was written: the CRC-32") as told:
            encode_staging_file(store, staging_file.part, staging_file.staging_file, staging_file.rows)
        assert told.value.path == staging_file.part.path_of(staging_file.part.in_progress)
        assert "backup" in told.value.hint
        flip(path, place, bit)
    assert pending_in(tmp_path) == []
    (file,) = encode_staging_file(store, staging_file.part, staging_file.staging_file, staging_file.rows)
    assert file.rows == 2


def test_a_start_publishes_all_but_the_damaged_staging_file(tmp_path: Path) -> None:
    """It ends with the staging file's name as often as it is tried; once the bytes are back, nothing is lost."""
    crashed(tmp_path)
    path = staging_files_in(tmp_path)[0]
    flip(path, 300)
    for _ in range(2):
        with pytest.raises(PartDamaged, match=r"(?s)'life'.*is not what was written"):
            staged_sink(tmp_path).local().open()
        assert finished_rows(tmp_path) == {"row-0001": 1, "row-0003": 1}
        assert pending_in(tmp_path) == []
    flip(path, 300)
    with staged_sink(tmp_path).local() as out:
        assert out.position == 4
    assert finished_rows(tmp_path) == names(0, 4)


def test_a_task_does_not_encode_a_staging_file_that_was_damaged_while_it_was_open(tmp_path: Path) -> None:
    """Neither at the roll nor at the clean end, and no checkpoint counts it."""
    out = staged_sink(tmp_path, bucketer=None).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    before = checkpoint_ids(tmp_path)
    flip(staging_files_in(tmp_path)[0], -5)
    with pytest.raises(PartDamaged, match="is not what was written"):
        out._operator.roll_all()
    out.close()
    assert (finished_files(tmp_path), checkpoint_ids(tmp_path)) == ({}, before)


@pytest.mark.parametrize("is_open", [True, False])
def test_a_clean_end_that_meets_a_damaged_staging_file_closes_the_sink(tmp_path: Path, *, is_open: bool) -> None:
    """As every other verb does that fails: one that is open when it is rolled, one that waits when all is closed."""
    staging_files = StagingFiles()
    if not is_open:
        crashed(tmp_path, bucketer=None)
        staging_files.are_readable = False
    out = staged_sink(tmp_path, bucketer=None, open_store=staging_files.open_store).local().open()
    if is_open:
        out.write(batch(0, 4), position=4)
    # It waits for ten seconds after a second try; but not at the end.
    out.checkpoint()
    staging_files.are_readable = True
    flip(staging_files_in(tmp_path)[0], 300)
    with pytest.raises(PartDamaged, match="is not what was written"):
        out.finish()
    with pytest.raises(PartfileError, match="not open any more"):
        out.checkpoint()
    flip(staging_files_in(tmp_path)[0], 300)
    with staged_sink(tmp_path, bucketer=None).local():
        assert finished_rows(tmp_path) == names(0, 4)


@pytest.mark.parametrize("place", [0, 300, -1])
def test_a_checksum_goes_on_over_restores(tmp_path: Path, place: int) -> None:
    """Each run adds to what the last one kept without reading it; damage to what the first one wrote is still told."""
    lengths = []
    for run in range(3):
        with staged_sink(tmp_path, bucketer=None, on_stop="keep").local() as out:
            out.write(batch(2 * run, 2), position=2 * run + 2)
        (part,) = opened(tmp_path)
        (path,) = staging_files_in(tmp_path)
        assert part.staging_file is not None
        assert part.staging_file.crc32 == zlib.crc32(path.read_bytes()[: part.part.valid_length])
        lengths.append(part.part.valid_length)
    assert lengths == sorted(set(lengths))
    damaged = place if place >= 0 else lengths[0] - 1
    flip(path, damaged)
    (encoded,) = LocalEncoder(LocalStore(str(tmp_path)), 1).encode(closed(tmp_path))
    assert isinstance(encoded.problem, PartDamaged)
    flip(path, damaged)
    with staged_sink(tmp_path, bucketer=None).local():
        pass
    assert finished_rows(tmp_path) == names(0, 6)


@pytest.mark.parametrize("is_before", [True, False])
def test_an_older_checkpoint_has_the_checksum_of_its_own_length(tmp_path: Path, *, is_before: bool) -> None:
    """Damage behind what it vouches for does not matter to a recovery that goes back to it; damage before does."""
    out = staged_sink(tmp_path, retained_checkpoints=9, bucketer=None).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    chosen = tmp_path / "_partfile" / "life" / f"chk-{checkpoint_ids(tmp_path)[-1]}"
    (older,) = opened(tmp_path)
    out.write(batch(4, 4), position=8)
    out.checkpoint()
    out.close()
    flip(staging_files_in(tmp_path)[0], older.part.valid_length + (-1 if is_before else 1))
    if is_before:
        with pytest.raises(PartDamaged):
            go_back(tmp_path, chosen)
        assert finished_files(tmp_path) == {}
    else:
        go_back(tmp_path, chosen)
        assert finished_rows(tmp_path) == names(0, 4)


@pytest.mark.parametrize("format", ["parquet", "json"])
def test_a_damaged_multi_bucket_staging_file_gives_no_file(tmp_path: Path, format: str, rng: random.Random) -> None:
    """Of no bucket, wherever the bit was."""
    out = sharing_sink(tmp_path, format=format).local().open()
    out.write(many(0), position=1)
    out.checkpoint()
    out.close()
    (staging_file,) = closed(tmp_path)
    (path,) = shared_in(tmp_path)
    for _ in range(40):
        place = rng.randrange(staging_file.part.valid_length)
        flip(path, place)
        (encoded,) = LocalEncoder(LocalStore(str(tmp_path)), 1).encode([staging_file])
        assert isinstance(encoded.problem, PartDamaged)
        assert "is not what was written" in str(encoded.problem)
        assert not list(tmp_path.rglob("*.pending"))
        flip(path, place)


@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_a_checkpoint_promises_a_file_with_its_checksum(tmp_path: Path, format: str) -> None:
    """Of all bytes that it has when it is durable; parts that were not encoded have none."""
    crash_when_promised(tmp_path / "staged", **(STAGED | {"format": format}))
    crash_when_promised(tmp_path / "text")
    promised = state_of(tmp_path / "staged").pending
    assert promised
    for pending in promised:
        data = (tmp_path / "staged" / pending.part.path_of(pending.part.pending)).read_bytes()
        assert (pending.crc32, pending.part.valid_length) == (zlib.crc32(data), len(data))
    assert {pending.crc32 for pending in state_of(tmp_path / "text").pending} == {None}
