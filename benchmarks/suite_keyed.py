"""Keyed state: what an access costs on each backend beside Quix Streams' state, and what a snapshot costs.

CPU seconds of one thread, keys in an order that is not that of their rows. An access chooses a key, gets its count and
puts the next one, which is what counting is.
"""

from __future__ import annotations

import gc
import os
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from environments import QUIX
from figures import Report, figure_of_rounds
from partfile.snapshot.keyed.codecs import BytesCodec, Int64Codec
from partfile.snapshot.keyed.descriptors import ValueStateDescriptor
from partfile.snapshot.keyed.heap import HeapBackend
from partfile.snapshot.keyed.keyed_file import KeyedFile
from partfile.snapshot.keyed.keys import KeyCodec, group_range
from partfile.snapshot.keyed.pieces import DEFAULT_PIECE_BYTES, canonical_files
from partfile.snapshot.keyed.rocksdb.backend import RocksDBBackend
from partfile.snapshot.keyed.rocksdb.database import RocksDBMemory, RocksDBOptions
from partfile.snapshot.keyed.rocksdb.incremental import IncrementalStrategy
from partfile.snapshot.keyed.ttl import Ttl
from partfile.snapshot.storage import CheckpointStorage
from partfile.snapshot.strategy import SnapshotOptions, StrategyRunner
from partfile.stores.local.store import LocalStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from partfile.snapshot.keyed.backend import KeyedStateBackend
    from partfile.snapshot.keyed.states import ValueState
    from scale import Scale

KEYS = 200_000
LARGE = 1_000_000
"""Entries of the state whose synchronous part is measured."""
PASSES = 5
TRIES = 6
"""So often five passes are measured for a figure that is compared with a number, with a pause behind each."""
PAUSE_S = 1
ROWS = 1000
"""Of a batch."""
GROUPS = 128
TEXT = KeyCodec("string")
BUDGET_BYTES = 64 << 20
STATES = 8


class _Costs(NamedTuple):
    heap_us: float
    """CPU of an access to a key that is there, in microseconds."""
    heap_ttl_us: float
    undisturbed_us: float
    """The same, the quickest of 30 passes."""
    undisturbed_batch_us: float
    """Of a key among many that are handed over at once, likewise."""
    rocksdb_us: float
    quix_us: float
    sync_ms: float
    """Wall time of the synchronous part of a large state on the heap."""
    heap_export: float
    """Entries a second of CPU."""
    rocksdb_export: float
    usage: float
    """The most memory that RocksDB used / its budget."""
    increment: float
    """Bytes of an incremental snapshot after one row in a hundred was changed / bytes of the first one."""


def run(data: Path, work: Path, scale: Scale) -> Report:
    """Each round measures everything; the first round of a process is dropped."""
    del data  # made on the fly
    report, rounds = Report(), list[_Costs]()
    for number in range(scale.rounds + 1):
        own = work / str(number)
        own.mkdir()
        found = _round(own, scale)
        if number:
            rounds.append(found)
            print(
                f"  an access: heap {found.heap_us:.2f} us, RocksDB {found.rocksdb_us:.2f}, Quix {found.quix_us:.2f}",
                flush=True,
            )
    last = rounds[-1]
    per_access = f"{last.heap_us:.2f}, {last.rocksdb_us:.2f} and {last.quix_us:.2f} us of CPU an access"
    at_least = (
        *_accesses(rounds),
        ("keyed: heap, speed / Quix", [one.quix_us / one.heap_us for one in rounds], 5.0, per_access),
        ("keyed: RocksDB, speed / Quix", [one.quix_us / one.rocksdb_us for one in rounds], 1.0, per_access),
        (
            "keyed: canonical export of the heap, 400 000 entries/s",
            [one.heap_export / 400_000 for one in rounds],
            1.0,
            f"{last.heap_export:.0f} entries/s of CPU",
        ),
        (
            "keyed: canonical export of RocksDB, 400 000 entries/s",
            [one.rocksdb_export / 400_000 for one in rounds],
            1.0,
            f"{last.rocksdb_export:.0f} entries/s of CPU",
        ),
    )
    at_most = (
        (
            "keyed: an access with time to live / without, heap",
            [one.heap_ttl_us / one.heap_us for one in rounds],
            1.3,
            f"{last.heap_ttl_us:.2f} and {last.heap_us:.2f} us",
        ),
        (
            f"keyed: synchronous part of {scale.of(LARGE, KEYS)} entries, ms",
            [one.sync_ms for one in rounds],
            5.0,
            "the heap",
        ),
        (
            f"keyed: memory of RocksDB with {STATES} states / its budget",
            [one.usage for one in rounds],
            1.1,
            f"{BUDGET_BYTES >> 20} MiB",
        ),
        (
            "keyed: bytes of an incremental snapshot after changing 1 % / of all",
            [one.increment for one in rounds],
            0.1,
            f"{scale.of(KEYS, 20_000)} entries of 200 bytes",
        ),
    )
    for title, ratios, goal, note in at_least:
        report.figures.append(figure_of_rounds(title, ratios, goal, "at least", note))
    for title, ratios, goal, note in at_most:
        report.figures.append(figure_of_rounds(title, ratios, goal, "at most", note))
    return report


