"""What the machine and the versions of the software are, for the record."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

_PACKAGES = ("partfile", "pyspark", "pyarrow", "numpy", "pandas", "duckdb", "deltalake")


def describe() -> dict[str, str | int | float]:
    """The machine and the versions of what is measured."""
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr.splitlines()
    memory = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count() or 0,
        "memory_gib": round(memory / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "java": java[0] if java else "unknown",
        **{name: _version(name) for name in _PACKAGES},
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
