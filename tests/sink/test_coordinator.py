"""The sink's coordinator: owed publications, and what it does after something went wrong."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

import partfile as pf
from partfile.errors import (
    CommitConflict,
    CommitError,
    ConfigError,
    NotApplied,
    NotReady,
    OutcomeUnknown,
    PartfileError,
    PartMissing,
    SnapshotCorrupt,
    UnsupportedTypeError,
)
from partfile.sink.layout import SubtaskContext
from partfile.sink.operator import SinkOperator
from partfile.sink.publish import Publisher
from partfile.sink.spark.stream import QueryWatch, StartedQuery
from partfile.sink.states import PendingPart, SubtaskSnapshot
from partfile.stores.local.store import LocalStore
from partfile.testing.faults import FailAt, Recorder, intercept
from support.files.disks import open_below
from support.sinks.harness import Harness
from support.sinks.life_cycle import (
    LONG,
    assert_exactly_once,
    batch,
    finished_files,
    long_sink,
    make_sink,
    rows_of,
    run_to_the_end,
    seed_with_a_tail,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql.streaming.query import StreamingQuery

    from partfile.sink.spark.stream import SparkStream
    from partfile.stores.base import Cut, PartHandle
    from partfile.testing.faults import Call


# A publication that fails is owed until it is done: in every later checkpoint, at the timer, at restore.


def failing_job(base: Path, failures: int, error: Exception) -> Harness:
    job = faulty_job(base, [FailAt(number + 1, error, only=["publish"]) for number in range(failures)])
    job.write("a@1", "a@2")
    return job


def faulty_job(base: Path, failing: list[FailAt]) -> Harness:
    def opener(url: str, _options: Any) -> Any:
        store: Any = LocalStore(url)
        for interceptor in failing:
            store = intercept(store, interceptor)
        return store

    return Harness(base, max_part_bytes=1, open_store=opener)


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


@pytest.mark.parametrize("error", [OutcomeUnknown("no answer"), KeyboardInterrupt()], ids=["unknown", "interrupted"])
def test_a_coordinator_that_lost_a_checkpoint_completes_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """R7: it was created, and the state before it is stale: only a new start goes on, from what lies there."""
    job = Harness(tmp_path, max_part_bytes=1)
    job.write("a@1")
    extend = job.coordinator._log.extend

    def cut_short(entry: Any) -> None:
        extend(entry)
        raise error

    job.snapshot()
    with monkeypatch.context() as patch:
        patch.setattr(job.coordinator._log, "extend", cut_short)
        with pytest.raises(type(error)):
            job.notify_complete()
    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            job.coordinator.trigger(0)
    assert job.finished() == {}
    job.restore()
    job.write("a@2")
    job.checkpoint()
    assert sorted(job.finished().values()) == ["a@1\n", "a@2\n"]


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


# A consumer takes finished files before the sink has noted that they are finished.


def test_what_is_published_leaves_the_state_though_a_part_is_owed(tmp_path: Path) -> None:
    """R5: a checkpoint of its own holds the owed part alone, so that a start looks for no file that was taken."""
    job = failing_job(tmp_path, 1, NotApplied("no room"))
    done = job.checkpoint()
    assert (done.published, done.owed) == (1, 1)
    (taken,) = finished_files(tmp_path)
    (tmp_path / taken).unlink()
    job.restore()
    assert len(job.finished()) == 1
    assert taken not in finished_files(tmp_path)


def crashed_before_its_mark(base: Path) -> list[str]:
    """Leave a checkpoint whose parts are published and that is not marked so; returns their paths."""
    out = long_sink(base).local().open()
    out.write(batch(0, 4), position=4)
    out.finish()
    (mark,) = base.glob("_partfile/life/chk-*/_published")
    mark.unlink()
    return list(finished_files(base))


def test_a_part_that_a_consumer_took_stops_a_start_until_it_is_said_that_consumers_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """R5: nothing left of a part may be a loss. The message names both readings, the hint the option."""
    first, *_ = crashed_before_its_mark(tmp_path)
    (tmp_path / first).unlink()
    with pytest.raises(PartMissing, match="or a consumer took its file") as raised:
        long_sink(tmp_path).local().open()
    assert "consumers_take_files=True" in raised.value.hint
    with long_sink(tmp_path, consumers_take_files=True).local() as out:
        assert out.position == 4
        out.write(batch(4, 5), position=9)
    assert f"nothing is left of part {first}" in caplog.text
    taken = rows_of(finished_files(tmp_path))
    assert max(taken.values()) == 1
    assert taken.total() < 9
    with long_sink(tmp_path).local() as out:
        assert out.position == 9


def test_a_part_that_was_never_published_is_not_taken_for_taken(tmp_path: Path) -> None:
    """It is looked for before a checkpoint first holds it as pending, so each start is refused, and changes nothing."""
    seed_with_a_tail(tmp_path)
    next(tmp_path.rglob("*.in-progress")).unlink()
    checkpoints = sorted(tmp_path.rglob("_metadata"))
    for _ in range(3):
        with pytest.raises(PartMissing, match="never published"):
            long_sink(tmp_path, consumers_take_files=True).local().open()
    assert sorted(tmp_path.rglob("_metadata")) == checkpoints


def test_a_start_that_another_one_overtakes_takes_no_consumer_for_a_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its look at the log and its look at a part the other one publishes it, and a consumer takes it."""
    seed_with_a_tail(tmp_path)
    look, overtaken = Publisher.check_staged, list[str]()

    def late(self: Publisher, parts: Sequence[PendingPart]) -> None:
        if parts and not overtaken:
            overtaken.append("once")
            long_sink(tmp_path, consumers_take_files=True).local().open()
            for path in finished_files(tmp_path):
                (tmp_path / path).unlink()
        look(self, parts)

    monkeypatch.setattr(Publisher, "check_staged", late)
    with long_sink(tmp_path, consumers_take_files=True).local() as out:
        assert out.position == 4
    assert overtaken


