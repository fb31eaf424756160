"""Local copies of state: written beside the primary, and never worth a failed checkpoint."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from partfile.errors import NotApplied, SnapshotCancelled, StateTooLarge
from partfile.snapshot.documents import FileHandle
from partfile.snapshot.strategy import (
    EMPTY,
    LocalCopies,
    PrimaryAndSecondaryStreamProvider,
    PrimaryStreamProvider,
    SnapshotOptions,
    open_result_stream,
)
from partfile.snapshot.streams import BufferedStream, CollectedBytes, FileStreamFactory, MemoryStreamFactory, Scope
from partfile.stores.local.store import LocalStore
from partfile.testing.faults import FailAt, intercept

if TYPE_CHECKING:
    from pathlib import Path

    from partfile.snapshot.documents import StateHandle
    from partfile.snapshot.strategy import ResultStreamProvider
    from partfile.snapshot.streams import CheckpointStreamFactory

CHECKPOINT = SnapshotOptions()
SAVEPOINT = SnapshotOptions("savepoint")


def primary(base: Path) -> FileStreamFactory:
    return FileStreamFactory(LocalStore(str(base / "primary")), "job", 5, inline_threshold_bytes=0)


def copies(base: Path) -> LocalCopies:
    return LocalCopies(LocalStore(str(base / "local")), "aid_1/jid_job/vtx_o_sti_0")


def opened(
    streams: CheckpointStreamFactory, local: LocalCopies | None, options: SnapshotOptions = CHECKPOINT
) -> ResultStreamProvider:
    return open_result_stream(streams, Scope.EXCLUSIVE, 5, options, local)


def finalized_without_copy(provider: ResultStreamProvider, caplog: pytest.LogCaptureFixture, why: str) -> StateHandle:
    """End a snapshot whose copy failed, which the log tells once it has ended; returns the primary handle."""
    with caplog.at_level(logging.WARNING):
        assert caplog.text == ""
        result = provider.close_and_finalize()
    assert result.primary is not None
    assert result.local is None
    assert why in caplog.text
    return result.primary


def files(base: Path) -> list[str]:
    return sorted(path.relative_to(base).as_posix() for path in base.rglob("*") if path.is_file())


@pytest.mark.item("SS-19", "SS-21", "LR-12", "LR-16")
def test_a_copy_holds_the_same_bytes(tmp_path: Path) -> None:
    """Every write goes to both; the copy lies in chk-N of the subtask's directory under a name of its own."""
    provider = opened(primary(tmp_path), copies(tmp_path))
    for piece in (b"ab", b"", b"cde"):
        provider.stream.write(piece)
    assert provider.stream.position == 5
    result = provider.close_and_finalize()
    assert isinstance(result.primary, FileHandle)
    assert isinstance(result.local, FileHandle)
    assert result.local.path.startswith("chk-5/")
    assert (tmp_path / "primary/job" / result.primary.path).read_bytes() == b"abcde"
    assert (tmp_path / "local/aid_1/jid_job/vtx_o_sti_0" / result.local.path).read_bytes() == b"abcde"
    again = opened(primary(tmp_path), copies(tmp_path))
    again.stream.write(b"x")
    assert again.close_and_finalize().local != result.local


@pytest.mark.item("SS-18", "SS-19")
@pytest.mark.parametrize(("with_local", "options"), [(False, CHECKPOINT), (True, SAVEPOINT), (False, SAVEPOINT)])
def test_no_copy_without_local_recovery_or_of_a_savepoint(
    tmp_path: Path, options: SnapshotOptions, *, with_local: bool
) -> None:
    """The primary is written alone, and nothing appears in the local directory."""
    provider = opened(primary(tmp_path), copies(tmp_path) if with_local else None, options)
    assert isinstance(provider, PrimaryStreamProvider)
    provider.stream.write(b"x")
    result = provider.close_and_finalize()
    assert result.primary is not None
    assert result.local is None
    assert len(files(tmp_path)) == 1


@pytest.mark.item("SS-18")
def test_a_checkpoint_with_local_recovery_is_doubled(tmp_path: Path) -> None:
    """The choice is the doubling provider exactly then."""
    assert isinstance(opened(primary(tmp_path), copies(tmp_path)), PrimaryAndSecondaryStreamProvider)


