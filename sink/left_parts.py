"""The parts that a subtask has let go of, until a completed checkpoint answers for them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from partfile.filesystems.errors import PartMissing, StoreError
from partfile.filesystems.part_errors import part_refused
from partfile.sink.encoded_files import PartlyEncoded
from partfile.sink.encoding import encode_stage
from partfile.sink.stage_planning import less, promised, rolled_stage, spent_stage
from partfile.sink.states import PendingPart

if TYPE_CHECKING:
    from partfile.filesystems.port import PartStore
    from partfile.sink.concurrently import Patience
    from partfile.sink.encoded_files import EncodedFile
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
        self._files: list[EncodedFile] = []
        self._encoded: list[OpenPart] = []

    def leave(self, part: OpenPart, *, abandoned: bool = False) -> None:
        """Take no more rows for a part: it is to be published, or to be encoded by the coordinator if it is a stage.

        Args:
            part: The part at the length that is vouched for.
            abandoned: Somebody may still be writing it.
        """
        self._left.append((part, abandoned))

    def roll(self, part: OpenPart, store: PartStore, sink_format: Format, patience: Patience) -> None:
        """Take no more rows for a part that the subtask has just ended itself; encode it here if it is a stage.

        One at a time, for each holds a row group in memory. Storage that fails leaves it to the coordinator.

        Args:
            part: The part, durable and released.
            store: Where it is.
            sink_format: What the sink writes.
            patience: Once it is over nothing more is tried here.

        Raises:
            LeaseUnavailable: The stage was taken away a moment after it was released: somebody has fenced this task.
            PartDamaged: It is not what was written.
        """
        if part.stage is None or patience.is_over:
            self.leave(part)
            return
        try:
            files = encode_stage(store, part.part, part.stage, part.rows, sink_format=sink_format)
        except PartMissing as error:
            # Not a loss: nothing of it counts before this task's checkpoint, and who counts now has what counted.
            raise part_refused(part.part, f"its stage is gone; {error.message}") from error
        except StoreError as error:
            patience.note(error)
            logger.warning("stage %s is not wholly encoded yet: %s", part.part.path_of(part.part.name), error)
            done = error.files if isinstance(error, PartlyEncoded) else ()
            self._files += done
            self.leave(part.model_copy(update={"stage": less(part.stage, done)}))
        else:
            self._files += files
            self._encoded.append(part)

    def promise(self, checkpoint_id: int) -> None:
        """Name everything that was left since the last snapshot in this checkpoint, as the first that holds it."""
        for part, abandoned in self._left:
            if part.stage is None:
                pending = PendingPart(part=part.part, rows=part.rows, since=checkpoint_id, abandoned=abandoned)
                self.pending.append(pending)
            else:
                self.rolled.append(rolled_stage(part, part.stage, checkpoint_id, abandoned=abandoned))
        self.pending += [promised(file, checkpoint_id) for file in self._files]
        self.spent += [spent_stage(part, checkpoint_id) for part in self._encoded]
        self._left, self._files, self._encoded = [], [], []

    def forget(self, checkpoint_id: int) -> None:
        """Forget what every checkpoint up to this one holds; the coordinator answers for it now."""
        self.pending = [part for part in self.pending if part.since > checkpoint_id]
        self.rolled = [stage for stage in self.rolled if stage.since > checkpoint_id]
        self.spent = [stage for stage in self.spent if stage.since > checkpoint_id]
