"""Which checkpoints go at the end of a job."""

from __future__ import annotations

import pytest

from partfile.snapshot.retention import JobEnd, Retention

KEPT = {
    (Retention.ON_FAILURE, JobEnd.FAILED),
    (Retention.ON_CANCELLATION, JobEnd.FAILED),
    (Retention.ON_CANCELLATION, JobEnd.CANCELLED),
    (Retention.ON_CANCELLATION, JobEnd.SUSPENDED),
}


@pytest.mark.item("DL-01", "DL-02", "DL-03")
@pytest.mark.parametrize("retention", Retention)
@pytest.mark.parametrize("end", JobEnd)
def test_what_outlives_its_job(retention: Retention, end: JobEnd) -> None:
    """The whole table of policies and ends."""
    assert retention.keeps_after(end) is ((retention, end) in KEPT)
