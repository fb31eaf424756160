"""FileSink: what users touch. Options in, a foreachBatch function, a started query or a local sink out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Unpack

from partfile.errors import ConfigError
from partfile.sink.local import LocalSink
from partfile.sink.policies import RollingPolicy
from partfile.sink.settings import SinkOptions, make_settings
from partfile.stores.registry import is_of_one_process

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from partfile.bucketers.base import Bucketer
    from partfile.sink.spark.stream import SparkStream, StartedQuery
    from partfile.writers.base import Format


class FileSink:
    """A transactional sink: every row of the stream ends up in exactly one finished part file, whatever crashes.

    What may change from one run to the next: everything but ``base``, ``uid``, ``checkpoint_dir`` and
    ``hash_partitions``. Open parts of another format or schema are closed and published, and new rows go to new parts.
    A name that is not here is refused. Pages that are named, such as FORMATS.md, are at
    https://partfile.readthedocs.io/en/latest/.

    Args:
        base: Where finished files go: a local path, a ``file://`` URL, an ``hdfs://`` URL (HDFS.md), an ``s3://`` URL
            (S3.md), or a URL of what else fsspec can write to (FSSPEC.md). ``~`` is refused: only a shell makes it a
            home directory.
        uid: Stable name of the sink, by which its checkpoints are found: 1 to 100 letters, digits, ``.``, ``_`` or
            ``-``, beginning with a letter or a digit. Under another one it has no state.
        format: ``text``, ``json``, ``csv``, ``avro``, ``parquet``, ``orc``, or a ``Format`` of your own (FORMATS.md).
            Default: ``"json"``.
        format_options: Options of the format by name, for instance ``{"header": False}`` (FORMATS.md). Default: none.
        compression: ``gzip``, ``zstd``, ``bz2``, ``lz4`` or ``snappy``: one member or frame a checkpoint. For Parquet,
            ORC and Avro the codec inside the file; FORMATS.md says which reader knows which. Default: none for text,
            JSON and CSV; ``snappy`` for Parquet and Avro, ``zstd`` for ORC.
        bucketer: Which directory a row goes to: a ``Bucketer``, or a callable from record batch to paths
            (BUCKETERS.md). Default: the base itself.
        rolling: When a part is closed: ``max_part_bytes`` (128 MiB), ``rollover_interval_s`` (900 seconds),
            ``inactivity_interval_s`` (60 seconds), ``on_checkpoint`` (False). Sizes may be text such as ``"128 MiB"``
            (powers of 1024), intervals ``"15m"`` or a ``timedelta``. Default: ``RollingPolicy()``.
        distribution: ``none`` keeps the batch's partitions; ``hash`` sends each bucket to one task: a shuffle, but
            fewer files. Default: ``"none"``.
        on_schema_change: What happens to rows with other columns than those before, by the schema in the checkpoint.
            ``roll`` takes them into new parts, whatever they are; ``fail`` refuses them; ``evolve`` lets columns be
            added and types widened, nested ones too, and refuses the rest. Nothing of a refused batch is written. See
            "When columns change" in OPTIONS.md. Default: ``"roll"``.
        deduplicate: Which rows are duplicates of others and are left out, for instance
            ``Deduplicate("event_id", ttl="7 days")``. The keys are in the sink's checkpoints. A Spark query sends rows
            to tasks by their keys. See "Distinct rows" in GUIDES.md. Default: none.
        on_stop: What a clean end does with open parts: ``publish`` them, or ``keep`` them for the next run to go on
            with. Where a staged part cannot be encoded, ``publish`` ends with ``NotReady``: its rows are safe, and a
            later start or ``partfile recover`` makes them visible. Default: ``"publish"``.
        on_bad_bucket: ``fail``, or the bucket for rows whose own bucket cannot be named. Default: ``"fail"``.
        storage_options: Options of the store's client, by name; never shown. They go to the stores of checkpoints and
            savepoints too, if those are on the same host or S3 bucket. Local files have none; those of the others are
            in HDFS.md, S3.md and FSSPEC.md. Spark's tasks do not get what only cutting needs (of HDFS:
            ``http_address``, ``delegation_token``, ``ca_file``, ``truncate_timeout_s``). Default: none.
        on_progress: Called on the driver with a ``BatchProgress`` after each batch. What it raises is logged. Default:
            none.

    When something is wrong:
        restore_from: A savepoint to begin with where the sink has no checkpoint yet: its directory, or the
            ``_metadata`` in it. May stay set. To go back, stop the sink and use ``partfile recover --restore-from``
            (SNAPSHOTS.md). Default: none.
        on_used_base: What a start without a checkpoint does where a sink has written below the base before. ``fail``
            names what it found, because a changed ``uid`` or ``checkpoint_dir`` would write the rows again; ``accept``
            begins beside it. A second sink on one base needs ``accept`` for its first start, which lists the base. It
            sees checkpoint logs in ``_partfile``, and files that are called as a part is. Default: ``"fail"``.
        on_new_query: ``fail``, or ``adopt:<query id>``: a query with another Spark checkpoint takes over from that
            one, whose id is refused from then on. The new query's batches count from 0: make sure that its source
            begins where the old one ended. Default: ``"fail"``.
        on_gap: ``fail``, or ``accept``: batch ids may skip ahead. The rows of the batches between are not in this sink.
            Default: ``"fail"``.
        consumers_take_files: Whether consumers move or delete finished files as soon as they see them. Then a part that
            a checkpoint promises and of which nothing is left counts as taken, with a line in the log; without it the
            sink stops with ``PartMissing``. Its checkpoints say so to ``partfile recover``. PROTOCOL.md has the hazards
            in section 7. Default: ``False``.
        cut: How a part that a crash left too long is cut: ``truncate``, ``rewrite`` (a copy), ``auto`` (the first that
            works) or ``valid-length``: the file keeps its tail, and only readers that honour the sidecar
            ``_NAME.valid-length`` read it rightly (READING.md). Default: ``"auto"``.

    For experts:
        naming: Affixes of part files. Default: ``PartNaming()``.
        columnar: How parts of a columnar format are written: ``staged`` in a hidden Arrow file that is encoded once,
            when the part is rolled, or ``per_checkpoint``, a file a checkpoint. See "Columnar parts" in OPTIONS.md.
            What waits is not encrypted. Default: ``"staged"``; ``"per_checkpoint"`` for a format with ``encryption``.
        staging_compression: What the bytes of staging files are compressed with: ``lz4``, ``zstd`` or ``none``.
            ``auto`` is ``lz4`` where they go over a network (HDFS, S3, fsspec) and ``none`` on a local disk, which
            takes them faster than LZ4 makes them fewer. Default: ``"auto"``.
        buckets_per_staging_file: Up to so many buckets in one record batch of a subtask each gets a part of its own; of
            more, those with small slices share one staging file. ``None`` never shares. See "Many buckets" in
            OPTIONS.md. Default: ``64``.
        max_open_parts: Parts that a subtask holds open at once. Beyond it the least recently used one is closed, or, if
            it is a staging file, released until rows come for it again. Default: ``1000``.
        hash_partitions: Tasks that buckets are hashed over with ``distribution="hash"``, kept once it is taken; or
            keys with ``deduplicate``. Default: Spark's default parallelism.
        checkpoint_dir: Where checkpoints go: elsewhere, or below the base in a directory that begins with ``_`` or
            ``.``. Tasks need to reach it, too. A relative path is refused beside a remote base. Default:
            ``{base}/_partfile``.
        savepoint_dir: Where savepoints are made unless a call names another directory. Default: none.
        retained_checkpoints: Completed checkpoints that are kept, at least 1. With more than 2, a clean end also keeps
            the staging files that its last columnar or shared parts were encoded from (PROTOCOL.md, section 8).
            Default: ``2``.
        inline_threshold_bytes: State of at most so many bytes lies in a checkpoint's metadata, and a Spark task's
            travels in its acknowledgement; more goes to a file of its own, which is dear on HDFS. At most 1 MiB. Larger
            means fewer small files, and more for the driver to collect from many tasks. Default: ``20480``.
        publish_threads: Parts that are published at the same time. Default: 8; on HDFS 64, on S3 16.
        clock: The coordinator's clock: milliseconds since 1970, as an integer. Default: the system's.
        open_store: Opens the driver's stores; for tests that inject faults. Default: by URL.
        open_store_in_tasks: Opens the stores of Spark's tasks, and has to be picklable. Default: by URL.

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
        self,
        *,
        subtask_index: int = 0,
        checkpoint_interval_s: float | str | timedelta | None = None,
        schema: pa.Schema | Mapping[str, object] | None = None,
    ) -> LocalSink:
        """The sink without Spark, to be used in a ``with`` block.

        Args:
            subtask_index: Tells independent writers with this uid apart; each has checkpoints of its own.
            checkpoint_interval_s: Takes checkpoints by itself, so many seconds after the last one; a ``timedelta`` and
                text such as ``"1m"`` will do. Each ``write`` must then say its ``position``. None takes those alone
                that are asked for.
            schema: The columns of rows that are handed over as dictionaries, all others have one: a pyarrow schema, or
                names with types, such as ``{"id": "int64"}``.
        """
        return LocalSink(self.settings, subtask_index, checkpoint_interval_s, schema)

    def foreach_batch(self, df: DataFrame, batch_id: int) -> None:
        """Write one micro-batch; pass this method to ``writeStream.foreachBatch``.

        Returns once the batch counts: it is in a durably completed checkpoint. A batch that comes again in a later run
        of the query is recognised and not written twice. Call it once a batch, with one DataFrame.

        The sink ends with the query: when it ends without an error, open parts are published, or kept (``on_stop``).
        The interpreter waits for that when it exits, and ``finish`` does.

        Raises:
            CheckpointMismatch: The query or batch does not continue what the sink holds, this run has completed the
                batch already, or ``on_schema_change`` does not let its columns pass; nothing was written.
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
        checkpoint_location: str | os.PathLike[str],
        processingTime: str | timedelta | None = None,  # noqa: N803 - Spark's name
        availableNow: bool | None = None,  # noqa: N803 - Spark's name
        trigger: Mapping[str, Any] | None = None,
        query_name: str | None = None,
        options: Mapping[str, str] | None = None,
    ) -> StartedQuery:
        """Start a streaming query into this sink, with a clean end and the idle timer bound to it.

        Args:
            df: A streaming DataFrame.
            checkpoint_location: Spark's checkpoint directory.
            processingTime: How often a batch begins, in Spark's words: ``"10 seconds"``, or a timedelta. Without any
                trigger, each begins when the one before has ended.
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
            CheckpointMismatch: ``on_schema_change`` does not let the columns pass, or the checkpoint location is new
                and another query has written the sink; no query was started.
            SnapshotCorrupt, StoreError: With a new checkpoint location, or ``on_schema_change`` other than ``"roll"``,
                what the query is to follow cannot be read; no query was started.
        """
        named = {"processingTime": _in_words_of_spark(processingTime), "availableNow": availableNow}
        given = {name: value for name, value in named.items() if value is not None}
        if not isinstance(trigger, Mapping | None):
            raise ConfigError(
                f"trigger must be a mapping of Spark's keywords, not {trigger!r}",
                hint='Pass processingTime="10 seconds" or availableNow=True.',
            )
        if not isinstance(options, Mapping | None):
            raise ConfigError(
                f"options must be a mapping of options of writeStream, not {options!r}",
                hint='Leave options out, or pass for instance options={"asyncProgressTrackingEnabled": "false"}.',
            )
        if given and trigger:
            raise ConfigError(
                f"trigger={dict(trigger)} is given besides {', '.join(given)}",
                hint=f"Leave trigger out, and pass {', '.join(f'{name}={value!r}' for name, value in given.items())}.",
            )
        return self._spark_stream().start(
            df,
            checkpoint_location=(
                os.fspath(checkpoint_location) if isinstance(checkpoint_location, os.PathLike) else checkpoint_location
            ),
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
            try:
                from partfile.sink.spark.stream import SparkStream  # noqa: PLC0415 - importing partfile needs no Spark
            except ModuleNotFoundError as error:
                if (error.name or "").partition(".")[0] != "pyspark":
                    raise
                raise ConfigError(
                    "start and foreach_batch need PySpark, which is not installed",
                    hint="pip install 'partfile[spark]'",
                ) from error

            self._stream = SparkStream(self.settings)
        return self._stream


def _in_words_of_spark(interval: str | timedelta | None) -> str | None:
    """An interval as Spark's ``trigger`` takes it."""
    if not isinstance(interval, timedelta):
        return interval
    return f"{interval // timedelta(milliseconds=1)} milliseconds"
