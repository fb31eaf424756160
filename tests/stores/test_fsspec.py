"""The store over fsspec: its clients, what it claims after its probe, and how it publishes."""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import partfile as pf
from partfile.errors import (
    AlreadyExists,
    CommitConflict,
    ConfigError,
    OutcomeUnknown,
    PartMissing,
    SnapshotCorrupt,
    StoreError,
)
from partfile.readers.filesystem import open_for_reading
from partfile.stores.base import STATE_DIRECTORY
from partfile.stores.fsspec import schemes
from partfile.stores.fsspec import store as fsspec_files
from partfile.stores.fsspec.client import FsspecCalls
from partfile.stores.fsspec.schemes import FsspecUrl, scheme_named
from partfile.stores.fsspec.store import FsspecStore
from partfile.stores.registry import check_options, is_same_place, open_store, path_inside
from partfile.testing.faults import ActAt, CrashAt, FailAt, Recorder, SimulatedCrash, intercept
from partfile.testing.store import files_in, neighbour, new_part, write_part
from support.files.fsspec_stores import DATA, OTHER, CopyingFileSystem, intercepted, register, store_with
from support.sinks.life_cycle import ROWS, assert_exactly_once, make_sink, run_to_the_end

if TYPE_CHECKING:
    from pathlib import Path


# The store over fsspec as a whole: small files, names, places, and the life of a plain sink.


def test_a_directory_that_another_deletes_while_it_is_still_empty_is_made_again(tmp_path: Path) -> None:
    """Two who probe one base at the same time tidy up after each other."""
    made = ActAt(1, (tmp_path / "a").rmdir, "after", only={"make_directories"})
    url = f"dir::file://{tmp_path}"
    with FsspecStore(url) as store:
        assert store.capabilities.no_replace
    with intercepted(url, made) as store:
        store.create_file("a/b", DATA)
        assert store.read_file("a/b", 99) == DATA


def test_a_second_link_is_noticed_where_it_cannot_be_prevented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is overtaken between its look and its write reads other bytes back than its own, and knows it."""
    register(monkeypatch)
    url = f"copying:/{tmp_path}"
    with FsspecStore(url) as store:
        path = tmp_path / "job" / "link"
        rival = ActAt(1, lambda: path.write_bytes(OTHER), "after", only={"write"})
        with intercepted(url, rival) as late:
            path.parent.mkdir()
            with pytest.raises(AlreadyExists):
                late.create_file("job/link", DATA)
        assert store.read_file("job/link", 99) == OTHER


def test_a_part_that_fails_to_be_sent_is_lost_to_its_task(memory: str) -> None:
    """Nothing of it may be persisted any more."""
    with intercepted(memory, FailAt(1, ConnectionResetError(), only={"upload"})) as store:
        stream = store.create(new_part())
        stream.write(DATA)
        with pytest.raises(OutcomeUnknown):
            stream.persist()
        with pytest.raises(pf.PartfileError, match="lost to this process"):
            stream.persist()
        stream.close()


def test_a_plain_sink_writes_to_memory_and_is_read_from_there(memory: str, caplog: pytest.LogCaptureFixture) -> None:
    """The whole life by its URL alone: open, roll, commit, restore, end; fsspec reads what was written."""
    with caplog.at_level(logging.WARNING, "partfile"):
        for rows in (5, ROWS):
            run_to_the_end(make_sink(memory, open_store=open_store), rows)
    assert "ends with this process" in caplog.text
    files, base = open_for_reading(memory)
    found = [path for path in files.find(base) if "/_" not in path.removeprefix(base)]
    read = sorted(row for path in found for row in files.cat_file(path).decode().splitlines())
    assert read == [f"row-{number:04d}" for number in range(ROWS)]


def test_a_plain_sink_writes_to_dir_and_is_read_as_local_files(tmp_path: Path) -> None:
    """With the store that its URL opens."""
    url = f"dir::file://{tmp_path}"
    for rows in (5, ROWS):
        run_to_the_end(make_sink(url, open_store=open_store), rows)
    assert_exactly_once(tmp_path)


def test_a_name_that_a_client_would_cut_is_refused(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two buckets must not become one; other file systems take the same name."""
    with FsspecStore(memory) as store:
        store.create_file("a?b", b"")
    assert scheme_named("abfss").reserved == "?"
    limited = replace(scheme_named("memory"), reserved="?")
    monkeypatch.setitem(schemes._KNOWN, "memory", limited)
    with FsspecStore(memory) as store, pytest.raises(ConfigError, match="drops"):
        store.create_file("a?b", b"")


