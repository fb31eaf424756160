"""What ``storage_options`` may hold for HDFS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator

from partfile.filesystems.storage_options import refused
from partfile.filesystems.webhdfs_addresses import web_address

if TYPE_CHECKING:
    from collections.abc import Mapping

_RETRY_PAUSE_MAX_MS = 2000


def _not_blank(value: str) -> str:
    if not value.strip():
        raise ValueError("it is empty; leave it out, or say what")
    return value


Named = Annotated[str, AfterValidator(_not_blank)]
"""What cannot be empty: hdfs-native would wait for long, or take something else instead."""

COORDINATOR_OPTIONS = frozenset({"http_address", "delegation_token", "ca_file", "truncate_timeout_s"})
"""Options for cutting parts, which coordinators do and tasks never."""


class HdfsOptions(BaseModel):
    """Options of the HDFS client. All have defaults: a cluster is found through ``HADOOP_CONF_DIR`` or the URL."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    config: dict[str, str] = Field(default_factory=dict, repr=False)
    """Hadoop properties; they win over the files in ``HADOOP_CONF_DIR``. Obeyed are those that hdfs-native knows, those
    that say where web servers are, ``dfs.blocksize`` and ``dfs.replication``."""
    config_dir: Named | None = None
    """Directory of ``core-site.xml`` and ``hdfs-site.xml``; None takes ``HADOOP_CONF_DIR``, else ``HADOOP_HOME``."""
    user: Named | None = None
    """Who to be where HDFS asks for no proof; None takes ``HADOOP_USER_NAME``, else the system's user. hdfs-native
    knows one such name a process, from that variable: one that says otherwise is refused, and the first name given here
    is set there, for all later clients of the process, those without an own one included."""
    kerberos_principal: Named | None = None
    """Principal to log in with; None takes the ticket cache as it is."""
    kerberos_keytab: Named | None = None
    """File with the key of the principal."""
    kerberos_cache: Named | None = None
    """Ticket cache other than the default one."""
    http_address: Named | None = None
    """``host:port`` of the NameNode's web server, or a URL of it, for what hdfs-native lacks: TRUNCATE, and reading
    what somebody has open; None takes ``dfs.namenode.http-address`` or its https sister. Without any, ``cut="auto"``
    rewrites, and a stage that is open is read once it is closed or its lease was taken."""
    delegation_token: SecretStr | None = None
    """Proof of identity for the web server where it asks for one; None sends the user's name."""
    ca_file: Named | None = None
    """Certificates to trust when the web server speaks TLS; None takes the system's."""
    call_timeout_s: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] = 60
    """Longest wait for one call, in seconds, its retries included. A shorter one gives up on a NameNode that only
    restarts; a longer one lets a batch hang."""
    lease_timeout_s: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] = 60
    """Longest wait for the recovery of one lease, in seconds; beyond it the part stays owed and is tried again."""
    truncate_timeout_s: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] = 60
    """Longest wait for a truncate that has begun, in seconds; beyond it the part stays owed and is tried again."""
    replication: Annotated[int, Field(ge=1, le=512)] | None = None
    """Copies of each block; None takes ``dfs.replication``, else the cluster's default."""
    block_size_bytes: Annotated[int, Field(ge=1 << 20)] | None = None
    """Size of the blocks, in bytes; None takes ``dfs.blocksize``, else the cluster's default."""

    @field_validator("http_address")
    @classmethod
    def _web_server_has_an_address(cls, value: str | None) -> str | None:
        if value is not None:
            web_address(value)
        return value

    @classmethod
    def of(cls, storage_options: Mapping[str, object] | None) -> HdfsOptions:
        """Check what the user passed.

        Raises:
            ConfigError: An option is unknown or cannot be used; its value is not shown, for it may be secret.
        """
        try:
            return cls.model_validate(dict(storage_options or {}))
        except ValidationError as error:
            raise refused("HDFS", cls, error, hint="See the table in docs/HDFS.md.") from None

    @property
    def client_config(self) -> dict[str, str]:
        """Properties for the client, whose own retries end within ``call_timeout_s``; by default it takes 180 s."""
        # A pause is up to half as long again as it says.
        # One at least, or a standby that is asked first would be the only one; the call's own deadline holds anyway.
        attempts = max(1, int(self.call_timeout_s * 1000 / (1.5 * _RETRY_PAUSE_MAX_MS)))
        return {
            "dfs.client.failover.max.attempts": str(attempts),
            "dfs.client.failover.sleep.max.millis": str(_RETRY_PAUSE_MAX_MS),
            **self.config,
        }
