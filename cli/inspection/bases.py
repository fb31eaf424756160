"""Everything that the checkpoints of a base say, read at one time: its chains, and what they know of files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from partfile.cli.inspection.chains import read_chain, states_of
from partfile.cli.inspection.knowledge import Knowledge, knowledge_of
from partfile.cli.inspection.places import Job, jobs_in
from partfile.filesystems.errors import RecoveryRefused
from partfile.filesystems.opening import path_inside
from partfile.filesystems.port import STATE_DIRECTORY
from partfile.sink.base_tie import BaseTie
from partfile.sink.restore_settings import RestoreSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from partfile.cli.inspection.chains import SeenChain
    from partfile.cli.inspection.places import Place
    from partfile.filesystems.errors import PartfileError
    from partfile.filesystems.port import Store


@dataclass(frozen=True, slots=True)
class SeenBase:
    """The sinks of a base as their checkpoints show them."""

    chains: tuple[SeenChain, ...]
    """Of every job whose checkpoints are there."""
    known: Knowledge
    """Of every job of this base, so that no sink's file is taken for a foreign one."""
    strangers: Mapping[Job, PartfileError] = field(default_factory=dict)
    """Jobs whose checkpoints are of another base, with what says so."""

    def chosen(self, uid: str | None) -> list[SeenChain]:
        """The chains of one sink and its writers, or of one writer; None is all.

        Sinks of several bases may share a directory of checkpoints: those of others are left out unless none is of this
        one.
        """
        if uid is not None:
            return [chain for chain in self.chains if uid in {chain.job.uid, chain.job.name}]
        return [chain for chain in self.chains if chain.job not in self.strangers] or list(self.chains)


def read_base(place: Place, checkpoints: Store | None, uid: str | None = None) -> SeenBase:
    """Read what the checkpoints of a base say. No bucket is listed.

    Args:
        place: Where it is.
        checkpoints: Its store of checkpoints; None if there are none.
        uid: Insist on this sink.

    Raises:
        NotFound: There is no sink with this uid.
        ConfigError: No sink can be called so.
        StoreError: The store cannot be read.
    """
    if checkpoints is None:
        return SeenBase((), Knowledge())
    if uid is not None:
        jobs_in(checkpoints, uid)
    chains = tuple(read_chain(checkpoints, job) for job in jobs_in(checkpoints))
    strangers = {chain.job: error for chain in chains if (error := _of_another_base(place, chain)) is not None}
    ours = [chain for chain in chains if chain.job not in strangers]
    known = knowledge_of([(chain, states_of(chain)) for chain in ours], _state_directory(place))
    return SeenBase(chains, known, strangers)


def is_of(job: Job | None, uid: str | None) -> bool:
    """Whether a file belongs to the sink that was asked for; one that nobody owns belongs to none but all."""
    return uid is None or (job is not None and uid in {job.uid, job.name})


def _of_another_base(place: Place, chain: SeenChain) -> PartfileError | None:
    """What a start would say if the chain's checkpoints are of another base."""
    if chain.newest is None:
        return None
    settings = RestoreSettings(
        base=place.base,
        uid=chain.job.uid,
        checkpoint_dir=place.checkpoint_dir,
        storage_options=place.storage_options,
    )
    try:
        BaseTie.of(settings).check(chain.newest.state.position.base, chain.job.name)
    except RecoveryRefused as error:
        return error
    return None


def _state_directory(place: Place) -> str | None:
    inside = path_inside(place.checkpoint_url, place.base, place.storage_options)
    return "/".join(inside) if inside and inside[0] != STATE_DIRECTORY else None
