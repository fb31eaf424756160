"""Several files of JSON are read on few processors, where pyarrow alone waits for itself for ever."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

FILES, ROWS, TEXT_BYTES = 6, 1500, 4000

READER = """
import sys
import pyarrow as pa
import pyarrow.compute as pc
import partfile as pf
pa.set_cpu_count(int(sys.argv[2]))
events = pf.read(sys.argv[1])
few = pc.field("id") < 10
print(
    events.to_table().num_rows,
    events.to_table(columns=["id"], filter=few).shape,
    events.count_rows(),
    events.filter(few).count_rows(),
    events.head(7000).num_rows,
    events.take([0, 8999])["id"].to_pylist(),
    events.sort_by([("id", "descending")]).head(1)["id"].to_pylist(),
    events.join(events, "id", join_type="left semi").to_table().num_rows,
    sum(batch.num_rows for batch in events.to_batches()),
)
"""


@pytest.mark.parametrize("processors", [1, 2, 3])
def test_every_scan_of_json_ends(tmp_path: Path, processors: int) -> None:
    """Six files of 6 MB each, with as many threads as processors; the rows of one file come after the other's."""
    for number in range(FILES):
        with (tmp_path / f"part-{number}.json").open("w") as file:
            for row in range(number * ROWS, (number + 1) * ROWS):
                file.write(json.dumps({"id": row, "text": "x" * TEXT_BYTES}) + "\n")
    command = [sys.executable, "-c", READER, str(tmp_path), str(processors)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "9000 (10, 1) 9000 10 7000 [0, 8999] [8999] 9000 9000", done.stderr
