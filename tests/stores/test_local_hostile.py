"""A tree that another program tampers with: the local store follows no link, opens no pipe, changes no foreign file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from partfile.errors import (
    AlreadyExists,
    CommitConflict,
    ConfigError,
    LeaseUnavailable,
    NotApplied,
    PartfileError,
    PartMissing,
    StoreError,
)
from partfile.stores.local.store import LocalStore
from partfile.testing.faults import TrackedCalls
from partfile.testing.store import new_part, new_staging_file, write_part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


DATA, TAIL, FOREIGN = b"valid bytes", b"a tail", b"valid bytes and more that is not ours"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    """A store beside which there is a directory that is none of its business."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "base").mkdir()
    (outside / "victim").write_bytes(FOREIGN)
    with LocalStore(str(tmp_path / "base")) as store:
        yield store
    assert [path.name for path in outside.iterdir()] == ["victim"]
    assert (outside / "victim").read_bytes() == FOREIGN


@pytest.mark.fault("H2")
def test_a_bucket_that_is_a_symbolic_link_is_refused(store: LocalStore, tmp_path: Path) -> None:
    """No verb goes through a link to a directory, at whatever depth."""
    link = tmp_path / "base" / "day=1"
    link.symlink_to(tmp_path / "outside", target_is_directory=True)
    verbs: list[Callable[[str], object]] = [
        lambda bucket: store.create(new_part(bucket)),
        lambda bucket: store.resume(new_part(bucket)),
        lambda bucket: store.publish(new_part(bucket), "auto"),
        lambda bucket: store.discard(new_part(bucket)),
        lambda bucket: store.create_file(f"{bucket}/x", b""),
        lambda bucket: store.read_file(f"{bucket}/victim", 99),
        lambda bucket: store.delete_file(f"{bucket}/victim"),
        store.delete_directory,
        lambda bucket: store.hold_marker(f"{bucket}/marker"),
    ]
    for verb in verbs:
        for bucket in ("day=1", "day=1/deeper"):
            with pytest.raises(StoreError):
                verb(bucket)
    assert list(store.list()) == []


@pytest.mark.fault("H2")
def test_a_staging_file_that_is_no_file_of_ours_is_not_read(store: LocalStore, tmp_path: Path) -> None:
    """Neither a link to a file, nor one to a directory above it, nor a pipe, which would wait for ever."""
    staging_file = new_staging_file().at(len(DATA))
    bucket = tmp_path / "base" / staging_file.bucket
    bucket.symlink_to(tmp_path / "outside", target_is_directory=True)
    victim = staging_file.model_copy(update={"in_progress": "victim"})
    with pytest.raises(StoreError):
        store.open_staging_file(victim)
    bucket.unlink()
    bucket.mkdir()
    (bucket / staging_file.in_progress).symlink_to(tmp_path / "outside" / "victim")
    with pytest.raises(StoreError):
        store.open_staging_file(staging_file)
    (bucket / staging_file.in_progress).unlink()
    os.mkfifo(bucket / staging_file.in_progress)
    with pytest.raises(StoreError):
        store.open_staging_file(staging_file)


def test_a_staging_file_that_is_cut_while_it_is_read_is_missing(tmp_path: Path) -> None:
    """Fewer bytes than a checkpoint vouches for never look like the end of the file; no descriptor stays open."""
    calls = TrackedCalls()
    store = LocalStore(str(tmp_path / "base"), calls=calls)
    stream = store.create(new_staging_file())
    stream.write(DATA)
    staging_file = stream.persist()
    stream.close()
    before = set(calls.open_descriptors)
    with store.open_staging_file(staging_file) as file:
        os.truncate(tmp_path / "base" / staging_file.path_of(staging_file.in_progress), 3)
        with pytest.raises(PartMissing):
            file.read()
    with pytest.raises(PartMissing):
        store.open_staging_file(staging_file)
    assert calls.open_descriptors == before
    store.close()
    assert not calls.open_descriptors


