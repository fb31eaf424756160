"""What is built is what is listed: setup.cfg, the links for type checkers, the wheel in a clean environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("filesystems", "snapshot", "bucketers", "writers", "recovery", "sink", "cli")
ROOT_FILES = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE")
EXTRAS_ONLY = ("pyspark", "pandas", "s3fs", "hdfs_native", "duckdb", "pytest")

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


def settings() -> ConfigParser:
    """The project's setup.cfg."""
    parser = ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def listed_packages() -> dict[str, str]:
    """The packages of setup.cfg, each with its folder."""
    options = settings()["options"]
    folders = (line.partition("=") for line in options["package_dir"].split("\n") if line)
    folder_of = {name.strip(): folder.strip() for name, _, folder in folders}
    return {name: folder_of[name] for name in options["packages"].split()}


def package_files() -> set[str]:
    """Every file that the wheel has to hold, by its name in the wheel."""
    files = {"partfile/py.typed"}
    for package, folder in listed_packages().items():
        files |= {f"{package.replace('.', '/')}/{path.name}" for path in (ROOT / folder).glob("*.py")}
    return files


def run(*command: str | Path, stdin: str = "", cwd: Path | None = None) -> str:
    """Run a command away from the checkout and its environment; returns what it prints."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    clean["PYTHONDONTWRITEBYTECODE"] = "1"
    done = subprocess.run(
        [*map(str, command)], input=stdin, capture_output=True, text=True, env=clean, cwd=cwd or Path("/"), check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the checkout without its links, as a checkout without symlink support has it."""
    copy = tmp_path_factory.mktemp("copy")
    for name in ROOT_FILES:
        shutil.copy(ROOT / name, copy / name)
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "src" / "partfile").mkdir(parents=True)
    for path in (ROOT / "src" / "partfile").iterdir():
        if path.is_file():
            shutil.copy(path, copy / "src" / "partfile")
    dist = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--outdir", dist, copy)
    (built,) = dist.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def clean_python(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """The interpreter of a new virtual environment with the wheel and what it requires, no extra."""
    home = tmp_path_factory.mktemp("clean") / "venv"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", wheel)
    return python


def modules_in(wheel: Path) -> str:
    """The modules that import without an extra: not the Spark side and the contract suite (pytest)."""
    names = [name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in python_files_in(wheel)]
    needing_extras = ("partfile.sink.spark.", "partfile.filesystems.contract")
    return " ".join(name for name in names if not name.startswith(needing_extras))


def python_files_in(wheel: Path) -> list[str]:
    """The Python files of a wheel."""
    return sorted(name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py"))


def test_every_package_is_listed() -> None:
    """Each directory with an ``__init__.py`` is a package of setup.cfg, under the name that its path says."""
    found = {
        f"partfile.{path.parent.relative_to(ROOT).as_posix().replace('/', '.')}": path.parent.relative_to(
            ROOT
        ).as_posix()
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("__init__.py")
    }
    assert {"partfile": "src/partfile", **found} == listed_packages()


def test_no_module_lies_outside_a_package() -> None:
    """Each directory that holds Python files is a package, or its files would be missing from the wheel."""
    holding = {path.parent for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
    assert [str(directory) for directory in holding if not (directory / "__init__.py").is_file()] == []


def test_the_links_for_type_checkers_are_relative_and_right() -> None:
    """``src/partfile`` links to each top-level package folder, relatively, and holds nothing else that is linked."""
    links = {path.name: path.readlink() for path in (ROOT / "src" / "partfile").iterdir() if path.is_symlink()}
    assert links == {folder: Path("../..") / folder for folder in FOLDERS}


def test_the_wheel_holds_exactly_the_listed_packages(wheel: Path) -> None:
    """Each source file is in the wheel under its package's name, and nothing else is."""
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == package_files()


def test_the_wheel_imports_in_a_clean_environment(wheel: Path, clean_python: Path) -> None:
    """Every module imports with the required packages alone: no Spark, no client of a remote store."""
    home = str(clean_python.parents[1])
    assert "imported" in run(clean_python, "-c", WALK, home, stdin=modules_in(wheel))
    find = f"import importlib.util as u; print([n for n in {EXTRAS_ONLY!r} if u.find_spec(n)])"
    assert run(clean_python, "-c", find).strip() == "[]"


def test_the_wheel_brings_the_command(clean_python: Path) -> None:
    """``partfile`` runs with what the package requires alone, and so does ``python -m partfile``."""
    by_script = run(clean_python.with_name("partfile"), "--version")
    assert by_script == run(clean_python, "-m", "partfile", "--version")
    assert "verify" in run(clean_python.with_name("partfile"), "--help")


def test_the_wheel_imports_from_a_zip(wheel: Path, clean_python: Path, tmp_path: Path) -> None:
    """A wheel renamed to .zip on ``sys.path``, as Spark's ``--py-files`` puts it there, holds a whole package."""
    archive = tmp_path / "partfile.zip"
    shutil.copy(wheel, archive)
    assert "imported" in run(clean_python, "-c", WALK, str(archive), str(archive), stdin=modules_in(wheel))