def test_what_is_published_leaves_the_state_though_a_part_is_in_conflict(tmp_path: Path) -> None:
    """R5: once the foreign file is moved away, the start looks for no part that was finished and taken."""
    out = long_sink(tmp_path).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    (first, second) = sorted(tmp_path.rglob("_part-*"))
    foreign = first.with_name(first.name[1:].partition(".txt")[0] + ".txt")
    foreign.write_text("foreign")
    with pytest.raises(CommitConflict):
        out.finish()
    (taken,) = {*finished_files(tmp_path)} - {str(foreign.relative_to(tmp_path))}
    assert second.name[1:].startswith(Path(taken).name)
    (tmp_path / taken).unlink()
    foreign.unlink()
    with long_sink(tmp_path).local() as again:
        assert again.position == 4
    assert list(finished_files(tmp_path)) == [str(foreign.relative_to(tmp_path))]


def test_a_part_that_cannot_be_prepared_is_owed_and_published_by_a_checkpoint_of_its_own(tmp_path: Path) -> None:
    """As where S3 refuses to begin an upload: what is not prepared is not published, and the timer tries both again."""

    class Preparing(LocalStore):
        """Publishes only what is prepared."""

        def prepare(self, handle: PartHandle) -> PartHandle:
            """Mark the handle."""
            return handle if handle.staging else handle.model_copy(update={"staging": {"prepared": True}})

        def publish(self, handle: PartHandle, cut: Cut) -> None:
            """Refuse a handle without the mark."""
            if not handle.staging:
                raise NotReady("not prepared")
            super().publish(handle, cut)

    refusing = FailAt(1, NotApplied("no upload"), only=["prepare"])
    job = Harness(tmp_path, max_part_bytes=1, open_store=lambda url, _options: intercept(Preparing(url), refusing))
    job.write("a@1", "a@2")
    done = job.checkpoint()
    assert (done.published, done.owed) == (1, 1)
    newest = job.coordinator.newest_checkpoint_id
    again = job.coordinator.close_due(0)
    assert again is not None
    assert (again.published, again.owed) == (1, 0)
    assert job.coordinator.newest_checkpoint_id > newest
    assert sorted(job.finished().values()) == ["a@1\n", "a@2\n"]


