"""The encoding of operator state: elements are found by offset, and nothing damaged is believed."""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partfile.errors import SnapshotCorrupt, SnapshotVersionError, StateTooLarge
from partfile.snapshot import state_file
from partfile.snapshot.documents import FORMAT_VERSION
from partfile.snapshot.state_file import CodecInfo, Mode, StateFile, StateMetaInfo, decode_states, encode_states

if TYPE_CHECKING:
    from collections.abc import Callable

JSON = CodecInfo(name="json", version=1)


def info(name: str, mode: Mode = "split") -> StateMetaInfo:
    kind = {"broadcast": "BROADCAST", "key-groups": "KEY_VALUE"}.get(mode, "OPERATOR")
    return StateMetaInfo.model_validate({"name": name, "type": kind, "mode": mode, "codecs": {"element": JSON}})


SAMPLE = [(info("a"), [b'{"x":1}', b"2", b""]), (info("m", "broadcast"), [b"[[1,2]]"]), (info("empty"), [])]


def damaged(change: Callable[[list[dict[str, object]]], object], lines: bytes = b"aa\nbb\ncc\n") -> bytes:
    """A file with a right checksum whose index, of one state of three elements, was changed."""
    states: list[dict[str, object]] = [{"info": info("s").model_dump(), "offsets": [0, 3, 6]}]
    change(states)
    body = (json.dumps({"states": states}).encode() + b"\n" + lines)[:-1]
    return f"partfile state 1 {len(body)} {zlib.crc32(body):08x}\n".encode() + body + b"\n"


@pytest.mark.item("SS-33")
def test_the_layout() -> None:
    """After the header: one line of meta information and offsets, then each element on a line of its own."""
    header, index, *lines = encode_states(SAMPLE).split(b"\n")
    assert header.startswith(f"partfile state {FORMAT_VERSION} ".encode())
    states = json.loads(index)["states"]
    assert [(state["info"]["name"], state["offsets"]) for state in states] == [
        ("a", [0, 8, 10]),
        ("m", [11]),
        ("empty", []),
    ]
    assert lines == [b'{"x":1}', b"2", b"", b"[[1,2]]", b""]


@pytest.mark.item("SS-33")
def test_one_element_is_read_by_its_offset() -> None:
    """An element is found without the others, whatever they hold."""
    data = encode_states([(info("a"), [b"not json", b'"mine"', b"\xff\x00"]), (info("b"), [b"1"])])
    file = StateFile(data, "x.state")
    assert file.element("a", 1) == b'"mine"'
    assert file.element("b", 0) == b"1"
    assert file.count("a") == 3
    assert [one.name for one in file.infos] == ["a", "b"]


@pytest.mark.item("SS-33")
@given(st.dictionaries(st.text(min_size=1, max_size=3), st.lists(st.binary(max_size=6), max_size=5), max_size=4))
def test_states_round_trip(states: dict[str, list[bytes]]) -> None:
    """Any names and any bytes, line feeds among them, come back in order."""
    decoded = decode_states(encode_states([(info(name), elements) for name, elements in states.items()]), "x.state")
    assert {name: list(state.elements) for name, state in decoded.items()} == states
    assert {name: state.info for name, state in decoded.items()} == {name: info(name) for name in states}


@pytest.mark.item("SS-33")
def test_truncation_and_flips_are_noticed() -> None:
    """No prefix and no single damaged byte is read as state."""
    data = encode_states(SAMPLE)
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 0x01
        for bad in (data[:place], bytes(flipped)):
            with pytest.raises((SnapshotCorrupt, SnapshotVersionError)):
                decode_states(bad, "x.state")


def test_a_newer_format_is_refused() -> None:
    """A state file of a later version says so."""
    versions = f"partfile state {FORMAT_VERSION}".encode(), f"partfile state {FORMAT_VERSION + 1}".encode()
    with pytest.raises(SnapshotVersionError, match=f"version {FORMAT_VERSION + 1}"):
        decode_states(encode_states(SAMPLE).replace(*versions), "x.state")


def test_the_damage_starts_from_a_good_file() -> None:
    """Without a change the hostile cases below are a valid file: what they show is the change."""
    assert decode_states(damaged(lambda _: None), "x.state")["s"].elements == (b"aa", b"bb", b"cc")


@pytest.mark.parametrize(
    "offsets",
    [
        [0, 3, 3],
        [0, 6, 3],
        [3, 6],
        [0, 3, 7],
        [0, 2, 6],
        [0, 3, 9],
        [0, 3, 10**18],
        [-3, 0, 3],
        [],
        [0.5],
        ["x"],
        None,
    ],
    ids=lambda offsets: str(offsets)[:20],
)
def test_hostile_offsets_are_refused(offsets: object) -> None:
    """Offsets that are not exactly the beginnings of lines are SnapshotCorrupt."""
    with pytest.raises(SnapshotCorrupt, match=r"x\.state"):
        decode_states(damaged(lambda states: states[0].update(offsets=offsets)), "x.state")


@pytest.mark.parametrize(
    "change",
    [
        lambda states: states.append(states[0]),
        lambda states: states.append({"info": info("s").model_dump(), "offsets": []}),
        lambda states: states[0].update(info=info("k", "key-groups").model_dump()),
        lambda states: states[0].update(info=info("m", "broadcast").model_dump()),
        lambda states: states[0].update(info={**info("s").model_dump(), "type": "OTHER"}),
        lambda states: states[0].update(more=1),
        lambda states: states.clear(),
        lambda states: states.extend({"info": info(str(n)).model_dump(), "offsets": []} for n in range(10_001)),
    ],
    ids=["twice", "name twice", "keyed", "three maps", "unknown type", "unknown field", "no state", "too many"],
)
def test_a_hostile_index_is_refused(change: Callable[[list[dict[str, object]]], object]) -> None:
    """An index that the writer could not have made is SnapshotCorrupt."""
    with pytest.raises(SnapshotCorrupt):
        decode_states(damaged(change), "x.state")


def test_the_number_of_offsets_is_bounded() -> None:
    """More offsets than the writer would write are refused before they are held."""
    with pytest.raises(SnapshotCorrupt, match="at most 4194304 items"):
        decode_states(damaged(lambda states: states[0].update(offsets=[0] * 4_194_305)), "x.state")


def test_lines_without_an_index_are_refused() -> None:
    """No bytes lie in a file that no offset names."""
    with pytest.raises(SnapshotCorrupt):
        decode_states(damaged(lambda states: states[0].update(offsets=[])), "x.state")
    with pytest.raises(SnapshotCorrupt):
        decode_states(damaged(lambda _: None, lines=b"\n"), "x.state")


def test_what_no_reader_takes_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer keeps the reader's limits."""
    monkeypatch.setattr(state_file, "MAX_ELEMENTS", 2)
    monkeypatch.setattr(state_file, "MAX_STATES", 2)
    with pytest.raises(StateTooLarge, match="3 elements"):
        encode_states([(info("s"), [b"", b"", b""])])
    with pytest.raises(StateTooLarge, match="3 states"):
        encode_states([(info(name), []) for name in "abc"])
