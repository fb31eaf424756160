"""The client with which readers open files on S3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from s3fs import S3FileSystem

from partfile.stores.s3.errors import Verdict, failure_of

if TYPE_CHECKING:
    from partfile.stores.s3.options import S3Options


class ReadingS3FileSystem(S3FileSystem):  # type: ignore[misc]  # s3fs has no types.
    """Says of a failure what a sink would say; that something is not there stays what s3fs makes of it."""

    async def _call_s3(self, method: str, *arguments: Any, **parameters: Any) -> Any:
        try:
            return await super()._call_s3(method, *arguments, **parameters)
        except Exception as error:
            failure = failure_of(error)
            if failure.verdict in {Verdict.MISSING, Verdict.UNKNOWN}:
                raise
            # s3fs hands the key over by one of two dictionaries.
            asked = {**(arguments[0] if arguments and isinstance(arguments[0], dict) else {}), **parameters}
            place = "/".join(str(asked[name]) for name in ("Bucket", "Key", "Prefix") if asked.get(name))
            raise failure.as_error("read", f"s3://{place}", reads=True) from error


def reading_client(options: S3Options) -> ReadingS3FileSystem:
    """A client for readers, of their own: it remembers no listing and asks again what is not answered."""
    return ReadingS3FileSystem(**options.client, skip_instance_cache=True, use_listings_cache=False)