def test_a_checkpoint_of_owed_parts_that_cannot_be_made_is_left_to_the_next_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told, nothing is lost, and the next checkpoint holds what is owed."""
    no_room, full = FailAt(1, NotApplied("no room"), only=["publish"]), NotApplied("full")
    job = faulty_job(tmp_path, [no_room, FailAt(3, full, only=["create_file"])])
    job.write("a@1", "a@2")
    assert job.checkpoint().owed == 1
    assert "the next checkpoint will say which parts are finished: full" in caplog.text
    job.write("a@3")
    assert job.checkpoint().published == 2
    assert sorted(job.finished().values()) == ["a@1\n", "a@2\n", "a@3\n"]


def test_a_part_that_is_too_short_is_not_taken_for_taken(tmp_path: Path) -> None:
    """A consumer takes whole files."""
    silent = FailAt(1, NotApplied("no room"), persistent=True, only=["publish"])
    out = long_sink(tmp_path, open_store=lambda url, _options: intercept(LocalStore(url), silent)).local().open()
    out.write(batch(0, 4), position=4)
    with pytest.raises(NotReady):
        out.finish()
    for staged in list(tmp_path.rglob("_part-*")):
        os.truncate(staged, staged.stat().st_size - 1)
    with pytest.raises(PartMissing, match="bytes are left"):
        long_sink(tmp_path, consumers_take_files=True).local().open()


@pytest.mark.parametrize("format", ["text", "parquet"])
def test_a_clean_end_tells_of_parts_that_are_not_published(tmp_path: Path, format: str) -> None:
    """A caller that takes the end of a block for the rows being there must hear it; the next start publishes them."""
    silent = FailAt(1, NotReady("over the quota"), persistent=True, only=["publish"])
    refusing: dict[str, Any] = {"open_store": lambda url, _options: intercept(LocalStore(url), silent)}
    out = make_sink(tmp_path, format=format, **refusing).local().open()
    out.write(batch(0, 4))
    with pytest.raises(NotReady, match="0 staging files not encoded, 2 parts not published"):
        out.finish()
    assert finished_files(tmp_path) == {}
    with make_sink(tmp_path, format=format).local():
        assert rows_of(finished_files(tmp_path)).total() == 4


class EndedQuery:
    """As Spark's object is when the query has ended."""

    _jsq = None
    isActive = False  # noqa: N815 - Spark's name
    id = "query"
    runId = "run"  # noqa: N815 - Spark's name

    def __init__(self, error: StreamingQueryException | None = None) -> None:
        self._error = error

    def stop(self) -> None:
        """It has."""

    def awaitTermination(self) -> None:  # noqa: N802 - Spark's name
        """It has."""

    def exception(self) -> StreamingQueryException | None:
        """What it ended with."""
        return self._error


class EndedStream:
    """The sink's side of it."""

    def wait_for_batch(self) -> None:
        """None runs."""

    def finish_run(self, watch: QueryWatch) -> None:
        """Tell how the sink has ended."""
        watch.check_end()


def ended(
    end: Callable[[QueryWatch], None] = lambda _watch: None,
    error: StreamingQueryException | None = None,
    failure: PartfileError | None = None,
) -> StartedQuery:
    """A query that has ended by ``error``, whose last batch failed by ``failure``."""
    watch = QueryWatch(cast("StreamingQuery", EndedQuery(error)), end)
    watch.failure = failure
    return StartedQuery(watch, cast("SparkStream", EndedStream()), ends_itself=False)


def test_an_interrupt_is_not_hidden_by_what_the_clean_end_has_to_say(caplog: pytest.LogCaptureFixture) -> None:
    """A driver that is ended by Ctrl-C sees KeyboardInterrupt; what is not visible yet is in the log."""
    refusal = NotReady("the sink has ended with rows not visible yet: 1 staging files not encoded")

    def end(_watch: QueryWatch) -> None:
        raise refusal

    with pytest.raises(KeyboardInterrupt), ended(end):
        raise KeyboardInterrupt
    assert refusal.message in caplog.text
    with pytest.raises(NotReady), ended(end):
        pass


def test_an_interrupt_is_not_hidden_by_what_failed_the_query(caplog: pytest.LogCaptureFixture) -> None:
    """The failure is in the log."""
    failure = ConfigError("column 'a' cannot be written")
    with pytest.raises(KeyboardInterrupt), ended(error=StreamingQueryException("failed"), failure=failure):
        raise KeyboardInterrupt
    assert failure.message in caplog.text


