"""Shared stages where the partitions of a stream come and go: each waits for its own to come back, or for its time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from life_cycle import LONG
from shared_streams import BUCKETS, counted, many, rows_in, shared_in, sharing_sink

from partfile.sink.coordinator import Runtime
from partfile.sink.layout import SubtaskContext
from partfile.sink.operator import SinkOperator
from partfile.sink.states import assigned_to

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from partfile.sink.file_sink import FileSink


def run(sink: FileSink, partitions: Sequence[int], *, step_ms: int = 1) -> list[int]:
    """Batches of so many partitions, each with a row a bucket; returns how many stages were encoded after each."""
    runtime = Runtime(sink.settings, "life")
    coordinator = runtime.coordinator
    coordinator.start(lambda _position: None, 0)
    encoded, first = [], 0
    for turn, subtasks in enumerate(partitions, 1):
        pending = coordinator.trigger(turn * step_ms)
        snapshots = []
        for subtask in range(subtasks):
            operator = SinkOperator(runtime.store, sink.settings.description)
            share = assigned_to(coordinator.assignment(), subtask)
            context = SubtaskContext(
                subtask,
                attempt=0,
                generation=coordinator.generation,
                chain=coordinator.state.position.chain,
                batch_time_ms=turn * step_ms,
                may_stage=True,
            )
            operator.open(context, share.model_copy(update={"max_count": coordinator.state.max_count}))
            operator.write(many(first))
            first += BUCKETS
            snapshots.append(operator.snapshot(pending.checkpoint_id))
            operator.close()
        encoded.append(coordinator.complete(pending, snapshots, coordinator.state.position).encoded)
    runtime.close()
    return encoded


@pytest.mark.parametrize("format", ["parquet", "json"])
def test_partitions_that_come_and_go_roll_nothing(tmp_path: Path, format: str) -> None:
    """There are never more stages than there have been partitions at the same time."""
    sink = sharing_sink(tmp_path, format=format)
    assert run(sink, [8, 2, 8, 2, 8]) == [0] * 5
    assert len(shared_in(tmp_path)) == 8
    with sink.local():
        assert rows_in(tmp_path, format) == counted(0, (8 + 2 + 8 + 2 + 8) * BUCKETS)


def test_a_stage_whose_partition_does_not_come_back_is_rolled_by_its_time(tmp_path: Path) -> None:
    """By the batch that finds it due, whichever partitions that has."""
    sink = sharing_sink(tmp_path, rolling=LONG.model_copy(update={"inactivity_interval_s": 15}))
    assert run(sink, [3, 1, 1, 1], step_ms=10_000) == [0, 0, 2, 0]
