"""The HDFS that other tests rely on: it comes up, survives kills with its data, counts, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import hdfs_native
import pytest

from flights_hdfs import fetch
from flights_supervisor import BatchLog
from partfile.stores.hdfs.options import HdfsOptions
from partfile.stores.hdfs.store import HdfsStore
from support.hdfs.cluster import HdfsCluster
from support.hdfs.jars import HADOOP_VERSION, hadoop_jars
from support.processes.deadline import PATIENCE_S, wait_until
from support.processes.java import java
from support.processes.server import MissingProgram, ServerProcess, gone, wait_until_gone

OWNER = """
import sys, time
from pathlib import Path
from support.hdfs.cluster import HdfsCluster
with HdfsCluster(Path(sys.argv[1])) as cluster:
    print(*cluster.process_ids, flush=True)
    time.sleep(600)
"""


def write(client: hdfs_native.Client, path: str, data: bytes) -> None:
    """Create a file."""
    with client.create(path) as file:
        file.write(data)


@pytest.mark.hdfs
def test_a_file_is_written_and_read_with_the_configuration_directory_alone(
    hdfs: HdfsCluster, hdfs_directory: str
) -> None:
    """The configuration directory is all that a client needs."""
    client = hdfs_native.Client(config_dir=str(hdfs.configuration_directory))
    write(client, f"{hdfs_directory}/a", b"abc")
    assert client.read(f"{hdfs_directory}/a").read() == b"abc"


@pytest.mark.hdfs
@pytest.mark.parametrize("server", ["namenode", "datanode"])
def test_a_killed_server_comes_back_with_the_data(own_hdfs: HdfsCluster, own_hdfs_directory: str, server: str) -> None:
    """After a SIGKILL and a restart on the same port old files are there, and files can be written."""
    client = hdfs_native.Client(own_hdfs.url)
    write(client, f"{own_hdfs_directory}/before-{server}", b"before")
    getattr(own_hdfs, f"kill_{server}")()
    getattr(own_hdfs, f"start_{server}")()
    own_hdfs.wait_until_ready()
    again = hdfs_native.Client(own_hdfs.url)
    assert again.read(f"{own_hdfs_directory}/before-{server}").read() == b"before"
    write(again, f"{own_hdfs_directory}/after-{server}", b"after")
    assert again.read(f"{own_hdfs_directory}/after-{server}").read() == b"after"


@pytest.mark.hdfs
@pytest.mark.parametrize("server", ["namenode", "datanode"])
def test_a_paused_server_keeps_its_callers_waiting(own_hdfs: HdfsCluster, own_hdfs_directory: str, server: str) -> None:
    """While it is paused nothing is written; once it goes on, the write that had to wait succeeds."""
    client = hdfs_native.Client(own_hdfs.url)
    written = threading.Thread(target=write, args=(client, f"{own_hdfs_directory}/paused-{server}", b"late"))
    getattr(own_hdfs, f"pause_{server}")()
    written.start()
    written.join(timeout=1)
    assert written.is_alive()
    getattr(own_hdfs, f"resume_{server}")()
    written.join(timeout=PATIENCE_S)
    assert client.read(f"{own_hdfs_directory}/paused-{server}").read() == b"late"


@pytest.mark.hdfs
def test_operations_are_counted_as_they_happen(own_hdfs: HdfsCluster, own_hdfs_directory: str) -> None:
    """Each call counts once, at once, under the name of the protocol and under what it did to the namespace."""
    client = hdfs_native.Client(own_hdfs.url)
    before = own_hdfs.operations()
    for number in range(3):
        write(client, f"{own_hdfs_directory}/{number}", b"x")
    client.rename(f"{own_hdfs_directory}/0", f"{own_hdfs_directory}/a")
    client.delete(f"{own_hdfs_directory}/1")
    list(client.list_status(own_hdfs_directory))
    done = own_hdfs.operations() - before
    calls = {"create": 3, "addBlock": 3, "rename2": 1, "delete": 1, "getListing": 1, "mkdirs": 0}
    assert {name: done[name] for name in calls} == calls
    effects = {"CreateFileOps": 3, "FilesRenamed": 1, "DeleteFileOps": 1, "GetListingOps": 1}
    assert {name: done[name] for name in effects} == effects


@pytest.mark.hdfs
def test_safe_mode_refuses_writers_and_ends_with_its_block(own_hdfs: HdfsCluster, own_hdfs_directory: str) -> None:
    """Inside the block nothing can be created, after it everything can."""
    client = hdfs_native.Client(own_hdfs.url)
    with own_hdfs.safe_mode(), pytest.raises(RuntimeError, match="SafeModeException"):
        client.create(f"{own_hdfs_directory}/safe")
    write(client, f"{own_hdfs_directory}/safe", b"x")


@pytest.mark.hdfs
def test_properties_reach_the_servers_and_a_failed_start_shows_the_log(tmp_path: Path) -> None:
    """A NameNode that cannot start is reported with its own reason, not with a time-out."""
    cluster = HdfsCluster(tmp_path / "cluster", {"dfs.namenode.http-address": "127.0.0.1:not-a-port"})
    with pytest.raises(RuntimeError, match="not-a-port"), cluster:
        pass


@pytest.mark.hdfs
def test_a_killed_owner_leaves_no_server_behind(tmp_path: Path) -> None:
    """When the process that started the servers is SIGKILLed, both end by themselves."""
    tests = Path(__file__).parents[1]
    command = [sys.executable, "-c", OWNER, str(tmp_path / "cluster")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(tests)}
    ) as owner:
        assert owner.stdout is not None
        servers = [int(number) for number in owner.stdout.readline().split()]
        assert len(servers) == 2
        assert not gone(servers)
        owner.send_signal(signal.SIGKILL)
    wait_until_gone(servers)


@pytest.mark.hdfs
def test_a_server_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    """A server that a passing thread has restarted goes on when that thread ends."""
    server = ServerProcess("sleeper", ["sleep", "600"], log=tmp_path / "log", environment=os.environ)

    def start() -> None:
        server.start()
        # The kernel looks at the thread from here on.
        command = Path(f"/proc/{server.process_id}/cmdline")
        wait_until(lambda: command.read_bytes().startswith(b"sleep"))

    starter = threading.Thread(target=start)
    starter.start()
    starter.join()
    time.sleep(0.3)
    assert server.is_running
    server.kill()
    assert not server.is_running


# What the demo on HDFS looks at from outside: Spark's books, and a copy of everything that was written.


def test_a_batch_runs_between_its_offsets_and_its_commit(hdfs: HdfsCluster, hdfs_directory: str) -> None:
    """On HDFS as on the local disk."""
    log, client = BatchLog(hdfs.url + hdfs_directory), hdfs_native.Client(hdfs.url)
    assert (log.running(), log.committed()) == (None, 0)
    client.create(f"{hdfs_directory}/offsets/.3.tmp").close()
    client.create(f"{hdfs_directory}/offsets/3").close()
    assert (log.running(), log.committed()) == (3, 0)
    client.create(f"{hdfs_directory}/commits/3").close()
    assert (log.running(), log.committed()) == (None, 4)
    assert log.typical_seconds() < 60


def test_a_copy_has_every_file_with_every_byte(hdfs: HdfsCluster, hdfs_directory: str, tmp_path: Path) -> None:
    """Hidden ones too, so that it is the reader who leaves them out."""
    client = hdfs_native.Client(hdfs.url)
    for name in ("day/part.json.gz", "day/_part.in-progress"):
        with client.create(f"{hdfs_directory}/{name}") as writer:
            writer.write(name.encode())
    fetch(hdfs.url + hdfs_directory, tmp_path / "copy")
    found = {str(path.relative_to(tmp_path / "copy")): path.read_text() for path in tmp_path.rglob("*part*")}
    assert found == {name: name for name in ("day/part.json.gz", "day/_part.in-progress")}


# Settings that a real NameNode must have heard of.


def test_files_are_stored_as_hadoops_properties_say(hdfs: HdfsCluster, hdfs_directory: str) -> None:
    """hdfs-native itself takes the defaults of the NameNode."""
    options = HdfsOptions(config={"dfs.blocksize": "64m", "dfs.replication": "2"})
    with HdfsStore(hdfs.url + hdfs_directory, options) as store:
        store.create_file("empty", b"")
    status = hdfs_native.Client(hdfs.url).get_file_info(f"{hdfs_directory}/empty")
    assert (status.blocksize, status.replication) == (64 << 20, 2)


# The cache of Hadoop's jars: filled once, by one process, whole or not at all, and used without Maven.


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


def jars_fetch(directory: Path) -> subprocess.Popen[str]:
    """A process that wants the jars."""
    command = [sys.executable, "-c", "from support.hdfs.jars import hadoop_jars; print(hadoop_jars())"]
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
    processes = [jars_fetch(tmp_path) for _ in range(2)]
    found = [process.communicate() for process in processes]
    assert [out.strip() for out, _ in found] == [str(cache(tmp_path))] * 2, found
    assert calls.read_text() == "called "
    (tmp_path / "bin" / "mvn").unlink()
    assert jars_fetch(tmp_path).communicate()[0].strip() == str(cache(tmp_path))


def test_the_jars_that_are_read_at_each_start_are_kept_uncompressed(tmp_path: Path) -> None:
    """With all their entries, the directories among them; the others stay as they are."""
    install_maven(tmp_path)
    jars_fetch(tmp_path).communicate()
    assert sorted(path.name for path in cache(tmp_path).iterdir()) == sorted(NAMES)
    for name, method in zip(NAMES, [zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED], strict=True):
        with zipfile.ZipFile(cache(tmp_path) / name) as jar:
            assert jar.namelist() == ["webapps/", "a/Class"]
            assert jar.read("a/Class") == b"x" * 1000
            assert jar.getinfo("a/Class").compress_type == method


def test_a_killed_download_leaves_no_cache_and_the_next_one_is_whole(tmp_path: Path) -> None:
    """What the first had fetched so far is never taken for the jars."""
    calls = install_maven(tmp_path, seconds=600)
    killed = jars_fetch(tmp_path)
    while not calls.exists():
        assert killed.poll() is None
        time.sleep(0.02)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert not cache(tmp_path).exists()
    install_maven(tmp_path)
    assert jars_fetch(tmp_path).communicate()[0].strip() == str(cache(tmp_path))
    left = {path.name for path in (tmp_path / "partfile").iterdir()}
    assert left == {cache(tmp_path).name, f"{cache(tmp_path).name}.lock"}


def test_a_download_that_fails_is_reported_and_leaves_no_cache(tmp_path: Path) -> None:
    """The next process tries again."""
    install_maven(tmp_path, status=1)
    failed = jars_fetch(tmp_path)
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
        java(what="HDFS", skip="hdfs")
    monkeypatch.delenv("JAVA_HOME")
    with pytest.raises(MissingProgram, match="apt-get install openjdk"):
        java(what="HDFS", skip="hdfs")


def test_a_relative_cache_directory_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the XDG specification asks; otherwise each working directory would get a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    cache(tmp_path / ".cache").mkdir(parents=True)
    assert hadoop_jars() == cache(tmp_path / ".cache")
