"""What is built is what lies in src: the links at the top, sdist and wheel, the wheel in a clean environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

from support.repo.dependency_audit import installed, judged
from support.repo.documents import python_blocks

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "partfile"
LINKS = ("bucketers", "recovery", "sink", "writers")
"""Packages that also stand at the top of the repository, as links into src."""
ROOT_FILES = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE")
EXTRAS_ONLY = (
    *("typer", "rich", "zlib_ng", "isal", "pyspark", "pandas", "s3fs", "hdfs_native", "duckdb", "pytest"),
    *("msgpack", "rocksdict", "xxhash"),
)

WALK = """
import importlib, pathlib, sys
sys.path[:0] = sys.argv[2:]
import partfile
home = pathlib.Path(partfile.__file__).parent
assert str(home).startswith(sys.argv[1]), home
for name in sys.stdin.read().split():
    module = importlib.import_module(name)
    assert module.__file__.startswith(str(home)), module.__file__
for name in partfile.__all__:
    getattr(partfile, name)
print("imported", partfile.__version__)
"""
"""Imports partfile and the modules named on stdin, and proves that all of them come from the place in argv[1]."""


def package_files() -> set[str]:
    """Every file of the package, by its name in the wheel."""
    files = (path for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(SOURCE.parent).as_posix() for path in files}


def run(*command: str | Path, stdin: str = "", cwd: Path | None = None) -> str:
    """Run a command away from the checkout and its environment; returns what it prints."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [*map(str, command)], input=stdin, capture_output=True, text=True, env=clean, cwd=cwd or Path("/"), check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sdist and wheel, built from a copy of the checkout without its links, as a checkout without link support is."""
    copy = tmp_path_factory.mktemp("copy")
    for name in ROOT_FILES:
        shutil.copy(ROOT / name, copy / name)
    shutil.copytree(SOURCE, copy / "src" / "partfile", ignore=shutil.ignore_patterns("__pycache__"))
    dist = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", dist, copy)
    return dist


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    """The wheel, which ``build`` makes from the sdist."""
    (built,) = dist.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def clean_python(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """The interpreter of a new virtual environment with the wheel and what it requires, no extra."""
    home = tmp_path_factory.mktemp("clean") / "venv"
    venv.create(home)
    python = home / "bin" / "python"
    install(python, wheel)
    return python


def install(python: Path, *words: str | Path) -> None:
    """Run ``pip install`` for an environment: this one's pip, which spares it one of its own."""
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile", *words)


def modules_in(wheel: Path) -> str:
    """The modules that import without an extra: not those of the terminal, Spark, keyed state, S3 or the contract."""
    names = [name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in python_files_in(wheel)]
    needing_extras = (
        "partfile.cli.",
        "partfile.sink.spark.",
        "partfile.readers.cut_files",
        "partfile.snapshot.keyed",
        "partfile.stores.s3.reader",
        "partfile.testing.keyed_harness",
        "partfile.testing.store",
    )
    return " ".join(name for name in names if not name.startswith(needing_extras))


def python_files_in(wheel: Path) -> list[str]:
    """The Python files of a wheel."""
    return sorted(name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py"))


def test_no_module_lies_outside_a_package() -> None:
    """Each directory that holds Python files is a package, or its files would be missing from the wheel."""
    holding = {path.parent for path in SOURCE.rglob("*.py")}
    assert [str(directory) for directory in holding if not (directory / "__init__.py").is_file()] == []


def test_the_links_at_the_top_are_relative_and_right() -> None:
    """The four packages that users look for at the top are links into src, and src itself holds no link."""
    links = {path.name: path.readlink() for path in ROOT.iterdir() if path.is_symlink() and path.name != ".venv"}
    assert links == {name: Path("src/partfile") / name for name in LINKS}
    assert [path for path in SOURCE.rglob("*") if path.is_symlink()] == []


@pytest.mark.slow
def test_wheel_and_sdist_hold_the_package_and_nothing_else(dist: Path, wheel: Path) -> None:
    """Each file of the package is in both, under one name, whether or not the checkout has links."""
    in_wheel = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        members = [member.name.partition("/")[2] for member in archive if member.isfile()]
    in_sdist = {name.removeprefix("src/") for name in members if name.startswith("src/partfile/")}
    assert in_wheel == in_sdist == package_files()


@pytest.mark.slow
def test_the_wheel_imports_in_a_clean_environment(wheel: Path, clean_python: Path) -> None:
    """Every module imports with the required packages alone: no Spark, no client of a remote store."""
    home = str(clean_python.parents[1])
    assert "imported" in run(clean_python, "-c", WALK, home, stdin=modules_in(wheel))
    find = f"import importlib.util as u; print([n for n in {EXTRAS_ONLY!r} if u.find_spec(n)])"
    assert run(clean_python, "-c", find).strip() == "[]"


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["s3", "s3a", "hdfs"])
def test_a_url_without_its_client_names_the_command_that_installs_it(clean_python: Path, scheme: str) -> None:
    """Sink and reader say which extra to install, where the package of the store is missing."""
    asking = f"""
import partfile as pf
for ask in (lambda: pf.FileSink("{scheme}://place/path", uid="u").local(subtask_index=0), lambda: pf.read("{scheme}://place/path")):
    try:
        ask()
    except pf.ConfigError as error:
        print(error)
"""
    said = run(clean_python, "-c", asking)
    assert said.count(f"pip install 'partfile[{'hdfs' if scheme == 'hdfs' else 's3'}]'") == 2


@pytest.mark.slow
def test_the_wheel_brings_the_command(wheel: Path, clean_python: Path, tmp_path: Path) -> None:
    """``partfile``, ``python -m partfile`` and the README's example run in an environment that has nothing else."""
    # The clean environment again, by links to its files; what the extra needs comes on top.
    home = Path(shutil.copytree(clean_python.parents[1], tmp_path / "venv", symlinks=True, copy_function=os.link))
    python = home / "bin" / "python"
    install(python, f"{wheel}[cli]")
    # The script that came with the files names the other environment's interpreter.
    install(python, "--force-reinstall", "--no-deps", wheel)
    by_script = run(python.with_name("partfile"), "--version")
    assert by_script == run(python, "-m", "partfile", "--version")
    assert "verify" in run(python.with_name("partfile"), "--help")
    (example,) = [block for block in python_blocks("README.md") if "sink.local(" in block]
    assert run(python, "-c", example, cwd=tmp_path) == "10\n"
    assert "errors=0" in run(python.with_name("partfile"), "verify", "readings", cwd=tmp_path)


OF_SPARK = ("pyspark", "py4j", "pandas", "dateutil", "six.py", "pytz", "duckdb*", "_duckdb*")
"""What pip would install besides for the README's example with Spark, some 500 MB, and is here already."""


@pytest.mark.slow
@pytest.mark.spark
def test_the_example_with_spark_prints_each_row_once(clean_python: Path, tmp_path: Path) -> None:
    """The README's block as it stands, with the wheel, ends with as many rows as ids, and with none left out."""
    beside = tmp_path / "beside"
    beside.mkdir()
    for path in (path for name in OF_SPARK for path in Path(sysconfig.get_path("purelib")).glob(name)):
        (beside / path.name).symlink_to(path)
    (example,) = [block for block in python_blocks("README.md") if "SparkSession" in block]
    shown = "print(duckdb.sql(\"SELECT list(value) FROM 'landing/*/*.parquet'\").fetchall()[0][0])"
    # Spark's classes are archived by where they are installed (support.spark.classes), not by the links to them.
    spark_home = str(Path(sysconfig.get_path("purelib")) / "pyspark")
    environment = {**os.environ, "PYTHONPATH": str(beside), "SPARK_HOME": spark_home}
    done = subprocess.run(
        [clean_python, "-c", f"{example}\n{shown}\nprint(pf.__file__)"],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *_, rows, place = done.stdout.splitlines()
    assert Path(place).is_relative_to(clean_python.parents[1])
    values = json.loads(rows)
    assert values
    assert sorted(values) == list(range(len(values)))
    assert list((tmp_path / "landing").glob("*/part-*.parquet"))


@pytest.mark.slow
def test_gzip_of_the_process_stays_as_it_is(tmp_path: Path) -> None:
    """Also where a sink compresses by zlib-ng: isal would change what fsspec reads gzip by."""
    asking = """
import fsspec.compression, sys
before = fsspec.compression.compr["gzip"]
import partfile as pf, pyarrow as pa
with pf.FileSink("out", uid="u", format="json", compression="gzip").local() as out:
    out.write(pa.table({"id": [1]}))
assert pf.read("out").to_table().to_pylist() == [{"id": 1}]
print("isal" in sys.modules, fsspec.compression.compr["gzip"] is before)
"""
    assert run(sys.executable, "-c", asking, cwd=tmp_path) == "False True\n"


@pytest.mark.slow
@pytest.mark.parametrize("words", [["status", "/data"], ["--help"], []])
def test_the_command_without_its_extra_names_it(clean_python: Path, words: list[str]) -> None:
    """Both ways to call it end with 2, and with the command that installs what is missing."""
    for command in ([clean_python.with_name("partfile")], [clean_python, "-m", "partfile"]):
        done = subprocess.run([*map(str, command), *words], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert done.stderr == (
            "partfile: the command line needs typer, which is not installed\nHint: pip install 'partfile[cli]'\n"
        )


@pytest.mark.slow
def test_the_wheel_imports_from_a_zip(wheel: Path, clean_python: Path, tmp_path: Path) -> None:
    """A wheel renamed to .zip on ``sys.path``, as Spark's ``--py-files`` puts it there, holds a whole package."""
    archive = tmp_path / "partfile.zip"
    shutil.copy(wheel, archive)
    assert "imported" in run(clean_python, "-c", WALK, str(archive), str(archive), stdin=modules_in(wheel))


# An audit of dependencies that looked at nothing is never taken for a good one.


WANTED = {"six": "1.16.0", "other": "2"}
FINE: list[dict[str, Any]] = [{"name": name, "version": version, "vulns": []} for name, version in WANTED.items()]
SKIPPED = {"name": "six", "skip_reason": "Dependency not found on PyPI and could not be audited: six (1.16.0)"}
HOLE = {"id": "PYSEC-1", "fix_versions": ["1.17"], "aliases": [], "description": "bad"}


def test_every_package_has_to_be_looked_up() -> None:
    """Where all were and nothing is known, that is said; pip-audit's skipped ones are unknown, not fine."""
    assert judged(WANTED, {"dependencies": FINE}).is_done
    verdict = judged(WANTED, {"dependencies": [SKIPPED, FINE[1]]})
    assert (verdict.is_done, verdict.unknown) == (False, ("six",))


@pytest.mark.parametrize("report", [None, {"dependencies": []}])
def test_no_answer_is_no_audit(report: Any) -> None:
    """A service that is away, or knows nothing."""
    assert judged(WANTED, report).unknown == ("other", "six")


def test_a_vulnerability_is_told_even_where_others_are_unknown() -> None:
    """With the version that mends it."""
    verdict = judged(WANTED, {"dependencies": [{**FINE[0], "vulns": [HOLE]}]})
    assert verdict.vulnerable == ("six 1.16.0: PYSEC-1, mended in 1.17",)


def test_what_partfile_installs_is_audited() -> None:
    """The required packages and those of the stores and Spark, with what these need; nothing of development alone."""
    found = installed()
    assert {"pyarrow", "pydantic", "pydantic-core", "fsspec", "typer", "rich", "pyspark", "py4j", "s3fs"} <= set(found)
    assert not {"pytest", "mypy", "moto", "pip-audit"} & set(found)
