"""Imports point only downwards, as CONTRIBUTING.md draws them."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from configparser import ConfigParser
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest

import partfile as pf

ROOT = Path(__file__).parents[2]

PACKAGE = ROOT / "src" / "partfile"

LEAVES = {"partfile.version", "partfile.errors", "partfile.quantities", "partfile.stores.checksums"}
"""What every package may import (docs/adr/0002): they import nothing of ours."""

INTERNAL = {
    "stores": set[str](),
    "snapshot": {"stores"},
    "bucketers": set[str](),
    "writers": set[str](),
    "sink": {"stores", "snapshot", "bucketers", "writers"},
    "sink/spark": {"stores", "snapshot", "bucketers", "writers", "sink"},
    "readers": {"stores", "snapshot", "writers", "sink"},
    "testing": {"stores", "snapshot", "bucketers", "writers", "sink"},
    "recovery": {"stores", "snapshot", "writers", "sink", "readers"},
    "pipeline": {"stores", "snapshot", "sink"},
    "cli": {"stores", "snapshot", "sink", "readers", "recovery", "pipeline"},
}
"""Which packages each package may import besides itself. ``sink`` may reach ``sink.spark`` only where it hands over."""

INNER = tuple(layer for layer in INTERNAL if "/" in layer)
"""Layers that are folders in another layer's."""

EXTERNAL = {
    "stores": {"fsspec", "zlib_ng", "s3fs", "hdfs_native", "pydantic"},
    "snapshot": {"msgpack", "numpy", "pyarrow", "pydantic", "rocksdict", "xxhash"},
    "bucketers": {"pyarrow", "pydantic"},
    "writers": {"numpy", "pyarrow", "pydantic"},
    "sink": {"numpy", "pyarrow", "pydantic"},
    "sink/spark": {"numpy", "pyarrow", "pydantic", "pyspark"},
    "readers": {"fastavro", "fsspec", "pyarrow", "pydantic"},
    "testing": {"pyarrow", "pydantic", "pytest"},
    "recovery": {"fsspec", "pyarrow", "pydantic"},
    "pipeline": {"confluent_kafka", "fsspec", "numpy", "pyarrow", "pydantic"},
    "cli": {"pyarrow", "pydantic", "rich", "typer"},
}
"""Packages beyond the standard library that each package may import."""

SPARK_MODULES = {"readers/spark.py", "readers/cut_files.py"}
"""Modules outside ``sink/spark`` that import pyspark: the reader, which is imported when it is first asked for."""

HANDING_OVER = {"sink/file_sink.py": "partfile.sink.spark.stream"}
"""The one place where the engine-free sink loads its Spark side, inside a function; it may name Spark's types."""

OPTIONAL = {
    *(
        "aiobotocore",
        "confluent_kafka",
        "duckdb",
        "fastavro",
        "hdfs_native",
        "hypothesis",
        "msgpack",
        "pandas",
        "pyspark",
        "pytest",
    ),
    *("rocksdict", "s3fs", "xxhash"),
}
"""What importing partfile must not load: everything that install_requires does not name."""

COMMAND_LINE = {"typer", "rich"}
"""What only the command line needs, and importing partfile must not load either (docs/adr/0022)."""


@dataclass(frozen=True)
class Import:
    """One import statement, wherever it stands in a module."""

    file: str
    line: int
    module: str
    typing_only: bool
    in_function: bool

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.module}"


def folder_of(file: str) -> str:
    """The layer a source file belongs to."""
    return next((layer for layer in INNER if file.startswith(f"{layer}/")), file.split("/", 1)[0])


def layer_of(module: str) -> str:
    """The layer a module of ours belongs to."""
    parts = module.split(".")
    inner = "/".join(parts[1:3])
    return inner if inner in INNER else (parts[1] if len(parts) > 1 else "")


def imports_in(source: str, file: str) -> list[Import]:
    """Every import of a module, also inside functions and ``if TYPE_CHECKING``; names count where they are modules."""
    found: list[Import] = []

    def visit(node: ast.AST, *, typing_only: bool, in_function: bool) -> None:
        for child in ast.iter_child_nodes(node):
            in_def = in_function or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            guarded = typing_only or (
                isinstance(child, ast.If) and ast.unparse(child.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}
            )
            if isinstance(child, ast.Import | ast.ImportFrom):
                modules = modules_named(child, file)
                found.extend(Import(file, child.lineno, module, typing_only, in_function) for module in modules)
            visit(child, typing_only=guarded, in_function=in_def)

    visit(ast.parse(source), typing_only=False, in_function=False)
    return found


