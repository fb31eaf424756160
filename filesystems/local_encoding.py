"""Whether this process names local files as every other one does: in UTF-8."""

from __future__ import annotations

import codecs
import sys

from partfile.filesystems.errors import ConfigError


def check_encoding_of_names(path: str) -> None:
    """Refuse to look at local files where their names would be read or written in another encoding than UTF-8.

    Under another one a bucket has another name than a checkpoint says: its parts would be missed, and taken for
    orphans.

    Args:
        path: What was to be opened.

    Raises:
        ConfigError: Python uses another encoding for the names of files.
    """
    encoding = sys.getfilesystemencoding()
    if codecs.lookup(encoding).name != "utf-8":
        raise ConfigError(
            f"{path!r} cannot be opened: Python reads the names of files as {encoding} here, and partfile writes them "
            "in UTF-8",
            hint="Set PYTHONUTF8=1 in the environment of this process, or a locale of UTF-8 (LC_ALL=C.UTF-8); for "
            "Spark also on the executors (spark.executorEnv.PYTHONUTF8=1).",
            path=path,
        )
