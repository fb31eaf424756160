"""The frame of the command line: exit codes, messages, quiet ends, and where it writes."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from typer.main import get_command

from cli_reference import DOCUMENTS, reference
from partfile import errors
from partfile.cli import clean
from partfile.cli.exit_codes import FINDINGS, UNREACHABLE, USAGE, code_of
from partfile.cli.main import VERBS, app
from partfile.cli.output import in_words_of_a_command
from partfile.stores.local.posix import PosixCalls
from partfile.version import __version__
from support.processes.command_line import run, start, told
from support.sinks.life_cycle import (
    batch,
    everything,
    finished_files,
    in_child,
    long_sink,
    seed_with_a_tail,
    stopped_with_savepoint,
)
from support.sinks.recovery import age, seed_with_orphans

# The frame of the command line: exit codes, errors, secrets, quiet ends.


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
        (errors.SourceError("x"), UNREACHABLE),
        (errors.RecordError("x"), FINDINGS),
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
        errors = None
        while errors is None:
            # Python may see a signal that comes just before a blocking read only after it: the user presses again.
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, "")


# What cannot be done is told with what is at fault, a hint what to do, and the options as a command has them.

_PYTHON = re.compile(r"\b[a-z]+(?:_[a-z]+)+=|=(?:True|False|None)\b|Settings: |Value error|\bTypeError\b")
"""Options in the words of the library, and what only its programmers understand."""
_NAMES = re.compile(r"\b(?:accept_missing|accept_newer|restore_from|checkpoint_dir|moved_from|storage_options)\b")

USAGE_ERRORS = [
    ("status {t}/none", "{t}/none"),
    *(
        (f"{words} {{t}}/empty", "'{t}/empty/_partfile'")
        for words in ("status", "list", "verify", "clean", "checkpoints")
    ),
    ("savepoint create {t}/empty --to {t}/x", "'{t}/empty/_partfile'"),
    ("recover {t}/empty --restore-from x", "begins with a savepoint by itself"),
    ("status {t}/file", "'{t}/file' is a file"),
    ("verify {t}/file", "'{t}/file' is a file"),
    ("recover {t}/file", "'{t}/file' is a file"),
    ("clean {t}/file", "'{t}/file' is a file"),
    ("status ''", "path is empty"),
    ("recover ''", "path is empty"),
    ("savepoint list ''", "path is empty"),
    ("savepoint show ''", "does not name"),
    ("status {t}/out --uid other", "'other'"),
    ("status {t}/out --uid ../x", "'../x'"),
    ("status {t}/out --uid ''", "uid ''"),
    ("status {t}/out --checkpoint-dir {t}/none", "{t}/none"),
    ("status {t}/out --checkpoint-dir {t}/file", "'{t}/file' is a file"),
    ("status {t}/out --checkpoint-dir ''", "--checkpoint-dir"),
    ("status {t}/out --quiet-after soon", "--quiet-after 'soon'"),
    ("status {t}/out --storage-option region=a --storage-option secret", "--storage-option number 2"),
    ("status {t}/out --storage-option =secret", "--storage-option number 1"),
    ("status {t}/out --storage-option a=secret", "--storage-option, got ['a']"),
    ("status {t}/out --storage-options-file {t}/none", "--storage-options-file '{t}/none'"),
    ("status {t}/out --storage-options-file {t}/file", "--storage-options-file '{t}/file'"),
    ("status s3://bucket/x --storage-option zap=secret", "zap: no such option"),
    ("status s3://bucket/x --storage-option call_timeout_s=secret", "call_timeout_s: "),
    ("status s3://bucket/x --storage-option endpoint_url=secret", "endpoint_url"),
    ("status hdfs://n/x --storage-option zap=secret", "zap: no such option"),
    ("status s3://", "'s3://' names no"),
    ("status foo://x", "'foo'"),
    ("status http://x", "http://"),
    ("list {t}/out --state odd", "--state 'odd'"),
    ("list {t}/out --bucket ../..", "'../..'"),
    ("list {t}/out --older-than x", "--older-than 'x'"),
    ("list {t}/out --min-bytes x", "--min-bytes 'x'"),
    ("cat {t}/out none", "'none'"),
    ("cat {t}/out ../../etc/passwd", "'../../etc/passwd'"),
    ("cat {t}/out /etc/passwd", "'/etc/passwd'"),
    ("clean {t}/out --older-than x", "--older-than 'x'"),
    ("clean {t}/out --idle-for -5s", "--idle-for '-5s'"),
    ("clean {t}/out --retain 0", "--retain 0"),
    ("clean {t}/out --plan x", "--plan and --fence"),
    ("recover {t}/out --cut saw", "--cut 'saw'"),
    ("recover {t}/out --accept-newer", "--accept-newer has no effect without --restore-from"),
    ("recover {t}/out --restore-from ''", "--restore-from is empty"),
    ("recover {t}/out --moved-from ''", "--moved-from is empty"),
    ("recover {t}/out --restore-from /none/chk-1", "--restore-from '/none/chk-1'"),
    ("recover {t}/out --restore-from {t}/out/_partfile/life/chk-99", "checkpoint 99"),
    ("recover {t}/out --adopt-layout odd", "--adopt-layout 'odd'"),
    ("recover {t}/out --adopt-layout flink --uid life", "--adopt-layout"),
    ("recover {t}/out --adopt-layout flink --affix x", "--affix 'x'"),
    ("recover {t}/out --publish-pending", "--publish-pending"),
    ("savepoint create {t}/empty --to {t}/s", "{t}/empty"),
    ("savepoint create {t}/out --to ''", "savepoint"),
    ("savepoint dispose {t}/out", "is not a savepoint"),
    ("savepoint list {t}/none", "{t}/none"),
    ("savepoint show {t}/out", "is not a savepoint"),
    ("savepoint show {t}/file", "it is a file"),
    ("checkpoints {t}/out --savepoint-dir {t}/none", "{t}/none"),
]
REFUSED = [
    ("recover {t}/out --apply", "--fence"),
    ("clean {t}/out --apply --older-than 0s", "--fence"),
    ("recover {t}/out --apply --fence --plan odd", "the plan odd"),
    ("clean {t}/out --apply --fence --plan odd", "the plan odd"),
    ("recover {t}/lost --apply", "--accept-missing"),
    ("recover {t}/damaged", "--restore-from"),
    ("recover {t}/damaged --restore-from {t}/damaged/_partfile/life/chk-2", "--accept-newer"),
    ("clean {t}/damaged", "--restore-from"),
    ("savepoint create {t}/out --to {t}/file", "'{t}/file' is a file"),
    ("savepoint create {t}/out --to {t}/file --apply --fence", "'{t}/file' is a file"),
]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base of a sink that has just died, one with a lost part, one with a damaged checkpoint, and oddities."""
    top = tmp_path_factory.mktemp("tree")
    for name in ("out", "lost", "damaged"):
        seed_with_orphans(top / name)
    age(top / "lost")
    for part in (top / "lost").rglob("*.in-progress"):
        part.unlink()
    metadata_files = (top / "damaged" / "_partfile" / "life").glob("chk-*/_metadata")
    max(metadata_files, key=lambda metadata: int(metadata.parent.name.removeprefix("chk-"))).write_bytes(b"garbage")
    (top / "file").write_text("x")
    (top / "empty").mkdir()
    return top


