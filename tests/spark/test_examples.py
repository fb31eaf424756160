"""docs/RUNBOOK.md and the demo that makes a mess show what there is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import flights
import flights_source
from runbook import FAILURES, PAGE, compare, shown
from runbook_failures import LOCAL
from runbook_remote import ON_S3, WITH_SPARK

if TYPE_CHECKING:
    import random

# docs/RUNBOOK.md shows what there is: each failure is caused again, and commands, exit codes and verdicts compared.

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "examples" / "runbook.py"


def check(*names: str) -> None:
    """Cause some failures in a process of its own, and compare."""
    command = [sys.executable, str(SCRIPT), "--check", *names]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]


def test_the_document_is_up_to_date_on_local_disk() -> None:
    """Fourteen failures of a sink in plain Python."""
    check(*LOCAL)


def test_the_document_is_up_to_date_on_s3() -> None:
    """Failures on S3, on moto."""
    check(*ON_S3)


@pytest.mark.spark
def test_the_document_is_up_to_date_with_spark() -> None:
    """A worker that dies, and a checkpoint of Spark's that is gone."""
    check(*WITH_SPARK)


def test_each_failure_is_seen_and_mended() -> None:
    """Each has a section of the document, with what is seen and what it looks like afterwards."""
    page = PAGE.read_text()
    assert re.findall(r"^## (\d+)\.", page, flags=re.MULTILINE) == [str(number) for number in range(1, 22)]
    assert len(FAILURES) == 21
    blocks = shown(page)
    wanted = {f"{name}.{section}" for name in FAILURES for section in ("seen", "mended")}
    assert blocks.keys() == wanted | {"back-to-a-savepoint.in-place", "staging-file-stuck.damaged"}
    assert [name for name, lines in blocks.items() if not lines] == []


@pytest.mark.parametrize("change", ["    # ends with 137", "STUCK", "$ partfile recover"])
def test_another_command_code_or_verdict_is_noticed(change: str) -> None:
    """The comparison is blind to none of the three."""
    page = PAGE.read_text()
    assert compare(page, shown(page)) == []
    assert compare(page.replace(change, "", 1), shown(page)) != []


# The demo that makes a mess and mends it with the command line, as ``make demo-stuck`` runs it.

EXAMPLE = Path(__file__).parents[2] / "examples" / "stuck.sh"


@pytest.mark.spark
def test_everything_stuck_is_mended_and_counted() -> None:
    """Each command ends with the code that the script names; then each row is there once and nothing is left."""
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(["bash", EXAMPLE], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["stuck: lost=0 duplicated=0 left=0"], done.stdout + done.stderr
    assert done.returncode == 0
    assert "rows on disk, 8 on S3" in done.stdout


# The demo that streams flights, in small: a twelfth of the batches, a hundredth of the rows, and one kill.

FLIGHTS = 3000


@pytest.mark.spark
def test_rows_that_are_sent_again_are_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rng: random.Random
) -> None:
    """As ``make demo DEDUPLICATE=1`` runs it: each row comes up to three times, and the driver is killed in a batch."""
    unpack = flights_source._unpack

    def few(directory: Path) -> Path:
        csv = unpack(directory)
        csv.write_text("".join(csv.read_text().splitlines(keepends=True)[: FLIGHTS + 1]))
        return csv

    monkeypatch.setattr(flights_source, "_unpack", few)
    monkeypatch.setattr(flights_source, "BATCHES", 4)
    monkeypatch.setattr(flights, "KILLS", 1)
    # The demo sets these for the process that it is.
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    words = [f"--output={tmp_path / 'demo'}", f"--seed={rng.getrandbits(32)}", "--deduplicate"]
    assert flights.main(words) == 0
    shown = capsys.readouterr().out
    sent = re.search(r"^(\d+) rows were sent", shown, re.MULTILINE)
    assert sent is not None
    assert int(sent[1]) > 1.5 * FLIGHTS
    assert f"demo: rows={FLIGHTS} lost=0 duplicated=0 " in shown
