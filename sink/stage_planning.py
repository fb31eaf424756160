"""Decisions about stages: what a closed part becomes, what an encode leaves, when a stage may be deleted. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from partfile.sink.states import PendingPart, RolledStage, SpentStage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from partfile.sink.encoding import EncodedStage
    from partfile.sink.planning import SinkSnapshot
    from partfile.sink.states import OpenPart

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
            rolled.append(RolledStage(part=part.part, stage=part.stage, rows=part.rows, since=checkpoint_id))
    return replace(snapshot, pending=tuple(pending), rolled=tuple(rolled))


def after_encoding(before: SinkSnapshot, encoded: Sequence[EncodedStage], checkpoint_id: int) -> SinkSnapshot:
    """The state once stages are encoded: their files are pending, and what could not be encoded stays rolled.

    Args:
        before: The state whose rolled stages were given to an encoder.
        encoded: What became of them.
        checkpoint_id: The checkpoint that will hold the result; only then may the files be published.
    """
    done = [one for one in encoded if one.target is not None]
    gone = {one.stage.part.in_progress for one in encoded if one.target is not None or one.is_given_up}
    files = [
        PendingPart(part=one.target, rows=one.stage.rows, since=checkpoint_id) for one in done if one.target is not None
    ]
    spent = [SpentStage(part=one.stage.part, since=checkpoint_id) for one in done]
    ratio = learnt_ratio(before.position.encoded_ratio, files, spent)
    return replace(
        before,
        position=before.position.model_copy(update={"encoded_ratio": ratio}),
        pending=(*before.pending, *files),
        rolled=tuple(stage for stage in before.rolled if stage.part.in_progress not in gone),
        spent=(*before.spent, *spent),
    )


def learnt_ratio(known: float | None, files: Iterable[PendingPart], stages: Iterable[SpentStage]) -> float | None:
    """Bytes of an encoded file for each byte of its stage, by these and by what was known before.

    Args:
        known: The ratio so far; None before the first.
        files: Pending parts, those that were encoded now among them.
        stages: What these were encoded from.
    """
    length_of = {stage.part.path_of(stage.part.name): stage.part.valid_length for stage in stages}
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


def disposable(spent: Iterable[SpentStage], oldest_retained_id: int) -> list[SpentStage]:
    """The spent stages that no retained checkpoint names as data any more (S6).

    Args:
        spent: Stages whose files a completed checkpoint holds.
        oldest_retained_id: Id of the oldest link that is still there.
    """
    return [stage for stage in spent if stage.since <= oldest_retained_id]
