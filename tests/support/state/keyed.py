"""Keyed state in tests: states of each kind, a backend for each subtask, and its canonical file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from partfile.snapshot.keyed.codecs import Int64Codec, MsgpackCodec, TextCodec
from partfile.snapshot.keyed.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from partfile.snapshot.keyed.heap import HeapBackend
from partfile.snapshot.keyed.keyed_file import KeyedFile
from partfile.snapshot.keyed.keys import KeyCodec, group_range
from partfile.snapshot.keyed.pieces import MAX_PIECE_BYTES, canonical_files
from partfile.snapshot.keyed.rocksdb.backend import RocksDBBackend
from partfile.snapshot.keyed.rocksdb.database import RocksDBMemory, RocksDBOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from partfile.snapshot.keyed.backend import KeyedStateBackend
    from partfile.snapshot.keyed.keyed_file import KeyedSnapshotResources, RestoredRows
    from partfile.snapshot.keyed.states import AggregatingState, ListState, MapState, ReducingState, ValueState
    from partfile.snapshot.keyed.ttl import Ttl


MAX_PARALLELISM = 16
TEXT_KEYS = KeyCodec("string")
BACKENDS: list[type[KeyedStateBackend]] = [HeapBackend, RocksDBBackend]
_IN_MEMORY = Path("/dev/shm")  # noqa: S108 - a file system, below which each database has a directory of its own.
ROCKSDB = RocksDBOptions(directory=str(_IN_MEMORY) if os.access(_IN_MEMORY, os.W_OK) else None)
"""Where opening a database waits for no disk, if this machine has such a place."""


def value_of(ttl: Ttl | None = None, namespace: KeyCodec | None = None) -> ValueStateDescriptor[int]:
    return ValueStateDescriptor("value", Int64Codec(), ttl=ttl, namespace=namespace)


def list_of(ttl: Ttl | None = None, namespace: KeyCodec | None = None) -> ListStateDescriptor[str]:
    return ListStateDescriptor("list", TextCodec(), ttl=ttl, namespace=namespace)


def map_of(ttl: Ttl | None = None, namespace: KeyCodec | None = None) -> MapStateDescriptor[Any]:
    return MapStateDescriptor("map", KeyCodec("integer"), MsgpackCodec(), ttl=ttl, namespace=namespace)


def largest_of(ttl: Ttl | None = None, namespace: KeyCodec | None = None) -> ReducingStateDescriptor[int]:
    return ReducingStateDescriptor("largest", Int64Codec(), max, ttl=ttl, namespace=namespace)


def mean_of(ttl: Ttl | None = None, namespace: KeyCodec | None = None) -> AggregatingStateDescriptor[int, Any, float]:
    """The mean of what is added, whose accumulator is a list that ``add`` changes."""

    def add(held: list[int], value: int) -> list[int]:
        held[0] += value
        held[1] += 1
        return held

    return AggregatingStateDescriptor(
        "mean", MsgpackCodec(), lambda: [0, 0], add, lambda held: held[0] / held[1], ttl=ttl, namespace=namespace
    )


class States(NamedTuple):
    """A state of each kind."""

    value: ValueState[int]
    rows: ListState[str]
    pairs: MapState[Any]
    largest: ReducingState[int]
    mean: AggregatingState[int, Any, float]


def states_of(backend: KeyedStateBackend, ttl: Ttl | None = None, namespace: KeyCodec | None = None) -> States:
    """The five states of a backend."""
    return States(
        backend.value_state(value_of(ttl, namespace)),
        backend.list_state(list_of(ttl, namespace)),
        backend.map_state(map_of(ttl, namespace)),
        backend.reducing_state(largest_of(ttl, namespace)),
        backend.aggregating_state(mean_of(ttl, namespace)),
    )


def backend_of(
    make: Any = HeapBackend,
    subtask: int = 0,
    parallelism: int = 1,
    files: Sequence[RestoredRows] = (),
    *,
    is_told_time: bool = True,
) -> KeyedStateBackend:
    """The backend of one subtask, with text as keys, which is told that it is 1970 unless a test is to tell it."""
    options = {"options": ROCKSDB, "memory": RocksDBMemory(8 << 20)} if make is RocksDBBackend else {}
    made: KeyedStateBackend = make(
        TEXT_KEYS, group_range(subtask, parallelism, MAX_PARALLELISM), MAX_PARALLELISM, files, **options
    )
    if is_told_time:
        made.advance_time(0)
    return made


def encode_keyed_state(resources: KeyedSnapshotResources) -> bytes:
    """A view that is one canonical file."""
    (file,) = canonical_files(resources, MAX_PIECE_BYTES)
    return file.data


def file_of(backend: KeyedStateBackend) -> KeyedFile:
    """The canonical file of what a backend holds now."""
    return KeyedFile(bytes_of(backend), "a file of a test")


def bytes_of(backend: KeyedStateBackend) -> bytes:
    """The bytes of that file."""
    taken = backend.freeze()
    try:
        return encode_keyed_state(taken)
    finally:
        taken.release()


def filled(keys: int = 200, make: Any = HeapBackend) -> tuple[KeyedStateBackend, Callable[[int], None]]:
    """A backend with values, lists and maps, and what changes all of them by a number."""
    backend = backend_of(make)
    value, rows, pairs = backend.value_state(value_of()), backend.list_state(list_of()), backend.map_state(map_of())
    mean = backend.aggregating_state(mean_of())

    def change(number: int) -> None:
        for key in range(keys):
            backend.set_current_key(f"key {key}")
            value.update(number)
            rows.add(f"{number}")
            pairs.put(number, [number])
            if number % 2:
                pairs.remove(number - 1)
            mean.add(number)

    return backend, change
