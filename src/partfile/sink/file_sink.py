"""FileSink: what users touch. Options in, a foreachBatch function, a started query or a local sink out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from partfile.errors import ConfigError
from partfile.sink.local import LocalSink
from partfile.sink.policies import RollingPolicy
from partfile.sink.settings import SinkOptions, make_settings
from partfile.stores.registry import is_of_one_process

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from datetime import timedelta

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from partfile.bucketers.base import Bucketer
    from partfile.sink.spark.stream import SparkStream, StartedQuery
    from partfile.writers.base import Format


class FileSink:
    """A transactional sink: every row of the stream ends up in exactly one finished part file, whatever crashes.

    Args:
        base: Where finished files go: a local path, or a URL of a store.
        uid: Stable name of the sink. Its checkpoints live in ``{base}/_partfile/{uid}`` unless ``checkpoint_dir`` says
            otherwise; two queries must not share one.
        format: ``text``, ``json``, ``csv``, ``avro``, ``parquet`` or ``orc``, or a Format of your own.
        compression: None, ``gzip``, ``zstd``, ``bz2``, ``lz4`` or ``snappy``; one member or frame a checkpoint.
        bucketer: Which directory a row goes to: a Bucketer, or a callable from record batch to paths. None is the base.
        rolling: When a part is closed. None is 128 MiB, 900 s of age, 60 s without rows.
        **options: The keywords of SinkOptions, of which docs/OPTIONS.md has each default and unit. Giving parts up,
            going back and moving the base are ``partfile recover``'s.

    Raises:
        ConfigError: An option cannot be used; the message names it and what to do.
    """

    def __init__(
        self,
        base: str | os.PathLike[str],
        *,
        uid: str,
        format: str | Format = "json",
        compression: str | None = None,
        bucketer: Bucketer | Callable[..., pa.Array[Any]] | None = None,
        rolling: RollingPolicy | None = None,
        **options: Unpack[SinkOptions],
    ) -> None:
        self.settings = make_settings(
            base,
            format=format,
            compression=compression,
            bucketer=bucketer,
            uid=uid,
            rolling=RollingPolicy() if rolling is None else rolling,
            **options,
        )
        self._stream: SparkStream | None = None

    def __repr__(self) -> str:
        return f"FileSink({self.settings.base!r}, uid={self.settings.uid!r})"

    def local(
        self, *, subtask_index: int = 0, checkpoint_interval_s: float | str | timedelta | None = None
    ) -> LocalSink:
        """The sink without Spark, to be used in a ``with`` block.

        Args:
            subtask_index: Tells independent writers with this uid apart; each has checkpoints of its own.
            checkpoint_interval_s: Takes checkpoints by itself, so many seconds after the last one; a ``timedelta`` and
                text such as ``"1m"`` will do. Each ``write`` must then say its ``position``. None takes those alone
                that are asked for.
        """
        return LocalSink(self.settings, subtask_index, checkpoint_interval_s)

    def foreach_batch(self, df: DataFrame, batch_id: int) -> None:
        """Write one micro-batch; pass this method to ``writeStream.foreachBatch``.

        Returns once the batch counts: it is in a durably completed checkpoint. A batch that comes again in a later run
        of the query is recognised and not written twice. Call it once a batch, with one DataFrame.

        The sink ends with the query: when it ends without an error, open parts are published, or kept (``on_stop``).
        The interpreter waits for that when it exits, and ``finish`` does.

        Raises:
            CheckpointMismatch: The query or batch does not continue what the sink holds, or this run has completed the
                batch already; nothing was written.
            ConfigError: The bucketer cannot work on the columns, or there are none, or Spark's Python workers cannot
                import this version of partfile; nothing was written.
            Fenced: Another query has taken the sink over.
            UnsupportedTypeError: The format has no form for a column; no job was run.
        """
        self._spark_stream().foreach_batch(df, batch_id)

    def finish(self) -> None:
        """Wait until the sink has ended with its query, so that every file is there: for ``writeStream.foreachBatch``.

        Does nothing while the query is active, in a batch of it, or before its first one. After a query that failed,
        nothing is published; the next start does it.

        Raises:
            Fenced: Another driver has taken the sink over; it publishes what is left.
            NotReady: The sink has ended, and not all is published yet: a later start, or recover, does it.
        """
        if self._stream is not None:
            self._stream.finish_run()

    def savepoint(self, directory: str | os.PathLike[str] | None = None) -> str:
        """Take a savepoint of a running query between two of its batches; the query goes on.

        Everything open is rolled and published first, by a checkpoint of its own. Staged columnar parts are encoded by
        a Spark job, all others need none.

        Args:
            directory: Where to make it; None takes ``savepoint_dir``.

        Returns:
            Its location, for ``restore_from``.

        Raises:
            ConfigError: There is no directory for it.
            PartfileError: No batch has come in this run yet, or a part could not be published.
            StoreError: The directory cannot be written; no savepoint was made.
        """
        return self._spark_stream().savepoint(directory)

    def start(
        self,
        df: DataFrame,
        *,
        checkpoint_location: str,
        processingTime: str | None = None,  # noqa: N803 - Spark's name
        availableNow: bool | None = None,  # noqa: N803 - Spark's name
        trigger: Mapping[str, Any] | None = None,
        query_name: str | None = None,
        options: Mapping[str, str] | None = None,
    ) -> StartedQuery:
        """Start a streaming query into this sink, with a clean end and the idle timer bound to it.

        Args:
            df: A streaming DataFrame.
            checkpoint_location: Spark's checkpoint directory.
            processingTime: How often a batch begins, in Spark's words: ``"10 seconds"``. Without any trigger, each
                begins when the one before has ended.
            availableNow: True takes what the source has now, in batches, and ends.
            trigger: Arguments of ``writeStream.trigger`` as a mapping, for instance from a configuration file.
            query_name: Name of the query.
            options: Further options of ``writeStream``.

        Returns:
            The query; use it in a ``with`` block, or call its ``finish()`` when it has ended.

        Raises:
            ConfigError: ``df`` is no streaming DataFrame of a classic session, the bucketer cannot work on its columns,
                the trigger is none of Spark's, Spark's Python workers cannot import this version of partfile, or
                ``checkpoint_location`` cannot be used; no query was started.
            UnsupportedTypeError: The format has no form for a column; no query was started.
        """
        named = {"processingTime": processingTime, "availableNow": availableNow}
        given = {name: value for name, value in named.items() if value is not None}
        if not isinstance(trigger, Mapping | None):
            raise ConfigError(
                f"trigger must be a mapping of Spark's keywords, not {trigger!r}",
                hint='Pass processingTime="10 seconds" or availableNow=True.',
            )
        if given and trigger:
            raise ConfigError(
                f"trigger={dict(trigger)} is given besides {', '.join(given)}",
                hint=f"Leave trigger out, and pass {', '.join(f'{name}={value!r}' for name, value in given.items())}.",
            )
        return self._spark_stream().start(
            df,
            checkpoint_location=checkpoint_location,
            trigger=given or trigger or {},
            query_name=query_name,
            options=options,
        )

    def _spark_stream(self) -> SparkStream:
        if self._stream is None:
            for url in (self.settings.base, self.settings.checkpoint_url):
                if is_of_one_process(url):
                    raise ConfigError(
                        f"{url!r} is the memory of this process, and Spark's tasks are other processes",
                        hint="Write to a file system that they share; local() can use memory.",
                    )
            from partfile.sink.spark.stream import SparkStream  # noqa: PLC0415 - importing partfile needs no Spark

            self._stream = SparkStream(self.settings)
        return self._stream