def test_places_are_compared_however_they_are_written() -> None:
    """Schemes have several names, and ``dir`` is a directory of this host."""
    assert is_same_place("gcs://bucket/x/", "gs://bucket/x", {})
    assert not is_same_place("gs://bucket/x", "s3://bucket/x", {})
    assert path_inside("abfss://c@a/x/y", "abfs://c@a/x", {}) == ("y",)
    assert is_same_place("memory:///a/b", "memory://a/b", {})
    assert is_same_place("dir::file:///tmp/x", "/tmp/x", {})  # noqa: S108 - nothing is opened.


def test_a_rival_that_is_a_little_later_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that looked before our file was there writes its own a moment after it; we read back only then."""
    register(monkeypatch)
    monkeypatch.setattr(fsspec_files, "_RIVALS_ARE_DONE_AFTER_S", 0.2)
    path = tmp_path / "link"
    rival = threading.Timer(0.05, lambda: path.write_bytes(OTHER))
    started = ActAt(1, rival.start, "after", only={"write"})
    with intercepted(f"copying:/{tmp_path}", started) as late, pytest.raises(AlreadyExists):
        late.create_file("link", DATA)
    rival.join()


# Which clients of fsspec a store takes, what it gives them, and what it says of them; none remembers listings.


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://host/path", "only be read"),
        ("https://host/path", "only be read"),
        ("github://owner:name@main/path", "only be read"),
        ("zip://inside", "archive"),
        ("filecache://place", "cache"),
        ("simplecache::gs://bucket/path", "one file system"),
        ("dir::gs://bucket/path", "one file system"),
        ("dir::file://path", "relative"),
        ("dir://foo/bar", "dir::file:///"),
        ("dir:///foo", "dir::file:///"),
        ("memory:path", "one file system"),
        ("sftp://user:secret@host/path", "password"),
        ("memory://a/../b", "'..'"),
        ("memory://a/b//c", "empty segment"),
        ("gs:///bucket/path", "names no place"),
        ("gs://bucket/a?b", "?"),
        ("nosuch://bucket", "nosuch"),
        ("dbfs://landing/events", "s3://bucket/path"),
        ("DBFS:/landing/events", "s3://bucket/path"),
    ],
)
def test_what_no_sink_can_write_to_is_refused_by_name(url: str, why: str) -> None:
    """The error says why."""
    with pytest.raises(ConfigError) as raised:
        open_store(url)
    assert why in str(raised.value)


@pytest.mark.parametrize(
    ("url", "package"),
    [("gs://bucket/x", "gcsfs"), ("abfss://c@a.dfs.core.windows.net/x", "adlfs"), ("sftp://host/x", "paramiko")],
)
def test_a_client_that_is_not_installed_is_named(url: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that pip can be told; at once, before anything is written."""

    def missing(scheme: str) -> None:
        raise ImportError(scheme)

    monkeypatch.setattr(fsspec, "get_filesystem_class", missing)
    for check in (lambda: open_store(url), lambda: check_options(url, {}, "auto")):
        with pytest.raises(ConfigError, match=f"pip install {package}"):
            check()


def test_options_that_the_client_does_not_take_are_named_and_their_values_are_not_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A client's error may repeat what it was given."""

    class Strict(CopyingFileSystem):
        protocol = "strict"

        def __init__(self, **options: object) -> None:
            if options.pop("token", None):
                raise ValueError("bad token hunter2")
            super().__init__(**options)

    register(monkeypatch)
    fsspec.register_implementation("strict", Strict, clobber=True)
    with open_store(f"strict:/{tmp_path}", {"token": "hunter2"}) as store, pytest.raises(ConfigError) as raised:
        store.create_file("x", b"")
    assert "token" in str(raised.value)
    assert "hunter2" not in str(raised.value)
    assert raised.value.__cause__ is None
    with pytest.raises(ConfigError, match="skip_instance_cache"):
        open_store("memory://x", {"skip_instance_cache": False})


def test_what_a_client_says_of_a_failure_is_not_passed_on(memory: str) -> None:
    """URLs with signatures are in such texts."""
    with intercepted(memory, FailAt(1, OSError(5, "https://host/?sig=hunter2"), only={"write"})) as store:
        with pytest.raises(OutcomeUnknown) as raised:
            store.capabilities  # noqa: B018 - asking is what fails.
        assert "hunter2" not in str(raised.value)


