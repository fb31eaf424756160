"""Truncate for the HDFS store: over WebHDFS, whose absence is found out by trying and remembered for a while."""

from __future__ import annotations

import getpass
import logging
import math
import os
import threading
import time
from typing import TYPE_CHECKING

from partfile.filesystems.errors import ConfigError, LeaseUnavailable, NotApplied, NotFound, NotReady, PartfileError
from partfile.filesystems.hadoop_configuration import read_configuration
from partfile.filesystems.webhdfs import WebHdfs
from partfile.filesystems.webhdfs_addresses import web_address, web_addresses

if TYPE_CHECKING:
    from partfile.filesystems.hdfs_options import HdfsOptions
    from partfile.filesystems.webhdfs_addresses import WebAddress

logger = logging.getLogger("partfile")

_FORGET_S = 60.0
"""How long an attempt that was in vain keeps others from trying."""


class HdfsTruncation:
    """Cuts files, as long as nothing has shown that it cannot. Looks at configuration and network when first used.

    Args:
        url: The file system; None for ``fs.defaultFS``.
        options: How to connect.
    """

    def __init__(self, url: str | None, options: HdfsOptions) -> None:
        self._url = url or "hdfs:///"
        self._options = options
        self._lock = threading.Lock()
        self._client: WebHdfs | None = None
        self._why_not: PartfileError | None = None
        self._again_at_s = 0.0
        """When that is believed no longer, by the monotonic clock."""

    @property
    def is_possible(self) -> bool:
        """Whether files can be cut, as far as is known without trying."""
        return self._connected() is not None

    def truncate(self, path: str, length_bytes: int) -> bool:
        """Cut a closed file; True when it is done, False when it has begun.

        Raises:
            NotApplied: It cannot be cut; where WebHDFS cannot be used, not tried again for a while.
            OutcomeUnknown: It may have been cut.
        """
        client = self._connected()
        if client is None:
            raise NotApplied(
                f"{path!r} cannot be cut to {length_bytes} bytes: WebHDFS failed before: {_reason(self._why_not)}",
                hint="Set dfs.namenode.http-address or the option http_address, or take cut='rewrite'.",
                path=path,
            ) from self._why_not
        try:
            return client.truncate(path, length_bytes, self._options.call_timeout_s)
        except (NotFound, NotReady, LeaseUnavailable):
            raise
        except (NotApplied, ConfigError) as error:
            self._give_up(error)
            raise NotApplied(error.message, hint=error.hint, path=path) from error

    def _connected(self) -> WebHdfs | None:
        with self._lock:
            if self._why_not is not None and time.monotonic() >= self._again_at_s:
                self._why_not = None
            if self._client is None and self._why_not is None:
                try:
                    self._client = _connect(self._url, self._options)
                except ConfigError as error:
                    self._why_not, self._again_at_s = error, math.inf
            return self._client if self._why_not is None else None

    def _give_up(self, reason: PartfileError) -> None:
        logger.warning("parts of %s are not cut in place: %s", self._url, reason)
        with self._lock:
            self._why_not = reason
            # Nobody listening may be a NameNode that restarts; a wrong address or a missing permission stays.
            self._again_at_s = math.inf if isinstance(reason, ConfigError) else time.monotonic() + _FORGET_S


def _connect(url: str, options: HdfsOptions) -> WebHdfs:
    token = options.delegation_token
    return WebHdfs(
        _addresses(url, options),
        user=options.user or os.environ.get("HADOOP_USER_NAME") or getpass.getuser(),
        delegation_token=None if token is None else token.get_secret_value(),
        ca_file=options.ca_file,
    )


def _reason(error: PartfileError | None) -> str:
    return "" if error is None else error.message


def _addresses(url: str, options: HdfsOptions) -> tuple[WebAddress, ...]:
    if options.http_address is not None:
        return (web_address(options.http_address),)
    configuration = read_configuration(os.environ, directory=options.config_dir, overrides=options.config)
    return web_addresses(url, configuration)
