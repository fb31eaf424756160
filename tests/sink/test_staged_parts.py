"""Staged columnar parts in a run without crashes: their rolls, compression and encryption."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import partfile as pf
from partfile.errors import ConfigError, LeaseUnavailable, NotReady
from partfile.sink.layout import SubtaskContext
from partfile.sink.operator import SinkOperator
from partfile.sink.states import SubtaskSnapshot
from partfile.stores.local.store import LocalStore
from partfile.testing.harness import SinkHarness
from partfile.writers.parquet import ParquetFormat
from support.files.encryption import decrypted_ids, encryption, is_encrypted
from support.sinks.life_cycle import LONG, batch, finished_files, make_sink
from support.sinks.staged_streams import checkpoint_ids, finished_rows, names, pending_in, staged_sink, staging_files_in

if TYPE_CHECKING:
    from io import BufferedReader
    from pathlib import Path

    from partfile.stores.base import Capabilities, PartHandle, PartStream


# Staged columnar parts in a run without crashes: open over many checkpoints, one well-sized file at the roll.


def rolling(**changes: Any) -> pf.RollingPolicy:
    return LONG.model_copy(update=changes)


def numbers(first: int, count: int) -> pa.RecordBatch:
    """Rows of which neither LZ4 nor Parquet makes much less."""
    rows = [f"row-{number:04d}" for number in range(first, first + count)]
    noise = random.Random(first).randbytes(8 * count)
    return pa.RecordBatch.from_pydict({"bucket": ["b"] * count, "row": rows, "noise": np.frombuffer(noise, np.int64)})


def test_a_part_stays_open_over_many_checkpoints_and_becomes_one_file(tmp_path: Path) -> None:
    """Two buckets, six checkpoints: two files with every row, of which readers see nothing before the end."""
    with staged_sink(tmp_path).local() as out:
        for first in range(0, 18, 3):
            out.write(batch(first, 3))
            out.checkpoint()
            assert finished_files(tmp_path) == {}
            assert len(staging_files_in(tmp_path)) == 2
    assert len(finished_files(tmp_path)) == 2
    assert finished_rows(tmp_path) == names(0, 18)
    assert pending_in(tmp_path) == []


def test_per_checkpoint_writes_a_file_a_checkpoint(tmp_path: Path) -> None:
    """What staging is there to avoid; and no staging file is ever made."""
    with staged_sink(tmp_path, columnar="per_checkpoint").local() as out:
        for first in range(0, 18, 3):
            out.write(batch(first, 3))
            out.checkpoint()
            assert staging_files_in(tmp_path) == []
    assert len(finished_files(tmp_path)) == 12
    assert finished_rows(tmp_path) == names(0, 18)


@pytest.mark.slow
def test_a_full_staging_file_is_encoded_by_its_task(tmp_path: Path) -> None:
    """It rolls by size before further rows, and at a checkpoint; its file needs no checkpoint of its own."""
    with SinkHarness(staged_sink(tmp_path, rolling=rolling(max_part_bytes=2 << 20))) as job:
        job.checkpoint()
        for first in range(0, 900_000, 100_000):
            job.process(numbers(first, 100_000))
        checkpoints = checkpoint_ids(tmp_path)
        done = job.checkpoint()
        assert done.checkpoint_id == checkpoints[-1] + 1
        assert done.published == len(finished_files(tmp_path)) > 2
        assert job.runtime.coordinator.state.closed == ()
        assert 0.1 < (job.runtime.coordinator.state.position.encoded_ratio or 0) < 2
        job.operators[0].roll_all()
        job.checkpoint()
    assert finished_rows(tmp_path) == names(0, 900_000)


@pytest.mark.parametrize("policy", [{"rollover_interval_s": 50}, {"inactivity_interval_s": 50}], ids=str)
def test_the_timer_encodes_what_is_due_by_one_checkpoint(tmp_path: Path, policy: dict[str, float]) -> None:
    """The file is encoded before the checkpoint that promises it."""
    with SinkHarness(staged_sink(tmp_path, rolling=rolling(**policy))) as job:
        job.process(batch(0, 4))
        before = job.checkpoint()
        assert job.runtime.coordinator.close_due(49_999) is None
        done = job.runtime.coordinator.close_due(50_000)
        assert done is not None
        assert (done.checkpoint_id, done.published) == (before.checkpoint_id + 1, 2)
        assert finished_rows(tmp_path) == names(0, 4)
        assert job.runtime.coordinator.close_due(60_000) is None


def test_a_staging_file_that_is_due_in_a_batch_without_its_rows_is_encoded_after_it(tmp_path: Path) -> None:
    """The batch's checkpoint reports it as rolled, and one of its own publishes the file."""
    with SinkHarness(staged_sink(tmp_path, rolling=rolling(inactivity_interval_s=50))) as job:
        job.process(batch(0, 1))
        before = job.checkpoint()
        # Another run of the same epoch: the part is assigned, and no task writes it.
        operator = SinkOperator(job.runtime.store, job.sink.settings.description)
        (share,) = job.runtime.coordinator.assignment()
        job.operators.pop().close()
        job.now_ms = 60_000
        operator.open(job._context(0), share)
        job.operators.append(operator)
        job.process(batch(1, 1))
        done = job.checkpoint()
        assert (done.checkpoint_id, done.published) == (before.checkpoint_id + 2, 1)
        assert finished_rows(tmp_path) == names(0, 1)
        assert operator.snapshot(done.checkpoint_id + 1).closed == ()


