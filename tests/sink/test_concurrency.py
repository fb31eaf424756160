"""Doing one thing to several parts at a time: order, failures, and how many at once."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import partfile as pf
from partfile.errors import NotApplied, OutcomeUnknown
from partfile.sink.concurrency import CircuitBreaker, discard_each, for_each
from partfile.stores.local.store import LocalStore
from partfile.testing.faults import Call, intercept

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from partfile.errors import StoreError
    from partfile.stores.base import Store


@pytest.mark.parametrize("threads", [1, 4])
def test_results_come_in_order_and_with_patience_every_item_is_tried(threads: int) -> None:
    """A failure is raised once the others are through, so that none of them stays open because of it."""
    done: list[int] = []

    def work(item: int) -> int:
        done.append(item)
        if item in {2, 4}:
            raise ValueError(str(item))
        return item * item

    assert for_each(work, [1, 3, 5], threads, "test") == [1, 9, 25]
    with pytest.raises(ValueError, match="2"):
        for_each(work, [1, 2, 3, 4, 5], threads, "test", circuit_breaker=CircuitBreaker(1))
    assert sorted(done) == [1, 1, 2, 3, 3, 4, 5, 5]


@pytest.mark.parametrize("patience", [None, 4])
def test_where_storage_does_not_answer_only_as_many_wait_as_do_it_together(patience: int | None) -> None:
    """A thousand parts fail as soon as four do, and those that had begun: in turn they would take two hours."""
    tried: list[int] = []

    def work(item: int) -> None:
        tried.append(item)
        raise OutcomeUnknown("no answer")

    with pytest.raises(OutcomeUnknown):
        for_each(work, range(1000), 4, "test", circuit_breaker=None if patience is None else CircuitBreaker(patience))
    assert (patience or 1) <= len(tried) <= (patience or 1) + 3


@pytest.mark.parametrize(("error", "most"), [(NotApplied, 1000), (OutcomeUnknown, 2 + 1)])
def test_what_cannot_be_deleted_is_told_and_left(
    error: type[StoreError], most: int, caplog: pytest.LogCaptureFixture
) -> None:
    """All are tried where the store answers; where it does not, those end that had begun when two had no answer."""
    asked: list[int] = []

    def discard(item: int) -> None:
        asked.append(item)
        raise error("no")

    discard_each(discard, range(1000), 2, lambda item: f"file {item}")
    assert min(most, 2) <= len(asked) <= most
    assert len(asked) == most or error is OutcomeUnknown
    assert caplog.text.count("is not needed any more, but cannot be deleted: no") == len(asked)


def test_one_thread_is_the_callers() -> None:
    """Where nothing is gained by it, nothing runs elsewhere."""
    assert for_each(lambda _: threading.current_thread(), [1, 2], 1, "test") == [threading.current_thread()] * 2


def test_as_many_as_told_run_at_the_same_time() -> None:
    """Four that wait for each other all come through, and no thread is left afterwards."""
    # Threads of other tests may end meanwhile.
    barrier, before = threading.Barrier(4), set(threading.enumerate())
    assert for_each(lambda item: barrier.wait(60) >= 0 and item, [1, 2, 3, 4], 4, "test") == [1, 2, 3, 4]
    assert set(threading.enumerate()) <= before


class Together:
    """Lets calls of these names through when four are under way."""

    def __init__(self, *names: str) -> None:
        self._barriers = {name: threading.Barrier(4, timeout=60) for name in names}
        self.seen: Counter[str] = Counter()

    def around(self, call: Call, proceed: Callable[[], object]) -> object:
        """Wait for three others."""
        if call.name in self._barriers:
            self._barriers[call.name].wait()
            self.seen[call.name] += 1
        return proceed()


def test_a_local_store_is_asked_for_several_parts_at_a_time(tmp_path: Path) -> None:
    """Persisting, rolling and publishing four parts overlap, for disks too, and what they hold is right."""
    together = Together("persist", "close_for_commit", "publish")

    def opener(url: str, _options: object) -> Store:
        return intercept(LocalStore(url), together)

    sink = pf.FileSink(
        tmp_path, uid="job", format="text", bucketer=lambda batch: batch.column("line"), open_store=opener
    )
    rows = pa.RecordBatch.from_pydict({"line": ["a", "b", "c", "d"]})
    with sink.local() as out:
        for _ in range(2):
            out.write(rows)
            out.checkpoint()
    assert together.seen == {"persist": 8, "close_for_commit": 4, "publish": 4}
    found = {path.parent.name: path.read_text() for path in tmp_path.glob("[a-d]/part-*")}
    assert found == {name: f"{name}\n" * 2 for name in "abcd"}
