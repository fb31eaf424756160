"""An audit of dependencies that looked at nothing is never taken for a good one."""

from __future__ import annotations

from typing import Any

import pytest

from support.repo.dependency_audit import installed, judged

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
