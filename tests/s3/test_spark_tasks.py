"""What Spark's tasks have of S3: a client of their own process, forked or not, and no credentials but those passed."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.s3.life import store_options
from support.s3.server import REGION
from support.spark.openers import NotingOpener
from support.spark.s3 import ids_on_s3, pending_uploads, s3_sink, visible_objects
from support.spark.streams import BUCKETS, expected, run, stream, write_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from support.s3.server import S3Server


pytestmark = [pytest.mark.spark, pytest.mark.slow]
TESTS = Path(__file__).parents[1]
DAEMON = {"spark.python.daemon.module": "support.programs.daemon_with_client"}
FORKED_FOR_EACH_TASK = {**DAEMON, "spark.python.worker.reuse": "false"}
SPAWNED_FOR_EACH_TASK = {"spark.python.use.daemon": "false"}
FILES, ROWS_A_FILE, WIDE_BYTES = 5, 3000, 2000


def run_driver(job: dict[str, Any], **environment: str) -> None:
    """Run a driver of its own to the end of its stream."""
    everything = {**os.environ, **environment, "PYTHONPATH": f"{TESTS}:{os.environ['PYTHONPATH']}"}
    command = [sys.executable, str(TESTS / "support" / "programs" / "kill_driver.py"), json.dumps(job)]
    done = subprocess.run(command, env=everything, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]


def notes_of_a_stream(server: S3Server, tmp_path: Path, spark: dict[str, str]) -> list[dict[str, Any]]:
    """Run a stream with wide rows in a driver of its own; return what its tasks noted."""
    rows = write_source(tmp_path / "source", FILES, ROWS_A_FILE)
    opener, base, options = NotingOpener(tmp_path / "log"), f"s3://{server.bucket()}/out", store_options(server)
    job = {
        "base": base,
        "source": str(tmp_path / "source"),
        "checkpoint": str(tmp_path / "spark"),
        "options": {"storage_options": options, "distribution": "hash", "hash_partitions": 2},
        "wide_bytes": WIDE_BYTES,
        "opener_log": opener.log,
        "spark": spark,
    }
    run_driver(job, PARTFILE_TEST_STORE=json.dumps([base, options]))
    assert ids_on_s3(server, base) == expected(rows)
    assert len(visible_objects(server.filesystem(), base)) == BUCKETS
    assert pending_uploads(server, base) == []
    return opener.notes


def test_each_worker_makes_one_client_after_the_fork_and_keeps_it(radosgw: S3Server, tmp_path: Path) -> None:
    """The daemon that forks the workers has a client and its event loop already: theirs are others, made once."""
    notes = notes_of_a_stream(radosgw, tmp_path, DAEMON)
    assert all(note["inherited"] for note in notes)
    for worker, group in groupby(sorted(notes, key=lambda note: int(note["process"])), lambda note: note["process"]):
        used = list(group)
        assert [note["made_in"] for note in used] == [worker] * len(used)
        assert len({tuple(note["clients"]) for note in used}) == 1
        assert len(used[0]["clients"]) == 1
    # Two stores a task; with a worker for each task none would have been used twice.
    assert max(sum(note["process"] == one["process"] for note in notes) for one in notes) > 2


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("spark", "inherits"), [(FORKED_FOR_EACH_TASK, True), (SPAWNED_FOR_EACH_TASK, False)], ids=["fork", "spawn"]
)
def test_an_upload_goes_on_in_another_process_with_each_batch(
    radosgw: S3Server, tmp_path: Path, spark: dict[str, str], inherits: bool
) -> None:
    """A worker for each task, forked from a daemon that has used S3 or started afresh: one file a bucket."""
    notes = notes_of_a_stream(radosgw, tmp_path, spark)
    assert {bool(note["inherited"]) for note in notes} == {inherits}
    assert all(note["made_in"] == note["process"] for note in notes)
    assert len({note["process"] for note in notes}) == 2 * FILES


@pytest.mark.drawn(1)
@pytest.mark.parametrize("passed", [True, False], ids=["passed", "ambient"])
@pytest.mark.fault("D18")
def test_a_closure_holds_the_credentials_that_were_passed_alone(
    radosgw: S3Server, tmp_path: Path, passed: bool
) -> None:
    """Those that driver and tasks find in their environment, endpoint and region too, are in none."""
    rows, base = write_source(tmp_path / "source", 2), f"s3://{radosgw.bucket()}/out"
    opener, closures = NotingOpener(tmp_path / "log"), tmp_path / "closures"
    job = {
        "base": base,
        "source": str(tmp_path / "source"),
        "checkpoint": str(tmp_path / "spark"),
        "options": {"storage_options": store_options(radosgw) if passed else {}},
        "opener_log": opener.log,
        "closures": str(closures),
    }
    ambient = {
        "AWS_ACCESS_KEY_ID": radosgw.access_key,
        "AWS_SECRET_ACCESS_KEY": radosgw.secret_key,
        "AWS_ENDPOINT_URL_S3": radosgw.endpoint_url,
        "AWS_DEFAULT_REGION": REGION,
    }
    run_driver(job, **({} if passed else ambient))
    assert ids_on_s3(radosgw, base) == expected(rows)
    assert base.encode() in closures.read_bytes()
    for secret in (radosgw.secret_key, radosgw.access_key):
        assert (secret.encode() in closures.read_bytes()) == passed
    assert {bool(note["options"]) for note in opener.notes} == {passed}


def test_a_secret_reaches_neither_logs_nor_objects(
    spark: SparkSession, radosgw: S3Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor any repr, while parts are open and when they are finished."""
    rows, base = write_source(tmp_path / "source", 2), f"s3://{radosgw.bucket()}/out"
    for on_stop in ("keep", "publish"):
        with caplog.at_level(logging.DEBUG, logger="partfile"):
            sink = s3_sink(radosgw, base, on_stop=on_stop)
            run(sink, stream(spark, tmp_path / "source"), str(tmp_path / "spark"))
        shown = [repr(sink), repr(sink.settings), caplog.text, *everything_in(radosgw, base)]
        assert not [text for text in shown if radosgw.secret_key in text]
    assert ids_on_s3(radosgw, base) == expected(rows)


def everything_in(server: S3Server, base: str) -> list[str]:
    """Keys, bytes and metadata of every object of the bucket."""
    client, bucket = server.filesystem(), base.removeprefix("s3://").partition("/")[0]
    keys = [found["Key"] for found in client.call_s3("list_objects_v2", Bucket=bucket)["Contents"]]
    texts = [client.cat_file(f"{bucket}/{key}").decode() for key in keys]
    assert texts
    return [*keys, *texts, *(repr(client.call_s3("head_object", Bucket=bucket, Key=key)) for key in keys)]
