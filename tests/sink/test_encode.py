"""Encodes that fail: retries, encoders without the base, rows that can never be encoded."""

from __future__ import annotations

import logging
from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Row

import partfile as pf
from partfile.errors import (
    CommitConflict,
    ConfigError,
    NotReady,
    OutcomeUnknown,
    PartfileError,
    PartMissing,
    UnsupportedTypeError,
)
from partfile.sink.concurrency import MOST_WAIT_MS, wait_ms
from partfile.sink.coordinator import Runtime
from partfile.sink.encode import FIRST_WAIT_MS, EncodeResult, EncodeRetries, LocalEncoder, encode_staging_file
from partfile.sink.encoded_files import EncodedFile, JobFailed, NotItsOwn, SharedJobFailed
from partfile.sink.spark.encode_job import MOST_FAILED_JOBS, EncodeAnswer, EncodeGroups, read_answers
from partfile.sink.states import ClosedStagingFile, StagingFile
from partfile.stores.base import PartHandle
from partfile.stores.local.store import LocalStore
from partfile.testing.harness import SinkHarness
from partfile.version import __version__
from partfile.writers import registry
from partfile.writers.parquet import ParquetFormat
from partfile.writers.registry import format_of
from support.files.encryption import encryption
from support.s3.lost_objects import Elsewhere
from support.sinks.life_cycle import batch
from support.sinks.recovery import giving_all_up, recover_all
from support.sinks.staged_streams import (
    BAD,
    finished_rows,
    leave_staging_files_of_a_refused_spec,
    names,
    staged_sink,
    staging_files_in,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from io import BufferedReader
    from pathlib import Path

    from partfile.sink.coordinator import CommitReport
    from partfile.writers.base import Format


# Staging files that cannot be encoded are left alone for longer and longer, and keep nothing else waiting.

HANDLE = PartHandle(
    bucket="", name="p", in_progress="_i", pending="_p", sidecar="_v", valid_length=1, is_staging_file=True
)
STAGING_FILE = ClosedStagingFile(part=HANDLE, staging_file=StagingFile(spec={"format": "parquet"}), rows=1, since=1)
OTHER = STAGING_FILE.model_copy(update={"part": HANDLE.model_copy(update={"in_progress": "_other"})})
FILE = EncodedFile(part=HANDLE.model_copy(update={"is_staging_file": False}), rows=1, crc32=0)
FAILED = EncodeResult(STAGING_FILE, problem=NotReady("not now"))


class OneBucket:
    """Opens local stores that do not read the staging files of one bucket, and count who asks."""

    def __init__(self) -> None:
        self.is_readable = False
        self.read: Counter[str] = Counter()

    def open_store(self, url: str, _options: object) -> LocalStore:
        """A store on a local directory."""
        return _Store(url, self)


class _Store(LocalStore):
    def __init__(self, url: str, staging_files: OneBucket) -> None:
        super().__init__(url)
        self._staging_files = staging_files

    def open_staging_file(self, handle: PartHandle, *, fences: bool = False) -> BufferedReader:
        self._staging_files.read[handle.bucket] += 1
        if handle.bucket == "bucket=b1" and not self._staging_files.is_readable:
            raise NotReady("not now", path=handle.path_of(handle.in_progress))
        return super().open_staging_file(handle, fences=fences)


def rolling(job: SinkHarness, first: int) -> None:
    """Roll a staging file a bucket by a checkpoint; it is not theirs to encode them then."""
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
    """The second one for a while, the third for twice that; another staging file for nothing."""
    retries = EncodeRetries()
    assert retries.due([STAGING_FILE], 0) == [STAGING_FILE]
    failing(retries, [1000])
    assert retries.due([STAGING_FILE, OTHER], 1000) == [STAGING_FILE, OTHER]
    for wait, now_ms in ((FIRST_WAIT_MS, 1000), (2 * FIRST_WAIT_MS, 50_000)):
        failing(retries, [now_ms])
        assert retries.due([STAGING_FILE, OTHER], now_ms + wait - 1) == [OTHER]
        assert retries.left_ms(STAGING_FILE, now_ms + wait - 1) == 1
        assert retries.due([STAGING_FILE, OTHER], now_ms + wait) == [STAGING_FILE, OTHER]


def test_a_clock_that_goes_back_holds_no_staging_file() -> None:
    """Else a staging file would wait for as long as the clock was wrong."""
    retries = EncodeRetries()
    failing(retries, [10**12, 10**12])
    assert retries.due([STAGING_FILE], 10**12) == []
    assert retries.due([STAGING_FILE], 10**12 - 1) == [STAGING_FILE]


def test_what_is_got_on_with_is_tried_with_the_next_checkpoint() -> None:
    """A multi-bucket staging file that has got files of some buckets may get others."""
    retries = EncodeRetries()
    failing(retries, [0] * 5)
    retries.note([EncodeResult(STAGING_FILE, (FILE,), NotReady("one bucket has none"))], 0)
    assert retries.due([STAGING_FILE], 0) == [STAGING_FILE]
    failing(retries, [0])
    assert retries.left_ms(STAGING_FILE, 0) == FIRST_WAIT_MS


@pytest.mark.parametrize("problem", [None, PartMissing("gone"), PartfileError("no such option")])
def test_what_is_not_for_another_try_is_forgotten(problem: Exception | None) -> None:
    """It is encoded, given up, or stops the sink."""
    retries = EncodeRetries()
    failing(retries, [0, 0])
    retries.note([EncodeResult(STAGING_FILE, None if problem else (FILE,), problem)], 0)
    failing(retries, [0])
    assert retries.left_ms(STAGING_FILE, 0) == 0


def test_a_staging_file_that_was_not_to_blame_is_not_made_to_wait() -> None:
    """It counts neither as a failure nor as an end of those before."""
    retries = EncodeRetries()
    for _ in range(5):
        retries.note([EncodeResult(STAGING_FILE, problem=NotItsOwn("not tried"))], 0)
    assert retries.due([STAGING_FILE], 0) == [STAGING_FILE]
    retries.note([EncodeResult(STAGING_FILE, problem=OutcomeUnknown("no answer"))] * 2, 0)
    retries.note([EncodeResult(STAGING_FILE, problem=NotItsOwn("not tried"))], 0)
    assert retries.left_ms(STAGING_FILE, 0) == FIRST_WAIT_MS


def of_failed_jobs(retries: EncodeRetries, now_ms: int, *, at_once: bool = False) -> None:
    """A call of two jobs that have failed, of one staging file and of several."""
    encoded = [
        EncodeResult(STAGING_FILE, problem=JobFailed("ended")),
        EncodeResult(OTHER, problem=SharedJobFailed("ended")),
    ]
    retries.note(encoded, now_ms, at_once=at_once)


def test_where_all_jobs_fail_all_staging_files_wait() -> None:
    """Also those that nothing is known of.

    The first job that works ends it, but not the wait of a staging file's own.
    """
    new, retries = (
        STAGING_FILE.model_copy(update={"part": HANDLE.model_copy(update={"in_progress": "_new"})}),
        EncodeRetries(),
    )
    of_failed_jobs(retries, 0)
    assert retries.due([OTHER, new], 0) == [OTHER, new]
    of_failed_jobs(retries, 0)
    assert retries.due([STAGING_FILE, OTHER, new], FIRST_WAIT_MS - 1) == []
    assert retries.due([new], FIRST_WAIT_MS) == [new]
    retries.note([EncodeResult(STAGING_FILE, problem=JobFailed("ended"))], 50_000)
    assert retries.left_ms(new, 50_000) == 2 * FIRST_WAIT_MS
    retries.note([EncodeResult(OTHER, (FILE,)), EncodeResult(STAGING_FILE, problem=JobFailed("ended"))], 60_000)
    assert retries.due([STAGING_FILE, OTHER, new], 60_000) == [OTHER, new]


def test_jobs_that_fail_with_a_staging_file_each_keep_no_other_waiting() -> None:
    """Each of them is to blame; nor does storage that ceases to answer in a job that runs."""
    retries = EncodeRetries()
    for _ in range(3):
        retries.note([EncodeResult(STAGING_FILE, problem=JobFailed("ended"))], 0)
        retries.note([FAILED, EncodeResult(OTHER, problem=NotItsOwn("not tried"))], 0)
    assert retries.due([STAGING_FILE, OTHER], 0) == [OTHER]


def test_an_hour_without_a_job_that_works_has_few_of_them() -> None:
    """Batches each twenty seconds would else begin four jobs each, as long as their staging files are parted."""
    staging_files = [
        STAGING_FILE.model_copy(update={"part": HANDLE.model_copy(update={"in_progress": f"_{number}"})})
        for number in range(200)
    ]
    groups, retries, jobs = EncodeGroups(), EncodeRetries(), 0
    for now_ms in range(0, 3_600_000, 20_000):
        due = retries.due(staging_files, now_ms)
        problems: dict[str, JobFailed] = {}
        for number, group in enumerate(groups.of(due)):
            if number >= MOST_FAILED_JOBS:
                groups.not_tried(group)
            else:
                groups.failed(group)
                jobs += 1
            kind = JobFailed if number < MOST_FAILED_JOBS and len(group) == 1 else SharedJobFailed
            problems |= {staging_file.part.in_progress: kind("ended") for staging_file in group}
        if due:
            retries.note(
                [EncodeResult(staging_file, problem=problems[staging_file.part.in_progress]) for staging_file in due],
                now_ms,
            )
    assert jobs <= 50


def test_tries_out_of_turn_make_no_wait_longer() -> None:
    """As of a savepoint that is asked for again and again: of a staging file and of all."""
    retries = EncodeRetries()
    for now_ms in (0, 1000, 2000):
        retries.note([FAILED], now_ms, at_once=now_ms > 0)
        assert retries.left_ms(STAGING_FILE, now_ms) == 0
    failing(retries, [3000])
    for now_ms in (4000, 5000):
        retries.note([FAILED], now_ms, at_once=True)
        assert retries.left_ms(STAGING_FILE, now_ms) == FIRST_WAIT_MS
    for now_ms in (0, 0, 7000, 8000):
        of_failed_jobs(retries, now_ms, at_once=now_ms > 0)
    assert retries.left_ms(OTHER, 8000) == FIRST_WAIT_MS


def test_what_comes_over_the_wire_is_not_made_to_wait_either() -> None:
    """A task's share is tried longest first; where storage ceases to answer for the first, the others go alone."""
    long, tried, retries = STAGING_FILE.model_copy(update={"part": HANDLE.at(900)}), Counter[str](), EncodeRetries()

    class OneDoesNotAnswer(LocalStore):
        def open_staging_file(self, handle: PartHandle, *, fences: bool = False) -> BufferedReader:  # noqa: ARG002
            tried[handle.in_progress] += 1
            raise (OutcomeUnknown if handle.in_progress == "_i" else NotReady)("not now")

    for now_ms in range(0, 100_000, 2000):
        due = retries.due([long, OTHER], now_ms)
        if due:
            with OneDoesNotAnswer("/nowhere") as store:
                told = [EncodeAnswer.of(one).model_dump_json() for one in LocalEncoder(store, 1).encode(due)]
            rows = [Row(submission="this", version=__version__, answer=one.encode()) for one in told]
            retries.note(read_answers(due, "this", rows), now_ms)
    assert tried["_other"] >= tried["_i"] - 2 >= 2


def test_a_stuck_staging_file_is_read_less_and_less_often(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By checkpoints and by ticks of the timer.

    Rows of other staging files come out meanwhile, and the log says when.
    """
    staging_files = OneBucket()
    with SinkHarness(staged_sink(tmp_path, open_store=staging_files.open_store)) as job:
        coordinator = job.runtime.coordinator
        rolling(job, 0)
        staging_files.read.clear()
        begun_ms, tried_ms = job.now_ms, []
        for _ in range(300):
            job.now_ms += 2000
            coordinator.close_due(job.now_ms)
            job.checkpoint()
            if staging_files.read:
                tried_ms.append(job.now_ms - begun_ms)
                staging_files.read.clear()
        assert tried_ms == [2000, 12_000, 32_000, 72_000, 152_000, 312_000]
        assert len(coordinator.state.closed) == 1
        caplog.clear()
        with caplog.at_level(logging.WARNING, "partfile"):
            rolling(job, 2)
        assert staging_files.read["bucket=b0"]
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
    staging_files = OneBucket()
    with SinkHarness(staged_sink(tmp_path, open_store=staging_files.open_store)) as job:
        rolling(job, 0)
        job.checkpoint()
        job.checkpoint()
        staging_files.is_readable = True
        job.checkpoint()
        assert finished_rows(tmp_path) == {"row-0000": 1}
        if by == "start":
            job.restore()
        else:
            job.runtime.coordinator.close_all(job.now_ms)
        assert finished_rows(tmp_path) == names(0, 2)


def test_a_savepoint_can_be_made_of_what_was_waiting(tmp_path: Path) -> None:
    """And what could not be encoded for it waits again."""
    staging_files = OneBucket()
    sink = staged_sink(tmp_path / "out", clock=lambda: 0, open_store=staging_files.open_store)
    with sink.local() as out:
        out.write(batch(0, 2))
        for _ in range(2):
            with pytest.raises(PartfileError, match=r"(?s)1 staging files not be encoded.*ask again, by savepoint"):
                out.savepoint(tmp_path / "savepoints")
        staging_files.read.clear()
        out.checkpoint()
        assert not staging_files.read
        staging_files.is_readable = True
        out.savepoint(tmp_path / "savepoints")
        assert finished_rows(tmp_path / "out") == names(0, 2)


# An encoder that does not see the base: what it misses is not gone, and is not given up.


def leave_staging_files(base: Path) -> None:
    """Four rows in staging files whose sink has died."""
    out = staged_sink(base).local().open()
    out.write(batch(0, 4))
    out.checkpoint()
    out.close()


def start_with_encoder_of(other: Path, base: Path) -> CommitReport:
    """A start that gives missing parts up, whose encoder works on another disk."""
    settings = staged_sink(base).settings
    runtime = Runtime(settings, "life", encoder=lambda _storage, _here: Elsewhere(LocalStore(str(other)), 1))
    try:
        return runtime.coordinator.start(lambda _position: None, 10**12, giving_all_up(runtime))
    finally:
        runtime.close()


def test_a_staging_file_that_only_its_encoder_misses_is_not_given_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The coordinator looks itself: it is tried again by a start whose encoder sees the base, and every row comes."""
    base, other = tmp_path / "out", tmp_path / "other"
    other.mkdir()
    leave_staging_files(base)
    with caplog.at_level(logging.WARNING, "partfile"):
        report = start_with_encoder_of(other, base)
    assert (report.given_up, report.encoded) == (0, 0)
    assert "missed by the worker that was to encode it, and is there" in caplog.text
    with staged_sink(base).local():
        assert finished_rows(base) == names(0, 4)


@pytest.mark.parametrize("harm", ["gone", "short"])
def test_a_staging_file_that_the_coordinator_misses_too_is_given_up(tmp_path: Path, harm: str) -> None:
    """By a recovery that is told to; it stops a start."""
    leave_staging_files(tmp_path)
    staging_file = staging_files_in(tmp_path)[0]
    if harm == "gone":
        staging_file.unlink()
    else:
        staging_file.write_bytes(staging_file.read_bytes()[:-1])
    with pytest.raises(PartMissing):
        staged_sink(tmp_path).local().open()
    recover_all(tmp_path, accept_missing=True)
    with staged_sink(tmp_path).local():
        assert finished_rows(tmp_path) == {"row-0001": 1, "row-0003": 1}


# Rows that can never be encoded are not staged; and a staging file whose format spec is refused all the same is no dead
# end.


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("parquet", {"row_group_bytes": 64e6}, ["row_group_bytes=64000000.0", "Write 64000000."]),
        ("parquet", {"row_group_rows": 1e6}, ["row_group_rows", "Write 1000000."]),
        ("parquet", {"sort_by": "n"}, ["sort_by='n'", "Write ('n',)."]),
        ("parquet", {"dictionary": "n"}, ["dictionary='n'", "Write ('n',). Or True or False,"]),
        ("parquet", {"compression_level": 5}, ["compression='snappy'", "compression_level=5"]),
        ("parquet", {"encryption": 7}, ["encryption has a wrong type"]),
        ("orc", {"stripe_bytes": 1e7}, ["stripe_bytes", "Write 10000000."]),
        ("orc", {"dictionary_threshold": "0.5"}, ["dictionary_threshold='0.5'", "Write 0.5."]),
        ("avro", {"block_bytes": 1e5}, ["block_bytes"]),
        ("csv", {"header": 1}, ["header=1", "Write True."]),
        ("json", {"non_finite": None}, ["non_finite=None"]),
        ("text", {"line_separator": b"\n"}, ["line_separator"]),
    ],
)
def test_an_option_of_a_wrong_type_makes_no_sink(
    tmp_path: Path, kind: str, options: dict[str, Any], words: list[str]
) -> None:
    """It would be in the format spec of each staging file; the error says which option it is, and how to write it."""
    with pytest.raises(ConfigError) as refused:
        pf.FileSink(tmp_path, uid="life", format=kind, format_options=options)
    assert all(word in str(refused.value) for word in words), str(refused.value)


