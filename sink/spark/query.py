"""A started query with a clean end: when it has stopped, nothing stays in progress (or all is kept on purpose)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Self

from partfile.filesystems.errors import ConfigError, NotReady

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from types import TracebackType

    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from partfile.sink.spark.stream import SparkStream

logger = logging.getLogger("partfile")


class StartedQuery:
    """A streaming query into a sink. Everything of Spark's ``StreamingQuery`` is available on it.

    In a ``with`` block the end is clean: a query that ends by itself (``availableNow``) is waited for, any other is
    stopped between two batches, then the sink publishes its open parts. If the block or the query fails, nothing more
    is published now; the next run settles what completed checkpoints vouch for.

    Args:
        query: Spark's query.
        stream: The sink's side of it.
        ends_itself: Whether the trigger lets the query end by itself.
    """

    def __init__(self, query: StreamingQuery, stream: SparkStream, *, ends_itself: bool) -> None:
        self._query = query
        self._stream = stream
        self._ends_itself = ends_itself

    def __getattr__(self, name: str) -> Any:
        return getattr(self._query, name)

    @property
    def query(self) -> StreamingQuery:
        """Spark's own object."""
        return self._query

    def stop(self) -> None:
        """Stop the query, if possible between two batches, and end the sink cleanly."""
        self._stream.wait_for_batch()
        self._query.stop()
        self.finish()

    def savepoint(self, directory: str | os.PathLike[str] | None = None) -> str:
        """Take a savepoint between two batches and go on; see ``FileSink.savepoint``."""
        location: str = self._stream.savepoint(directory)
        return location

    def stop_with_savepoint(self, directory: str | os.PathLike[str] | None = None) -> str:
        """Stop the query between two batches, publish everything, and take a savepoint: nothing is written after it.

        Go on with ``restore_from`` and the same Spark checkpoint.

        Args:
            directory: Where to make it; None takes the sink's ``savepoint_dir``.

        Returns:
            Its location.

        Raises:
            ConfigError: There is no directory for it; the query goes on.
            StoreError: The directory cannot be written. If that shows before the stop, the query goes on.
        """
        return self._stream.stop_with_savepoint(self._query, directory)

    def finish(self) -> None:
        """End the sink cleanly once the query has ended: publish every open part, or keep them (``on_stop``).

        Does nothing while the query is active. After it failed, publishes nothing and lets go of the sink.

        Raises:
            NotReady: The sink has ended, and not all is published yet: a later start, or recover, does it.
        """
        if self._query.isActive:
            return
        if self._query.exception() is None:
            self._stream.finish(str(self._query.id))
        else:
            self._stream.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._ends_itself:
            try:
                self._query.awaitTermination()
            finally:
                self.finish()
        elif kind is None:
            self.stop()
        elif issubclass(kind, KeyboardInterrupt):
            try:
                self.stop()
            except NotReady as error:
                # The interrupt is what its user waits for.
                logger.warning("%s", error)
        else:
            self._query.stop()
            self._stream.release()


def start_query(
    writer: DataStreamWriter,
    stream: SparkStream,
    *,
    trigger: Mapping[str, Any] | None,
    query_name: str | None,
    options: Mapping[str, str] | None,
) -> StartedQuery:
    """Start a query into a sink; the arguments are those of ``FileSink.start``.

    Raises:
        ConfigError: ``options`` name the checkpoint location a second time.
    """
    if "checkpointlocation" in {name.lower() for name in options or {}}:
        raise ConfigError(
            "options name a checkpointLocation besides checkpoint_location",
            hint="Pass the directory as checkpoint_location alone.",
        )
    for name, value in (options or {}).items():
        writer = writer.option(name, value)
    if query_name is not None:
        writer = writer.queryName(query_name)
    if trigger:
        writer = writer.trigger(**trigger)
    ends_itself = any(name in (trigger or {}) for name in ("availableNow", "once"))
    return StartedQuery(writer.start(), stream, ends_itself=ends_itself)
