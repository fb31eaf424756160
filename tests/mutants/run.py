"""Show that the tests kill every mutant: ``make mutants``, or ``make mutants ARGS="claim"`` for those with that word.

Each mutant gets a copy of the tree in a temporary directory, where the tests that are to kill it run until the first
one fails. A mutant that survives, or that does not apply any more, is an error.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from support.repo.mutants import Mutant, mutants  # noqa: E402 - where it is, is said above.

_LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", "build", "dist"
)
_KILLER = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
_TIMEOUT_S = 900


def killer_of(mutant: Mutant) -> str | None:
    """The first test that fails on a tree with this bug; None if none does."""
    with tempfile.TemporaryDirectory(prefix="partfile-mutant-") as directory:
        tree = Path(directory) / "tree"
        shutil.copytree(ROOT, tree, ignore=_LEFT_OUT, symlinks=True)
        (tree / mutant.file).write_text(mutant.source())
        # Nothing is sampled: a mutant that one call shows must die each time.
        long = ["--long"] if any("faults/" in test and "_machine" not in test for test in mutant.tests) else []
        # -k takes every case of what it selects, and each test's name has this word.
        options = ["-x", "-q", "-p", "no:cacheprovider", "--tb=no", "-k", "test_", *long]
        command = [sys.executable, "-m", "pytest", *options, *mutant.tests]
        environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "HYPOTHESIS_PROFILE": "default"}
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
        )
    killed = _KILLER.search(done.stdout)
    if done.returncode not in {0, 1} or (done.returncode == 1 and killed is None):
        raise RuntimeError(f"pytest could not run:\n{done.stdout}{done.stderr}")
    return killed.group(1) if killed else None


def judged(mutant: Mutant) -> tuple[bool, str]:
    """Whether its tests kill a mutant, and how; one that cannot be judged counts as alive, and stops no other."""
    try:
        killer = killer_of(mutant)
    except (ValueError, RuntimeError, subprocess.TimeoutExpired) as error:
        return False, f"NOT JUDGED: {error}"
    return killer is not None, "SURVIVES" if killer is None else f"killed by {killer}"


def main() -> int:
    """Run them all and print a line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("word", nargs="?", default="", help="only mutants whose name has this word")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    arguments = parser.parse_args()
    chosen = [mutant for mutant in mutants() if arguments.word in mutant.name]
    began_s, survivors = time.monotonic(), 0
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for mutant, (is_killed, how) in zip(chosen, pool.map(judged, chosen), strict=True):
            survivors += not is_killed
            print(f"{mutant.name} | {how}", flush=True)  # noqa: T201 - its output.
    print(f"{len(chosen)} mutants, {survivors} not killed, {time.monotonic() - began_s:.0f} s")  # noqa: T201 - likewise.
    return 1 if survivors or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
