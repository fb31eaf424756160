"""The test kits do to an operator what happens in production, and show what it forgot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import partfile as pf
from partfile.errors import ConfigError, PartfileError
from partfile.snapshot.operator_state import BroadcastStateDescriptor, ListStateDescriptor
from partfile.snapshot.state_file import JsonCodec
from partfile.testing.harness import OperatorHarness, SinkHarness

if TYPE_CHECKING:
    from pathlib import Path

    from partfile.snapshot.operator_state import OperatorStateStore


SEEN = ListStateDescriptor("seen", JsonCodec())
HIGHEST = ListStateDescriptor("highest", JsonCodec())
RULES = BroadcastStateDescriptor("rules", JsonCodec(), JsonCodec())


class Collector:
    """Keeps numbers in split state, the highest in union state, and a rule in broadcast state."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.told: list[tuple[str, int]] = []
        self.is_closed = False

    def open(self, states: OperatorStateStore, subtask: int, parallelism: int) -> None:
        """Begin with what the states hold."""
        self.place = (subtask, parallelism)
        self.states = states.list_state(SEEN)
        self.highest = states.union_list_state(HIGHEST)
        self.rules = states.broadcast_state(RULES)
        self.seen = list(self.states.get())
        self.tops = list(self.highest.get())

    def process(self, element: int) -> None:
        """Keep it."""
        self.seen.append(element)
        self.rules.put("last", "rule")

    def snapshot(self, checkpoint_id: int) -> None:
        """Bring the states up to date."""
        self.states.update(self.seen)
        self.highest.update([checkpoint_id * 10 + self.place[0]])

    def notify_complete(self, checkpoint_id: int) -> None:
        """Note it."""
        self.told.append(("complete", checkpoint_id))

    def notify_aborted(self, checkpoint_id: int) -> None:
        """Note it."""
        self.told.append(("aborted", checkpoint_id))

    def close(self) -> None:
        """Note it."""
        self.is_closed = True


def collectors(harness: OperatorHarness[int]) -> list[Collector]:
    return [operator for operator in harness.operators if isinstance(operator, Collector)]


@pytest.mark.item("SP-23", "OS-01", "OS-02", "OS-03")
@pytest.mark.parametrize("old", range(1, 9))
@pytest.mark.parametrize("new", range(1, 9))
def test_rescaling_deals_out_what_each_mode_says(old: int, new: int) -> None:
    """From 1..8 subtasks to 1..8: split once each and balanced, union to all, broadcast a copy to each."""
    with OperatorHarness(Collector, old) as harness:
        for number in range(20):
            harness.process(number, subtask=number % old)
        before = [one.seen for one in collectors(harness)]
        harness.rescale(new)
        after = [one.seen for one in collectors(harness)]
        assert sorted(number for share in after for number in share) == list(range(20))
        assert after == before if new == old else max(map(len, after)) - min(map(len, after)) <= 1
        assert [one.tops for one in collectors(harness)] == [[10 + subtask for subtask in range(old)]] * new
        assert [dict(one.rules.entries()) for one in collectors(harness)] == [{"last": "rule"}] * new
        assert [one.place for one in collectors(harness)] == [(subtask, new) for subtask in range(new)]


def test_what_came_after_a_snapshot_is_gone_after_a_restore() -> None:
    """Elements and later snapshots are lost, the old operators are closed, ids go on."""
    harness = OperatorHarness(Collector).open()
    harness.process(1, 2)
    snapshot = harness.snapshot()
    harness.notify_complete()
    harness.process(3)
    harness.snapshot()
    harness.notify_aborted()
    (first,) = collectors(harness)
    assert first.told == [("complete", 1), ("aborted", 2)]
    harness.restore(snapshot)
    (second,) = collectors(harness)
    assert (second.seen, first.is_closed) == ([1, 2], True)
    assert harness.snapshot().checkpoint_id == 3
    harness.close()
    with pytest.raises(PartfileError, match="not open"):
        harness.process(1)


def rows(*texts: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"key": [text[0] for text in texts], "row": list(texts)})


def test_a_bucketer_of_ones_own_through_the_life_of_a_sink(tmp_path: Path) -> None:
    """What a user tests: rows, time, a lost checkpoint, a crash, another parallelism; and counts the files."""
    sink = pf.FileSink(
        tmp_path,
        uid="mine",
        bucketer=lambda batch: [f"k-{key}" for key in batch.column("key").to_pylist()],
        rolling=pf.RollingPolicy(inactivity_interval_s=60),
    )
    with SinkHarness(sink, parallelism=2) as harness:
        harness.process(rows("a1", "b1"))
        harness.process(rows("a2"), subtask=1)
        assert harness.files() == (3, 0, 0, 0)
        harness.checkpoint()
        harness.process(rows("c1"))
        harness.snapshot()
        harness.notify_aborted()
        harness.crash()
        with pytest.raises(PartfileError, match="not open"):
            harness.snapshot()
        assert harness.files().finished == 0
        harness.restore(3)
        assert harness.files().finished == 3
        harness.process(rows("c1"), subtask=2)
        harness.rescale(1)
        assert harness.files().finished == 4
        harness.process(rows("d1"))
        harness.now_ms += 60_000
        assert harness.checkpoint().published == 1
        assert harness.files().finished == 5
    with pytest.raises(PartfileError, match="not open"):
        harness.notify_aborted()


def test_a_checkpoint_must_be_taken_before_it_completes(tmp_path: Path) -> None:
    """The harness says what to call first."""
    with SinkHarness(pf.FileSink(tmp_path, uid="u")) as harness, pytest.raises(PartfileError, match="snapshot"):
        harness.notify_complete()


@pytest.mark.parametrize("parallelism", [0, -1])
def test_there_is_at_least_one_subtask(tmp_path: Path, parallelism: int) -> None:
    """None would take every element and keep nothing."""
    sink = pf.FileSink(tmp_path, uid="u")
    for begin in (
        lambda: SinkHarness(sink, parallelism),
        lambda: SinkHarness(sink).restore(parallelism),
        lambda: OperatorHarness(Collector, parallelism),
        lambda: OperatorHarness(Collector).open().rescale(parallelism),
    ):
        with pytest.raises(ConfigError, match=f"parallelism is {parallelism}"):
            begin()


@pytest.mark.parametrize("subtask", [2, -1])
def test_a_subtask_that_is_not_there_is_named(tmp_path: Path, subtask: int) -> None:
    """Also one counted from the end, which would be another one's."""
    with SinkHarness(pf.FileSink(tmp_path, uid="u"), 2) as sink, OperatorHarness(Collector, 2) as operator:
        with pytest.raises(ConfigError, match=f"no subtask {subtask}; there are 0 to 1"):
            sink.process(rows("a"), subtask)
        with pytest.raises(ConfigError, match=f"no subtask {subtask}"):
            operator.process(1, subtask=subtask)
        sink.process(pa.Table.from_batches([rows("a"), rows("b")]))
        assert sink.files().in_progress == 1
