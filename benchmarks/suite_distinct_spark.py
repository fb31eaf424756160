"""Distinct rows in Spark: our sink with ``deduplicate`` against ``dropDuplicatesWithinWatermark`` before our sink.

Both read the same Parquet files, shuffle over two partitions and write Parquet. Half of the rows of a batch have come
before, ids have 30 characters and payloads 100. The peer keeps its keys in RocksDB, and its watermark drops none.

All queries are open from the first key to the last and take turns. Until a number of keys is reached, both are fed
batches of a million new keys each without payload, which are not measured.
"""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import partfile as pf
from figures import Report, figure_of_rounds, shown
from places import LocalPlace
from processes import Meter
from rounds import Rounds, in_turn, interleaved, line_of
from runs import Round, Run, ratios
from streams import HOUR, spark_session

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from figures import Figure
    from scale import Scale

KEYS = (1_000_000, 2_000_000, 10_000_000)
"""Beside which a batch is measured."""
SPEED_GOALS = {2_000_000: 1.5, 10_000_000: 3.0}
GROWTH_GOAL, ONE_ROW_GOAL_MS = 1.3, 20.0
PARTITIONS = 2
ROWS, BATCHES = 200_000, 2
"""Of a batch, and batches of a round."""
FEWEST_ROWS = 20_000
ROWS_OF_PREFILL = 1_000_000
ONE_ROW_BATCHES = 30
PAYLOAD = 100
OURS, PEER, PLAIN = "partfile deduplicate", "dropDuplicatesWithinWatermark", "partfile without keys"
KEPT = "7 days"
"""How long either side remembers a key; all rows are of a few hours."""
CONFIG: dict[str, str | int] = {
    "spark.sql.shuffle.partitions": PARTITIONS,
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # In favour of the peer: no batch after each batch that only looks for keys to drop.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # A query that waits for its turn is not to look for files a hundred times a second.
    "spark.sql.streaming.pollingDelay": "100ms",
}
_DAY_START_US = 1_767_225_600_000_000
_SCHEMA = pa.schema([("event_time", pa.timestamp("us", "UTC")), ("id", pa.string()), ("payload", pa.string())])
_PHASES = ("write_ms", "commit_ms", "publish_ms")


