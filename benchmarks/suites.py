"""The suites there are: what each measures, what it needs, and how long it takes."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from environments import BYTEWAX, FLINK, QUIX, PeerIsMissing
from goals import GOALS, suite_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

TESTS = Path(__file__).parents[1] / "tests"
"""Its package ``support`` holds the servers that benchmarks share with tests."""


@dataclass(frozen=True, slots=True)
class Suite:
    """One suite; its module is ``suite_{name}``.

    Args:
        name: Of the suite.
        what: One line about it.
        minutes: How long it takes in full on two idle cores, roughly.
        ensure: Finds what it needs, given a function that is told what is going on; raises if it cannot be had.
    """

    name: str
    what: str
    minutes: int
    ensure: Callable[[Callable[[str], None]], object] | None = None

    @property
    def goals(self) -> list[str]:
        """The rows of the table of goals that it measures."""
        return [goal.name for goal in GOALS.values() if goal.suite == self.name]

    def why_not(self) -> str | None:
        """Why the machine cannot run it; None if it can."""
        if self.ensure is None:
            return None
        sys.path.append(str(TESTS))
        # From a directory that was added just now.
        from support.processes.server import MissingProgram  # noqa: PLC0415

        try:
            self.ensure(print)
        except (MissingProgram, PeerIsMissing) as missing:
            return str(missing)
        return None


def _ensure_hdfs(_say: Callable[[str], None]) -> None:
    from support.hdfs.jars import hadoop_jars  # noqa: PLC0415 - from a directory that was added just now

    hadoop_jars()


def _ensure_s3(say: Callable[[str], None]) -> None:
    from support.s3.ceph import ensure_ceph  # noqa: PLC0415 - likewise

    ensure_ceph(say)


def _ensure_kafka(say: Callable[[str], None]) -> None:
    from support.kafka.broker import broker_jars  # noqa: PLC0415 - likewise

    broker_jars()
    QUIX.ensure(say)
    BYTEWAX.ensure(say)


_ALL = (
    Suite("throughput", "Parquet and JSON by hour: speed, CPU, files; beside foreachBatch and Delta", 15),
    Suite("latency", "micro-batches of one row", 5),
    Suite("history", "10 000 checkpoints of one sink, without Spark", 2),
    Suite("long", "1 000 batches within Spark, 24 parts open: time, metadata and memory", 7),
    Suite("flink", "JSON from the same CSV as Flink's SQL file sink", 5, FLINK.ensure),
    Suite("reading", "DuckDB over what was written", 2),
    Suite("buckets", "2 000 buckets in each batch", 8),
    Suite("snapshot", "a checkpoint of 10 000 parts against encoding and writing them once", 1),
    Suite("keyed", "keyed state on the heap and in RocksDB, beside that of Quix Streams", 3, QUIX.ensure),
    Suite("restore", "keyed state in RocksDB, restored from this machine and from S3", 3, _ensure_s3),
    Suite("pipeline", "Kafka to JSON lines, beside Quix Streams and Bytewax", 6, _ensure_kafka),
    Suite("distinct", "distinct rows in plain Python, beside DuckDB and Bytewax", 12, BYTEWAX.ensure),
    Suite("distinct_spark", "distinct rows in Spark, beside dropDuplicatesWithinWatermark with RocksDB", 10),
    Suite("hdfs", "JSON to HDFS, what the NameNode is asked, a large restore", 5, _ensure_hdfs),
    Suite("s3", "JSON to S3 against renames, one large part against boto3", 6, _ensure_s3),
    Suite("cli", "the command line on 100 000 finished files", 2),
)
SUITES = {suite.name: suite for suite in _ALL}
OF_THE_TABLE = ("throughput", "latency", "history", "long", "flink", "reading", "buckets")
"""What runs unless something else is asked for: the table of goals, and the curves that belong to it."""


def chosen(words: Iterable[str], *, everything: bool) -> list[Suite]:
    """The suites that some words name, each once, in the order they run in.

    Args:
        words: Suites, goals (``P1 shuffled``) or their numbers (``P1``); none means the table of goals.
        everything: Whether none means all suites instead.

    Raises:
        ValueError: A word names none of them.
    """
    named = {suite_of(word) for word in words}
    if unknown := named - SUITES.keys():
        numbers = dict.fromkeys(goal.number for goal in GOALS.values())
        raise ValueError(f"{', '.join(sorted(unknown))}: there are {', '.join([*SUITES, *numbers])}")
    if not named:
        named = set(SUITES) if everything else set(OF_THE_TABLE)
    return [suite for suite in SUITES.values() if suite.name in named]


def listing() -> list[tuple[str, str, str, str]]:
    """Each suite's name, goals, minutes and description, for ``--list``."""
    found = []
    for suite in SUITES.values():
        default = "" if suite.name in OF_THE_TABLE else " (with --all or --only)"
        found.append((suite.name, ", ".join(suite.goals), f"{suite.minutes} min", suite.what + default))
    return found
