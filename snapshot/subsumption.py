"""Which links retention no longer keeps. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Link(NamedTuple):
    """What retention needs to know of a link."""

    checkpoint_id: int
    holds_state: bool


def subsumable(links: Sequence[Link], retained: int) -> list[int]:
    """The ids that retention no longer keeps, oldest first.

    Args:
        links: The links that are there, oldest first.
        retained: Links holding state to keep, at least 1.
    """
    holders = [link.checkpoint_id for link in links if link.holds_state]
    if len(holders) <= retained:
        return []
    oldest_kept = holders[-retained]
    return [link.checkpoint_id for link in links if link.checkpoint_id < oldest_kept]
