"""Going back to an older checkpoint on S3, also where what was sent since cannot be left out of the file."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from partfile.stores.s3.store import S3Store
from partfile.stores.urls import S3Url
from support.command_line import run
from support.s3.life import MIB, Stream, at, options_of

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result

    from support.servers.s3 import S3Server


pytestmark = pytest.mark.slow

BATCHES, BATCH_ROWS = 4, 6


@pytest.fixture(params=["moto", "radosgw"])
def s3_server(request: pytest.FixtureRequest) -> S3Server:
    """The servers on which parts stay open: one leaves upload parts out at completion, the other refuses that."""
    server: S3Server = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def stream(s3_server: S3Server) -> Stream:
    """Two open parts that got 9 MiB at each of four checkpoints; the process is gone."""
    stream = Stream(f"s3://{s3_server.bucket()}/base", options_of(s3_server), 28, 3 * MIB, BATCH_ROWS)
    out = stream.sink(retained_checkpoints=9).local().open()
    for number in range(BATCHES):
        out.write(stream.batch(number * BATCH_ROWS, BATCH_ROWS), position=(number + 1) * BATCH_ROWS)
        out.checkpoint()
    out.close()
    return stream


def checkpoints(stream: Stream) -> list[str]:
    """The checkpoints of the batches, oldest first."""
    with S3Store(stream.base, stream.options) as store:
        names = [name for name in store.list_names("_partfile/life") if name.startswith("chk-")]
        checkpoints = sorted(
            (name for name in names if store.file_exists(f"_partfile/life/{name}/_metadata")), key=_number
        )
    return [f"{stream.base}/_partfile/life/{name}" for name in checkpoints[-BATCHES:]]


def go_back(server: S3Server, stream: Stream, tmp_path: Path, chosen: str) -> Result:
    """Take the sink back to an older checkpoint, whatever came later."""
    words = ("--restore-from", chosen, "--accept-newer", "--apply", "--fence")
    return run("recover", *at(server, stream.base, tmp_path), *words)


def _number(name: str) -> int:
    return int(name.removeprefix("chk-"))


@pytest.mark.parametrize("batch", [0, 2])
def test_going_back_loses_no_row(s3_server: S3Server, stream: Stream, batch: int, tmp_path: Path) -> None:
    """Open parts go back; where that cannot be they stay, and their later rows come twice, as the command says."""
    done = go_back(s3_server, stream, tmp_path, checkpoints(stream)[batch])
    assert done.exit_code == 0, done.stderr
    stream.run_to_the_end()
    is_stuck = s3_server.name == "radosgw" and batch == 0
    assert ("cannot be cut back" in done.stderr) is is_stuck
    doubled = range((batch + 1) * BATCH_ROWS, BATCHES * BATCH_ROWS) if is_stuck else range(0)
    assert stream.rows_seen() == Counter(range(stream.rows)) + Counter(doubled)


@pytest.mark.parametrize("batch", [0, 2])
def test_going_back_over_a_damaged_checkpoint_loses_no_row(
    s3_server: S3Server, stream: Stream, batch: int, tmp_path: Path
) -> None:
    """Nothing tells what was added since: what cannot go back is refused, before anything is changed."""
    chosen = checkpoints(stream)
    url, path = S3Url.of(stream.base), chosen[-1].removeprefix(f"{stream.base}/")
    key = url.key_of(f"{path}/_metadata")
    s3_server.filesystem().call_s3("put_object", Bucket=url.bucket, Key=key, Body=b"damaged")
    if s3_server.name == "radosgw" and batch == 0:
        refused = go_back(s3_server, stream, tmp_path, chosen[batch])
        assert refused.exit_code == 1
        assert re.search(r"2 parts.*cannot be published", refused.stderr)
        assert stream.finished() == {}
        batch = 2
    done = go_back(s3_server, stream, tmp_path, chosen[batch])
    assert done.exit_code == 0, done.stderr
    stream.run_to_the_end()
    stream.assert_exactly_once()
