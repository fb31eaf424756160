"""Staged parts after a crash, a failed encode or a rollback, and staging files that have become files."""

from __future__ import annotations

import logging
import re
import shutil
import zlib
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from partfile.errors import Fenced, NotReady, PartDamaged, PartfileError, PartMissing, RecoveryRefused
from partfile.sink.coordinator import CommitReport, Runtime, SinkCoordinator
from partfile.sink.encode import LocalEncoder
from partfile.sink.operator import SinkOperator
from partfile.sink.plan import with_closed
from partfile.sink.report import progress_of
from partfile.sink.states import (
    ClosedStagingFile,
    EncodedStagingFile,
    OpenPart,
    PendingPart,
    StagingFile,
)
from partfile.stores.base import PartHandle
from partfile.stores.local.store import LocalStore
from partfile.testing.harness import SinkHarness
from partfile.writers.parquet import ParquetFormat
from support.processes.command_line import told, told_json
from support.sinks.dead import Dying
from support.sinks.life_cycle import LONG, batch, finished_files, in_child
from support.sinks.recovery import go_back, recover_all
from support.sinks.shared_streams import BUCKETS, continue_sharing, counted, rows_in, shared_in, sharing_sink
from support.sinks.staged_streams import (
    StagingFiles,
    checkpoint_ids,
    crashed,
    finished_rows,
    names,
    newest_checkpoint,
    pending_in,
    staged_sink,
    staging_files_in,
)

if TYPE_CHECKING:
    from io import BufferedReader
    from pathlib import Path

    from partfile.sink.file_sink import FileSink


# Staged parts after a crash or a failed encode: what a checkpoint vouches for comes once, nothing else.


def test_open_staging_files_are_encoded_by_the_next_start(tmp_path: Path) -> None:
    """By a second checkpoint after the takeover; the rows after the checkpoint are written again by the next run."""
    crashed(tmp_path)
    takeover = checkpoint_ids(tmp_path)[-1] + 1
    with staged_sink(tmp_path, retained_checkpoints=9).local() as out:
        assert out.position == 4
        assert finished_rows(tmp_path) == names(0, 4)
        assert checkpoint_ids(tmp_path)[-1] == takeover + 1
        out.write(batch(4, 3))
    assert finished_rows(tmp_path) == names(0, 7)


def test_what_a_zombie_adds_never_counts(tmp_path: Path) -> None:
    """Whole messages or garbage beyond the valid length: readers of a staging file stop before it."""
    sink = staged_sink(tmp_path)
    zombie = sink.local().open()
    zombie.write(batch(0, 4))
    zombie.checkpoint(4)
    begun = staged_sink(tmp_path).local().open()
    for first in range(4, 40, 4):
        zombie._operator.write(batch(first, 4))
    zombie._operator.snapshot(9)
    for staging_file in staging_files_in(tmp_path):
        staging_file.write_bytes(staging_file.read_bytes() + b"garbage")
    assert finished_rows(tmp_path) == names(0, 4)
    begun.close()
    zombie.close()
    with staged_sink(tmp_path).local():
        pass
    assert finished_rows(tmp_path) == names(0, 4)


def test_garbage_after_a_crash_is_never_read(tmp_path: Path) -> None:
    """The encode comes after the garbage here."""
    crashed(tmp_path)
    for staging_file in staging_files_in(tmp_path):
        staging_file.write_bytes(staging_file.read_bytes() + b"garbage")
    with staged_sink(tmp_path).local():
        assert finished_rows(tmp_path) == names(0, 4)


def test_a_staging_file_is_encoded_as_the_sink_that_began_it_would(tmp_path: Path) -> None:
    """Whatever the next run is set to: another codec, another format, or no staging files any more."""
    crashed(tmp_path, format=ParquetFormat(compression="zstd"))
    with staged_sink(tmp_path, format="text", columnar="per_checkpoint").local():
        files = list(tmp_path.glob("*/part-*.parquet"))
    assert {pq.ParquetFile(path).metadata.row_group(0).column(0).compression for path in files} == {"ZSTD"}
    assert finished_rows(tmp_path) == names(0, 4)


