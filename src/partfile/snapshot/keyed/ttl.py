"""How long values of keyed state live, and what is done about those that have expired. Pure rules.

Source: Flink's ``StateTtlConfig``, as of 1.20.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from partfile.errors import ConfigError
from partfile.quantities import seconds_in

DEFAULT_CLEANUP_ENTRIES = 5
_MAX_DURATION_S = 100 * 366 * 86_400


@dataclass(frozen=True, slots=True)
class Ttl:
    """How long a value lives after it was written, by the time that the backend is told.

    A value has expired when its time plus the duration is not after the present. In a list each element has a time of
    its own, and in a map each entry. All of this may change from one run to the next; only whether a state has a time
    to live at all is in the snapshot. A value that came to live longer than before may be gone already.

    Args:
        duration: Seconds, a ``timedelta``, or text such as ``"7 days"``.
        refresh: What begins the time of a value anew: ``write``, or ``read``, reading it as well.
        returns_expired: Whether a value that has expired is returned, once, if it is still there. It is removed then.
        cleanup_entries: How many entries each access pays for to be looked through; 0 leaves that to reads. A whole key
            group is looked through when enough has been paid, and one in which nothing can have expired costs nothing.
        cleanup_on: ``access`` to a value, or the choice of a ``key`` as well.

    Raises:
        ConfigError: An option cannot be used.
    """

    duration: float | timedelta | str = field(compare=False)
    refresh: Literal["write", "read"] = "write"
    returns_expired: bool = False
    cleanup_entries: int = DEFAULT_CLEANUP_ENTRIES
    cleanup_on: Literal["access", "key"] = "access"
    duration_ms: int = field(init=False, repr=False)
    """The duration in milliseconds."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "duration_ms", round(_seconds(self.duration) * 1000))
        if self.duration_ms < 1:
            raise ConfigError(f"Ttl: duration={self.duration!r} is less than a millisecond", hint=_HINT)
        if self.refresh not in ("write", "read"):
            raise ConfigError(
                f"Ttl: refresh={self.refresh!r}: it must be 'write' or 'read'", hint="Write refresh='write'."
            )
        if type(self.returns_expired) is not bool:
            raise ConfigError(
                f"Ttl: returns_expired={self.returns_expired!r}: it must be True or False",
                hint="Write returns_expired=False.",
            )
        if self.cleanup_on not in ("access", "key"):
            hint = "Write cleanup_on='access'."
            raise ConfigError(f"Ttl: cleanup_on={self.cleanup_on!r}: it must be 'access' or 'key'", hint=hint)
        if type(self.cleanup_entries) is not int or self.cleanup_entries < 0:
            hint = f"Write cleanup_entries={DEFAULT_CLEANUP_ENTRIES}."
            raise ConfigError(
                f"Ttl: cleanup_entries={self.cleanup_entries!r}: it must be a number, at least 0", hint=hint
            )

    def is_over(self, time_ms: int, now_ms: int) -> bool:
        """Whether a value has expired.

        Args:
            time_ms: When it was written, or read if that counts.
            now_ms: The present.
        """
        return time_ms + self.duration_ms <= now_ms


_HINT = "Write seconds, a timedelta, or text in s, m, h, d or w, or in seconds to weeks: Ttl('7 days')."


def _seconds(duration: float | timedelta | str) -> float:
    seconds: float | None
    if isinstance(duration, str):
        seconds = seconds_in(duration)
    elif isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    else:
        # Users without a type checker give anything.
        seconds = None if isinstance(duration, bool) or not isinstance(duration, int | float) else duration
    if seconds is None or not 0 < seconds <= _MAX_DURATION_S:
        raise ConfigError(f"Ttl: duration={duration!r} is no time to live", hint=_HINT)
    return seconds
