"""The state that a generation begins with: of the newest checkpoint, of one chosen on demand, or a fresh one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from partfile.filesystems.errors import Fenced, SnapshotCorrupt
from partfile.filesystems.tokens import new_chain_id
from partfile.sink import planning
from partfile.sink.planning import SinkSnapshot
from partfile.sink.restoring import is_as_noted
from partfile.snapshot.chain import Chain
from partfile.snapshot.damage import DamagedEnd

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from partfile.sink.restore_on_demand import RestoreOnDemand
    from partfile.sink.states import StreamPosition
    from partfile.snapshot.model import CheckpointMetadata, LinkRef
    from partfile.snapshot.storage import CheckpointStorage


@dataclass(frozen=True, slots=True)
class Takeover:
    """What a start is about to do."""

    link: LinkRef | None
    """The link that it goes on from; None is an empty chain."""
    before: SinkSnapshot | None
    """What that link holds; None where it cannot be read, or there is none."""
    after: SinkSnapshot
    """What the fence link will hold. Its pending parts are settled and published."""
    goes_back: bool
    """Whether an older state is restored, or one from elsewhere."""


@dataclass(frozen=True, slots=True)
class StartTerms:
    """How a start is to be done."""

    succeeding: int | None = None
    """Begin only right after this generation, if given."""
    own_fences: Collection[str] = ()
    """Nonces of later fences that are as good as that generation: whoever begins this one has tried to create them, and
    was not told whether they were made."""
    goes_back: bool = True
    """Whether what is chosen on demand is restored where there is a checkpoint already."""
    keeps: bool = True
    """Whether parts that a clean stop kept stay open for this generation; else they are published as all others."""
    gives_up: Collection[str] | None = None
    """Final paths of the only parts that ``accept_missing`` is meant for; None is all."""
    tried: Callable[[int], None] = lambda _parts: None
    """Told how many parts more were published, or could not be; from any thread. Whoever makes the encoder may have it
    told of stages as well."""
    holds: bool = False
    """Settle and publish nothing: the fence holds what the newest link does, for the start after it to go on from."""
    approve: Callable[[Takeover], None] = lambda _takeover: None
    """Raises if this is not the start that was meant; then nothing has been changed."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """One start. Changes nothing; may be asked again when another coordinator was faster."""

    storage: CheckpointStorage
    """Where the checkpoints are."""
    on_demand: RestoreOnDemand
    """What to begin with instead of the newest checkpoint."""
    admit: Callable[[StreamPosition], None]
    """Raises if this run must not go on from a position."""
    terms: StartTerms
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
        succeeding = self.terms.succeeding
        is_own = link is not None and (link.generation == succeeding or link.nonce in self.terms.own_fences)
        if succeeding is not None and not is_own:
            raise Fenced(
                f"generation {succeeding} of {self.storage.job!r} is not the newest any more",
                hint="Nothing was changed. Another process has taken the sink over; stop this one for good.",
            )
        if link is None:
            fresh = self.on_demand.begin(None) or SinkSnapshot.fresh(new_chain_id())
            self.admit(fresh.position)
            return self._approved(None, None, fresh, goes_back=True)
        try:
            current = planning.restored_state(link.operators, self.storage.read_state)
        except SnapshotCorrupt as error:
            return self._over_damage(error, link.ref, link.generation + 1, checkpoint_id)
        self.on_demand.tie.check(current.position.base, self.storage.job)
        published = self.storage.is_published(link.checkpoint_id)
        if self.terms.holds:
            held = replace(current, pending=() if published else current.pending)
            return self._approved(link.ref, current, held, goes_back=False)
        restored = (self.on_demand.begin(current) if self.terms.goes_back else None) or current
        self.admit(restored.position)
        begun = planning.begin_generation(
            restored,
            published=published,
            generation=link.generation + 1,
            checkpoint_id=checkpoint_id,
            may_keep=self.may_keep and self.terms.keeps,
        )
        return self._approved(link.ref, current, begun, goes_back=not is_as_noted(current, restored))

    def over(self, end: DamagedEnd, checkpoint_id: int) -> SinkSnapshot:
        """The older state that a user chose although the newest link cannot be read.

        Raises:
            SnapshotCorrupt: None was chosen; always where a generation is to be succeeded or held.
        """
        return self._over_damage(end.error, end.ref, end.generation + 1, checkpoint_id)

    def foresee(self) -> None:
        """Find out what a start would do now, and let it be approved. Creates nothing."""
        seen = Chain(self.storage).see()
        if isinstance(seen, DamagedEnd):
            self.over(seen, seen.reserved_through + 1)
        else:
            newest, restored = seen
            self.after(restored, newest.reserved_through + 1 if newest else 1)

    def _over_damage(self, damage: SnapshotCorrupt, link: LinkRef, generation: int, checkpoint_id: int) -> SinkSnapshot:
        if self.terms.succeeding is not None or not self.terms.goes_back or self.terms.holds:
            raise damage
        restored = self.on_demand.begin_over(damage)
        self.on_demand.tie.check(restored.position.base, self.storage.job)
        self.admit(restored.position)
        begun = planning.begin_generation(
            restored, published=False, generation=generation, checkpoint_id=checkpoint_id, may_keep=False
        )
        return self._approved(link, None, begun, goes_back=True)

    def _approved(
        self, link: LinkRef | None, before: SinkSnapshot | None, after: SinkSnapshot, *, goes_back: bool
    ) -> SinkSnapshot:
        tied = replace(after, position=after.position.model_copy(update={"base": self.on_demand.tie.note}))
        self.terms.approve(Takeover(link, before, tied, goes_back))
        return tied
