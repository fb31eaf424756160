"""Distinct rows in plain Python: what keys cost, beside the sink without keys, a table of DuckDB, and Bytewax.

CPU seconds, since all of it is work of one thread but what DuckDB chooses. Keys are text of 30 characters; half of the
rows of a batch have come before. DuckDB inserts the keys of a batch in one transaction and hands back those that are
new; it writes no rows, which is in its favour. Bytewax keeps a flag a key and writes the lines of new keys.

Memory is measured once, beside a hundred million keys: each batch has a million new ones. So is what ``refresh="read"``
leaves of keys that come again and again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa

import partfile as pf
from environments import BYTEWAX
from figures import Report, figure_of_rounds
from processes import anonymous_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from figures import Figure
    from scale import Scale

ROWS = 100_000
FEW, MANY = 10, 100
"""Batches after which a batch is measured: 500 000 and 5 000 000 keys."""
MEASURED = 8
"""Batches around each of these points."""
DUCKDB_BATCHES = 10
ONE_ROW = 30
LARGE = 100
"""Batches of a million new keys each, beside the last of which memory is measured, once."""
LARGE_ROWS = 1_000_000
AROUND = 8
"""Batches around a point, of which the highest memory counts: some of them merge runs."""
MEMORY_GOAL = 1.1
HOT_KEYS = 6_000_000
"""Keys that come again and again: more than a run may have."""
HOT_BATCHES_A_KEY = 6
"""Batches in which each of them comes once, on average."""
HOT_FEW_TIMES, HOT_TIMES = 3, 12
"""How often each has come at the two points that are compared."""


class _Costs(NamedTuple):
    few_s: float
    """CPU of a batch beside few keys, in seconds."""
    many_s: float
    """Of a batch beside many keys."""
    plain_s: float
    """Of one without keys."""
    duckdb_s: float
    """Of one of DuckDB beside few keys."""
    bytewax_s: float
    """Of one of Bytewax beside as many."""
    bytes_a_key: float
    one_row_ms: float
    """Wall time of a checkpoint of one row beside many keys, in milliseconds."""
    plain_one_row_ms: float


def run(data: Path, work: Path, scale: Scale) -> Report:
    """Each round measures everything; the first round of a process is dropped."""
    del data  # made on the fly
    report, rounds = Report(), list[_Costs]()
    many = scale.of(MANY, FEW + MEASURED)
    for number in range(scale.rounds + 1):
        own = work / str(number)
        own.mkdir()
        found = _round(own, number, many)
        if number:
            rounds.append(found)
            print(f"  few {found.few_s:.3f} s, many {found.many_s:.3f} s, plain {found.plain_s:.3f} s", flush=True)
    last = rounds[-1]
    shown = (
        (
            f"distinct: batch beside {many * ROWS // 2} keys / beside {FEW * ROWS // 2}, CPU",
            [one.many_s / one.few_s for one in rounds],
            1.3,
            f"{last.many_s:.3f} s and {last.few_s:.3f} s of {ROWS} rows",
        ),
        (
            "distinct: batch / the sink without keys, CPU",
            [one.few_s / one.plain_s for one in rounds],
            None,
            f"{last.few_s:.3f} s and {last.plain_s:.3f} s; it writes half of the rows",
        ),
        (
            "distinct: batch / DuckDB's insert of its keys, CPU",
            [one.few_s / one.duckdb_s for one in rounds],
            1.0,
            f"{last.few_s:.3f} s and {last.duckdb_s:.3f} s, which writes no rows",
        ),
        ("distinct: bytes a key / 24", [one.bytes_a_key / 24 for one in rounds], 1.0, f"{last.bytes_a_key:.1f} bytes"),
        (
            "distinct: checkpoint of one row / without keys",
            [one.one_row_ms / one.plain_one_row_ms for one in rounds],
            None,
            f"{last.one_row_ms:.1f} ms and {last.plain_one_row_ms:.1f} ms",
        ),
    )
    for title, ratios, goal, note in shown:
        report.figures.append(figure_of_rounds(title, ratios, goal, "at most", note))
    report.figures.append(
        figure_of_rounds(
            "distinct: Bytewax's keyed rows to a file / batch, CPU",
            [one.bytewax_s / one.few_s for one in rounds],
            5.0,
            "at least",
            f"{last.bytewax_s:.3f} s and {last.few_s:.3f} s; it is given finished lines and keeps no recovery store",
        )
    )
    report.figures.append(_memory(work / "large", scale.of(LARGE, 4 * AROUND)))
    report.figures.append(_hot(work / "hot", scale.of(HOT_KEYS)))
    return report


def _hot(base: Path, keys: int) -> Figure:
    """State where keys come again and again, and each time count anew, beside that after the first few times.

    A key is in a run of each checkpoint that it came in, until they are merged. Four times as many rows are to
    leave about as much.
    """
    rows = keys // HOT_BATCHES_A_KEY
    sink = pf.FileSink(
        base, uid="bench", format="parquet", deduplicate=pf.Deduplicate("id", ttl="7 days", refresh="read")
    )
    rng, held, costs, highest = np.random.default_rng(1), list[int](), list[float](), 0
    with sink.local() as out:
        for _ in range(HOT_TIMES * HOT_BATCHES_A_KEY):
            began = time.process_time()
            out.write(pa.table({"id": rng.integers(0, keys, rows)}))
            progress = out.checkpoint()
            costs.append(time.process_time() - began)
            held.append(progress.state_bytes)
            highest = max(highest, anonymous_bytes())
    few = HOT_FEW_TIMES * HOT_BATCHES_A_KEY
    early, late = max(held[:few]), max(held[-few:])
    early_s, late_s = (float(np.mean(costs[part])) for part in (slice(few), slice(-few, None)))
    note = (
        f"{late >> 20} and {early >> 20} MiB, {late / keys:.0f} and {early / keys:.0f} bytes a key; {late_s:.2f} and "
        f"{early_s:.2f} s of CPU a batch of {rows} rows; at most {highest >> 20} MiB of memory"
    )
    title = f"distinct: refresh='read', state after {keys} keys came {HOT_TIMES} times / after {HOT_FEW_TIMES}"
    return figure_of_rounds(title, [late / early], None, "at most", note)


def _memory(base: Path, batches: int) -> Figure:
    """Memory of the process beside all keys / beside a tenth of them, without the files that it maps.

    The keys of the first batch come again at the end, and each of them is left out.
    """
    few = max(batches // 10, AROUND)
    sink = pf.FileSink(base, uid="bench", format="parquet", deduplicate=pf.Deduplicate("id"))
    held, costs = list[int](), list[float]()
    with sink.local() as out:
        for number in range(batches + 1):
            first = number % batches * LARGE_ROWS
            began = time.process_time()
            out.write(pa.table({"id": np.arange(first, first + LARGE_ROWS)}))
            progress = out.checkpoint()
            costs.append(time.process_time() - began)
            held.append(anonymous_bytes())
        if progress.duplicates != LARGE_ROWS or progress.state_keys != batches * LARGE_ROWS:
            raise SystemExit(f"{progress.duplicates} rows of {LARGE_ROWS} were left out: the figures mean nothing")
    points = [slice(end - AROUND, end) for end in (few, batches)]
    early, late = (max(held[point]) for point in points)
    early_s, late_s = (float(np.mean(costs[point])) for point in points)
    note = (
        f"{late >> 20} and {early >> 20} MiB; {progress.state_bytes >> 20} MiB in {progress.state_runs} runs; "
        f"{late_s:.2f} and {early_s:.2f} s of CPU a batch"
    )
    title = f"distinct: memory beside {batches * LARGE_ROWS} keys / beside {few * LARGE_ROWS}"
    return figure_of_rounds(title, [late / early], MEMORY_GOAL, "at most", note)


def _round(work: Path, seed: int, many: int) -> _Costs:
    plain_s, plain_one_row_ms = _plain(work / "plain", seed)
    sink = pf.FileSink(work / "distinct", uid="bench", deduplicate=pf.Deduplicate("id", ttl="7 days"))
    costs = list[float]()
    with sink.local() as out:
        for batch in _batches(seed, many + MEASURED):
            began = time.process_time()
            out.write(batch)
            progress = out.checkpoint()
            costs.append(time.process_time() - began)
        bytes_a_key = progress.state_bytes / progress.state_keys
        one_row_ms = _one_row_ms(out)
    return _Costs(
        few_s=float(np.mean(costs[FEW : FEW + MEASURED])),
        many_s=float(np.mean(costs[many:])),
        plain_s=plain_s,
        duckdb_s=_duckdb(work / "keys.duckdb", seed),
        bytewax_s=BYTEWAX.answer("bytewax_distinct.py", work / "bytewax.jsonl", ROWS, FEW + MEASURED, FEW)["batch_s"],
        bytes_a_key=bytes_a_key,
        one_row_ms=one_row_ms,
        plain_one_row_ms=plain_one_row_ms,
    )


def _batches(seed: int, count: int) -> Iterator[pa.Table]:
    """Batches of which half of the keys are new, each new one once, and half came before in some batch."""
    rng = np.random.default_rng(seed)
    half = ROWS // 2
    for number in range(count):
        new = np.arange(number * half, (number + 1) * half)
        old = rng.integers(0, max(1, number) * half, half)
        ids = rng.permutation(np.concatenate([new, old]))
        yield pa.table({"id": [f"event-{one:024d}" for one in ids], "payload": ["x" * 100] * ROWS})


def _plain(base: Path, seed: int) -> tuple[float, float]:
    costs = list[float]()
    with pf.FileSink(base, uid="bench").local() as out:
        for batch in _batches(seed, FEW):
            began = time.process_time()
            out.write(batch)
            out.checkpoint()
            costs.append(time.process_time() - began)
        return float(np.mean(costs[2:])), _one_row_ms(out)


def _one_row_ms(out: pf.LocalSink) -> float:
    times = []
    for number in range(ONE_ROW):
        row = pa.table({"id": [f"one-{number}"], "payload": ["x"]})
        began = time.perf_counter()
        out.write(row)
        out.checkpoint()
        times.append((time.perf_counter() - began) * 1000)
    return float(np.median(times))


def _duckdb(path: Path, seed: int) -> float:
    costs = list[float]()
    with duckdb.connect(str(path)) as connection:
        connection.execute("SET threads = 1")
        connection.execute("CREATE TABLE keys (id VARCHAR PRIMARY KEY)")
        for batch in _batches(seed, DUCKDB_BATCHES):
            connection.register("batch", batch)
            began = time.process_time()
            new = connection.execute("INSERT OR IGNORE INTO keys SELECT DISTINCT id FROM batch RETURNING id")
            new.to_arrow_table()
            costs.append(time.process_time() - began)
    return float(np.mean(costs[2:]))
