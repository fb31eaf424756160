"""Stages that cannot be encoded are left alone for longer and longer, and keep nothing else waiting."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from life_cycle import batch
from pyspark.sql import Row
from staged_streams import finished_rows, names, staged_sink

from partfile.errors import NotReady, OutcomeUnknown, PartfileError, PartMissing
from partfile.sink.concurrency import MOST_WAIT_MS, wait_ms
from partfile.sink.encode import FIRST_WAIT_MS, EncodedStage, EncodeRetries, StagesInProcess
from partfile.sink.encoded_files import EncodedFile, JobFailed, NotItsOwn, SharedJobFailed
from partfile.sink.spark.encode_job import MOST_FAILED_JOBS, EncodeAnswer, EncodeGroups, read_answers
from partfile.sink.states import RolledStage, Stage
from partfile.stores.base import PartHandle
from partfile.stores.local.store import LocalStore
from partfile.testing.harness import SinkHarness
from partfile.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable
    from io import BufferedReader
    from pathlib import Path

HANDLE = PartHandle(bucket="", name="p", in_progress="_i", pending="_p", sidecar="_v", valid_length=1, is_stage=True)
STAGE = RolledStage(part=HANDLE, stage=Stage(recipe={"format": "parquet"}), rows=1, since=1)
OTHER = STAGE.model_copy(update={"part": HANDLE.model_copy(update={"in_progress": "_other"})})
FILE = EncodedFile(part=HANDLE.model_copy(update={"is_stage": False}), rows=1, crc32=0)
FAILED = EncodedStage(STAGE, problem=NotReady("not now"))


class OneBucket:
    """Opens local stores that do not read the stages of one bucket, and count who asks."""

    def __init__(self) -> None:
        self.is_readable = False
        self.read: Counter[str] = Counter()

    def open_store(self, url: str, _options: object) -> LocalStore:
        """A store on a local directory."""
        return _Store(url, self)


class _Store(LocalStore):
    def __init__(self, url: str, stages: OneBucket) -> None:
        super().__init__(url)
        self._stages = stages

    def open_stage(self, handle: PartHandle, *, fences: bool = False) -> BufferedReader:
        self._stages.read[handle.bucket] += 1
        if handle.bucket == "bucket=b1" and not self._stages.is_readable:
            raise NotReady("not now", path=handle.path_of(handle.in_progress))
        return super().open_stage(handle, fences=fences)


def rolling(job: SinkHarness, first: int) -> None:
    """Roll a stage a bucket by a checkpoint; it is not theirs to encode them then."""
    job.process(batch(first, 2))
    job.operators[0].roll_all()
    job.checkpoint()


def failing(retries: EncodeRetries, times_ms: Iterable[int]) -> None:
    for now_ms in times_ms:
        retries.note([FAILED], now_ms)


def test_waits_double_up_to_ten_minutes() -> None:
    """Whatever the number of failures, and however long the first wait is."""
    assert [wait_ms(failures, 10_000) for failures in range(1, 9)] == [
        10_000,
        20_000,
        40_000,
        80_000,
        160_000,
        320_000,
        MOST_WAIT_MS,
        MOST_WAIT_MS,
    ]
    assert wait_ms(10**9, 1) == MOST_WAIT_MS
    assert [wait_ms(failures, 2 * MOST_WAIT_MS) for failures in (1, 2)] == [2 * MOST_WAIT_MS] * 2


def test_the_first_retry_waits_for_the_next_checkpoint_alone() -> None:
    """The second one for a while, the third for twice that; another stage for nothing."""
    retries = EncodeRetries()
    assert retries.due([STAGE], 0) == [STAGE]
    failing(retries, [1000])
    assert retries.due([STAGE, OTHER], 1000) == [STAGE, OTHER]
    for wait, now_ms in ((FIRST_WAIT_MS, 1000), (2 * FIRST_WAIT_MS, 50_000)):
        failing(retries, [now_ms])
        assert retries.due([STAGE, OTHER], now_ms + wait - 1) == [OTHER]
        assert retries.left_ms(STAGE, now_ms + wait - 1) == 1
        assert retries.due([STAGE, OTHER], now_ms + wait) == [STAGE, OTHER]


def test_a_clock_that_goes_back_holds_no_stage() -> None:
    """Else a stage would wait for as long as the clock was wrong."""
    retries = EncodeRetries()
    failing(retries, [10**12, 10**12])
    assert retries.due([STAGE], 10**12) == []
    assert retries.due([STAGE], 10**12 - 1) == [STAGE]


def test_what_is_got_on_with_is_tried_with_the_next_checkpoint() -> None:
    """A shared stage that has got files of some buckets may get others."""
    retries = EncodeRetries()
    failing(retries, [0] * 5)
    retries.note([EncodedStage(STAGE, (FILE,), NotReady("one bucket has none"))], 0)
    assert retries.due([STAGE], 0) == [STAGE]
    failing(retries, [0])
    assert retries.left_ms(STAGE, 0) == FIRST_WAIT_MS


@pytest.mark.parametrize("problem", [None, PartMissing("gone"), PartfileError("no such option")])
def test_what_is_not_for_another_try_is_forgotten(problem: Exception | None) -> None:
    """It is encoded, given up, or stops the sink."""
    retries = EncodeRetries()
    failing(retries, [0, 0])
    retries.note([EncodedStage(STAGE, None if problem else (FILE,), problem)], 0)
    failing(retries, [0])
    assert retries.left_ms(STAGE, 0) == 0


def test_a_stage_that_was_not_to_blame_is_not_made_to_wait() -> None:
    """It counts neither as a failure nor as an end of those before."""
    retries = EncodeRetries()
    for _ in range(5):
        retries.note([EncodedStage(STAGE, problem=NotItsOwn("not tried"))], 0)
    assert retries.due([STAGE], 0) == [STAGE]
    retries.note([EncodedStage(STAGE, problem=OutcomeUnknown("no answer"))] * 2, 0)
    retries.note([EncodedStage(STAGE, problem=NotItsOwn("not tried"))], 0)
    assert retries.left_ms(STAGE, 0) == FIRST_WAIT_MS


def of_failed_jobs(retries: EncodeRetries, now_ms: int, *, at_once: bool = False) -> None:
    """A call of two jobs that have failed, of one stage and of several."""
    encoded = [EncodedStage(STAGE, problem=JobFailed("ended")), EncodedStage(OTHER, problem=SharedJobFailed("ended"))]
    retries.note(encoded, now_ms, at_once=at_once)


def test_where_all_jobs_fail_all_stages_wait() -> None:
    """Also those that nothing is known of; the first job that works ends it, but not the wait of a stage's own."""
    new, retries = STAGE.model_copy(update={"part": HANDLE.model_copy(update={"in_progress": "_new"})}), EncodeRetries()
    of_failed_jobs(retries, 0)
    assert retries.due([OTHER, new], 0) == [OTHER, new]
    of_failed_jobs(retries, 0)
    assert retries.due([STAGE, OTHER, new], FIRST_WAIT_MS - 1) == []
    assert retries.due([new], FIRST_WAIT_MS) == [new]
    retries.note([EncodedStage(STAGE, problem=JobFailed("ended"))], 50_000)
    assert retries.left_ms(new, 50_000) == 2 * FIRST_WAIT_MS
    retries.note([EncodedStage(OTHER, (FILE,)), EncodedStage(STAGE, problem=JobFailed("ended"))], 60_000)
    assert retries.due([STAGE, OTHER, new], 60_000) == [OTHER, new]


