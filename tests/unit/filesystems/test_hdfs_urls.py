"""URLs and options of HDFS, without a server."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from partfile.errors import ConfigError
from partfile.stores.hdfs.client import HdfsProcess
from partfile.stores.hdfs.options import HdfsOptions
from partfile.stores.registry import check_url, is_same_place, open_store, path_inside
from partfile.stores.urls import HdfsUrl

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("url", "authority", "path"),
    [
        ("hdfs://nn:8020/a/b", "nn:8020", "/a/b"),
        ("hdfs://nn//a///b/", "nn", "/a/b"),
        ("HDFS://nn", "nn", "/"),
        ("hdfs:///a", "", "/a"),
        ("hdfs:/a", "", "/a"),
        ("hdfs://nn/a%20b?x#y", "nn", "/a%20b?x#y"),
        ("hdfs://[::1]:8020/a", "[::1]:8020", "/a"),
    ],
)
def test_a_url_is_read_as_hadoop_reads_it(url: str, authority: str, path: str) -> None:
    """Its path is literal, with doubled slashes made one; without an authority fs.defaultFS decides."""
    check_url(url)
    assert HdfsUrl.of(url) == (authority, path)


@pytest.mark.parametrize(
    "url",
    [
        "hdfs:",
        "hdfs:a/b",
        "hdfs://nn/a/../b",
        "hdfs://nn/./b",
        "hdfs://bob@nn/a",
        "hdfs://n n/a",
        "hdfs://:1/a",
        "hdfs://nn/a:b",
    ],
)
def test_a_url_that_leads_nowhere_is_refused(url: str) -> None:
    """Relative paths, users and damaged hosts are not guessed at."""
    with pytest.raises(ConfigError):
        check_url(url)


@pytest.mark.parametrize(("url", "word"), [("viewfs://c/x", "hdfs://"), ("webhdfs://nn/x", "http_address")])
def test_other_schemes_of_hadoop_are_refused_with_what_to_write(url: str, word: str) -> None:
    """The hint says how to reach the same cluster."""
    with pytest.raises(ConfigError) as raised:
        open_store(url)
    assert word in raised.value.hint


@pytest.mark.parametrize(
    ("path", "base", "inside"),
    [
        ("hdfs://nn/a/b/c", "hdfs://NN:8020/a", ("b", "c")),
        ("hdfs://nn/a/", "hdfs://nn//a", ()),
        ("hdfs://nn/ab", "hdfs://nn/a", None),
        ("hdfs://nn/a", "hdfs://other/a", None),
        ("hdfs://nn/a", "/a", None),
        ("/a/b", "hdfs://nn/a", None),
        ("hdfs://nn/a", "hdfs://nn", ("a",)),
    ],
)
@pytest.mark.fault("T9")
def test_places_are_compared_over_their_spellings(path: str, base: str, inside: tuple[str, ...] | None) -> None:
    """Case of the host and the default port make no difference; another file system does."""
    assert path_inside(path, base, {}) == inside
    assert is_same_place(path, base, {}) is (inside == ())


def test_a_url_without_authority_is_where_the_configuration_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both spellings of one place are one place."""
    (tmp_path / "core-site.xml").write_text(
        "<configuration><property><name>fs.defaultFS</name><value>hdfs://nn:8020/</value></property></configuration>"
    )
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert path_inside("hdfs:///a/b", "hdfs://nn/a", {}) == ("b",)
    assert not is_same_place("hdfs:///a", "hdfs://other/a", {})


def test_opening_asks_hdfs_nothing() -> None:
    """A task opens two stores a batch: that must cost no call, and so works although nobody is there."""
    with open_store("hdfs://127.0.0.1:9/base") as store:
        assert store.base == "hdfs://127.0.0.1:9/base"
        assert store.capabilities.fence


def test_without_its_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is named, before anything is tried."""
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    with pytest.raises(ConfigError) as raised:
        open_store("hdfs://nn/base")
    assert "partfile[hdfs]" in raised.value.hint


def test_options_are_checked_and_never_shown() -> None:
    """An unknown option and a bad value are named, a secret stays one."""
    for options in ({"call_timeout": "hunter2"}, {"call_timeout_s": "hunter2"}, {"call_timeout_s": 0}):
        with pytest.raises(ConfigError) as raised:
            open_store("hdfs://nn/base", options)
        assert next(iter(options)) in str(raised.value)
        assert "hunter2" not in str(raised.value)
    known = HdfsOptions.of({"delegation_token": "hunter2", "config": {"x": "hunter2"}})
    assert "hunter2" not in repr(known)


@pytest.mark.parametrize(("timeout_s", "attempts"), [(60, "20"), (3, "1"), (1, "1")])
def test_the_client_gives_up_before_our_deadline(timeout_s: float, attempts: str) -> None:
    """Its own retries would go on for 180 s; what the user sets wins."""
    config = HdfsOptions(call_timeout_s=timeout_s).client_config
    assert config["dfs.client.failover.max.attempts"] == attempts
    wanted = {"dfs.client.failover.max.attempts": "9", "a": "b"}
    assert HdfsOptions(config=wanted).client_config.items() >= wanted.items()


def test_a_process_has_one_client_a_cluster_and_one_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """hdfs-native takes the user's name from the environment, so a second one is refused."""
    monkeypatch.delenv("HADOOP_USER_NAME", raising=False)
    process, options = HdfsProcess(), HdfsOptions(user="alice")
    try:
        client = process.client("hdfs://127.0.0.1:9", options)
        assert process.client("hdfs://127.0.0.1:9", HdfsOptions(user="alice")) is client
        assert os.environ["HADOOP_USER_NAME"] == "alice"
        for later in (process, HdfsProcess(process)):
            with pytest.raises(ConfigError, match="user='bob' for HDFS, but another client of this process is 'alice'"):
                later.client("hdfs://127.0.0.1:9", HdfsOptions(user="bob"))
        with pytest.raises(ConfigError, match="user='bob' for HDFS, but HADOOP_USER_NAME is 'alice'"):
            HdfsProcess().client("hdfs://127.0.0.1:9", HdfsOptions(user="bob"))
    finally:
        os.environ.pop("HADOOP_USER_NAME", None)
