"""Encoding stages: each is read up to its valid length and written once as the file that readers will see."""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from partfile.filesystems.errors import ConfigError, NotReady, PartDamaged, StoreError
from partfile.filesystems.part_names import with_fresh_token
from partfile.sink.concurrently import Patience, for_each
from partfile.writers.arrow_stage import read_stage
from partfile.writers.recipes import format_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from partfile.filesystems.port import PartHandle, PartStore
    from partfile.sink.states import RolledStage, Stage
    from partfile.writers.port import BulkFormat, Format


@dataclass(frozen=True, slots=True)
class EncodedStage:
    """What became of a stage that was to be encoded: a file or a problem."""

    stage: RolledStage
    target: PartHandle | None = None
    """The encoded file, durable under its pending name; published only once a completed checkpoint holds it."""
    problem: Exception | None = None
    """Why there is none. A StoreError is worth another try with the next checkpoint."""
    is_given_up: bool = False
    """Nobody looks for the stage again: it is gone, and its user accepts that."""


class StageEncoder(Protocol):
    """Encodes stages, wherever there are hands for it."""

    def encode(self, stages: Sequence[RolledStage]) -> Sequence[EncodedStage]:
        """What becomes of each stage, in their order.

        Idempotence: an encode that no checkpoint names is an orphan, and the stage can be encoded again. Raises only
        what concerns none of the stages more than the others; then none of them counts as encoded.
        """


class StagesInProcess:
    """Encodes stages in this process, a few at a time: each holds a row group in memory.

    Args:
        store: Where the stages are, and the files go.
        threads: How many at the same time, at least 1.
        tried: Told how many stages more were encoded, or could not be; from any thread.
        sink_format: What the sink writes, where it is known: it lends its encryption.
    """

    def __init__(
        self,
        store: PartStore,
        threads: int,
        tried: Callable[[int], None] = lambda _stages: None,
        sink_format: Format | None = None,
    ) -> None:
        self._store = store
        self._threads = threads
        self._sink_format = sink_format
        self._tried = tried

    def encode(self, stages: Sequence[RolledStage]) -> Sequence[EncodedStage]:
        """See ``StageEncoder.encode``. Where storage does not answer, the rest is not tried."""
        patience = Patience(self._threads)

        def attempt(stage: RolledStage) -> EncodedStage:
            if patience.is_over:
                path = stage.part.path_of(stage.part.name)
                return EncodedStage(stage, problem=NotReady("not tried, since storage does not answer", path=path))
            try:
                return EncodedStage(stage, self._encode(stage))
            except Exception as error:  # noqa: BLE001 - raised by the caller once the other stages are through
                patience.note(error)
                return EncodedStage(stage, problem=error)
            finally:
                self._tried(1)

        return for_each(attempt, stages, self._threads, "partfile-encode")

    def _encode(self, stage: RolledStage) -> PartHandle:
        form = format_of(stage.stage.recipe, self._sink_format)
        return encode_stage(self._store, stage.part, form, stage.rows, fences=True)


def encode_stage(
    store: PartStore, part: PartHandle, form: BulkFormat, rows: int, *, fences: bool = False
) -> PartHandle:
    """Encode one stage into a file with a token of its own, and return that file, durable under its pending name.

    Reads exactly the valid length, whatever was appended since. Of a failure nothing is left but what cannot be
    deleted, for nobody else knows the name.

    Args:
        store: Where the stage is, and the file goes.
        part: The stage.
        form: What it becomes, by its recipe.
        rows: How many the checkpoint vouches for.
        fences: Nobody who counts appends to it any more, as to what a checkpoint holds as rolled; so a lease that is in
            the way may be taken.

    Raises:
        PartMissing: The stage is gone, or shorter than its valid length.
        PartDamaged: It does not hold these rows.
        StoreError: It could not be read, or the file not be written.
    """
    with closing(store.open_stage(part, fences=fences)) as file:
        schema, batches = read_stage(file, part.valid_length, part.path_of(part.in_progress))
        stream = store.create(target_of(part))
        try:
            _check_rows(part, form.encode(batches, schema, stream), rows)
            return stream.close_for_commit()
        except Exception:
            stream.close()
            with suppress(StoreError):
                store.discard(stream.handle)
            raise
        finally:
            stream.close()


def _check_rows(part: PartHandle, found: int, rows: int) -> None:
    path = part.path_of(part.in_progress)
    if found != rows:
        raise PartDamaged(
            f"stage {path!r} holds {found} rows in its {part.valid_length} valid bytes; its checkpoint says {rows}",
            hint="Bring the file back from a backup; what it lacks was not published yet.",
            path=path,
        )


def target_of(part: PartHandle) -> PartHandle:
    """The file that a stage is encoded into: of the same final name, under staged names that nobody else knows."""
    fresh = with_fresh_token(part)
    return fresh.model_copy(update={"valid_length": 0, "staging": {}, "is_stage": False})


def why_not_here(stage: Stage) -> str:
    """Why a process without the sink's own format cannot encode a stage: it needs keys, or a newer partfile.

    Empty if it can.
    """
    try:
        format_of(stage.recipe)
    except ConfigError as error:
        return str(error)
    return ""
