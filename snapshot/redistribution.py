"""How operator state is dealt out again at a restore. Follows Flink's round-robin repartitioner."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from partfile.snapshot.state_info import NamedState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partfile.snapshot.state_info import StateMetaInfo, States

Element = TypeVar("Element")


def redistribute(old: Sequence[States], parallelism: int) -> list[States]:
    """Deal the states of the old subtasks out to ``parallelism`` new ones.

    Split states: if the number of subtasks is unchanged everyone keeps theirs; else the elements of each state, in the
    order of the old subtasks, are cut into contiguous runs whose lengths differ by one at most, and the longer runs of
    the next state begin where those of the last one ended. Union states: everyone gets all elements, also when the
    number is unchanged. Broadcast states: new subtask i gets the copy of old subtask i modulo their number, among those
    that have one.

    Args:
        old: The states of the old subtasks, by index.
        parallelism: The number of new subtasks, at least 1.

    Returns:
        The states of the new subtasks, by index. A state without elements is left out. Elements are moved as bytes.

    Raises:
        ValueError: A state is of one kind in one subtask and of another in another, or is keyed.
    """
    new: list[States] = [{} for _ in range(parallelism)]
    start = 0
    for name, info in _infos(old).items():
        elements = _elements(old, name)
        if info.mode == "union":
            shares = [elements] * parallelism
        elif info.mode == "broadcast":
            copies = [states[name].elements for states in old if name in states]
            shares = [copies[subtask % len(copies)] for subtask in range(parallelism)]
        elif parallelism == len(old):
            shares = [states[name].elements if name in states else () for states in old]
        else:
            shares, start = deal(elements, parallelism, start)
        for states, share in zip(new, shares, strict=True):
            if share:
                states[name] = NamedState(info, share)
    return new


def _infos(old: Sequence[States]) -> dict[str, StateMetaInfo]:
    infos: dict[str, StateMetaInfo] = {}
    for states in old:
        for name, state in states.items():
            known = infos.setdefault(name, state.info)
            if known.mode != state.mode:
                raise ValueError(f"state {name!r} is {known.mode} in one subtask and {state.mode} in another")
            if known != state.info:
                raise ValueError(f"state {name!r} has the codecs {known.codecs} here and {state.info.codecs} there")
            if state.mode == "key-groups":
                raise ValueError(f"state {name!r} is keyed; it is dealt out by key groups")
    return infos


def _elements(old: Sequence[States], name: str) -> tuple[bytes, ...]:
    return tuple(element for states in old if name in states for element in states[name].elements)


def deal(elements: Sequence[Element], parallelism: int, start: int = 0) -> tuple[list[tuple[Element, ...]], int]:
    """Cut ``elements`` into contiguous runs, one a subtask, whose lengths differ by one at most.

    Args:
        elements: In order.
        parallelism: The number of subtasks, at least 1.
        start: The subtask that gets the first run; the longer runs come first.

    Returns:
        The shares by subtask, and where the next state should start so that the longer runs spread.
    """
    base, odd = divmod(len(elements), parallelism)
    shares: list[tuple[Element, ...]] = [()] * parallelism
    begin = 0
    for turn in range(parallelism):
        end = begin + base + (turn < odd)
        shares[(start + turn) % parallelism] = tuple(elements[begin:end])
        begin = end
    return shares, (start + odd) % parallelism
