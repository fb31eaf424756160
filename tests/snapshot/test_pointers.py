"""A snapshot is named by its directory or by the metadata in it."""

from __future__ import annotations

import pytest

from partfile.errors import ConfigError
from partfile.snapshot.storage import Pointer, pointer_to


@pytest.mark.item("DL-10", "SP-14")
@pytest.mark.parametrize("end", ["", "/", "/_metadata"])
@pytest.mark.parametrize(
    ("location", "parent", "directory"),
    [
        ("/data/savepoint-a-0", "/data", "savepoint-a-0"),
        ("/savepoint-a-0", "/", "savepoint-a-0"),
        ("savepoint-a-0", ".", "savepoint-a-0"),
        ("file:///data/chk-7", "file:///data", "chk-7"),
        ("s3://bucket/chk-7", "s3://bucket", "chk-7"),
    ],
)
def test_directory_and_file_mean_the_same(location: str, parent: str, directory: str, end: str) -> None:
    """With or without a slash or _metadata at the end, as a path or as a URL."""
    assert pointer_to(location + end) == Pointer(parent, directory)


@pytest.mark.item("DL-10")
def test_a_checkpoint_is_known_by_its_name() -> None:
    """A directory called chk-N is a checkpoint's, any other may hold a savepoint."""
    assert pointer_to("/data/chk-7").checkpoint_id == 7
    assert pointer_to("/data/savepoint-a-0").checkpoint_id is None


@pytest.mark.parametrize("location", ["", "/", "_metadata", "s3://bucket", "..", "/data/..", "/_metadata"])
def test_what_names_no_directory_is_refused(location: str) -> None:
    """The error shows what was given and says what to give."""
    with pytest.raises(ConfigError, match="does not name the directory"):
        pointer_to(location)
