"""What a process does when the crash harness kills it: scenarios as values, for text and for other formats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import partfile as pf
from partfile.testing.harness import SinkHarness
from support.sinks.life_cycle import LONG, ROWS_A_CHECKPOINT, batch, continue_to, rows_done, run_to_the_end

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.stores.base import Cut
    from support.crash.worlds import Process

    Deed = Callable[[Process], object]


# What a process does when the crash harness kills it: scenarios as values. Each deed gets a process of its own.
#
# A verb of a command line is one more scenario: its life is the verb, and so is its recovery, for it can be run again.

ROWS = 9
CUTS: tuple[Cut, ...] = ("truncate", "rewrite", "valid-length")


def nothing(_process: Process) -> None:
    """Do nothing."""


def restore(process: Process) -> None:
    """Start, which finalizes and publishes what is owed, and be gone without another checkpoint."""
    process.sink(rolling=LONG).local().open().close()


def to_the_end(process: Process) -> None:
    """Write every row that is missing and end cleanly."""
    continue_to(process.sink(rolling=LONG), ROWS)


class Scenario(NamedTuple):
    """A life that is killed at each of its calls, what is left before it, and what comes after it."""

    name: str
    life: Deed
    """Killed."""
    seed: Deed = nothing
    """Makes what the life begins with; it is not killed."""
    recovery: Deed = restore
    """Comes after a kill, and is killed itself."""
    end: Deed = to_the_end
    """Comes last, and leaves each of the rows in one finished file."""
    keeps_parts: bool = False
    """Whether a recovery may leave parts open: their last owner kept them for the next one."""
    has_staging_files: bool = False
    """Whether its parts are staged: an encoded staging file is deleted by a later checkpoint."""


def write_with_tail(process: Process, **options: Any) -> None:
    """Leave open parts that a checkpoint vouches for, each with bytes beyond its valid length; the process dies."""
    out = process.sink(rolling=LONG, **options).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    out.write(batch(4, 3), position=7)


def keep_parts(process: Process, rows: int = 6) -> None:
    """Write up to so many rows, and stop cleanly with open parts kept for the next run."""
    with process.sink(rolling=LONG, on_stop="keep").local() as out:
        done = rows_done(out)
        if done < rows:
            out.write(batch(done, rows - done), position=rows)


def keep_fewer_parts(process: Process) -> None:
    """The same for an earlier run."""
    keep_parts(process, 3)


def close_idle_parts(process: Process) -> None:
    """The timer between two batches closes what is idle, by checkpoints of its own."""
    idle = pf.RollingPolicy(max_part_bytes=10**6, rollover_interval_s=1e6, inactivity_interval_s=10)
    with SinkHarness(process.sink(rolling=idle)) as job:
        job.process(batch(0, 4))
        complete(process, job, 4)
        job.now_ms += 60_000
        job.runtime.coordinator.close_due(job.now_ms)


def give_a_checkpoint_up(process: Process) -> None:
    """A checkpoint is aborted after its task took part; the next one holds its rows, behind a tombstone."""
    with SinkHarness(process.sink(rolling=LONG)) as job:
        job.process(batch(0, 4))
        complete(process, job, 4)
        job.process(batch(4, 2))
        job.snapshot()
        job.notify_aborted()
        job.process(batch(6, 1))
        complete(process, job, 7)


def complete(process: Process, job: SinkHarness, position: int) -> None:
    """Complete a checkpoint after so many rows."""
    coordinator = job.runtime.coordinator
    pending = coordinator.trigger(job.now_ms)
    snapshots = [operator.snapshot(pending.checkpoint_id) for operator in job.operators]
    stands = coordinator.state.position.model_copy(update={"user_position": position})
    done = coordinator.complete(pending, snapshots, stands)
    for operator in job.operators:
        operator.notify_checkpoint_complete(done.checkpoint_id)
    process.told()


def take_a_savepoint(process: Process) -> None:
    """A savepoint beside the checkpoints, after which the sink goes on."""
    with process.sink(rolling=LONG).local() as out:
        out.write(batch(0, 4), position=4)
        out.savepoint(f"{process.base}/_partfile/_savepoints")
        out.write(batch(4, 3), position=7)


DISTINCT: dict[str, Any] = {"deduplicate": pf.Deduplicate("row"), "inline_threshold_bytes": 0}
"""Every run of keys is a file."""


def distinct_rows(process: Process) -> None:
    """Three checkpoints over the same parts; before each the rows of the one before it come again."""
    with process.sink(rolling=LONG, **DISTINCT).local() as out:
        done = rows_done(out)
        while done < ROWS:
            first = max(0, done - ROWS_A_CHECKPOINT)
            done = min(done + ROWS_A_CHECKPOINT, ROWS)
            out.write(batch(first, done - first), position=done)
            out.checkpoint()


def restore_keys(process: Process) -> None:
    """Start with the keys of the rows so far, and be gone without another checkpoint."""
    process.sink(rolling=LONG, **DISTINCT).local().open().close()


def stream(cut: Cut) -> Scenario:
    """Three checkpoints and a clean end, with parts that roll by size.

    What the recovery has to cut is cut in this way.
    """
    cutting = _cutting(cut)
    return Scenario("stream", lambda process: run_to_the_end(process.sink(cut=cut), ROWS), nothing, *cutting)


def long_parts(process: Process) -> None:
    """Three checkpoints over the same parts, which are extended by each."""
    run_to_the_end(process.sink(rolling=LONG), ROWS)


def restore_that_cuts(cut: Cut) -> Scenario:
    """A start that finalizes parts in this way, and goes on."""

    def seed(process: Process) -> None:
        write_with_tail(process, cut=cut)

    recovery, end = _cutting(cut)
    return Scenario(f"restore, cut={cut}", end, seed, recovery, end)


def _cutting(cut: Cut) -> tuple[Deed, Deed]:
    """A recovery and an end that cut in this way."""
    return (
        lambda process: process.sink(rolling=LONG, cut=cut).local().open().close(),
        lambda process: continue_to(process.sink(rolling=LONG, cut=cut), ROWS),
    )


OTHERS = [
    Scenario("long parts", long_parts),
    Scenario("timer", close_idle_parts),
    Scenario("abort", give_a_checkpoint_up),
    Scenario("savepoint", take_a_savepoint),
    Scenario("keep", keep_parts, recovery=keep_parts, seed=keep_fewer_parts, keeps_parts=True),
    Scenario("distinct", distinct_rows, recovery=restore_keys, end=distinct_rows),
]
"""Lives in which nothing is cut in a way of its own."""

EVERY_SCENARIO = [
    stream("auto"),
    *(restore_that_cuts(cut) for cut in CUTS),
    *OTHERS,
]


# What the crash harness kills of sinks of other formats than plain text: binary blocks, compressed members, ORC.

FORMATS: dict[str, dict[str, Any]] = {
    "avro": {"format": "avro", "compression": "snappy"},
    "json, zstd": {"format": "json", "compression": "zstd"},
    "csv, gzip": {"format": "csv", "compression": "gzip"},
    "orc": {"format": "orc", "columnar": "staged"},
}
FORMAT_CUTS = {
    "avro": ("truncate", "rewrite", "valid-length"),
    "json, zstd": ("rewrite",),
    "csv, gzip": ("valid-length",),
}
"""How the tail of a part is cut in a restore; a staging file has but one way."""


def _long_parts(name: str) -> Scenario:
    """Three checkpoints over the same parts, and a clean end."""
    options = FORMATS[name]
    return _of(f"long parts, {name}", options, lambda process: run_to_the_end(_sink(process, options), ROWS), nothing)


def _restored(name: str, cut: str) -> Scenario:
    """A start that cuts what came after the last checkpoint, and goes on."""
    options = FORMATS[name] | {"cut": cut}

    def to_the_end(process: Process) -> None:
        continue_to(_sink(process, options), ROWS)

    return _of(f"restored {name}, {cut}", options, to_the_end, lambda process: write_with_tail(process, **options))


def _of(name: str, options: dict[str, Any], life: Any, seed: Any) -> Scenario:
    return Scenario(
        name,
        life,
        seed,
        lambda process: _sink(process, options).local().open().close(),
        lambda process: continue_to(_sink(process, options), ROWS),
        has_staging_files="columnar" in options,
    )


def _sink(process: Process, options: dict[str, Any]) -> Any:
    return process.sink(rolling=LONG, **options)


FORMAT_SCENARIOS = [
    *(_long_parts(name) for name in FORMATS),
    *(_restored(name, cut) for name, cuts in FORMAT_CUTS.items() for cut in cuts),
    _restored("orc", "auto"),
]