def modules_named(node: ast.Import | ast.ImportFrom, file: str) -> list[str]:
    """The modules an import statement loads: the one after ``from``, and the imported names that are modules."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    module = node.module or ""
    if node.level:
        package = ["partfile", *file.split("/")[:-1]]
        module = ".".join([*package[: len(package) - node.level + 1], *filter(None, [module])])
    inner = [f"{module}.{alias.name}" for alias in node.names]
    return [name for name in inner if is_module_of_ours(name)] or [module]


def is_module_of_ours(name: str) -> bool:
    """Whether a dotted name is a module or package of ours."""
    first, *rest = name.split(".")
    path = PACKAGE.joinpath(*rest)
    return first == "partfile" and bool(rest) and (path.with_suffix(".py").is_file() or path.is_dir())


@cache
def all_imports() -> tuple[Import, ...]:
    """The imports of every source file in a package of ours."""
    files = [path for path in sorted(PACKAGE.rglob("*.py")) if path.parent != PACKAGE]
    names = {path.relative_to(PACKAGE).as_posix(): path for path in files}
    return tuple(found for name, path in names.items() for found in imports_in(path.read_text(), name))


def violations(imports: tuple[Import, ...]) -> list[str]:
    """Those that point upwards, sideways, or out of what a folder may know."""
    return [str(found) for found in imports if not allowed(found)]


def allowed(found: Import) -> bool:
    """Whether one import is one that its folder may make."""
    folder, top = folder_of(found.file), found.module.split(".")[0]
    if top in sys.stdlib_module_names:
        return True
    if found.file in HANDING_OVER and (top == "pyspark" or layer_of(found.module) == "sink/spark"):
        # A name in an annotation loads nothing.
        return found.typing_only or (found.in_function and found.module == HANDING_OVER[found.file])
    if top != "partfile":
        return top in EXTERNAL[folder] or (top == "pyspark" and found.file in SPARK_MODULES)
    return found.module in LEAVES or layer_of(found.module) in INTERNAL[folder] | {folder}


def test_imports_point_only_downwards() -> None:
    """No module imports a layer above its own, another layer beside it, or a package its layer may not know."""
    assert violations(all_imports()) == []


def test_the_leaves_import_nothing_of_ours() -> None:
    """What every package imports drags nothing along."""
    files = [leaf.removeprefix("partfile.").replace(".", "/") + ".py" for leaf in sorted(LEAVES)]
    found = [one for file in files for one in imports_in((PACKAGE / file).read_text(), file)]
    assert [str(one) for one in found if one.module.split(".")[0] == "partfile"] == []


def test_the_scan_sees_every_module() -> None:
    """A scan that finds nothing would prove nothing: each layer has modules, and known imports are found."""
    assert {folder_of(found.file) for found in all_imports()} == set(INTERNAL)
    assert any(found.module == "pyspark" and found.file.startswith("sink/spark/") for found in all_imports())
    assert any(found.module == "partfile.sink.spark.stream" and found.in_function for found in all_imports())


def circles(imports: tuple[Import, ...]) -> list[list[str]]:
    """Modules that import each other, directly or around corners; imports for annotations count too."""
    graph: dict[str, set[str]] = {}
    for found in imports:
        own = "partfile." + found.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        if found.module != own and found.module.split(".")[0] == "partfile":
            graph.setdefault(own, set()).add(found.module)
    while leaves := [name for name, to in graph.items() if not to & set(graph)]:
        for name in leaves:
            del graph[name]
    return [sorted(graph)] if graph else []


def test_no_modules_import_each_other() -> None:
    """There is no circle of imports, not even one for annotations alone."""
    assert circles(all_imports()) == []


def test_a_circle_is_caught() -> None:
    """Three modules in a circle are found, one of them by an import for annotations."""
    guarded = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from partfile.stores.urls import shown\n"
    sources = {
        "stores/urls.py": "from partfile.stores.paths import new_token",
        "stores/paths.py": "from partfile.stores.retry import Backoff",
        "stores/retry.py": guarded,
        "stores/memory.py": "from partfile.stores.urls import shown",
    }
    found = circles(tuple(one for file, source in sources.items() for one in imports_in(source, file)))
    assert [set(circle) for circle in found] == [
        {"partfile.stores.memory", "partfile.stores.paths", "partfile.stores.retry", "partfile.stores.urls"}
    ]


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("snapshot/checkpoint_log.py", "from partfile.sink.states import BucketState"),
        ("stores/local/store.py", "def f():\n    import pyspark"),
        ("writers/text.py", "from partfile.bucketers.base import Bucketer"),
        ("bucketers/hive.py", "from partfile import sink"),
        ("bucketers/hive.py", "from ..stores import local"),
        ("sink/operator.py", "def f():\n    from partfile.sink.spark.write_job import WriteTask"),
        (
            "sink/operator.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pyspark.sql import DataFrame",
        ),
        ("sink/spark/write_job.py", "import pandas"),
        ("sink/file_sink.py", "from partfile.sink.spark.stream import SparkStream"),
        ("sink/file_sink.py", "def f():\n    import pyspark"),
        ("bucketers/hive.py", "from partfile.stores.base import PartStore"),
        ("snapshot/documents.py", "import partfile"),
        ("stores/local/store.py", "import pytest"),
        ("sink/coordinator.py", "from partfile.recovery.inspect.places import Place"),
        ("readers/dataset.py", "import pyspark"),
        ("recovery/inspect/places.py", "from partfile.cli.output import Output"),
        ("recovery/inspect/places.py", "import rich"),
        ("cli/command.py", "from partfile.sink.spark.stream import SparkStream"),
        ("pipeline/barriers.py", "from partfile.cli.output import Output"),
        ("pipeline/barriers.py", "import msgpack"),
        ("sink/operator.py", "from partfile.pipeline.barriers import Barrier"),
    ],
)
def test_a_forbidden_import_is_caught(file: str, source: str) -> None:
    """Imports that point upwards are found at the top level, in functions, by relative and by package import."""
    assert violations(tuple(imports_in(source, file)))


BULKY = {"asyncio", "fsspec", "numpy", "pyarrow", "ssl"}
"""What takes long to import. A command that looks at no rows waits for none of it."""

WAITS_FOR_NONE_OF = {
    "import partfile": OPTIONAL | COMMAND_LINE | BULKY | {"pydantic"},
    "import partfile; partfile.FileSink": OPTIONAL | COMMAND_LINE,
    "import partfile.cli.main": OPTIONAL | BULKY | {"pydantic", "rich"},
    "import partfile.cli.status": OPTIONAL | BULKY | {"rich"},
    "import partfile.cli.recover, partfile.cli.clean, partfile.cli.savepoint": OPTIONAL | BULKY | {"rich"},
    "import partfile.cli.list, partfile.cli.verify, partfile.cli.cat": OPTIONAL | BULKY | {"rich"},
}
"""What must not be loaded after a statement."""


def loaded_after(script: str, *arguments: str) -> set[str]:
    """The packages that a new process has loaded when it has run a script."""
    script += "\nimport json, sys; sys.stderr.write(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd="/")
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize("script", WAITS_FOR_NONE_OF)
def test_an_import_loads_what_is_asked_for(script: str) -> None:
    """Pyarrow itself may load numpy and pandas, so what it has loaded before does not count."""
    before: set[str] = set()
    if "FileSink" in script:
        before = loaded_after("import pyarrow; pyarrow.scalar('it looks for numpy and pandas with its first value')")
    assert sorted(WAITS_FOR_NONE_OF[script] & loaded_after(script) - before) == []


def test_status_of_a_sink_loads_neither_numpy_nor_pyarrow(tmp_path: Path) -> None:
    """Run to its end on a sink that was left with an open part."""
    out = pf.FileSink(tmp_path / "base", uid="life", format="json").local()
    out.open()
    out.write(pa.RecordBatch.from_pydict({"value": [1, 2, 3]}))
    out.checkpoint()
    script = """if True:
        import sys
        from partfile.cli.main import app
        app(sys.argv[1:], standalone_mode=False)
    """
    loaded = loaded_after(script, "status", str(tmp_path / "base"), "--json")
    assert "pydantic" in loaded
    assert sorted((OPTIONAL | BULKY) & loaded) == []


def test_every_public_name_is_listed_and_found() -> None:
    """``dir`` and ``__all__`` know the names that are not imported yet, and no others come."""
    script = (
        "import partfile; assert set(partfile.__all__) <= set(dir(partfile)), dir(partfile); from partfile import *"
    )
    assert "pyarrow" in loaded_after(script)
    assert {*pf.__all__} == {"__version__", *pf._MODULES}
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        pf.nothing  # noqa: B018 - asked for.


def test_what_is_always_imported_is_always_installed() -> None:
    """Every package that a module may import without an extra is named by install_requires.

    zlib_ng has one that stands in for it, and the command line is an extra as a whole.
    """
    settings = ConfigParser()
    settings.read(ROOT / "setup.cfg")
    required = {
        line.split(">")[0].split(";")[0].strip() for line in settings["options"]["install_requires"].split("\n")
    }
    always = set().union(*EXTERNAL.values()) - OPTIONAL - COMMAND_LINE - {"zlib_ng"}
    assert always <= required