@pytest.mark.item("SS-05", "SS-19", "SS-23")
def test_nothing_written_is_the_empty_result(tmp_path: Path) -> None:
    """Both providers come to the one empty result, and no file."""
    for local in (None, copies(tmp_path)):
        assert opened(primary(tmp_path), local).close_and_finalize() is EMPTY
    assert files(tmp_path) == []


@pytest.mark.item("SS-20", "LR-02")
def test_a_local_directory_that_cannot_be_written_is_done_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file stands where the directory should be: logged, and the snapshot has its primary handle alone."""
    store = LocalStore(str(tmp_path / "local"))
    store.create_file("sub", b"")
    provider = opened(primary(tmp_path), LocalCopies(store, "sub"))
    provider.stream.write(b"x")
    finalized_without_copy(provider, caplog, "no local copy")


@pytest.mark.item("LR-02", "LR-16")
def test_a_copy_that_cannot_be_created_is_done_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A local disk that is full when the file is created: logged, no local handle, the checkpoint is good."""
    store = intercept(LocalStore(str(tmp_path / "local")), FailAt(1, NotApplied("disk full"), only={"create_file"}))
    provider = opened(primary(tmp_path), LocalCopies(store, "sub"))
    provider.stream.write(b"x")
    finalized_without_copy(provider, caplog, "disk full")


@pytest.mark.item("LR-16")
def test_a_failed_write_of_the_copy_is_remembered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After the first failure the copy gets nothing more; it is reported when the snapshot ends, not before."""
    secondary = MemoryStreamFactory(max_state_bytes=3).create(Scope.EXCLUSIVE)
    provider = PrimaryAndSecondaryStreamProvider(primary(tmp_path).create(Scope.EXCLUSIVE), secondary)
    with caplog.at_level(logging.WARNING):
        for piece in (b"ab", b"cd", b"e"):
            provider.stream.write(piece)
    assert finalized_without_copy(provider, caplog, "max_state_bytes=3").size_bytes == 5
    with pytest.raises(SnapshotCancelled):
        secondary.write(b"x")


@pytest.mark.item("LR-16")
def test_a_copy_at_another_position_is_given_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A copy that lost bytes, or has too many, is not believed."""
    secondary = MemoryStreamFactory().create(Scope.EXCLUSIVE)
    secondary.write(b"stray")
    provider = PrimaryAndSecondaryStreamProvider(primary(tmp_path).create(Scope.EXCLUSIVE), secondary)
    provider.stream.write(b"ab")
    finalized_without_copy(provider, caplog, "at byte 7, the state at 2")


@pytest.mark.item("LR-03")
def test_a_failed_primary_fails_the_snapshot(tmp_path: Path) -> None:
    """The error comes out, of a write and of the end alike, and no copy is left."""
    provider = opened(MemoryStreamFactory(max_state_bytes=3), copies(tmp_path))
    provider.stream.write(b"abc")
    with pytest.raises(StateTooLarge):
        provider.stream.write(b"d")
    provider.close()

    def fail(_data: bytes) -> FileHandle:
        raise NotApplied("primary full")

    stream = BufferedStream(CollectedBytes(1), check=lambda _: None, keep=fail, discard=lambda _: None)
    local = FileStreamFactory(LocalStore(str(tmp_path / "local")), "", 5, inline_threshold_bytes=0)
    copy = local.create(Scope.EXCLUSIVE)
    provider = PrimaryAndSecondaryStreamProvider(stream, copy)
    provider.stream.write(b"x")
    with pytest.raises(NotApplied, match="primary full"):
        provider.close_and_finalize()
    with pytest.raises(SnapshotCancelled):
        copy.write(b"y")
    assert files(tmp_path) == []


@pytest.mark.item("SS-07", "LR-16")
def test_closing_discards_both(tmp_path: Path) -> None:
    """A cancellation reaches primary and copy."""
    provider = opened(primary(tmp_path), copies(tmp_path))
    provider.stream.write(b"x")
    provider.close()
    provider.close()
    with pytest.raises(SnapshotCancelled):
        provider.close_and_finalize()
    assert files(tmp_path) == []
