"""Measures how fast one large part gets to S3: by partfile's store, and by boto3."""

from __future__ import annotations

import io
import secrets
import time
from typing import TYPE_CHECKING

import boto3
import numpy as np
from boto3.s3.transfer import TransferConfig
from botocore.config import Config

from partfile.stores.registry import open_store
from partfile.testing.store import new_part
from support.s3.server import REGION

if TYPE_CHECKING:
    from typing import Any

    from places import S3Place

PART_BYTES, LEAST_PART_BYTES = 256 << 20, 64 << 20
WRITE_BYTES = 1 << 20
"""How much a writer hands over at once."""
THREADS = 4


class Uploads:
    """One part's bytes, sent in two ways; each object is deleted outside the time that is measured.

    Args:
        place: The server.
        size_bytes: Length of the part.
    """

    def __init__(self, place: S3Place, size_bytes: int) -> None:
        self._place = place
        self._data = np.random.default_rng(size_bytes).bytes(size_bytes)
        self._boto3: Any = boto3.client(
            "s3",
            endpoint_url=place.server.endpoint_url,
            aws_access_key_id=place.server.access_key,
            aws_secret_access_key=place.server.secret_key,
            region_name=REGION,
            config=Config(s3={"addressing_style": "path"}),
        )

    def by_partfile(self) -> float:
        """Seconds to create, write, close and publish one part."""
        handle, base = new_part(name=f"part-{secrets.token_hex(4)}"), f"s3://{self._place.bucket}/uploads"
        with open_store(base, self._place.storage_options) as store:
            _ = store.capabilities  # Asked once a process.
            view, began_s = memoryview(self._data), time.monotonic()
            stream = store.create(handle)
            for start in range(0, len(view), WRITE_BYTES):
                stream.write(view[start : start + WRITE_BYTES])
            store.publish(stream.close_for_commit(), "auto")
            seconds = time.monotonic() - began_s
        self._check_and_delete(f"uploads/{handle.path_of(handle.name)}")
        return seconds

    def by_boto3(self) -> float:
        """Seconds of ``upload_fileobj`` with four threads."""
        key, began_s = f"boto3-{secrets.token_hex(4)}", time.monotonic()
        config = TransferConfig(max_concurrency=THREADS)
        self._boto3.upload_fileobj(io.BytesIO(self._data), self._place.bucket, key, Config=config)
        seconds = time.monotonic() - began_s
        self._check_and_delete(key)
        return seconds

    def _check_and_delete(self, key: str) -> None:
        size = self._boto3.head_object(Bucket=self._place.bucket, Key=key)["ContentLength"]
        if size != len(self._data):
            raise SystemExit(f"{key} has {size} bytes: the figures mean nothing")
        self._boto3.delete_object(Bucket=self._place.bucket, Key=key)
