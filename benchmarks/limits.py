"""What no sink can get past whose rows travel from the JVM to Python, and where that stands beside the goals."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from figures import shown
from runs import ratios

if TYPE_CHECKING:
    from figures import Figure
    from generator import Dataset
    from rounds import Rounds

ENCODED_FILES = 4
"""Of the source, which are encoded to learn what Parquet itself takes."""
TRIES = 3


def parquet_cpu_s(source: Dataset) -> float:
    """CPU seconds that one thread takes to encode one row as partfile's Parquet is by default; the best of a few tries.

    The rows are in memory, in their order, and the file is one row group: what encoding takes at least.
    """
    paths = sorted(source.path.glob("*.parquet"))[:ENCODED_FILES]
    rows = pa.concat_tables([pq.read_table(path) for path in paths]).combine_chunks()

    def encode() -> float:
        began_s = time.process_time()
        pq.write_table(rows, pa.BufferOutputStream(), compression="snappy", write_page_index=True)
        return time.process_time() - began_s

    rows_encoded: int = rows.num_rows
    return min(encode() for _ in range(TRIES)) / rows_encoded


def of_speed(goal: str, rounds: Rounds, ceiling: str, peer: str) -> Figure:
    """How fast a ceiling is against the peer of a goal: the limit of that goal's rows/s.

    Args:
        goal: Its name.
        rounds: Where both were measured.
        ceiling: A case that hands rows to Python and keeps nothing of them.
        peer: What the goal compares with.
    """
    speed = ratios(rounds.kept, ceiling, peer, lambda run: run.rows_per_s)
    return shown(f"limit of {goal}: {ceiling}, rows/s / {peer}", speed, "nothing is kept")


def share_of(goal: str, rounds: Rounds, ours: str, ceiling: str) -> Figure:
    """How much of a limit is reached: our speed against that of a ceiling, so that 1 is a sink that costs nothing.

    Args:
        goal: Its name.
        rounds: Where both were measured.
        ours: Our case.
        ceiling: The case that keeps nothing.
    """
    reached = ratios(rounds.kept, ours, ceiling, lambda run: run.rows_per_s)
    took = [
        f"{statistics.median(run[case].cpu_s / run[case].rows * 1e6 for run in rounds.kept):.1f}"
        for case in (ours, ceiling)
    ]
    note = f"{took[0]} and {took[1]} s of CPU a million rows"
    return shown(f"of the limit of {goal}: {ours}, rows/s / {ceiling}", reached, note)


def of_cpu(rounds: Rounds, ceiling: str, native: str, encoder_cpu_s: float) -> Figure:
    """The limit of P12: handing the rows over and encoding them, and nothing else, against Spark's Parquet sink."""
    least = [
        (run[ceiling].cpu_s / run[ceiling].rows + encoder_cpu_s) / (run[native].cpu_s / run[native].rows)
        for run in rounds.kept
    ]
    handed = statistics.median(run[ceiling].cpu_s / run[ceiling].rows * 1e6 for run in rounds.kept)
    note = f"{handed:.1f} s to hand a million rows over, {encoder_cpu_s * 1e6:.1f} s to encode them"
    return shown("limit of P12: count in Python and one pass of the encoder, CPU seconds a row / native", least, note)
