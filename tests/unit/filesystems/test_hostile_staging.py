"""What a handle says of a staged part comes from a file and may say anything: checked before storage is asked."""

from __future__ import annotations

import pytest

from partfile.errors import SnapshotCorrupt
from partfile.stores.parts import FsspecStaging
from partfile.stores.s3.handle import MOST_CLAIMS, S3Staging
from partfile.testing.store import new_part

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
