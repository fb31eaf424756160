"""A strftime that depends on nothing but the time: not on locale, libc or the machine's own zone."""

from __future__ import annotations

import re
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING

from partfile.bucketers.escaping import escape_path
from partfile.filesystems.errors import BucketValueError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_SHORT_FORMS = {"F": "%Y-%m-%d", "T": "%H:%M:%S", "R": "%H:%M", "D": "%m/%d/%y", "h": "%b"}
_SHOWN: dict[str, Callable[[datetime], str]] = {
    "%": lambda _: "%",
    # strftime pads the years before 1000 on some platforms and not on others.
    "Y": lambda time: f"{time.year:04d}",
    "y": lambda time: f"{time.year % 100:02d}",
    "C": lambda time: f"{time.year // 100:02d}",
    "m": lambda time: f"{time.month:02d}",
    "B": lambda time: _MONTHS[time.month - 1],
    "b": lambda time: _MONTHS[time.month - 1][:3],
    "d": lambda time: f"{time.day:02d}",
    "e": lambda time: f"{time.day:2d}",
    "j": lambda time: f"{time.timetuple().tm_yday:03d}",
    "A": lambda time: _DAYS[time.weekday()],
    "a": lambda time: _DAYS[time.weekday()][:3],
    "u": lambda time: str(time.isoweekday()),
    "w": lambda time: str(time.isoweekday() % 7),
    "G": lambda time: f"{time.isocalendar().year:04d}",
    "g": lambda time: f"{time.isocalendar().year % 100:02d}",
    "V": lambda time: f"{time.isocalendar().week:02d}",
    "W": lambda time: f"{(time.timetuple().tm_yday + 6 - time.weekday()) // 7:02d}",
    "U": lambda time: f"{(time.timetuple().tm_yday + 6 - time.isoweekday() % 7) // 7:02d}",
    "H": lambda time: f"{time.hour:02d}",
    "I": lambda time: f"{(time.hour + 11) % 12 + 1:02d}",
    "p": lambda time: "PM" if time.hour >= 12 else "AM",  # noqa: PLR2004 - noon
    "M": lambda time: f"{time.minute:02d}",
    "S": lambda time: f"{time.second:02d}",
}
# Finest first: the finest directive decides how far times are rounded down before they are told apart.
_NEEDS = (("second", "S"), ("minute", "M"), ("hour", "HIp"), ("day", "dejaAuwUWVGg"), ("month", "mbB"), ("year", "YyC"))
_ROUNDED_TO = {"second": 1, "minute": 60, "hour": 3600}
_DAY_SECONDS = 86400
# What a directive pins down once all coarser units are known; %j pins down two at once.
_PINS = {"year": "Y", "month": "mbBj", "day": "dej", "hour": "H", "minute": "M", "second": "S"}
_DIRECTIVE = re.compile("%(.?)", re.DOTALL)


class TimeFormat:
    """A checked strftime format.

    Args:
        format: Literal text and directives; ``/`` makes nested directories.

    Raises:
        ConfigError: It has an unknown directive, shows no time, or cannot give a path.
    """

    def __init__(self, format: str) -> None:
        self.text = format
        self._pattern = _DIRECTIVE.sub(lambda match: _SHORT_FORMS.get(match[1], match[0]), format)
        letters = set(_DIRECTIVE.findall(self._pattern))
        unknown = sorted(letters - _SHOWN.keys())
        if unknown or letters <= {"%"}:
            problem = f"has an unknown directive %{unknown[0]}" if unknown else "shows no time"
            raise ConfigError(
                f"DateTimeBucketer: format {format!r} {problem}",
                hint="Use strftime directives such as %Y-%m-%d or %Y/%m/%d/%H; those that depend on locale or machine "
                "(%c, %x, %X, %r, %s, %z, %Z) and fractions of a second (%f) cannot name buckets.",
            )
        self.finest_unit = next(unit for unit, own in _NEEDS if letters & set(own))
        """``year``, ``month``, ``day``, ``hour``, ``minute`` or ``second``."""
        self.span_seconds = _ROUNDED_TO.get(self.finest_unit, _DAY_SECONDS)
        """Times within one such span since the epoch are shown alike."""
        units = list(_PINS)
        down_to_finest = units[: units.index(self.finest_unit) + 1]
        self.tells_all_times_apart = all(letters & set(_PINS[unit]) for unit in down_to_finest)
        """Whether one text means one span; not so for ``%H``, which every day has."""
        try:
            self.path(datetime(9999, 12, 31, 23, 59, 59))  # noqa: DTZ001 - wall time
        except BucketValueError as error:
            raise ConfigError(
                f"DateTimeBucketer: format {format!r} gives no path: {error.message}",
                hint="Each directory between two '/' needs a name of at most 255 bytes.",
            ) from error

    def path(self, wall_time: datetime) -> str:
        """The time as a bucket path, escaped.

        Raises:
            BucketValueError: The path is too long.
        """
        return _path(self._pattern, wall_time)


@lru_cache(maxsize=10_000)
def _path(pattern: str, wall_time: datetime) -> str:
    return escape_path(_DIRECTIVE.sub(lambda match: _SHOWN[match[1]](wall_time), pattern))
