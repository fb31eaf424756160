"""What the command line prints: names escaped, durations and sizes, warnings of the library."""

from __future__ import annotations

import json
import logging
import os
import pty
import re
import socket
import subprocess
import sys
import unicodedata
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from partfile import ConfigError
from partfile.cli.output import (
    Output,
    bytes_of,
    command_line,
    json_text,
    seconds_of,
    shell_word,
    shown,
    shown_bytes,
    shown_seconds,
    warnings_told,
)
from support.files.trees import killed_job
from support.processes.command_line import run, told_json
from support.sinks.dead import die_with_closed_staging_files
from support.sinks.life_cycle import batch, make_sink, seed_with_a_tail
from support.sinks.recovery import age, seed_with_orphans

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


# No name makes a terminal do anything, and a command that was copied means the same (H9).

HOSTILE = "part\x1b[31m\x07\n\u202egpj\u200b\x9b\U000e0001\x7f"


class Named(BaseModel):
    """A document with one name."""

    name: str


def obeyed(text: str) -> list[str]:
    """The characters that a terminal would obey."""
    return [character for character in text if unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp"}]


@pytest.mark.fault("H9")
@given(st.text())
def test_no_text_is_obeyed(text: str) -> None:
    """Whatever a name holds, what is printed has no control, format or surrogate character."""
    assert obeyed(shown(text)) == []


@pytest.mark.parametrize("text", ["part-1.json", "ü ö", "漢字", "100%", "back\\slash", "'"])
def test_what_is_harmless_stays_as_it_is(text: str) -> None:
    """Names that a terminal shows as they are, are shown as they are."""
    assert shown(text) == text


@pytest.mark.fault("H9")
@pytest.mark.parametrize("word", [HOSTILE, "a b", "it's", "$(rm -rf /)", "back\\slash\x1b'", "-", "plain", "ü\u202e'"])
def test_a_copied_command_means_the_same(word: str) -> None:
    """Bash reads the printed word as the name that was meant, and nothing printed is obeyed by a terminal."""
    printed = shell_word(word)
    assert obeyed(printed) == []
    done = subprocess.run(
        ["bash", "-c", f"printf %s {printed}"], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"}
    )
    assert done.stdout.decode() == word


def test_a_command_is_quoted_word_by_word() -> None:
    """Each word of a command stays one."""
    assert command_line(["partfile", "status", "/data/a b"]) == "partfile status '/data/a b'"


@pytest.mark.fault("H9")
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_json_holds_the_literal_name_and_no_character_that_is_obeyed(name: str) -> None:
    """A program that parses the JSON gets the very name, and a terminal that shows it obeys nothing."""
    text = json_text(Named(name=name))
    assert json.loads(text) == {"name": name}
    assert obeyed(text) == []


# Durations and sizes are read as people write them, and written as people read them.


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0s", 0), ("90s", 90), ("15m", 900), ("24h", 86_400), ("7d", 604_800), ("2w", 1_209_600), ("1.5h", 5400)],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    """A number and its unit are seconds."""
    assert seconds_of(text, "--for") == seconds


@pytest.mark.parametrize("text", ["", "24", "h", "-1h", "1h30m", "1y", "1e3s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """Without a unit, or with one that is not known, nothing is guessed."""
    with pytest.raises(ConfigError, match=r"^--for .* not a duration"):
        seconds_of(text, "--for")


@pytest.mark.parametrize(
    ("text", "count"), [("0", 0), ("512", 512), ("512B", 512), ("1K", 1024), ("5MiB", 5 << 20), ("2 g", 2 << 30)]
)
def test_sizes_are_read(text: str, count: int) -> None:
    """Units are powers of 1024."""
    assert bytes_of(text, "--least") == count


@pytest.mark.parametrize("text", ["", "M", "-1", "1.5M", "1X"])
def test_what_is_no_size_is_refused(text: str) -> None:
    """What is not a whole number and a known unit is refused."""
    with pytest.raises(ConfigError, match=r"^--least .* not a size"):
        bytes_of(text, "--least")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "?"), (-5, "0s"), (0.4, "0s"), (59, "59s"), (60, "1m"), (3661, "1h 1m"), (90_000, "1d 1h"), (86_405, "1d")],
)
def test_durations_are_shown(seconds: float | None, text: str) -> None:
    """Two units at most, the largest first."""
    assert shown_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(None, "?"), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB")]
)
def test_sizes_are_shown(count: int | None, text: str) -> None:
    """The unit that leaves a number below 1024."""
    assert shown_bytes(count) == text


# What the library warns of is told by a command: once, escaped, in its own words, and as JSON if asked for.

logger = logging.getLogger("partfile")


def test_a_warning_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A second one of the same text is not, nor what is no warning; another one is; control characters are escaped."""
    with warnings_told(Output()):
        for _ in range(2):
            logger.warning("left %s: set %s", "a\x1bb", "checkpoint_dir")
        logger.info("nothing to see")
        logger.warning("another")
    assert capsys.readouterr().err.splitlines() == ["warning: left a\\x1bb: set --checkpoint-dir", "warning: another"]


def test_a_warning_is_a_document_beside_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Standard error holds nothing but documents, a line each; standard output has none of it."""
    with warnings_told(Output(as_json=True)):
        logger.warning("it is so")
    told = capsys.readouterr()
    assert told.out == ""
    assert json.loads(told.err) == {"schema": "partfile.warning", "schema_version": 1, "message": "it is so"}


# The command line on a terminal: colours unless they are not wanted, progress that leaves nothing, names escaped.


ESCAPE = "\x1b["
CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def on_a_terminal(*words: str | Path, **environment: str) -> str:
    """What a terminal gets from the command, on standard output and standard error."""
    ours, theirs = pty.openpty()
    inherited = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    variables = {**inherited, "TERM": "xterm-256color", "COLUMNS": "100", **environment}
    with subprocess.Popen(
        [sys.executable, "-m", "partfile", *map(str, words)], stdout=theirs, stderr=theirs, env=variables
    ):
        os.close(theirs)
        seen = b""
        try:
            while data := os.read(ours, 1 << 16):
                seen += data
        except OSError:
            pass  # How Linux says that the other end is closed.
    os.close(ours)
    return seen.decode()


def test_what_is_stuck_stands_out(tmp_path: Path) -> None:
    """A terminal gets colours, and long names are neither wrapped nor cut."""
    seed_with_a_tail(tmp_path)
    text = on_a_terminal("status", tmp_path, COLUMNS="40")
    assert f"{ESCAPE}1;31mSTUCK  life: 2 parts" in text
    assert "the next start, or recover, cuts it to its valid bytes and publishes it" in text


@pytest.mark.parametrize(("words", "environment"), [(["--no-color"], {}), ([], {"NO_COLOR": "1"})])
def test_colours_can_be_left_out(tmp_path: Path, words: list[str], environment: dict[str, str]) -> None:
    """``--no-color`` and ``NO_COLOR`` leave no colour."""
    seed_with_a_tail(tmp_path)
    text = on_a_terminal("status", tmp_path, *words, **environment)
    assert "STUCK" in text
    assert "31m" not in text
    assert "33m" not in text


def test_a_hostile_name_reaches_no_terminal(tmp_path: Path) -> None:
    """A name that would clear the screen is shown, in every verb that lists, and obeyed by none."""
    seed_with_a_tail(tmp_path)
    (tmp_path / "x\x1b[2J\u202e.csv").write_text("x")
    for words in (["status", "--scan"], ["list"], ["verify"]):
        text = on_a_terminal(words[0], tmp_path, *words[1:], "--no-color")
        assert "x\\x1b[2J\\u202e.csv" in text
        assert f"{ESCAPE}2J" not in text
        assert "\u202e" not in text


def test_long_work_shows_its_progress(tmp_path: Path) -> None:
    """A listing counts on a terminal, and nowhere else."""
    seed_with_a_tail(tmp_path)
    assert "listing files" in on_a_terminal("status", tmp_path, "--scan")
    assert "listing files" not in on_a_terminal("status", tmp_path, "--scan", "--json")


@pytest.fixture
def silent_address() -> Iterator[str]:
    """The address of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.slow
@pytest.mark.parametrize("service", ["s3", "hdfs"])
def test_a_person_is_told_of_a_silent_store(silent_address: str, service: str) -> None:
    """On a terminal a line says after 3 s that nothing has come, and when it will be given up: after 10 s."""
    keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
    words = {
        "s3": ["s3://landing/x", "--storage-option", f"endpoint_url=http://{silent_address}"],
        "hdfs": [f"hdfs://{silent_address}/x"],
    }
    text = on_a_terminal("status", *words[service], **keys)
    told, _, error = text.partition("a call is given up after 10 s")
    assert "x/_partfile' has not answered for 3 s; " in told
    assert "call_timeout_s" in error


@pytest.mark.slow
def test_a_program_is_told_nothing_of_a_silent_store(silent_address: str) -> None:
    """Without a terminal standard error has the error alone, after as long as the sink itself waits."""
    short = ["--storage-option", "call_timeout_s=5"]
    result = run("status", f"hdfs://{silent_address}/x", *short)
    assert result.exit_code == 3
    assert result.stderr.startswith("partfile: cannot look at")


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["recover", "{base}", "--apply"], "publishing parts of sink life"),
        (["clean", "{base}", "--apply", "--delete"], "taking files away"),
        (["recover", "{tree}", "--adopt-layout", "flink", "--apply"], "adopting files"),
        (["savepoint", "create", "{base}", "--to", "{kept}", "--apply"], "publishing parts"),
    ],
)
def test_changing_shows_its_progress(tmp_path: Path, words: list[str], shown: str) -> None:
    """Each verb that changes counts on a terminal what it has done of its plan, to the end."""
    base, tree = tmp_path / "base", tmp_path / "tree"
    killed_job(tree)
    seed_with_orphans(base)
    age(base)
    text = on_a_terminal(*(word.format(base=base, tree=tree, kept=tmp_path / "kept") for word in words))
    assert shown in text
    ends = {end for done, end in re.findall(r"(\d+)/(\d+)", CODES.sub("", text)) if done == end != "0"}
    assert ends, text


