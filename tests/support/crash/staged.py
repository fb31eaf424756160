"""What the crash harness kills of a sink with staged parts: encodes, and the command line over them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from partfile.testing.faults import SimulatedCrash
from partfile.testing.harness import SinkHarness
from support.crash.commands import clean_by_command, recover_by_command
from support.crash.scenarios import ROWS, Scenario, complete, nothing
from support.sinks.life_cycle import LONG, batch, continue_to, rows_done, run_to_the_end
from support.sinks.staged_streams import STAGED

if TYPE_CHECKING:
    from partfile.sink.file_sink import FileSink
    from partfile.stores.base import PartHandle
    from support.crash.worlds import Process


# What the crash harness kills of a sink with staged parts: as ``crash.scenarios``, with encodes among the calls.


def _sink(process: Process, **options: Any) -> FileSink:
    return process.sink(**({"rolling": LONG} | STAGED | options))


def restore_staging_files(process: Process) -> None:
    """Start, which encodes and publishes what is owed, and be gone without another checkpoint."""
    _sink(process).local().open().close()


def staging_files_to_the_end(process: Process) -> None:
    continue_to(_sink(process), ROWS)


def _long_staging_files(process: Process) -> None:
    """Three checkpoints over the same staging files, which are encoded by their task at the clean end."""
    run_to_the_end(_sink(process), ROWS)


def _full_staging_files(process: Process) -> None:
    """Staging files that are full at each checkpoint: encoded before it, published by it, deleted later."""
    run_to_the_end(_sink(process, rolling=LONG.model_copy(update={"max_part_bytes": 25})), 6)


def _released_staging_files(process: Process) -> None:
    """Fewer parts may be open than there are buckets."""
    run_to_the_end(_sink(process, max_open_parts=1), 6)


def leave_staging_files_with_a_tail(process: Process) -> None:
    """Leave open staging files that a checkpoint vouches for, each with bytes beyond its valid length.

    The process dies.
    """
    out = _sink(process).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    out.write(batch(4, 3), position=7)
    out._operator.snapshot(9)


def _idle_staging_files(process: Process) -> None:
    """The timer between two batches encodes what is idle, and a checkpoint of its own publishes it."""
    with SinkHarness(_sink(process, rolling=LONG.model_copy(update={"inactivity_interval_s": 10}))) as job:
        job.process(batch(0, 4))
        complete(process, job, 4)
        job.operators.pop().close()
        job.now_ms += 60_000
        job.runtime.coordinator.close_due(job.now_ms)


def _keep(process: Process, rows: int = 6) -> None:
    with _sink(process, on_stop="keep").local() as out:
        done = rows_done(out)
        if done < rows:
            out.write(batch(done, rows - done), position=rows)


def _keep_fewer(process: Process) -> None:
    _keep(process, 3)


def shared_sink(process: Process, **options: Any) -> FileSink:
    """A sink whose two buckets share a staging file whenever a batch has rows of both."""
    return _sink(process, buckets_per_staging_file=1, **options)


def _multi_bucket_staging_file(process: Process, **options: Any) -> None:
    """Three checkpoints over one staging file of two buckets, which its task encodes at the clean end."""
    with shared_sink(process, **options).local() as out:
        done = rows_done(out)
        while done < ROWS:
            count = min(3, ROWS - done)
            out.write(batch(done, count), position=done + count)
            out.checkpoint()
            done += count


def _shared_lines(process: Process) -> None:
    """Of a row format; the process that goes on writes Parquet, and encodes lines as they were begun."""
    _multi_bucket_staging_file(process, format="text")


def _aged_multi_bucket_staging_files(process: Process) -> None:
    """Each is as old as it may get at a checkpoint, so its task encodes it before.

    All of its files are in one checkpoint.
    """
    _multi_bucket_staging_file(process, rolling=LONG.model_copy(update={"rollover_interval_s": 0.5}))


def leave_a_multi_bucket_staging_file_with_a_tail(process: Process) -> None:
    """Of lines, not of columns, and beside a part of one bucket's own; the process dies."""
    out = shared_sink(process, format="text").local().open()
    out.write(batch(0, 1), position=1)
    out.write(batch(1, 5), position=6)
    out.checkpoint()
    out.write(batch(6, 3), position=9)
    out._operator.snapshot(9)


def _idle_multi_bucket_staging_file(process: Process) -> None:
    """The timer encodes it, and one checkpoint publishes all of its files."""
    with SinkHarness(shared_sink(process, rolling=LONG.model_copy(update={"inactivity_interval_s": 10}))) as job:
        job.process(batch(0, 4))
        complete(process, job, 4)
        job.operators.pop().close()
        job.now_ms += 60_000
        job.runtime.coordinator.close_due(job.now_ms)


