"""The cases that keep nothing: they hand rows over as quickly as our own tasks, or they would be no limit."""

from __future__ import annotations

import pyarrow as pa
import pytest

import peers


@pytest.mark.parametrize("make", [peers.counting, peers.encoding_parquet, peers.encoding_json])
def test_a_ceiling_begins_its_task_as_ours_do(make: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first row is asked for."""
    assert callable(make)
    seen: list[str] = []
    monkeypatch.setattr(peers, "begin_task", lambda: seen.append("begun"))

    def batches() -> object:
        seen.append("asked")
        yield pa.record_batch({"n": [1, 2, 3]})

    ((result,),) = (batch.columns for batch in make()(batches()))
    assert seen == ["begun", "asked"]
    assert result[0].as_py() > 0
