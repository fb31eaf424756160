"""The test kit of operators with keyed state sends each element to its key's subtask, and restores what it wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from partfile.errors import ConfigError, PartfileError
from partfile.snapshot.keyed.codecs import Int64Codec
from partfile.snapshot.keyed.descriptors import ReducingStateDescriptor
from partfile.snapshot.keyed.keys import KeyCodec
from partfile.snapshot.keyed.ttl import Ttl
from partfile.snapshot.operator_state import ListStateDescriptor
from partfile.snapshot.state_file import JsonCodec
from partfile.testing.keyed_harness import KeyedOperatorHarness

if TYPE_CHECKING:
    from partfile.testing.keyed_harness import KeyedContext

TOTALS = ReducingStateDescriptor("totals", Int64Codec(), lambda one, other: one + other, ttl=Ttl(60))
SEEN = ListStateDescriptor("seen", JsonCodec())


class Totals:
    """Adds amounts up by account, and keeps how many it has seen in operator state."""

    def __init__(self) -> None:
        self.is_closed = False

    def open(self, context: KeyedContext) -> None:
        """Register the states."""
        self.context = context
        self.total = context.keyed.reducing_state(TOTALS)
        self.seen = context.states.list_state(SEEN)

    def process(self, element: tuple[str, int]) -> None:
        """Add its amount to the total of the current key."""
        assert self.context.keyed.current_key == element[0]
        self.total.add(element[1])
        self.seen.add(list(element))

    def close(self) -> None:
        """Remember it."""
        self.is_closed = True


def harness(parallelism: int = 1) -> KeyedOperatorHarness[tuple[str, int]]:
    return KeyedOperatorHarness(
        Totals, KeyCodec("string"), lambda element: element[0], parallelism=parallelism, max_parallelism=32
    )


def totals(run: KeyedOperatorHarness[Any], keys: list[str]) -> dict[str, int | None]:
    """The totals of some keys, wherever they are."""
    found: dict[str, int | None] = {}
    for operator, context in zip(run.operators, run.contexts, strict=True):
        assert isinstance(operator, Totals)
        for key in keys:
            try:
                context.keyed.set_current_key(key)
            except ConfigError:
                continue
            assert key not in found
            found[key] = operator.total.get()
    return found


KEYS = [f"account {number}" for number in range(20)]


@pytest.mark.item("KS-14", "KS-16", "SP-23")
@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_state_goes_with_its_key(parallelism: int) -> None:
    """Over a restore with another parallelism; what came after the snapshot is gone."""
    with harness(3) as run:
        run.process(*((key, 1) for key in KEYS), ("account 3", 10))
        assert len({len(context.keyed.groups) for context in run.contexts}) <= 2
        taken = run.snapshot()
        run.process(("account 3", 100))
        run.restore(taken, parallelism)
        assert len(run.operators) == parallelism
        expected = dict.fromkeys(KEYS, 1) | {"account 3": 11}
        assert totals(run, KEYS) == expected
        seen = [one for context in run.contexts for one in context.states.list_state(SEEN).get()]
        assert len(seen) == len(KEYS) + 1
        run.rescale(4)
        assert totals(run, KEYS) == expected


def test_time_passes_when_it_is_told() -> None:
    """Values expire by the harness's clock, also over a restore."""
    with harness() as run:
        run.process(("a", 1))
        run.now_ms = 59_999
        run.process(("b", 1))
        run.restore(run.snapshot())
        assert totals(run, ["a", "b"]) == {"a": 1, "b": 1}
        run.now_ms = 60_000
        run.process(("a", 5))
        assert totals(run, ["a", "b"]) == {"a": 5, "b": 1}
        run.now_ms = 119_999
        run.restore(run.snapshot(), 2)
        assert totals(run, ["a", "b"]) == {"a": 5, "b": None}


def test_the_operators_are_closed() -> None:
    """By a restore and at the end; before it is opened there is nothing to ask."""
    run = harness(2)
    with pytest.raises(PartfileError, match="the harness is not open"):
        run.process(("a", 1))
    with pytest.raises(PartfileError, match="the harness is not open"):
        run.snapshot()
    with run:
        first: list[Any] = list(run.operators)
        run.rescale(1)
        assert all(operator.is_closed for operator in first)
        last: list[Any] = list(run.operators)
    assert all(operator.is_closed for operator in last)
    run.close()
    with pytest.raises(ConfigError, match="parallelism is 33, more than max_parallelism=32"):
        harness(33)
    with harness(1) as again:
        with pytest.raises(ConfigError, match="parallelism is 0"):
            again.rescale(0)
        # What was refused has changed nothing.
        again.process(("a", 1))