def _keep_shared(process: Process, rows: int = 6) -> None:
    with shared_sink(process, on_stop="keep").local() as out:
        done = rows_done(out)
        if done < rows:
            out.write(batch(done, rows - done), position=rows)


def _keep_fewer_shared(process: Process) -> None:
    _keep_shared(process, 3)


def _of(
    name: str, life: Any, seed: Any = nothing, recovery: Any = restore_staging_files, *, keeps_parts: bool = False
) -> Scenario:
    return Scenario(
        name, life, seed, recovery, staging_files_to_the_end, keeps_parts=keeps_parts, has_staging_files=True
    )


STAGED_SCENARIOS = [
    _of("long staging files", _long_staging_files),
    _of("full staging files", _full_staging_files),
    _of("released staging files", _released_staging_files),
    _of("restored staging files", staging_files_to_the_end, leave_staging_files_with_a_tail),
    _of("idle staging files", _idle_staging_files),
    _of("kept staging files", _keep, _keep_fewer, _keep, keeps_parts=True),
    _of("a multi-bucket staging file", _multi_bucket_staging_file),
    _of("a multi-bucket staging file of lines", _shared_lines),
    _of("aged multi-bucket staging files", _aged_multi_bucket_staging_files),
    _of(
        "a restored multi-bucket staging file", staging_files_to_the_end, leave_a_multi_bucket_staging_file_with_a_tail
    ),
    _of("an idle multi-bucket staging file", _idle_multi_bucket_staging_file),
    _of("a kept multi-bucket staging file", _keep_shared, _keep_fewer_shared, _keep_shared, keeps_parts=True),
]


# The command line over staged parts, as the crash harness kills it: see ``crash.commands``.


class _Dying:
    """In place of what encodes: encodes, and then the process is gone."""

    def __init__(self, encode: object) -> None:
        self._encode = encode

    def encode(self, staging_files: object) -> list[PartHandle]:
        self._encode(staging_files)  # type: ignore[operator]
        raise SimulatedCrash("dead before a checkpoint names the files")


def orphan_staging_files_and_a_tail(process: Process) -> None:
    """Staging files that no checkpoint names; files that were encoded for none.

    And open staging files that one vouches for.
    """
    _begin_and_die(process.sink(rolling=LONG, **STAGED))
    leave_staging_files_with_a_tail(process)
    _encode_and_die(process)


def orphan_multi_bucket_staging_files_and_a_tail(process: Process) -> None:
    """The same with multi-bucket staging files, of rows and of lines: an encode in vain leaves a file a bucket."""
    _begin_and_die(shared_sink(process))
    leave_a_multi_bucket_staging_file_with_a_tail(process)
    _encode_and_die(process)


def _begin_and_die(sink: FileSink) -> None:
    out = sink.local().open()
    out.write(batch(0, 4), position=4)
    for part in out._operator._active.values():
        part.flush()


def _encode_and_die(process: Process) -> None:
    dying = process.sink(rolling=LONG, **STAGED).local()
    staging_files = dying._runtime.coordinator._staging_files
    staging_files._encoder = _Dying(staging_files._encoder.encode)  # type: ignore[assignment]
    try:
        dying.open()
    except SimulatedCrash:
        return
    raise AssertionError("nothing was encoded")


def end_and_clean_staging_files(process: Process) -> None:
    """Write every row that is missing, end cleanly, and take away what kills have left."""
    staging_files_to_the_end(process)
    clean_by_command(process, delete=True)


_SEEDS = (
    ("staging_files", orphan_staging_files_and_a_tail),
    ("multi-bucket staging files", orphan_multi_bucket_staging_files_and_a_tail),
)

STAGED_COMMANDS = [
    Scenario(name.format(what), life, seed, recovery=recovery, end=staging_files_to_the_end, has_staging_files=True)
    for what, seed in _SEEDS
    for name, life, recovery in (
        ("recover {}", recover_by_command, recover_by_command),
        ("recover {}, then the sink", recover_by_command, restore_staging_files),
        ("clean {}", partial(clean_by_command, delete=False), restore_staging_files),
        ("clean --delete {}", partial(clean_by_command, delete=True), restore_staging_files),
    )
]

STAGING_FILES_CLEANED_TWICE = [
    Scenario(
        f"clean{' --delete' * delete} {what}, and clean again",
        partial(clean_by_command, delete=delete),
        seed,
        recovery=partial(clean_by_command, delete=delete),
        end=end_and_clean_staging_files,
        keeps_parts=True,
        has_staging_files=True,
    )
    for what, seed in _SEEDS
    for delete in (False, True)
]
