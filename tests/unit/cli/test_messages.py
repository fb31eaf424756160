"""What cannot be done is told with what is at fault, a hint what to do, and the options as a command has them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from changing import age, seed_with_orphans
from command_line import run
from life_cycle import everything

if TYPE_CHECKING:
    from pathlib import Path

_PYTHON = re.compile(r"\b[a-z]+(?:_[a-z]+)+=|=(?:True|False|None)\b|Settings: |Value error|\bTypeError\b")
"""Options in the words of the library, and what only its programmers understand."""
_NAMES = re.compile(r"\b(?:accept_missing|accept_newer|restore_from|checkpoint_dir|moved_from|storage_options)\b")

USAGE = [
    ("status {t}/none", "{t}/none"),
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
    ("savepoint create {t}/out --to {t}/file --apply --fence", "'{t}/file' is a file"),
    ("savepoint dispose {t}/out", "is not a savepoint"),
    ("savepoint list {t}/none", "{t}/none"),
    ("savepoint show {t}/out", "is no savepoint"),
    ("savepoint show {t}/file", "it is a file"),
    ("checkpoints {t}/out --savepoint-dir {t}/none", "{t}/none"),
]
REFUSED = [
    ("recover {t}/out --apply", "--fence"),
    ("clean {t}/out --apply --older-than 0s", "--fence"),
    ("recover {t}/out --apply --fence --plan odd", "the plan odd"),
    ("clean {t}/out --apply --fence --plan odd", "the plan odd"),
    ("recover {t}/empty --restore-from x", "could go back to 'x'"),
    ("recover {t}/lost --apply", "--accept-missing"),
    ("recover {t}/damaged", "--restore-from"),
    ("recover {t}/damaged --restore-from {t}/damaged/_partfile/life/chk-3", "--accept-newer"),
    ("clean {t}/damaged", "--restore-from"),
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
    links = (top / "damaged" / "_partfile" / "life").glob("chk-*/_metadata")
    max(links, key=lambda link: int(link.parent.name.removeprefix("chk-"))).write_bytes(b"garbage")
    (top / "file").write_text("x")
    (top / "empty").mkdir()
    return top


@pytest.mark.fault("H7")
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [(words, 2, said) for words, said in USAGE] + [(words, 1, said) for words, said in REFUSED],
)
def test_what_cannot_be_done_is_told_with_a_way_out(tree: Path, words: str, code: int, said: str) -> None:
    """H7: one message and one hint in the words of a command, no secret, and nothing is changed."""
    before = everything(tree)
    result = run(*(word.strip("'").format(t=tree) for word in words.split(" ")))
    told = result.stderr
    assert result.exit_code == code, f"{result.stdout}{told}"
    assert said.format(t=tree) in told
    assert told.startswith("partfile: ")
    assert re.search(r"^Hint: \S.*\.$", told, re.MULTILINE), told
    unquoted = re.sub(r"'[^']*'", "", told)
    assert not _PYTHON.search(unquoted), unquoted
    assert not _NAMES.search(unquoted), unquoted
    assert "secret" not in told.replace("may be secret", "").replace("secret, token", "")
    assert everything(tree) == before