def _accesses(rounds: list[_Costs]) -> list[tuple[str, list[float], float, str]]:
    """The two figures that are compared with a number: title, rounds, goal and note."""
    one_us, many_us = [one.undisturbed_us for one in rounds], [one.undisturbed_batch_us for one in rounds]
    return [
        (
            f"keyed: get and put{what} on the heap, 1 M/s of CPU",
            [2 / us for us in found],
            1.0,
            f"{found[-1]:.2f} us a key",
        )
        for what, found in (("", one_us), (" of many keys at once", many_us))
    ]


def _round(work: Path, scale: Scale) -> _Costs:
    rows = scale.of(KEYS, 20_000)
    keys = [f"key {row * 7919 % rows}" for row in range(rows)]
    heap, heap_ttl, rocksdb = _heap(), _heap(), _rocksdb(work / "rocksdb")
    heap_us, heap_ttl_us = _access_us([(heap, None), (heap_ttl, Ttl("1 day"))], keys)
    undisturbed_us, undisturbed_batch_us = _undisturbed_us(heap, keys)
    heap_export = _export(heap, rows)
    (rocksdb_us,), rocksdb_export = _access_us([(rocksdb, None)], keys), _export(rocksdb, rows)
    rocksdb.close()
    quix = QUIX.answer("quix_state.py", work / "quix", rows)
    return _Costs(
        heap_us=heap_us,
        heap_ttl_us=heap_ttl_us,
        undisturbed_us=undisturbed_us,
        undisturbed_batch_us=undisturbed_batch_us,
        rocksdb_us=rocksdb_us,
        quix_us=quix["known_s"] / rows * 1e6,
        sync_ms=_sync_ms(scale.of(LARGE, KEYS)),
        heap_export=heap_export,
        rocksdb_export=rocksdb_export,
        usage=_usage(work / "memory", scale.of(3000, 1000)),
        increment=_increment(work, rows),
    )


def _heap() -> KeyedStateBackend:
    return HeapBackend(TEXT, group_range(0, 1, GROUPS), GROUPS)


def _rocksdb(directory: Path, memory: RocksDBMemory | None = None) -> RocksDBBackend:
    options = RocksDBOptions(directory=str(directory))
    return RocksDBBackend(TEXT, group_range(0, 1, GROUPS), GROUPS, options=options, memory=memory)


def _access_us(backends: Sequence[tuple[KeyedStateBackend, Ttl | None]], keys: list[str]) -> list[float]:
    """Of each backend, the quickest of some passes over all keys, in turns: others' load only makes one slower."""
    counts: list[Callable[[], None]] = []
    for backend, ttl in backends:
        backend.advance_time(1_700_000_000_000)
        state = backend.value_state(ValueStateDescriptor("count", Int64Codec(), ttl=ttl))
        counts.append(partial(_count, backend, state, keys))
        counts[-1]()
    passes = [[_cpu_s(count) for count in counts] for _ in range(PASSES)]
    return [min(took_s) / len(keys) * 1e6 for took_s in zip(*passes, strict=True)]