def test_staging_files_beyond_the_cap_are_set_aside_not_encoded(tmp_path: Path) -> None:
    """One part open at a time, rows for two buckets in turn: still one file a bucket."""
    with staged_sink(tmp_path, max_open_parts=1).local() as out:
        for first in range(8):
            out.write(batch(first, 1))
            if first % 3 == 2:
                out.checkpoint()
    assert len(finished_files(tmp_path)) == 2
    assert finished_rows(tmp_path) == names(0, 8)


@pytest.mark.parametrize("may_keep", [True, False])
def test_a_later_attempt_goes_on_with_what_it_has_set_aside_itself(tmp_path: Path, *, may_keep: bool) -> None:
    """No other task has ever written it. Where no part may stay open, it is rolled with the checkpoint."""
    sink = staged_sink(tmp_path, max_open_parts=1)
    context = SubtaskContext(0, 1, 1, "0" * 8, 0, may_keep=may_keep, may_stage=True)
    with LocalStore(str(tmp_path)) as store:
        operator = SinkOperator(store, sink.settings.description)
        operator.open(context, SubtaskSnapshot(subtask=0))
        for first in range(6):
            operator.write(batch(first, 1))
        state = operator.snapshot(1)
        operator.close()
    left = [*(part.rows for part in state.pending), *(staging_file.rows for staging_file in state.closed)]
    assert sorted([part.rows for part in state.open] if may_keep else left) == [3, 3]
    assert bool(state.open) is may_keep
    assert len(staging_files_in(tmp_path)) == 2
    assert len(state.encoded) == len(pending_in(tmp_path)) == (0 if may_keep else 1)


def test_another_schema_takes_another_part(tmp_path: Path) -> None:
    """Rows of two schemas are never in one staging file."""
    wider = batch(2, 2).append_column("more", pa.array([1, 2]))
    with staged_sink(tmp_path).local() as out:
        for rows in (batch(0, 2), wider, batch(4, 2)):
            out.write(rows)
            out.checkpoint()
    files = [pq.read_schema(path).names for path in tmp_path.glob("*/part-*.parquet")]
    assert sorted(files) == [["row"], ["row"], ["row", "more"], ["row", "more"]]
    assert finished_rows(tmp_path) == names(0, 6)


def test_kept_staging_files_are_gone_on_with(tmp_path: Path) -> None:
    """A clean stop hands them to the next run, which ends with one file a bucket."""
    for first in (0, 3, 6):
        with staged_sink(tmp_path, on_stop="keep").local() as out:
            out.write(batch(first, 3))
        assert finished_files(tmp_path) == {}
    with staged_sink(tmp_path).local():
        pass
    assert len(finished_files(tmp_path)) == 2
    assert finished_rows(tmp_path) == names(0, 9)