def test_jobs_that_fail_with_a_stage_each_keep_no_other_waiting() -> None:
    """Each of them is to blame; nor does storage that ceases to answer in a job that runs."""
    retries = EncodeRetries()
    for _ in range(3):
        retries.note([EncodedStage(STAGE, problem=JobFailed("ended"))], 0)
        retries.note([FAILED, EncodedStage(OTHER, problem=NotItsOwn("not tried"))], 0)
    assert retries.due([STAGE, OTHER], 0) == [OTHER]


def test_an_hour_without_a_job_that_works_has_few_of_them() -> None:
    """Batches each twenty seconds would else begin four jobs each, as long as their stages are parted."""
    stages = [
        STAGE.model_copy(update={"part": HANDLE.model_copy(update={"in_progress": f"_{number}"})})
        for number in range(200)
    ]
    groups, retries, jobs = EncodeGroups(), EncodeRetries(), 0
    for now_ms in range(0, 3_600_000, 20_000):
        due = retries.due(stages, now_ms)
        problems: dict[str, JobFailed] = {}
        for number, group in enumerate(groups.of(due)):
            if number >= MOST_FAILED_JOBS:
                groups.not_tried(group)
            else:
                groups.failed(group)
                jobs += 1
            kind = JobFailed if number < MOST_FAILED_JOBS and len(group) == 1 else SharedJobFailed
            problems |= {stage.part.in_progress: kind("ended") for stage in group}
        if due:
            retries.note([EncodedStage(stage, problem=problems[stage.part.in_progress]) for stage in due], now_ms)
    assert jobs <= 50


