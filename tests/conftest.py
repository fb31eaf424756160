"""What every test shares: one printed seed for all randomness, hypothesis profiles, environment, servers left out."""

from __future__ import annotations

import os
import random
import secrets
import sys
from collections import Counter
from typing import TYPE_CHECKING

import hypothesis
import pytest

from support.repo import fault_rows, selection
from support.repo.selection import report, skip_tests_of, skipped_servers

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


_LONGEST_FIRST = ("sink/test_savepoints.py", "faults", "spark", "hdfs", "s3")
"""What forks at every call is first: the processes that share the tests grow beyond a gigabyte, and forks slow down."""

# Workers must run this interpreter: any other python3 on the PATH lacks partfile.
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
# Every Java here lives for some minutes at most: what compiles thoroughly compiles in vain.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# No deadline: an fsync takes what it takes. A failure prints a blob that @reproduce_failure takes back.
for _name, _examples in {"quick": 10, "default": 30, "thorough": 1000}.items():
    hypothesis.settings.register_profile(
        _name, max_examples=_examples, deadline=None, derandomize=False, print_blob=True
    )
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Draw one seed for pytest-randomly (order and random.seed) and hypothesis; ``--randomly-seed`` repeats both."""
    skipped_servers(os.environ)  # Unknown names are refused before anything runs.
    if config.getoption("randomly_seed", None) == "default":
        config.option.randomly_seed = secrets.randbits(32)
    # Processes that share the tests are told the seed of the one that began them.
    seed = getattr(config, "workerinput", {}).get("randomly_seed", config.getoption("randomly_seed", None))
    if isinstance(seed, int) and config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(seed)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say how to repeat this run's randomness, and what it leaves out."""
    profile = hypothesis.settings.get_current_profile_name()
    seed = config.getoption("hypothesis_seed", None)
    said = [f"seeds: order and random by --randomly-seed above; hypothesis profile {profile!r}, seed {seed}"]
    if not _takes_all(config):
        said.append("drawn: a few cases of each test of many slow ones; --every-case takes all")
    return said


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--items`` and ``--faults``, which go with ``--collect-only``, ``--long`` and ``--every-case``."""
    parser.addoption(
        "--long",
        action="store_true",
        help="kill servers, drivers and workers some twenty times, and processes at every call, not at a few",
    )
    parser.addoption("--every-case", action="store_true", help="take each case of the tests of which a run draws a few")
    parser.addoption("--items", action="store_true", help="print the ids of the snapshot list that the tests check")
    parser.addoption(
        "--faults", action="store_true", help="print each row of docs/FAULTS.md with the tests that hold it"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what ``PARTFILE_SKIP`` leaves out; draw cases; begin with what takes longest, so that it is never alone."""
    skip_tests_of(skipped_servers(os.environ), items, config.rootpath)
    if not _takes_all(config):
        left_out = selection.left_out(items, config.getoption("randomly_seed", None))
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
    first = [config.rootpath / "tests" / name for name in _LONGEST_FIRST]
    items.sort(
        key=lambda item: next(
            (at for at, one in enumerate(first) if one in (item.path, *item.path.parents)), len(first)
        )
    )


def _takes_all(config: pytest.Config) -> bool:
    """Whether no case is left out: all were asked for, or to be listed, or some by name."""
    options = ("--every-case", "--long", "--items", "--faults", "keyword", "lf", "failedfirst")
    asks = any(config.getoption(option, default=None) for option in options)
    return asks or any("[" in argument for argument in config.args)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None]:
    """Say what ``PARTFILE_SKIP`` has left out, below everything else."""
    yield
    report(skipped_servers(os.environ), terminalreporter)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Print what ``--items`` and ``--faults`` ask for."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    assert reporter is not None
    if session.config.getoption("--faults"):
        for line in ["", *fault_rows.report(session.items)]:
            reporter.write_line(line)
    if not session.config.getoption("--items"):
        return
    checked = Counter(item for test in session.items for mark in test.iter_markers("item") for item in mark.args)
    reporter.write_line("")
    for item, tests in sorted(checked.items()):
        reporter.write_line(f"{item}  {tests} tests")
    reporter.write_line(f"{len(checked)} items")


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Random numbers of this test's own; its seed is printed, and follows from ``--randomly-seed``."""
    seed = f"{request.config.getoption('randomly_seed', secrets.randbits(32))}/{request.node.nodeid}"
    print(f"rng seed: {seed}")  # noqa: T201 - shown with the failure
    return random.Random(seed)


@pytest.fixture
def chosen(request: pytest.FixtureRequest, rng: random.Random) -> Callable[[int, int], list[int]]:
    """Chooses among so many calls, counted from 1: a few at random, or with ``--long`` all of them."""
    is_long = request.config.getoption("--long")
    return lambda count, few: sorted(rng.sample(range(1, count + 1), count if is_long else min(few, count)))


# Show values in the failed assertions of the shipped suite.

pytest.register_assert_rewrite("partfile.testing.store")
