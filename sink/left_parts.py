"""The parts that a subtask has let go of, until a completed checkpoint answers for them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from partfile.filesystems.errors import StoreError
from partfile.sink.encoding import encode_stage
from partfile.sink.states import PendingPart, RolledStage, SpentStage

if TYPE_CHECKING:
    from partfile.filesystems.port import PartHandle, PartStore
    from partfile.sink.concurrently import Patience
    from partfile.sink.states import OpenPart, SubtaskSnapshot
    from partfile.writers.port import Format

logger = logging.getLogger("partfile")


class LeftParts:
    """What of a subtask's parts is to be published, encoded or deleted once a checkpoint is complete.

    Each is repeated in every snapshot until the subtask has heard of the completion of the first one that held it.

    Args:
        state: The subtask's share of the restored state.
    """

    def __init__(self, state: SubtaskSnapshot) -> None:
        self.pending = list(state.pending)
        """Parts to be published, as of the last snapshot."""
        self.rolled = list(state.rolled)
        """Stages that the coordinator is to encode, as of the last snapshot."""
        self.spent = list(state.spent)
        """Stages that are encoded, as of the last snapshot."""
        self._left: list[tuple[OpenPart, bool]] = []
        self._encoded: list[tuple[OpenPart, PartHandle]] = []

    def leave(self, part: OpenPart, *, abandoned: bool = False) -> None:
        """Take no more rows for a part: it is to be published, or to be encoded by the coordinator if it is a stage.

        Args:
            part: The part at the length that is vouched for.
            abandoned: Somebody may still be writing it.
        """
        self._left.append((part, abandoned))

    def roll(self, part: OpenPart, store: PartStore, patience: Patience, sink_format: Format) -> None:
        """Take no more rows for a part that the subtask has just ended itself; encode it here if it is a stage.

        One at a time, for each holds a row group in memory. Storage that fails leaves it to the coordinator.

        Args:
            part: The part, durable and released.
            store: Where it is.
            patience: Once it is over nothing more is tried here.
            sink_format: Lends its encryption to the file.

        Raises:
            PartMissing, PartDamaged: The stage is not what was written a moment ago.
        """
        if part.stage is None or patience.is_over:
            self.leave(part)
            return
        try:
            target = encode_stage(store, part.part, part.stage, part.rows, sink_format=sink_format)
        except StoreError as error:
            patience.note(error)
            logger.warning("stage %s is not encoded yet: %s", part.part.path_of(part.part.name), error)
            self.leave(part)
        else:
            self._encoded.append((part, target))

    def promise(self, checkpoint_id: int) -> None:
        """Name everything that was left since the last snapshot in this checkpoint, as the first that holds it."""
        for part, abandoned in self._left:
            if part.stage is None:
                pending = PendingPart(part=part.part, rows=part.rows, since=checkpoint_id, abandoned=abandoned)
                self.pending.append(pending)
            else:
                rolled = RolledStage(part=part.part, stage=part.stage, rows=part.rows, since=checkpoint_id)
                self.rolled.append(rolled)
        for part, target in self._encoded:
            self.pending.append(PendingPart(part=target, rows=part.rows, since=checkpoint_id))
            self.spent.append(SpentStage(part=part.part, since=checkpoint_id))
        self._left, self._encoded = [], []

    def forget(self, checkpoint_id: int) -> None:
        """Forget what every checkpoint up to this one holds; the coordinator answers for it now."""
        self.pending = [part for part in self.pending if part.since > checkpoint_id]
        self.rolled = [stage for stage in self.rolled if stage.since > checkpoint_id]
        self.spent = [stage for stage in self.spent if stage.since > checkpoint_id]
