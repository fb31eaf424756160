"""The jars of Hadoop's servers: fetched once from Maven Central, then found in the user's cache without the network."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

from support.processes.java import maven_jars

if TYPE_CHECKING:
    from pathlib import Path


HADOOP_VERSION = "3.5.0"

# slf4j-simple is what makes the servers say why they do not start; without it they are silent.
_ARTIFACTS = (
    ("org.apache.hadoop", "hadoop-client-minicluster", HADOOP_VERSION),
    ("org.apache.hadoop", "hadoop-client-runtime", HADOOP_VERSION),
    ("org.slf4j", "slf4j-simple", "1.7.36"),
)

# At each start a NameNode reads these jars from end to end, in search of its web resources.
_READ_AT_EACH_START = ("hadoop-client-minicluster", "hadoop-client-api")


def hadoop_jars() -> Path:
    """The directory with the jars of Hadoop's servers; fetched by Maven if they are not in the cache.

    About 100 MB are fetched, and 240 MB are kept.

    Raises:
        MissingProgram: The cache is empty and there is no Maven.
        RuntimeError: Maven could not fetch them.
    """
    what = f"The jars of Hadoop {HADOOP_VERSION}"
    return maven_jars(f"hadoop-{HADOOP_VERSION}", _ARTIFACTS, what=what, skip="hdfs", prepare=_prepare)


def _prepare(jars: Path) -> None:
    for name in _READ_AT_EACH_START:
        _unpack_in_place(jars / f"{name}-{HADOOP_VERSION}.jar")


def _unpack_in_place(jar: Path) -> None:
    """Store the entries of a jar without compression: a NameNode then starts in five seconds instead of eight."""
    compressed = jar.rename(jar.with_suffix(".compressed"))
    with zipfile.ZipFile(compressed) as source, zipfile.ZipFile(jar, "w", zipfile.ZIP_STORED) as target:
        # With the directories, for that is how Hadoop looks for webapps/hdfs.
        for entry in source.infolist():
            target.writestr(entry.filename, source.read(entry))
    compressed.unlink()