@pytest.mark.parametrize("columnar", ["staged", "per_checkpoint"])
def test_a_kept_staging_file_takes_no_rows_of_another_format(tmp_path: Path, columnar: str) -> None:
    """Kept parts of other options are left to their time, and encoded as they were begun."""
    with staged_sink(tmp_path, on_stop="keep").local() as out:
        out.write(batch(0, 4))
    other = ParquetFormat(compression="snappy" if columnar == "per_checkpoint" else "gzip")
    with staged_sink(tmp_path, format=other, columnar=columnar).local() as out:
        out.write(batch(4, 4))
    assert len(finished_files(tmp_path)) == 4
    assert finished_rows(tmp_path) == names(0, 8)


def test_an_encode_that_fails_is_tried_again(tmp_path: Path) -> None:
    """By the next batch, the timer and the next start.

    Until then the staging file stays, and readers see nothing of it.
    """
    staging_files = StagingFiles()
    sink = staged_sink(tmp_path, open_store=staging_files.open_store)
    with SinkHarness(sink) as job:
        for first in (0, 2):
            job.process(batch(first, 2))
            staging_files.are_readable = False
            job.operators[0].roll_all()
            done = job.checkpoint()
            # What failed leaves no checkpoint and no file of its own.
            assert checkpoint_ids(tmp_path)[-1] == done.checkpoint_id
            assert pending_in(tmp_path) == []
            assert job.runtime.coordinator.close_due(job.now_ms) is None
            assert checkpoint_ids(tmp_path)[-1] == done.checkpoint_id
            assert len(job.runtime.coordinator.state.closed) == 2
            staging_files.are_readable = True
            job.now_ms += 10_000
            done_later = job.checkpoint() if first else job.runtime.coordinator.close_due(job.now_ms)
            assert done_later is not None
            assert done_later.published == 2
            assert not job.runtime.coordinator.state.closed
        assert finished_rows(tmp_path) == names(0, 4)
        job.process(batch(4, 2))
        job.operators[0].roll_all()
        staging_files.are_readable = False
        job.checkpoint()
    staging_files.are_readable = True
    with SinkHarness(sink):
        assert finished_rows(tmp_path) == names(0, 6)


def test_a_clean_end_leaves_to_the_next_start_what_it_cannot_encode(tmp_path: Path) -> None:
    """And no savepoint is made of a sink with such a staging file."""
    staging_files = StagingFiles()
    sink = staged_sink(tmp_path / "out", open_store=staging_files.open_store)
    out = sink.local().open()
    out.write(batch(0, 4))
    staging_files.are_readable = False
    with pytest.raises(PartfileError, match="2 staging files not be encoded"):
        out.savepoint(tmp_path / "savepoints")
    with pytest.raises(NotReady, match=r"(?s)has ended .*2 staging files not encoded"):
        out.finish()
    assert finished_rows(tmp_path / "out") == {}
    staging_files.are_readable = True
    with sink.local():
        assert finished_rows(tmp_path / "out") == names(0, 4)


def test_a_staging_file_that_is_gone_stops_the_start(tmp_path: Path) -> None:
    """Its rows count; the others are published all the same. Its user can give it up."""
    crashed(tmp_path)
    staging_files_in(tmp_path)[0].unlink()
    for _ in range(2):
        with pytest.raises(PartMissing, match="'life'"):
            staged_sink(tmp_path).local().open()
        assert finished_rows(tmp_path) == {"row-0001": 1, "row-0003": 1}
    recover_all(tmp_path, accept_missing=True)
    with staged_sink(tmp_path).local() as out:
        assert out._runtime.coordinator.state.closed == ()
    assert finished_rows(tmp_path) == {"row-0001": 1, "row-0003": 1}


class _Overtaken(LocalStore):
    """Before it opens its first staging file, a rival takes the sink over and comes to its end."""

    rivals: ClassVar[list[FileSink]] = []

    def open_staging_file(self, handle: PartHandle, *, fences: bool = False) -> BufferedReader:
        while self.rivals:
            with self.rivals.pop().local():
                pass
        return super().open_staging_file(handle, fences=fences)


