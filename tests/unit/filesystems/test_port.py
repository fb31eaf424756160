"""Paths and handles are untrusted input: checked when they are made and when they are read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from partfile.errors import ConfigError
from partfile.stores.base import PartHandle, PartStore, PartStream
from partfile.stores.local.store import LocalStore
from partfile.stores.paths import check_relative_path
from partfile.testing.store import new_part

BAD = [
    "/",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "a/..",
    "../a",
    "a/./b",
    "a\x00",
    "a\nb",
    "\x7f",
    "x" * 256,
    "é" * 128,
    "\ud800",
]


@pytest.mark.parametrize("path", BAD)
def test_a_path_that_is_not_below_the_base_is_refused(path: str) -> None:
    """Absolute, climbing, empty, control-character, over-long and unencodable segments raise."""
    with pytest.raises(ConfigError):
        check_relative_path(path)


@pytest.mark.parametrize("path", ["", "a", "a/b", "...", "a b", "*", "C:x", "%2e%2e", "é" * 127, "x" * 255, "a\\b"])
def test_any_other_path_is_returned_as_it_is(path: str) -> None:
    """What is odd but harmless on a POSIX file system stays literal."""
    assert check_relative_path(path) == path


@given(st.text())
def test_an_accepted_path_stays_below_the_base(path: str) -> None:
    """Property: no accepted path has a segment by which the kernel would leave the directory."""
    try:
        segments = check_relative_path(path).split("/")
    except ConfigError:
        return
    assert path == "" or all(segment not in {"", ".", ".."} and "\x00" not in segment for segment in segments)


@pytest.mark.parametrize("field", ["name", "in_progress", "pending", "sidecar"])
@pytest.mark.parametrize("value", [*BAD, "", "a/b"])
@pytest.mark.fault("H1")
def test_a_handle_names_files_of_its_bucket_alone(field: str, value: str) -> None:
    """No name in a handle may be a path, in whichever way the handle is read."""
    fields = new_part().model_dump() | {field: value}
    with pytest.raises((ConfigError, ValidationError)):
        PartHandle(**fields)


def test_a_handle_survives_json_and_refuses_what_it_does_not_know() -> None:
    """Handles are data (S10): the same after a round trip, and strict about unknown fields and lengths."""
    handle = new_part("a/b").at(17)
    assert PartHandle.model_validate_json(handle.model_dump_json()) == handle
    for wrong in ({"unknown": 1}, {"valid_length": -1}):
        with pytest.raises(ValidationError):
            PartHandle.model_validate(handle.model_dump() | wrong)


def test_paths_of_a_handle_are_relative_to_the_base() -> None:
    """The base itself is a bucket, too."""
    assert new_part("a/b").path_of("x") == "a/b/x"
    assert new_part("").path_of("x") == "x"


def test_the_local_store_has_the_shape_of_the_ports(tmp_path: object) -> None:
    """What type checkers prove is also true at run time."""
    with LocalStore(str(tmp_path)) as store:
        as_port: PartStore = store
        stream = as_port.create(new_part())
        assert isinstance(stream, PartStream)
        stream.close()
