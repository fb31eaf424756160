"""What the tests are marked with: ``python -m support.repo.list_marks items``, or ``faults``, prints it."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING

import pytest

from support.repo import fault_rows

if TYPE_CHECKING:
    from collections.abc import Iterator


class Collected:
    """A plugin that keeps the tests that pytest has found."""

    tests: list[pytest.Item]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Keep them."""
        self.tests = session.items


def items_of(tests: list[pytest.Item]) -> Iterator[str]:
    """A line for each item of the snapshot core's list that some test checks, and how many there are."""
    checked = Counter(item for test in tests for mark in test.iter_markers("item") for item in mark.args)
    for item, count in sorted(checked.items()):
        yield f"{item}  {count} tests"
    yield f"{len(checked)} items"


def main(word: str) -> int:
    """Collect every case of every test, and print what ``word`` asks for."""
    found, said = Collected(), StringIO()
    with redirect_stdout(said):
        code = pytest.main(["-q", "--collect-only", "--long", "-p", "no:cacheprovider"], plugins=[found])
    if code:
        sys.stderr.write(said.getvalue())
        return int(code)
    lines = {"items": items_of, "faults": fault_rows.report}[word](found.tests)
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
