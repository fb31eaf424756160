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

HIDDEN = (
    "class Hidden:",
    "    @staticmethod",
    "    def find_spec(name, *_):",
    "        if name.partition('.')[0] == 'partfile':",
    "            raise ModuleNotFoundError(f'No module named {name!r}')",
    "sys.meta_path.insert(0, Hidden)",
)
"""Lines after which Python finds no partfile."""
DRIVER = Path(__file__).parents[1] / "support" / "programs" / "refused_driver.py"


def refusal(root: Path, session: str = "classic", way: str = "start", **environment: str) -> dict[str, Any]:
    """What a driver of its own is refused with; the sink has made no file."""
    done = subprocess.run(
        [sys.executable, str(DRIVER), str(root), session, way],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert not (root / "out").exists()
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def worker_path(root: Path, *lines: str) -> dict[str, str]:
    """Variables by which Spark's workers, and not the driver, run some lines before all else."""
    path = root / "path"
    path.mkdir(exist_ok=True)
    # Spark starts its workers by this module.
    inner = "".join(f"    {line}\n" for line in lines)
    (path / "sitecustomize.py").write_text(f"import sys\nif sys.orig_argv[1:3] == ['-m', 'pyspark.daemon']:\n{inner}")
    return {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(path)}


@pytest.mark.parametrize("way", ["start", "plain"])
def test_workers_without_partfile(tmp_path: Path, way: str) -> None:
    """The error names the driver's Python, and the hint is the command that makes the workers use it."""
    told = refusal(tmp_path, way=way, **worker_path(tmp_path, *HIDDEN))
    assert told["kind"] == "ConfigError"
    assert f"partfile {pf.__version__} ({sys.executable})" in told["message"]
    assert "cannot run it: ModuleNotFoundError: No module named 'partfile'" in told["message"]
    assert f"export PYSPARK_PYTHON={sys.executable}" in told["hint"]


@pytest.mark.parametrize(
    ("python", "words"), [(os.path.realpath(sys.executable), "No module named"), ("/no/python", "/no/python")]
)
def test_workers_of_another_python(tmp_path: Path, python: str, words: str) -> None:
    """One without any package, from which the virtual environment was made, and one that is not there."""
    told = refusal(tmp_path, PYSPARK_PYTHON=python, PYSPARK_DRIVER_PYTHON=sys.executable)
    assert told["kind"] == "ConfigError"
    assert words in told["message"]


@pytest.mark.parametrize(
    ("answers", "words"), [(True, "import partfile 0.0.1"), (False, "cannot run it: AttributeError")]
)
def test_workers_with_another_version(tmp_path: Path, answers: bool, words: str) -> None:
    """A worker that imports an older partfile writes nothing, also one that is older than the question."""
    package = tmp_path / "other" / "partfile"
    shutil.copytree(Path(pf.__file__).parent, package)
    (package / "version.py").write_text('__version__ = "0.0.1"\n')
    if not answers:
        module = package / "sink" / "spark" / "write_job.py"
        module.write_text(module.read_text().replace("_answer_of_worker", "_unknown"))
    told = refusal(tmp_path, **worker_path(tmp_path, f"sys.path.insert(0, {str(package.parent)!r})"))
    assert told["kind"] == "ConfigError"
    assert f"the driver runs partfile {pf.__version__}" in told["message"]
    assert words in told["message"]


@pytest.mark.parametrize("way", ["start", "plain"])
def test_spark_connect_is_refused(tmp_path: Path, way: str) -> None:
    """Its server runs foreachBatch elsewhere, and tells no function which query calls it."""
    told = refusal(tmp_path, "connect", way)
    assert "Spark Connect" in told["message"] + told["hint"]
