"""Options of the HDFS client, and where its NameNodes serve WebHDFS."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator

from partfile.errors import ConfigError, page_url
from partfile.stores.options import refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from partfile.stores.hadoop import HadoopConfiguration


_RPC_PORT = 8020
_HTTP_PORT = 9870
_HTTPS_PORT = 9871
_HOST = re.compile(r"[\w.:%-]+")
_WILDCARDS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared with, never bound to.


@dataclass(frozen=True, slots=True)
class WebAddress:
    """The address of a web server."""

    host: str
    port: int
    is_tls: bool

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tls else 'http'}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class _NameNode:
    """One NameNode as the configuration knows it."""

    rpc: tuple[str, int]
    suffix: str | None
    """What its properties end with: nothing, ``.service`` or ``.service.namenode``; None where it has none."""


def web_address(text: str) -> WebAddress:
    """The address that a user wrote: ``host:port``, or ``http://`` or ``https://`` before it.

    Raises:
        ConfigError: It is none.
    """
    with_scheme = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(with_scheme)
        port = parts.port
    except ValueError:
        port = None
    if (
        not port
        or parts.scheme not in {"http", "https"}
        or not parts.hostname
        or not _HOST.fullmatch(parts.hostname)
        or parts.path not in {"", "/"}
        or parts.query
        or parts.fragment
        or parts.username is not None
    ):
        raise ConfigError(
            # A user and a password would be before the @.
            f"{text.rpartition('@')[2]!r} is not the address of a web server",
            hint="Write host:port, http://host:port or https://host:port.",
        )
    return WebAddress(parts.hostname, port, is_tls=parts.scheme == "https")


def web_addresses(url: str, configuration: HadoopConfiguration) -> tuple[WebAddress, ...]:
    """The web servers of the NameNodes that serve ``url``, each to be asked in turn until one is active.

    A name service has one address a NameNode, a host just its own. Where the configuration says nothing of a host, the
    address is Hadoop's default. With ``dfs.http.policy`` HTTPS_ONLY or HTTP_AND_HTTPS it is the one with TLS.

    Args:
        url: ``hdfs://service/...``, ``hdfs://host:port/...``, or ``hdfs:///...`` for ``fs.defaultFS``.
        configuration: As read by ``read_configuration``.

    Raises:
        ConfigError: The URL names no NameNode and ``fs.defaultFS`` does not either, or an address is damaged.
    """
    host, port = _authority(url, configuration)
    of_service = _namenodes_of_service(host, configuration) if port is None else ()
    rpc = (host, _RPC_PORT if port is None else port)
    namenodes = of_service or (_namenode_at(rpc, configuration),)
    return tuple(_web_address_of(namenode, configuration) for namenode in namenodes)


def _authority(url: str, configuration: HadoopConfiguration) -> tuple[str, int | None]:
    default = configuration.value("fs.defaultFS")
    for candidate in (url, default):
        parts = urlsplit(candidate)
        if parts.scheme == "hdfs" and parts.netloc:
            return _host_and_port(parts.netloc.rpartition("@")[2], candidate)
    raise ConfigError(
        f"{url!r} names no NameNode, and neither does fs.defaultFS ({default!r})",
        hint="Write hdfs://host:port/path, or let HADOOP_CONF_DIR name a directory with core-site.xml.",
    )


def _namenodes_of_service(service: str, configuration: HadoopConfiguration) -> tuple[_NameNode, ...]:
    """The NameNodes of a name service; none if there is no such service."""
    written = next((name for name in configuration.values("dfs.nameservices") if name.lower() == service), None)
    if written is None:
        return ()
    found = _known_namenodes(written, configuration)
    if not found:
        raise ConfigError(
            f"name service {written!r} has no NameNode with a 'dfs.namenode.rpc-address'",
            hint="Complete hdfs-site.xml in HADOOP_CONF_DIR. See what Hadoop reads: hdfs getconf -namenodes",
        )
    return found


def _known_namenodes(service: str, configuration: HadoopConfiguration) -> tuple[_NameNode, ...]:
    names = configuration.values(f"dfs.ha.namenodes.{service}")
    suffixes = [f".{service}.{name}" for name in names] or [f".{service}"]
    addresses = {suffix: configuration.value(f"dfs.namenode.rpc-address{suffix}") for suffix in suffixes}
    return tuple(_NameNode(_rpc_address(address), suffix) for suffix, address in addresses.items() if address)


def _namenode_at(rpc: tuple[str, int], configuration: HadoopConfiguration) -> _NameNode:
    """The NameNode with this RPC address, whether the configuration knows it or not."""
    services = configuration.values("dfs.nameservices")
    known = [namenode for service in services for namenode in _known_namenodes(service, configuration)]
    if not services:
        # Properties without a suffix speak of the one NameNode of a cluster without name services.
        only = configuration.value("dfs.namenode.rpc-address") or urlsplit(configuration.value("fs.defaultFS")).netloc
        known = [_NameNode(_rpc_address(only) if only else rpc, "")]
    return next((namenode for namenode in known if namenode.rpc == rpc), _NameNode(rpc, None))


def _web_address_of(namenode: _NameNode, configuration: HadoopConfiguration) -> WebAddress:
    is_tls = configuration.value("dfs.http.policy", "HTTP_ONLY").upper() != "HTTP_ONLY"
    name, default_port = ("https-address", _HTTPS_PORT) if is_tls else ("http-address", _HTTP_PORT)
    key = f"dfs.namenode.{name}{namenode.suffix}"
    written = "" if namenode.suffix is None else configuration.value(key)
    host, port = _host_and_port(written, key) if written else ("", None)
    return WebAddress(
        namenode.rpc[0] if host in _WILDCARDS else host, default_port if port is None else port, is_tls=is_tls
    )


def _rpc_address(text: str) -> tuple[str, int]:
    host, port = _host_and_port(text, text)
    return host, _RPC_PORT if port is None else port


def _host_and_port(text: str, source: str) -> tuple[str, int | None]:
    """Split ``host[:port]``; the host in lower case, without the brackets of an IPv6 address."""
    problem = ConfigError(
        f"{source!r} is not an address: {text!r}", hint="Write host:port, as hdfs://host:port/path has it."
    )
    try:
        parts = urlsplit(f"//{text}")
        port = parts.port
    except ValueError:
        raise problem from None
    if parts.path or parts.query or parts.fragment:
        raise problem
    return (parts.hostname or "").lower(), port


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
    """The user's name where HDFS asks for no proof; None takes ``HADOOP_USER_NAME``, else the system's user.
    hdfs-native knows one such name a process, from that variable: another name here is refused, and the first name
    given here is set there, for all later clients of the process, also those without a name of their own."""
    kerberos_principal: Named | None = None
    """Principal to log in with; None takes the ticket cache as it is."""
    kerberos_keytab: Named | None = None
    """File with the key of the principal."""
    kerberos_cache: Named | None = None
    """Ticket cache other than the default one."""
    http_address: Named | None = None
    """``host:port`` of the NameNode's web server, or a URL of it, for what hdfs-native lacks: TRUNCATE, and reading
    what a writer has open; None takes ``dfs.namenode.http-address`` or its https sister. Without any, ``cut="auto"``
    rewrites, and a staging file that is open is read once it is closed or its lease was taken."""
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
            raise refused("HDFS", cls, error, hint=f"Each option: {page_url('HDFS', 'set-up')}") from None

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
