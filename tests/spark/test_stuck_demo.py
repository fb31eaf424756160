"""The demo that makes a mess and mends it with the command line, as ``make demo-stuck`` runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "stuck.sh"


@pytest.mark.spark
def test_everything_stuck_is_mended_and_counted() -> None:
    """Each command ends with the code that the script names; then each row is there once and nothing is left."""
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(["bash", EXAMPLE], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["stuck: lost=0 duplicated=0 left=0"], done.stdout + done.stderr
    assert done.returncode == 0
    assert "rows on disk, 8 on S3" in done.stdout
