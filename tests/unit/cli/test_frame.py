"""The frame of the command line: exit codes, errors, secrets, quiet ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from command_line import run, start, told
from life_cycle import stopped_with_savepoint

from partfile import errors
from partfile.recovery.documents import FINDINGS, UNREACHABLE, USAGE, code_of
from partfile.version import __version__

if TYPE_CHECKING:
    from pathlib import Path


def test_the_module_and_the_version(tmp_path: Path) -> None:
    """``python -m partfile`` is the command, and ``--version`` says which."""
    process = start("--version", cwd=tmp_path)
    assert process.communicate() == (f"partfile {__version__}\n", "")


@pytest.mark.parametrize("verb", [(), ("savepoint",), ("savepoint", "list"), ("savepoint", "show")])
def test_every_verb_has_help(verb: tuple[str, ...]) -> None:
    """``--help`` explains, and of a verb shows an example."""
    text = told(*verb, "--help")
    assert "Usage: partfile" in text.replace("root", "partfile")
    assert len(verb) < 2 or f"Example: partfile {' '.join(verb)}" in text


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError("x"), USAGE),
        (errors.NotFound("x"), USAGE),
        (errors.NotReady("x"), UNREACHABLE),
        (errors.NotApplied("x"), UNREACHABLE),
        (errors.OutcomeUnknown("x"), UNREACHABLE),
        (PermissionError("x"), UNREACHABLE),
        (errors.LeaseUnavailable("x"), FINDINGS),
        (errors.SnapshotCorrupt("x"), FINDINGS),
        (errors.SnapshotVersionError("x"), FINDINGS),
        (errors.RecoveryRefused("x"), FINDINGS),
        (errors.Fenced("x"), FINDINGS),
        (errors.PartMissing("x"), FINDINGS),
        (RuntimeError("x"), FINDINGS),
    ],
)
def test_each_error_has_its_exit_code(error: Exception, code: int) -> None:
    """Usage is 2, a store that cannot be reached 3, everything that is refused or found 1."""
    assert code_of(error) == code


def test_an_error_is_one_message_with_a_hint_and_no_traceback(tmp_path: Path) -> None:
    """What is missing is named on standard error, with what to do; nothing is on standard output."""
    result = run("savepoint", "list", tmp_path / "nowhere")
    assert result.exit_code == USAGE
    assert result.stdout == ""
    assert str(tmp_path / "nowhere") in result.stderr
    assert "Hint: " in result.stderr
    assert "Traceback" not in result.stderr


def test_an_error_is_a_json_object_for_programs(tmp_path: Path) -> None:
    """With ``--json`` standard error holds one JSON object that names the error."""
    result = run("savepoint", "list", tmp_path / "nowhere", "--json")
    told = json.loads(result.stderr)
    assert result.exit_code == USAGE
    assert (told["schema"], told["schema_version"]) == ("partfile.error", 1)
    assert (told["error"], told["exit_code"]) == ("NotFound", USAGE)


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    """Who asks for it sees where the error came from."""
    assert "Traceback" in run("savepoint", "list", tmp_path / "nowhere", "--debug").stderr


def test_an_unreachable_store_is_told_apart() -> None:
    """A server that does not answer ends with 3, within the deadline that was given, without a traceback."""
    options = ("--storage-option", "endpoint_url=http://127.0.0.1:9", "--storage-option", "call_timeout_s=1")
    secret = ("--storage-option", "key=mine", "--storage-option", "secret=hush-hush")
    result = run("savepoint", "list", "s3://bucket/base", *options, *secret, "--debug")
    assert result.exit_code == UNREACHABLE
    assert "hush-hush" not in result.stdout + result.stderr


@pytest.mark.parametrize("option", ["hush-hush", "=hush-hush"])
def test_an_option_without_a_name_is_refused_and_not_shown(option: str, tmp_path: Path) -> None:
    """What was typed may be a secret, so the message shows its form alone."""
    result = run("savepoint", "list", tmp_path, "--storage-option", option)
    assert result.exit_code == USAGE
    assert "NAME=VALUE" in result.stderr
    assert "hush-hush" not in result.stdout + result.stderr


def test_options_come_from_a_file_and_are_not_shown(tmp_path: Path) -> None:
    """A file of options is read, an option that the store does not know is refused by name, its value is not shown."""
    file = tmp_path / "options.json"
    file.write_text(json.dumps({"no_such_option": "hush-hush"}))
    result = run("savepoint", "list", "s3://bucket/base", "--storage-options-file", file)
    assert result.exit_code == USAGE
    assert "no_such_option" in result.stderr
    assert "hush-hush" not in result.stdout + result.stderr


@pytest.mark.parametrize("content", ["", "[]", "{", "x" * (2 << 20), "[" * 100_000])
def test_a_file_that_holds_no_options_is_refused(content: str, tmp_path: Path) -> None:
    """Only a JSON object of a reasonable size counts."""
    file = tmp_path / "options.json"
    file.write_text(content)
    result = run("savepoint", "list", tmp_path, "--storage-options-file", file)
    assert result.exit_code == USAGE
    assert "no JSON object" in result.stderr


def test_savepoints_are_listed_and_shown(tmp_path: Path) -> None:
    """Both verbs tell what was taken, of which sink and by which checkpoint, in text and as JSON."""
    where = stopped_with_savepoint(tmp_path)
    assert where.rpartition("/")[2] in told("savepoint", "list", tmp_path / "savepoints")
    listed = json.loads(told("savepoint", "list", tmp_path / "savepoints", "--json"))
    (entry,) = listed["savepoints"]
    assert (entry["location"], entry["job"], entry["problem"]) == (where, "life", "")
    shown = json.loads(told("savepoint", "show", where, "--json"))
    assert (shown["schema"], shown["job"], shown["ends_the_job"]) == ("partfile.savepoint", "life", True)
    assert "life" in told("savepoint", "show", where)


def test_a_damaged_savepoint_is_a_finding(tmp_path: Path) -> None:
    """What cannot be restored is listed with its problem, and the exit code says so."""
    where = stopped_with_savepoint(tmp_path)
    with open(f"{where}/_metadata", "r+b") as file:  # noqa: PTH123 - a location is text
        file.truncate(20)
    assert "partfile header" in told("savepoint", "list", tmp_path / "savepoints", code=FINDINGS)


def test_a_reader_that_goes_is_no_error(tmp_path: Path) -> None:
    """``| head`` ends the command without a word."""
    stopped_with_savepoint(tmp_path)
    script = f"{sys.executable} -m partfile savepoint list {tmp_path}/savepoints | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.strip() in {"0", "141"}


def test_an_interrupt_ends_quietly(tmp_path: Path) -> None:
    """Ctrl-C ends the command with 130 and without a traceback."""
    fifo = tmp_path / "options"
    os.mkfifo(fifo)
    process = start("savepoint", "list", tmp_path, "--storage-options-file", fifo)
    with fifo.open("w"):  # Opens once the command reads its options.
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert (process.returncode, errors) == (130, "")
