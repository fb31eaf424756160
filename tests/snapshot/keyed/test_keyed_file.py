"""The canonical file of keyed state: its bytes, what damage does, and what a restore takes from several of them."""

from __future__ import annotations

import json
import struct
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partfile.errors import ConfigError, RecoveryRefused, SnapshotCorrupt, SnapshotVersionError
from partfile.snapshot.documents import encode_body
from partfile.snapshot.keyed import keyed_file
from partfile.snapshot.keyed.codecs import Int64Codec, TextCodec
from partfile.snapshot.keyed.descriptors import ListStateDescriptor, ValueStateDescriptor
from partfile.snapshot.keyed.heap import HeapBackend
from partfile.snapshot.keyed.keyed_file import KeyedFile
from partfile.snapshot.keyed.keys import KeyCodec, KeyGroupRange, group_of_hash
from partfile.snapshot.keyed.rocksdb.backend import RocksDBBackend
from partfile.snapshot.keyed.ttl import Ttl
from support.state.keyed import (
    BACKENDS,
    MAX_PARALLELISM,
    TEXT_KEYS,
    backend_of,
    bytes_of,
    list_of,
    map_of,
    mean_of,
    value_of,
)

if TYPE_CHECKING:
    from partfile.snapshot.keyed.backend import KeyedStateBackend

GOLDEN = Path(__file__).parent / "golden" / "1"


def golden(make: Any = HeapBackend) -> KeyedStateBackend:
    """State of each kind, with times and namespaces and without."""
    backend = backend_of(make)
    backend.advance_time(1_764_288_000_000)
    hours = KeyCodec("integer")
    value, rows = backend.value_state(value_of()), backend.list_state(list_of(Ttl("1 day")))
    pairs, mean = backend.map_state(map_of(namespace=hours)), backend.aggregating_state(mean_of(Ttl("1 day")))
    for number in range(40):
        backend.set_current_key(f"key {number % 30}")
        value.update(number)
        rows.add_all([f"{number}", "ä"])
        pairs.set_namespace(number % 3)
        pairs.put(number, {"n": [number, None, 1.5]})
        mean.add(number)
    return backend


@pytest.mark.item("SP-12", "SB-11", "TT-01")
@pytest.mark.parametrize("make", BACKENDS)
def test_the_bytes_are_those_of_the_first_version(make: Any) -> None:
    """Of each backend, for ever: a file that was written once is read by every later version."""
    assert bytes_of(golden(make)) == (GOLDEN / "keyed.state").read_bytes()


@pytest.mark.item("SB-11")
@pytest.mark.parametrize("makes", [BACKENDS, BACKENDS[::-1]])
def test_a_file_of_one_backend_restores_into_the_other(makes: Any) -> None:
    """Byte for byte, with all states registered."""
    expected = bytes_of(golden(makes[0]))
    other = backend_of(makes[1], files=[KeyedFile(expected, "file")])
    other.value_state(value_of())
    other.list_state(list_of(Ttl("1 day")))
    other.map_state(map_of(namespace=KeyCodec("integer")))
    other.aggregating_state(mean_of(Ttl("1 day")))
    assert bytes_of(other) == expected


