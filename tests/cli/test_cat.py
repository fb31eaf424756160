"""``partfile cat`` prints what counts of a part, wherever it is in its life, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import partfile as pf
from support.files.trees import HALF, KINDS, ROWS, rows, sidecars, write_tree
from support.processes.command_line import run, told
from support.sinks.dead import crash_when_promised
from support.sinks.life_cycle import finished_files, seed_with_a_tail

if TYPE_CHECKING:
    from pathlib import Path


def staged(base: Path, bucket: str = "bucket=b0") -> str:
    """The path of the one staged file of a bucket."""
    (path,) = (base / bucket).glob("_part-*")
    return str(path.relative_to(base))


def test_an_open_part_ends_at_its_valid_length(tmp_path: Path) -> None:
    """Rows beyond what the checkpoint vouches for are not printed, whichever name the part is called by."""
    seed_with_a_tail(tmp_path)
    name = staged(tmp_path)
    final = name.replace("/_", "/").rpartition(".txt")[0] + ".txt"
    pending = name.removesuffix("in-progress") + "pending"
    for called in (name, pending, final, str(tmp_path / name)):
        assert told("cat", tmp_path, called) == "row-0000\nrow-0002\n"


def test_a_part_may_be_named_as_a_shell_completes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the working directory, be it above the base, in a bucket or beside it; also by a link, and to any name."""
    base = tmp_path / "a:out"
    seed_with_a_tail(base)
    (tmp_path / "link").symlink_to(base)
    (tmp_path / "beside").mkdir()
    name = staged(base).rpartition("/")[2]
    final = f"{name[1:].rpartition('.txt')[0]}.txt"
    for directory, path, prefixes in [
        (tmp_path, "a:out", ("a:out/bucket=b0", "./a:out/bucket=b0", "link/bucket=b0", "bucket=b0")),
        (tmp_path / "beside", "../a:out", ("../a:out/bucket=b0", "../link/bucket=b0")),
        (base, ".", ("bucket=b0", "./bucket=b0", "../a:out/bucket=b0")),
        (base / "bucket=b0", "..", (".", "bucket=b0", "../bucket=b0")),
    ]:
        monkeypatch.chdir(directory)
        for prefix in prefixes:
            for called in (name, final):
                where = f"./{path}" if path.startswith("a:") else path
                assert told("cat", where, f"{prefix}/{called}") == "row-0000\nrow-0002\n"


