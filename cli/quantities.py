"""How durations and sizes are written and read on the command line: ``24h``, ``5 MiB``. Pure."""

from __future__ import annotations

import re

from partfile.filesystems.errors import ConfigError

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)\s*([smhdw])")
_SIZE = re.compile(r"([0-9]{1,15})\s*([KMGT]?)(?:iB|B)?", re.IGNORECASE)


def seconds_of(text: str, option: str) -> float:
    """The seconds that ``90s``, ``15m``, ``24h``, ``7d`` or ``2w`` stand for.

    Args:
        text: As it was written.
        option: The option it was given as, for the message.

    Raises:
        ConfigError: It is something else.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"{option} {text!r} is no duration", hint="Write a number and s, m, h, d or w, for instance 24h."
        )
    return float(match[1]) * _SECONDS[match[2]]


def bytes_of(text: str, option: str) -> int:
    """The bytes that ``5242880``, ``512K``, ``5M`` or ``5MiB`` stand for; units are powers of 1024.

    Args:
        text: As it was written.
        option: The option it was given as, for the message.

    Raises:
        ConfigError: It is something else.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"{option} {text!r} is no size", hint="Write bytes, or a number and K, M, G or T, for instance 5M."
        )
    return int(match[1]) * _BYTES[match[2].upper()]


def shown_seconds(seconds: float | None) -> str:
    """A duration as people say it, in two units at most; ``?`` if it is not known."""
    if seconds is None:
        return "?"
    left = max(0, int(seconds))
    words: list[str] = []
    for unit in ("d", "h", "m", "s"):
        count, left = divmod(left, _SECONDS[unit])
        if count or (unit == "s" and not words):
            words.append(f"{count}{unit}")
        if len(words) == 2 or (words and not count):  # noqa: PLR2004 - two units
            break
    return " ".join(words[:2])


def shown_bytes(count: int | None) -> str:
    """A size as people say it; ``?`` if it is not known."""
    if count is None:
        return "?"
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:  # noqa: PLR2004 - the next unit
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
