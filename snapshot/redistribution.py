"""How operator state is dealt out again at a restore. Follows Flink's round-robin repartitioner."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from partfile.snapshot.model import NamedState, States

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import JsonValue

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
        The states of the new subtasks, by index. A state without elements is left out.
    """
    new: list[States] = [{} for _ in range(parallelism)]
    start = 0
    for name, mode in _modes(old).items():
        elements = _elements(old, name)
        if mode == "union":
            shares = [elements] * parallelism
        elif mode == "broadcast":
            copies = [states[name].elements for states in old if name in states]
            shares = [copies[subtask % len(copies)] for subtask in range(parallelism)]
        elif parallelism == len(old):
            shares = [states[name].elements if name in states else () for states in old]
        else:
            shares, start = deal(elements, parallelism, start)
        for states, share in zip(new, shares, strict=True):
            if share:
                states[name] = NamedState(mode=mode, elements=share)
    return new


def _modes(old: Sequence[States]) -> dict[str, str]:
    modes: dict[str, str] = {}
    for states in old:
        for name, state in states.items():
            if modes.setdefault(name, state.mode) != state.mode:
                raise ValueError(f"state {name!r} is {modes[name]} in one subtask and {state.mode} in another")
    return modes


def _elements(old: Sequence[States], name: str) -> tuple[JsonValue, ...]:
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
