"""Where a sink cannot work, it says so before a query begins: Python workers without partfile, Spark Connect."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import partfile as pf

pytestmark = [pytest.mark.spark, pytest.mark.slow]

DRIVER = Path(__file__).parents[1] / "support" / "programs" / "refused_driver.py"


def refusal(root: Path, session: str = "classic", way: str = "start", **environment: str) -> dict[str, Any]:
    """What a driver of its own is refused with; it has made no file of the sink, and no query."""
    done = subprocess.run(
        [sys.executable, str(DRIVER), str(root), session, way],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert not (root / "out").exists()
    assert not (root / "spark").exists()
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.parametrize("python", ["without partfile", "missing"])
def test_workers_that_cannot_import_partfile(tmp_path: Path, python: str) -> None:
    """The error names the driver's Python, and the hint is the command that makes the workers use it."""
    # The interpreter that the virtual environment was made of has none of its packages.
    paths = {"without partfile": os.path.realpath(sys.executable), "missing": str(tmp_path / "no-python")}
    told = refusal(tmp_path, PYSPARK_PYTHON=paths[python], PYSPARK_DRIVER_PYTHON=sys.executable)
    assert told["kind"] == "ConfigError"
    assert f"partfile {pf.__version__} ({sys.executable})" in told["message"]
    assert ("No module named" if python == "without partfile" else "no-python") in told["message"]
    assert f"export PYSPARK_PYTHON={sys.executable}" in told["hint"]


def test_workers_with_another_version(tmp_path: Path) -> None:
    """A worker that imports an older partfile writes nothing."""
    package = tmp_path / "path" / "partfile"
    shutil.copytree(Path(pf.__file__).parent, package)
    (package / "version.py").write_text('__version__ = "0.0.1"\n')
    # Spark starts workers by this module; the driver's own Python must not see the other package.
    (tmp_path / "path" / "sitecustomize.py").write_text(
        "import sys\n"
        "if sys.orig_argv[1:3] != ['-m', 'pyspark.daemon']:\n"
        f"    sys.path.remove({str(package.parent)!r})\n"
    )
    told = refusal(tmp_path, PYSPARK_PYTHON=sys.executable, PYTHONPATH=str(package.parent))
    assert told["kind"] == "ConfigError"
    assert f"the driver runs partfile {pf.__version__}" in told["message"]
    assert "import partfile 0.0.1" in told["message"]


@pytest.mark.parametrize(("way", "words"), [("start", "Spark Connect"), ("plain", "cannot be sent to another process")])
def test_spark_connect_is_refused(tmp_path: Path, way: str, words: str) -> None:
    """Its server runs foreachBatch elsewhere, so both ways are refused on the client with what to use instead."""
    told = refusal(tmp_path, "connect", way)
    assert told["kind"] == "ConfigError"
    assert words in told["message"]
    assert ".remote(" in told["hint"]