@pytest.mark.fault("H7")
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [(words, 2, said) for words, said in USAGE_ERRORS] + [(words, 1, said) for words, said in REFUSED],
)
def test_what_cannot_be_done_is_told_with_a_way_out(tree: Path, words: str, code: int, said: str) -> None:
    """H7: one message and one hint in the words of a command, no secret, and nothing is changed."""
    before = everything(tree)
    result = run(*(word.strip("'").format(t=tree) for word in words.split(" ")))
    told = result.stderr
    assert result.exit_code == code, f"{result.stdout}{told}"
    assert said.format(t=tree) in told
    assert told.startswith("partfile: ")
    # A sentence ends in a full stop; what is typed or opened does not.
    ends = r"[.?]|https://\S+/\S*\w|partfile \S.*\w|: (df|ls) -\w+ \S+|: --[\w-]+=PATH"
    assert re.search(rf"^Hint: \S.*({ends})$", told, re.MULTILINE), told
    unquoted = re.sub(r"'[^']*'", "", told)
    assert not _PYTHON.search(unquoted), unquoted
    assert not _NAMES.search(unquoted), unquoted
    assert "secret" not in told.replace("may be secret", "").replace("secret, token", "")
    assert everything(tree) == before


# What the library says of its options is told in the words of a command.


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("leave restore_from out to go on", "leave --restore-from out to go on"),
        ("run with checkpoint_dir='/a/checkpoint_dir=b'.", "run with --checkpoint-dir '/a/checkpoint_dir=b'."),
        ("restore_from='/x' is not there", "--restore-from '/x' is not there"),
        ("RestoreSettings: checkpoint_dir has no effect", "--checkpoint-dir has no effect"),
        ("take no storage_options, got", "take no --storage-option, got"),
        ("cannot cut, or take cut='rewrite'", "cannot cut, or take --cut 'rewrite'"),
        ("my_restore_from_2 stays", "my_restore_from_2 stays"),
    ],
)
def test_options_are_spelled_as_a_command_does(said: str, told: str) -> None:
    """Names and values alike; what is quoted is a user's path, and stays."""
    assert in_words_of_a_command(said) == told


