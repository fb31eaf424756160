"""New open parts: names that nobody has had, and what the snapshot says of a part before its first row. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.sink.naming import PartNumber
from partfile.sink.states import OpenPart, Stage

if TYPE_CHECKING:
    from partfile.sink.description import SinkDescription, SubtaskContext
    from partfile.sink.row_layout import RowLayout


def fresh_part(
    description: SinkDescription,
    context: SubtaskContext,
    layout: RowLayout,
    *,
    bucket: str,
    count: int,
    token: str,
) -> OpenPart:
    """A part as it is created.

    Args:
        description: The sink's.
        context: Who creates it, and when.
        layout: Of its rows.
        bucket: Where it goes; empty for a shared stage, which lies in the base.
        count: The part counter, new.
        token: 128 random bits drawn by this attempt.
    """
    stage = _stage(description, context, layout)
    number = PartNumber(context.chain, context.subtask, count)
    handle = description.naming.handle(bucket, number, suffix=description.format.suffix, token=token)
    return OpenPart(
        part=handle.model_copy(update={"is_stage": stage is not None}),
        count=count,
        schema_fingerprint=layout.fingerprint,
        generation=context.generation,
        created_at_ms=context.batch_time_ms,
        last_write_ms=context.batch_time_ms,
        rows=0,
        stage=stage,
    )


def final_path(description: SinkDescription, context: SubtaskContext, bucket: str, count: int) -> str:
    """Where a part of a bucket will be once it is finished; arguments as for ``fresh_part``."""
    number = PartNumber(context.chain, context.subtask, count)
    handle = description.naming.handle(bucket, number, suffix=description.format.suffix, token="")
    return handle.path_of(handle.name)


def _stage(description: SinkDescription, context: SubtaskContext, layout: RowLayout) -> Stage | None:
    if layout.is_shared and description.shared_recipe is not None:
        return Stage(recipe=dict(description.shared_recipe), shared=True, crc32=0)
    if description.recipe is None or not context.may_stage:
        return None
    return Stage(recipe=dict(description.recipe), encoded_ratio=context.encoded_ratio or 1.0, crc32=0)
