"""Decisions about open parts: (state, event) to action, without I/O. The operator and the coordinator execute them."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from partfile.sink.rolling import PartProgress, RollingPolicy
    from partfile.sink.states import OpenPart


class Action(Enum):
    """What to do with an open part."""

    KEEP = "keep"
    ROLL = "roll"
    ABANDON = "abandon"


def before_rows(part: PartProgress, policy: RollingPolicy) -> Action:
    """Whether an open part takes the next rows, or is rolled first."""
    return Action.ROLL if policy.should_roll_on_event(part) else Action.KEEP


def before_resuming(
    part: OpenPart,
    policy: RollingPolicy,
    *,
    generation: int,
    attempt: int,
    may_keep: bool,
    is_own: bool = False,
) -> Action:
    """What a task does with a part it was handed, or has suspended (``is_own``), and now has rows for (S2).

    Nobody else has ever written what it has suspended itself. Another part is appended to only if it is of this very
    generation, and only by a first attempt: an earlier attempt of this task may still be writing it. Both are hints on
    top of the lease and the length, which the store checks; where leases are not proven (``may_keep`` is False) nothing
    would stop a zombie, so the part is left alone (S13).
    """
    if not is_own and (part.generation != generation or attempt > 0 or not may_keep):
        return Action.ABANDON
    return before_rows(part.progress, policy)


def at_checkpoint(part: PartProgress, policy: RollingPolicy, *, now_ms: int, may_keep: bool) -> Action:
    """Whether a part that was written to stays open over a checkpoint.

    Args:
        part: The part as just persisted.
        policy: When to roll.
        now_ms: The coordinator's batch time.
        may_keep: False where nothing can be appended to later: a bulk format, a store without append or leases.
    """
    if not may_keep or policy.should_roll_on_checkpoint(part) or policy.should_roll_on_time(part, now_ms):
        return Action.ROLL
    return Action.KEEP


def due(parts: Iterable[OpenPart], policy: RollingPolicy, now_ms: int) -> tuple[list[OpenPart], list[OpenPart]]:
    """Part the open parts nobody is writing into those that stay open and those whose time has come."""
    stay: list[OpenPart] = []
    over: list[OpenPart] = []
    for part in parts:
        (over if policy.should_roll_on_time(part.progress, now_ms) else stay).append(part)
    return stay, over


def due_at_checkpoint(
    parts: Iterable[OpenPart], own: Container[str], policy: RollingPolicy, *, now_ms: int, may_keep: bool
) -> tuple[list[OpenPart], list[OpenPart]]:
    """The same at a checkpoint, for parts of which some were written to since the last one.

    Args:
        parts: Open parts nobody is writing.
        own: In-progress names of those that this operator has written to and suspended.
        policy: When to roll.
        now_ms: The coordinator's batch time.
        may_keep: As in ``at_checkpoint``.
    """
    stay, over = due(parts, policy, now_ms)
    ended = [
        part
        for part in stay
        if part.part.in_progress in own
        and at_checkpoint(part.progress, policy, now_ms=now_ms, may_keep=may_keep) is Action.ROLL
    ]
    return [part for part in stay if part not in ended], over + ended


def one_per_key(parts: Iterable[OpenPart]) -> tuple[dict[tuple[str, str], OpenPart], list[OpenPart]]:
    """Keep the first open part of each bucket and fingerprint; the others, which rescaling brought, are rolled."""
    kept: dict[tuple[str, str], OpenPart] = {}
    surplus: list[OpenPart] = []
    for part in parts:
        if part.key in kept:
            surplus.append(part)
        else:
            kept[part.key] = part
    return kept, surplus


def beyond_cap(keys: Sequence[tuple[str, str]], cap: int) -> Sequence[tuple[str, str]]:
    """The least recently used parts beyond the cap on open parts.

    Args:
        keys: Open parts, least recently used first.
        cap: How many may be open.
    """
    return keys[: max(0, len(keys) - cap)]
