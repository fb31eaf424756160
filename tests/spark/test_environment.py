"""Where a sink cannot work, it says so before a query begins: Python workers without partfile, Spark Connect."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

import partfile as pf
from support.spark.streams import DAEMON, WARM_DAEMON

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

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


class Workers:
    """The Python workers that the session starts from now on."""

    def __init__(self, spark: SparkSession, root: Path, patch: pytest.MonkeyPatch) -> None:
        self._spark = spark
        self._root = root
        self._patch = patch

    def use(self, python: str) -> None:
        """Another Python runs them."""
        self._patch.setattr(self._spark.sparkContext, "pythonExec", python)

    def run_first(self, *lines: str) -> None:
        """They, and not the driver, run some lines before all else."""
        path = self._root / "path"
        path.mkdir(exist_ok=True)
        # Spark starts its workers by this module.
        inner = "".join(f"    {line}\n" for line in lines)
        begin = "import sys\nif sys.orig_argv[1:3] == ['-m', 'pyspark.daemon']:\n"
        (path / "sitecustomize.py").write_text(begin + inner)
        paths = os.pathsep.join([str(path), os.environ.get("PYTHONPATH", "")])
        self._patch.setitem(self._spark.sparkContext.environment, "PYTHONPATH", paths)


@pytest.fixture
def workers(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    """The workers of this test, forked by Spark's own daemon: that of the other tests cannot do without partfile."""
    # Spark asks for it with each task.
    settings = spark.sparkContext._jsc.sc().conf()
    settings.set(DAEMON, "pyspark.daemon")
    yield Workers(spark, tmp_path, monkeypatch)
    settings.set(DAEMON, WARM_DAEMON)


def refusal(spark: SparkSession, root: Path, *, is_plain: bool = False) -> str:
    """The text that a sink is refused with; it has made no file."""
    frame = spark.readStream.format("rate").load().selectExpr("CAST(value AS string) AS value")
    sink = pf.FileSink(f"{root}/out", uid="job", format="text")
    if is_plain:
        writer = frame.writeStream.foreachBatch(sink.foreach_batch).option("checkpointLocation", f"{root}/spark")
        with pytest.raises(StreamingQueryException) as failed:
            writer.start().awaitTermination()
        found = re.search(r"^partfile\.errors\.ConfigError: (.*\nHint: .*)", str(failed.value), re.MULTILINE)
        assert found is not None, failed.value
        said = found[1]
    else:
        with pytest.raises(pf.ConfigError) as refused:
            sink.start(frame, checkpoint_location=f"{root}/spark")
        said = str(refused.value)
    assert not (root / "out").exists()
    return said


@pytest.mark.parametrize("is_plain", [False, True])
def test_workers_without_partfile(spark: SparkSession, workers: Workers, tmp_path: Path, *, is_plain: bool) -> None:
    """The error names the driver's Python, and the hint is the command that makes the workers use it."""
    workers.run_first(*HIDDEN)
    said = refusal(spark, tmp_path, is_plain=is_plain)
    assert f"partfile {pf.__version__} ({sys.executable})" in said
    assert "cannot run it: ModuleNotFoundError: No module named 'partfile'" in said
    assert f"\nHint: Before the session begins: export PYSPARK_PYTHON={sys.executable}" in said


@pytest.mark.parametrize(
    ("python", "words"), [(os.path.realpath(sys.executable), "No module named"), ("/no/python", "/no/python")]
)
def test_workers_of_another_python(
    spark: SparkSession, workers: Workers, tmp_path: Path, python: str, words: str
) -> None:
    """One without any package, from which the virtual environment was made, and one that is not there."""
    workers.use(python)
    assert words in refusal(spark, tmp_path)


@pytest.mark.parametrize(
    ("answers", "words"), [(True, "import partfile 0.0.1"), (False, "cannot run it: AttributeError")]
)
def test_workers_with_another_version(
    spark: SparkSession, workers: Workers, tmp_path: Path, *, answers: bool, words: str
) -> None:
    """A worker that imports an older partfile writes nothing, also one that is older than the question."""
    package = tmp_path / "other" / "partfile"
    shutil.copytree(Path(pf.__file__).parent, package)
    (package / "version.py").write_text('__version__ = "0.0.1"\n')
    if not answers:
        module = package / "sink" / "spark" / "write_job.py"
        module.write_text(module.read_text().replace("_answer_of_worker", "_unknown"))
    workers.run_first(f"sys.path.insert(0, {str(package.parent)!r})")
    said = refusal(spark, tmp_path)
    assert f"the driver runs partfile {pf.__version__}" in said
    assert words in said


def test_spark_connect_is_refused(tmp_path: Path) -> None:
    """Its server runs foreachBatch elsewhere, and tells no function which query calls it: start and the first batch."""
    done = subprocess.run([sys.executable, str(DRIVER), str(tmp_path)], capture_output=True, text=True, check=True)
    told = [json.loads(line) for line in done.stdout.splitlines()[-2:]]
    assert [one["way"] for one in told] == ["start", "plain"]
    assert all("Spark Connect" in one["said"] for one in told)
    assert not (tmp_path / "out").exists()
