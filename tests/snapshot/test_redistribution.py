"""Operator state is dealt out as Flink's round-robin repartitioner does; the vectors are from its rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partfile.snapshot.operator_state import redistribute
from partfile.snapshot.state_file import CodecInfo, Mode, NamedState, StateMetaInfo


def state(mode: Mode, *elements: str, name: str = "s", version: int = 1) -> NamedState:
    codecs = {"element": CodecInfo(name="json", version=version)}
    kinds = {"broadcast": "BROADCAST", "key-groups": "KEY_VALUE"}
    info = StateMetaInfo.model_validate(
        {"name": name, "type": kinds.get(mode, "OPERATOR"), "mode": mode, "codecs": codecs}
    )
    return NamedState(info, tuple(element.encode() for element in elements))


def split(*elements: str) -> NamedState:
    return state("split", *elements)


def texts(one: NamedState) -> list[str]:
    return [element.decode() for element in one.elements]


OLD = [
    {"A": split("a0", "a1", "a2"), "B": split("b0")},
    {"A": split("a3", "a4"), "B": split("b1")},
    {"A": split("a5", "a6"), "B": split("b2")},
]

VECTORS = {
    2: [{"A": "a0 a1 a2 a3", "B": "b2"}, {"A": "a4 a5 a6", "B": "b0 b1"}],
    4: [{"A": "a0 a1", "B": "b1"}, {"A": "a2 a3", "B": "b2"}, {"A": "a4 a5"}, {"A": "a6", "B": "b0"}],
    5: [{"A": "a0 a1"}, {"A": "a2 a3"}, {"A": "a4", "B": "b0"}, {"A": "a5", "B": "b1"}, {"A": "a6", "B": "b2"}],
}


@pytest.mark.item("OS-01")
@pytest.mark.parametrize("parallelism", VECTORS)
def test_split_state_follows_the_vectors(parallelism: int) -> None:
    """3 subtasks with states A and B rescale to 2, 4 and 5 exactly as in the reference."""
    new = redistribute(OLD, parallelism)
    assert [{name: " ".join(texts(one)) for name, one in states.items()} for states in new] == VECTORS[parallelism]


@pytest.mark.item("OS-01")
def test_split_state_stays_where_it_is_when_the_parallelism_is_unchanged() -> None:
    """With as many subtasks as before everyone keeps their own elements."""
    assert redistribute(OLD, 3) == OLD


@pytest.mark.item("OS-02")
@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_union_state_goes_to_everyone(parallelism: int) -> None:
    """Each subtask gets all elements of a union state, also when their number is unchanged."""
    old = [{"m": state("union", number)} for number in "39"]
    assert [texts(states["m"]) for states in redistribute(old, parallelism)] == [["3", "9"]] * parallelism


@pytest.mark.item("OS-03")
@pytest.mark.parametrize(("parallelism", "copies"), [(1, "a"), (2, "ab"), (3, "abc"), (5, "abcab")])
def test_broadcast_state_goes_to_everyone_once(parallelism: int, copies: str) -> None:
    """Subtask i gets copy i modulo the old number, its own if that is unchanged."""
    old = [{"m": state("broadcast", copy)} for copy in "abc"]
    new = redistribute(old, parallelism)
    assert [texts(states["m"]) for states in new] == [[copy] for copy in copies]
    some = redistribute([old[0], {}, old[2]], 3)
    assert [texts(states["m"]) for states in some] == [["a"], ["c"], ["a"]]


@pytest.mark.item("OS-04")
def test_a_state_cannot_be_split_here_and_union_there() -> None:
    """One name with two modes is an error that names it."""
    with pytest.raises(ValueError, match="'m' is"):
        redistribute([{"m": split("x")}, {"m": state("union", "y")}], 3)


@pytest.mark.item("OS-04")
def test_a_state_cannot_have_two_codecs() -> None:
    """Elements of different codecs cannot be dealt into one list."""
    with pytest.raises(ValueError, match="codecs"):
        redistribute([{"m": split("x")}, {"m": state("split", "y", version=2)}], 3)


def test_keyed_state_is_not_dealt_out_here() -> None:
    """Key groups have rules of their own."""
    with pytest.raises(ValueError, match="keyed"):
        redistribute([{"m": state("key-groups", "x")}], 3)


@given(st.lists(st.lists(st.binary(max_size=3)), min_size=1, max_size=6), st.integers(1, 9))
def test_no_element_is_lost_or_doubled_and_shares_are_even(old: list[list[bytes]], parallelism: int) -> None:
    """Whatever the parallelism, the multiset of elements stays and shares differ by one at most."""
    states = [{"s": NamedState(split().info, tuple(elements))} for elements in old]
    new = redistribute(states, parallelism)
    shares = [list(share["s"].elements) if "s" in share else [] for share in new]
    assert [x for share in shares for x in share] == [x for elements in old for x in elements]
    if parallelism != len(old):
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
