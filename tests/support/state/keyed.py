"""Keyed state in tests: states of each kind, a backend for each subtask, and its canonical file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from partfile.snapshot.keyed.codecs import Int64Codec, MsgpackCodec, TextCodec
from partfile.snapshot.keyed.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from partfile.snapshot.keyed.heap import HeapBackend
from partfile.snapshot.keyed.keyed_file import KeyedFile, encode_keyed_state
from partfile.snapshot.keyed.keys import KeyCodec, group_range

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partfile.snapshot.keyed.backend import KeyedStateBackend
    from partfile.snapshot.keyed.ttl import Ttl


MAX_PARALLELISM = 16
TEXT_KEYS = KeyCodec("string")
BACKENDS = [HeapBackend]


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


def backend_of(
    make: Any = HeapBackend, subtask: int = 0, parallelism: int = 1, files: Sequence[KeyedFile] = ()
) -> KeyedStateBackend:
    """The backend of one subtask, with text as keys."""
    made: KeyedStateBackend = make(
        TEXT_KEYS, group_range(subtask, parallelism, MAX_PARALLELISM), MAX_PARALLELISM, files
    )
    return made


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
