"""File systems that are not quite POSIX: names whose case does not count, directories that cannot be synced."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from life_cycle import finished_files, long_sink, make_sink, rows_of

from partfile.errors import StoreError
from partfile.stores.local.posix import PosixCalls
from partfile.stores.local.store import LocalStore

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from partfile.stores.local.posix import Access


class CaseBlind(PosixCalls):
    """A file system to which ``A`` and ``a`` are one name, as on macOS and many shares."""

    def open_directory(self, directory: int, segment: str) -> int:
        """See ``PosixCalls.open_directory``."""
        return super().open_directory(directory, segment.lower())

    def make_directory(self, directory: int, segment: str) -> None:
        """See ``PosixCalls.make_directory``."""
        super().make_directory(directory, segment.lower())

    def create(self, directory: int, name: str) -> int:
        """See ``PosixCalls.create``."""
        return super().create(directory, name.lower())

    def open_existing(self, directory: int, name: str, access: Access) -> int:
        """See ``PosixCalls.open_existing``."""
        return super().open_existing(directory, name.lower(), access)

    def rename(self, directory: int, name: str, new_name: str) -> None:
        """See ``PosixCalls.rename``."""
        super().rename(directory, name.lower(), new_name.lower())

    def link(self, directory: int, name: str, new_name: str) -> None:
        """See ``PosixCalls.link``."""
        super().link(directory, name.lower(), new_name.lower())

    def unlink(self, directory: int, name: str) -> None:
        """See ``PosixCalls.unlink``."""
        super().unlink(directory, name.lower())

    def stat_name(self, directory: int, name: str) -> os.stat_result | None:
        """See ``PosixCalls.stat_name``."""
        return super().stat_name(directory, name.lower())


@pytest.mark.fault("S15")
@pytest.mark.parametrize("same_length", [True, False])
@pytest.mark.parametrize("shared", [None, 2])
def test_buckets_that_differ_in_case_alone_lose_no_row(
    tmp_path: Path, *, shared: int | None, same_length: bool
) -> None:
    """They share a directory, and their parts have names of their own: also those that one stage becomes."""
    blind: Any = {"open_store": lambda url, _options: LocalStore(url, calls=CaseBlind())}
    sink = long_sink(tmp_path, shared_stage_buckets=shared, **blind)
    names = ["A", "a", "B", "b", "A", "a"]
    with sink.local() as out:
        rows = [f"row-{number:0{4 if same_length else number + 4}d}" for number in range(6)]
        out.write(pa.RecordBatch.from_pydict({"bucket": names, "row": rows}))
    files = finished_files(tmp_path)
    assert rows_of(files) == dict.fromkeys(rows, 1)
    assert {name.split("/")[0] for name in files} == {"bucket=a", "bucket=b"}


class WithoutDirectorySync(PosixCalls):
    """A file system that cannot sync a directory."""

    def sync_directory(self, directory: int) -> None:
        """EINVAL, as some network file systems answer."""
        raise OSError(errno.EINVAL, f"no fsync of directory {directory}")


@pytest.mark.fault("S17")
def test_without_syncing_directories_nothing_is_ever_acknowledged(tmp_path: Path) -> None:
    """The first start says so instead of promising what a power loss would take back."""
    sink = make_sink(tmp_path, open_store=lambda url, _options: LocalStore(url, calls=WithoutDirectorySync()))
    with pytest.raises(StoreError, match="sync the directory"):
        sink.local().open()
    assert finished_files(tmp_path) == {}
