"""What the crash harness kills of a sink with staged parts: encodes, and the command line over them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from partfile.testing.faults import SimulatedCrash
from partfile.testing.harness import SinkHarness
from support.crash.commands import clean_by_command, recover_by_command
from support.crash.scenarios import ROWS, Scenario, complete, nothing
from support.life_cycle import LONG, batch, continue_to, rows_done, run_to_the_end
from support.staged_streams import STAGED

if TYPE_CHECKING:
    from partfile.sink.file_sink import FileSink
    from partfile.stores.base import PartHandle
    from support.crash.worlds import Process


# What the crash harness kills of a sink with staged parts: as ``crash.scenarios``, with encodes among the calls.


def _sink(process: Process, **options: Any) -> FileSink:
    return process.sink(**({"rolling": LONG} | STAGED | options))


def restore_stages(process: Process) -> None:
    """Start, which encodes and publishes what is owed, and be gone without another checkpoint."""
    _sink(process).local().open().close()


def stages_to_the_end(process: Process) -> None:
    continue_to(_sink(process), ROWS)


def _long_stages(process: Process) -> None:
    """Three checkpoints over the same stages, which are encoded by their task at the clean end."""
    run_to_the_end(_sink(process), ROWS)


def _full_stages(process: Process) -> None:
    """Stages that are full at each checkpoint: encoded before it, published by it, deleted later."""
    run_to_the_end(_sink(process, rolling=LONG.model_copy(update={"max_part_bytes": 25})), 6)


def _stages_set_aside(process: Process) -> None:
    """Fewer parts may be open than there are buckets."""
    run_to_the_end(_sink(process, max_open_parts=1), 6)


def leave_stages_with_a_tail(process: Process) -> None:
    """Leave open stages that a checkpoint vouches for, each with bytes beyond its valid length; the process dies."""
    out = _sink(process).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    out.write(batch(4, 3), position=7)
    out._operator.snapshot(9)


def _idle_stages(process: Process) -> None:
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
    """A sink whose two buckets share a stage whenever a batch has rows of both."""
    return _sink(process, shared_stage_buckets=1, **options)


def _shared_stage(process: Process, **options: Any) -> None:
    """Three checkpoints over one stage of two buckets, which its task encodes at the clean end."""
    with shared_sink(process, **options).local() as out:
        done = rows_done(out)
        while done < ROWS:
            count = min(3, ROWS - done)
            out.write(batch(done, count), position=done + count)
            out.checkpoint()
            done += count


def _shared_lines(process: Process) -> None:
    """Of a row format; whoever goes on writes Parquet, and encodes lines as they were begun."""
    _shared_stage(process, format="text")


def _aged_shared_stages(process: Process) -> None:
    """Each is as old as it may get at a checkpoint, so its task encodes it before: all of its files are in one link."""
    _shared_stage(process, rolling=LONG.model_copy(update={"rollover_interval_s": 0.5}))


def leave_a_shared_stage_with_a_tail(process: Process) -> None:
    """Of lines, not of columns, and beside a part of one bucket's own; the process dies."""
    out = shared_sink(process, format="text").local().open()
    out.write(batch(0, 1), position=1)
    out.write(batch(1, 5), position=6)
    out.checkpoint()
    out.write(batch(6, 3), position=9)
    out._operator.snapshot(9)


def _idle_shared_stage(process: Process) -> None:
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
    name: str, life: Any, seed: Any = nothing, recovery: Any = restore_stages, *, keeps_parts: bool = False
) -> Scenario:
    return Scenario(name, life, seed, recovery, stages_to_the_end, keeps_parts=keeps_parts, has_stages=True)


STAGED_SCENARIOS = [
    _of("long stages", _long_stages),
    _of("full stages", _full_stages),
    _of("stages set aside", _stages_set_aside),
    _of("restored stages", stages_to_the_end, leave_stages_with_a_tail),
    _of("idle stages", _idle_stages),
    _of("kept stages", _keep, _keep_fewer, _keep, keeps_parts=True),
    _of("a shared stage", _shared_stage),
    _of("a shared stage of lines", _shared_lines),
    _of("aged shared stages", _aged_shared_stages),
    _of("a restored shared stage", stages_to_the_end, leave_a_shared_stage_with_a_tail),
    _of("an idle shared stage", _idle_shared_stage),
    _of("a kept shared stage", _keep_shared, _keep_fewer_shared, _keep_shared, keeps_parts=True),
]


# The command line over staged parts, as the crash harness kills it: see ``crash.commands``.


class _Dying:
    """In place of what encodes: encodes, and then the process is gone."""

    def __init__(self, encode: object) -> None:
        self._encode = encode

    def encode(self, stages: object) -> list[PartHandle]:
        self._encode(stages)  # type: ignore[operator]
        raise SimulatedCrash("dead before a checkpoint names the files")


def orphan_stages_and_a_tail(process: Process) -> None:
    """Stages that no checkpoint names; files that were encoded for none; and open stages that one vouches for."""
    _begin_and_die(process.sink(rolling=LONG, **STAGED))
    leave_stages_with_a_tail(process)
    _encode_and_die(process)


def orphan_shared_stages_and_a_tail(process: Process) -> None:
    """The same with stages that buckets share, of rows and of lines: an encode for nobody leaves a file a bucket."""
    _begin_and_die(shared_sink(process))
    leave_a_shared_stage_with_a_tail(process)
    _encode_and_die(process)


def _begin_and_die(sink: FileSink) -> None:
    out = sink.local().open()
    out.write(batch(0, 4), position=4)
    for part in out._operator._active.values():
        part.flush()


def _encode_and_die(process: Process) -> None:
    dying = process.sink(rolling=LONG, **STAGED).local()
    stages = dying._runtime.coordinator._stages
    stages._encoder = _Dying(stages._encoder.encode)  # type: ignore[assignment]
    try:
        dying.open()
    except SimulatedCrash:
        return
    raise AssertionError("nothing was encoded")


def end_and_clean_stages(process: Process) -> None:
    """Write every row that is missing, end cleanly, and take away what kills have left."""
    stages_to_the_end(process)
    clean_by_command(process, delete=True)


_SEEDS = (("stages", orphan_stages_and_a_tail), ("shared stages", orphan_shared_stages_and_a_tail))

STAGED_COMMANDS = [
    Scenario(name.format(what), life, seed, recovery=recovery, end=stages_to_the_end, has_stages=True)
    for what, seed in _SEEDS
    for name, life, recovery in (
        ("recover {}", recover_by_command, recover_by_command),
        ("recover {}, then the sink", recover_by_command, restore_stages),
        ("clean {}", partial(clean_by_command, delete=False), restore_stages),
        ("clean --delete {}", partial(clean_by_command, delete=True), restore_stages),
    )
]

STAGES_CLEANED_TWICE = [
    Scenario(
        f"clean{' --delete' * delete} {what}, and clean again",
        partial(clean_by_command, delete=delete),
        seed,
        recovery=partial(clean_by_command, delete=delete),
        end=end_and_clean_stages,
        keeps_parts=True,
        has_stages=True,
    )
    for what, seed in _SEEDS
    for delete in (False, True)
]
