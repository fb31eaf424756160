"""What servers that no test can run refuse, by their documentation: requests as usual, with that rule before them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from botocore.exceptions import ClientError

from partfile.stores.s3.client import S3Calls

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partfile.stores.s3.handle import Piece


class AwsCalls(S3Calls):
    """AWS wants numbers from 1 on without a gap where upload parts have checksums of their own.

    Source: the API reference of CompleteMultipartUpload, ``CompletedPart.PartNumber``, as of botocore 1.43.
    """

    def complete_upload(self, key: str, upload: str, pieces: Sequence[Piece], *, if_absent: bool) -> None:
        """Refuse what AWS refuses."""
        numbers = [piece.number for piece in pieces]
        if any(piece.crc32 is not None for piece in pieces) and numbers != list(range(1, len(numbers) + 1)):
            raise refusal("InvalidPartOrder")
        super().complete_upload(key, upload, pieces, if_absent=if_absent)


class RefusedCompletions(S3Calls):
    """A server that refuses every completion, with ``code``."""

    code: ClassVar[str]

    def complete_upload(self, *_arguments: object, **_keywords: object) -> None:
        """Refuse it."""
        raise refusal(self.code)


class DisabledKey(RefusedCompletions):
    """AWS when the KMS key of an upload is disabled, which can be undone."""

    code = "KMS.DisabledException"


class InvalidParts(RefusedCompletions):
    """A server that has lost something."""

    code = "InvalidPart"


def refusal(code: str) -> OSError:
    """A 400 as s3fs raises it."""
    response = {"Error": {"Code": code, "Message": "as documented"}, "ResponseMetadata": {"HTTPStatusCode": 400}}
    error = OSError(22, code)
    error.__cause__ = ClientError(response, "CompleteMultipartUpload")
    return error
