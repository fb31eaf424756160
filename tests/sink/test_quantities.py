"""Durations and sizes as users write them, and where the options of a sink take them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import partfile as pf
from partfile.errors import ConfigError
from partfile.quantities import bytes_in, seconds_in
from support.sinks.life_cycle import batch

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0s", 0),
        (" 90 s ", 90),
        ("15m", 900),
        ("15 minutes", 900),
        ("1 minute", 60),
        ("2 Hours", 7200),
        ("1.5h", 5400),
        ("24H", 86_400),
        ("7 days", 604_800),
        ("2w", 1_209_600),
        ("5 min", 300),
        ("30 sec", 30),
    ],
)
def test_a_duration_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    """A letter or a word as Spark's triggers have it."""
    assert seconds_in(text) == seconds


@pytest.mark.parametrize("text", ["", "24", "h", "-1h", "1h30m", "1y", "1e3s", "5 ms", "5 mins ago", "nan s"])
def test_what_is_no_duration_is_none(text: str) -> None:
    """Without a unit, or with one that is not known, nothing is guessed."""
    assert seconds_in(text) is None


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("512", 512),
        ("512B", 512),
        ("1K", 1024),
        ("128MB", 128 << 20),
        ("128 MiB", 128 << 20),
        ("2 g", 2 << 30),
    ],
)
def test_a_size_is_a_number_and_a_power_of_1024(text: str, count: int) -> None:
    """However its unit is written."""
    assert bytes_in(text) == count


@pytest.mark.parametrize("text", ["", "M", "-1", "1.5M", "1X", "1 M B"])
def test_what_is_no_size_is_none(text: str) -> None:
    """Neither is a part of a byte, or a unit that is not known."""
    assert bytes_in(text) is None


def test_a_rolling_policy_takes_them() -> None:
    """Numbers, text and time spans are the same policy."""
    numbers = pf.RollingPolicy(max_part_bytes=64 << 20, rollover_interval_s=7200, inactivity_interval_s=90)
    texts = pf.RollingPolicy(max_part_bytes="64 MiB", rollover_interval_s="2h", inactivity_interval_s="90s")
    spans = pf.RollingPolicy(
        max_part_bytes="64m", rollover_interval_s=timedelta(hours=2), inactivity_interval_s=timedelta(seconds=90)
    )
    assert numbers == texts == spans
    assert type(texts.rollover_interval_s) is float


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"max_part_bytes": "128 XB"},
            r"max_part_bytes='128 XB': it is no size; write bytes, or for instance '128 MiB'",
        ),
        ({"max_part_bytes": "0"}, r"max_part_bytes=0: it must be more than 0"),
        ({"max_part_bytes": 1.5}, r"max_part_bytes=1\.5: it must be a whole number"),
        ({"rollover_interval_s": "soon"}, r"rollover_interval_s='soon': it is no duration; write seconds, a timedelta"),
        ({"rollover_interval_s": "900"}, r"rollover_interval_s='900': it is no duration"),
        ({"inactivity_interval_s": timedelta(0)}, r"inactivity_interval_s=.*: it must be more than 0"),
        ({"inactivity_interval_s": None}, r"inactivity_interval_s=None: it must be a number"),
        ({"on_checkpoint": "perhaps"}, r"on_checkpoint='perhaps': it must be True or False"),
    ],
)
def test_what_a_rolling_policy_cannot_use_is_told_in_plain_words(options: dict[str, Any], told: str) -> None:
    """The message names the option, what was given, and what it must be."""
    with pytest.raises(ConfigError, match=rf"^RollingPolicy: {told}"):
        pf.RollingPolicy(**options)


@pytest.mark.parametrize("interval", [60, "1m", "1 minute", timedelta(minutes=1)])
def test_checkpoints_are_taken_at_an_interval_in_any_form(tmp_path: Path, interval: float | str | timedelta) -> None:
    """The first write after the interval takes one, whatever the interval was written as."""
    now_ms = [1_000_000]
    sink = pf.FileSink(tmp_path / "out", uid="timed", clock=lambda: now_ms[0])
    with sink.local(checkpoint_interval_s=interval) as out:
        out.write(batch(0, 4), position=4)
        now_ms[0] += 59_999
        out.write(batch(4, 8), position=8)
        assert out.position is None
        now_ms[0] += 1
        out.write(batch(8, 12), position=12)
        assert out.position == 12


@pytest.mark.parametrize("interval", ["soon", "60", "0s", timedelta(0), True])
def test_an_interval_of_checkpoints_that_makes_no_sense_is_refused(
    tmp_path: Path, interval: float | str | timedelta
) -> None:
    """The message says what may be written."""
    with pytest.raises(ConfigError, match="checkpoint_interval_s is"):
        pf.FileSink(tmp_path / "out", uid="timed").local(checkpoint_interval_s=interval)
