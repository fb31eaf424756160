"""``partfile verify --checksums``: a bit that has changed in a stage or an encoded file, and nothing else, is told."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

import pytest
from command_line import run, told, told_json, told_lines
from dead_sinks import crash_when_promised
from dead_stages import die_with_open_stages, die_with_rolled_stages
from life_cycle import batch, make_sink, run_to_the_end
from staged_streams import STAGED, pending_in, staged_sink, stages_in

from partfile.errors import NotReady
from partfile.recovery.inspect import verify as checksums
from partfile.recovery.inspect.content import open_known
from partfile.recovery.inspect.places import Place
from partfile.recovery.inspect.verify import verify
from partfile.stores.local.posix import PosixCalls
from partfile.stores.local.store import LocalStore
from partfile.testing.faults import FailAt, intercept

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.fault("S18")


def finish(base: Path) -> None:
    """Two encoded files, and their spent stages."""
    with staged_sink(base).local() as out:
        out.write(batch(0, 4), position=4)
        out.checkpoint()


def finished_in(base: Path) -> list[Path]:
    return sorted(base.glob("bucket=*/part-*"))


def promise(base: Path) -> None:
    """Encoded files that wait for their publication."""
    crash_when_promised(base, **STAGED)


def flip(path: Path, place: int) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[place] ^= 16
    path.write_bytes(data)


EACH = pytest.mark.parametrize(
    ("make", "found_in"),
    [
        (finish, finished_in),
        (promise, pending_in),
        (die_with_open_stages, stages_in),
        (die_with_rolled_stages, stages_in),
    ],
    ids=["finished", "pending", "open", "rolled"],
)


@EACH
def test_a_changed_bit_is_found(
    tmp_path: Path, make: Callable[[Path], None], found_in: Callable[[Path], list[Path]]
) -> None:
    """In each state of its life, by its name; only where it was asked for, since all bytes are read for it."""
    make(tmp_path)
    count = len(found_in(tmp_path))
    clean = told_json("verify", tmp_path, "--checksums", code=0)
    assert clean["checksums_compared"] == count > 0
    path = found_in(tmp_path)[0]
    flip(path, 200)
    report = told_json("verify", tmp_path, "--checksums", code=1)
    (error,) = (one for one in report["findings"] if one["severity"] == "error")
    assert error["code"] == "checksum-differs"
    assert error["path"].partition("/")[0] == path.parent.name
    assert error["checkpoint_id"] > 0
    assert "CRC-32" in error["message"]
    assert report["checksums_compared"] == count
    assert told_json("verify", tmp_path, code=0)["checksums_compared"] is None


@pytest.mark.parametrize("make", [die_with_open_stages, die_with_rolled_stages])
def test_what_no_checkpoint_vouches_for_may_be_anything(tmp_path: Path, make: Any) -> None:
    """The tail of a stage is read by nobody."""
    make(tmp_path)
    for path in stages_in(tmp_path):
        flip(path, -1)
    assert told_json("verify", tmp_path, "--checksums", code=0)["checksums_compared"] == 2


def test_parts_without_a_checksum_are_not_read(tmp_path: Path) -> None:
    """Those of row formats, which are checked by their length; and what a consumer has moved away."""
    run_to_the_end(make_sink(tmp_path / "text"))
    assert "checksums: compared=0" in told("verify", tmp_path / "text", "--checksums")
    finish(tmp_path / "moved")
    finished_in(tmp_path / "moved")[0].unlink()
    assert told_json("verify", tmp_path / "moved", "--checksums", code=0)["checksums_compared"] == 1


def test_only_the_sink_that_is_asked_for_is_read(tmp_path: Path) -> None:
    """Another one's damage is not its own."""
    finish(tmp_path)
    with staged_sink(tmp_path, uid="other").local() as out:
        out.write(batch(0, 4), position=4)
    report = told_json("verify", tmp_path, "--checksums", "--uid", "other", code=0)
    assert report["checksums_compared"] == 2
    assert told_json("verify", tmp_path, "--checksums", code=0)["checksums_compared"] == 4


def test_cat_tells_a_changed_bit_of_a_stage(tmp_path: Path) -> None:
    """After the rows, which are printed as they are read."""
    die_with_open_stages(tmp_path)
    path = stages_in(tmp_path)[0]
    (length,) = {one["valid_length"] for one in told_lines("list", tmp_path) if one["path"].endswith(path.name)}
    # Of the last row's text: every row decodes, and the last one is another.
    flip(path, length - 1)
    result = run("cat", tmp_path, str(path.relative_to(tmp_path)))
    assert result.exit_code == 1
    assert "row-0000" in result.stdout
    assert "row-0002" not in result.stdout
    assert "is not what was written" in result.stderr


@pytest.mark.parametrize("die", [die_with_open_stages, die_with_rolled_stages])
@pytest.mark.parametrize(("call", "number"), [("read_into", errno.EIO), ("open_existing", errno.EACCES)])
def test_a_stage_that_cannot_be_read_keeps_no_other_from_it(tmp_path: Path, die: Any, call: str, number: int) -> None:
    """It is told as an error, for it is waited for; so is all else that is found."""
    die(tmp_path)
    (tmp_path / "foreign").touch()
    fails = FailAt(1, OSError(number, "deliberate"), only={call})
    place = Place(str(tmp_path))
    checkpoints = place.open_checkpoints()
    assert checkpoints is not None
    with checkpoints, LocalStore(str(tmp_path), calls=intercept(PosixCalls(), fails)) as base:
        report = verify(place, base, checkpoints, None, lambda _files: None, checksums=True)
    (problem,) = report.errors
    assert problem.code == "part-unreadable"
    assert problem.path in {str(path.relative_to(tmp_path)) for path in stages_in(tmp_path)}
    assert os.strerror(number) in problem.message
    assert problem.hint
    assert report.checksums_compared == 1
    assert "foreign" in {one.code for one in report.findings}


@pytest.mark.parametrize(
    ("raised", "found"),
    [
        (PermissionError(errno.EACCES, "deliberate"), [("part-unreadable", "error")]),
        (NotReady("deliberate"), [("unreadable", "note")]),
        (FileNotFoundError("deliberate"), []),
    ],
)
def test_a_file_that_cannot_be_read_keeps_no_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: Exception, found: list[tuple[str, str]]
) -> None:
    """It is told, unless a consumer has moved it just now; who holds it open is waited for."""
    finish(tmp_path)
    names = [path.name for path in finished_in(tmp_path)]

    def fail(behind: Any, base: str, part: Any) -> Any:
        if part.handle.name == names[0]:
            raise raised
        return open_known(behind, base, part)

    monkeypatch.setattr(checksums, "open_known", fail)
    report = told_json("verify", tmp_path, "--checksums", code=int(("part-unreadable", "error") in found))
    assert [(one["code"], one["severity"]) for one in report["findings"]] == found
    assert report["checksums_compared"] == len(names) - 1