def _undisturbed_us(backend: KeyedStateBackend, keys: list[str]) -> tuple[float, float]:
    """An access by one key and by many, each the quickest of 30 passes, with pauses in between.

    Another user of the processor makes each slower by a factor of two and more, also in its own CPU time. What is
    compared with a peer is measured as often as the peer; this is compared with a number.
    """
    one_us, many_us = [], []
    for _ in range(TRIES):
        one_us += _access_us([(backend, None)], keys)
        many_us.append(_batch_us(backend, keys))
        time.sleep(PAUSE_S)
    return min(one_us), min(many_us)


def _batch_us(backend: KeyedStateBackend, keys: list[str]) -> float:
    """The same by the columns of a thousand rows, the quickest of some passes."""
    state = backend.value_state(ValueStateDescriptor("count", Int64Codec()))
    column = pa.array(keys)

    def count() -> None:
        for begin in range(0, len(keys), ROWS):
            found = backend.key_batch(column.slice(begin, ROWS))
            state.update_batch(found, [(known or 0) + 1 for known in state.value_batch(found)])

    return min(_cpu_s(count) for _ in range(PASSES)) / len(keys) * 1e6


def _count(backend: KeyedStateBackend, state: ValueState[int], keys: list[str]) -> None:
    for key in keys:
        backend.set_current_key(key)
        state.update((state.value() or 0) + 1)


def _export(backend: KeyedStateBackend, entries: int) -> float:
    def export() -> None:
        taken = backend.freeze()
        for file in canonical_files(taken, DEFAULT_PIECE_BYTES):
            KeyedFile(file.data, "a benchmark")
        taken.release()

    return entries / _cpu_s(export)


def _sync_ms(entries: int) -> float:
    backend = _heap()
    state = backend.value_state(ValueStateDescriptor("count", Int64Codec()))
    for key in range(entries):
        backend.set_current_key(f"key {key}")
        state.update(key)
    # A collection of garbage that happens to fall here is not the snapshot's.
    gc.collect()
    began = time.perf_counter()
    taken = backend.freeze()
    ended = time.perf_counter()
    taken.release()
    return (ended - began) * 1000


def _usage(directory: Path, keys: int) -> float:
    memory = RocksDBMemory(BUDGET_BYTES)
    backend = _rocksdb(directory, memory)
    states = [backend.value_state(ValueStateDescriptor(f"state {at}", BytesCodec())) for at in range(STATES)]
    most = 0
    for key in range(keys):
        backend.set_current_key(f"key {key}")
        for state in states:
            state.update(bytes(8000))
        most = max(most, memory.usage_bytes)
    for key in range(keys):
        backend.set_current_key(f"key {key}")
        for state in states:
            state.value()
        most = max(most, memory.usage_bytes)
    backend.close()
    return most / BUDGET_BYTES


def _increment(work: Path, entries: int) -> float:
    backend = _rocksdb(work / "incremental")
    state = backend.value_state(ValueStateDescriptor("state", BytesCodec()))
    strategy = IncrementalStrategy(backend)
    with LocalStore(str(work / "checkpoints")) as store:
        storage, written = CheckpointStorage(store, "job"), [0]
        for checkpoint_id, step in ((1, 1), (2, 100)):
            for key in range(0, entries, step):
                backend.set_current_key(f"key {key}")
                state.update(os.urandom(200))
            streams = storage.stream_factory(checkpoint_id)
            StrategyRunner(strategy).snapshot(checkpoint_id, 0, streams, SnapshotOptions()).result()
            strategy.confirm(checkpoint_id)
            files = (path for path in (work / "checkpoints").rglob("*") if path.is_file())
            written.append(sum(path.stat().st_size for path in files))
    backend.close()
    return (written[2] - written[1]) / written[1]


def _cpu_s(act: Callable[[], None]) -> float:
    gc.collect()
    began = time.process_time()
    act()
    return time.process_time() - began
