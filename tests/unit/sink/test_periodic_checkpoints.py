"""Checkpoints that a LocalSink takes by itself: when, with which position, and what happens when one fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from life_cycle import assert_exactly_once, batch, continue_to, long_sink, make_sink, run_to_the_end

import partfile as pf
from partfile.errors import ConfigError, Fenced, PartfileError

if TYPE_CHECKING:
    from pathlib import Path

    from partfile.sink.progress import BatchProgress


class Clock:
    """A clock that stands still unless the test moves it."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        """The time."""
        return self.now_ms


class SlowPolicy(pf.RollingPolicy):
    """Deciding about a part at a checkpoint takes longer than any interval."""

    clock: Clock

    def should_roll_on_checkpoint(self, part: pf.PartProgress) -> bool:
        """Time passes."""
        self.clock.now_ms += 100_000
        return super().should_roll_on_checkpoint(part)


class Progress(list["BatchProgress"]):
    """What a sink reports."""

    @property
    def ids(self) -> list[int]:
        """The ids of the checkpoints."""
        return [one.checkpoint_id for one in self]


@pytest.mark.item("LT-03", "CC-08")
def test_checkpoints_are_taken_when_the_interval_is_over(tmp_path: Path) -> None:
    """The write that finds it over ends with a checkpoint, which holds its rows and its position; others do not."""
    clock, told = Clock(), Progress()
    out = long_sink(tmp_path, clock=clock, on_progress=told.append).local(checkpoint_interval_s=60).open()
    for number, time in enumerate((0, 59_999, 60_000, 119_999, 120_000), start=1):
        clock.now_ms = 1_000_000 + time
        out.write(batch(2 * number - 2, 2), position=2 * number)
    assert told.ids == [2, 3]
    assert [one.rows for one in told] == [6, 4]
    assert out.position == 10
    out.close()
    assert continue_to(make_sink(tmp_path), 12) == 10
    assert_exactly_once(tmp_path, 12)


@pytest.mark.item("CC-08")
def test_a_checkpoint_that_was_asked_for_puts_the_periodic_one_off(tmp_path: Path) -> None:
    """There is always the whole interval between two."""
    clock, told = Clock(), Progress()
    out = long_sink(tmp_path, clock=clock, on_progress=told.append).local(checkpoint_interval_s=60).open()
    clock.now_ms += 40_000
    out.checkpoint()
    for time, ids in ((30_000, [2]), (29_999, [2]), (1, [2, 3])):
        clock.now_ms += time
        out.poll()
        assert told.ids == ids
    out.close()


@pytest.mark.item("LT-04", "CC-08")
def test_the_interval_counts_from_the_end_of_a_slow_checkpoint(tmp_path: Path) -> None:
    """One that takes longer than the interval is not followed by the next at once."""
    clock = Clock()
    rolling = SlowPolicy(rollover_interval_s=1e6, inactivity_interval_s=1e6, clock=clock)
    out = make_sink(tmp_path, clock=clock, rolling=rolling).local(checkpoint_interval_s=60).open()
    out.write(batch(0, 1), position=1)
    clock.now_ms += 60_000
    assert out.poll() is not None
    clock.now_ms += 59_999
    assert out.poll() is None
    clock.now_ms += 1
    assert out.poll() is not None
    out.close()


def test_without_an_interval_nothing_is_taken_unasked(tmp_path: Path) -> None:
    """Neither writing nor polling takes a checkpoint, however long it has been, and no position is needed."""
    clock, told = Clock(), Progress()
    out = long_sink(tmp_path, clock=clock, on_progress=told.append).local().open()
    clock.now_ms += 10**9
    out.write(batch(0, 2))
    assert out.poll() is None
    assert told == []
    out.close()


def test_a_write_without_a_position_is_refused(tmp_path: Path) -> None:
    """A checkpoint after it would say that the input stands where it stood before; nothing is written, it goes on."""
    clock = Clock()
    with long_sink(tmp_path, clock=clock).local(checkpoint_interval_s=60) as out:
        with pytest.raises(ConfigError, match="write needs a position"):
            out.write(batch(0, 2))
        out.write(batch(0, 2), position=2)
    assert_exactly_once(tmp_path, 2)


def test_a_periodic_checkpoint_that_is_fenced_closes_the_sink(tmp_path: Path) -> None:
    """As one that was asked for: the rows since the last one do not count here, and the rival goes on."""
    clock = Clock()
    out = long_sink(tmp_path, clock=clock).local(checkpoint_interval_s=60).open()
    out.write(batch(0, 2), position=2)
    rival = long_sink(tmp_path).local().open()
    clock.now_ms += 60_000
    with pytest.raises(Fenced):
        out.write(batch(2, 2), position=4)
    with pytest.raises(PartfileError, match="closed"):
        out.poll()
    assert rival.position is None
    rival.close()
    run_to_the_end(make_sink(tmp_path))
    assert_exactly_once(tmp_path)


@pytest.mark.parametrize("interval", [0, -1, float("nan"), float("inf"), "60", True, 10**10])
def test_an_interval_that_is_none_is_refused(tmp_path: Path, interval: Any) -> None:
    """The error names it; nothing is opened."""
    with pytest.raises(ConfigError, match="checkpoint_interval_s is"):
        make_sink(tmp_path / "out").local(checkpoint_interval_s=interval)
    assert not (tmp_path / "out").exists()


@pytest.mark.item("SS-03")
def test_an_offset_that_is_moved_on_in_place_is_not_the_position(tmp_path: Path) -> None:
    """A position is kept as it was passed, and given out as it is kept: rows not written yet never count as written."""
    clock = Clock()
    out = long_sink(tmp_path, clock=clock).local(checkpoint_interval_s=60).open()
    offset: Any = {"at": [4]}
    out.write(batch(0, 4), position=offset)
    offset["at"][0] = 8
    clock.now_ms += 60_000
    assert out.poll()
    assert out.position == {"at": [4]}
    given: Any = out.position
    given["at"][0] = 9
    assert out.position == {"at": [4]}
    out.checkpoint(offset)
    offset["at"][0] = 12
    out.close()
    with long_sink(tmp_path).local() as again:
        assert again.position == {"at": [8]}


@pytest.mark.item("CC-08")
@pytest.mark.fault("T1")
def test_a_clock_that_is_set_back_puts_nothing_off_for_long(tmp_path: Path) -> None:
    """An hour back: the next checkpoint comes one interval later, by the new time, and so do those after it."""
    clock, told = Clock(), Progress()
    clock.now_ms = 10_000_000
    out = long_sink(tmp_path, clock=clock, on_progress=told.append).local(checkpoint_interval_s=10).open()
    out.write(batch(0, 1), position=1)
    clock.now_ms += 10_000
    assert out.poll()
    clock.now_ms -= 3_600_000
    out.write(batch(1, 1), position=2)
    taken = len(told)
    for _ in range(3):
        clock.now_ms += 10_000
        out.write(batch(2, 1), position=3)
    assert len(told) >= taken + 2
    out.close()
