"""The query, run and batch that call ``foreach_batch``, and the digest of Spark's record of the batch's offsets."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.query import StreamingQuery

from partfile.errors import PartfileError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


logger = logging.getLogger("partfile")

_QUERY_ID = "sql.streaming.queryId"
_OFFSETS_PREAMBLE_LINES = 2


@dataclass(frozen=True, slots=True)
class QueryRun:
    """One run of one query in one process: what restores once and then owns the sink."""

    process_id: int
    query_id: str
    run_id: str


def current_run(session: SparkSession) -> QueryRun:
    """The query that calls foreachBatch on this thread, and its run.

    The query id survives restarts, the run id does not. Spark keeps the query id in a property of the calling thread.
    It also names the thread's job group after the run, but the user's function may set another group, so the run id is
    asked of the query itself.

    Raises:
        PartfileError: There is no query id: not called by foreachBatch, or under Spark Connect, which hides it.
    """
    context: Any = getattr(session, "_sc", None)
    query_id = context.getLocalProperty(_QUERY_ID) if context is not None else None
    query = _active_query(session, query_id) if query_id is not None else None
    if query_id is None or query is None:
        raise PartfileError(
            "foreach_batch found no streaming query id on this thread",
            hint=(
                "Spark Connect does not tell the id; in a classic Spark session write "
                "df.writeStream.foreachBatch(sink.foreach_batch)."
            ),
        )
    return QueryRun(os.getpid(), query_id, str(query.runId()))


def _active_query(session: SparkSession, query_id: str) -> Any:
    """Spark's own object of an active query of the application, None if it has ended."""
    java: Any = session._sc._jvm  # noqa: SLF001 - a session's own manager does not know the queries of another
    queries = session._jsparkSession.sharedState().activeStreamingQueries()  # noqa: SLF001
    return queries.get(java.java.util.UUID.fromString(query_id))


def active_query(session: SparkSession, run: QueryRun) -> StreamingQuery:
    """The query of a run that is active, of any session of the application.

    Raises:
        PartfileError: It has ended meanwhile.
    """
    query = _active_query(session, run.query_id)
    if query is None:
        raise PartfileError(
            f"query {run.query_id} has ended",
            hint="Start it again by sink.start(df, checkpoint_location=DIRECTORY): the batch comes again then.",
        )
    return StreamingQuery(query)


def is_active(session: SparkSession | None, run: QueryRun) -> bool:
    """Whether a run of a query has not ended yet.

    Args:
        session: Of the query, or any other of its application; None is of none.
        run: The run.
    """
    if session is None:
        return False
    query = _active_query(session, run.query_id)
    return query is not None and str(query.runId()) == run.run_id


def is_stopped(session: SparkSession) -> bool:
    """Whether the Spark application of a session has been stopped, or its JVM is gone: it runs no more jobs."""
    context: Any = session.sparkContext
    try:
        # PySpark forgets its context only after the JVM has stopped its own.
        return context._jsc is None or bool(context._jsc.sc().isStopped())  # noqa: SLF001
    except Exception as error:  # noqa: BLE001 - whatever Py4J raises when nothing answers it
        logger.debug("Spark's JVM does not answer: %s", error)
        return True


def is_new_location(session: SparkSession, checkpoint_location: str) -> bool:
    """Whether Spark has begun no query there yet; False also where it cannot be found out."""
    java: Any = session._sc._jvm  # noqa: SLF001
    try:
        path = java.org.apache.hadoop.fs.Path(checkpoint_location, "metadata")
        return not path.getFileSystem(session._sc._jsc.hadoopConfiguration()).exists(path)  # noqa: SLF001
    except Exception as error:  # noqa: BLE001 - whatever Py4J raises, the first batch is checked as well
        logger.debug("checkpoint location %r cannot be read: %s", checkpoint_location, error)
        return False