@pytest.mark.item("SS-09", "SS-12", "SS-13", "SS-16")
def test_the_layout_is_the_one_in_the_documents() -> None:
    """Read with nothing but its description: groups in order, in each the states by id, rows ascending."""
    data = bytes_of(golden())
    header, index_line, blocks = data.split(b"\n", 2)
    assert header.startswith(b"partfile keyed-state 1 ")
    index = json.loads(index_line)
    assert (index["key"], index["max_parallelism"], index["first_group"]) == (["string"], MAX_PARALLELISM, 0)
    assert [state["name"] for state in index["states"]] == ["list", "map", "mean", "value"]
    assert len(index["offsets"]) == MAX_PARALLELISM
    found: dict[str, list[bytes]] = {state["name"]: [] for state in index["states"]}
    bounds = [*index["offsets"], len(blocks) - 1]
    for group, (start, end) in enumerate(pairwise(bounds)):
        at, ids = start, []
        while at < end:
            state_id, count, row_bytes, value_bytes = struct.unpack_from("<4Q", blocks, at)
            lengths = struct.unpack_from(f"<{count}I", blocks, at + 32)
            at += 32 + 8 * count
            rows, cut = [], at
            for length in lengths:
                rows.append(blocks[cut : cut + length])
                cut += length
            assert rows == sorted(rows)
            for row in rows:
                key = row[1 : 1 + row[0]]
                assert group_of_hash(TEXT_KEYS.locate(key.decode())[1], MAX_PARALLELISM) == group
            found[index["states"][state_id]["name"]] += rows
            ids.append(state_id)
            at += row_bytes + value_bytes
        assert at == end
        assert ids == sorted(set(ids))
    assert {name: len(rows) for name, rows in found.items()} == {"list": 80, "map": 40, "mean": 30, "value": 30}
    assert b"\x05key 7\0\0\0\0\0\0\0\0\0" in found["list"]
    assert b"\x05key 7\x08\1\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0" in found["map"]


@pytest.mark.item("SS-11")
def test_a_group_is_read_without_the_others() -> None:
    """By its offset; a group without rows has one too."""
    file = KeyedFile(bytes_of(golden()), "file")
    (group,) = {group_of_hash(TEXT_KEYS.locate("key 7")[1], MAX_PARALLELISM)}
    held = dict(file.rows(group))
    assert b"\x05key 7\0" in held["value"][0]
    assert sum(len(rows) for one in file.groups for _, (rows, _) in file.rows(one)) == 180
    empty = backend_of()
    empty.value_state(value_of())
    empty_file = KeyedFile(bytes_of(empty), "file")
    assert [list(empty_file.rows(group)) for group in empty_file.groups] == [[]] * MAX_PARALLELISM


@pytest.mark.item("SS-10")
@given(st.data())
def test_damage_is_noticed(data: st.DataObject) -> None:
    """One byte changed, some cut off, some added."""
    whole = bytes_of(golden())
    at = data.draw(st.integers(0, len(whole) - 1))
    byte = data.draw(st.integers(1, 255))
    changed = whole[:at] + bytes((whole[at] ^ byte,)) + whole[at + 1 :]
    for damaged in (changed, whole[:at], whole + b"\0"):
        with pytest.raises((SnapshotCorrupt, SnapshotVersionError)):
            KeyedFile(damaged, "file")


KEY = next(letter for letter in "abcdefgh" if group_of_hash(TEXT_KEYS.locate(letter)[1], 2) == 0).encode()
OTHER = next(letter for letter in "abcdefgh" if group_of_hash(TEXT_KEYS.locate(letter)[1], 2) == 1).encode()
"""Of the first key group of two, and of the second."""
ROW = b"\1" + KEY + b"\0"


def made_up(blocks: bytes, **changes: Any) -> bytes:
    """A document with the right checksum and one state."""
    index = {
        "key": ["string"],
        "max_parallelism": 2,
        "first_group": 0,
        "offsets": [0, len(blocks)],
        "states": [
            {
                "name": "value",
                "type": "KEY_VALUE",
                "mode": "key-groups",
                "codecs": {"element": {"name": "int64", "version": 1}},
                "options": {"kind": "value", "expires": "no"},
            }
        ],
        **changes,
    }
    return encode_body(keyed_file.SCHEMA, json.dumps(index).encode(), b"\n", blocks)


def block(state_id: int = 0, count: int = 1, rows: bytes = ROW, values: bytes = b"12345678", **lengths: int) -> bytes:
    """A block of one row."""
    row_length, value_length = lengths.get("row", len(rows)), lengths.get("value", len(values))
    sizes = struct.pack("<4Q", state_id, count, lengths.get("rows", len(rows)), lengths.get("values", len(values)))
    return sizes + struct.pack("<2I", row_length, value_length) + rows + values


