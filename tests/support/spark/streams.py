"""Spark streams of numbered rows for the tests: source files, sessions, readers, and bucketers that misbehave once."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

import partfile as pf
from partfile.sink.operator import SinkOperator
from partfile.stores.local.store import LocalStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame


DAEMON, WARM_DAEMON = "spark.python.daemon.module", "support.programs.warm_daemon"
SCHEMA = "id long, bucket long"
BUCKETS = 3
WAIT_NEAR = 45
WAIT_S = 12
WAIT_FOR_ZOMBIE_S = 180
NOW = {"availableNow": True}
LONG = pf.RollingPolicy(rollover_interval_s=1e6, inactivity_interval_s=1e6)


def build_session(master: str = "local[2,4]", **settings: str) -> SparkSession:
    """A quiet session whose workers run this interpreter and see ``tests``."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    builder = SparkSession.builder.master(master).appName("partfile-tests")
    fixed = {
        "spark.ui.enabled": "false",
        DAEMON: WARM_DAEMON,
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "ERROR",
        "spark.sql.warehouse.dir": "/nonexistent/partfile-warehouse",
    }
    for name, value in (fixed | settings).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def write_source(directory: Path, files: int, rows_a_file: int = 30, first: int = 0) -> int:
    """Add source files of numbered rows, oldest first; returns the number after the last row."""
    directory.mkdir(parents=True, exist_ok=True)
    present = len(list(directory.glob("*.json")))
    for number in range(files):
        start = first + number * rows_a_file
        rows = [{"id": row, "bucket": row % BUCKETS} for row in range(start, start + rows_a_file)]
        path = directory / f"{present + number:05d}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(path, (1e9 + present + number, 1e9 + present + number))
    return first + files * rows_a_file


def stream(spark: SparkSession, source: Path, files: int = 1) -> DataFrame:
    """So many source files a micro-batch."""
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", files).json(str(source))


def widen(df: DataFrame, wide_bytes: int) -> DataFrame:
    """Add a text to each row, of so many bytes in bucket 0 and empty in the others."""
    length = F.when(F.col("bucket") == 0, wide_bytes).otherwise(0)
    return df.withColumn("text", F.repeat(F.lit("x"), length))


def make_sink(base: Path | str, **options: Any) -> pf.FileSink:
    """A JSON sink with Hive buckets whose parts roll only at the end."""
    fixed: dict[str, Any] = {"uid": "numbers", "format": "json", "bucketer": pf.HiveBucketer("bucket"), "rolling": LONG}
    return pf.FileSink(base, **(fixed | options))


def run(sink: pf.FileSink, df: DataFrame, checkpoint: str) -> None:
    """Stream everything that is there, with a clean end."""
    with sink.start(df, checkpoint_location=checkpoint, trigger=NOW) as query:
        query.awaitTermination()


def run_without_end(
    sink: pf.FileSink, df: DataFrame, checkpoint: str, then: Callable[[int], None] = lambda _batch_id: None
) -> None:
    """Stream everything that is there, and leave the sink as a driver does that dies: what is open stays open.

    Args:
        sink: To it.
        df: The stream.
        checkpoint: Of Spark.
        then: Called with the number of each batch when the sink has written it.
    """

    def batch(rows: DataFrame, batch_id: int) -> None:
        sink.foreach_batch(rows, batch_id)
        watch = sink._spark_stream()._watch
        assert watch is not None
        watch.is_dismissed = True
        then(batch_id)

    writer = df.writeStream.foreachBatch(batch)
    writer.option("checkpointLocation", checkpoint).trigger(**NOW).start().awaitTermination()


def active_runs(spark: SparkSession) -> set[str]:
    """The queries that run in a session; those of earlier tests may be about to end."""
    return {query.runId for query in spark.streams.active}


def ids_by_duckdb(base: Path) -> Counter[int]:
    """The ids in every file that a glob finds, as another reader reads them."""
    # A sink that ends meanwhile takes directories away, over which Path.glob fails, and os.walk goes on.
    if not any(name.endswith(".json") for _, _, names in os.walk(base) for name in names):
        return Counter()
    return Counter(row[0] for row in duckdb.execute(f"SELECT id FROM read_json('{base}/**/*.json')").fetchall())  # noqa: S608


def expected(rows: int) -> Counter[int]:
    """Each number once."""
    return Counter(range(rows))


def finished(base: Path) -> list[Path]:
    """The visible files below the base, while others write there: hidden directories are not entered."""
    found: list[Path] = []
    for directory, folders, names in os.walk(base):
        folders[:] = [name for name in folders if not name.startswith(("_", "."))]
        found += [Path(directory, name) for name in names if not name.startswith(("_", "."))]
    return sorted(found)