def completed(typed: str, **environment: str) -> list[str]:
    """What bash is offered behind what was typed."""
    words = typed.split(" ")
    asked = {"_PARTFILE_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)}
    variables = {**os.environ, **environment, **asked}
    command = [sys.executable, "-m", "partfile"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout.split()


def test_a_shell_can_complete_verbs() -> None:
    """The verbs are offered to a shell that asks for what begins like them."""
    assert completed("partfile ver") == ["verify"]


def test_a_shell_can_complete_words(tmp_path: Path) -> None:
    """Of options that take one of a few."""
    assert completed(f"partfile recover {tmp_path} --cut re") == ["rewrite"]
    assert completed(f"partfile list {tmp_path} --state fin") == ["finished"]
    assert completed(f"partfile schema {tmp_path} --format ") == ["arrow", "spark", "duckdb", "hive"]
    assert completed(f"partfile sql {tmp_path} --engine s") == ["spark"]


def test_a_shell_can_complete_sinks_and_parts(tmp_path: Path) -> None:
    """Sinks of the base that was typed, its unfinished parts by their final names, and its files and directories."""
    for uid in ("life", "light", "other"):
        with make_sink(tmp_path, uid=uid).local() as out:
            out.write(batch(0, 4))
    seed_with_a_tail(tmp_path, uid="left")
    assert completed(f"partfile status {tmp_path} --uid ") == ["left", "life", "light", "other"]
    assert completed(f"partfile recover {tmp_path} --uid li") == ["life", "light"]
    assert completed(f"partfile status --uid li {tmp_path}") == []
    (one, other) = (part["path"] for part in told_json("status", tmp_path, code=1)["sinks"][0]["stuck"])
    assert {one, other} <= {*completed(f"partfile cat {tmp_path} ")}
    assert "bucket=b0/" in completed(f"partfile cat {tmp_path} bucket=b")
    assert one in completed(f"partfile cat {tmp_path} {one[:-3]}")
    inside = completed(f"partfile cat {tmp_path} bucket=b0/")
    assert inside
    assert [name for name in inside if "/_" in name] == []
    assert "bucket=b0/" in completed(f"partfile cat file://{tmp_path} bucket=b")
    assert completed(f"partfile cat {tmp_path} ../") == []


def test_a_shell_can_complete_the_part_to_set_aside(tmp_path: Path) -> None:
    """Those that wait to be encoded."""
    die_with_closed_staging_files(tmp_path)
    found = completed(f"partfile recover {tmp_path} --set-aside ")
    assert found
    assert all(name.endswith(".parquet") for name in found)


@pytest.mark.parametrize("path", ["/no/such/place", "~"])
def test_tab_never_fails(path: str) -> None:
    """Nothing is offered of a base that is not there."""
    assert completed(f"partfile status {path} --uid ") == []
    assert completed(f"partfile cat {path} x") == []


@pytest.mark.parametrize("path", ["s3://landing/x", "hdfs://{address}/x", "/here --checkpoint-dir s3://landing/y"])
def test_tab_asks_no_network(path: str) -> None:
    """Nothing is offered of a remote base, and nothing connects to its server."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        address = f"127.0.0.1:{server.getsockname()[1]}"
        keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_ENDPOINT_URL_S3": f"http://{address}"}
        assert completed(f"partfile status {path.format(address=address)} --uid ", **keys) == []
        with pytest.raises(BlockingIOError):
            server.accept()