@pytest.mark.parametrize("retained", [1, 2, 4])
def test_an_encoded_staging_file_is_deleted_once_no_retained_checkpoint_needs_it(tmp_path: Path, retained: int) -> None:
    """As long as a checkpoint is there that holds it as data, so is the staging file.

    With the last such checkpoint it goes.
    """
    with SinkHarness(staged_sink(tmp_path, retained_checkpoints=retained)) as job:
        job.process(batch(0, 2))
        job.checkpoint()
        job.operators[0].roll_all()
        done = job.checkpoint()
        while is_needed := checkpoint_ids(tmp_path)[0] < done.checkpoint_id:
            assert len(staging_files_in(tmp_path)) == len(job.runtime.coordinator.state.encoded) == 2
            job.checkpoint()
        assert not is_needed
        assert len(staging_files_in(tmp_path)) == len(job.runtime.coordinator.state.encoded) == 0
        assert len(checkpoint_ids(tmp_path)) == retained
        assert finished_rows(tmp_path) == names(0, 2)


def test_a_staging_file_that_another_process_holds_is_left_to_the_cleaner(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It cannot be deleted; the state lets go of it all the same, so that it stays bounded."""
    sink = staged_sink(tmp_path, retained_checkpoints=1)
    with SinkHarness(sink) as job, LocalStore(str(tmp_path)) as zombie:
        job.process(batch(0, 1))
        job.checkpoint()
        (assigned,) = job.runtime.coordinator.assignment()
        job.operators.pop().close()
        held: PartStream = zombie.resume(assigned.open[0].part)
        with caplog.at_level(logging.WARNING, "partfile"):
            job.runtime.coordinator.close_all(0)
        assert job.runtime.coordinator.state.encoded == ()
        assert "cannot be deleted" in caplog.text
        assert len(staging_files_in(tmp_path)) == 1
        with pytest.raises(LeaseUnavailable):
            zombie.discard(assigned.open[0].part)
        held.close()


class WithoutStagingFiles(LocalStore):
    """A store that shows no reader what is not finished."""

    @property
    def capabilities(self) -> Capabilities:
        """Everything but staging files."""
        return super().capabilities.model_copy(update={"staging_files": False})

    def open_staging_file(self, handle: PartHandle, *, fences: bool = False) -> Any:  # noqa: ARG002 - never asked.
        """Never asked."""
        raise AssertionError(f"{handle.name} is no staging file")


def test_a_store_that_cannot_read_staging_files_back_rolls_at_every_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One line in the log says so, and nothing is staged."""
    sink = staged_sink(tmp_path, open_store=lambda url, _options: WithoutStagingFiles(url))
    with caplog.at_level(logging.WARNING, "partfile"), sink.local() as out:
        for first in (0, 2):
            out.write(batch(first, 2))
            out.checkpoint()
            assert staging_files_in(tmp_path) == []
    assert [record.message for record in caplog.records if "roll at every checkpoint" in record.message] == [
        f"life: {tmp_path} cannot append to a part and read it back, so columnar parts roll at every checkpoint"
    ]
    assert len(finished_files(tmp_path)) == 4


def test_a_row_format_is_never_staged(tmp_path: Path) -> None:
    """The option says nothing to it."""
    with make_sink(tmp_path, columnar="staged", rolling=LONG).local() as out:
        out.write(batch(0, 2))
        out.checkpoint()
        assert out._runtime.coordinator.state.open[0][0].staging_file is None
    assert finished_rows(tmp_path) == names(0, 2)


def test_a_format_of_the_users_own_is_not_staged(tmp_path: Path) -> None:
    """No other process could encode it."""

    class Own(ParquetFormat):
        """Like Parquet, but another class."""

    assert staged_sink(tmp_path, format=Own()).settings.encode_spec is None
    assert staged_sink(tmp_path).settings.encode_spec == staged_sink(tmp_path / "x").settings.description.spec


def test_an_unknown_way_is_refused(tmp_path: Path) -> None:
    """By name."""
    with pytest.raises(ConfigError, match="columnar"):
        staged_sink(tmp_path, columnar="sometimes")


def test_periodic_checkpoints_and_encodes_do_not_get_in_each_others_way(tmp_path: Path) -> None:
    """A checkpoint of the encode's own counts as the last one for the interval."""
    sink = staged_sink(tmp_path, rolling=rolling(inactivity_interval_s=5))
    with sink.local(checkpoint_interval_s=2) as out:
        for first in range(12):
            out.write(batch(first, 1), position=first + 1)
        for _ in range(12):
            out.poll()
        assert finished_rows(tmp_path) == names(0, 12)
    assert finished_rows(tmp_path) == names(0, 12)


class TakingStore(LocalStore):
    """A store where another process has fenced a task just before it encodes, and taken its staging files away."""

    def open_staging_file(self, handle: PartHandle, *, fences: bool = False) -> BufferedReader:
        """Too late."""
        assert self.discard(handle)
        return super().open_staging_file(handle, fences=fences)


def test_a_staging_file_that_another_process_took_is_no_loss(tmp_path: Path) -> None:
    """The task has been fenced; nothing of its staging file counted, so no error asks for committed rows."""
    with TakingStore(str(tmp_path)) as store:
        operator = SinkOperator(store, staged_sink(tmp_path).settings.description)
        operator.open(SubtaskContext(0, 0, 1, "0" * 8, 0, may_stage=True), SubtaskSnapshot(subtask=0))
        operator.write(batch(0, 1))
        with pytest.raises(LeaseUnavailable, match="its staging file is gone"):
            operator.roll_all()
        operator.close()


# Encrypted Parquet parts: a staging file is not encrypted, so they are staged only where that is asked for.

ROWS = pa.RecordBatch.from_pydict({"id": [1, 2, 3]})


def encrypting_sink(base: Path, **options: Any) -> pf.FileSink:
    return pf.FileSink(base, uid="secrets", format=ParquetFormat(encryption=encryption), **options)


def leave_a_staging_file(base: Path) -> None:
    """A sink that writes three rows, takes a checkpoint and dies."""
    out = encrypting_sink(base, columnar="staged").local().open()
    out.write(ROWS)
    out.checkpoint()
    out.close()
    assert len(staging_files_in(base)) == 1


def write_rows(sink: pf.FileSink) -> None:
    """Three rows, a checkpoint, and a clean end."""
    with sink.local() as out:
        out.write(ROWS)
        out.checkpoint()


def finished(base: Path) -> list[Path]:
    return sorted(base.glob("*.parquet"))


def test_the_operator_encrypts_what_it_encodes(tmp_path: Path) -> None:
    """The staging file's format spec has no keys: the sink's own format lends them."""
    with encrypting_sink(tmp_path, columnar="staged").local() as out:
        out.write(ROWS)
        out.checkpoint()
        assert len(staging_files_in(tmp_path)) == 1
    assert [is_encrypted(path) for path in finished(tmp_path)] == [True]
    assert decrypted_ids(finished(tmp_path)[0]) == [1, 2, 3]


def test_a_restart_encrypts_what_its_predecessor_staged(tmp_path: Path) -> None:
    """The coordinator has the same format; one without encryption is refused, and nothing is published."""
    leave_a_staging_file(tmp_path)
    with pytest.raises(ConfigError, match="to be encrypted"):
        pf.FileSink(tmp_path, uid="secrets", format="parquet").local().open()
    assert finished(tmp_path) == []
    encrypting_sink(tmp_path).local().open().close()
    assert [is_encrypted(path) for path in finished(tmp_path)] == [True]


def test_encrypted_parts_are_not_staged_unless_that_is_written_out(tmp_path: Path) -> None:
    """By default nothing of them is on disk in the clear: a file a checkpoint."""
    with encrypting_sink(tmp_path).local() as out:
        for _ in range(2):
            out.write(ROWS)
            out.checkpoint()
        assert staging_files_in(tmp_path) == []
    assert [is_encrypted(path) for path in finished(tmp_path)] == [True, True]


@pytest.mark.parametrize("columnar", ["staged", "per_checkpoint"])
def test_what_the_keys_are_fetched_from_is_down(tmp_path: Path, columnar: str) -> None:
    """The error says which option it is; the rows come again, or wait, and nothing lies in the clear."""

    def fail() -> Any:
        raise ConnectionError("no route to the key service")

    options: dict[str, Any] = {"format": ParquetFormat(encryption=fail), "columnar": columnar}
    with pytest.raises(NotReady) as told, pf.FileSink(tmp_path, uid="life", **options).local() as out:
        out.write(pa.RecordBatch.from_pydict({"id": [1]}))
    if columnar == "per_checkpoint":
        assert "function encryption of the Parquet format has failed: ConnectionError" in told.value.message
    assert finished(tmp_path) == []
    with pf.FileSink(tmp_path, uid="life", **options | {"format": ParquetFormat(encryption=encryption)}).local() as out:
        if columnar == "per_checkpoint":
            out.write(pa.RecordBatch.from_pydict({"id": [1]}))
    (path,) = finished(tmp_path)
    assert is_encrypted(path)
    assert decrypted_ids(path) == [1]


@pytest.mark.parametrize("error", [TypeError, AttributeError, NameError, ModuleNotFoundError])
@pytest.mark.parametrize("columnar", ["staged", "per_checkpoint"])
def test_a_function_that_is_wrong_stops_the_sink(tmp_path: Path, columnar: str, error: type[Exception]) -> None:
    """No wait mends it, and rows would be staged unseen; a start with one that works has what was staged."""

    def wrong() -> Any:
        raise error("a slip")

    options: dict[str, Any] = {"columnar": columnar}
    sink = pf.FileSink(tmp_path, uid="secrets", format=ParquetFormat(encryption=wrong), **options)
    with pytest.raises(ConfigError, match=f"(?s)function encryption .* has failed: {error.__name__}: a slip") as told:
        write_rows(sink)
    assert "Mend the function" in told.value.hint
    with encrypting_sink(tmp_path, **options).local() as out:
        if columnar == "per_checkpoint":
            out.write(ROWS)
    (path,) = finished(tmp_path)
    assert decrypted_ids(path) == [1, 2, 3]


def test_keys_of_another_kind_are_refused(tmp_path: Path) -> None:
    """By the name of the option, and with what it has to return."""
    options: dict[str, Any] = {"format": ParquetFormat(encryption=lambda: 5), "columnar": "per_checkpoint"}
    with (
        pytest.raises(ConfigError, match="encryption of the Parquet format returns int") as told,
        pf.FileSink(tmp_path, uid="life", **options).local() as out,
    ):
        out.write(pa.RecordBatch.from_pydict({"id": [1]}))
    assert "file_encryption_properties" in told.value.hint


# What staging files are compressed with: by where they lie, unless the user says; and a staging file goes on whatever
# it was.

_ROWS = pa.record_batch({"n": range(5000), "s": ["the same words again and again"] * 5000})


def _sink(base: Path, **options: Any) -> pf.FileSink:
    return pf.FileSink(base, uid="u", format="parquet", on_stop="keep", **options)


def _staging_bytes(base: Path) -> int:
    (staging_file,) = (path for path in base.glob("_part-*") if path.is_file())
    return staging_file.stat().st_size


def _staged_bytes(base: Path, **options: Any) -> int:
    with _sink(base, **options).local() as out:
        out.write(_ROWS)
        out.checkpoint()
        return _staging_bytes(base)


def test_a_local_staging_file_is_not_compressed_unless_asked_for(tmp_path: Path) -> None:
    """On a local disk the staging file holds the buffers as they are; each codec makes it a good deal smaller."""
    plain = _staged_bytes(tmp_path / "auto")
    assert plain > _ROWS.nbytes
    assert _staged_bytes(tmp_path / "none", staging_compression="none") == plain
    for codec in ("lz4", "zstd"):
        assert _staged_bytes(tmp_path / codec, staging_compression=codec) < plain / 2


def test_a_staging_file_that_travels_is_compressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where bytes go over a network, as the store says, auto is lz4."""
    monkeypatch.setattr(LocalStore, "staging_files_travel", property(lambda _store: True))
    compressed = _staged_bytes(tmp_path / "auto")
    assert compressed == _staged_bytes(tmp_path / "lz4", staging_compression="lz4")
    assert compressed != _staged_bytes(tmp_path / "none", staging_compression="none")


def test_a_staging_file_goes_on_with_another_compression(tmp_path: Path) -> None:
    """Each message says what it is compressed with: runs with three settings make one file with all rows."""
    for codec in ("zstd", "none", "lz4"):
        with _sink(tmp_path, staging_compression=codec).local() as out:
            out.write(_ROWS)
            out.checkpoint()
    with pf.FileSink(tmp_path, uid="u", format="parquet").local():
        pass
    files = list(tmp_path.glob("part-*.parquet"))
    assert pf.read(tmp_path, format="parquet").to_table().num_rows == 3 * len(_ROWS)
    assert len(files) <= 3


def test_an_unknown_compression_is_refused(tmp_path: Path) -> None:
    """The option says what there is."""
    with pytest.raises(pf.ConfigError, match=r"(?s)staging_compression.*'zstd'"):
        _sink(tmp_path, staging_compression="brotli")