def test_a_stop_that_interrupts_a_batch_raises_nothing() -> None:
    """The batch has failed for the stop, and the query has not."""
    ended(failure=ConfigError("interrupted")).stop()
    with pytest.raises(ConfigError, match="told"):
        ended(error=StreamingQueryException("failed"), failure=ConfigError("told")).stop()


def take_the_name_of(pending: Path) -> None:
    """Put foreign bytes where a pending part is to be published."""
    pending.with_name(re.sub(r"^_(.*\.txt).*", r"\1", pending.name)).write_text("not ours")


@pytest.mark.parametrize(
    ("meddle", "kind", "hint"),
    [
        (Path.unlink, PartMissing, "--accept-missing"),
        (take_the_name_of, CommitConflict, "Move it away"),
    ],
)
def test_an_error_about_a_part_names_the_sink_and_its_base(
    tmp_path: Path, meddle: Callable[[Path], None], kind: type[CommitError], hint: str
) -> None:
    """A part's name alone is one of many in an unknown place."""
    job = failing_job(tmp_path, 1, NotApplied("no room"))
    job.checkpoint()
    meddle(next(job.base.glob("a/_*.pending")))
    with pytest.raises(kind) as raised:
        job.coordinator.close_due(0)
    assert raised.value.message.startswith(f"sink 'job' at '{job.base}': part 'a/part-")
    assert hint in raised.value.hint


# What a sink does after something went wrong: it lets go, counts nothing twice and changes nothing too early.


def test_a_write_that_fails_half_way_closes_the_sink(tmp_path: Path) -> None:
    """Some of its rows may be in their parts: a checkpoint afterwards would count those and not the others."""
    good = batch(3, 1)
    bad = pa.RecordBatch.from_pydict({"bucket": ["b0"], "row": [1.5]})
    with make_sink(tmp_path).local() as out:
        out.write(batch(0, 3), position=3)
        out.checkpoint()

        def add(rows: pa.RecordBatch) -> None:
            out.write(rows, position=4)

        add(good)
        with pytest.raises(UnsupportedTypeError):
            add(bad)
        with pytest.raises(PartfileError, match="not open"):
            out.checkpoint()
    run_to_the_end(make_sink(tmp_path))
    assert_exactly_once(tmp_path)


def test_a_refused_start_leaves_no_descriptor_open(tmp_path: Path) -> None:
    """However often it is tried again."""
    run_to_the_end(make_sink(tmp_path), 3)
    newest = max((tmp_path / "_partfile" / "life").glob("chk-*/_metadata"), key=lambda path: int(path.parent.name[4:]))
    newest.write_bytes(b"no checkpoint")
    for _ in range(5):
        with pytest.raises(SnapshotCorrupt):
            make_sink(tmp_path).local().open()
    assert open_below(tmp_path) == set()


def test_starts_that_cannot_publish_do_not_pile_up_checkpoints(tmp_path: Path) -> None:
    """A supervisor may start the sink a hundred times before an operator looks; retention bounds the checkpoint log."""
    out = make_sink(tmp_path, rolling=LONG).local().open()
    out.write(batch(0, 2), position=2)
    out.checkpoint()
    out.close()
    for path in tmp_path.rglob("*.in-progress"):
        path.unlink()
    for _ in range(8):
        with pytest.raises(PartMissing):
            make_sink(tmp_path).local().open()
    assert len(list((tmp_path / "_partfile" / "life").glob("chk-*"))) <= 3


def test_the_checkpoint_log_of_a_subtask_is_no_other_uids(tmp_path: Path) -> None:
    """Subtask 1 of the sink ``a`` and the sink ``a.1`` do not know each other."""
    first = pf.FileSink(tmp_path, uid="a", format="text")
    second = pf.FileSink(tmp_path, uid="a.1", format="text", on_used_base="accept")
    with first.local(subtask_index=1) as one, second.local() as other:
        for out in (one, other):
            out.write(pa.record_batch({"row": ["x"]}))
            out.checkpoint()
    assert sorted(path.name for path in (tmp_path / "_partfile").iterdir()) == ["a.1", "a~1"]


