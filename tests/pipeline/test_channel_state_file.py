"""Channel state as bytes: batches come back as they were, and go to the subtasks of their keys."""

from __future__ import annotations

from decimal import Decimal
from itertools import groupby
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partfile.errors import CheckpointMismatch, SnapshotCorrupt, StateTooLarge
from partfile.pipeline import channel_state_file
from partfile.pipeline.channel_state import Side
from partfile.pipeline.channel_state_file import (
    BatchShare,
    ChannelInfo,
    ChannelStateFile,
    KeyShare,
    encode_channel_state,
    recovered,
)
from partfile.snapshot.documents import header_of
from partfile.snapshot.keyed.keys import KeyCodec, KeyGroupRange, group_of_hash, group_range, subtask_of_group

if TYPE_CHECKING:
    from collections.abc import Callable

GROUPS = 16
FIRST = ChannelInfo(side=Side.INPUT, edge="parse to count", peer=0)
SECOND = ChannelInfo(side=Side.INPUT, edge="parse to count", peer=1)
SENT = ChannelInfo(side=Side.OUTPUT, edge="count to sink", peer=0)
NUMBERS = pa.record_batch({"id": pa.array([1, 2, 3])})
WORDS = pa.record_batch({"word": pa.array(["a", None, "c"]).dictionary_encode()})
OTHER_WORDS = pa.record_batch({"word": pa.array(["x", "y", "x"]).dictionary_encode()})
NESTED = pa.record_batch(
    {
        "rows": pa.array([[{"price": Decimal("1.10")}], [], None]),
        "empty": pa.array([None, None, None]),
        "text": pa.array(["é", "", "z"], pa.large_string()),
    }
)


def file_of(*overtaken: tuple[ChannelInfo, list[pa.RecordBatch]]) -> ChannelStateFile:
    """The file of some batches."""
    data = encode_channel_state(overtaken)
    assert data is not None
    return ChannelStateFile(data, "a file")


@pytest.mark.item("UC-13", "UC-16", "UC-32")
def test_batches_come_back_by_channel_in_their_order() -> None:
    """Of several schemas, with dictionaries, nested values, metadata and none; a slice has its rows alone."""
    noted = NUMBERS.replace_schema_metadata({"from": "topic"})
    parts: tuple[tuple[ChannelInfo, list[pa.RecordBatch]], ...] = (
        (FIRST, [NUMBERS, NUMBERS.slice(1, 1), WORDS, OTHER_WORDS]),
        (SENT, [NESTED]),
        (FIRST, [noted, NUMBERS.slice(0, 0)]),
        (SECOND, []),
    )
    file = file_of(*parts)
    assert file.channels == (FIRST, SENT)
    found = list(file.batches(FIRST))
    expected = [*parts[0][1], *parts[2][1]]
    assert [batch.to_pylist() for batch in found] == [batch.to_pylist() for batch in expected]
    for batch, original in zip(found, expected, strict=True):
        assert batch.schema.equals(original.schema, check_metadata=True)
    assert list(file.batches(SENT)) == [NESTED]
    assert list(file.batches(SECOND)) == []
    assert len(encode_channel_state([(FIRST, [pa.record_batch({"id": range(1_000_000)}).slice(5, 1)])]) or b"") < 2000


@pytest.mark.item("UC-27")
def test_nothing_that_was_overtaken_is_no_file() -> None:
    """So the checkpoint names none."""
    assert encode_channel_state([]) is None
    assert encode_channel_state([(FIRST, []), (SENT, [])]) is None


