"""The verb ``run``: jobs of files, their ends, and files that are none."""

from __future__ import annotations

import json
import os
import pty
import signal
from textwrap import dedent
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import partfile as pf
from support.processes.command_line import run, start, told, told_lines
from support.processes.deadline import PATIENCE_S

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

FORTY = """
    from helper_of_the_job import ROWS
    import partfile as pf

    job = pf.Pipeline("readings")
    job.source(pf.IterableSource(ROWS, schema={{"id": "int64"}}))
    job.sink(pf.FileSink({base!r}, uid="readings", format="json"))
    again = job
    if __name__ == "__main__":
        raise SystemExit("a module runs no job")
"""

ENDLESS = """
    import sys, time
    import partfile as pf

    def items(position):
        for at in range(position or 0, 10**9):
            time.sleep(0.005)
            yield {{"id": at}}

    job = pf.Pipeline("readings", interval_s=0.05)
    job.source(pf.IterableSource(
        items, schema={{"id": "int64"}}, position=lambda row: row["id"] + 1, rows_at_once=1))
    job.sink(pf.FileSink({base!r}, uid="readings", format="json"))
"""


def program(path: Path, text: str) -> Path:
    """A file with a job that writes below a directory."""
    (path / "helper_of_the_job.py").write_text('ROWS = [{"id": number} for number in range(40)]\n')
    (path / "job.py").write_text(dedent(text).format(base=str(path / "out")))
    return path / "job.py"


def ids_in(path: Path) -> list[int]:
    """What the finished files hold, sorted."""
    return sorted(pf.read(path / "out", schema=pa.schema({"id": pa.int64()})).to_table()["id"].to_pylist())


def test_the_job_of_a_file_runs_to_its_end(tmp_path: Path) -> None:
    """With the modules beside it; a second run passes over what counts."""
    file = program(tmp_path, FORTY)
    assert told("run", file) == ("readings: 40 rows, 0 dead letters, 1 checkpoint, 0 restarts; its source has ended\n")
    *_, last = told_lines("run", file, "--json")
    assert last == {
        "schema": "partfile.run",
        "schema_version": 1,
        "job": "readings",
        "rows": 0,
        "dead_letters": 0,
        "checkpoints": 1,
        "restarts": 0,
        "is_ended": True,
        "position": {"items": 40, "last": "b80c6da2"},
    }
    assert ids_in(tmp_path) == list(range(40))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_takes_a_last_checkpoint(tmp_path: Path, number: signal.Signals) -> None:
    """Which publishes everything; the exit code is that of success."""
    process = start("run", program(tmp_path, ENDLESS), "--json")
    lines = lines_until(process, 3)
    process.send_signal(number)
    rest, complaint = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, complaint) == (0, "")
    ended = json.loads(rest.splitlines()[-1])
    assert (ended["schema"], ended["is_ended"]) == ("partfile.run", False)
    assert [one["schema"] for one in lines] == ["partfile.run.checkpoint"] * 3
    assert ids_in(tmp_path) == list(range(ended["position"]))
    assert ended["rows"] == ended["position"] > 0


def lines_until(process: subprocess.Popen[str], checkpoints: int) -> list[dict[str, object]]:
    """What a job tells of its first checkpoints."""
    assert process.stdout is not None
    return [json.loads(process.stdout.readline()) for _ in range(checkpoints)]


def test_a_second_interrupt_ends_a_job_that_waits_for_its_source(tmp_path: Path) -> None:
    """At once; what has a checkpoint counts, and the next run goes on."""
    text = ENDLESS.replace("time.sleep(0.005)", "print(at, flush=True) or time.sleep(0.005 if at < 50 else 3600)")
    process = start("run", program(tmp_path, text))
    assert process.stdout is not None
    while process.stdout.readline() != "50\n":
        pass
    process.send_signal(signal.SIGINT)
    with pytest.raises(TimeoutError):
        wait(process, 0.5)
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert complaint == ""
    found = ids_in(tmp_path)
    assert found == list(range(len(found)))


def wait(process: subprocess.Popen[str], seconds: float) -> None:
    """Wait for the end of a process; raises TimeoutError."""
    try:
        process.wait(seconds)
    except Exception as error:
        raise TimeoutError from error


