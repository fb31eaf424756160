"""A publication that fails is owed until it is done: in every later checkpoint, at the timer, at restore."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from harness import Harness
from life_cycle import batch, finished_files, make_sink, rows_of

from partfile.errors import CommitConflict, CommitError, NotApplied, NotReady, OutcomeUnknown, PartMissing
from partfile.sink.spark.stream import StartedQuery
from partfile.stores.local.store import LocalStore
from partfile.testing.faults import FailAt, Recorder, intercept

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.streaming.query import StreamingQuery

    from partfile.sink.spark.stream import SparkStream


def failing_job(base: Path, failures: int, error: Exception) -> Harness:
    failing = [FailAt(number + 1, error, only=["publish"]) for number in range(failures)]

    def opener(url: str, _options: Any) -> Any:
        store: Any = LocalStore(url)
        for interceptor in failing:
            store = intercept(store, interceptor)
        return store

    job = Harness(base, max_part_bytes=1, open_store=opener)
    job.write("a@1", "a@2")
    return job


def is_marked(job: Harness) -> bool:
    newest = job.coordinator.newest_checkpoint_id
    return (job.base / "_partfile" / "job" / f"chk-{newest}" / "_published").exists()


@pytest.mark.parametrize("error", [NotApplied("no room"), OutcomeUnknown("reply lost")])
def test_a_failed_publication_is_tried_again_by_the_timer(tmp_path: Path, error: Exception) -> None:
    """The checkpoint stands and is not marked as published; the timer publishes what is owed, and then marks it."""
    job = failing_job(tmp_path, 1, error)
    done = job.checkpoint()
    assert (done.published, done.owed) == (1, 1)
    assert not is_marked(job)
    again = job.coordinator.close_due(0)
    assert again is not None
    assert (again.published, again.owed) == (1, 0)
    assert is_marked(job)
    assert sorted(job.finished().values()) == ["a@1\n", "a@2\n"]
    assert job.coordinator.close_due(0) is None


def test_where_storage_does_not_answer_parts_are_owed_untried(tmp_path: Path) -> None:
    """As many wait for an answer as are published together; the others are tried with the next checkpoint."""
    calls = Recorder(only=["publish"])
    silent = FailAt(1, OutcomeUnknown("no answer"), persistent=True, only=["publish"])

    def opener(url: str, _options: Any) -> Any:
        return intercept(intercept(LocalStore(url), silent), calls)

    job = Harness(tmp_path, max_part_bytes=1, open_store=opener, publish_threads=2)
    job.write(*(f"{bucket}@{number}" for number, bucket in enumerate("abcdefgh")))
    done = job.checkpoint()
    assert (done.published, done.owed) == (0, 8)
    # One thread may begin with its second part before the other has failed.
    assert 2 <= calls.count <= 3


def test_a_failed_publication_goes_with_the_next_checkpoint(tmp_path: Path) -> None:
    """The next checkpoint holds what is owed beside its own parts, and publishes both."""
    job = failing_job(tmp_path, 1, NotApplied("no room"))
    job.checkpoint()
    job.write("a@3")
    assert job.checkpoint().published == 2
    assert sorted(job.finished().values()) == ["a@1\n", "a@2\n", "a@3\n"]


def test_a_failed_publication_is_done_by_the_next_start(tmp_path: Path) -> None:
    """A run that ends with a part owed leaves it in its checkpoint, and the next run publishes it."""
    job = failing_job(tmp_path, 3, NotApplied("no room"))
    assert job.checkpoint().owed == 2
    job.restore()
    job.restore()
    assert sorted(job.finished().values()) == ["a@1\n", "a@2\n"]


@pytest.mark.parametrize("format", ["text", "parquet"])
def test_a_clean_end_tells_of_parts_that_are_not_published(tmp_path: Path, format: str) -> None:
    """Whoever takes the end of a block for the rows being there must hear it; the next start publishes them."""
    silent = FailAt(1, NotReady("over the quota"), persistent=True, only=["publish"])
    refusing: dict[str, Any] = {"open_store": lambda url, _options: intercept(LocalStore(url), silent)}
    out = make_sink(tmp_path, format=format, **refusing).local().open()
    out.write(batch(0, 4))
    with pytest.raises(NotReady, match="0 of its stages could not be encoded, 2 of its parts not be published"):
        out.finish()
    assert finished_files(tmp_path) == {}
    with make_sink(tmp_path, format=format).local():
        assert rows_of(finished_files(tmp_path)).total() == 4


def test_an_interrupt_is_not_hidden_by_what_the_clean_end_has_to_say(caplog: pytest.LogCaptureFixture) -> None:
    """A driver that is ended by Ctrl-C sees KeyboardInterrupt; what is not visible yet is in the log."""
    refusal = NotReady("the sink has ended, and 1 of its stages could not be encoded")

    class Query:
        isActive = False  # noqa: N815 - Spark's name
        id = "query"

        def stop(self) -> None:
            """It has."""

        def exception(self) -> None:
            """None."""

    class Stream:
        def wait_for_batch(self) -> None:
            """None runs."""

        def finish(self, _query_id: str) -> None:
            """Not all is visible."""
            raise refusal

    query, stream = cast("StreamingQuery", Query()), cast("SparkStream", Stream())
    with pytest.raises(KeyboardInterrupt), StartedQuery(query, stream, ends_itself=False):
        raise KeyboardInterrupt
    assert refusal.message in caplog.text
    with pytest.raises(NotReady), StartedQuery(query, stream, ends_itself=False):
        pass


def take_the_name_of(pending: Path) -> None:
    """Put foreign bytes where a pending part is to be published."""
    pending.with_name(re.sub(r"^_(.*\.txt).*", r"\1", pending.name)).write_text("not ours")


@pytest.mark.parametrize(
    ("meddle", "kind", "hint"),
    [(Path.unlink, PartMissing, "accept_missing=True"), (take_the_name_of, CommitConflict, "Move that file")],
)
def test_an_error_about_a_part_names_the_sink_and_its_base(
    tmp_path: Path, meddle: Callable[[Path], None], kind: type[CommitError], hint: str
) -> None:
    """A part's name alone is one of many in a place that nobody knows."""
    job = failing_job(tmp_path, 1, NotApplied("no room"))
    job.checkpoint()
    meddle(next(job.base.glob("a/_*.pending")))
    with pytest.raises(kind) as raised:
        job.coordinator.close_due(0)
    assert raised.value.message.startswith(f"sink 'job' at '{job.base}': part 'a/part-")
    assert hint in raised.value.hint
