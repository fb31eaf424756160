"""Publishing over fsspec: lost replies, wrong files under either name, and what cannot be deleted afterwards."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from fsspec_stores import DATA, OTHER, intercepted, store_with
from plain_file_systems import register

from partfile.errors import CommitConflict, OutcomeUnknown, PartMissing, SnapshotCorrupt
from partfile.stores.fsspec.client import FsspecCalls
from partfile.stores.fsspec.store import FsspecStore
from partfile.testing.faults import ActAt, CrashAt, FailAt, SimulatedCrash
from partfile.testing.store import files_in, write_part

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("scheme", ["memory:", "dir::file:/", "renaming:", "copying:"])
@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.fault("S8")
def test_a_publication_whose_reply_is_lost_is_recognised(
    scheme: str, applied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By length and checksum, in the same call; one that did not happen is an unknown outcome, and works again."""
    register(monkeypatch)
    url = f"{scheme}/{tmp_path}"
    with FsspecStore(url) as store:
        assert not store.capabilities.append
        handle = write_part(store, DATA, state="pending")
    fault = FailAt(1, ConnectionResetError(), applied=applied, only={"create", "link", "rename", "copy"})
    with intercepted(url, fault) as store:
        if applied:
            store.publish(handle, "auto")
        else:
            with pytest.raises(OutcomeUnknown):
                store.publish(handle, "auto")
            store.publish(handle, "auto")
        assert files_in(store) == {handle.path_of(handle.name): len(DATA)}


def test_a_staged_name_that_a_crash_has_left_of_a_finished_file_goes(tmp_path: Path) -> None:
    """Two names of one file: the next publication drops the staged one."""
    url = f"dir::file://{tmp_path}"
    with FsspecStore(url) as store:
        assert store.capabilities.no_replace
        handle = write_part(store, DATA, state="pending")
        with intercepted(url, CrashAt(1, only={"remove"})) as dying, pytest.raises(SimulatedCrash):
            dying.publish(handle, "auto")
        assert len(files_in(store)) == 2
        store.publish(handle, "auto")
        assert files_in(store) == {handle.path_of(handle.name): len(DATA)}


@pytest.mark.parametrize("scheme", ["memory:", "dir::file:/", "renaming:", "copying:"])
@pytest.mark.fault("S6")
def test_another_file_of_the_same_length_is_a_conflict(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before publishing, and where publishing meets it: length alone is not believed."""
    register(monkeypatch)
    url = f"{scheme}/{tmp_path}"
    with FsspecStore(url) as store:
        handle = write_part(store, DATA, state="pending")
        store.create_file(handle.path_of(handle.name), OTHER)
        for commit in (store.publish, store.settle):
            with pytest.raises(CommitConflict):
                commit(handle, "auto")
        assert store.read_file(handle.path_of(handle.name), 99) == OTHER


@pytest.mark.parametrize(("scheme", "call"), [("memory:", "create"), ("dir::file:/", "link")])
def test_a_file_that_appears_just_before_the_publication_is_not_replaced(
    scheme: str, call: str, tmp_path: Path
) -> None:
    """Where no_replace is claimed the look is not what it rests on."""
    url = f"{scheme}/{tmp_path}"
    with FsspecStore(url) as store:
        assert store.capabilities.no_replace
        handle = write_part(store, DATA, state="pending")
        rival = ActAt(1, lambda: store.create_file(handle.path_of(handle.name), OTHER), only={call})
        with intercepted(url, rival) as late, pytest.raises(CommitConflict):
            late.publish(handle, "auto")
        assert store.read_file(handle.path_of(handle.name), 99) == OTHER


def test_a_staged_file_that_was_changed_is_not_published(memory: str) -> None:
    """Another length is seen everywhere, other bytes where they pass through this process."""
    with FsspecStore(memory) as store:
        for damage in (DATA[:-1], DATA + b"x", OTHER):
            handle = write_part(store, DATA, state="pending")
            store.delete_file(handle.path_of(handle.in_progress))
            store.create_file(handle.path_of(handle.in_progress), damage)
            with pytest.raises(PartMissing):
                store.publish(handle, "auto")
            assert not store.file_exists(handle.path_of(handle.name))


@pytest.mark.parametrize(("copied", "error"), [(None, PartMissing), (OTHER, CommitConflict), (b"", CommitConflict)])
def test_a_copy_is_looked_at_before_what_it_was_made_of_goes(
    copied: bytes | None, error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that says that it copied, and did not, loses no row."""
    register(monkeypatch)

    class Lying(FsspecCalls):
        def copy(self, path: str, name: str) -> None:
            assert path
            if copied is not None:
                self.write(name, copied)

    with store_with(Lying, f"copying:/{tmp_path}") as store:
        handle = write_part(store, DATA, state="pending")
        with pytest.raises(error):
            store.publish(handle, "auto")
        assert store.read_file(handle.path_of(handle.in_progress), 99) == DATA


@pytest.mark.parametrize("scheme", ["memory:", "dir::file:/", "copying:"])
def test_a_part_is_published_although_its_staged_file_cannot_be_deleted(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Deleting is not what a commit rests on; a warning names the part."""
    register(monkeypatch)

    class Keeping(FsspecCalls):
        def remove(self, path: str) -> None:
            raise PermissionError(13, path)

    with store_with(Keeping, f"{scheme}/{tmp_path}") as store:
        handle = write_part(store, DATA, state="pending")
        with caplog.at_level(logging.WARNING, "partfile"):
            for _ in range(2):
                store.publish(handle, "auto")
        assert store.read_file(handle.path_of(handle.name), 99) == DATA
    assert f"{handle.path_of(handle.name)!r} is published" in caplog.text


@pytest.mark.parametrize("name", ["", "a/b", "..", "/a", "a\0b"])
@pytest.mark.parametrize("field", ["file", "spent"])
def test_a_handle_that_leaves_its_directory_is_corrupt(name: str, field: str, memory: str) -> None:
    """It comes from a checkpoint, so no option is at fault; and nothing is deleted by it."""
    with FsspecStore(memory) as store:
        handle = write_part(store, DATA, state="pending")
        damaged = handle.model_copy(update={"staging": {**handle.staging, field: name if field == "file" else [name]}})
        for use in (lambda: store.publish(damaged, "auto"), lambda: store.discard(damaged)):
            with pytest.raises(SnapshotCorrupt, match="no file name"):
                use()