def test_a_staging_file_that_a_rival_has_encoded_is_not_lost(tmp_path: Path) -> None:
    """The rival has deleted it; the coordinator that misses it is fenced, and does not say that rows are gone."""
    crashed(tmp_path)
    overtaken = staged_sink(tmp_path, open_store=lambda url, _options: _Overtaken(url), publish_threads=1)
    _Overtaken.rivals = [staged_sink(tmp_path), staged_sink(tmp_path)]
    with pytest.raises(Fenced):
        overtaken.local().open()
    assert not _Overtaken.rivals
    assert staging_files_in(tmp_path) == []
    assert finished_rows(tmp_path) == names(0, 4)


@pytest.mark.parametrize("damage", ["message", "fewer", "more"])
def test_a_damaged_staging_file_is_never_published(tmp_path: Path, damage: str) -> None:
    """Neither one that cannot be read, nor one that holds other rows than its checkpoint says; no file is left."""
    crashed(tmp_path)
    staging_file = staging_files_in(tmp_path)[0]
    if damage == "message":
        data = bytearray(staging_file.read_bytes())
        data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
        staging_file.write_bytes(bytes(data))
    staging_files = closed(tmp_path)
    if damage != "message":
        wrong = -1 if damage == "fewer" else 1
        staging_files = [one.model_copy(update={"rows": one.rows - wrong}) for one in staging_files]
    else:
        # With the checksum of what is there: else that would tell first.
        crc32 = zlib.crc32(staging_file.read_bytes()[: staging_files[0].part.valid_length])
        changed = staging_files[0].staging_file.model_copy(update={"crc32": crc32})
        staging_files[0] = staging_files[0].model_copy(update={"staging_file": changed})
    encoded = LocalEncoder(LocalStore(str(tmp_path)), 1).encode(staging_files)
    assert isinstance(encoded[0].problem, PartDamaged)
    assert len(pending_in(tmp_path)) == sum(one.files is not None for one in encoded)
    assert finished_files(tmp_path) == {}
    assert len(staging_files_in(tmp_path)) == 2


def closed(base: Path) -> list[ClosedStagingFile]:
    """The staging files of a crashed sink, as its next start would roll them."""
    runtime = Runtime(staged_sink(base).settings, "life")
    state = runtime.coordinator.look()
    runtime.close()
    assert state is not None
    return list(with_closed(state, state.open[0], 9).closed)


def test_where_storage_does_not_answer_the_rest_is_not_tried(tmp_path: Path) -> None:
    """Each keeps its problem, in order."""
    crashed(tmp_path)
    staging_files = StagingFiles()
    staging_files.are_readable = False
    encoded = LocalEncoder(staging_files.open_store(str(tmp_path), None), 2).encode(closed(tmp_path))
    assert [type(one.problem) for one in encoded] == [NotReady, NotReady]


def test_a_staging_file_that_a_task_leaves_alone_is_told(tmp_path: Path) -> None:
    """Another process still holds it: it is rolled as abandoned, and the progress of the batch counts it."""
    with SinkHarness(staged_sink(tmp_path)) as job, LocalStore(str(tmp_path)) as zombie:
        job.process(batch(0, 1))
        job.checkpoint()
        (assigned,) = job.runtime.coordinator.assignment()
        job.operators.pop().close()
        held = zombie.resume(assigned.open[0].part)
        retry = SinkOperator(job.runtime.store, job.sink.settings.description)
        retry.open(job._context(0), assigned)
        retry.write(batch(0, 1))
        snapshot = retry.snapshot(99)
        retry.close()
        held.close()
        done = CommitReport(checkpoint_id=99, published=0, owed=0, commit_ms=0, publish_ms=0)
        told = progress_of("life", job.runtime.coordinator, done, [snapshot])
    assert [staging_file.abandoned for staging_file in snapshot.closed] == [True]
    assert told.parts_abandoned == 1