def test_what_no_reader_would_take_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a checkpoint names it."""
    monkeypatch.setattr(channel_state_file, "MAX_PIECES", 1)
    assert encode_channel_state([(FIRST, [NUMBERS, NUMBERS])])
    with pytest.raises(StateTooLarge, match="in 2 pieces; allowed are") as raised:
        encode_channel_state([(FIRST, [NUMBERS, WORDS])])
    assert raised.value.hint.endswith("BarrierRules(is_unaligned=False)")
    # The longest index that is written can be read, and no longer one is written.
    data = encode_channel_state([(FIRST, [NUMBERS])])
    assert data is not None
    index_bytes = len(data.split(b"\n")[1])
    monkeypatch.setattr(channel_state_file, "_MAX_INDEX_BYTES", index_bytes + 1)
    assert encode_channel_state([(FIRST, [NUMBERS])]) == data
    assert list(ChannelStateFile(data, "a file").batches(FIRST)) == [NUMBERS]
    monkeypatch.setattr(channel_state_file, "_MAX_INDEX_BYTES", index_bytes)
    with pytest.raises(StateTooLarge, match="of what says where they are"):
        encode_channel_state([(FIRST, [NUMBERS])])


@pytest.mark.fault("M5")
def test_every_damaged_byte_is_refused() -> None:
    """Flipped, cut off there, or with one more at the end."""
    data = encode_channel_state([(FIRST, [NUMBERS]), (SENT, [WORDS])])
    assert data is not None
    for at in range(len(data)):
        for damaged in (data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :], data[:at]):
            with pytest.raises(SnapshotCorrupt, match="a file"):
                ChannelStateFile(damaged, "a file")
    with pytest.raises(SnapshotCorrupt):
        ChannelStateFile(data + b"\n", "a file")


def _with_body(change: Callable[[bytes], bytes]) -> bytes:
    data = encode_channel_state([(FIRST, [NUMBERS]), (SENT, [WORDS])])
    assert data is not None
    body = change(data.partition(b"\n")[2][:-1])
    return header_of("channel-state", body) + body + b"\n"


@pytest.mark.fault("M5")
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda body: body.replace(b'"offset":0', b'"offset":8'), "begins at 8, and the one before it ends at 0"),
        (lambda body: body + b"x", "its pieces have [0-9]+ bytes, and it has"),
        (lambda body: body.replace(b'"rows":3', b'"rows":4', 1), "has not the 4 rows of the index"),
        (lambda body: body.replace(b'"side":"input"', b'"side":"middle"'), "not a valid channel-state"),
        (lambda body: body.replace(b"\xff\xff\xff\xff", b"\x01\x00\x00\x00", 1), "is no stream of Arrow"),
        (lambda body: body.replace(b"\n", b" "), "not a valid channel-state"),
    ],
    ids=["gap", "more bytes", "other rows", "unknown side", "no stream", "no index"],
)
def test_a_file_with_a_right_checksum_and_a_wrong_content_is_refused(
    change: Callable[[bytes], bytes], problem: str
) -> None:
    """Where it is opened, or where its batches are read."""
    with pytest.raises(SnapshotCorrupt, match=problem):
        list(ChannelStateFile(_with_body(change), "a file").batches(FIRST))


KEYS = KeyCodec("string")


@given(
    old=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    new=st.integers(1, 8),
    sent=st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abcdefgh"), st.integers(0, 2)), max_size=60),
    is_keyed=st.booleans(),
)
@pytest.mark.item("UC-32")
def test_each_row_under_way_goes_to_one_subtask_in_the_order_of_its_key(
    old: tuple[int, int], new: int, sent: list[tuple[int, str, int]], is_keyed: bool
) -> None:
    """With any number of subtasks before and after. What had arrived comes before what waited to be sent."""
    senders, receivers = old
    under_way: dict[tuple[ChannelInfo, int], list[dict[str, object]]] = {}
    for number, (sender, key, place) in enumerate(sent):
        group = group_of_hash(KEYS.locate(key)[1], GROUPS)
        receiver = subtask_of_group(group, receivers, GROUPS)
        # What is sent later has not come further than what was sent before it.
        side = Side.INPUT if number * 2 < len(sent) else Side.OUTPUT
        at, peer = (receiver, sender % senders) if side is Side.INPUT else (sender % senders, receiver)
        channel = ChannelInfo(side=side, edge="e", peer=peer)
        row = {"key": key, "sender": sender % senders, "number": number, "place": place}
        under_way.setdefault((channel, at), []).append(row)
    files: dict[Side, dict[int, ChannelStateFile]] = {Side.INPUT: {}, Side.OUTPUT: {}}
    by_file = sorted(under_way, key=lambda one: (one[0].side.value, one[1]))
    for (side, at), channels in groupby(by_file, key=lambda one: (one[0].side, one[1])):
        other = (ChannelInfo(side=side, edge="another edge", peer=0), [NUMBERS])
        batches = [(one[0], [pa.RecordBatch.from_pylist([row]) for row in under_way[one]]) for one in list(channels)]
        files[side][at] = file_of(other, *batches)
    found: list[list[dict[str, object]]] = []
    for subtask in range(new):
        groups = group_range(subtask, new, GROUPS)
        share = KeyShare(("key",), groups, GROUPS) if is_keyed else BatchShare(subtask, new)
        rows = [
            row for batch in recovered("e", files[Side.INPUT], files[Side.OUTPUT], share) for row in batch.to_pylist()
        ]
        found.append(rows)
        if is_keyed:
            assert all(group_of_hash(KEYS.locate(row["key"])[1], GROUPS) in groups for row in rows)
    everything = [row["number"] for rows in found for row in rows]
    assert sorted(everything) == list(range(len(sent)))  # type: ignore[type-var]
    for rows in found:
        for key in "abcdefgh":
            for sender in range(senders):
                of_one = [row["number"] for row in rows if (row["key"], row["sender"]) == (key, sender)]
                assert of_one == sorted(of_one)  # type: ignore[type-var]
    if not is_keyed and new == receivers:
        for subtask, rows in enumerate(found):
            assert all(
                subtask_of_group(group_of_hash(KEYS.locate(str(row["key"]))[1], GROUPS), receivers, GROUPS) == subtask
                for row in rows
            )


def test_rows_under_way_without_the_key_of_the_job_are_refused() -> None:
    """The program was changed while they were under way: they would go to any subtask."""
    file = file_of((FIRST, [pa.record_batch({"id": [1], "price": [0.5]})]))
    for columns in (("name",), ("id", "name"), ("price",)):
        share = KeyShare(columns, KeyGroupRange(0, GROUPS - 1), GROUPS)
        with pytest.raises(
            CheckpointMismatch, match="under way on 'parse to count' have no key of the columns"
        ) as raised:
            list(recovered(FIRST.edge, {0: file}, {}, share))
        assert "they have id (int64), price (double)" in str(raised.value)
        assert raised.value.hint.startswith("Take a savepoint before the key is changed.")
