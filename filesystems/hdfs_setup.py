"""What options and Hadoop's files say together of an HDFS, refused before HDFS is asked where it cannot be used."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

from partfile.filesystems.errors import ConfigError
from partfile.filesystems.hadoop_configuration import HadoopConfiguration, read_configuration
from partfile.filesystems.hdfs_url import HdfsUrl
from partfile.filesystems.webhdfs import tls_context
from partfile.filesystems.webhdfs_addresses import web_addresses

if TYPE_CHECKING:
    from partfile.filesystems.hdfs_options import HdfsOptions
    from partfile.filesystems.port import Cut

USER_VARIABLE = "HADOOP_USER_NAME"
"""Where hdfs-native looks up who to be."""
_BLOCK_SIZE = "dfs.blocksize"
_REPLICATION = "dfs.replication"
_MAX_REPLICATION = 512
_CHECKSUMMED_BYTES = 512
_SIZE = re.compile(r"([0-9]{1,19})([kmgtpe]?)", re.IGNORECASE)
_COUNT = re.compile(r"[0-9]{1,9}")
_PREFIXES = "kmgtpe"


class BlockLayout(NamedTuple):
    """How new files are stored; None leaves it to the NameNode."""

    size_bytes: int | None
    replication: int | None


def default_file_system(options: HdfsOptions) -> str:
    """The authority that URLs without one mean, in one spelling; empty if that is no HDFS.

    Raises:
        ConfigError: Hadoop's files cannot be used.
    """
    return _default_in(read_configuration(os.environ, directory=options.config_dir, overrides=options.config))


def configuration_of(root: str | None, options: HdfsOptions) -> HadoopConfiguration:
    """The properties that hold for a client of a file system; None is ``fs.defaultFS``.

    Raises:
        ConfigError: The directory is missing, or a file is damaged, longer than 4 MiB, or cannot be read; nothing names
            the file system; or the user whom the environment names has no name.
    """
    if not os.environ.get(USER_VARIABLE, "unset").strip():
        raise ConfigError(f"{USER_VARIABLE} is set, but empty", hint="Unset it, or let it name a user.")
    configuration = read_configuration(os.environ, directory=options.config_dir, overrides=options.config)
    if root is None and not _default_in(configuration):
        where = f" in {configuration.directory!r}" if configuration.directory else "; HADOOP_CONF_DIR is not set"
        raise ConfigError(
            f"a URL without a host is on fs.defaultFS, which is {configuration.value('fs.defaultFS')!r}{where}",
            hint="Write hdfs://host:port/path, or let config_dir or HADOOP_CONF_DIR name the files of an HDFS.",
        )
    return configuration


def block_layout(options: HdfsOptions, configuration: HadoopConfiguration) -> BlockLayout:
    """How to store new files: as the options say, else as ``dfs.blocksize`` and ``dfs.replication`` do.

    Raises:
        ConfigError: The property that decides cannot be used.

    Source: Hadoop's ``Configuration.getLongBytes`` for the size, as of 3.5.
    """
    size_bytes, replication = options.block_size_bytes, options.replication
    return BlockLayout(
        _block_size_bytes(configuration) if size_bytes is None else size_bytes,
        _replication(configuration) if replication is None else replication,
    )


def check_setup(root: str | None, options: HdfsOptions, cut: Cut) -> None:
    """Refuse what would fail when the first part is written or cut, without asking HDFS.

    Args:
        root: The file system; None for ``fs.defaultFS``.
        options: How to connect.
        cut: How parts are to be cut.

    Raises:
        ConfigError: A file, a property or the way to the web server cannot be used.
    """
    configuration = configuration_of(root, options)
    block_layout(options, configuration)
    if options.ca_file is not None:
        tls_context(options.ca_file)
    if cut in {"auto", "truncate"} and options.http_address is None:
        web_addresses(root or "hdfs:///", configuration)


def _default_in(configuration: HadoopConfiguration) -> str:
    default = configuration.value("fs.defaultFS")
    return HdfsUrl.of(default).file_system if default.lower().startswith("hdfs:") else ""


def _block_size_bytes(configuration: HadoopConfiguration) -> int | None:
    text = configuration.value(_BLOCK_SIZE)
    if not text:
        return None
    match = _SIZE.fullmatch(text)
    size_bytes = int(match.group(1)) << (10 * (1 + _PREFIXES.find(match.group(2).lower() or "-"))) if match else 0
    if not _CHECKSUMMED_BYTES <= size_bytes < 1 << 63 or size_bytes % _CHECKSUMMED_BYTES:
        raise ConfigError(
            f"{_BLOCK_SIZE}={text!r} is no size of a block",
            hint=f"Write a multiple of {_CHECKSUMMED_BYTES} bytes, for instance 134217728, 128m or 1g.",
        )
    return size_bytes


def _replication(configuration: HadoopConfiguration) -> int | None:
    text = configuration.value(_REPLICATION)
    if not text:
        return None
    if not _COUNT.fullmatch(text) or not 1 <= int(text) <= _MAX_REPLICATION:
        raise ConfigError(
            f"{_REPLICATION}={text!r} is no number of copies", hint=f"Write a number from 1 to {_MAX_REPLICATION}."
        )
    return int(text)
