"""Where the files of a job lie, and which go with which checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from checkpoint_owner import Owner

from partfile.snapshot.documents import FileHandle
from partfile.snapshot.streams import Scope

if TYPE_CHECKING:
    from pathlib import Path


def tree(base: Path) -> set[str]:
    return {path.relative_to(base).as_posix() for path in base.rglob("*") if path.is_file()}


def written(owner: Owner, checkpoint_id: int, scope: Scope) -> FileHandle:
    stream = owner.storage.stream_factory(checkpoint_id).create(scope)
    stream.write(b"state")
    handle = stream.close_and_get_handle()
    assert isinstance(handle, FileHandle)
    return handle


@pytest.mark.item("DL-04", "DL-05", "DL-06", "DL-07")
def test_each_scope_lives_as_long_as_it_says(tmp_path: Path) -> None:
    """{job}/chk-N, shared and taskowned: with a checkpoint goes what is exclusive to it, and nothing else."""
    owner = Owner(tmp_path, retained=2)
    owner.start()
    kept: list[set[FileHandle]] = []
    for _ in range(3):
        checkpoint_id = owner.trigger().checkpoint_id
        handles = [written(owner, checkpoint_id, scope) for scope in (Scope.EXCLUSIVE, Scope.SHARED, Scope.TASK_OWNED)]
        owner.complete_with(*handles)
        kept.append(set(handles))
    found = tree(tmp_path / "job")
    assert {name.split("/")[0] for name in found} == {"chk-3", "chk-4", "shared", "taskowned"}
    assert {"chk-3/_metadata", "chk-4/_metadata"} <= found
    assert {handle.path for handles in kept for handle in handles} - found == {
        handle.path for handle in kept[0] if handle.path.startswith("chk-2/")
    }
    for checkpoint_id in (3, 4):
        link = owner.storage.read_link(checkpoint_id)
        assert link is not None
        for handle in link.handles():
            if isinstance(handle, FileHandle):
                assert owner.storage.read_bytes(handle) == b"state"
