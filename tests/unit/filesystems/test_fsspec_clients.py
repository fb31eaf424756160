"""Which clients of fsspec a store takes, what it gives them, and what it says of them; none remembers listings."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec_stores import DATA, OTHER, intercepted
from plain_file_systems import CopyingFileSystem, register

from partfile.errors import AlreadyExists, ConfigError, OutcomeUnknown
from partfile.stores.fsspec.store import FsspecStore
from partfile.stores.registry import check_options, open_store
from partfile.testing.faults import FailAt
from partfile.testing.store import neighbour

if TYPE_CHECKING:
    from pathlib import Path


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
    """A link of another driver must be seen at once."""
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