@pytest.mark.fault("N10")
def test_a_forked_child_makes_a_client_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection or an event loop of the parent is of no use to it."""

    class Noting(CopyingFileSystem):
        protocol = "noting"

        def __init__(self, **options: object) -> None:
            with (tmp_path / "made").open("a") as file:
                file.write(f"{os.getpid()}\n")
            super().__init__(**options)

    register(monkeypatch)
    fsspec.register_implementation("noting", Noting, clobber=True)
    with FsspecStore(f"noting:/{tmp_path}") as store:
        for _ in range(2):
            store.create_file(f"{tmp_path.name}.{_}", b"")
        with neighbour(lambda: store, lambda other: other.list_names("")) as names:
            assert f"{tmp_path.name}.1" in names
    made = (tmp_path / "made").read_text().splitlines()
    assert made[0] == str(os.getpid())
    assert len(set(made)) == len(made) == 2


class _ForgettingWhenTold(CopyingFileSystem):
    """Remembers listings until it is told not to."""

    protocol = "remembering"

    def ls(self, path: str, detail: bool = False, **options: Any) -> Any:
        """As it was at first."""
        seen = self.__dict__.setdefault("seen", {})
        if path not in seen:
            seen[path] = super().ls(path, detail, **options)
        return seen[path]

    def invalidate_cache(self, path: str | None = None) -> None:  # noqa: ARG002 - fsspec's signature
        """As remote ones do."""
        self.__dict__.get("seen", {}).clear()


class _RememberingWhenAllowed(CopyingFileSystem):
    """Remembers listings where fsspec's option does not forbid it, whatever it is told afterwards."""

    protocol = "remembering"

    def ls(self, path: str, detail: bool = False, **options: Any) -> Any:
        """As it was at first."""
        if path not in self.dircache:
            self.dircache[path] = super().ls(path, detail, **options)
        try:
            return self.dircache[path]
        except KeyError:
            return super().ls(path, detail, **options)

    def invalidate_cache(self, path: str | None = None) -> None:
        """Does not."""


