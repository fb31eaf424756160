"""Encoding stages: each is read up to its valid length and written once as the file that readers will see."""

from __future__ import annotations

import logging
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from partfile.filesystems.errors import CommitError, ConfigError, NotReady, PartfileError, StoreError
from partfile.sink.concurrently import Patience, for_each
from partfile.sink.encoded_files import NotItsOwn, PartlyEncoded, check_rows, damaged, target_of, written_file
from partfile.sink.shared_encoding import SharedStage, encode_shared
from partfile.writers.port import BulkFormat
from partfile.writers.recipes import format_of, lent_for
from partfile.writers.stage_reading import content_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from partfile.filesystems.port import PartHandle, PartStore
    from partfile.sink.encoded_files import EncodedFile
    from partfile.sink.states import RolledStage, Stage
    from partfile.writers.port import ByteStream, Format

logger = logging.getLogger("partfile")


@dataclass(frozen=True, slots=True)
class EncodedStage:
    """What became of a stage that was to be encoded: its files or a problem, or both if some are missing."""

    stage: RolledStage
    files: tuple[EncodedFile, ...] | None = None
    """One, or one a bucket of a shared stage. None if there is none."""
    problem: Exception | None = None
    """Why it is not encoded, or not wholly. A StoreError is worth another try later."""
    is_given_up: bool = False
    """Nobody looks for the stage again: it is gone, and its user accepts that."""

    @property
    def is_done(self) -> bool:
        """Whether all of its rows are in files."""
        return self.files is not None and self.problem is None


class StageEncoder(Protocol):
    """Encodes stages, wherever there are hands for it."""

    @property
    def is_elsewhere(self) -> bool:
        """Whether it need not see what the coordinator's own store sees: what it misses may be there."""

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

    @property
    def is_elsewhere(self) -> bool:
        """No: ``store`` is the coordinator's."""
        return False

    def encode(self, stages: Sequence[RolledStage]) -> Sequence[EncodedStage]:
        """See ``StageEncoder.encode``. Where storage does not answer, the rest is not tried."""
        patience = Patience(self._threads)

        def attempt(stage: RolledStage) -> EncodedStage:
            if patience.is_over:
                path = stage.part.path_of(stage.part.name)
                return EncodedStage(stage, problem=NotItsOwn("not tried, since storage does not answer", path=path))
            try:
                return EncodedStage(stage, self._encode(stage))
            except PartlyEncoded as error:
                patience.note(error.__cause__ if isinstance(error.__cause__, StoreError) else error)
                return EncodedStage(stage, error.files, problem=error)
            except Exception as error:  # noqa: BLE001 - raised by the caller once the other stages are through
                patience.note(error)
                return EncodedStage(stage, problem=error)
            finally:
                self._tried(1)

        return for_each(attempt, stages, self._threads, "partfile-encode")

    def _encode(self, stage: RolledStage) -> tuple[EncodedFile, ...]:
        return encode_stage(
            self._store, stage.part, stage.stage, stage.rows, fences=True, sink_format=self._sink_format
        )


def encode_stage(
    store: PartStore,
    part: PartHandle,
    stage: Stage,
    rows: int,
    *,
    fences: bool = False,
    sink_format: Format | None = None,
) -> tuple[EncodedFile, ...]:
    """Encode one stage into files with tokens of their own: one, or one a bucket of a shared stage.

    Reads exactly the valid length, whatever was appended since. Of a failure nothing is left but what cannot be
    deleted, for nobody else knows the names.

    Args:
        store: Where the stage is, and the files go.
        part: The stage.
        stage: What it becomes.
        rows: How many the checkpoint vouches for.
        fences: Nobody who counts appends to it any more, as to what a checkpoint holds as rolled; so a lease that is in
            the way may be taken.
        sink_format: What the sink writes, where it is known: it lends its encryption, and stands in for a recipe by
            which nothing can be encoded, if it is of the same columnar kind.

    Raises:
        PartMissing: The stage is gone, or shorter than its valid length.
        PartDamaged: It is not what was written, or does not hold these rows.
        PartfileError: It cannot be encoded as its recipe says, nor as the sink's format does where that is of its kind.
        PartlyEncoded: Files of some buckets could not be made. It has the others.
        StoreError: It could not be read, or a file not be written.
    """
    try:
        with _explained(part, stage):
            return _encode_in(format_of(stage.recipe, sink_format), store, part, stage, rows, fences=fences)
    except (StoreError, CommitError):
        raise
    except PartfileError as error:
        lent = lent_for(stage.recipe, sink_format)
        if lent is None:
            raise
        logger.warning("the sink's own format takes the place of what a stage was begun with: %s", error.message)
    with _explained(part, stage):
        return _encode_in(lent, store, part, stage, rows, fences=fences)


def _encode_in(
    form: Format, store: PartStore, part: PartHandle, stage: Stage, rows: int, *, fences: bool
) -> tuple[EncodedFile, ...]:
    path = part.path_of(part.in_progress)
    with closing(store.open_stage(part, fences=fences)) as file:
        content = content_of(file, part.valid_length, path, stage.crc32, checks_reads=store.checks_reads)
        if stage.shared:
            return encode_shared(store, SharedStage(part, form, content), rows, finished=stage.finished_buckets)
        if not isinstance(form, BulkFormat):
            raise damaged(part, f"is to be encoded in {stage.recipe.get('format')!r}, of which only shared stages are")
        schema, batches = content.read()

        def write(stream: ByteStream) -> int:
            found = form.encode(batches, schema, stream)
            check_rows(part, found, rows)
            return found

        return (written_file(store, target_of(part), write).commit(store),)


def _not_now(part: PartHandle, what: str) -> NotReady:
    """This host's trouble, not the stage's."""
    path = part.path_of(part.in_progress)
    return NotReady(f"stage {path!r} is not encoded: {what}", hint="It is tried again later.", path=path)


@contextmanager
def _explained(part: PartHandle, stage: Stage) -> Iterator[None]:
    """Say of what stage it is that no file can be made of, though it is whole, and what to do."""
    try:
        yield
    except (StoreError, CommitError) as error:
        if stage.crc32 is not None and isinstance(error.__cause__, MemoryError):
            # Its bytes are what was written, so it is no damage that asks for too much.
            raise _not_now(part, f"{type(error.__cause__).__name__}: {error.__cause__}") from error
        raise
    except Exception as error:
        path, name = part.path_of(part.in_progress), stage.recipe.get("format")
        what = error.message if isinstance(error, PartfileError) else f"{type(error).__name__}: {error}"
        if isinstance(error, MemoryError) or getattr(error, "errno", None) is not None:
            raise _not_now(part, what) from error
        kind = type(error) if isinstance(error, PartfileError) else PartfileError
        hint = f"Start the sink with format={name!r} and options that work: they stand in for those of the stage."
        raise kind(
            f"stage {path!r} cannot be encoded: {what}", hint=f"{hint} {getattr(error, 'hint', '')}".rstrip(), path=path
        ) from error


def why_not_here(stage: Stage) -> str:
    """Why a process without the sink's own format cannot encode a stage: it needs keys, or a newer partfile.

    Empty if it can.
    """
    try:
        format_of(stage.recipe)
    except ConfigError as error:
        return str(error)
    return ""
