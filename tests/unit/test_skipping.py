"""``PARTFILE_SKIP`` leaves out the tests of a real server, and nobody can overlook it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(skip: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest with ``PARTFILE_SKIP`` set, in a process of its own."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "PARTFILE_SKIP": skip}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_the_tests_of_a_server_are_skipped_and_the_last_lines_say_so() -> None:
    """Tests elsewhere run; the report stands right above pytest's closing line."""
    done = run(" hdfs ,", "tests/hdfs/test_jars.py", "tests/unit/test_readme.py::test_every_option_is_documented")
    report, closing = done.stdout.splitlines()[-2:]
    assert done.returncode == 0, done.stdout
    assert report == "HDFS WAS NOT TESTED (PARTFILE_SKIP=hdfs)"
    assert closing.startswith("1 passed, 6 skipped"), closing


def test_of_the_s3_servers_only_the_named_one_is_left_out() -> None:
    """A test that runs on every S3 server runs on the others, and one that asks for the named one does not run."""
    done = run("radosgw", "tests/s3/test_servers.py", "-k", "an_upload_of_two_parts")
    report, closing = done.stdout.splitlines()[-2:]
    assert done.returncode == 0, done.stdout
    assert report == "RADOSGW WAS NOT TESTED (PARTFILE_SKIP=radosgw)"
    assert closing.startswith("2 passed, 1 skipped"), closing


@pytest.mark.parametrize("skip", ["hdsf", "hdfs,ceph", "HDFS"])
def test_an_unknown_server_is_refused_by_name(skip: str) -> None:
    """A slip must not look like a full run."""
    done = run(skip, "tests/hdfs/test_jars.py")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"PARTFILE_SKIP names {skip.rpartition(',')[2]}; it knows hdfs, radosgw, spark_avro" in done.stderr


def test_without_it_nothing_is_reported() -> None:
    """An empty value leaves nothing out."""
    done = run("", "tests/hdfs/test_jars.py", "--collect-only")
    assert done.returncode == 0
    assert "NOT TESTED" not in done.stdout
