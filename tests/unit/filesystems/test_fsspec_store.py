"""The store over fsspec as a whole: small files, names, places, and the life of a plain sink."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from fsspec_stores import DATA, OTHER, intercepted
from life_cycle import ROWS, assert_exactly_once, make_sink, run_to_the_end
from plain_file_systems import register

import partfile as pf
from partfile.errors import AlreadyExists, ConfigError, OutcomeUnknown
from partfile.readers.filesystem import open_for_reading
from partfile.stores.fsspec import schemes
from partfile.stores.fsspec import store as fsspec_files
from partfile.stores.fsspec.schemes import scheme_named
from partfile.stores.fsspec.store import FsspecStore
from partfile.stores.registry import is_same_place, open_store, path_inside
from partfile.testing.faults import ActAt, FailAt
from partfile.testing.store import new_part

if TYPE_CHECKING:
    from pathlib import Path


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
    """Who looked before our file was there writes his own a moment after it; we read back only then."""
    register(monkeypatch)
    monkeypatch.setattr(fsspec_files, "_RIVALS_ARE_DONE_AFTER_S", 0.2)
    path = tmp_path / "link"
    rival = threading.Timer(0.05, lambda: path.write_bytes(OTHER))
    started = ActAt(1, rival.start, "after", only={"write"})
    with intercepted(f"copying:/{tmp_path}", started) as late, pytest.raises(AlreadyExists):
        late.create_file("link", DATA)
    rival.join()
