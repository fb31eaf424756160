"""Permissions and secrets on S3: what docs/S3.md grants is enough, and no secret is shown."""

from __future__ import annotations

import json
import logging
import re
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import partfile as pf
from partfile.errors import ConfigError, NotApplied, NotReady, PartfileError
from partfile.stores.s3.store import S3Store
from partfile.testing.store import new_part
from support.s3.life import MIB, Stream, options_of, store_options
from support.s3.proxy import S3Proxy, error, reset

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.s3.server import S3Server


# Which permission of AWS's policies each operation of S3 needs.

ACTIONS = {
    "PutObject": "s3:PutObject",
    "CreateMultipartUpload": "s3:PutObject",
    "UploadPart": "s3:PutObject",
    "CompleteMultipartUpload": "s3:PutObject",
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
    "ListParts": "s3:ListMultipartUploadParts",
    "GetObject": "s3:GetObject",
    "HeadObject": "s3:GetObject",
    "DeleteObject": "s3:DeleteObject",
    "DeleteObjects": "s3:DeleteObject",
    "ListObjectsV2": "s3:ListBucket",
    "HeadBucket": "s3:ListBucket",
    "GetBucketVersioning": "s3:GetBucketVersioning",
    "GetBucketLifecycleConfiguration": "s3:GetLifecycleConfiguration",
}
"""By operation, as AWS documents it."""


# A sink on S3 with few permissions: what docs/S3.md grants is enough, and it commits without leave to delete.

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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("row_bytes", [10, 3 * MIB])
@pytest.mark.fault("F4")
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


@pytest.mark.slow
def test_without_what_is_optional_all_is_committed(moto: S3Server, proxy: S3Proxy) -> None:
    """Who may not look at the S3 bucket's settings is not warned of them, and goes on."""
    assert granted() > OPTIONAL
    for operation, action in ACTIONS.items():
        if action in OPTIONAL:
            proxy.inject(DENIED, operation=operation, times=None)
    crash_and_go_on(stream_on(proxy, moto, 3 * MIB))


@pytest.mark.slow
@pytest.mark.parametrize("code", ["AccessDenied", "ExpiredToken"])
@pytest.mark.parametrize("operation", ["UploadPart", "CompleteMultipartUpload", "PutObject", "CreateMultipartUpload"])
@pytest.mark.fault("N6")
def test_credentials_that_end_in_the_middle(moto: S3Server, proxy: S3Proxy, operation: str, code: str) -> None:
    """N6: it is known that nothing was done, no reader sees anything, and with credentials again the stream goes on."""
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
        with pytest.raises(NotReady, match="2 parts not published"):
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


# Secrets of storage_options on S3 are in nothing that is shown, raised, logged or stored.

SECRETS = {"secret": "the-secret-access-key", "token": "the-session-token"}


def shows_a_secret(text: str) -> bool:
    """Whether any of the secrets is in it."""
    return any(secret in text for secret in SECRETS.values())


def test_nothing_that_is_stored_logged_or_returned_has_a_secret(
    moto: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Objects with their metadata, uploads, state, progress, logs of partfile, and the repr of everything."""
    bucket = moto.bucket()
    options = store_options(moto, **SECRETS)
    stream = Stream(f"s3://{bucket}/base", options_of(moto))
    sink = pf.FileSink(stream.base, uid="u", format="text", bucketer=pf.HiveBucketer("bucket"), storage_options=options)
    shown = [repr(sink), repr(sink.settings), str(sink.settings)]
    with caplog.at_level(logging.DEBUG, "partfile"):
        out = sink.local().open()
        out.write(stream._replace(row_bytes=6 * MIB).batch(0, 3))
        shown += [repr(out), repr(out.checkpoint())]
        files = moto.filesystem()
        for found in files.call_s3("list_objects_v2", Bucket=bucket)["Contents"]:
            shown.append(repr(files.call_s3("head_object", Bucket=bucket, Key=found["Key"])))
            if found["Size"] < MIB:
                shown.append(files.cat_file(f"{bucket}/{found['Key']}").decode(errors="replace"))
        out.finish()
    assert caplog.records
    assert len(shown) > 8
    assert not shows_a_secret("\n".join([*shown, caplog.text]))


@pytest.mark.parametrize("fault", [error(403, "SignatureDoesNotMatch"), error(400, "Whatever"), reset()])
def test_no_error_has_a_secret(moto: S3Server, fault: object) -> None:
    """Neither its text, nor its hint, nor its chain of causes."""
    with (
        S3Proxy(moto) as proxy,
        S3Store(f"s3://{moto.bucket()}/x", options_of(proxy, call_timeout_s=0.3, **SECRETS)) as store,
    ):
        proxy.inject(fault, times=None)  # type: ignore[arg-type]
        for ask in (lambda: store.create_file("x", b""), lambda: store.read_file("x", 1), lambda: store.list_names("")):
            with pytest.raises(PartfileError) as raised:
                ask()
            assert not shows_a_secret("".join(traceback.format_exception(raised.value)) + raised.value.hint)


def test_an_option_that_is_refused_is_not_shown() -> None:
    """What stands in the wrong place may be a secret."""
    with pytest.raises(ConfigError) as raised:
        pf.read("s3://bucket/x", storage_options={"client_kwargs": SECRETS})
    assert not shows_a_secret(str(raised.value))
    assert "client_kwargs" in str(raised.value)