def test_a_level_of_another_type_makes_no_sink(tmp_path: Path) -> None:
    """Of lines, too, which many buckets staging file."""
    with pytest.raises(ConfigError, match=r"level=1\.0"):
        pf.FileSink(tmp_path, uid="life", format="json", compression="gzip", format_options={"compression_level": 1.0})
    with pytest.raises(ConfigError, match="compression_level=100"):
        pf.FileSink(
            tmp_path, uid="life", format="parquet", compression="gzip", format_options={"compression_level": 100}
        )


def test_a_list_stands_for_a_tuple(tmp_path: Path) -> None:
    """And is one in the format spec, so that both are the same format."""
    sink = pf.FileSink(tmp_path, uid="life", format=ParquetFormat(sort_by=["n"]))  # type: ignore[arg-type]
    assert sink.settings.format == ParquetFormat(sort_by=("n",))


def test_a_spec_that_does_not_come_back_makes_no_sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the reason, the option is named before a row is staged."""
    form = ParquetFormat(row_group_rows=7)

    def forgetful(spec: Any, sink_format: Format | None = None) -> Format:
        return format_of({name: value for name, value in spec.items() if name != "row_group_rows"}, sink_format)

    monkeypatch.setattr(registry, "format_of", forgetful)
    with pytest.raises(ConfigError, match="option row_group_rows cannot be kept"):
        pf.FileSink(tmp_path, uid="life", format=form)


def _one(values: Any, kind: Any, *, nullable: bool = True) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, kind)], schema=pa.schema([pa.field("x", kind, nullable)]))


_INNER = pa.struct([pa.field("n", pa.int64(), nullable=False)])
_REFUSED: dict[str, tuple[pa.RecordBatch, dict[str, Any], type[Exception]]] = {
    "a null where none may be": (_one([1, None], pa.int64(), nullable=False), {}, ConfigError),
    "the same in a struct": (
        pa.record_batch(
            [pa.StructArray.from_arrays([pa.array([1, None])], fields=list(_INNER))],
            schema=pa.schema([pa.field("x", _INNER, nullable=False)]),
        ),
        {},
        ConfigError,
    ),
    "seconds beyond milliseconds": (_one([1, 2**61], pa.timestamp("s")), {}, ConfigError),
    "the same in a list": (_one([[2**61]], pa.list_(pa.timestamp("s"))), {}, ConfigError),
    "the same in a dictionary": (
        pa.record_batch({"x": pa.array([2**61], pa.timestamp("s")).dictionary_encode()}),
        {},
        ConfigError,
    ),
    "a filter of truth": (_one([True], pa.bool_()), {"bloom_filter_columns": ("x",)}, UnsupportedTypeError),
    "a filter of nothing": (
        _one([{"n": 1}], pa.struct({"n": pa.int64()})),
        {"bloom_filter_columns": ("x.y",)},
        ConfigError,
    ),
}


@pytest.mark.parametrize("columnar", ["staged", "per_checkpoint"])
@pytest.mark.parametrize("case", _REFUSED)
def test_rows_that_cannot_be_encoded_are_not_taken(tmp_path: Path, columnar: Any, case: str) -> None:
    """The batch that brings them fails, with the column's name, and no staging file holds them."""
    rows, options, kind = _REFUSED[case]
    sink = pf.FileSink(tmp_path, uid="life", format=ParquetFormat(**options), columnar=columnar)
    out = sink.local().open()
    with pytest.raises(kind, match="'x"):
        out.write(rows)
    with sink.local():
        assert list(tmp_path.glob("part-*")) == []


