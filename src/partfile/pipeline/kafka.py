"""Records of Kafka topics, with their offsets in the job's own checkpoints.

Partitions are assigned, and never given out by a group: which offsets are read is said by the checkpoint alone.

Source: Flink's ``KafkaSource``, as of 3.2 of its connector; librdkafka's consumer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, cast

import pyarrow as pa

from partfile.errors import CheckpointMismatch, ConfigError, RecordError, SourceError
from partfile.pipeline.records import ParsedRecords
from partfile.quantities import duration_s

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from confluent_kafka import Consumer, KafkaError, Message
    from pydantic import JsonValue

    from partfile.pipeline.dead_letters import DeadLetters


logger = logging.getLogger("partfile")
_ROWS_AT_ONCE = 10_000
_RECORD_IS_GONE = "_AUTO_OFFSET_RESET"
"""librdkafka's name of the error for an offset that is not there, where it is not to choose another one."""
_END_OF_PARTITION = "_PARTITION_EOF"
_PAUSE_S = 0.5
_MENDED = {"_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_TIMED_OUT"}
"""What the client tries again by itself, until the brokers answer."""
_ONE_CONNECTION = "_TRANSPORT"
"""A connection that was lost; if none is left, there is another error."""
_CRITICAL = 2
"""Of librdkafka's levels, which are those of syslog."""
_TIMEOUT_S = 30.0
"""So long a job waits at its start for brokers that do not answer."""
_REQUEST_TIMEOUT_S = 1.0
"""Of a request: meanwhile the job takes no checkpoint, and does not see a signal."""
_BYTES_AT_ONCE = 64 << 20
"""Of the values of one batch."""
_ANEW = "To begin anew with what is there, write elsewhere: pf.FileSink(ANOTHER_PATH, uid=ANOTHER), dead letters too."
_DAY_MS = 24 * 60 * 60 * 1000
_LAST_MS = 253_402_300_799_999
"""The end of the year 9999; formats and readers have no later times."""


class Values(Protocol):
    """Makes rows of the records of Kafka."""

    def parse(self, records: Sequence[Message]) -> ParsedRecords:
        """Make rows of records; the same record gives the same row, or the same problem, each time."""


@dataclass(frozen=True, slots=True)
class RawBytes:
    """Each record as it is: ``key``, ``value``, ``partition``, ``offset`` and ``timestamp`` in UTC."""

    def parse(self, records: Sequence[Message]) -> ParsedRecords:
        """The rows of records; each is one."""
        times = [record.timestamp()[1] for record in records]
        rows = pa.record_batch(
            {
                "key": pa.array([record.key() for record in records], pa.binary()),
                "value": pa.array([record.value() for record in records], pa.binary()),
                "partition": pa.array([record.partition() for record in records], pa.int32()),
                "offset": pa.array([record.offset() for record in records], pa.int64()),
                "timestamp": pa.array(
                    [one if 0 <= one <= _LAST_MS else None for one in times], pa.timestamp("ms", "UTC")
                ),
            }
        )
        return ParsedRecords(rows)


