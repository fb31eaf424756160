"""What the demo on S3 stands on: a server that goes and comes back in the same place, and uploads that are counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from botocore.exceptions import BotoCoreError
from s3_server import client_without_retries, storage_options
from s3_servers import MotoServer

from flights_s3 import ProxiedMoto

if TYPE_CHECKING:
    from s3_server import S3Server


def test_the_proxy_that_stands_for_moto_comes_back_with_its_data(moto: S3Server) -> None:
    """While it is away nobody answers; afterwards everything is where it was."""
    assert isinstance(moto, MotoServer)
    endpoint, bucket = ProxiedMoto(moto), moto.bucket()
    client = client_without_retries(storage_options(endpoint.endpoint_url, moto.access_key, moto.secret_key))
    client.call_s3("put_object", Bucket=bucket, Key="key", Body=b"body")
    endpoint.kill()
    with pytest.raises(BotoCoreError):
        client.call_s3("head_object", Bucket=bucket, Key="key")
    endpoint.start()
    assert client.cat_file(f"{bucket}/key") == b"body"
    endpoint.kill()


def test_uploads_are_pending_until_they_are_completed_or_aborted(s3_server: S3Server) -> None:
    """An upload that nobody names is what the demo must not leave."""
    client, bucket = s3_server.filesystem(), s3_server.bucket()
    assert s3_server.pending_uploads(bucket) == []
    upload = client.call_s3("create_multipart_upload", Bucket=bucket, Key="key")["UploadId"]
    assert [one["UploadId"] for one in s3_server.pending_uploads(bucket)] == [upload]
    client.call_s3("abort_multipart_upload", Bucket=bucket, Key="key", UploadId=upload)
    assert s3_server.pending_uploads(bucket) == []