def test_rows_that_look_dangerous_and_are_not_are_taken(tmp_path: Path) -> None:
    """Columns without nulls, seconds of our time, and nulls where they may be."""
    rows = pa.record_batch(
        [
            pa.array([1, 2]),
            pa.array([0, None], pa.timestamp("s")),
            pa.array([{"n": 1}, {"n": 2}], _INNER),
            pa.array([Decimal(1), None], pa.decimal128(5, 2)),
            pa.array([[("k", None)], None], pa.map_(pa.string(), pa.timestamp("s"))),
        ],
        schema=pa.schema(
            [
                pa.field("a", pa.int64(), nullable=False),
                pa.field("b", pa.timestamp("s")),
                pa.field("c", _INNER, nullable=False),
                pa.field("d", pa.decimal128(5, 2)),
                pa.field("e", pa.map_(pa.string(), pa.timestamp("s"))),
            ]
        ),
    )
    with pf.FileSink(tmp_path, uid="life", format="parquet").local() as out:
        out.write(rows)
    (path,) = tmp_path.glob("part-*")
    assert pq.read_table(path)["a"].to_pylist() == [1, 2]


def test_a_start_with_options_that_work_gets_past_a_refused_spec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The sink's own format of the same kind stands in, and says so."""
    leave_staging_files_of_a_refused_spec(tmp_path, monkeypatch)
    with caplog.at_level(logging.WARNING, "partfile"), staged_sink(tmp_path).local():
        assert finished_rows(tmp_path) == names(0, 4)
    assert "the sink's own format takes the place" in caplog.text


