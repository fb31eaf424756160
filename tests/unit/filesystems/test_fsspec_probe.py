"""What the store over fsspec claims after it has asked, and what it says is weaker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import fsspec
import pytest
from fsspec_stores import DATA, intercepted, store_with
from plain_file_systems import register

from partfile.stores.fsspec.client import FsspecCalls
from partfile.stores.fsspec.schemes import FsspecUrl
from partfile.stores.fsspec.store import FsspecStore
from partfile.testing.faults import Recorder, intercept
from partfile.testing.store import write_part

if TYPE_CHECKING:
    from pathlib import Path


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
