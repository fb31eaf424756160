"""The cache of Hadoop's jars: filled once, by one process, whole or not at all, and used without Maven."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from support.servers import jars as hdfs_jars
from support.servers.jars import HADOOP_VERSION, hadoop_jars
from support.servers.process import MissingProgram

TESTS = Path(__file__).parents[1]

MAVEN = """#!{python}
import os, sys, time, zipfile
(target,) = [argument.partition("=")[2] for argument in sys.argv if argument.startswith("-DoutputDirectory=")]
open({calls!r}, "a").write("called ")
for name in {names!r}:
    with zipfile.ZipFile(os.path.join(target, name), "w", zipfile.ZIP_DEFLATED) as jar:
        jar.writestr("webapps/", b"")
        jar.writestr("a/Class", b"x" * 1000)
time.sleep({seconds})
sys.exit({status})
"""
"""Stands in for Maven, so that it can be slow and can fail."""

NAMES = [f"{name}-{HADOOP_VERSION}.jar" for name in ("hadoop-client-minicluster", "hadoop-client-api", "other")]


def install_maven(directory: Path, *, seconds: float = 0, status: int = 0) -> Path:
    """Make ``directory/bin/mvn``; returns the file that counts its calls."""
    calls = directory / "calls"
    (directory / "bin").mkdir(exist_ok=True)
    maven = directory / "bin" / "mvn"
    maven.write_text(MAVEN.format(python=sys.executable, calls=str(calls), names=NAMES, seconds=seconds, status=status))
    maven.chmod(0o755)
    return calls


def environment(directory: Path) -> dict[str, str]:
    """Variables of a process whose cache and programs are below ``directory``."""
    return {**os.environ, "XDG_CACHE_HOME": str(directory), "PATH": str(directory / "bin"), "PYTHONPATH": str(TESTS)}


def fetch(directory: Path) -> subprocess.Popen[str]:
    """A process that wants the jars."""
    command = [sys.executable, "-c", "from support.servers.jars import hadoop_jars; print(hadoop_jars())"]
    return subprocess.Popen(
        command,
        env=environment(directory),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def cache(directory: Path) -> Path:
    """Where the jars belong."""
    return directory / "partfile" / f"hadoop-{HADOOP_VERSION}"


def test_two_processes_at_once_fetch_once_and_both_find_the_jars(tmp_path: Path) -> None:
    """The second waits for the first, and later ones need no Maven at all."""
    calls = install_maven(tmp_path, seconds=0.3)
    processes = [fetch(tmp_path) for _ in range(2)]
    found = [process.communicate() for process in processes]
    assert [out.strip() for out, _ in found] == [str(cache(tmp_path))] * 2, found
    assert calls.read_text() == "called "
    (tmp_path / "bin" / "mvn").unlink()
    assert fetch(tmp_path).communicate()[0].strip() == str(cache(tmp_path))


def test_the_jars_that_are_read_at_each_start_are_kept_uncompressed(tmp_path: Path) -> None:
    """With all their entries, the directories among them; the others stay as they are."""
    install_maven(tmp_path)
    fetch(tmp_path).communicate()
    assert sorted(path.name for path in cache(tmp_path).iterdir()) == sorted(NAMES)
    for name, method in zip(NAMES, [zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED], strict=True):
        with zipfile.ZipFile(cache(tmp_path) / name) as jar:
            assert jar.namelist() == ["webapps/", "a/Class"]
            assert jar.read("a/Class") == b"x" * 1000
            assert jar.getinfo("a/Class").compress_type == method


def test_a_killed_download_leaves_no_cache_and_the_next_one_is_whole(tmp_path: Path) -> None:
    """What the first had fetched so far is never taken for the jars."""
    calls = install_maven(tmp_path, seconds=600)
    killed = fetch(tmp_path)
    while not calls.exists():
        assert killed.poll() is None
        time.sleep(0.02)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert not cache(tmp_path).exists()
    install_maven(tmp_path)
    assert fetch(tmp_path).communicate()[0].strip() == str(cache(tmp_path))
    left = {path.name for path in (tmp_path / "partfile").iterdir()}
    assert left == {cache(tmp_path).name, f"{cache(tmp_path).name}.lock"}


def test_a_download_that_fails_is_reported_and_leaves_no_cache(tmp_path: Path) -> None:
    """The next process tries again."""
    install_maven(tmp_path, status=1)
    failed = fetch(tmp_path)
    assert "Maven could not fetch the jars" in failed.communicate()[1]
    assert failed.returncode != 0
    assert not cache(tmp_path).exists()


def test_what_is_missing_is_said_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No jars and no Maven, or no Java: the sentence names the package, and the way to leave HDFS out."""
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(MissingProgram, match=r"apt-get install maven.*not hdfs"):
        hadoop_jars()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(MissingProgram, match=r"apt-get install openjdk.*not hdfs"):
        hdfs_jars.java()
    monkeypatch.delenv("JAVA_HOME")
    with pytest.raises(MissingProgram, match="apt-get install openjdk"):
        hdfs_jars.java()


def test_a_relative_cache_directory_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the XDG specification asks; otherwise each working directory would get a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    cache(tmp_path / ".cache").mkdir(parents=True)
    assert hadoop_jars() == cache(tmp_path / ".cache")
