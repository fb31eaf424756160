"""Why a part is not finished yet, what will become of it, and what mends it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from partfile.cli.inspection.knowledge import OPEN_STATES

if TYPE_CHECKING:
    from partfile.cli.inspection.knowledge import KnownPart


@dataclass(frozen=True, slots=True)
class SinkFacts:
    """What a verdict needs to know of the sink."""

    is_running: bool | None
    """Whether its driver is alive; None if nobody can tell."""
    quiet_s: float
    """Since its newest checkpoint, in seconds."""
    quiet_after_s: float
    """Beyond this silence a sink counts as stopped where nobody can tell."""
    is_kept: bool
    """A clean stop kept the open parts for the next run."""

    @property
    def is_quiet(self) -> bool:
        """Whether it has been silent for so long that something is wrong."""
        return self.quiet_s > self.quiet_after_s

    @property
    def has_stopped(self) -> bool:
        """Whether it is not running, or probably not."""
        return self.is_running is False or (self.is_running is None and self.is_quiet)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be said of one part."""

    why: str
    """Why it is there."""
    outcome: str
    """What will become of it."""
    is_stuck: bool = False
    is_for_recover: bool = False
    """Whether ``partfile recover`` mends it."""


def verdict_on(part: KnownPart, sink: SinkFacts) -> Verdict:
    """Judge a part that the state in force names and that is not finished.

    Args:
        part: The part.
        sink: Its sink.
    """
    if part.state in OPEN_STATES:
        return _on_open(part, sink)
    if part.state == "spent-stage":
        why = f"checkpoint {part.since} holds the file that it was encoded into; older ones may need the stage"
        return Verdict(why, "the sink deletes it once those are not retained any more")
    promised, done = f"checkpoint {part.since} is complete and promises it", "published"
    if part.state == "rolled-stage":
        promised, done = f"checkpoint {part.since} is complete and has it rolled", "encoded"
    does = _fate(part)
    if sink.has_stopped:
        why = f"{promised}, but {_stopped(sink)} before it was {done}"
        return Verdict(why, f"the next start, or recover, {does}", is_stuck=True, is_for_recover=True)
    if sink.is_quiet:
        why = f"{promised}, but it could not be {done}; the log of the sink says why"
        return Verdict(why, f"the sink tries again with its next checkpoint, and then {does}", is_stuck=True)
    return Verdict(promised, f"the sink {does}, now or with its next checkpoint")


def _fate(part: KnownPart) -> str:
    """What becomes of a part that is not finished."""
    length = part.handle.valid_length
    if part.is_shared:
        those = f" without one yet ({part.finished_buckets} have theirs)" if part.finished_buckets else ""
        return f"encodes its first {length} bytes into a file for each of its buckets{those} and publishes those"
    if part.is_stage:
        return f"encodes its first {length} bytes into the part and publishes that"
    return "publishes it" if part.state == "pending" else f"cuts it to {length} bytes and publishes it"


def _on_open(part: KnownPart, sink: SinkFacts) -> Verdict:
    if sink.is_kept:
        return Verdict("a clean stop kept it open, as on_stop='keep' says", "the next start goes on with it")
    if not sink.has_stopped:
        then = ", and is encoded then" if part.is_stage else ""
        return Verdict("the sink has it open", f"it grows until its rolling policy closes it{then}")
    length = part.handle.valid_length
    return Verdict(
        f"{_stopped(sink)} while it was open; checkpoint {part.checkpoint_id} vouches for its first {length} bytes",
        f"the next start, or recover, {_fate(part)}",
        is_stuck=True,
        is_for_recover=True,
    )


def _stopped(sink: SinkFacts) -> str:
    return "the sink stopped" if sink.is_running is False else "the sink fell silent, and has probably stopped,"