@dataclass(slots=True)
class Stream:
    """One query over a directory, which is fed a file a batch.

    Args:
        name: Of its case.
        inbox: The directory.
        rng: Makes its rows; of equal seeds, all streams get equal rows.
        progress: What the sink says of each batch.
    """

    name: str
    inbox: Path
    rng: np.random.Generator
    progress: list[pf.BatchProgress] = field(default_factory=list)
    keys: int = 0
    """That have come so far."""
    _query: StreamingQuery | None = None
    _files: int = 0

    def start(self, spark: SparkSession, work: Path) -> pf.StartedQuery:
        """Start the query over an empty directory."""
        self.inbox.mkdir(parents=True)
        output, checkpoint = LocalPlace(work).fresh(self.name)
        rows = spark.readStream.schema("event_time timestamp, id string, payload string")
        stream: DataFrame = rows.option("maxFilesPerTrigger", 1).parquet(str(self.inbox))
        options: dict[str, Any] = {}
        if self.name == PEER:
            stream = stream.withWatermark("event_time", KEPT).dropDuplicatesWithinWatermark(["id"])
        if self.name == OURS:
            options = {"deduplicate": pf.Deduplicate("id", ttl=KEPT)}
        sink = pf.FileSink(
            output, uid="bench", format="parquet", bucketer=HOUR, on_progress=self.progress.append, **options
        )
        started = sink.start(stream, checkpoint_location=checkpoint, processingTime="0 seconds")
        self._query = started
        return started

    def prefill(self, keys: int) -> float:
        """Feed new keys until there are so many, and return how many seconds that took."""
        began_s = time.monotonic()
        while self.keys < keys:
            new = min(ROWS_OF_PREFILL, keys - self.keys)
            self._feed([self._rows(np.arange(self.keys, self.keys + new), 0)])
        return time.monotonic() - began_s

    def measure(self, case: str, batches: int, rows: int) -> Run:
        """Feed batches of which half of the rows have come before, or of one row, which is new."""
        tables = []
        for _ in range(batches):
            old = self.rng.integers(0, max(1, self.keys), rows // 2)
            ids = np.concatenate([np.arange(self.keys, self.keys + rows - len(old)), old])
            tables.append(self._rows(self.rng.permutation(ids), PAYLOAD))
        run, told = Run(case), len(self.progress)
        meter, took_ms = self._feed(tables)
        run.batch_ms, run.seconds = took_ms, sum(took_ms) / 1000
        run.cpu_s, run.foreign_cores, run.rows = meter.cpu_s, meter.foreign_cores, batches * rows
        mine = self.progress[told:]
        run.phases_ms = {name: round(statistics.median(getattr(one, name) for one in mine), 1) for name in _PHASES}
        return run

    def _rows(self, ids: Any, payload: int) -> pa.Table:
        """Rows of some numbers, a millisecond of the day each; those that are new count as keys from now on."""
        times = _DAY_START_US + ids * 1000
        texts: Any = pc.utf8_lpad(pa.array(ids).cast(pa.string()), 24, "0")
        named = pc.binary_join_element_wise("event-", texts, "")
        letters = self.rng.bytes(len(ids) * payload // 2).hex().encode()
        offsets = pa.array(np.arange(len(ids) + 1, dtype=np.int32) * payload)
        payloads = pa.StringArray.from_buffers(len(ids), offsets.buffers()[1], pa.py_buffer(letters))
        self.keys = max(self.keys, int(ids.max()) + 1)
        return pa.table([pa.array(times, pa.timestamp("us", "UTC")), named, payloads], schema=_SCHEMA)

    def _feed(self, tables: Sequence[pa.Table]) -> tuple[Meter, list[float]]:
        """Write a file for each table, and wait until each has been a batch; returns the time of each."""
        if self._query is None:
            raise ValueError(f"{self.name} has not been started")
        paths = [self.inbox.parent / f"{self.name}-{self._files + at}.parquet" for at in range(len(tables))]
        self._files += len(tables)
        for path, table in zip(paths, tables, strict=True):
            # Two row groups and no compression, so that Spark reads a file as two tasks.
            pq.write_table(table, path, row_group_size=-(-table.num_rows // 2), compression="none")
        with Meter() as meter:
            fed = [path.rename(self.inbox / path.name) for path in paths]
            self._query.processAllAvailable()
        for path in fed:
            path.unlink()
        batches: list[Any] = [one for one in self._query.recentProgress if one["numInputRows"] > 0][-len(fed) :]
        if sorted(one["numInputRows"] for one in batches) != sorted(table.num_rows for table in tables):
            raise SystemExit(f"{self.name} has not read a file a batch: the figures mean nothing")
        return meter, [float(one["durationMs"]["triggerExecution"]) for one in batches]


def run(data: Path, work: Path, scale: Scale) -> Report:
    """All three streams are open all the time; at each number of keys, both sides are filled up to it and measured."""
    del data  # made on the fly
    points = [scale.of(keys) for keys in KEYS]
    done, single, report = dict[int, Rounds](), dict[int, Rounds](), Report()
    with spark_session(work, CONFIG) as spark:
        streams = {name: Stream(name, work / f"inbox {name}", np.random.default_rng(1)) for name in (OURS, PEER, PLAIN)}
        with ExitStack() as stack:
            for stream in streams.values():
                stack.enter_context(stream.start(spark, work))
            for keys in points:
                filled_s = {name: streams[name].prefill(keys) for name in (OURS, PEER)}
                print(f"  {keys} keys, filled in " + " and ".join(f"{one:.0f} s" for one in filled_s.values()))
                report.extra[f"{keys} keys"] = {"prefill_s": filled_s}
                done[keys], single[keys] = _measured(streams, keys, scale)
                report.runs += done[keys].runs + single[keys].runs
                newest = streams[OURS].progress[-1]
                report.extra[f"{keys} keys"] |= {"runs": newest.state_runs, "state_bytes": newest.state_bytes}
        for name in (OURS, PEER):
            _check_rows(work, streams[name])
    report.figures = figures_of(done, single, scale)
    return report


def _measured(streams: dict[str, Stream], keys: int, scale: Scale) -> tuple[Rounds, Rounds]:
    """The rounds of batches beside so many keys, and those of one-row batches, without the peer: it is in no goal."""
    rows, one_row_batches = scale.of(ROWS, FEWEST_ROWS), scale.of(ONE_ROW_BATCHES, 5)
    batches: dict[str, Callable[[], Run]] = {
        name: partial(streams[name].measure, f"{keys} keys {name}", BATCHES, rows) for name in (OURS, PEER)
    }
    for case in batches.values():
        case()
    done = interleaved(batches, scale.rounds, spare=min(1, scale.spare_rounds), say=print)
    _one_row_round(streams, keys, 0, one_row_batches)
    return done, Rounds(
        [_one_row_round(streams, keys, number, one_row_batches) for number in range(1, scale.rounds + 1)]
    )


def _one_row_round(streams: dict[str, Stream], keys: int, number: int, batches: int) -> Round:
    """Batches of one row, with and without keys in turn: a machine may be twice as quick a minute later."""
    found = {name: Run(f"one row beside {keys} keys {name}", round=number) for name in (OURS, PLAIN)}
    for at in range(batches):
        for name in in_turn(list(found), at):
            one, run = streams[name].measure(name, 1, 1), found[name]
            run.batch_ms += one.batch_ms
            run.seconds, run.cpu_s, run.rows = run.seconds + one.seconds, run.cpu_s + one.cpu_s, run.rows + 1
            run.foreign_cores = max(run.foreign_cores, one.foreign_cores)
    for run in found.values():
        print(line_of(number, run))
    return found


def figures_of(done: dict[int, Rounds], single: dict[int, Rounds], scale: Scale) -> list[Figure]:
    """The goals and what is shown beside them.

    Args:
        done: The rounds of batches by the number of keys beside which they ran.
        single: Those of one-row batches.
        scale: What is promised of many keys is not asked of a share of them.
    """
    found = []
    for (keys, rounds), full in zip(done.items(), KEYS, strict=True):
        title = f"distinct in Spark, {keys} keys"
        goal = SPEED_GOALS.get(full) if scale.is_full else None
        speed, cpu = (ratios(rounds.kept, PEER, OURS, value) for value in (_batch_ms, _cpu_s))
        found.append(figure_of_rounds(f"{title}: rows/s / {PEER}", speed, goal, "at least", _note(rounds, OURS, PEER)))
        found.append(shown(f"{title}: CPU of {PEER} / ours", cpu))
    few, many = min(done), max(done)
    for name, goal in ((OURS, GROWTH_GOAL), (PEER, None)):
        for what, value in (("time", _batch_ms), ("CPU", _cpu_s)):
            grown = [
                value(late[name]) / value(early[name])
                for early, late in zip(done[few].kept, done[many].kept, strict=True)
            ]
            title = f"distinct in Spark: {what} of a batch beside {many} keys / beside {few}, {name}"
            found.append(figure_of_rounds(title, grown, goal, "at most"))
    for keys, rounds in single.items():
        more_ms = [_more_ms(each) for each in rounds.kept]
        title = f"distinct in Spark, {keys} keys: ms that a one-row batch takes more than without keys"
        found.append(figure_of_rounds(title, more_ms, ONE_ROW_GOAL_MS, "at most", _note(rounds, OURS, PLAIN)))
        cpu = ratios(rounds.kept, OURS, PLAIN, _cpu_s)
        found.append(shown(f"distinct in Spark, {keys} keys: CPU of a batch of one row / without keys", cpu))
    return found


def _batch_ms(run: Run) -> float:
    """The batch in the middle."""
    return statistics.median(run.batch_ms)


def _more_ms(each: Round) -> float:
    """How much longer a batch with keys took than the one without that was beside it, the pair in the middle."""
    pairs = zip(each[OURS].batch_ms, each[PLAIN].batch_ms, strict=True)
    return statistics.median(ours - plain for ours, plain in pairs)


def _cpu_s(run: Run) -> float:
    return run.cpu_s


def _note(rounds: Rounds, *names: str) -> str:
    medians = {name: statistics.median(_batch_ms(each[name]) for each in rounds.kept) for name in names}
    return ", ".join(f"{name} {value:.0f} ms a batch" for name, value in medians.items())


def _check_rows(work: Path, stream: Stream) -> None:
    """Stop if an output does not hold each key once."""
    output = work / stream.name.replace(" ", "-") / "output"
    query = "SELECT count(*), count(DISTINCT id) FROM read_parquet($files)"
    rows, distinct = duckdb.execute(query, {"files": f"{output}/*/*.parquet"}).fetchall()[0]
    if not rows == distinct == stream.keys:
        raise SystemExit(f"{output} holds {rows} rows of {distinct} keys, not {stream.keys}: the figures mean nothing")
