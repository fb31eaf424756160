"""The jars of Hadoop's servers: fetched once from Maven Central, then found in the user's cache without the network."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

HADOOP_VERSION = "3.5.0"
FETCH_TIMEOUT_S = 600

# slf4j-simple is what makes the servers say why they do not start; without it they are silent.
_ARTIFACTS = (
    ("org.apache.hadoop", "hadoop-client-minicluster", HADOOP_VERSION),
    ("org.apache.hadoop", "hadoop-client-runtime", HADOOP_VERSION),
    ("org.slf4j", "slf4j-simple", "1.7.36"),
)
_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"

# At each start a NameNode reads these jars from end to end, in search of its web resources.
_READ_AT_EACH_START = ("hadoop-client-minicluster", "hadoop-client-api")

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>partfile</groupId>
  <artifactId>hdfs-for-tests</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""
_DEPENDENCY = "    <dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"


class MissingProgram(RuntimeError):
    """A program that the servers need is not on this machine; the message says what to install."""


def java() -> str:
    """The path of ``java``, as PySpark finds it: ``JAVA_HOME`` first, then the ``PATH``.

    Raises:
        MissingProgram: There is none.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(f"{home}/bin/java") if home else shutil.which("java")
    if found is None:
        raise MissingProgram(
            "HDFS needs Java 17 or newer, and there is none in JAVA_HOME or on the PATH. "
            "Install one (Debian: apt-get install openjdk-17-jre-headless), "
            "or set PARTFILE_SKIP=hdfs to leave HDFS out."
        )
    return found


def hadoop_jars() -> Path:
    """The directory with the jars of Hadoop's servers; fetched by Maven if they are not in the cache.

    About 100 MB are fetched, and 240 MB are kept.

    Atomicity: the directory appears whole, by one rename, and only one process fetches at a time.

    Raises:
        MissingProgram: The cache is empty and there is no Maven.
        RuntimeError: Maven could not fetch them.
    """
    jars = _cache_directory() / f"hadoop-{HADOOP_VERSION}"
    if jars.is_dir():
        return jars
    maven = shutil.which("mvn")
    if maven is None:
        raise MissingProgram(
            f"The jars of Hadoop {HADOOP_VERSION} are not in {jars}, and there is no Maven to fetch them. "
            "Install it (Debian: apt-get install maven), or set PARTFILE_SKIP=hdfs to leave HDFS out."
        )
    jars.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{jars}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not jars.is_dir():
            _fetch(maven, jars)
    return jars


def _cache_directory() -> Path:
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # A relative path must be ignored, says the XDG Base Directory Specification.
    return (configured if configured.is_absolute() else Path.home() / ".cache") / "partfile"


def _fetch(maven: str, jars: Path) -> None:
    # What an earlier, killed attempt has left behind; nobody else is here, for the lock is held.
    half = Path(f"{jars}.half")
    shutil.rmtree(half, ignore_errors=True)
    (half / "lib").mkdir(parents=True)
    dependencies = "\n".join(_DEPENDENCY.format(*artifact) for artifact in _ARTIFACTS)
    (half / "pom.xml").write_text(_POM.format(dependencies=dependencies))
    done = subprocess.run(
        # Maven only warns about a wrong checksum, unless it is told to be strict.
        [maven, "-q", "-B", "--strict-checksums", _PLUGIN, f"-DoutputDirectory={half / 'lib'}"],
        cwd=half,
        capture_output=True,
        text=True,
        check=False,
        timeout=FETCH_TIMEOUT_S,
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"Maven could not fetch the jars of Hadoop {HADOOP_VERSION} into {jars}; it needs the network once.\n"
            f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
        )
    for name in _READ_AT_EACH_START:
        _unpack_in_place(half / "lib" / f"{name}-{HADOOP_VERSION}.jar")
    (half / "lib").rename(jars)
    shutil.rmtree(half)


def _unpack_in_place(jar: Path) -> None:
    """Store the entries of a jar without compression: a NameNode then starts in five seconds instead of eight."""
    compressed = jar.rename(jar.with_suffix(".compressed"))
    with zipfile.ZipFile(compressed) as source, zipfile.ZipFile(jar, "w", zipfile.ZIP_STORED) as target:
        # With the directories, for that is how Hadoop looks for webapps/hdfs.
        for entry in source.infolist():
            target.writestr(entry.filename, source.read(entry))
    compressed.unlink()
