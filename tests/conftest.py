"""What every test shares: one printed seed for all randomness, hypothesis profiles, environment, servers left out."""

from __future__ import annotations

import gc
import os
import random
import sys
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from support.repo import lanes, selection, sharing
from support.spark import classes

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from xdist.remote import Producer


SEED = 20131231
"""Of every run that is given no other: the same commit gives the same result. ``make crash`` draws new seeds."""

_DRAWN = pytest.StashKey[list[str]]()
_CHOSEN = "chosen"
"""Of the properties of a test: what the fixture of this name gave it; reports carry them between processes."""

# Workers must run this interpreter: any other python3 on the PATH lacks partfile.
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
for _name, _value in classes.environment().items():
    os.environ.setdefault(_name, _value)

# No deadline: an fsync takes what it takes. No database: an earlier run has no say.
# A failure prints a blob that @reproduce_failure takes back.
for _name, _examples in {"quick": 10, "default": 30, "thorough": 1000}.items():
    hypothesis.settings.register_profile(_name, max_examples=_examples, deadline=None, database=None, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Let all chance follow from one seed: order, ``random``, hypothesis and drawn cases."""
    if config.getoption("randomly_seed", None) == "default":
        config.option.randomly_seed = SEED
    # Processes that share the tests are told the seed of the one that began them.
    seed = getattr(config, "workerinput", {}).get("randomly_seed", config.getoption("randomly_seed", None))
    if isinstance(seed, int) and config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(seed)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say which tests are taken, and how to repeat this run's randomness."""
    profile = hypothesis.settings.get_current_profile_name()
    seed = config.getoption("randomly_seed", None)
    drawn = "every case" if _takes_all(config) else "of many slow cases a few are drawn; --long takes all"
    return [
        f"lane: {lanes.name_of(config.option.markexpr)}",
        f"seed: --randomly-seed={seed} of order, random, hypothesis (profile {profile!r}) and cases: {drawn}",
    ]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--long``."""
    parser.addoption(
        "--long",
        action="store_true",
        help="every case of each test; kill servers, drivers, workers some twenty times, and processes at every call",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what needs servers; draw cases; begin with what takes longest, so that it is never alone."""
    lanes.mark_servers(items)
    if not _takes_all(config):
        left_out = selection.left_out(items, config.getoption("randomly_seed", None), lanes.most_drawn(config))
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(trylast=True, specname="pytest_collection_modifyitems")
def pytest_begin_with_the_longest(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort what is taken, after pytest-randomly has shuffled it; note which cases were drawn."""
    config.stash[_DRAWN] = [] if _takes_all(config) else selection.names(items, lanes.most_drawn(config))
    if hasattr(config, "workeroutput"):
        config.workeroutput["drawn"] = config.stash[_DRAWN]
    items.sort(key=lambda item: sharing.kind_of(item.nodeid))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while tests are collected: millions of objects would be looked at, and all of them live."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Take what was collected out of the collector's sight.

    Thousands of tests are millions of objects. Each full collection would look at them all, and copy them page by page
    in every process that a test forks.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> sharing.ByKind | None:
    """Let processes that share the tests file by file keep to files that need the same servers."""
    return sharing.ByKind(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a process has drawn that shares the tests; all draw the same."""
    node.config.stash[_DRAWN] = getattr(node, "workeroutput", {}).get("drawn", [])


def _takes_all(config: pytest.Config) -> bool:
    """Whether no case is left out: all were asked for, or some by name."""
    asks = any(config.getoption(option, default=None) for option in ("--long", "keyword", "lf", "failedfirst"))
    return asks or any("[" in argument for argument in config.args)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> Generator[None]:
    """Say which cases and calls were drawn, and below everything else what was not tested."""
    yield
    for line in config.stash.get(_DRAWN, []):
        terminalreporter.write_line(f"drawn: {line}")
    reports = [report for those in terminalreporter.stats.values() for report in those]
    picks = {
        (report.nodeid, place, pick)
        for report in reports
        for place, (name, pick) in enumerate(getattr(report, "user_properties", ()))
        if name == _CHOSEN
    }
    for test, _, pick in sorted(picks):
        terminalreporter.write_line(f"chosen: {test}: {pick}")
    for server in lanes.untested(config.option.markexpr):
        terminalreporter.write_line(f"{server.upper()} WAS NOT TESTED; make test-all does", yellow=True, bold=True)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Random numbers of this test's own; its seed is printed, and follows from ``--randomly-seed``."""
    seed = f"{request.config.getoption('randomly_seed', SEED)}/{request.node.nodeid}"
    print(f"rng seed: {seed}")  # noqa: T201 - shown with the failure
    return random.Random(seed)


@pytest.fixture
def chosen(request: pytest.FixtureRequest, rng: random.Random) -> Callable[[int, int], list[int]]:
    """Chooses among so many calls, counted from 1: a few at random, or with ``--long`` all of them.

    The last lines of a run say what was chosen; the same seed chooses it again.
    """
    is_long = request.config.getoption("--long")

    def choose(count: int, few: int) -> list[int]:
        if is_long or few >= count:
            return [*range(1, count + 1)]
        numbers = sorted(rng.sample(range(1, count + 1), few))
        request.node.user_properties.append((_CHOSEN, f"{', '.join(map(str, numbers))} of {count}"))
        return numbers

    return choose


# Show values in the failed assertions of the shipped suite.

pytest.register_assert_rewrite("partfile.testing.store")