class Once:
    """A bucketer that does something bad the first time a given row comes by, and then never again.

    Also notes each batch of rows in ``{flag}.log``: stage, partition and attempt number.

    Args:
        flag: A file that remembers that it happened.
        deed: ``raise``; ``kill`` (SIGKILL of the own worker process); ``sleep:SECONDS``; or ``kill-executor``, where
            the other tasks of the stage wait a while, so that they are still running when its loss is noticed; or
            ``zombie``: the worker dies, but a copy of its process with all its open parts lives on. It leaves the file
            ``{flag}.asleep`` once Spark cannot end it any more, waits for ``{flag}.go``, writes the rows and makes
            them durable as if nothing had happened, and says in ``{flag}.end`` how many bytes and how it ended.
        row: The id that sets it off.
    """

    def __init__(self, flag: Path, deed: str, row: int) -> None:
        self.flag = str(flag)
        self.deed = deed
        self.row = row

    def __call__(self, batch: pa.RecordBatch) -> pa.Array:
        """Bucket by column, after the deed."""
        ids = batch.column("id").to_pylist()
        self._note()
        if self.row in ids:
            if self._is_first(self.flag):
                self._act(batch)
        elif (
            self.deed == "kill-executor" and abs(self.row - ids[0]) < WAIT_NEAR and self._is_first(f"{self.flag}.wait")
        ):
            time.sleep(WAIT_S)
        return pc.binary_join_element_wise("bucket", batch.column("bucket").cast(pa.string()), "=")

    def _act(self, batch: pa.RecordBatch) -> None:
        if self.deed == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.deed == "kill-executor":
            time.sleep(1)
            os.kill(parent_of(os.getppid()), signal.SIGKILL)
            time.sleep(60)
        if self.deed.startswith("sleep:"):
            time.sleep(float(self.deed.removeprefix("sleep:")))
        if self.deed == "zombie":
            itself = os.getpid()
            if os.fork() == 0:
                # A copy may not use a part (that is tested elsewhere), so it passes for the process it was.
                os.getpid = lambda: itself
                self._go_on_as_zombie(batch)
            deadline = time.monotonic() + WAIT_FOR_ZOMBIE_S
            while not Path(f"{self.flag}.asleep").exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            # Killed rather than failed: a close would give the leases back, which a zombie still has.
            os.kill(itself, signal.SIGKILL)
        if self.deed == "raise":
            raise RuntimeError("deliberate failure of a task")

    def _go_on_as_zombie(self, batch: pa.RecordBatch) -> None:
        os.setsid()  # Spark ends its workers by their process group.
        close_sockets()
        Path(f"{self.flag}.asleep").touch()
        deadline = time.monotonic() + WAIT_FOR_ZOMBIE_S
        while not Path(f"{self.flag}.go").exists():
            if time.monotonic() > deadline:
                os._exit(1)
            time.sleep(0.02)
        operator = calling_operator()
        before = operator.bytes_written
        try:
            operator.write(batch)
            operator.roll_all()
            end = "durable"
        except Exception as error:  # noqa: BLE001 - whatever stops it is what the test wants to know
            end = f"{type(error).__name__}: {error}"
        partial = Path(f"{self.flag}.partial")
        partial.write_text(json.dumps({"bytes": operator.bytes_written - before, "end": end}))
        partial.rename(f"{self.flag}.end")
        os._exit(0)

    def _note(self) -> None:
        task = TaskContext.get()
        if task is not None:
            line = {"stage": task.stageId(), "partition": task.partitionId(), "attempt": task.attemptNumber()}
            with open(f"{self.flag}.log", "a") as log:  # noqa: PTH123 - runs in a worker
                log.write(json.dumps({**line, "task": task.taskAttemptId()}) + "\n")

    @staticmethod
    def _is_first(flag: str) -> bool:
        try:
            os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


def calling_operator() -> SinkOperator:
    """The operator that the caller's caller works for."""
    frame = sys._getframe()
    while not isinstance(operator := frame.f_locals.get("self"), SinkOperator):
        assert frame.f_back is not None
        frame = frame.f_back
    return operator


def close_sockets() -> None:
    """Give up the connections of the process this is a copy of, so that Spark sees at once that it died."""
    for descriptor in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.close(descriptor)
        except OSError:
            continue  # The one that listed them.


def parent_of(pid: int) -> int:
    """The parent of another process: of a worker's daemon, the executor's JVM."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def store_without_locks(url: str, _options: Any) -> Any:
    """A store as an executor sees it whose locks mean nothing to the driver's host."""

    class LocksOfItsOwn(LocalStore):
        def marker_is_held(self, path: str) -> bool:
            super().marker_is_held(path)
            return False

    return LocksOfItsOwn(url)


def store_elsewhere(url: str, _options: Any) -> Any:
    """A store as an executor sees it that has a disk of its own under the same path."""
    elsewhere = Path(f"{url}-of-another-host")
    elsewhere.mkdir(parents=True, exist_ok=True)
    return LocalStore(str(elsewhere))


def parts_elsewhere(url: str, options: Any) -> Any:
    """The same, where only the checkpoints are on a disk that all hosts share."""
    return LocalStore(url) if url.endswith("/_partfile") else store_elsewhere(url, options)
