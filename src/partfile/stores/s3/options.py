"""The ``storage_options`` of S3."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator

from partfile.errors import page_url
from partfile.stores.options import refused

if TYPE_CHECKING:
    from collections.abc import Mapping


LEAST_PIECE_BYTES = 5 << 20
"""Every upload part but the last has at least this many bytes, says S3."""
_MOST_PIECE_BYTES = 1 << 30
_ENDPOINT = re.compile(r"^https?://[^/?#\s]+", re.IGNORECASE)


class S3Options(BaseModel):
    """Options of the S3 client. All have defaults: region and credentials are looked for as every AWS client does.

    What is passed here travels to Spark's tasks; credentials that a task finds by itself (environment, profile,
    instance role) are better left out.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    endpoint_url: str | None = None
    """Server to talk to; None is AWS."""
    region: Annotated[str, Field(min_length=1)] | None = None
    """Region of the S3 bucket; None takes the environment's."""
    path_style: bool = False
    """Put the S3 bucket into the path of requests instead of the host name, as most other servers need it."""
    anon: bool = False
    """Send no credentials at all."""
    key: str | None = Field(default=None, repr=False)
    """Access key id; None finds credentials in the environment."""
    secret: SecretStr | None = None
    """Secret access key."""
    token: SecretStr | None = None
    """Session token."""
    profile: str | None = None
    """Named profile of the AWS configuration files."""
    server_side_encryption: Literal["AES256", "aws:kms", "aws:kms:dsse"] | None = None
    """Encryption of everything that is written; None leaves it to the S3 bucket."""
    sse_kms_key_id: str | None = None
    """Key for ``aws:kms``; None takes the S3 bucket's."""
    acl: str | None = None
    """Canned ACL of finished files; None lets the owner alone, or what the S3 bucket says."""
    storage_class: str | None = None
    """Storage class of finished files; what is staged stays in the standard one."""
    requester_pays: bool = False
    """Agree to pay for requests to an S3 bucket of another account."""
    checksum: Literal["when_supported", "when_required"] = "when_supported"
    """Whether requests carry a CRC that the server checks. ``when_required`` is for servers that refuse them."""
    ca_file: str | None = None
    """Certificates to trust; None takes the system's."""
    call_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 60
    """Longest wait for one call, in seconds, its retries included, while nothing moves. A shorter one gives up on a
    server that only restarts; a longer one lets a batch hang."""
    attempt_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 20
    """Longest time without a byte sent or received, in seconds, before a request is cancelled and sent again; one that
    moves fewer than 32 KiB a second beyond that is cancelled as well."""
    max_parallel_requests: Annotated[int, Field(ge=1, le=1000)] = 16
    """Requests of a process that are under way at once."""
    upload_part_bytes: Annotated[int, Field(ge=LEAST_PIECE_BYTES, le=_MOST_PIECE_BYTES)] = 8 << 20
    """Size of an upload part, in bytes; doubled with each thousand of them. Larger ones mean fewer requests and more
    memory for each part that is written to."""
    max_buffered_bytes: Annotated[int, Field(ge=1 << 20)] = 256 << 20
    """Bytes that the open parts of a store hold in the memory of one process between two checkpoints, roughly; beyond
    it those that hold most put theirs into side objects."""
    conditional_writes: bool | None = None
    """Whether the server honours If-None-Match on PUT; None finds out by trying, once a process."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.key is None) != (self.secret is None):
            raise ValueError("key and secret go together")
        if self.anon and (self.key or self.profile):
            raise ValueError("anon sends no credentials, so leave key, secret and profile out")
        if "@" in (self.endpoint_url or ""):
            raise ValueError("endpoint_url names a user; pass key and secret instead")
        if self.endpoint_url is not None and not _ENDPOINT.match(self.endpoint_url):
            raise ValueError("endpoint_url has to be http:// or https:// and a host, as in http://127.0.0.1:9000")
        if self.ca_file is not None and not Path(self.ca_file).is_file():
            raise ValueError(f"ca_file={self.ca_file!r} is not a file on this host")
        if self.sse_kms_key_id is not None and self.server_side_encryption not in {"aws:kms", "aws:kms:dsse"}:
            raise ValueError("sse_kms_key_id needs server_side_encryption='aws:kms'")
        return self

    @classmethod
    def of(cls, storage_options: Mapping[str, object] | None) -> S3Options:
        """Check what the user passed.

        Raises:
            ConfigError: An option is unknown or cannot be used; its value is not shown, for it may be secret.
        """
        try:
            return cls.model_validate(dict(storage_options or {}))
        except ValidationError as error:
            raise refused("S3", cls, error, hint=f"Each option: {page_url('S3', 'set-up')}") from None

    @property
    def sends_checksums(self) -> bool:
        """Whether everything that is written goes with its CRC-32."""
        return self.checksum == "when_supported"

    @property
    def encryption(self) -> dict[str, str]:
        """Parameters of every request that writes an object or begins an upload."""
        return _given(ServerSideEncryption=self.server_side_encryption, SSEKMSKeyId=self.sse_kms_key_id)

    @property
    def finished(self) -> dict[str, str]:
        """Parameters of every request that makes a finished file or begins its upload."""
        return _given(ACL=self.acl, StorageClass=self.storage_class)

    @property
    def client(self) -> dict[str, Any]:
        """Arguments of s3fs; holds secrets, for the client alone."""
        s3: dict[str, object] = {"addressing_style": "path" if self.path_style else "auto"}
        if self.sends_checksums and not (self.endpoint_url or "").lower().startswith("http:"):
            # TLS and our checksum protect the body; hashing it for the signature would only cost.
            s3["payload_signing_enabled"] = False
        return {
            **_given(
                endpoint_url=self.endpoint_url,
                key=self.key,
                secret=self.secret.get_secret_value() if self.secret else None,
                token=self.token.get_secret_value() if self.token else None,
                profile=self.profile,
            ),
            "anon": self.anon,
            "requester_pays": self.requester_pays,
            "client_kwargs": _given(region_name=self.region, verify=self.ca_file),
            "config_kwargs": {
                "s3": s3,
                # Retrying is ours, with one deadline over all of it.
                "retries": {"max_attempts": 0},
                "connect_timeout": min(self.attempt_timeout_s, 10),
                "read_timeout": self.attempt_timeout_s,
                "max_pool_connections": self.max_parallel_requests,
                "request_checksum_calculation": self.checksum,
                "response_checksum_validation": self.checksum,
            },
        }


def _given(**parameters: str | None) -> dict[str, str]:
    return {name: value for name, value in parameters.items() if value is not None}
