"""Durations and sizes as users write them: ``15m``, ``7 days``, ``128 MiB``."""

from __future__ import annotations

import re
from datetime import timedelta

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
"""Seconds of each unit."""
DURATION_HINT = "Write a number and s, m, h, d or w, for instance --older-than 24h."
SIZE_HINT = "Write bytes, or a number and K, M, G or T, for instance --min-bytes 5M."
"""What to do about text that is neither."""

_WORDS = {"sec": "s", "second": "s", "min": "m", "minute": "m", "hour": "h", "day": "d", "week": "w"}
_DURATION = re.compile(rf"([0-9]{{1,9}}(?:\.[0-9]{{1,3}})?)\s*(?:([smhdw])|({'|'.join(_WORDS)})s?)", re.IGNORECASE)
_SIZE = re.compile(r"([0-9]{1,15})\s*([KMGT]?)(?:iB|B)?", re.IGNORECASE)
_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def seconds_in(text: str) -> float | None:
    """The seconds that ``90s``, ``15m``, ``24h``, ``7 days`` or ``2w`` stand for; None if it is no duration."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        return None
    unit = match[2] or _WORDS[match[3].lower()]
    return float(match[1]) * SECONDS[unit.lower()]


def duration_s(given: object) -> float | None:
    """The seconds of a number, a ``timedelta`` or text such as ``10s``; None if it is none, or less than nothing."""
    if isinstance(given, timedelta):
        given = given.total_seconds()
    elif isinstance(given, str):
        given = seconds_in(given)
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < float("inf"):
        return None
    return float(given)


def bytes_in(text: str) -> int | None:
    """The bytes that ``5242880``, ``512K``, ``5M`` or ``5 MiB`` stand for; None if it is no size.

    Units are powers of 1024, however they are written, as in Spark's and Hadoop's options.
    """
    match = _SIZE.fullmatch(text.strip())
    return None if match is None else int(match[1]) * _BYTES[match[2].upper()]
