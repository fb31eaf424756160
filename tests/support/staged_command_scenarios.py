"""The command line over staged parts, as the crash harness kills it: see ``command_scenarios``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from command_scenarios import clean_by_command, recover_by_command
from crash_scenarios import Scenario
from life_cycle import LONG, batch
from staged_scenarios import leave_stages_with_a_tail, restore_stages, stages_to_the_end
from staged_streams import STAGED

from partfile.filesystems.faults import SimulatedCrash

if TYPE_CHECKING:
    from crash_worlds import Process

    from partfile.filesystems.port import PartHandle


class _Dying:
    """In place of what encodes: encodes, and then the process is gone."""

    def __init__(self, encode: object) -> None:
        self._encode = encode

    def encode(self, stages: object) -> list[PartHandle]:
        self._encode(stages)  # type: ignore[operator]
        raise SimulatedCrash("dead before a checkpoint names the files")


def orphan_stages_and_a_tail(process: Process) -> None:
    """Stages that no checkpoint names; files that were encoded for none; and open stages that one vouches for."""
    out = process.sink(rolling=LONG, **STAGED).local().open()
    out.write(batch(0, 4), position=4)
    for part in out._operator._active.values():
        part.flush()
    leave_stages_with_a_tail(process)
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


STAGED_COMMANDS = [
    Scenario(name, life, orphan_stages_and_a_tail, recovery=recovery, end=stages_to_the_end, has_stages=True)
    for name, life, recovery in (
        ("recover stages", recover_by_command, recover_by_command),
        ("recover stages, then the sink", recover_by_command, restore_stages),
        ("clean stages", partial(clean_by_command, delete=False), restore_stages),
        ("clean --delete stages", partial(clean_by_command, delete=True), restore_stages),
    )
]

STAGES_CLEANED_TWICE = [
    Scenario(
        f"clean{' --delete' * delete} stages, and clean again",
        partial(clean_by_command, delete=delete),
        orphan_stages_and_a_tail,
        recovery=partial(clean_by_command, delete=delete),
        end=end_and_clean_stages,
        keeps_parts=True,
        has_stages=True,
    )
    for delete in (False, True)
]
