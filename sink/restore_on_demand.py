"""What a start begins with that is told to restore a savepoint or an older checkpoint (S12)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from partfile.filesystems.errors import NotFound
from partfile.filesystems.opening import is_same_place, options_for
from partfile.filesystems.tokens import new_chain_id
from partfile.sink.base_tie import BaseTie
from partfile.sink.naming import number_in
from partfile.sink.restore_points import own_checkpoint_id, read_restore_point
from partfile.sink.restoring import (
    Choice,
    FinishedPart,
    choose,
    doubled_parts,
    later_parts,
    noted,
    onto_an_empty_chain,
    open_since,
    over_later_parts,
    refusal,
    shown,
)
from partfile.sink.restoring_damage import (
    applied_before,
    names_of_shared,
    over_unreadable,
    paths_of,
    refusal_of_missing,
    refusal_over_damage,
    unfinished,
    unknown_since,
    with_the_way_back,
)
from partfile.sink.shared_names import unmarked
from partfile.snapshot.pointers import pointer_to

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from partfile.filesystems.errors import SnapshotCorrupt
    from partfile.filesystems.port import Store
    from partfile.sink.planning import SinkSnapshot
    from partfile.sink.restore_settings import RestoreSettings
    from partfile.sink.restoring import RestorePoint
    from partfile.snapshot.storage import CheckpointStorage

logger = logging.getLogger("partfile")


class RestoreOnDemand:
    """Carries out ``restore_from`` and ``accept_newer`` at a start. Changes nothing.

    Args:
        settings: The sink's options.
        store: Where the parts are.
        storage: The sink's own checkpoints.
    """

    def __init__(self, settings: RestoreSettings, store: Store, storage: CheckpointStorage) -> None:
        self._settings = settings
        self._store = store
        self._storage = storage
        self.tie = BaseTie.of(settings)
        """Which base the chain has to be of."""

    def begin(self, current: SinkSnapshot | None) -> SinkSnapshot | None:
        """The state to begin with; None if nothing is to be restored on demand.

        Args:
            current: What the newest link holds; None in an empty chain.

        Raises:
            NotFound: What is to be restored is not there.
            RecoveryRefused: The sink has gone on since, or what is to be restored does not fit it.
            SnapshotCorrupt: It cannot be read.
        """
        location = self._settings.restore_from
        if location is None:
            return None
        try:
            point = read_restore_point(self._settings, location, self._storage)
        except NotFound:
            if current is not None and _is_same(self._settings, current.position.restored_location, location):
                # It was restored long ago, and its user has deleted it or retention has.
                self._tell_applied(location)
                return None
            raise
        choice = choose(current, point)
        if current is not None and choice is Choice.GO_ON:
            if current.position.restored_from == point.token:
                self._tell_applied(location)
            return noted(current, point)
        later = self._later(current, point, choice)
        if not self._settings.accept_newer and (choice is Choice.REFUSE or later):
            raise refusal(self._settings.uid, point, later)
        if current is None:
            return onto_an_empty_chain(point, new_chain_id())
        stuck = self._stuck(current, point)
        if stuck:
            logger.warning(
                "sink %r: the store cannot take back what was added since %r to open parts, or has lost it; so they "
                "stay, and their later rows come twice: %s",
                self._settings.uid,
                point.location,
                shown(sorted(stuck)),
            )
        return over_later_parts(current, point, stuck)

    def doubled(self, current: SinkSnapshot | None) -> list[str]:
        """The files that hold rows which come twice if what is chosen on demand is restored, by their final paths.

        Args:
            current: What the newest link holds; None where it cannot be read.

        Raises:
            NotFound: What is to be restored is not there.
            SnapshotCorrupt: It cannot be read.
        """
        if self._settings.restore_from is None:
            return []
        point = read_restore_point(self._settings, self._settings.restore_from, self._storage)
        choice = Choice.REFUSE if current is None else choose(current, point)
        if choice is Choice.GO_ON:
            return []
        stuck = set() if current is None else self._stuck(current, point)
        return doubled_parts(self._finished(current, point, choice), current, point.state, stuck)

    def _stuck(self, current: SinkSnapshot, point: RestorePoint) -> set[str]:
        """The names of the parts open at the point and still, that the store cannot cut back to what it holds."""
        return {part.name for part in open_since(current, point.state) if not self._store.goes_back(part)}

    def _later(self, current: SinkSnapshot | None, point: RestorePoint, choice: Choice) -> list[str]:
        return later_parts(self._finished(current, point, choice), current, point.state)

    def _finished(self, current: SinkSnapshot | None, point: RestorePoint, choice: Choice) -> Iterable[FinishedPart]:
        chains = {one.position.chain for one in (current, point.state) if one is not None}
        is_listed = choice is Choice.REFUSE or point.state.max_count >= 0
        return finished_parts(self._store, chains) if is_listed else ()

    def begin_over(self, damage: SnapshotCorrupt) -> SinkSnapshot:
        """The state of an older checkpoint of the own chain to begin with, although the newest state cannot be read.

        Args:
            damage: Why it cannot be read.

        Raises:
            SnapshotCorrupt: The same, since no checkpoint of the own chain is named; or that one cannot be read either.
            RecoveryRefused: One is named, but long ago; or later parts are not accepted, or missing ones.
        """
        location = self._settings.restore_from
        chosen = None if location is None else own_checkpoint_id(self._settings, location, self._storage)
        if location is None or chosen is None:
            raise with_the_way_back(damage)
        try:
            point = read_restore_point(self._settings, location, self._storage)
        except NotFound:
            raise damage from None
        if point.was_restored:
            raise applied_before(self._settings.uid, point, damage)
        later = later_parts(finished_parts(self._store, {point.state.position.chain}), None, point.state)
        if not self._settings.accept_newer:
            raise refusal_over_damage(self._settings.uid, point, damage, later)
        wanted, shared = paths_of(point.state), names_of_shared(point.state)
        listed = (file.path for file in self._store.list())
        there = {path for path in listed if path in wanted or unmarked(path.rpartition("/")[2]) in shared}
        if not self._store.capabilities.staged_files:
            there |= {
                part.path_of(part.in_progress) for part in unfinished(point.state, there) if self._store.goes_back(part)
            }
        begun = over_unreadable(point, there, new_chain_id(), published=self._storage.is_published(chosen))
        if begun.gone and not self._settings.accept_missing:
            raise refusal_of_missing(self._settings.uid, point, begun.gone)
        logger.warning(
            "%s. Going back to it, because accept_newer is set: later rows of finished parts come twice, parts staged "
            "since are left behind. Moved away or lost of what it vouches for: %s",
            unknown_since(self._settings.uid, point, damage, later),
            shown(begun.gone) or "nothing",
        )
        return begun.state

    def _tell_applied(self, location: str) -> None:
        """Say that the option does nothing any more: a warning if its user seems to expect that it does."""
        level = logging.WARNING if self._settings.accept_newer else logging.INFO
        logger.log(
            level,
            "sink %r: restore_from=%r has been applied already, so this start goes on from the newest checkpoint; "
            "leave it and accept_newer out",
            self._settings.uid,
            location,
        )


def finished_parts(store: Store, chains: Collection[str]) -> Iterator[FinishedPart]:
    """Every finished file below the base that is a part of one of the chains, by its name. Lists the whole base."""
    for file in store.list():
        number = number_in(file.path.rpartition("/")[2], chains)
        if number is not None:
            yield FinishedPart(file.path, number)


def _is_same(settings: RestoreSettings, one: str | None, other: str) -> bool:
    """Whether two locations mean the same snapshot, however they are written."""
    if one is None:
        return False
    first, second = pointer_to(one), pointer_to(other)
    options = options_for(second.parent, settings.base, settings.storage_options)
    return first.directory == second.directory and is_same_place(first.parent, second.parent, options)
