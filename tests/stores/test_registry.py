"""From a URL to a store, and what is said when that does not work."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from partfile.errors import ConfigError, NotApplied, NotFound
from partfile.stores.local.posix import PosixCalls
from partfile.stores.local.store import LocalStore
from partfile.stores.registry import open_store, options_for
from partfile.stores.urls import local_path
from partfile.testing.faults import FailAt, intercept

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("/data/x", "/data/x"),
        ("/data/100%25", "/data/100%25"),
        ("file:///data/x", "/data/x"),
        ("file:/data/x", "/data/x"),
        ("FILE://localhost/data", "/data"),
        ("file:///a%20b/%25%3F%23", "/a b/%?#"),
        ("/data/a:b", "/data/a:b"),
        ("file:///data/ü", "/data/ü"),
    ],
)
@pytest.mark.fault("T9")
def test_paths_and_file_urls(url: str, path: str) -> None:
    """A plain path is literal; a file URL is percent-decoded."""
    assert local_path(url) == path


def test_a_relative_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store stays where it is when the process changes its directory."""
    monkeypatch.chdir(tmp_path)
    with open_store("base") as store:
        monkeypatch.chdir("/")
        store.create_file("x", b"")
        assert store.base == str(tmp_path / "base")
    assert (tmp_path / "base" / "x").exists()


@pytest.mark.parametrize("url", ["nosuch://bucket/x", "C:\\x"])
def test_another_scheme_is_named_together_with_those_that_work(url: str) -> None:
    """The error tells the user what to write instead."""
    with pytest.raises(ConfigError) as raised:
        open_store(url)
    assert url.split(":", maxsplit=1)[0].lower() in str(raised.value)
    assert "file://" in str(raised.value)


@pytest.mark.parametrize("url", ["", "file://host/x", "file:x", "file:", "file:///x?y", "file:///x#y", "file:///%ff"])
def test_a_url_that_is_no_local_path_is_refused(url: str) -> None:
    """Hosts, relative URLs, queries and undecodable bytes are not guessed at."""
    with pytest.raises(ConfigError):
        open_store(url)


def test_a_nul_in_the_path_is_refused() -> None:
    """Not by a bare ValueError of the system call."""
    with pytest.raises(ConfigError):
        open_store("file:///tmp/a%00b")


def test_options_that_are_not_read_are_refused() -> None:
    """A key meant for another store is not dropped in silence, and its value is not shown."""
    with pytest.raises(ConfigError) as raised:
        open_store("/tmp", {"secret": "hunter2"})  # noqa: S108 - never opened.
    assert "secret" in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_a_base_that_is_a_file_says_so(tmp_path: Path) -> None:
    """The message names the path."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="file, not a directory") as raised:
        open_store(str(tmp_path / "file"))
    assert raised.value.path == str(tmp_path / "file")


def test_missing_directories_above_the_base_are_made(tmp_path: Path) -> None:
    """A base several levels below what exists is made with the first file; a store that only looks makes nothing."""
    base = tmp_path / "a" / "b" / "base"
    with open_store(str(base)) as store, open_store(str(base)) as other:
        assert store.base == str(base)
        assert (store.list_names(""), list(store.list()), store.file_exists("x")) == ([], [], False)
        with pytest.raises(NotFound):
            store.read_file("x", 1)
        store.delete_file("x")
        store.delete_directory("d")
        assert list(tmp_path.iterdir()) == []
        store.create_file("x", b"1")
        assert base.is_dir()
        assert other.read_file("x", 1) == b"1"


def test_a_base_below_a_file_says_so(tmp_path: Path) -> None:
    """The message names the base and the file in its way, and nothing is made."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="not a directory") as raised:
        open_store(str(tmp_path / "file" / "base"))
    assert str(tmp_path / "file" / "base") in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_reader_below_a_file_is_told_which(tmp_path: Path) -> None:
    """The file that is above, and not the path that was asked for."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match=f"^'{tmp_path}/file' is a file, not a directory"):
        LocalStore(str(tmp_path / "file" / "base"), create_base=False)


def test_a_reader_makes_nothing(tmp_path: Path) -> None:
    """With create_base=False a missing base raises and stays missing; a base that is there can be read."""
    with pytest.raises(NotFound) as raised:
        LocalStore(str(tmp_path / "base"), create_base=False)
    assert raised.value.hint
    assert list(tmp_path.iterdir()) == []
    with LocalStore(str(tmp_path), create_base=False) as store:
        assert list(store.list()) == []


def test_a_base_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    """A refusal of mkdir arrives with path and hint."""
    calls = intercept(PosixCalls(), FailAt(1, PermissionError(13, ""), only={"make_directory"}))
    with LocalStore(str(tmp_path / "base"), calls=calls) as store, pytest.raises(NotApplied) as raised:
        store.create_file("x", b"")
    assert str(tmp_path / "base") in str(raised.value)
    assert raised.value.hint


@pytest.mark.fault("F4")
def test_a_base_without_write_permission_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Better now than at the first checkpoint; for reading it will do. Root may write anywhere, so it is lied to."""
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    for base, what in ((tmp_path, "written to"), (tmp_path / "a" / "b", "made")):
        with pytest.raises(NotApplied, match=what) as raised:
            open_store(str(base))
        assert str(base) in str(raised.value)
    LocalStore(str(tmp_path), create_base=False).close()


@pytest.mark.parametrize(
    ("url", "base", "is_shared"),
    [
        ("/savepoints", "/data", True),
        ("file:///savepoints", "data", True),
        ("FILE://localhost/savepoints", "/data", True),
        ("hdfs://nn:8020/savepoints", "HDFS://NN:8020/data", True),
        ("hdfs://nn:8020", "hdfs://nn:8020/data", True),
        ("hdfs://other:8020/savepoints", "hdfs://nn:8020/data", False),
        ("hdfs://nn:9000/savepoints", "hdfs://nn/data", False),
        ("hdfs://NN:8020/savepoints", "hdfs:/data", False),
        ("hdfs://NN:8020/savepoints", "hdfs://nn/data", True),
        ("s3://bucket/savepoints", "s3://bucket/data", True),
        ("s3a://bucket/savepoints", "s3://bucket/data", True),
        ("s3://bucket/savepoints", "S3A://bucket/data", True),
        ("s3a://backup/savepoints", "s3://bucket/data", False),
        ("s3://backup/savepoints", "s3://bucket/data", False),
        ("s3://nn/savepoints", "hdfs://nn/data", False),
        ("/savepoints", "s3://bucket/data", False),
        ("s3://bucket/savepoints", "/data", False),
        ("memory:savepoints", "memory:data", True),
        ("gcs://bucket/savepoints", "gs://bucket/data", True),
        ("abfss://c@a/savepoints", "az://c@a/data", True),
        ("abfs://c@a/savepoints", "abfs://c@b/data", False),
        ("ssh://host/savepoints", "sftp://host/data", True),
    ],
)
def test_options_go_to_the_service_they_were_given_for(url: str, base: str, *, is_shared: bool) -> None:
    """Another place of the same scheme and authority is opened with them; secrets are sent nowhere else."""
    options = {"delegation_token": "hunter2"}
    assert options_for(url, base, options) == (options if is_shared else {})