class OffsetsLog:
    """Spark's own record of the offsets of each batch, as far as it can be read. Remembers where a run keeps it."""

    def __init__(self) -> None:
        self._run: QueryRun | None = None
        self._root = ""
        self._copied: set[int] = set()
        """Batches of the run whose entry is a copy."""

    def digest(self, session: SparkSession, run: QueryRun, batch_id: int) -> str | None:
        """Digest of ``offsets/N`` without its time stamp and settings; None where it cannot be read.

        Two batches with one id but other offsets hold other rows: that is how a changed Spark checkpoint is noticed.
        The offset of a file source is but a number, so the names of the files behind it count, too.
        """
        try:
            self._find_root(session, run)
            offsets = self._read(session, f"offsets/{batch_id}").splitlines()[_OFFSETS_PREAMBLE_LINES:]
            files = [name for index, offset in enumerate(offsets) for name in self._files(session, index, offset)]
        except Exception as error:  # noqa: BLE001 - a hint only: whatever Py4J raises, the batch goes on without it
            logger.debug("offsets of batch %d cannot be read: %s", batch_id, error)
            return None
        return hashlib.sha256("\n".join([*offsets, *files]).encode()).hexdigest()[:32] if offsets else None

    def is_copied(self, session: SparkSession, run: QueryRun, batch_id: int) -> bool:
        """Whether Spark made ``offsets/N`` by copying ``offsets/N-1``, without running a batch.

        Spark 4.2 does so when it repartitions a checkpoint offline, time stamp and watermark included. A batch that ran
        without new data has a time stamp of its own, and may hold rows: those of a window that has closed.

        Returns:
            False also where one of the two cannot be read.
        """
        try:
            self._find_root(session, run)
            entry, before = (self._entry(session, at) for at in (batch_id, batch_id - 1))
        except Exception as error:  # noqa: BLE001 - whatever Py4J raises, the batch then counts as one that ran
            logger.debug("offsets up to batch %d cannot be read: %s", batch_id, error)
            return False
        if entry == before and batch_id not in self._copied:
            self._copied.add(batch_id)
            logger.warning(
                "query %s: batch %d was never run: Spark copied its entry when the checkpoint was repartitioned",
                run.query_id,
                batch_id,
            )
        return entry == before

    def _entry(self, session: SparkSession, batch_id: int) -> tuple[Any, list[str]]:
        """The time stamp and watermark of a batch, and its offsets; the settings are left out."""
        _, settings, *offsets = self._read(session, f"offsets/{batch_id}").splitlines()
        return {name: value for name, value in json.loads(settings).items() if name != "conf"}, offsets

    def _files(self, session: SparkSession, index: int, offset: str) -> list[str]:
        """The entries of a file source's log behind one offset; none for other sources.

        Every tenth log holds the entries of all before it and may be large: there the number has to do.
        """
        parsed = json.loads(offset) if offset.startswith("{") else {}
        if set(parsed) != {"logOffset"} or parsed["logOffset"] < 0:
            return []
        name = f"sources/{index}/{parsed['logOffset']}"
        if self._exists(session, f"{name}.compact"):
            return []
        return sorted(self._read(session, name).splitlines()[1:])

    def _find_root(self, session: SparkSession, run: QueryRun) -> None:
        if run != self._run:
            query = _active_query(session, run.query_id)
            self._root, self._run, self._copied = str(query.resolvedCheckpointRoot()), run, set()

    def _exists(self, session: SparkSession, name: str) -> bool:
        path = self._path(session, name)
        return path.exists() if isinstance(path, Path) else bool(self._file_system(session, path).exists(path))

    def _read(self, session: SparkSession, name: str) -> str:
        path = self._path(session, name)
        if isinstance(path, Path):
            return path.read_text()
        stream = self._file_system(session, path).open(path)
        try:
            java: Any = session._sc._jvm  # noqa: SLF001
            return str(java.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def _path(self, session: SparkSession, name: str) -> Any:
        """A file below the checkpoint location: local files are read without a detour through Java."""
        java: Any = session._sc._jvm  # noqa: SLF001
        path = java.org.apache.hadoop.fs.Path(f"{self._root}/{name}")
        return Path(path.toUri().getPath()) if self._root.startswith("file:") else path

    @staticmethod
    def _file_system(session: SparkSession, path: Any) -> Any:
        return path.getFileSystem(session._sc._jsc.hadoopConfiguration())  # noqa: SLF001