def test_what_arrow_refuses_while_it_writes_is_got_past_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The format spec is one, but no file comes of it: an error with the staging file, a reason and a way out.

    Then the way out.
    """
    leave_staging_files_of_a_refused_spec(tmp_path, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr("partfile.writers.parquet.check_level", lambda *_: None)
        for other in (ParquetFormat(**BAD), "orc"):
            with pytest.raises(PartfileError, match="cannot be encoded: ArrowInvalid") as failed:
                staged_sink(tmp_path, format=other).local().open()
            assert "sink 'life' at" in failed.value.message
            assert failed.value.path is not None
            assert failed.value.path.endswith(".in-progress")
            assert "Start the sink with format='parquet' and options that work" in failed.value.hint
        with staged_sink(tmp_path).local():
            assert finished_rows(tmp_path) == names(0, 4)


def test_no_plain_format_stands_in_for_encryption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was to be encrypted is not written in the clear because another option is wrong."""
    leave_staging_files_of_a_refused_spec(tmp_path, monkeypatch, encryption=encryption)
    with pytest.raises(ConfigError, match="cannot be encoded"):
        staged_sink(tmp_path).local().open()
    assert finished_rows(tmp_path) == {}
    assert len(staging_files_in(tmp_path)) == 2


@pytest.mark.parametrize(
    ("where", "what", "trouble"),
    [
        (ParquetFormat, "encode", MemoryError("too much")),
        (ParquetFormat, "encode", OSError(24, "Too many open files")),
        (pa.ipc, "open_stream", pa.ArrowMemoryError("malloc of size 268435456 failed")),
    ],
    ids=["memory", "files", "memory while it is read"],
)
def test_trouble_of_the_host_is_worth_another_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: Any, what: str, trouble: Exception
) -> None:
    """It says nothing of the staging file, which stays rolled until a process has what it needs."""
    out = staged_sink(tmp_path).local().open()
    out.write(batch(0, 4))
    out.checkpoint()
    out.close()

    def fail(*_arguments: object, **_options: object) -> int:
        raise trouble

    with monkeypatch.context() as patch:
        patch.setattr(where, what, fail)
        runtime = Runtime(staged_sink(tmp_path).settings, "life")
        runtime.coordinator.start(lambda _position: None, 10**12)
        (staging_file, _other) = runtime.coordinator.state.closed
        with pytest.raises(NotReady, match="is not encoded"):
            encode_staging_file(runtime.store, staging_file.part, staging_file.staging_file, staging_file.rows)
        runtime.close()
    with staged_sink(tmp_path).local():
        assert finished_rows(tmp_path) == names(0, 4)