def test_what_is_there_relative_to_the_base_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though from the working directory another file of the base has the same path."""
    with pf.FileSink(tmp_path / "out", uid="p", format="text").local() as out:
        out.write(pa.table({"row": ["finished"]}))
    (tmp_path / "out" / "out").mkdir()
    (tmp_path / "out" / "x.txt").write_text("from the working directory\n")
    monkeypatch.chdir(tmp_path)
    assert told("cat", "out", "out/x.txt") == "from the working directory\n"
    (tmp_path / "out" / "out" / "x.txt").write_text("from the base\n")
    assert told("cat", "out", "out/x.txt") == "from the base\n"
    (tmp_path / "elsewhere.txt").write_text("none of the base")
    assert run("cat", "out", "elsewhere.txt").exit_code == 2
    assert run("cat", "out", "../elsewhere.txt").exit_code == 2


def test_a_pending_part_is_printed(tmp_path: Path) -> None:
    """A part that is promised is printed under the name that it has."""
    crash_when_promised(tmp_path)
    name = min((tmp_path / "bucket=b0").glob("_part-*.pending"))
    assert told("cat", tmp_path, f"bucket=b0/{name.name}") == name.read_text()


def test_a_file_in_the_way_of_a_part_is_printed_as_readers_see_it(tmp_path: Path) -> None:
    """By the final name, which another program has taken; by its own name the part is printed."""
    crash_when_promised(tmp_path)
    own = staged(tmp_path)
    final = own.replace("/_", "/").rpartition(".txt")[0] + ".txt"
    assert told("cat", tmp_path, final) == told("cat", tmp_path, own)
    (tmp_path / final).write_text("hello\n")
    assert told("cat", tmp_path, final) == "hello\n"
    assert told("cat", tmp_path, own) == (tmp_path / own).read_text() != "hello\n"


@pytest.mark.parametrize(("format", "compression"), [kind for kind in KINDS if kind[0] == "text"])
def test_a_finished_part_ends_where_its_sidecar_says(tmp_path: Path, format: str, compression: str | None) -> None:
    """Text is decompressed, a tail beyond the sidecar is left out; ``--raw`` shows stored bytes."""
    write_tree(tmp_path, format, compression)
    lines: list[str] = []
    for sidecar in sidecars(tmp_path):
        part = str(sidecar.relative_to(tmp_path)).replace("/_", "/").removesuffix(".valid-length")
        raw = run("cat", tmp_path, part, "--raw").stdout_bytes
        assert raw == (tmp_path / part).read_bytes()[: int(sidecar.read_text())]
        lines += run("cat", tmp_path, part).stdout_bytes.decode().split("\n")[:-1]
    assert sorted(lines) == sorted(text for _, text, _ in rows()[:HALF])
    assert HALF < ROWS


def test_parquet_is_printed_as_json_lines(tmp_path: Path) -> None:
    """Each row of a Parquet part is one line of JSON; ``--raw`` gives the file."""
    with pf.FileSink(tmp_path, uid="p", format="parquet").local() as out:
        out.write(pa.table({"id": [1, 2], "text": ["a", None]}))
    (name,) = finished_files(tmp_path)
    assert [json.loads(line) for line in told("cat", tmp_path, name).splitlines()] == [
        {"id": 1, "text": "a"},
        {"id": 2, "text": None},
    ]
    assert run("cat", tmp_path, name, "--raw").stdout_bytes == (tmp_path / name).read_bytes()


@pytest.mark.parametrize("format", ["parquet", "orc", "staged parquet"])
def test_rows_are_printed_as_a_sink_of_json_writes_them(tmp_path: Path, format: str) -> None:
    """So that what was rescued can be loaded: bytes as base64, instants in UTC, maps as objects."""
    name, is_staged = format.rpartition(" ")[2], " " in format
    table = pa.table(
        {
            "bin": [b"\x01\xff", None],
            "at": pa.array([1, None], pa.timestamp("ns", "UTC")),
            "amount": pa.array(["1.20", None]).cast(pa.decimal128(5, 2)),
            "tags": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
        }
    )
    with pf.FileSink(tmp_path / "json", uid="p", format="json").local() as out:
        out.write(table)
    (lines,) = finished_files(tmp_path / "json")
    out = pf.FileSink(tmp_path / "out", uid="p", format=name).local().open()
    out.write(table)
    out.checkpoint()
    if is_staged:
        out.close()
        (path,) = (tmp_path / "out").glob("_part-*")
    else:
        out.finish()
        (path,) = (tmp_path / "out").glob("part-*")
    assert told("cat", tmp_path / "out", path.name) == (tmp_path / "json" / lines).read_text()


def test_nothing_of_an_orphan_is_printed(tmp_path: Path) -> None:
    """A staged file that no checkpoint names holds rows that do not count; that is refused with 1."""
    seed_with_a_tail(tmp_path)
    name = staged(tmp_path)
    orphan = name.replace(name.split(".")[2], "d" * 32)
    (tmp_path / orphan).write_bytes(b"row-9999\n")
    result = run("cat", tmp_path, orphan)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "vouches" in result.stderr


def test_a_part_that_is_too_short_is_an_error(tmp_path: Path) -> None:
    """A part with fewer bytes than the checkpoint vouches for is not printed as if it were whole."""
    seed_with_a_tail(tmp_path)
    with (tmp_path / staged(tmp_path)).open("r+b") as file:
        file.truncate(10)
    result = run("cat", tmp_path, staged(tmp_path))
    assert result.exit_code == 1
    assert "18 were committed" in result.stderr


@pytest.mark.parametrize("part", ["no/such", "bucket=b0", "_partfile/life/chk-1/_metadata", "../x", "/etc/passwd"])
def test_what_is_no_part_is_usage(tmp_path: Path, part: str) -> None:
    """A name that is none of a part, or leaves the base, ends with 2."""
    seed_with_a_tail(tmp_path)
    result = run("cat", tmp_path, part)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "partfile list " in result.stderr


def test_a_reader_that_goes_ends_it(tmp_path: Path) -> None:
    """``| head`` of a large part ends quietly with 141."""
    with pf.FileSink(tmp_path, uid="big", format="text").local() as out:
        out.write(pa.table({"row": [f"{number:099d}" for number in range(50_000)]}))
    (name,) = finished_files(tmp_path)
    script = f"{sys.executable} -m partfile cat {tmp_path} {name} | head -n 1; echo ${{PIPESTATUS[0]}}"
    done: Any = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout == f"{0:099d}\n141\n"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("x.parquet", b"PAR1garbagePAR1"),
        ("x.json.gz", b"\x1f\x8bgarbage"),
        ("y.json.gz", b"no gzip"),
        ("x.json.zst", b"garbage"),
    ],
)
def test_a_damaged_file_is_a_finding(tmp_path: Path, name: str, data: bytes) -> None:
    """Neither a mistake of this program nor of the store: 1, its name and what the decoder says; --raw prints it."""
    (tmp_path / name).write_bytes(data)
    result = run("cat", tmp_path, name)
    assert result.exit_code == 1
    assert f"{name!r} cannot be decoded" in result.stderr
    assert "unexpected" not in result.stderr
    assert run("cat", tmp_path, name, "--raw").stdout_bytes == data


def test_damaged_snappy_is_a_finding(tmp_path: Path) -> None:
    """What is whole is printed; then 1, and what is wrong with which file."""
    with pf.FileSink(tmp_path, uid="s", format="text", compression="snappy").local() as out:
        for row in ("first", "second"):
            out.write(pa.table({"row": [row]}))
            out.checkpoint()
    (name,) = finished_files(tmp_path)
    assert told("cat", tmp_path, name) == "first\nsecond\n"
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-1])
    result = run("cat", tmp_path, name)
    assert result.exit_code == 1
    assert f"{name!r} does not hold snappy as Hadoop frames it: it ends inside a block" in result.stderr
    assert "unexpected" not in result.stderr