@pytest.mark.parametrize("index", [-1, "x", 1_000_000, None])
def test_a_subtask_index_that_is_none_is_refused(index: Any, tmp_path: Path) -> None:
    """With the option's name and its range."""
    with pytest.raises(ConfigError, match="subtask_index"):
        make_sink(tmp_path).local(subtask_index=index)


@pytest.mark.parametrize(
    "position",
    [float("inf"), float("nan"), (1, 2), b"x", {"a": {1: 2}}, [object()], np.int64(5), np.float64(0.5), {1}],
)
def test_a_position_that_would_not_come_back_is_refused(position: Any, tmp_path: Path) -> None:
    """At once, with its type; the sink stays open and has written nothing."""
    with make_sink(tmp_path).local() as out:
        with pytest.raises(ConfigError, match="position"):
            out.write(batch(0, 1), position=position)
        with pytest.raises(ConfigError, match="position"):
            out.checkpoint(position)
        out.write(batch(0, 1), position={"a": [1, 0.5, None, True, "x"]})
    with make_sink(tmp_path).local() as out:
        assert out.position == {"a": [1, 0.5, None, True, "x"]}
    assert_exactly_once(tmp_path, 1)


def test_rows_that_are_no_arrow_data_are_refused(tmp_path: Path) -> None:
    """With what to do; and so are two columns of one name."""
    rows: Any = {"row": "x"}
    with make_sink(tmp_path).local() as out:
        with pytest.raises(ConfigError, match="rows are one dictionary"):
            out.write(rows)
        with pytest.raises(ConfigError, match="two columns have the name 'row'"):
            out.write(pa.RecordBatch.from_arrays([pa.array(["x"])] * 2, names=["row", "row"]))


def test_a_sink_is_opened_once(tmp_path: Path) -> None:
    """Open or closed, it says what to do instead."""
    out = make_sink(tmp_path).local()
    with out, pytest.raises(PartfileError, match="opened already"):
        out.open()
    with pytest.raises(PartfileError, match="closed already"):
        out.open()


def test_without_a_proven_lock_no_part_is_appended_to(tmp_path: Path) -> None:
    """A part from a host that proves its leases is left to the coordinator by one that does not (R2, R13)."""
    description = pf.FileSink(tmp_path, uid="u", format="text").settings.description

    def run(state: SubtaskSnapshot, row: str, *, may_keep: bool) -> SubtaskSnapshot:
        with LocalStore(str(tmp_path)) as store:
            operator = SinkOperator(store, description)
            operator.open(
                SubtaskContext(subtask=0, attempt=0, epoch=1, chain="0" * 8, batch_time_ms=1, may_keep=may_keep),
                state,
            )
            operator.write(pa.record_batch({"row": [row]}))
            snapshot = operator.snapshot(1)
            operator.close()
            return snapshot

    kept = run(SubtaskSnapshot(subtask=0), "x", may_keep=True)
    after = run(kept, "y", may_keep=False)
    assert [(part.part.valid_length, part.abandoned) for part in after.pending] == [(2, True), (2, False)]
    assert after.pending[0].part == kept.open[0].part


class BeforeTheTakeover:
    """Notes what stands below the base when the takeover is about to be created, and at no later time."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self.seen: dict[str, bytes] | None = None

    def around(self, call: Call, proceed: Callable[[], object]) -> object:
        """Look before the first call that names a ``_metadata``."""
        if self.seen is None and call.name in {"create", "link"} and "_metadata" in map(str, call.arguments):
            self.seen = parts_below(self._base)
        return proceed()


def parts_below(base: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(base)): path.read_bytes()
        for path in base.rglob("*")
        if path.is_file() and "_partfile" not in path.parts
    }


def test_a_start_finalizes_nothing_before_it_holds_its_takeover(tmp_path: Path) -> None:
    """Open parts with a tail stay byte for byte as they are until the takeover is there (R7)."""
    seed_with_a_tail(tmp_path)
    before = parts_below(tmp_path)
    takeover = BeforeTheTakeover(tmp_path)
    make_sink(tmp_path, interceptor=takeover).local().open().close()
    assert takeover.seen == before
    assert parts_below(tmp_path) != before
