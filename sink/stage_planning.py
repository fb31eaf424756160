"""Decisions about stages: what a closed part becomes, what an encode leaves, when a stage may be deleted. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from partfile.sink.naming import number_in
from partfile.sink.states import PendingPart, RolledStage, SpentStage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from partfile.sink.encoded_files import EncodedFile
    from partfile.sink.encoding import EncodedStage
    from partfile.sink.planning import SinkSnapshot
    from partfile.sink.states import OpenPart, Stage, SubtaskSnapshot

_TELLING_BYTES = 1 << 20
"""Fewer stage bytes than these say nothing of the ratio: a file's footer would weigh as much as its rows."""
_LEAST_RATIO, _MOST_RATIO = 0.01, 4.0


def with_closed(
    snapshot: SinkSnapshot, parts: Iterable[OpenPart], checkpoint_id: int, *, abandoned: bool = False
) -> SinkSnapshot:
    """The state with more parts closed: a stage is to be encoded, every other part to be published.

    Args:
        snapshot: The state, in which these parts are open no more.
        parts: Nobody has closed them on the store; a stage needs that no more than its encoder does.
        checkpoint_id: The first checkpoint that will hold them so.
        abandoned: Somebody may still be writing them. A stage's valid length is all that is ever read of it.
    """
    pending, rolled = list(snapshot.pending), list(snapshot.rolled)
    for part in parts:
        if part.stage is None:
            pending.append(PendingPart(part=part.part, rows=part.rows, since=checkpoint_id, abandoned=abandoned))
        else:
            rolled.append(rolled_stage(part, part.stage, checkpoint_id, abandoned=abandoned))
    return replace(snapshot, pending=tuple(pending), rolled=tuple(rolled))


def rolled_stage(part: OpenPart, becomes: Stage, checkpoint_id: int, *, abandoned: bool) -> RolledStage:
    """What is left of an open stage that takes no more rows.

    Args:
        part: The stage.
        becomes: What it is encoded into.
        checkpoint_id: The first checkpoint that will hold it so.
        abandoned: Somebody may still be writing it.
    """
    return RolledStage(part=part.part, stage=becomes, rows=part.rows, since=checkpoint_id, abandoned=abandoned)


def after_encoding(before: SinkSnapshot, encoded: Sequence[EncodedStage], checkpoint_id: int) -> SinkSnapshot:
    """The state once stages are encoded: their files are pending, and what could not be encoded stays rolled.

    A shared stage stays rolled until every bucket has its file, and says which of them have.

    Args:
        before: The state whose rolled stages were given to an encoder.
        encoded: What became of them.
        checkpoint_id: The checkpoint that will hold the result; only then may the files be published.
    """
    gone = {one.stage.part.in_progress for one in encoded if one.is_done or one.is_given_up}
    made = {one.stage.part.in_progress: one.files or () for one in encoded}
    files = [promised(file, checkpoint_id) for some in made.values() for file in some]
    spent = [spent_stage(one.stage, checkpoint_id) for one in encoded if one.is_done]
    ratio = learnt_ratio(before.position.encoded_ratio, files, spent)
    return replace(
        before,
        position=before.position.model_copy(update={"encoded_ratio": ratio}),
        pending=(*before.pending, *files),
        rolled=tuple(
            stage.model_copy(update={"stage": less(stage.stage, made.get(stage.part.in_progress, ()))})
            for stage in before.rolled
            if stage.part.in_progress not in gone
        ),
        spent=(*before.spent, *spent),
    )


def promised(file: EncodedFile, checkpoint_id: int) -> PendingPart:
    """A file that a stage was encoded into, as a checkpoint promises it.

    Args:
        file: The file.
        checkpoint_id: The first checkpoint that will hold it.
    """
    return PendingPart(part=file.part, rows=file.rows, since=checkpoint_id, crc32=file.crc32)


def less(stage: Stage, files: Iterable[EncodedFile]) -> Stage:
    """What is left to be encoded of a shared stage once some buckets have their files."""
    finished = dict.fromkeys((*stage.finished_buckets, *(file.part.bucket for file in files)))
    return stage.model_copy(update={"finished_buckets": tuple(finished)}) if finished else stage


def spent_stage(encoded: OpenPart | RolledStage, checkpoint_id: int) -> SpentStage:
    """What is left of a stage that is encoded.

    Args:
        encoded: The stage.
        checkpoint_id: The first checkpoint that will hold its files.
    """
    is_shared = encoded.stage is not None and encoded.stage.shared
    return SpentStage(part=encoded.part, since=checkpoint_id, shared=is_shared)


def learnt_ratio(known: float | None, files: Iterable[PendingPart], stages: Iterable[SpentStage]) -> float | None:
    """Bytes of an encoded file for each byte of its stage, by these and by what was known before.

    Args:
        known: The ratio so far; None before the first.
        files: Pending parts, those that were encoded now among them.
        stages: What these were encoded from.
    """
    # Many small files say nothing of a large one.
    length_of = {stage.part.path_of(stage.part.name): stage.part.valid_length for stage in stages if not stage.shared}
    staged_bytes = encoded_bytes = 0
    for file in files:
        length = length_of.get(file.part.path_of(file.part.name))
        if length is not None:
            staged_bytes += length
            encoded_bytes += file.part.valid_length
    if staged_bytes < _TELLING_BYTES:
        return known
    seen = min(_MOST_RATIO, max(_LEAST_RATIO, encoded_bytes / staged_bytes))
    return seen if known is None else (known + seen) / 2


def shared_from(known: int | None, chain: str, ran: Iterable[SubtaskSnapshot]) -> int | None:
    """The lowest part counter of a shared stage, so that who finds a file name in two directories knows that it may be.

    Args:
        known: The lowest so far; None if no stage was shared.
        chain: The chain in the names of parts.
        ran: What subtasks acknowledged.
    """
    shared: list[str] = []
    for one in ran:
        shared += [part.part.name for part in one.open if part.stage is not None and part.stage.shared]
        shared += [stage.part.name for stage in one.rolled if stage.stage.shared]
        shared += [stage.part.name for stage in one.spent if stage.shared]
    numbers = [number_in(name, {chain}) for name in shared]
    counts = [number.count for number in numbers if number is not None]
    return min(counts if known is None else [known, *counts], default=None)


def disposable(spent: Iterable[SpentStage], oldest_retained_id: int) -> list[SpentStage]:
    """The spent stages that no retained checkpoint names as data any more (S6).

    Args:
        spent: Stages whose files a completed checkpoint holds.
        oldest_retained_id: Id of the oldest link that is still there.
    """
    return [stage for stage in spent if stage.since <= oldest_retained_id]
