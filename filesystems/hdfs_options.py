"""What ``storage_options`` may hold for HDFS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from partfile.filesystems.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

_RETRY_PAUSE_MAX_MS = 2000

COORDINATOR_OPTIONS = frozenset({"http_address", "delegation_token", "ca_file", "truncate_timeout_s"})
"""Options for cutting parts, which coordinators do and tasks never."""


class HdfsOptions(BaseModel):
    """Options of the HDFS client. All have defaults: a cluster is found through ``HADOOP_CONF_DIR`` or the URL."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    config: dict[str, str] = Field(default_factory=dict, repr=False)
    """Hadoop properties for hdfs-native; they win over the files in ``HADOOP_CONF_DIR``."""
    config_dir: str | None = None
    """Directory of ``core-site.xml`` and ``hdfs-site.xml``; None takes ``HADOOP_CONF_DIR``, else ``HADOOP_HOME``."""
    user: str | None = None
    """Who to be where HDFS asks for no proof; None takes ``HADOOP_USER_NAME``, else the system's user. hdfs-native
    knows one such name a process, so two sinks of a process cannot have two."""
    kerberos_principal: str | None = None
    """Principal to log in with; None takes the ticket cache as it is."""
    kerberos_keytab: str | None = None
    """File with the key of the principal."""
    kerberos_cache: str | None = None
    """Ticket cache other than the default one."""
    http_address: str | None = None
    """``host:port`` of the NameNode's web server, or a URL of it, for TRUNCATE, which hdfs-native lacks; None takes
    ``dfs.namenode.http-address`` or its https sister. Without any, ``cut="auto"`` rewrites."""
    delegation_token: SecretStr | None = None
    """Proof of identity for the web server where it asks for one; None sends the user's name."""
    ca_file: str | None = None
    """Certificates to trust when the web server speaks TLS; None takes the system's."""
    call_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 60
    """Longest wait for one call, in seconds, its retries included. A shorter one gives up on a NameNode that only
    restarts; a longer one lets a batch hang."""
    lease_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 60
    """Longest wait for the recovery of one lease, in seconds; beyond it the part stays owed and is tried again."""
    truncate_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 60
    """Longest wait for a truncate that has begun, in seconds; beyond it the part stays owed and is tried again."""
    replication: Annotated[int, Field(ge=1, le=512)] | None = None
    """Copies of each block; None takes the cluster's default."""
    block_size_bytes: Annotated[int, Field(ge=1 << 20)] | None = None
    """Size of the blocks, in bytes; None takes the cluster's default."""

    @classmethod
    def of(cls, storage_options: Mapping[str, object] | None) -> HdfsOptions:
        """Check what the user passed.

        Raises:
            ConfigError: An option is unknown or cannot be used; its value is not shown, for it may be secret.
        """
        try:
            return cls.model_validate(dict(storage_options or {}))
        except ValidationError as error:
            problems = [
                f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
                for problem in error.errors(include_url=False, include_input=False)
            ]
            raise ConfigError(
                f"storage_options for HDFS cannot be used: {'; '.join(problems)}",
                hint=f"There are {', '.join(cls.model_fields)}.",
            ) from None

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