@pytest.mark.parametrize(
    "changes",
    [
        {"offsets": [1, 0]},
        {"offsets": [0, 10_000]},
        {"offsets": [5, 5]},
        {"first_group": 1},
        {"offsets": [0, 0, 0]},
        {"offsets": []},
        {"key": []},
        {"states": []},
        {"max_parallelism": 0},
        {"more": 1},
    ],
)
def test_a_made_up_index_is_refused(changes: dict[str, Any]) -> None:
    """With a right checksum: before any row is looked at, or when it is."""
    with pytest.raises(SnapshotCorrupt):
        backend_of_two(made_up(block(), **changes))


@pytest.mark.parametrize(
    "blocks",
    [
        block()[:20],
        block(state_id=1),
        block() + block(),
        block(count=0),
        block(count=1 << 40),
        block(rows=b"\1a\0", row=4),
        block(value=7),
        block(values=b"12345678", rows=b"\1a\0", value=9),
        block()[:-1],
    ],
)
def test_made_up_rows_are_refused(blocks: bytes) -> None:
    """Before a state has them."""
    with pytest.raises(SnapshotCorrupt, match="file is not a valid keyed-state document"):
        backend_of_two(made_up(blocks))


LIST_ROWS = [b"\5a\0", b"\1a", b"", ROW, ROW + bytes(7), ROW + bytes(7) + b"\1", ROW[:-1] + b"\1a" + bytes(8)]


@pytest.mark.parametrize("make", BACKENDS)
@pytest.mark.parametrize("rows", [*LIST_ROWS, b"\1" + OTHER + bytes(9), b"\x80\0\0\1" + KEY + bytes(9)])
def test_rows_that_are_no_rows_of_a_list_are_refused(rows: bytes, make: Any) -> None:
    """They end within the key, have no place or a wrong one, a namespace, or a key of another key group."""
    data = made_up(block(rows=rows, values=b"x"), states=[info("list", "text")])
    with pytest.raises(SnapshotCorrupt):
        backend_of_two(data, make).list_state(ListStateDescriptor("list", TextCodec()))


@pytest.mark.parametrize("make", BACKENDS)
@pytest.mark.parametrize("rows", [b"", b"\xff\xff", ROW + b"x", b"\1" + OTHER + b"\0"])
def test_rows_that_are_no_rows_of_values_are_refused(rows: bytes, make: Any) -> None:
    """Before the state has any."""
    with pytest.raises(SnapshotCorrupt):
        backend_of_two(made_up(block(rows=rows)), make).value_state(ValueStateDescriptor("value", Int64Codec()))


def test_rows_that_do_not_ascend_are_refused() -> None:
    """Two that are equal, or in another order: one of them would be lost."""
    for first, second in ((ROW, ROW), (b"\1z\0", ROW)):
        sizes = struct.pack("<4Q", 0, 2, len(first) + len(second), 16) + struct.pack(
            "<4I", len(first), len(second), 8, 8
        )
        with pytest.raises(SnapshotCorrupt, match="the rows in key group 0 do not ascend"):
            backend_of_two(made_up(sizes + first + second + bytes(16)))


@pytest.mark.parametrize(
    "changes",
    [
        {"type": "OPERATOR", "mode": "split"},
        {"type": "PRIORITY_QUEUE"},
        {"options": {"kind": "heap", "expires": "no"}},
        {"options": {"kind": "value", "expires": "perhaps"}},
        {"options": {"kind": "value"}},
        {"codecs": {}},
        {"codecs": {"element": {"name": "int64", "version": 1}, "key": {"name": "key/string", "version": 1}}},
    ],
)
def test_a_state_that_is_no_keyed_state_is_refused(changes: dict[str, Any]) -> None:
    """Of operators, of timers, or of a kind that there is not."""
    with pytest.raises(SnapshotCorrupt, match="'value' is no keyed state"):
        backend_of_two(made_up(block(), states=[info("value", "int64") | changes]))


