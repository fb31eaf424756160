"""Secrets of storage_options on S3 are in nothing that is shown, raised, logged or stored."""

from __future__ import annotations

import logging
import traceback
from typing import TYPE_CHECKING

import pytest
from s3_faults import error, reset
from s3_life import MIB, Stream
from s3_proxy import S3Proxy
from s3_store_support import options_of, store_options

import partfile as pf
from partfile.errors import ConfigError, PartfileError
from partfile.stores.s3.store import S3Store

if TYPE_CHECKING:
    from s3_server import S3Server

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