class _NotIn(LocalStore):
    """Reads no staging file of one bucket, as long as it is told one."""

    unreadable = ""

    def open_staging_file(self, handle: PartHandle, *, fences: bool = False) -> BufferedReader:
        if handle.bucket == self.unreadable:
            raise NotReady("not now", path=handle.path_of(handle.in_progress))
        return super().open_staging_file(handle, fences=fences)


def test_a_part_in_conflict_keeps_no_staging_file_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The start ends with the conflict once the staging file beside it is encoded and its part published."""
    sink = staged_sink(tmp_path, open_store=lambda url, _options: _NotIn(url))
    out = sink.local().open()
    out.write(batch(0, 2))
    out.checkpoint()
    out.close()
    (staged,) = (tmp_path / "bucket=b0").glob("_part-*")
    taken = staged.with_name(staged.name[1:].partition(".parquet")[0] + ".parquet")
    taken.write_bytes(b"another program's")
    with monkeypatch.context() as patch:
        patch.setattr(_NotIn, "unreadable", "bucket=b1")
        with pytest.raises(CommitConflict):
            sink.local().open()
    assert not list((tmp_path / "bucket=b1").glob("part-*"))
    with pytest.raises(CommitConflict):
        sink.local().open()
    assert list((tmp_path / "bucket=b1").glob("part-*"))
    taken.unlink()
    with sink.local():
        assert finished_rows(tmp_path) == names(0, 2)
