"""The state that a generation begins with: of the newest checkpoint, of one chosen on demand, or a fresh one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from partfile.filesystems.errors import Fenced, SnapshotCorrupt
from partfile.filesystems.tokens import new_chain_id
from partfile.sink import planning
from partfile.sink.planning import SinkSnapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.sink.restore_on_demand import RestoreOnDemand
    from partfile.sink.states import StreamPosition
    from partfile.snapshot.damage import DamagedEnd
    from partfile.snapshot.model import CheckpointMetadata
    from partfile.snapshot.storage import CheckpointStorage


@dataclass(frozen=True, slots=True)
class Beginning:
    """One start. Changes nothing; may be asked again when another coordinator was faster."""

    storage: CheckpointStorage
    """Where the checkpoints are."""
    on_demand: RestoreOnDemand
    """What to begin with instead of the newest checkpoint."""
    admit: Callable[[StreamPosition], None]
    """Raises if this run must not go on from a position."""
    succeeding: int | None
    """Begin only right after this generation, if given."""
    goes_back: bool
    """Whether what is chosen on demand is restored where there is a checkpoint already."""
    may_keep: bool
    """Whether the store lets parts be appended to that were kept at a clean end."""

    def after(self, link: CheckpointMetadata | None, checkpoint_id: int) -> SinkSnapshot:
        """The state after the newest link that holds state; None is an empty chain.

        Args:
            link: That link.
            checkpoint_id: Of the fence link to come.

        Raises:
            Fenced: Another generation came after the one to succeed.
            SnapshotCorrupt: Its state cannot be read, and no older one was chosen.
            RecoveryRefused: What was chosen cannot be restored.
        """
        if self.succeeding is not None and (link is None or link.generation != self.succeeding):
            raise Fenced(
                f"generation {self.succeeding} of {self.storage.job!r} is not the newest any more",
                hint="Nothing was changed. Another process has taken the sink over; stop this one for good.",
            )
        if link is None:
            fresh = self.on_demand.begin(None) or SinkSnapshot.fresh(new_chain_id())
            self.admit(fresh.position)
            return fresh
        try:
            current = planning.restored_state(link.operators, self.storage.read_state)
        except SnapshotCorrupt as error:
            return self._over_damage(error, link.generation + 1, checkpoint_id)
        restored = (self.on_demand.begin(current) if self.goes_back else None) or current
        self.admit(restored.position)
        return planning.begin_generation(
            restored,
            published=self.storage.is_published(link.checkpoint_id),
            generation=link.generation + 1,
            checkpoint_id=checkpoint_id,
            may_keep=self.may_keep,
        )

    def over(self, end: DamagedEnd, checkpoint_id: int) -> SinkSnapshot:
        """The older state that a user chose although the newest link cannot be read.

        Raises:
            SnapshotCorrupt: None was chosen; always where a generation is to be succeeded.
        """
        return self._over_damage(end.error, end.generation + 1, checkpoint_id)

    def _over_damage(self, damage: SnapshotCorrupt, generation: int, checkpoint_id: int) -> SinkSnapshot:
        if self.succeeding is not None or not self.goes_back:
            raise damage
        restored = self.on_demand.begin_over(damage)
        self.admit(restored.position)
        return planning.begin_generation(
            restored, published=False, generation=generation, checkpoint_id=checkpoint_id, may_keep=False
        )