def test_tries_out_of_turn_make_no_wait_longer() -> None:
    """As of a savepoint that is asked for again and again: of a stage and of all."""
    retries = EncodeRetries()
    for now_ms in (0, 1000, 2000):
        retries.note([FAILED], now_ms, at_once=now_ms > 0)
        assert retries.left_ms(STAGE, now_ms) == 0
    failing(retries, [3000])
    for now_ms in (4000, 5000):
        retries.note([FAILED], now_ms, at_once=True)
        assert retries.left_ms(STAGE, now_ms) == FIRST_WAIT_MS
    for now_ms in (0, 0, 7000, 8000):
        of_failed_jobs(retries, now_ms, at_once=now_ms > 0)
    assert retries.left_ms(OTHER, 8000) == FIRST_WAIT_MS


def test_what_comes_over_the_wire_is_not_made_to_wait_either() -> None:
    """A task's share is tried longest first; where storage ceases to answer for the first, the others go alone."""
    long, tried, retries = STAGE.model_copy(update={"part": HANDLE.at(900)}), Counter[str](), EncodeRetries()

    class OneDoesNotAnswer(LocalStore):
        def open_stage(self, handle: PartHandle, *, fences: bool = False) -> BufferedReader:  # noqa: ARG002
            tried[handle.in_progress] += 1
            raise (OutcomeUnknown if handle.in_progress == "_i" else NotReady)("not now")

    for now_ms in range(0, 100_000, 2000):
        due = retries.due([long, OTHER], now_ms)
        if due:
            with OneDoesNotAnswer("/nowhere") as store:
                told = [EncodeAnswer.of(one).model_dump_json() for one in StagesInProcess(store, 1).encode(due)]
            rows = [Row(submission="this", version=__version__, answer=one.encode()) for one in told]
            retries.note(read_answers(due, "this", rows), now_ms)
    assert tried["_other"] >= tried["_i"] - 2 >= 2


def test_a_stuck_stage_is_read_less_and_less_often(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By checkpoints and by turns of the timer; rows of other stages come out meanwhile, and the log says when."""
    stages = OneBucket()
    with SinkHarness(staged_sink(tmp_path, open_store=stages.open_store)) as job:
        coordinator = job.runtime.coordinator
        rolling(job, 0)
        stages.read.clear()
        begun_ms, tried_ms = job.now_ms, []
        for _ in range(300):
            job.now_ms += 2000
            coordinator.close_due(job.now_ms)
            job.checkpoint()
            if stages.read:
                tried_ms.append(job.now_ms - begun_ms)
                stages.read.clear()
        assert tried_ms == [2000, 12_000, 32_000, 72_000, 152_000, 312_000]
        assert len(coordinator.state.rolled) == 1
        caplog.clear()
        with caplog.at_level(logging.WARNING, "partfile"):
            rolling(job, 2)
        assert stages.read["bucket=b0"]
        assert finished_rows(tmp_path) == {"row-0000": 1, "row-0002": 1}
        assert "and is tried again with the next checkpoint" in caplog.text
        assert "at the earliest" not in caplog.text
        with caplog.at_level(logging.WARNING, "partfile"):
            job.checkpoint()
        assert "and is tried again in 10 s at the earliest" in caplog.text
        caplog.clear()
        coordinator.close_all(job.now_ms)
        assert "is not wholly encoded yet, and is left for later" in caplog.text
        assert "tried again" not in caplog.text


@pytest.mark.parametrize("by", ["clean end", "start"])
def test_a_clean_end_and_a_start_wait_for_nothing(tmp_path: Path, by: str) -> None:
    """Nor does a savepoint, which is a clean end without the end."""
    stages = OneBucket()
    with SinkHarness(staged_sink(tmp_path, open_store=stages.open_store)) as job:
        rolling(job, 0)
        job.checkpoint()
        job.checkpoint()
        stages.is_readable = True
        job.checkpoint()
        assert finished_rows(tmp_path) == {"row-0000": 1}
        if by == "start":
            job.restore()
        else:
            job.runtime.coordinator.close_all(job.now_ms)
        assert finished_rows(tmp_path) == names(0, 2)


def test_a_savepoint_can_be_made_of_what_was_waiting(tmp_path: Path) -> None:
    """And what could not be encoded for it waits again."""
    stages = OneBucket()
    sink = staged_sink(tmp_path / "out", clock=lambda: 0, open_store=stages.open_store)
    with sink.local() as out:
        out.write(batch(0, 2))
        for _ in range(2):
            with pytest.raises(PartfileError, match=r"1 stages not be encoded.*ask again: they are tried at once"):
                out.savepoint(tmp_path / "savepoints")
        stages.read.clear()
        out.checkpoint()
        assert not stages.read
        stages.is_readable = True
        out.savepoint(tmp_path / "savepoints")
        assert finished_rows(tmp_path / "out") == names(0, 2)