# Ends that are no mistake of the command: output that cannot be written, files that may not be read, options twice.


@pytest.mark.parametrize(("where", "code"), [("> /dev/full", 3), (">&-", 1)])
def test_output_that_cannot_be_written(tmp_path: Path, where: str, code: int) -> None:
    """A full disk or a closed output is told in words, without a traceback."""
    (tmp_path / "x.txt").touch()
    script = f"{sys.executable} -m partfile list {tmp_path} {where}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "output" in done.stderr
    assert "unexpected" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_part_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is named with what the system says; it is no mistake to report."""
    (tmp_path / "x.txt").write_text("x\n")

    def refusing(_calls: PosixCalls, _directory: int, name: str, _access: str) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", name)

    monkeypatch.setattr(PosixCalls, "open_existing", refusing)
    result = run("cat", tmp_path, "x.txt")
    assert result.exit_code == 3
    assert "x.txt" in result.stderr
    assert "unexpected" not in result.stderr


def test_the_option_of_a_sink_is_given_once(tmp_path: Path) -> None:
    """Of two the last was taken without a word: refused."""
    result = run("status", tmp_path, "--uid", "s1", "--uid", "s2")
    assert result.exit_code == 2
    assert "--uid is given 2 times" in result.stderr


def test_a_directory_of_checkpoints_that_is_not_there(tmp_path: Path) -> None:
    """It is named as what it is, and not as the base."""
    result = run("status", tmp_path, "--checkpoint-dir", tmp_path / "nope")
    assert result.exit_code == 2
    assert "the directory of checkpoints" in result.stderr


def test_a_bucket_without_a_file_is_named(tmp_path: Path) -> None:
    """A mistyped one is not told like an empty base."""
    seed_with_a_tail(tmp_path)
    assert "'nope'" in told("list", tmp_path, "--bucket", "nope")


def test_an_interruption_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while something is changed ends with 130 and says how to go on."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    seed_with_a_tail(tmp_path)
    monkeypatch.setattr(clean, "open_stores", interrupted)
    result = run("clean", tmp_path, "--apply")
    assert result.exit_code == 130
    assert "run again" in result.stderr


# Nothing is written but where a user said: the base, the directory of checkpoints, and that of a savepoint.

_ELSEWHERE = ("home", "temporary", "working")


def test_nothing_is_written_elsewhere(tmp_path: Path) -> None:
    """A sink that dies, and the verbs that mend it, leave home, temporary and working directory empty."""
    for name in _ELSEWHERE:
        (tmp_path / name).mkdir()
    base, state = tmp_path / "base", tmp_path / "state"
    environment = {**os.environ, "HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "temporary")}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"

    def die(counts: bool) -> None:
        os.environ.update(environment)
        os.chdir(tmp_path / "working")
        out = long_sink(base, checkpoint_dir=str(state)).local().open()
        out.write(batch(0, 4), position=4)
        if counts:
            out.checkpoint()
        os._exit(0)

    for counts in (False, True):
        assert in_child(lambda: die(counts)) == 0  # noqa: B023 - called at once
        age(tmp_path)
    for words in (["clean", base], ["recover", base], ["savepoint", "create", base, "--to", tmp_path / "savepoints"]):
        command = [sys.executable, "-m", "partfile", *map(str, words), "--checkpoint-dir", str(state), "--apply"]
        done = subprocess.run(
            command, env=environment, cwd=tmp_path / "working", capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"base", "state", "savepoints", *_ELSEWHERE}
    assert [path for name in _ELSEWHERE for path in (tmp_path / name).rglob("*")] == []
    assert {path.name for path in base.iterdir()} == {"bucket=b0", "bucket=b1", "_partfile"}
    assert [path.name for path in (base / "_partfile").iterdir()] == ["_quarantine"]
    assert len(finished_files(base)) == 2


# docs/CLI.md is what the code says, whole.


ROOT = Path(__file__).parents[2]


the_document = cache(reference)


def test_the_document_is_made_from_the_code() -> None:
    """docs/CLI.md is what ``make docs`` makes of this code."""
    assert (ROOT / "docs" / "CLI.md").read_text() == the_document(), "run make docs"


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_every_verb_with_a_document_is_in_it(name: str) -> None:
    """Each verb has a section with its example, and its JSON a table."""
    text, verb = the_document(), name.partition(" --")[0]
    section = text[text.index(f"\n## partfile {verb}\n") :]
    assert f"Example: `partfile {verb}" in section.partition("\n## ")[2].partition("\n## ")[0]
    assert f"`partfile {name}`: `{DOCUMENTS[name].model_fields['schema_name'].default}`, version 1" in text


def test_no_verb_is_left_out() -> None:
    """Every verb but cat, which prints what is in a part, has a JSON document."""
    command = get_command(app)
    names = {name for name in command.commands if name != "savepoint"}  # type: ignore[attr-defined]
    assert names - {"cat"} <= {name.partition(" ")[0] for name in DOCUMENTS}


def test_the_list_of_verbs_says_what_each_verb_says() -> None:
    """The list is printed before a verb is imported, so it has the first paragraph of the verb's own help."""
    own = {verb.name: " ".join((verb.loaded().help or "").split("\n\n")[0].split()) for verb in VERBS}
    assert {verb.name: verb.help for verb in VERBS} == own


def test_every_field_has_a_meaning() -> None:
    """No row of a table of JSON fields ends without one."""
    tables = the_document().partition("\n## JSON\n")[2]
    rows = [line for line in tables.splitlines() if line.startswith("| `")]
    assert len(rows) > 50
    assert [row for row in rows if row.endswith("|  |")] == []


@pytest.mark.parametrize(
    ("words", "told"),
    [("list e --limit 0", "--limit"), ("list e --bogus", "--bogus"), ("status", "PATH"), ("frob", "frob")],
)
def test_a_mistake_in_the_words_is_a_document_too(words: str, told: str) -> None:
    """A watch that reads JSON reads of its own mistake so, and the exit code is 2."""
    result = run(*words.split(), "--json")
    assert (result.exit_code, result.stdout) == (2, "")
    said = json.loads(result.stderr)
    assert (said["error"], said["exit_code"]) == ("ConfigError", 2)
    assert told in said["message"]
    assert run(*words.split()).exit_code == 2