@pytest.mark.parametrize("name", ["in_progress", "pending", "name", "sidecar"])
@pytest.mark.fault("H2")
def test_a_part_that_is_a_symbolic_link_is_refused(store: LocalStore, tmp_path: Path, name: str) -> None:
    """A link in place of a part or its sidecar is neither followed nor published."""
    handle = new_part().at(len(DATA))
    bucket = tmp_path / "base" / handle.bucket
    bucket.mkdir()
    (bucket / getattr(handle, name)).symlink_to(tmp_path / "outside" / "victim")
    if name == "sidecar":
        (bucket / handle.pending).write_bytes(DATA)
    with pytest.raises((CommitConflict, NotApplied)):
        store.publish(handle, "auto")
    with pytest.raises(StoreError):
        store.resume(handle)
    with pytest.raises(StoreError):
        store.read_file(handle.path_of(getattr(handle, name)), 99)
    assert not store.file_exists(handle.path_of(getattr(handle, name)))
    assert (bucket / getattr(handle, name)).is_symlink()


@pytest.mark.fault("H2")
def test_creation_does_not_go_through_a_dangling_link(store: LocalStore, tmp_path: Path) -> None:
    """A link to nothing under the name to be created counts as taken."""
    handle = new_part()
    bucket = tmp_path / "base" / handle.bucket
    bucket.mkdir()
    (bucket / handle.in_progress).symlink_to(tmp_path / "outside" / "new")
    (bucket / "metadata").symlink_to(tmp_path / "outside" / "new")
    with pytest.raises(AlreadyExists):
        store.create(handle)
    with pytest.raises(AlreadyExists):
        store.create_file("day=1/metadata", b"x")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", ["in_progress", "pending", "name", "sidecar"])
@pytest.mark.fault("H2")
def test_a_pipe_in_place_of_a_part_does_not_block(store: LocalStore, tmp_path: Path, name: str) -> None:
    """Opening a FIFO would wait for its other end for ever; it is refused instead, and listed nowhere."""
    handle = new_part().at(len(DATA))
    bucket = tmp_path / "base" / handle.bucket
    bucket.mkdir()
    os.mkfifo(bucket / getattr(handle, name))
    if name == "sidecar":
        (bucket / handle.pending).write_bytes(DATA)
    with pytest.raises((CommitConflict, NotApplied)):
        store.publish(handle, "auto")
    with pytest.raises(StoreError):
        store.resume(handle)
    with pytest.raises(StoreError):
        store.read_file(handle.path_of(getattr(handle, name)), 9)
    with pytest.raises(StoreError):
        store.hold_marker(handle.path_of(getattr(handle, name)))
    assert [file.path for file in store.list()] == ([handle.path_of(handle.pending)] if name == "sidecar" else [])


@pytest.mark.parametrize("state", ["in-progress", "pending"])
@pytest.mark.fault("H2")
def test_a_part_with_a_name_elsewhere_is_copied_not_cut(store: LocalStore, tmp_path: Path, state: str) -> None:
    """A hard link could be another program's file: it keeps every byte, the part is published from a copy."""
    handle = new_part().at(len(DATA))
    bucket = tmp_path / "base" / handle.bucket
    bucket.mkdir()
    os.link(tmp_path / "outside" / "victim", bucket / (handle.pending if state == "pending" else handle.in_progress))
    with pytest.raises(LeaseUnavailable):
        store.resume(handle.at(len(FOREIGN)))
    store.publish(handle, "truncate")
    assert (bucket / handle.name).read_bytes() == DATA
    assert not (bucket / handle.name).samefile(tmp_path / "outside" / "victim")


@pytest.mark.parametrize("staged", ["in_progress", "pending"])
def test_of_two_names_of_a_finished_file_the_staged_one_is_dropped(
    store: LocalStore, tmp_path: Path, staged: str
) -> None:
    """A crash between link and unlink leaves one file with two names; the final one stays."""
    handle = write_part(store, DATA, state="finished")
    bucket = tmp_path / "base" / handle.bucket
    os.link(bucket / handle.name, bucket / getattr(handle, staged))
    with pytest.raises(LeaseUnavailable):
        store.resume(handle)
    store.publish(handle, "auto")
    assert [path.name for path in bucket.iterdir()] == [handle.name]
    assert (bucket / handle.name).read_bytes() == DATA


def test_discarding_one_of_two_names_keeps_the_finished_one(store: LocalStore, tmp_path: Path) -> None:
    """The cleaner drops the staged name of a published file and nothing else."""
    handle = write_part(store, DATA, state="finished")
    bucket = tmp_path / "base" / handle.bucket
    os.link(bucket / handle.name, bucket / handle.pending)
    assert store.discard(handle)
    assert (bucket / handle.name).read_bytes() == DATA


