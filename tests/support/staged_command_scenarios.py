"""The command line over staged parts, as the crash harness kills it: see ``command_scenarios``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from command_scenarios import clean_by_command, recover_by_command
from crash_scenarios import Scenario
from life_cycle import LONG, batch
from staged_scenarios import (
    leave_a_shared_stage_with_a_tail,
    leave_stages_with_a_tail,
    restore_stages,
    shared_sink,
    stages_to_the_end,
)
from staged_streams import STAGED

from partfile.testing.faults import SimulatedCrash

if TYPE_CHECKING:
    from crash_worlds import Process

    from partfile.sink.file_sink import FileSink
    from partfile.stores.base import PartHandle


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
