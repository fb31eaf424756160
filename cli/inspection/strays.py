"""Which links of a chain never counted, as far as the links tell of each other. Pure."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from partfile.snapshot.damage import is_of_damage

if TYPE_CHECKING:
    from partfile.cli.inspection.chains import SeenChain, SeenLink


def stray_ids(chain: SeenChain) -> set[int]:
    """The ids of links that never counted: the one after names another predecessor."""
    return {
        before.checkpoint_id
        for before, after in pairwise(chain.links)
        if before.link is not None
        and after.link is not None
        and after.checkpoint_id == before.checkpoint_id + 1
        and after.link.predecessor != before.link.ref
        # Damaged when that one was created over it, and put back since: it did count.
        and not (after.link.predecessor is not None and is_of_damage(after.link.predecessor))
    }


def doubtful_ids(chain: SeenChain) -> set[int]:
    """The ids of links that have probably never counted: those, and the ones below a hole that a stray makes.

    Retention deletes the oldest first and leaves no hole. A coordinator that was asleep then takes a freed name, and
    is fenced: its link stands alone below the others, until the next start deletes it.
    """
    beyond = (before.checkpoint_id for before, after in holes(chain) if not is_deletion(before, after))
    highest = max(beyond, default=0)
    return stray_ids(chain) | {seen.checkpoint_id for seen in chain.links if seen.checkpoint_id <= highest}


def holes(chain: SeenChain) -> list[tuple[SeenLink, SeenLink]]:
    """The links on both sides of each hole, the older one first."""
    return [
        (before, after) for before, after in pairwise(chain.links) if after.checkpoint_id > before.checkpoint_id + 1
    ]


def is_deletion(before: SeenLink, after: SeenLink) -> bool:
    """Whether somebody must have deleted what was in a hole.

    A checkpoint that has a later one of its own generation did count. A fence tells nothing: of two starts that race
    both make one of the same generation.
    """
    if before.link is None or after.link is None:
        return False
    is_one_history = (before.link.chain_id, before.link.generation) == (after.link.chain_id, after.link.generation)
    return is_one_history and before.link.kind == "checkpoint"
