"""Driver and executors run the same partfile."""

from __future__ import annotations

import pytest
from pyspark.sql import Row

from partfile.errors import PartfileError
from partfile.sink.spark.write_job import read_acknowledgement
from partfile.snapshot.documents import SubtaskState
from partfile.version import __version__


def answer_of(version: str) -> Row:
    """What a task of a version answers."""
    state = SubtaskState(subtask=0, handle=None).model_dump_json().encode()
    return Row(submission="one", version=version, rows=1, bytes=9, state=bytearray(state))


@pytest.mark.fault("D17")
def test_an_executor_with_another_version_is_refused() -> None:
    """Its answer is not taken, and the error names both versions and what to do; the same version is."""
    with pytest.raises(PartfileError, match=r"has partfile 0\.0\.0-other, the driver") as raised:
        read_acknowledgement(answer_of("0.0.0-other"))
    assert "same version" in raised.value.hint
    assert read_acknowledgement(answer_of(__version__)).rows == 1