def test_no_state_can_promise_a_staging_file_to_readers(tmp_path: Path) -> None:
    """A staging file is rolled, spent or open with what it becomes; a pending part is none (R5)."""
    staging_file = PartHandle(
        bucket="", name="p", in_progress="_i", pending="_p", sidecar="_v", valid_length=1, is_staging_file=True
    )
    part = staging_file.model_copy(update={"is_staging_file": False})
    becomes = StagingFile(spec={"format": "parquet"})
    numbers: dict[str, Any] = {"count": 0, "epoch": 1, "created_at_ms": 0, "last_write_ms": 0, "rows": 1}
    for make in (
        lambda: PendingPart(part=staging_file, rows=1, since=1),
        lambda: ClosedStagingFile(part=part, staging_file=becomes, rows=1, since=1),
        lambda: EncodedStagingFile(part=part, since=1),
        lambda: OpenPart(part=staging_file, schema_fingerprint="f", **numbers),
        lambda: OpenPart(part=part, schema_fingerprint="f", staging_file=becomes, **numbers),
    ):
        with pytest.raises(ValidationError, match="staging file"):
            make()
    with pytest.raises(PartfileError, match="staging file"):
        LocalStore(str(tmp_path)).publish(staging_file, "auto")


def test_the_length_of_a_staging_file_is_a_guess_at_its_files(tmp_path: Path) -> None:
    """What rolling policies are told."""
    with SinkHarness(staged_sink(tmp_path, rolling=LONG)) as job:
        job.process(batch(0, 2))
        job.checkpoint()
        part = job.runtime.coordinator.state.open[0][0]
    half = part.model_copy(update={"staging_file": StagingFile(spec={}, encoded_ratio=0.5)})
    assert (part.progress.size_bytes, half.progress.size_bytes) == (part.part.valid_length, part.part.valid_length // 2)


# Rollbacks and savepoints of sinks with staging files: what goes back, what stays as the file that was promised since.


def test_going_back_to_a_checkpoint_that_has_the_staging_file_open(tmp_path: Path) -> None:
    """Its older length is a prefix; the rows since then come again, once."""
    out = staged_sink(tmp_path, retained_checkpoints=9).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    chosen = newest_checkpoint(tmp_path)
    out.write(batch(4, 4), position=8)
    out.checkpoint()
    out.close()
    with pytest.raises(RecoveryRefused, match="2 later parts"):
        recover_all(tmp_path, restore_from=str(chosen))
    go_back(tmp_path, chosen)
    with staged_sink(tmp_path, retained_checkpoints=9).local() as again:
        assert again.position == 4
        assert finished_rows(tmp_path) == names(0, 4)
        again.write(batch(4, 5))
    assert finished_rows(tmp_path) == names(0, 9)


def test_going_back_takes_a_closed_staging_file_along_but_leaves_a_promised_file(tmp_path: Path) -> None:
    """One is encoded at its older length; the file of the other stays, and its later rows come twice."""
    staging_files = StagingFiles()
    options: dict[str, Any] = {"retained_checkpoints": 9, "open_store": staging_files.open_store, "bucketer": None}
    out = staged_sink(tmp_path, **options).local().open()
    out.write(batch(0, 2), position=2)
    out.checkpoint()
    chosen = newest_checkpoint(tmp_path)
    out.write(batch(2, 2), position=4)
    staging_files.are_readable = False
    out._operator.roll_all()
    out.checkpoint()
    out.close()
    copy = shutil.copytree(tmp_path, tmp_path.parent / f"{tmp_path.name}-copy")
    staging_files.are_readable = True
    go_back(copy, copy / "_partfile" / "life" / chosen.name)
    assert finished_rows(copy) == names(0, 2)
    staged_sink(tmp_path, **options).local().open().close()
    assert finished_rows(tmp_path) == names(0, 4)
    go_back(tmp_path, chosen)
    with staged_sink(tmp_path, **options).local() as again:
        assert again.position == 2
        again.write(batch(2, 2), position=4)
    assert finished_rows(tmp_path) == {**names(0, 2), **dict.fromkeys(names(2, 4), 2)}


def test_going_back_does_not_encode_again_what_was_rolled_then_and_is_promised_since(tmp_path: Path) -> None:
    """All its rows were written before the checkpoint, so its file stays, and nothing is left of a second one."""
    staging_files = StagingFiles()
    options: dict[str, Any] = {"retained_checkpoints": 9, "open_store": staging_files.open_store}
    out = staged_sink(tmp_path, **options).local().open()
    out.write(batch(0, 4), position=4)
    staging_files.are_readable = False
    out._operator.roll_all()
    out.checkpoint()
    chosen = newest_checkpoint(tmp_path)
    staging_files.are_readable = True
    out.write(batch(4, 1), position=5)
    out.checkpoint()
    out.close()
    assert finished_rows(tmp_path) == names(0, 4)
    go_back(tmp_path, chosen)
    with staged_sink(tmp_path, **options).local() as again:
        assert again.position == 4
        assert pending_in(tmp_path) == []
        again.write(batch(4, 1))
    assert finished_rows(tmp_path) == names(0, 5)


def test_an_encode_since_is_no_later_checkpoint(tmp_path: Path) -> None:
    """A start has encoded what the checkpoint held: naming that checkpoint is no rollback."""
    crashed(tmp_path)
    chosen = newest_checkpoint(tmp_path)
    staged_sink(tmp_path, retained_checkpoints=9).local().open().close()
    assert newest_checkpoint(tmp_path) != chosen
    with staged_sink(tmp_path, restore_from=chosen, retained_checkpoints=9).local() as out:
        assert out.position == 4
        out.write(batch(4, 3))
    assert finished_rows(tmp_path) == names(0, 7)


@pytest.mark.parametrize("is_encoded_staging_file_there", [True, False])
def test_a_savepoint_names_no_staging_file(tmp_path: Path, *, is_encoded_staging_file_there: bool) -> None:
    """It is taken while encoded staging files are still there, and restored where they are not."""
    out = staged_sink(tmp_path / "out").local().open()
    out.write(batch(0, 4), position=4)
    location = out.savepoint(tmp_path / "savepoints")
    assert len(staging_files_in(tmp_path / "out")) == 2
    out.write(batch(4, 2), position=6)
    out.finish()
    assert finished_rows(tmp_path / "out") == names(0, 6)
    if not is_encoded_staging_file_there:
        shutil.rmtree(tmp_path / "out")
    with staged_sink(tmp_path / "fresh", restore_from=location).local() as fresh:
        assert fresh.position == 4
        state = fresh._runtime.coordinator.state
        assert (state.open, state.pending, state.closed, state.encoded) == ({}, (), (), ())
        fresh.write(batch(4, 2))
    assert finished_rows(tmp_path / "fresh") == names(4, 6)


def test_a_damaged_end_is_gone_back_behind_with_staging_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The staging files of the chosen checkpoint are encoded at the length that it vouches for."""
    out = staged_sink(tmp_path, retained_checkpoints=9).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    chosen = newest_checkpoint(tmp_path)
    out.write(batch(4, 4), position=8)
    out.checkpoint()
    out.close()
    (newest_checkpoint(tmp_path) / "_metadata").write_bytes(b"damaged")
    with caplog.at_level(logging.CRITICAL, "partfile"):
        go_back(tmp_path, chosen)
        again = staged_sink(tmp_path, retained_checkpoints=9).local().open()
    assert again.position == 4
    again.close()
    assert finished_rows(tmp_path) == names(0, 4)


# Staging files that have become files: what they hold after a clean end, what they are good for, and what lets go of
# them.


def ended(base: Path, **options: Any) -> None:
    """A sink that wrote four rows in two checkpoints and ended cleanly."""
    with staged_sink(base, **options).local() as out:
        out.write(batch(0, 2), position=2)
        out.checkpoint()
        out.write(batch(2, 2), position=4)
    assert finished_rows(base) == names(0, 4)


def test_a_clean_end_without_an_older_checkpoint_holds_nothing(tmp_path: Path) -> None:
    """A sink that retains one checkpoint has the room at once."""
    ended(tmp_path, retained_checkpoints=1)
    assert staging_files_in(tmp_path) == []


def test_a_clean_end_leaves_finished_files_alone(tmp_path: Path) -> None:
    """By default one checkpoint more takes the place of the one that names staging files; it holds the same state."""
    ended(tmp_path)
    assert staging_files_in(tmp_path) == pending_in(tmp_path) == []
    assert len(checkpoint_ids(tmp_path)) == 2
    (sink,) = told_json("status", tmp_path)["sinks"]
    assert sink["parts"]["encoded-staging-file"]["count"] == 0
    with staged_sink(tmp_path).local() as out:
        assert out.position == 4
    assert finished_rows(tmp_path) == names(0, 4)


def test_a_clean_end_that_cannot_delete_staging_files_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Every row is visible; the log says that the next start deletes them, and it does."""
    is_full = [False]
    really = SinkCoordinator.discard_staging_files

    class Store(LocalStore):
        def create_file(self, path: str, data: bytes) -> None:
            if is_full[0]:
                raise NotReady("over the quota", path=path)
            super().create_file(path, data)

    def discard(coordinator: SinkCoordinator, now_ms: int) -> None:
        is_full[0] = True
        really(coordinator, now_ms)

    monkeypatch.setattr(SinkCoordinator, "discard_staging_files", discard)
    ended(tmp_path, open_store=lambda url, _options: Store(url))
    assert "the next start deletes the staging files" in caplog.text
    assert len(staging_files_in(tmp_path)) == 2
    monkeypatch.undo()
    staged_sink(tmp_path).local().open().close()
    assert staging_files_in(tmp_path) == []
    assert finished_rows(tmp_path) == names(0, 4)


def test_a_start_lets_go_of_what_a_clean_end_holds(tmp_path: Path) -> None:
    """Where more checkpoints were retained, one start with fewer is enough, whether rows come or not."""
    ended(tmp_path, retained_checkpoints=3)
    held = sum(path.stat().st_size for path in staging_files_in(tmp_path))
    assert held > 0
    (sink,) = told_json("status", tmp_path)["sinks"]
    assert (sink["parts"]["encoded-staging-file"]["count"], sink["parts"]["encoded-staging-file"]["bytes"]) == (2, held)
    text = told("status", tmp_path)
    assert re.search(r"encoded-staging-file +2 staging files, .* held for older checkpoints\n", text), text
    files = finished_files(tmp_path)
    staged_sink(tmp_path).local().open().close()
    assert staging_files_in(tmp_path) == []
    assert finished_files(tmp_path) == files


@pytest.mark.parametrize("retained", [3, 5])
def test_who_retains_more_lets_go_later(tmp_path: Path, retained: int) -> None:
    """When the next run has completed one checkpoint less than so many, at the latest."""
    ended(tmp_path, retained_checkpoints=retained)
    held = staging_files_in(tmp_path)
    with staged_sink(tmp_path, retained_checkpoints=retained).local() as out:
        assert staging_files_in(tmp_path) == held
        for _ in range(retained - 1):
            out.checkpoint()
        assert staging_files_in(tmp_path) == []


def test_a_multi_bucket_staging_file_is_let_go_of_likewise(tmp_path: Path) -> None:
    """One staging file stands behind a file in each bucket."""
    for retained, left in ((3, 1), (2, 0)):
        base = tmp_path / str(retained)
        continue_sharing(sharing_sink(base, retained_checkpoints=retained), 2 * BUCKETS)
        assert len(shared_in(base)) == left
        sharing_sink(base).local().open().close()
        assert shared_in(base) == []
        assert rows_in(base) == counted(0, 2 * BUCKETS)


@pytest.mark.parametrize("is_there", [True, False])
def test_what_it_is_good_for(tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_there: bool) -> None:
    """The newest checkpoint is damaged before it publishes.

    The one before it has its rows in the staging file, or nowhere.
    """
    assert in_child(lambda: end_and_die(tmp_path)) == 0
    assert finished_files(tmp_path) == {}
    assert len(staging_files_in(tmp_path)) == 2
    metadata_files = sorted(tmp_path.glob("_partfile/life/chk-*/_metadata"), key=lambda path: int(path.parent.name[4:]))
    metadata_files[-1].write_bytes(b"damaged")
    if not is_there:
        for path in staging_files_in(tmp_path):
            path.unlink()
    with caplog.at_level(logging.CRITICAL, "partfile"):
        if not is_there:
            with pytest.raises(RecoveryRefused, match="under none of their names"):
                go_back(tmp_path, metadata_files[-2].parent)
            return
        go_back(tmp_path, metadata_files[-2].parent)
    with staged_sink(tmp_path).local() as again:
        assert again.position == 4
    assert finished_rows(tmp_path) == names(0, 4)


def end_and_die(base: Path) -> None:
    """A clean end dies once its checkpoint is complete, before it publishes."""
    out = staged_sink(base).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    out._runtime.coordinator._publisher = Dying()  # type: ignore[assignment]
    out.finish()
