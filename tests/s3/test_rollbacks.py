"""Going back to an older checkpoint on S3, also where what was sent since cannot be left out of the file."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from partfile.errors import RecoveryRefused
from partfile.stores.s3.store import S3Store
from partfile.stores.urls import S3Url
from support.s3.life import MIB, Stream, options_of

if TYPE_CHECKING:
    from support.servers.s3 import S3Server


pytestmark = pytest.mark.slow

BACK: dict[str, Any] = {"accept_newer": True, "retained_checkpoints": 9}
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


def _number(name: str) -> int:
    return int(name.removeprefix("chk-"))


@pytest.mark.parametrize("batch", [0, 2])
def test_going_back_loses_no_row(
    s3_server: S3Server, stream: Stream, batch: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Open parts go back; where that cannot be they stay, and their later rows come twice, as accept_newer says."""
    with caplog.at_level(logging.WARNING, "partfile"):
        stream.run_to_the_end(restore_from=checkpoints(stream)[batch], **BACK)
    is_stuck = s3_server.name == "radosgw" and batch == 0
    assert ("cannot take back" in caplog.text) is is_stuck
    doubled = range((batch + 1) * BATCH_ROWS, BATCHES * BATCH_ROWS) if is_stuck else range(0)
    assert stream.rows_seen() == Counter(range(stream.rows)) + Counter(doubled)


@pytest.mark.parametrize("batch", [0, 2])
def test_going_back_over_a_damaged_checkpoint_loses_no_row(s3_server: S3Server, stream: Stream, batch: int) -> None:
    """Nothing tells what was added since: what cannot go back is refused, before anything is changed."""
    chosen = checkpoints(stream)
    url, path = S3Url.of(stream.base), chosen[-1].removeprefix(f"{stream.base}/")
    key = url.key_of(f"{path}/_metadata")
    s3_server.filesystem().call_s3("put_object", Bucket=url.bucket, Key=key, Body=b"damaged")
    if s3_server.name == "radosgw" and batch == 0:
        with pytest.raises(RecoveryRefused, match=r"2 parts.*cannot be published"):
            stream.run_to_the_end(restore_from=chosen[batch], **BACK)
        assert stream.finished() == {}
        batch = 2
    stream.run_to_the_end(restore_from=chosen[batch], **BACK)
    stream.assert_exactly_once()