def test_a_part_under_both_staged_names_loses_neither_file(store: LocalStore, tmp_path: Path) -> None:
    """Two different files under the two staged names: the pending one is the part, the other keeps its bytes."""
    handle = write_part(store, DATA, tail=TAIL, state="pending")
    bucket = tmp_path / "base" / handle.bucket
    (bucket / handle.in_progress).write_bytes(FOREIGN)
    store.publish(handle, "auto")
    assert (bucket / handle.name).read_bytes() == DATA
    assert FOREIGN in [path.read_bytes() for path in bucket.iterdir()]


@pytest.mark.fault("H2")
def test_a_directory_in_place_of_a_part_is_refused(store: LocalStore, tmp_path: Path) -> None:
    """Neither publishing over a directory nor deleting one as if it were a file works."""
    handle = write_part(store, DATA, state="pending")
    (tmp_path / "base" / handle.bucket / handle.name).mkdir()
    with pytest.raises(CommitConflict):
        store.publish(handle, "auto")
    with pytest.raises(NotApplied):
        store.delete_file(handle.path_of(handle.name))
    with pytest.raises(NotApplied):
        store.read_file(handle.bucket, 99)


def test_a_link_of_just_the_valid_length_is_no_finished_part(store: LocalStore, tmp_path: Path) -> None:
    """The size of a link is the length of its text, which proves nothing."""
    handle = write_part(store, DATA, state="pending")
    (tmp_path / "base" / handle.path_of(handle.name)).symlink_to("x" * len(DATA))
    with pytest.raises(CommitConflict):
        store.publish(handle, "auto")


@pytest.mark.fault("H2")
def test_a_file_in_place_of_a_bucket_is_refused(store: LocalStore, tmp_path: Path) -> None:
    """The error names the path that is in the way."""
    (tmp_path / "base" / "day=1").write_bytes(b"")
    with pytest.raises(NotApplied) as raised:
        store.create(new_part("day=1/hour=2"))
    assert "day=1" in str(raised.value)


@pytest.mark.fault("H3")
def test_names_that_are_not_unicode_are_passed_over(store: LocalStore, tmp_path: Path) -> None:
    """A foreign file with a strange name stops no listing."""
    with open(os.fsencode(tmp_path / "base") + b"/\xff\xfe", "wb"):  # noqa: PTH123 - Path takes no bytes.
        pass
    store.create_file("known", b"")
    assert [file.path for file in store.list()] == ["known"]


@pytest.mark.fault("H2")
def test_the_base_is_resolved_once(tmp_path: Path) -> None:
    """A base reached by a link stays the directory that it was when the store was opened."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "first")
    with LocalStore(str(link)) as store:
        link.unlink()
        link.symlink_to(tmp_path / "second")
        store.create_file("file", b"")
        assert store.base == str(tmp_path / "first")
    assert (tmp_path / "first" / "file").exists()
    assert not (tmp_path / "second" / "file").exists()


@pytest.mark.parametrize("bucket", ["..", "/etc", "a/../../b"])
def test_a_handle_that_was_not_checked_is_checked_by_the_store(store: LocalStore, bucket: str) -> None:
    """The store asserts containment itself, even for a handle that was made around its validation."""
    handle = new_part().model_copy(update={"bucket": bucket})
    for verb in (store.create, store.resume, store.discard):
        with pytest.raises(ConfigError):
            verb(handle)
    with pytest.raises(ConfigError):
        store.publish(handle, "auto")
    with pytest.raises(PartfileError):
        list(store.list(bucket))


def test_a_file_name_that_was_not_checked_is_checked_by_the_store(store: LocalStore) -> None:
    """The names in a handle are checked just like its bucket: none may hold a directory."""
    escaping = {"name": "../../outside/x", "in_progress": "../../outside/y", "pending": "../../outside/z"}
    handle = new_part().model_copy(update=escaping)
    with pytest.raises(PartfileError):
        store.create(handle)
    with pytest.raises(PartfileError):
        store.publish(handle, "auto")
    with pytest.raises(PartfileError):
        store.discard(handle)
