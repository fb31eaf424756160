"""The snapshot core: a checkpoint of 10 000 part handles from 200 subtasks against the least work it can be.

The least work is to encode the same models once and write them once with fsync, and to read and decode them once.
"""

from __future__ import annotations

import os
import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import partfile as pf
from figures import Report, figure_of_rounds
from partfile.sink.coordinator import Runtime
from partfile.sink.policies import PartNaming, PartNumber
from partfile.sink.states import OpenPart, SubtaskSnapshot
from partfile.snapshot.documents import InlineHandle
from partfile.snapshot.operator_state import ListStateDescriptor, OperatorStateStore, redistribute, write_operator_state
from partfile.snapshot.state_file import ModelCodec, decode_states
from partfile.snapshot.strategy import OperatorStateStrategy, SnapshotOptions
from partfile.snapshot.streams import MemoryStreamFactory
from partfile.stores.paths import new_token

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from partfile.snapshot.state_file import States
    from partfile.stores.base import PartHandle
    from scale import Scale

PARTS = 10_000
SUBTASKS = 200
NEW_SUBTASKS = 170
REPEATS = 5
PARTS_STATE = ListStateDescriptor("parts", ModelCodec(OpenPart, shares=True))


@dataclass(frozen=True, slots=True)
class Pair:
    """Least times of ours and of the baseline, in milliseconds, taken in turns."""

    ours_ms: float
    baseline_ms: float

    @property
    def ratio(self) -> float:
        """How many times the baseline ours takes."""
        return self.ours_ms / self.baseline_ms


def run(data: Path, work: Path, scale: Scale) -> Report:
    """Each round measures everything in turns; the first round of a process is dropped."""
    del data  # made on the fly
    report = Report()
    pairs: dict[str, list[Pair]] = {"complete": [], "restore": [], "rescale": [], "copy": []}
    for number in range(scale.rounds + 1):
        own = work / str(number)
        own.mkdir()
        found = {
            "complete": _complete(own),
            "restore": _restore(own),
            "rescale": _rescale(),
            "copy": _copy(own),
        }
        if number:
            for name, pair in found.items():
                pairs[name].append(pair)
            print("  " + ", ".join(f"{name} {pair.ratio:.2f}" for name, pair in found.items()), flush=True)
    shown = {
        "complete": ("completing 10 000 handles", 3.0, "encoding and writing them once"),
        "restore": ("restoring them", 3.0, "reading and decoding them once"),
        "rescale": ("rescaling 10 000 elements", 2.0, "5 000 elements; 200 subtasks to 170"),
        "copy": ("synchronous part", 1 / 20, "the whole snapshot of 10 000 elements"),
    }
    for name, (title, goal, against) in shown.items():
        last = pairs[name][-1]
        note = f"{last.ours_ms:.2f} ms against {last.baseline_ms:.2f} ms for {against}"
        report.figures.append(figure_of_rounds(title, [one.ratio for one in pairs[name]], goal, "at most", note))
    return report


def _complete(work: Path) -> Pair:
    snapshots = _snapshots()
    with _runtime(work) as runtime:
        coordinator = runtime.coordinator
        coordinator.start(lambda _position: None, 0)

        def ours() -> Callable[[], object]:
            pending = coordinator.trigger(1)
            return lambda: coordinator.complete(pending, snapshots, coordinator.state.position)

        return _in_turns(ours, lambda: lambda: _write_once(work / "once", snapshots))


def _restore(work: Path) -> Pair:
    """The checkpoint log that ``_complete`` left, and the file of its baseline."""
    with _runtime(work) as runtime:
        return _in_turns(lambda: runtime.coordinator.look, lambda: lambda: _read_once(work / "once"))


def _rescale() -> Pair:
    def prepared(parts: int) -> Callable[[], Callable[[], object]]:
        shares = [_states(snapshot.open) for snapshot in _snapshots(parts)]
        return lambda: lambda: redistribute(shares, NEW_SUBTASKS)

    return _in_turns(prepared(PARTS), prepared(PARTS // 2))


def _copy(work: Path) -> Pair:
    """The baseline is the whole snapshot here, of which the synchronous part is the beginning."""
    states = OperatorStateStore()
    states.list_state(PARTS_STATE).update(part for snapshot in _snapshots() for part in snapshot.open)
    strategy = OperatorStateStrategy(states)
    with _runtime(work) as runtime:
        streams = runtime.storage.stream_factory(1)
        return _in_turns(
            lambda: lambda: strategy.sync_prepare_resources(SnapshotOptions()),
            lambda: lambda: write_operator_state(states, streams),
        )


def _in_turns(ours: Callable[[], Callable[[], object]], baseline: Callable[[], Callable[[], object]]) -> Pair:
    """The least time of each over some repeats; each is prepared outside the time."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(REPEATS):
        for prepare, found in zip((ours, baseline), times, strict=True):
            work = prepare()
            began = time.perf_counter()
            work()
            found.append((time.perf_counter() - began) * 1000)
    return Pair(min(times[0]), min(times[1]))


def _runtime(work: Path) -> closing[Runtime]:
    rolling = pf.RollingPolicy(rollover_interval_s=1e6, inactivity_interval_s=1e6)
    return closing(Runtime(pf.FileSink(work / "base", uid="bench", rolling=rolling).settings, "bench"))


def _snapshots(parts: int = PARTS) -> list[SubtaskSnapshot]:
    naming, each = PartNaming(), parts // SUBTASKS
    return [
        SubtaskSnapshot(
            subtask=subtask,
            open=tuple(_open_part(naming, subtask, count) for count in range(each)),
            max_count=each,
        )
        for subtask in range(SUBTASKS)
    ]


def _open_part(naming: PartNaming, subtask: int, count: int) -> OpenPart:
    handle: PartHandle = naming.handle(
        f"year=2013/month=1/day={count}", PartNumber("a" * 8, subtask, count), suffix=".json.gz", token=new_token()
    )
    return OpenPart(
        part=handle.at(1_000_000 + count),
        count=count,
        schema_fingerprint="f" * 16,
        epoch=1,
        created_at_ms=1,
        last_write_ms=1,
        rows=1000,
    )


def _states(parts: tuple[OpenPart, ...]) -> States:
    states = OperatorStateStore()
    states.list_state(PARTS_STATE).update(parts)
    handle = write_operator_state(states, MemoryStreamFactory())
    return decode_states(handle.data if isinstance(handle, InlineHandle) else b"", "memory")


def _write_once(path: Path, snapshots: list[SubtaskSnapshot]) -> None:
    with path.open("wb") as file:
        for snapshot in snapshots:
            for part in snapshot.open:
                file.write(part.model_dump_json().encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _read_once(path: Path) -> list[OpenPart]:
    return [OpenPart.model_validate_json(line) for line in path.read_bytes().splitlines()]
