"""Hive's own readers, on tables over trees that sinks are writing: finished rows once, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.sinks.live_tree import FINISHED, live_tree

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROGRAM = Path(__file__).parents[1] / "support" / "programs" / "read_with_hive.py"
FORMATS = {"parquet": "PARQUET", "orc": "ORC", "avro": "AVRO", "text": "TEXTFILE"}


def test_hive_reads_trees_that_sinks_are_writing(tmp_path: Path) -> None:
    """Tables of the columns that ``partfile schema`` prints, one a format; keys of directories are partitions."""
    tables = {}
    with ExitStack() as live:
        for format, stored in FORMATS.items():
            base = tmp_path / format
            live.enter_context(live_tree(base, format))
            told = [sys.executable, "-m", "partfile", "schema", str(base), "--format", "hive"]
            columns, keys = subprocess.check_output(told, text=True).rstrip().rsplit("\n", 1)
            tables[format] = (str(base), f"CREATE EXTERNAL TABLE {format} ({columns}) {keys} STORED AS {stored}")
        read = [sys.executable, str(PROGRAM), str(tmp_path), json.dumps(tables)]
        found = json.loads(subprocess.run(read, check=True, capture_output=True, text=True, timeout=500).stdout)
    assert found.keys() == FORMATS.keys()
    for format, rows in found.items():
        assert sorted((int(row[0]), row[1]) for row in rows) == [(n, f"k{n % 3}") for n in FINISHED], format