def info(kind: str, codec: str) -> dict[str, Any]:
    """A state as the index has it."""
    codecs = {"element": {"name": codec, "version": 1}}
    options = {"kind": kind, "expires": "no"}
    return {"name": kind, "type": "KEY_VALUE", "mode": "key-groups", "codecs": codecs, "options": options}


def backend_of_two(data: bytes, make: Any = HeapBackend) -> KeyedStateBackend:
    """A backend of two key groups that begins with a document."""
    made: KeyedStateBackend = make(TEXT_KEYS, KeyGroupRange(0, 1), 2, [KeyedFile(data, "file")])
    return made


@pytest.mark.parametrize("make", BACKENDS)
def test_a_row_that_is_right_is_taken(make: Any) -> None:
    """The made-up documents above differ in one thing each."""
    backend = backend_of_two(made_up(block()), make)
    state = backend.value_state(ValueStateDescriptor("value", Int64Codec()))
    backend.set_current_key(KEY.decode())
    assert state.value() == int.from_bytes(b"12345678", "big")


# Several files.


@pytest.mark.item("SP-23", "KS-02")
@pytest.mark.parametrize(
    ("make", "parallelism"), [*((HeapBackend, at) for at in range(1, 9)), (RocksDBBackend, 2), (RocksDBBackend, 5)]
)
def test_rescaling_moves_rows_with_their_key_groups(make: Any, parallelism: int) -> None:
    """From three subtasks to one to eight: each key has its state in its new subtask, and none twice."""
    whole = KeyedFile(bytes_of(golden()), "whole")
    thirds = [backend_of(make, subtask, 3, [whole]) for subtask in range(3)]
    files = [KeyedFile(bytes_of(third), f"third {at}") for at, third in enumerate(thirds)]
    scaled = [backend_of(make, subtask, parallelism, files) for subtask in range(parallelism)]
    joined = backend_of(files=[KeyedFile(bytes_of(one), f"{at}") for at, one in enumerate(scaled)])
    assert bytes_of(joined) == bytes_of(golden())
    found = {}
    for backend in scaled:
        state = backend.value_state(value_of())
        for number in range(30):
            try:
                backend.set_current_key(f"key {number}")
            except ConfigError:
                continue
            assert number not in found
            found[number] = state.value()
    assert found == {number: number + 30 if number < 10 else number for number in range(30)}


@pytest.mark.item("LT-11")
def test_keys_and_their_groups_are_fixed_with_the_first_checkpoint() -> None:
    """Another kind of key, or another number of groups, is refused before anything is taken."""
    file = KeyedFile(bytes_of(golden()), "a file")
    with pytest.raises(ConfigError, match="a file has keys of the kind string, not integer"):
        HeapBackend(KeyCodec("integer"), KeyGroupRange(0, 15), 16, [file])
    with pytest.raises(ConfigError, match="a file has 16 key groups, and max_parallelism is 32"):
        HeapBackend(TEXT_KEYS, KeyGroupRange(0, 15), 32, [file])
    with pytest.raises(ConfigError, match="key group 15 is beyond max_parallelism=8"):
        HeapBackend(TEXT_KEYS, KeyGroupRange(0, 15), 8)


def test_files_that_contradict_each_other_are_refused() -> None:
    """Two hold one key group, or one name stands for two states."""
    file, again = KeyedFile(bytes_of(golden()), "one"), KeyedFile(bytes_of(golden()), "other")
    with pytest.raises(SnapshotCorrupt, match="one and other both hold key group 0"):
        backend_of(files=[file, again])
    halves = [backend_of(subtask=subtask, parallelism=2) for subtask in range(2)]
    halves[0].value_state(value_of())
    halves[1].value_state(value_of(Ttl(60)))
    files = [KeyedFile(bytes_of(half), "half") for half in halves]
    with pytest.raises(RecoveryRefused, match="state 'value' of half is not that of another file"):
        backend_of(files=files)
