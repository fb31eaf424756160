"""A task attempt that goes on writing after another has won and its batch is committed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from spark_support import Once, expected, finished, ids_by_duckdb, make_sink, stream, write_source
from watcher import Watcher

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
ROWS_A_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"


def let_it_write(flag: Path) -> dict[str, Any]:
    """Give the zombie its sign, wait until it is through, and return how it went."""
    Path(f"{flag}.go").touch()
    end, deadline = Path(f"{flag}.end"), time.monotonic() + 60
    while not end.exists():
        assert time.monotonic() < deadline, "the zombie does not come to an end"
        time.sleep(0.05)
    outcome: dict[str, Any] = json.loads(end.read_text())
    return outcome


@pytest.mark.parametrize("cut", ["auto", "rewrite"])
@pytest.mark.fault("D3")
def test_a_zombie_that_writes_after_the_commit_changes_nothing(spark: SparkSession, tmp_path: Path, cut: str) -> None:
    """Its parts were open across batches and hold rows of it already: neither finished files nor later ones change."""
    rows = write_source(tmp_path / "source", 5)
    base, flag = tmp_path / "out", tmp_path / "flag"
    sink = make_sink(base, bucketer=Once(flag, "zombie", row=75), cut=cut)
    outcomes: list[dict[str, Any]] = []

    def then_the_zombie(df: DataFrame, batch_id: int) -> None:
        sink.foreach_batch(df, batch_id)
        if batch_id == 2:
            outcomes.append(let_it_write(flag))

    spark.conf.set(ROWS_A_BATCH, 10)
    try:
        with Watcher(base):
            writer = stream(spark, tmp_path / "source").writeStream.foreachBatch(then_the_zombie)
            writer = writer.option("checkpointLocation", str(tmp_path / "spark")).trigger(availableNow=True)
            writer.start().awaitTermination()
            finish(spark, base, tmp_path, flag)
    finally:
        spark.conf.unset(ROWS_A_BATCH)
    assert ids_by_duckdb(base) == expected(rows)
    assert [outcome["bytes"] > 0 for outcome in outcomes] == [True], "the zombie wrote nothing after the commit"


def finish(spark: SparkSession, base: Path, root: Path, flag: Path) -> None:
    """Publish what is open: the next run of the query, with its clean end."""
    sink = make_sink(base, bucketer=Once(flag, "zombie", row=75))
    options: dict[str, Any] = {"checkpoint_location": str(root / "spark"), "trigger": {"availableNow": True}}
    with sink.start(stream(spark, root / "source"), **options) as query:
        query.awaitTermination()
    assert finished(base)