@pytest.mark.parametrize("kind", [_ForgettingWhenTold, _RememberingWhenAllowed])
def test_a_listing_is_never_an_earlier_one(
    kind: type[CopyingFileSystem], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint of another driver must be seen at once."""
    register(monkeypatch)
    fsspec.register_implementation("remembering", kind, clobber=True)
    with FsspecStore(f"remembering:/{tmp_path}") as store:
        assert store.list_names("") == []
        (tmp_path / "link").write_bytes(DATA)
        assert store.list_names("") == ["link"]


def test_of_two_threads_one_creates_a_file_in_memory(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of fsspec looks and then writes; the store lets no other thread in between."""
    real = MemoryFileSystem.exists

    def slow(files: MemoryFileSystem, path: str, **options: Any) -> Any:
        found = real(files, path, **options)
        time.sleep(0.05)
        return found

    monkeypatch.setattr(MemoryFileSystem, "exists", slow)
    outcomes: list[bool] = []

    def create(store: FsspecStore, data: bytes) -> None:
        try:
            store.create_file("job/link", data)
        except AlreadyExists:
            outcomes.append(False)
        else:
            outcomes.append(True)

    with FsspecStore(memory) as store:
        assert store.capabilities.exclusive_create
        threads = [threading.Thread(target=create, args=(store, data)) for data in (DATA, OTHER)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(outcomes) == [False, True]


# What the store over fsspec claims after it has asked, and what it says is weaker.


@pytest.mark.parametrize("scheme", ["dir::file:/", "memory:"])
def test_a_server_is_asked_once_a_process_whether_it_refuses_a_name(scheme: str, tmp_path: Path) -> None:
    """The second store asks nothing, and the probe leaves nothing."""
    url = f"{scheme}/{tmp_path}"
    with intercepted(url, recorder := Recorder()) as store:
        assert store.capabilities.exclusive_create
        assert store.list_names("") == []
    assert {"link", "create"} & set(recorder.names)
    with intercepted(url, recorder := Recorder()) as store:
        assert store.capabilities.no_replace
    assert recorder.names == []


@pytest.mark.parametrize(("scheme", "call"), [("dir::file:/", "link"), ("memory:", "create")])
def test_what_the_table_claims_and_the_probe_refutes_is_not_claimed(scheme: str, call: str, tmp_path: Path) -> None:
    """A disk without links, a server that ignores conditions: then a look goes before a copy, and the start says so."""

    class Ignoring(FsspecCalls):
        def link(self, path: str, name: str) -> None:
            raise OSError(95, f"no links: {path} {name}")

        def create(self, path: str, data: bytes) -> None:
            self.write(path, data)

    url = f"{scheme}/{tmp_path}"
    with store_with(Ignoring, url) as store:
        assert not store.capabilities.no_replace, call
        assert not store.capabilities.exclusive_create
        assert any("detected, not prevented" in hazard for hazard in store.hazards(now_ms=0, longest_open_s=1))
        handle = write_part(store, DATA, state="finished")
        assert store.read_file(handle.path_of(handle.name), 99) == DATA


@pytest.mark.parametrize(
    ("scheme", "weaker"),
    [
        ("memory:", {"rolls", "durable", "ends with this process"}),
        ("dir::file:/", {"rolls", "durable"}),
        ("renaming:", {"rolls", "durable", "detected"}),
        ("copying:", {"rolls", "durable", "detected", "whole"}),
    ],
)
def test_the_start_says_what_is_weaker(
    scheme: str, weaker: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each hazard where it is one, and nowhere else."""
    register(monkeypatch)
    with FsspecStore(f"{scheme}/{tmp_path}") as store:
        said = list(store.hazards(now_ms=0, longest_open_s=1))
    assert len(said) == len(weaker)
    assert all(any(word in hazard for hazard in said) for word in weaker)


@pytest.mark.parametrize("replaces_with", [b"", b"bytes"])
def test_a_server_that_refuses_some_contents_alone_is_seen(replaces_with: bytes, memory: str) -> None:
    """One client was seen to replace a file by an empty one; another may do it with bytes."""

    class Half(FsspecCalls):
        def create(self, path: str, data: bytes) -> None:
            if bool(data) is bool(replaces_with) and "_probe" in path and path in fsspec.filesystem("memory").store:
                self.write(path, data)
            else:
                super().create(path, data)

    with store_with(Half, memory) as store:
        assert not store.capabilities.exclusive_create


def test_another_server_or_account_is_asked_for_itself(memory: str) -> None:
    """Options may name one; what they hold is not kept."""
    seen = []
    for options in ({"endpoint_url": "one"}, {"endpoint_url": "hunter2"}, {"endpoint_url": "one"}):
        calls = FsspecCalls(FsspecUrl.of(memory), options)
        with FsspecStore(memory, calls=intercept(calls, recorder := Recorder())) as store:
            assert store.capabilities.no_replace
        seen.append("create" in recorder.names)
        assert "hunter2" not in repr(calls.place)
    assert seen == [True, True, False]


# Publishing over fsspec: lost replies, wrong files under either name, and what cannot be deleted afterwards.


@pytest.mark.parametrize("scheme", ["memory:", "dir::file:/", "renaming:", "copying:"])
@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.fault("F8")
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
@pytest.mark.fault("F6")
def test_another_file_of_the_same_length_is_a_conflict(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before publishing, and where publishing meets it: length alone is not believed."""
    register(monkeypatch)
    url = f"{scheme}/{tmp_path}"
    with FsspecStore(url) as store:
        handle = write_part(store, DATA, state="pending")
        store.create_file(handle.path_of(handle.name), OTHER)
        with pytest.raises(CommitConflict):
            store.publish(handle, "auto")
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


@pytest.mark.parametrize(("copied", "shown"), [(None, "not there"), (OTHER, "another one"), (b"", "another one")])
def test_a_client_that_does_not_copy_is_found_out_before_anything_is_published(
    copied: bytes | None, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
        for _ in range(2):
            with pytest.raises(StoreError, match=f"the copy is {shown}"):
                store.publish(handle, "auto")
        assert store.read_file(handle.path_of(handle.in_progress), 99) == DATA
        assert [file.path for file in store.list()] == [handle.path_of(handle.in_progress)]
        assert store.list_names(STATE_DIRECTORY) == []


def test_a_copy_that_is_another_file_is_a_conflict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked at before what it was made of goes."""
    register(monkeypatch)

    class Damaging(FsspecCalls):
        def copy(self, path: str, name: str) -> None:
            if STATE_DIRECTORY in name:
                super().copy(path, name)
            else:
                self.write(name, OTHER)

    with store_with(Damaging, f"copying:/{tmp_path}") as store:
        handle = write_part(store, DATA, state="pending")
        with pytest.raises(CommitConflict):
            store.publish(handle, "auto")
        assert store.read_file(handle.path_of(handle.in_progress), 99) == DATA


def test_a_copy_that_a_consumer_takes_at_once_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file system has acknowledged the copy, so nothing stays from which it could be shown again."""
    register(monkeypatch)
    taken: list[bytes] = []

    class Consumed(FsspecCalls):
        def copy(self, path: str, name: str) -> None:
            super().copy(path, name)
            if STATE_DIRECTORY not in name:
                taken.append(self.read(name))
                self.remove(name)

    with store_with(Consumed, f"copying:/{tmp_path}") as store:
        handle = write_part(store, DATA, state="pending")
        store.publish(handle, "auto")
        assert taken == [DATA]
        assert list(store.list()) == []


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
            with pytest.raises(SnapshotCorrupt, match="not a file name"):
                use()
