"""The names of Flink's files: read as they are made, and with other affixes where those are told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from command_line import told, told_json
from flink_trees import put, rows

from partfile.errors import ConfigError
from partfile.recovery.adopt.flink_names import FlinkNames, names_of

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

FLINK = ("--adopt-layout", "flink")
NOW_MS = 4_000_000_000_000


def actions(base: Path, *words: str) -> dict[str, str]:
    """What would become of each file."""
    document = told_json("recover", base, *FLINK, *words, code=1)
    return {item["path"]: item["action"] for item in document["plan"]["items"]}


def test_affixes_can_be_told(tmp_path: Path) -> None:
    """A sink that called its files otherwise is understood when that is said, and not before."""
    put(tmp_path / "out-0-1.csv.waiting", b"")
    put(tmp_path / ".out-0-2.csv.waiting", rows(0, 3))
    assert told_json("recover", tmp_path, *FLINK)["plan"]["items"] == []
    words = ("--affix", "part-prefix=out", "--affix", "pending-prefix=.", "--affix", "pending-suffix=.waiting")
    assert actions(tmp_path, *words) == {".out-0-2.csv.waiting": "leave"}
    told("recover", tmp_path, *FLINK, *words, "--publish-pending", "--apply")
    assert (tmp_path / "out-0-2.csv").read_bytes() == rows(0, 3)


@pytest.mark.parametrize(
    "pair", ["pending-suffix", "colour=red", "pending-prefix=", "pending-suffix=.in-progress", "pending-prefix=_/x"]
)
def test_affixes_that_tell_nothing_apart_are_refused(pair: str) -> None:
    """Unknown, visible or equal names could make a finished file of a staged one."""
    with pytest.raises(ConfigError):
        names_of([pair])


@pytest.mark.parametrize("role", ["in-progress", "pending", "sidecar", "finished"])
@pytest.mark.parametrize("name", ["part-0-0", "part-11-12.json", "part-0-3.pending", "part-1-2_x"])
def test_names_are_read_as_they_are_made(role: Any, name: str) -> None:
    """What a file of a part is called says whose it is and what."""
    names = FlinkNames()
    found = names.role_of(names.name_of(role, name))
    assert found is not None
    assert (found.role, found.final_name) == (role, name)
