"""A sink on S3 with few permissions: what docs/S3.md grants is enough, and it commits without leave to delete."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from s3_faults import error
from s3_life import MIB, Stream
from s3_policy import ACTIONS
from s3_proxy import S3Proxy
from s3_store_support import options_of

from partfile.errors import NotApplied, NotReady
from partfile.stores.s3.store import S3Store
from partfile.testing.store import new_part

if TYPE_CHECKING:
    from collections.abc import Iterator

    from s3_server import S3Server

DOCUMENT = Path(__file__).parents[2] / "docs" / "S3.md"
OPTIONAL = {"s3:DeleteObject", "s3:GetLifecycleConfiguration", "s3:GetBucketVersioning"}
"""What docs/S3.md says may be left out."""
DENIED = error(403, "AccessDenied")


@pytest.fixture
def proxy(moto: S3Server) -> Iterator[S3Proxy]:
    """A proxy in front of the server that honours every precondition; it stands for a policy."""
    with S3Proxy(moto) as proxy:
        yield proxy


def granted() -> set[str]:
    """The permissions in the policy of docs/S3.md."""
    (block,) = re.findall(r"```json\n(.*?)```", DOCUMENT.read_text(), flags=re.DOTALL)
    statements = json.loads(block)["Statement"]
    return {action for statement in statements for action in statement["Action"]}


def stream_on(proxy: S3Proxy, server: S3Server, row_bytes: int) -> Stream:
    """Two parts over six checkpoints: side objects, and uploads where rows are long."""
    return Stream(f"s3://{server.bucket()}/base", options_of(proxy), rows=6, row_bytes=row_bytes, rows_a_checkpoint=1)


def crash_and_go_on(stream: Stream) -> None:
    """Leave parts open, restore, end, restore what has ended."""
    out = stream.sink().local().open()
    out.write(stream.batch(0, 2), position=2)
    out.checkpoint()
    out.close()
    stream.run_to_the_end()
    stream.run_to_the_end()
    stream.assert_exactly_once()


def test_every_request_of_a_life_is_granted(moto: S3Server, proxy: S3Proxy) -> None:
    """The policy names exactly what is asked for, discarding an orphan included."""
    for row_bytes in (10, 3 * MIB):
        crash_and_go_on(stream_on(proxy, moto, row_bytes))
    with S3Store(f"s3://{moto.bucket()}/base", options_of(proxy)) as store:
        part = store.create(new_part())
        part.write(bytes(6 * MIB))
        assert store.discard(part.persist())
    asked = {ACTIONS[exchange.request.operation] for exchange in proxy.exchanges}
    assert asked == granted()


@pytest.mark.parametrize("row_bytes", [10, 3 * MIB])
@pytest.mark.fault("S4")
def test_without_leave_to_delete_all_is_committed(
    moto: S3Server, proxy: S3Proxy, row_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Staged objects and old checkpoints stay behind; a warning says so, and no row is lost or doubled."""
    for operation in ("DeleteObject", "DeleteObjects"):
        proxy.inject(DENIED, operation=operation, times=None)
    with caplog.at_level(logging.WARNING, "partfile"):
        crash_and_go_on(stream_on(proxy, moto, row_bytes))
    assert proxy.count()["DeleteObjects"] > 0
    assert "stay" in caplog.text


def test_without_what_is_optional_all_is_committed(moto: S3Server, proxy: S3Proxy) -> None:
    """Who may not look at the S3 bucket's settings is not warned of them, and goes on."""
    assert granted() > OPTIONAL
    for operation, action in ACTIONS.items():
        if action in OPTIONAL:
            proxy.inject(DENIED, operation=operation, times=None)
    crash_and_go_on(stream_on(proxy, moto, 3 * MIB))


@pytest.mark.parametrize("code", ["AccessDenied", "ExpiredToken"])
@pytest.mark.parametrize("operation", ["UploadPart", "CompleteMultipartUpload", "PutObject", "CreateMultipartUpload"])
@pytest.mark.fault("N6")
def test_credentials_that_end_in_the_middle(moto: S3Server, proxy: S3Proxy, operation: str, code: str) -> None:
    """N6: it is known that nothing was done, nobody sees anything, and with credentials again the stream goes on."""
    stream = stream_on(proxy, moto, 3 * MIB)
    out = stream.sink().local().open()
    key = "*/bucket=*" if operation == "CompleteMultipartUpload" else "*"
    injection = proxy.inject(error(403, code), operation=operation, key=key, times=None)

    def write_and_commit() -> None:
        out.write(stream.batch(0, 6), position=6)
        out.checkpoint()

    if operation == "CompleteMultipartUpload":
        # What cannot be published stays owed, and the checkpoint stands.
        write_and_commit()
        with pytest.raises(NotReady, match="2 of its parts not be published"):
            out.finish()
    else:
        with pytest.raises(NotApplied, match=code):
            write_and_commit()
    out.close()
    assert injection.struck.is_set()
    proxy.heal()
    assert stream.finished() == {}
    stream.run_to_the_end()
    stream.assert_exactly_once()
