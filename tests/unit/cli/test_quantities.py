"""Durations and sizes are read as people write them, and written as people read them."""

from __future__ import annotations

import pytest

from partfile import ConfigError
from partfile.cli.output import bytes_of, seconds_of, shown_bytes, shown_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0s", 0), ("90s", 90), ("15m", 900), ("24h", 86_400), ("7d", 604_800), ("2w", 1_209_600), ("1.5h", 5400)],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    """A number and its unit are seconds."""
    assert seconds_of(text, "--for") == seconds


@pytest.mark.parametrize("text", ["", "24", "h", "-1h", "1h30m", "1y", "1e3s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """Without a unit, or with one that is not known, nobody guesses."""
    with pytest.raises(ConfigError, match=r"^--for .* no duration"):
        seconds_of(text, "--for")


@pytest.mark.parametrize(
    ("text", "count"), [("0", 0), ("512", 512), ("512B", 512), ("1K", 1024), ("5MiB", 5 << 20), ("2 g", 2 << 30)]
)
def test_sizes_are_read(text: str, count: int) -> None:
    """Units are powers of 1024."""
    assert bytes_of(text, "--least") == count


@pytest.mark.parametrize("text", ["", "M", "-1", "1.5M", "1X"])
def test_what_is_no_size_is_refused(text: str) -> None:
    """What is not a whole number and a known unit is refused."""
    with pytest.raises(ConfigError, match=r"^--least .* no size"):
        bytes_of(text, "--least")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "?"), (-5, "0s"), (0.4, "0s"), (59, "59s"), (60, "1m"), (3661, "1h 1m"), (90_000, "1d 1h"), (86_405, "1d")],
)
def test_durations_are_shown(seconds: float | None, text: str) -> None:
    """Two units at most, the largest first."""
    assert shown_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(None, "?"), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB")]
)
def test_sizes_are_shown(count: int | None, text: str) -> None:
    """The unit that leaves a number below 1024."""
    assert shown_bytes(count) == text
