"""Paths and handles are untrusted input: checked before storage is asked."""

from __future__ import annotations

import subprocess
import sys
import zlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from partfile.errors import ConfigError, SnapshotCorrupt
from partfile.stores.base import PartHandle, PartStore, PartStream
from partfile.stores.checksums import crc32_of
from partfile.stores.local.store import LocalStore
from partfile.stores.parts import FsspecStaging
from partfile.stores.paths import check_relative_path
from partfile.stores.s3.handle import MOST_CLAIMS, S3Staging
from partfile.testing.store import new_part

if TYPE_CHECKING:
    import random


# Paths and handles are untrusted input: checked when they are made and when they are read.

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
    """Handles are data (R10): the same after a round trip, and strict about unknown fields and lengths."""
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


# What a handle says of a staged part comes from a file and may say anything: checked before storage is asked.

SIDE = f"{'0' * 32}.{'a' * 32}"
OUTSIDE = ["../../x", f"../../{SIDE}", f"{SIDE}/../../x", f"x{SIDE}", f"{SIDE}\n", "", "/etc/x", "a\x00b", "\ud800"]


@pytest.mark.fault("H1")
@pytest.mark.parametrize("name", OUTSIDE)
def test_a_side_object_is_called_as_the_store_calls_it(name: str) -> None:
    """Names of objects that are read, and of those that are deleted after the part is finished."""
    side = {"name": name, "size_bytes": 1, "crc32": 0}
    for staging in ({"sides": [side]}, {"spent": [name]}):
        with pytest.raises(SnapshotCorrupt):
            S3Staging.of(new_part().at(1).model_copy(update={"staging": staging}))


@pytest.mark.fault("H1", "M5")
def test_claims_are_bounded() -> None:
    """Each is deleted by its name when the part is finished: a number without bound would be work without end."""
    handle = new_part().model_copy(update={"staging": {"claims": MOST_CLAIMS + 1}})
    with pytest.raises(SnapshotCorrupt):
        S3Staging.of(handle)
    assert not S3Staging(claims=MOST_CLAIMS - 1).why_full
    assert S3Staging(claims=MOST_CLAIMS).why_full


@pytest.mark.fault("H1")
@pytest.mark.parametrize("name", [name for name in OUTSIDE if "/" in name or name in {"", "a\x00b", "\ud800"}])
def test_a_staged_file_stays_in_the_directory_of_its_part(name: str) -> None:
    """Where a part is one staged file, that file and those it took over from are beside it."""
    for staging in ({"file": name, "crc32": 0}, {"file": "x", "crc32": 0, "spent": [name]}):
        with pytest.raises(SnapshotCorrupt):
            FsspecStaging.of(new_part().model_copy(update={"staging": staging}))


# CRC-32: the values of zlib, with and without the package that is quick at it.


def test_values_are_zlibs(rng: random.Random) -> None:
    """Of any length, at any place in memory, and going on from any value: checkpoints of other hosts hold them."""
    for size_bytes in [0, 1, 7, 8, 63, 64, 65, 255, 4096, 100_003]:
        data, start = memoryview(rng.randbytes(size_bytes + 3))[3:], rng.getrandbits(32)
        assert crc32_of(data) == zlib.crc32(data)
        assert crc32_of(data, start) == zlib.crc32(data, start)


def test_zlib_stands_in_where_there_is_no_build() -> None:
    """A machine without one reads and writes the same."""
    code = (
        "import sys; sys.modules['zlib_ng'] = None\n"
        "from partfile.stores import checksums\n"
        "import zlib\n"
        "assert checksums._crc32 is zlib.crc32\n"
        "assert checksums.crc32_of(b'rows', 5) == zlib.crc32(b'rows', 5)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
