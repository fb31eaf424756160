"""What an executor does with the files that it is told to cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from partfile.readers import cut_files
from partfile.readers.cut_files import CutFiles
from partfile.readers.filesystem import open_for_reading

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_task_opens_the_base_once_for_all_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client of a remote store costs more than a small file; each file is cut at its own length."""
    opened = []

    def counting(url: str, options: dict[str, object]) -> object:
        opened.append(url)
        return open_for_reading(url, options)

    monkeypatch.setattr(cut_files, "open_for_reading", counting)
    (tmp_path / "day=1").mkdir()
    for name in ("a", "b", "day=1/c"):
        (tmp_path / name).write_text(f"{name} whole\nbroken")
    files = CutFiles(str(tmp_path), {}, "text", (), is_header=False)
    names = ["path", "valid_length"]
    batches = [
        pa.RecordBatch.from_pydict(dict(zip(names, columns, strict=True)))
        for columns in ((["a", "b"], [8, 8]), (["day=1/c"], [14]))
    ]
    found = [batch.to_pylist() for batch in files.read(iter(batches))]
    assert found == [
        [{"record": "a whole"}],
        [{"record": "b whole"}],
        [{"record": "day=1/c whole", "partition_0": "1"}],
    ]
    assert opened == [str(tmp_path)]
