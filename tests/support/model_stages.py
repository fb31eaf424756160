"""Which stages are below a base, and which of them a retained checkpoint needs; for the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.recovery.inspect.checkpoints import doubtful_ids, read_chain, states_of
from partfile.recovery.inspect.places import Place, jobs_in
from partfile.recovery.ownership import open_stores

if TYPE_CHECKING:
    from pathlib import Path


def stages_in(base: Path) -> set[str]:
    """The paths of files that are called like stages, relative to the base."""
    return {str(path.relative_to(base)) for path in base.glob("bucket=*/_*.in-progress")}


def unkept_stages(base: Path, there: set[str]) -> list[str]:
    """The stages that are not there, although a retained checkpoint that counted names them as data."""
    place = Place(str(base))
    with open_stores(place) as stores:
        if stores is None:
            return []
        chains = [read_chain(stores.checkpoints, job) for job in jobs_in(stores.checkpoints)]
        states = [
            state for chain in chains for number, state in states_of(chain).items() if number not in doubtful_ids(chain)
        ]
    opened = [part.part for state in states for parts in state.open.values() for part in parts if part.stage]
    needed = [*opened, *(stage.part for state in states for stage in state.rolled)]
    return sorted({part.path_of(part.in_progress) for part in needed} - there)