@dataclass(frozen=True, slots=True)
class KafkaSource:
    """The records of one topic, from all of its partitions.

    Raises:
        ConfigError: An option cannot be used.
    """

    brokers: str
    """``host:port``, several with commas between them."""
    topic: str
    _: KW_ONLY
    value: Values = field(default_factory=RawBytes)
    """What makes rows of records."""
    begin: Literal["earliest", "latest"] = "earliest"
    """Where a job without a checkpoint begins; partitions that are made later are read from their first record."""
    discover_s: float | str | timedelta = 60.0
    """How often new partitions are looked for; seconds, a ``timedelta`` or text such as ``"1m"``."""
    options: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    """Further options of librdkafka, for instance for TLS."""

    def __post_init__(self) -> None:
        for name in ("brokers", "topic"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise ConfigError(
                    f"KafkaSource: {name}={getattr(self, name)!r} is no text",
                    hint="Write for instance pf.KafkaSource('broker:9092', 'orders').",
                )
        if self.begin not in ("earliest", "latest"):
            raise ConfigError(f"KafkaSource: begin={self.begin!r}", hint="Write begin='earliest' or begin='latest'.")
        if isinstance(self.value, type) or not callable(getattr(self.value, "parse", None)):
            raise ConfigError(
                f"KafkaSource: value={self.value!r} makes no rows", hint="Write for instance value=pf.JsonRows(SCHEMA)."
            )
        if not duration_s(self.discover_s):
            raise ConfigError(f"KafkaSource: discover_s={self.discover_s!r} is no time", hint="Write discover_s=60.")
        options: object = self.options
        if not isinstance(options, Mapping) or not all(
            isinstance(name, str) and isinstance(value, str | int | float) for name, value in options.items()
        ):
            raise ConfigError(
                "KafkaSource: options are no names with texts, numbers or booleans",
                hint="Write options={'security.protocol': 'SSL'}.",
            )
        ours = _OURS & set(self.options)
        if ours:
            raise ConfigError(
                f"KafkaSource: the option {min(ours)!r} is the job's to set, for each row to count once",
                hint=f"Leave {min(ours)!r} out of options={{...}}.",
            )

    def open(self, position: JsonValue, job: str, dead_letters: DeadLetters | None) -> KafkaReader:
        """Begin behind a position; raises as ``Source.open``, and ConfigError where librdkafka refuses an option."""
        return KafkaReader(self, position, job, dead_letters)


_OURS = {
    "bootstrap.servers",
    "group.id",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "auto.offset.reset",
    "enable.partition.eof",
    "max.poll.interval.ms",
    "default.topic.config",
}


class KafkaReader:
    """A topic that is read.

    Args:
        source: Which, and how.
        position: Where it begins.
        job: The name of the pipeline.
        dead_letters: Takes records that are no rows; None raises at the first one.
    """

    is_ended = False

    def __init__(
        self, source: KafkaSource, position: JsonValue, job: str, dead_letters: DeadLetters | None = None
    ) -> None:
        try:
            from confluent_kafka import Consumer, KafkaException  # noqa: PLC0415 - an extra.
        except ImportError as error:
            raise ConfigError(
                "KafkaSource needs the package confluent-kafka", hint="Install it: pip install 'partfile[kafka]'"
            ) from error
        self._source = source
        self._job = job
        self._offsets: dict[int, int] = {}
        self._known_ends: dict[int, int] = {}
        """As the newest checkpoint has them: of no use but to be told."""
        if position is not None:
            self._restore(position)
        self._is_fresh = position is None
        self._assigned: set[int] = set()
        self._dead_letters = dead_letters
        if dead_letters is not None:
            for number, at in self._offsets.items():
                dead_letters.forget_before(str(number), at)
        self._waiting: list[Message] = []
        """Records that were fetched with others, and are too many for one batch."""
        self._ended: dict[int, int] = {}
        """By partition, the end that was reached behind those records."""
        self._told: set[str] = set()
        """Names of errors that were logged since the last record."""
        connection = {
            # Of each try to connect it would say that it has failed.
            "log_level": _CRITICAL,
            # A queue that is full is emptied in far less than the second that librdkafka waits for by default.
            "fetch.queue.backoff.ms": 20,
            **source.options,
            "bootstrap.servers": source.brokers,
            "logger": logging.getLogger("partfile.kafka"),
        }
        configuration = {
            **connection,
            "group.id": job,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            # A record that is gone is an error, and never passed over.
            "auto.offset.reset": "error",
            # Behind the last record there may be marks of transactions: the end of a partition is told by this alone.
            "enable.partition.eof": True,
            # There is no group that would miss this consumer while a function takes long.
            "max.poll.interval.ms": _DAY_MS,
            "error_cb": self._log_once,
        }
        try:
            self._consumer: Consumer = Consumer(configuration)
        except (KafkaException, TypeError, ValueError) as error:
            told = error.args[0].str() if isinstance(error, KafkaException) else error
            raise ConfigError(
                f"KafkaSource: librdkafka refuses an option: {told}",
                hint="See its CONFIGURATION.md, and write options={NAME: VALUE}.",
            ) from error
        self._began_s = self._discovered_s = time.monotonic()

    @property
    def position(self) -> JsonValue:
        """The topic, and by partition the offset of the next record, and that behind the last one that is known.

        None before the brokers have told which partitions there are, if there is no checkpoint either.
        """
        if not self._offsets:
            return None
        return {
            "topic": self._source.topic,
            "offsets": {str(one): at for one, at in sorted(self._offsets.items())},
            # For `partfile status`; a restore does not look at them.
            "ends": {str(one): at for one, at in sorted((self._known_ends | dict(self._ends())).items())},
        }

    def _ends(self) -> list[tuple[int, int]]:
        """By partition, the offset behind its last record, as the brokers told last."""
        from confluent_kafka import TopicPartition  # noqa: PLC0415 - an extra.

        known = (
            (one, self._consumer.get_watermark_offsets(TopicPartition(self._source.topic, one), cached=True)[1])
            for one in sorted(self._offsets)
        )
        return [(one, end) for one, end in known if end >= 0]

    def _restore(self, position: JsonValue) -> None:
        if not isinstance(position, dict) or not isinstance(offsets := position.get("offsets"), dict):
            raise CheckpointMismatch(
                f"{self._job}: the newest checkpoint stands at {position!r:.200}, which is no position of Kafka",
                hint="It is that of another source. Take another uid=NAME, or the source that it was taken with.",
            )
        if position.get("topic") != self._source.topic:
            raise CheckpointMismatch(
                f"{self._job}: the newest checkpoint is of the topic {position.get('topic')!r}, and "
                f"{self._source.topic!r} is to be read",
                hint="Take another uid=NAME for another topic, or the topic that it was taken with.",
            )
        self._offsets = {int(one): cast("int", at) for one, at in offsets.items()}
        self._known_ends = {int(one): at for one, at in cast("dict[str, int]", position.get("ends", {})).items()}

    def _assign_new(self) -> None:
        """Begin to read the partitions that are not read yet; raises SourceError where the brokers do not answer."""
        from confluent_kafka import KafkaException, TopicPartition  # noqa: PLC0415 - an extra.

        topic, timeout_s = self._source.topic, _REQUEST_TIMEOUT_S
        try:
            found = self._consumer.list_topics(topic, timeout=timeout_s).topics[topic]
            if found.error is not None:
                raise self._failed(found.error.str())
            partitions = set(found.partitions)
            if gone := self._offsets.keys() - partitions:
                # No partition of a topic ever goes: this broker does not know it yet.
                raise self._failed(f"no broker tells of partition {min(gone)}")
            first: dict[int, int] = {}
            new = sorted(partitions - self._assigned)
            for number in new:
                low, high = self._consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=timeout_s)
                first[number] = self._first_offset(number, low, high)
            if first:
                self._consumer.incremental_assign([TopicPartition(topic, *one) for one in first.items()])
        except KafkaException as error:
            raise self._failed(error.args[0].str()) from error
        self._assigned |= first.keys()
        self._offsets.update(first)
        self._is_fresh = False

    def _first_offset(self, number: int, low: int, high: int) -> int:
        """Where a partition is read from: where the checkpoint says, if its record is still there or to come."""
        at = self._offsets.get(number)
        if at is None and self._is_fresh:
            return high if self._source.begin == "latest" else low
        # A partition that was made since the job began is read from its first record.
        at = at or 0
        if low <= at <= high:
            return at
        what = (
            f"its first record has the offset {low}: the records in between were deleted before they were read"
            if at < low
            else f"its next record has the offset {high}: the topic was made anew, or has lost records"
        )
        raise CheckpointMismatch(
            f"{self._job}: partition {number} of {self._source.topic!r} is to be read from the offset {at}, and {what}",
            hint=f"Keep records for longer than a job may stand still (retention.ms). {_ANEW}",
        )

    def _connect(self) -> None:
        """Begin to read, if the brokers answer. Until then the job goes on, so that it can be stopped."""
        try:
            self._assign_new()
        except SourceError as error:
            if time.monotonic() - self._began_s > _TIMEOUT_S:
                raise
            if "start" not in self._told:
                self._told.add("start")
                logger.warning("%s; it is tried for %.0f s", error.message, _TIMEOUT_S)
            time.sleep(_PAUSE_S)

    def _discover(self) -> None:
        """Look for new partitions from time to time. Where the brokers do not answer it is tried again later."""
        if time.monotonic() - self._discovered_s < (duration_s(self._source.discover_s) or 0.0):
            return
        self._discovered_s = time.monotonic()
        try:
            self._assign_new()
        except SourceError as error:
            logger.warning("%s: it was not found out whether there are new partitions: %s", self._job, error.message)

    def read(self, timeout_s: float) -> pa.RecordBatch | None:
        """The next records as rows; raises as ``SourceReader.read``."""
        if not self._assigned:
            self._connect()
            return None
        self._discover()
        records = self._fetched(timeout_s)
        left = self._without_dead_letters(records)
        rows = self._rows(left) if left else None
        self._offsets.update({number: at + 1 for number, at in _last_offsets(records).items()})
        if not self._waiting:
            # Only now: the records before an end have been handed on.
            self._offsets.update({one: at for one, at in self._ended.items() if at > self._offsets[one]})
            self._ended.clear()
        return rows

    def _fetched(self, timeout_s: float) -> list[Message]:
        """The next records, at most so many that their values are few enough bytes for one batch."""
        from confluent_kafka import KafkaException, Message  # noqa: PLC0415 - an extra.

        found, self._waiting = self._waiting, []
        if not found:
            try:
                found = self._consumer.consume(_ROWS_AT_ONCE, timeout_s)
            except KafkaException as error:
                raise self._failed(error.args[0].str()) from error
        if any(map(Message.error, found)):
            for one in found:
                if one.error() is not None:
                    self._look_at(one)
            found = [one for one in found if one.error() is None]
        if found:
            self._told.clear()
        if sum(map(len, found)) > _BYTES_AT_ONCE:
            size, at = 0, 0
            while at < len(found) and (at == 0 or size + len(found[at]) <= _BYTES_AT_ONCE):
                size, at = size + len(found[at]), at + 1
            found, self._waiting = found[:at], found[at:]
        return found

    def _without_dead_letters(self, records: list[Message]) -> list[Message]:
        """Leave out those that the files of dead letters hold already: a crash came before the rows' checkpoint."""
        dead_letters = self._dead_letters
        if dead_letters is None or not dead_letters.is_ahead:
            return records
        return [one for one in records if not dead_letters.pass_over(str(one.partition()), cast("int", one.offset()))]

    def _look_at(self, event: Message) -> None:
        """Note the end of a partition; raise what the client does not mend by itself."""
        problem = cast("KafkaError", event.error())
        number, at = cast("int", event.partition()), cast("int", event.offset())
        if problem.name() == _END_OF_PARTITION:
            self._ended[number] = at
            return
        if problem.name() == _RECORD_IS_GONE:
            raise CheckpointMismatch(
                f"{self._job}: a record of {self._source.topic!r} was deleted before it was read: {problem.str()}",
                hint=f"Keep records for longer than a job may stand still (retention.ms). {_ANEW}",
            )
        if problem.name() in _MENDED:
            self._log_once(problem)
            return
        raise self._failed(problem.str())

    def _log_once(self, problem: KafkaError) -> None:
        """Tell of what the client tries again by itself, once until there are records again."""
        if problem.name() in self._told or problem.name() == _ONE_CONNECTION:
            return
        self._told.add(problem.name())
        logger.warning(
            "%s: the brokers %s do not answer as they should, and the job waits for them: %s",
            self._job,
            self._source.brokers,
            problem.str(),
        )

    def _rows(self, records: list[Message]) -> pa.RecordBatch:
        parsed = self._source.value.parse(records)
        if parsed.problems:
            self._lay_aside([(records[at], problem) for at, problem in sorted(parsed.problems.items())])
        return parsed.rows

    def _lay_aside(self, bad: list[tuple[Message, str]]) -> None:
        """Write records that are no rows to the dead letters; raises RecordError where there is no place for them."""
        if self._dead_letters is None:
            record, problem = bad[0]
            raise RecordError(
                f"{self._job}: the record at offset {record.offset()} of partition {record.partition()} of "
                f"{self._source.topic!r} is no row: {problem}",
                hint="Write such records to files of their own: job.source(SOURCE, "
                "dead_letters=pf.FileSink(PATH, uid=NAME))",
            )
        rows = RawBytes().parse([record for record, _ in bad]).rows
        topic = pa.array([self._source.topic] * len(bad), pa.string())
        problems = pa.array([problem for _, problem in bad], pa.string())
        places = ((str(record.partition()), cast("int", record.offset())) for record, _ in bad)
        self._dead_letters.write(rows.append_column("topic", topic).append_column("problem", problems), places)

    @property
    def lag(self) -> dict[str, int]:
        """By partition, how many records are behind the last one that was read, as the brokers told last."""
        return {str(one): max(0, end - self._offsets[one]) for one, end in self._ends()}

    def confirm(self, position: JsonValue) -> None:  # noqa: ARG002 - it is that of this reader.
        """Forget the dead letters that the rows' checkpoint covers."""
        if self._dead_letters is not None and self._dead_letters.is_ahead:
            # Compaction may have deleted them meanwhile, so that they are not read again.
            for number, at in self._offsets.items():
                self._dead_letters.forget_before(str(number), at)

    def close(self) -> None:
        """Leave the brokers."""
        self._consumer.close()

    def _failed(self, problem: str) -> SourceError:
        return SourceError(
            f"{self._job}: the topic {self._source.topic!r} cannot be read at {self._source.brokers}: {problem}",
            hint="See that the brokers run and the topic is there. A job begins again by itself: "
            "restart=pf.Restart(attempts=3, delay_s=10)",
        )


def _last_offsets(records: list[Message]) -> dict[int, int]:
    """By partition, the offset of its last record."""
    from confluent_kafka import Message  # noqa: PLC0415 - an extra.

    pairs = zip(map(Message.partition, records), map(Message.offset, records), strict=True)
    return cast("dict[int, int]", dict(pairs))
