"""What an attempt to truncate that was in vain means for those after it."""

from __future__ import annotations

import pytest
from standalone import free_port

from partfile.filesystems import hdfs_truncation
from partfile.filesystems.errors import NotApplied
from partfile.filesystems.hdfs_options import HdfsOptions
from partfile.filesystems.hdfs_truncation import HdfsTruncation


def unreachable() -> HdfsTruncation:
    options = HdfsOptions(http_address=f"127.0.0.1:{free_port()}", call_timeout_s=2)
    return HdfsTruncation("hdfs://127.0.0.1:1", options)


@pytest.mark.parametrize("forget_s", [60.0, 0.0])
def test_a_server_that_is_away_is_asked_again_after_a_while(monkeypatch: pytest.MonkeyPatch, forget_s: float) -> None:
    """It may be a NameNode that restarts: parts are copied meanwhile, and cut in place again later."""
    monkeypatch.setattr(hdfs_truncation, "_FORGET_S", forget_s)
    truncation = unreachable()
    assert truncation.is_possible
    with pytest.raises(NotApplied, match="refused"):
        truncation.truncate("/a", 1)
    assert truncation.is_possible is (forget_s == 0.0)


def test_a_wrong_address_is_never_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time mends what somebody has to configure."""
    monkeypatch.setattr(hdfs_truncation, "_FORGET_S", 0.0)
    truncation = HdfsTruncation("hdfs://nowhere", HdfsOptions(config_dir="/nonexistent"))
    assert not truncation.is_possible
    with pytest.raises(NotApplied, match="cannot be cut"):
        truncation.truncate("/a", 1)


def test_what_failed_for_another_file_is_told_as_that() -> None:
    """The second file was not tried; the message says so, and gives one hint."""
    truncation = unreachable()
    with pytest.raises(NotApplied):
        truncation.truncate("/first", 1)
    with pytest.raises(NotApplied, match=r"'/second' cannot be cut to 2 bytes: .* failed before: .*'/first'") as told:
        truncation.truncate("/second", 2)
    assert str(told.value).count("Hint:") == 1
