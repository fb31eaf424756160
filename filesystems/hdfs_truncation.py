"""Truncate for the HDFS store: over WebHDFS, whose absence is found out by trying and remembered for a while."""

from __future__ import annotations

import getpass
import logging
import math
import os
import time
from typing import TYPE_CHECKING, NamedTuple

from partfile.filesystems.errors import ConfigError, NotApplied
from partfile.filesystems.hadoop_configuration import read_configuration
from partfile.filesystems.webhdfs import Unreachable, WebHdfs
from partfile.filesystems.webhdfs_addresses import web_address, web_addresses

if TYPE_CHECKING:
    from partfile.filesystems.errors import PartfileError
    from partfile.filesystems.hdfs_options import HdfsOptions
    from partfile.filesystems.webhdfs_addresses import WebAddress

logger = logging.getLogger("partfile")

_FORGET_S = 60.0
"""How long an attempt that was in vain keeps others from trying."""


class _Refusal(NamedTuple):
    """Why nobody tries."""

    reason: PartfileError
    ends_at_s: float
    """Until when that is believed, by the monotonic clock."""


class HdfsTruncation:
    """Cuts files, as long as nothing has shown that it cannot. Looks at configuration and network when first used.

    What it keeps is set in one step and may be found out twice at once: a lock could stay held in a forked child.

    Args:
        url: The file system; None for ``fs.defaultFS``.
        options: How to connect.
    """

    def __init__(self, url: str | None, options: HdfsOptions) -> None:
        self._url = url or "hdfs:///"
        self._options = options
        self._client: WebHdfs | None = None
        self._refusal: _Refusal | None = None

    @property
    def is_possible(self) -> bool:
        """Whether files can be cut, as far as is known by now; tries nothing."""
        return self._refusal is None or time.monotonic() >= self._refusal.ends_at_s

    def truncate(self, path: str, length_bytes: int) -> bool:
        """Cut a closed file; True when it is done, False when it has begun.

        Raises:
            NotApplied: It cannot be cut; where WebHDFS cannot be used at all, nobody tries again for a while.
            OutcomeUnknown: It may have been cut.
        """
        refusal = self._refusal
        if refusal is not None and time.monotonic() < refusal.ends_at_s:
            raise NotApplied(
                f"{path!r} cannot be cut to {length_bytes} bytes: WebHDFS failed before: {refusal.reason.message}",
                hint="Set dfs.namenode.http-address or the option http_address, or take cut='rewrite'.",
                path=path,
            ) from refusal.reason
        try:
            return self._connected().truncate(path, length_bytes, self._options.call_timeout_s)
        except (Unreachable, ConfigError) as error:
            logger.warning("parts of %s are not cut in place: %s", self._url, error)
            # Nobody listening may be a NameNode that restarts; what somebody has to configure stays as it is.
            forget_s = math.inf if isinstance(error, ConfigError) else _FORGET_S
            self._refusal = _Refusal(error, time.monotonic() + forget_s)
            raise NotApplied(error.message, hint=error.hint, path=path) from error

    def _connected(self) -> WebHdfs:
        if self._client is None:
            self._client = connect_to_web(self._url, self._options)
        return self._client


def connect_to_web(url: str, options: HdfsOptions) -> WebHdfs:
    """A client of the web servers of a file system, from the options and Hadoop's files.

    Raises:
        ConfigError: They name none, or cannot be used.
    """
    token = options.delegation_token
    return WebHdfs(
        _addresses(url, options),
        user=options.user or os.environ.get("HADOOP_USER_NAME") or _system_user(),
        delegation_token=None if token is None else token.get_secret_value(),
        ca_file=options.ca_file,
    )


def _system_user() -> str | None:
    """The name of this process's user; None where it has none, as in a container without an entry for its uid."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None


def _addresses(url: str, options: HdfsOptions) -> tuple[WebAddress, ...]:
    if options.http_address is not None:
        return (web_address(options.http_address),)
    configuration = read_configuration(os.environ, directory=options.config_dir, overrides=options.config)
    return web_addresses(url, configuration)
