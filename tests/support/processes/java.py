"""Java, and the jars that tests need: fetched once from Maven Central, then found in the user's cache."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from support.processes.server import MissingProgram

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def java(*, what: str, skip: str) -> str:
    """The path of ``java``, as PySpark finds it: ``JAVA_HOME`` first, then the ``PATH``.

    Args:
        what: It is needed for, for messages.
        skip: The marker of the tests that need it.

    Raises:
        MissingProgram: There is none.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(f"{home}/bin/java") if home else shutil.which("java")
    if found is None:
        raise MissingProgram(
            f"{what} needs Java 17 or newer, and there is none in JAVA_HOME or on the PATH. "
            "Install one (Debian: apt-get install openjdk-17-jre-headless), "
            f"or leave out what needs it: make test-all ARGS='-m \"not {skip}\"'."
        )
    return found


FETCH_TIMEOUT_S = 600

_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>partfile</groupId>
  <artifactId>jars-for-tests</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""
_DEPENDENCY = "    <dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"


def maven_jars(
    name: str,
    artifacts: Sequence[tuple[str, str, str]],
    *,
    what: str,
    skip: str,
    alone: bool = False,
    prepare: Callable[[Path], None] = lambda _jars: None,
) -> Path:
    """The directory with some jars; fetched by Maven if they are not in the cache.

    Atomicity: the directory appears whole, by one rename, and only one process fetches at a time.

    Args:
        name: Of the directory in the cache; says the version.
        artifacts: Group, artifact and version of each.
        what: They are, for messages.
        skip: The marker of the tests that need them.
        alone: Without what they depend on.
        prepare: Called once with the directory of what was fetched.

    Raises:
        MissingProgram: The cache is empty and there is no Maven.
        RuntimeError: Maven could not fetch them.
    """
    jars = _cache_directory() / name
    if jars.is_dir():
        return jars
    maven = shutil.which("mvn")
    if maven is None:
        raise MissingProgram(
            f"{what} are not in {jars}, and there is no Maven to fetch them. "
            "Install it (Debian: apt-get install maven), or leave out what needs them: "
            f"make test-all ARGS='-m \"not {skip}\"'."
        )
    jars.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{jars}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not jars.is_dir():
            half = _fetched(maven, jars, artifacts, what=what, alone=alone)
            prepare(half / "lib")
            (half / "lib").rename(jars)
            shutil.rmtree(half)
    return jars


def _cache_directory() -> Path:
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # A relative path must be ignored, says the XDG Base Directory Specification.
    return (configured if configured.is_absolute() else Path.home() / ".cache") / "partfile"


def _fetched(maven: str, jars: Path, artifacts: Sequence[tuple[str, str, str]], *, what: str, alone: bool) -> Path:
    # What an earlier, killed attempt has left behind; no other process is here, for the lock is held.
    half = Path(f"{jars}.half")
    shutil.rmtree(half, ignore_errors=True)
    (half / "lib").mkdir(parents=True)
    dependencies = "\n".join(_DEPENDENCY.format(*artifact) for artifact in artifacts)
    (half / "pom.xml").write_text(_POM.format(dependencies=dependencies))
    options = [f"-DoutputDirectory={half / 'lib'}", *(["-DexcludeTransitive=true"] if alone else [])]
    done = subprocess.run(
        # Maven only warns about a wrong checksum, unless it is told to be strict.
        [maven, "-q", "-B", "--strict-checksums", _PLUGIN, *options],
        cwd=half,
        capture_output=True,
        text=True,
        check=False,
        timeout=FETCH_TIMEOUT_S,
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"Maven could not fetch {what[0].lower()}{what[1:]} into {jars}; it needs the network once.\n"
            f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
        )
    return half