def test_a_terminal_shows_how_far_it_is(tmp_path: Path) -> None:
    """On standard error, while it runs; standard output has the end alone."""
    shown_at, theirs = pty.openpty()
    process = start("run", program(tmp_path, ENDLESS), stderr=theirs)
    os.close(theirs)
    seen = b""
    while b"checkpoint 3" not in seen:
        seen += os.read(shown_at, 4096)
    process.send_signal(signal.SIGINT)
    while True:
        try:
            if not os.read(shown_at, 4096):
                break
        except OSError:
            break
    out, _ = process.communicate(timeout=PATIENCE_S)
    os.close(shown_at)
    assert process.returncode == 0
    assert out.startswith("readings: ")
    assert out.endswith("it was told to stop; run it again to go on\n")
    assert b"readings: " in seen


TWO = """
    import partfile as pf

    def job(name):
        made = pf.Pipeline(name).source(pf.IterableSource([{{"id": 1}}], schema={{"id": "int64"}}))
        return made.sink(pf.FileSink({base!r}, uid=name, format="json"))

    jobs = job("first"), job("second")
    first, second = jobs
"""


BROKEN = """import partfile as pf
def broken(rows):
    return 1 / 0
job = pf.Pipeline('a').source(pf.IterableSource([{{'id': 1}}], schema={{'id': 'int64'}}))
job.map_batches(broken).sink(pf.FileSink({base!r}, uid='a', format='json'))
"""


@pytest.mark.parametrize(
    ("text", "words", "code", "complaint", "hint"),
    [
        (TWO, (), 2, "makes the pipelines 'first', 'second'", "Name one of them: --job NAME"),
        (TWO, ("--job", "third"), 2, "'first', 'second', and 0 named 'third'", "--job NAME"),
        ("x = 1", (), 2, "makes no pf.Pipeline that a variable of the module names", "job = pf.Pipeline(NAME)"),
        ("x = 1\ny = 1 / 0", (), 2, "(line 2): ZeroDivisionError: division by zero", "--debug"),
        ("x = (", (), 2, "SyntaxError", "--debug"),
        ("raise SystemExit(3)", (), 2, "(line 1): SystemExit: 3", "--debug"),
        ("import partfile as pf\njob = pf.Pipeline('a')", (), 2, "a: the job has no source", "job.source(SOURCE)"),
        ("import partfile as pf\njob = pf.Pipeline('')", (), 2, "a pipeline's name is ''", "pf.Pipeline('orders')"),
        (
            BROKEN,
            (),
            1,
            "a has failed (line 3): ZeroDivisionError: division by zero",
            "See its traceback: partfile run",
        ),
    ],
)
def test_what_cannot_run_is_told(  # noqa: PLR0917 - parameters.
    tmp_path: Path, text: str, words: tuple[str, ...], code: int, complaint: str, hint: str
) -> None:
    """In one message, with what to do; and as JSON."""
    file = program(tmp_path, text)
    result = run("run", file, *words)
    assert (result.exit_code, result.stdout) == (code, "")
    assert complaint in result.stderr
    assert hint in result.stderr
    error = json.loads(run("run", file, *words, "--json").stderr.splitlines()[-1])
    assert (error["schema"], error["exit_code"]) == ("partfile.error", code)
    assert complaint in error["message"]
    assert not list(tmp_path.rglob("part-*"))


def test_a_file_that_runs_its_job_by_itself_is_refused(tmp_path: Path) -> None:
    """Else it would run twice, and a signal would end the first run alone."""
    file = program(tmp_path, FORTY + "\n    job.run()\n")
    result = run("run", file)
    assert result.exit_code == 2
    assert "readings: partfile run runs the job by itself" in result.stderr
    assert 'if __name__ == "__main__": job.run()' in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_reader_of_the_output_that_has_gone_ends_the_job(tmp_path: Path) -> None:
    """With a last checkpoint, and the exit code that a shell expects; the job's own listener is called all the same."""
    text = ENDLESS.replace("interval_s=0.05", "interval_s=0.05, on_progress=lambda done: told.append(done.rows)")
    text = text.replace(
        "import partfile as pf",
        "import partfile as pf, atexit\n    told = []\n    "
        "atexit.register(lambda: open({base!r} + '.told', 'w').write(str(len(told))))",
        1,
    )
    process = start("run", program(tmp_path, text), "--json", "--job", "readings")
    lines_until(process, 1)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(PATIENCE_S) == 141
    found = ids_in(tmp_path)
    assert found == list(range(len(found)))
    assert int((tmp_path / "out.told").read_text()) >= 2


def test_one_of_two_jobs_is_named(tmp_path: Path) -> None:
    """And a file that is not there is told."""
    file = program(tmp_path, TWO)
    assert told("run", file, "--job", "second").startswith("second: 1 row, ")
    missing = run("run", tmp_path / "no.py")
    assert missing.exit_code == 2
    assert "there is no file" in missing.stderr
