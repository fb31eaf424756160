"""The failures of ``docs/RUNBOOK.md`` that need a server of their own, moto, or a Spark."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from runbook_failures import AT_ONCE, die, run_batches
from support.processes.command_line import told_json
from support.s3.proxy import S3Proxy, error
from support.s3.server import REGION, MotoServer
from support.spark import streams as spark_support

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from runbook_terminal import Terminal

ROW_THAT_KILLS = 25
ROWS_A_FILE = 30
SHORT_S = 3
"""How long a completion that got no answer is looked for, in seconds."""
A_LARGE_BATCH: dict[str, Any] = {"width": 3 << 20}


@contextmanager
def moto(directory: Path) -> Iterator[MotoServer]:
    """An S3 server that every client of this process finds in the environment."""
    with MotoServer(directory) as server:
        found = {
            "AWS_ACCESS_KEY_ID": server.access_key,
            "AWS_SECRET_ACCESS_KEY": server.secret_key,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL_S3": server.endpoint_url,
        }
        os.environ.update(found)
        try:
            yield server
        finally:
            for name in found:
                del os.environ[name]


def upload_orphaned(terminal: Terminal, server: MotoServer) -> None:
    """A task died before its checkpoint, and its upload stays."""
    base = f"s3://{server.bucket()}/landing"
    die(base, checkpoints=0, **A_LARGE_BATCH)
    run_batches(base)
    terminal.section("seen")
    terminal.partfile("status", base)
    terminal.partfile("clean", base)
    terminal.partfile("clean", base, "--delete", "--older-than", "0s")
    terminal.section("mended")
    terminal.partfile("clean", base, "--delete", "--older-than", "0s", "--apply", *AT_ONCE)
    terminal.partfile("verify", base)


def upload_aborted(terminal: Terminal, server: MotoServer) -> None:
    """A lifecycle rule was shorter than an outage."""
    bucket = server.bucket()
    base = f"s3://{bucket}/landing"
    die(base, **A_LARGE_BATCH)
    for one in server.pending_uploads(bucket):
        server.filesystem().call_s3("abort_multipart_upload", Bucket=bucket, Key=one["Key"], UploadId=one["UploadId"])
    terminal.section("seen")
    terminal.job(lambda: run_batches(base, storage_options={"call_timeout_s": SHORT_S}))
    terminal.section("mended")
    give_up = ("--accept-missing", "--storage-option", f"call_timeout_s={SHORT_S}")
    terminal.partfile("recover", base, *give_up)
    terminal.partfile("recover", base, *give_up, "--apply", *AT_ONCE)
    terminal.partfile("verify", base)


def credentials_expired(terminal: Terminal, server: MotoServer) -> None:
    """The server refuses the session's token; then the host has a new one."""
    base = f"s3://{server.bucket()}/landing"
    die(base)
    with S3Proxy(server) as proxy:
        place = {"endpoint_url": proxy.endpoint_url}
        options = ("--storage-option", f"endpoint_url={proxy.endpoint_url}")
        proxy.inject(error(400, "ExpiredToken"), times=None)
        terminal.section("seen")
        terminal.job(lambda: run_batches(base, storage_options=place))
        terminal.partfile("status", base, *options)
        proxy.heal()
        terminal.section("mended")
        terminal.job(lambda: run_batches(base, storage_options=place))
        terminal.partfile("verify", base, *options)


def store_unreachable(terminal: Terminal, server: MotoServer) -> None:
    """Nothing listens at the address; then something does."""
    base = f"s3://{server.bucket()}/landing"
    die(base)
    wrong = {"endpoint_url": "http://127.0.0.1:9", "call_timeout_s": SHORT_S}
    terminal.section("seen")
    terminal.job(lambda: run_batches(base, storage_options=wrong))
    words = [word for name, value in wrong.items() for word in ("--storage-option", f"{name}={value}")]
    terminal.partfile("status", base, *words)
    terminal.section("mended")
    terminal.job(lambda: run_batches(base))
    terminal.partfile("verify", base)


def worker_killed(terminal: Terminal, spark: SparkSession) -> None:
    """SIGKILL to the Python worker of a task."""
    base, source = terminal.root / "landing", terminal.root / "source"
    spark_support.write_source(source, 2, ROWS_A_FILE)
    bucketer = spark_support.Once(terminal.root / "flag", "kill", row=ROW_THAT_KILLS)

    def job() -> None:
        sink = spark_support.make_sink(base, bucketer=bucketer)
        spark_support.run(sink, spark_support.stream(spark, source), str(terminal.root / "checkpoint"))

    terminal.section("seen")
    terminal.job(job)
    terminal.partfile("status", base, "--scan")
    terminal.section("mended")
    terminal.partfile("clean", base, "--older-than", "0s", "--apply", *AT_ONCE)
    terminal.partfile("verify", base)


def checkpoint_deleted(terminal: Terminal, spark: SparkSession) -> None:
    """Spark's checkpoint directory is gone, and the query has another id."""
    base, source = terminal.root / "landing", terminal.root / "source"
    spark_support.write_source(source, 2, ROWS_A_FILE)

    def job(checkpoint: str, **options: Any) -> None:
        sink = spark_support.make_sink(base, **options)
        spark_support.run(sink, spark_support.stream(spark, source), str(terminal.root / checkpoint))

    job("checkpoint")
    terminal.section("seen")
    terminal.job(lambda: job("another"))
    terminal.partfile("status", base)
    terminal.section("mended")
    old = told_json("status", base)["sinks"][0]["query_id"]
    shutil.rmtree(source)
    spark_support.write_source(source, 1, ROWS_A_FILE, first=2 * ROWS_A_FILE)
    terminal.job(lambda: job("another", on_new_query=f"adopt:{old}"))
    terminal.partfile("verify", base)


ON_S3: dict[str, Callable[[Terminal, MotoServer], None]] = {
    "upload-orphaned": upload_orphaned,
    "upload-aborted": upload_aborted,
    "credentials-expired": credentials_expired,
    "store-unreachable": store_unreachable,
}
"""Those on S3."""
WITH_SPARK: dict[str, Callable[[Terminal, SparkSession], None]] = {
    "worker-killed": worker_killed,
    "checkpoint-deleted": checkpoint_deleted,
}
"""Those of Spark."""
