"""May this query go on from what the checkpoint holds, or end it? Never skips silently (DESIGN section 5.2). Pure."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from partfile.filesystems.errors import CheckpointMismatch
from partfile.sink.options import Options

if TYPE_CHECKING:
    from partfile.sink.planning import SinkSnapshot
    from partfile.sink.states import QueryPosition, StreamPosition

ADOPT = "adopt:"


class Admission(Enum):
    """What to do with a batch."""

    WRITE = "write"
    REPLAY = "replay"


class AdmissionRules(Options):
    """What a user allows when a query does not simply continue."""

    on_new_query: str = Field(default="fail", pattern=rf"^(fail|{ADOPT}\S+)$")
    """``fail``, or ``adopt:<query id>``: the new query takes over from that one, whose id is refused from then on."""
    on_gap: Literal["fail", "accept"] = "fail"
    """``fail``, or ``accept``: batch ids may skip ahead."""


def admit(uid: str, stands: StreamPosition, batch: QueryPosition, rules: AdmissionRules) -> Admission:
    """Decide about a batch.

    Args:
        uid: The sink's uid, for messages.
        stands: Where the stream stands by the newest checkpoint.
        batch: The query, batch id and digest that came.
        rules: What the user allows.

    Returns:
        WRITE for the next batch, REPLAY for the last one come again.

    Raises:
        CheckpointMismatch: It does not continue; the message names both sides and the choices.
    """
    if batch.query_id in stands.retired_queries:
        raise CheckpointMismatch(
            f"query {batch.query_id} has been replaced on uid {uid!r}: another query adopted its place",
            hint="Stop this query, or give it a uid of its own.",
        )
    last = stands.query
    if last is None and stands.user_position is not None:
        raise CheckpointMismatch(
            f"uid {uid!r} has been written by plain Python up to the position {stands.user_position!r}, which Spark's "
            f"query {batch.query_id} knows nothing of",
            hint="Use another uid.",
        )
    if last is None:
        return _first(uid, batch, rules)
    if batch.query_id != last.query_id:
        return _unknown_query(uid, last, batch, rules)
    return _next(uid, last, batch, rules)


def position_after(stands: StreamPosition, batch: QueryPosition) -> StreamPosition:
    """Where the stream stands once ``batch`` is complete: adopting a place retires the query that had it."""
    retired = stands.retired_queries
    if stands.query is not None and stands.query.query_id != batch.query_id:
        retired = (*retired, stands.query.query_id)
    return stands.model_copy(update={"query": batch, "retired_queries": retired})


def is_no_others(left: SinkSnapshot | None, query_id: str) -> bool:
    """Whether a query that ends may end the sink too: nothing was written yet, or nobody but this query has.

    Args:
        left: What the newest checkpoint holds; None if there is none.
        query_id: The query.
    """
    last = left.position.query if left is not None else None
    return last is None or last.query_id == query_id


def has_left_parts(left: SinkSnapshot | None, query_id: str) -> bool:
    """Whether a query was the last that wrote, and has left parts that are not finished.

    Args:
        left: What the newest checkpoint holds; None if there is none.
        query_id: The query.
    """
    query = left.position.query if left is not None else None
    if left is None or query is None or query.query_id != query_id:
        return False
    return bool(left.open or left.pending or left.rolled)


def _first(uid: str, batch: QueryPosition, rules: AdmissionRules) -> Admission:
    if batch.batch_id > 0 and rules.on_gap == "fail":
        raise CheckpointMismatch(
            f"uid {uid!r} has no checkpoint yet, but query {batch.query_id} comes with batch {batch.batch_id}: "
            "its earlier batches went elsewhere",
            hint="Check the base path, uid and checkpoint_dir; if the earlier batches are meant to be elsewhere, "
            "set on_gap='accept'.",
        )
    return Admission.WRITE


def _unknown_query(uid: str, last: QueryPosition, batch: QueryPosition, rules: AdmissionRules) -> Admission:
    if rules.on_new_query == f"{ADOPT}{last.query_id}":
        return Admission.WRITE
    raise CheckpointMismatch(
        f"uid {uid!r} has been written by query {last.query_id} up to batch {last.batch_id}; "
        f"query {batch.query_id} (batch {batch.batch_id}) is another one",
        hint="If Spark's checkpoint was lost or replaced, and the new query begins where the old one ended, set "
        f"on_new_query='adopt:{last.query_id}'. Else use another uid or base path.",
    )


def _next(uid: str, last: QueryPosition, batch: QueryPosition, rules: AdmissionRules) -> Admission:
    if batch.batch_id == last.batch_id:
        if None not in {batch.offsets_digest, last.offsets_digest} and batch.offsets_digest != last.offsets_digest:
            raise CheckpointMismatch(
                f"batch {batch.batch_id} of query {batch.query_id} is complete on uid {uid!r}, but comes again with "
                "other offsets: Spark's checkpoint was changed",
                hint="Put Spark's checkpoint back, or begin a new query and let it adopt this one.",
            )
        return Admission.REPLAY
    if batch.batch_id < last.batch_id:
        raise CheckpointMismatch(
            f"query {batch.query_id} comes with batch {batch.batch_id}, but uid {uid!r} is complete up to batch "
            f"{last.batch_id}: Spark's checkpoint went back in time",
            hint="Put Spark's checkpoint back, or begin a new query and let it adopt this one.",
        )
    if batch.batch_id > last.batch_id + 1 and rules.on_gap == "fail":
        raise CheckpointMismatch(
            f"query {batch.query_id} comes with batch {batch.batch_id}, but uid {uid!r} is complete only up to batch "
            f"{last.batch_id}: the batches between would be missing",
            hint="Check the base path, uid and checkpoint_dir. If the sink went back to an earlier state, "
            "take Spark's checkpoint back as well: see docs/SNAPSHOTS.md. on_gap='accept' leaves these batches out.",
        )
    return Admission.WRITE
