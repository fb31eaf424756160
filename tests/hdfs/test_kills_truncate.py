"""SIGKILL at the calls of the whole life cycle on HDFS, with cut="truncate"."""

from __future__ import annotations

from support.hdfs.kills import KillsWithOneCut

# A file for each way of cutting, since processes that share the tests take them file by file, and each takes long.


class TestTruncate(KillsWithOneCut):
    """Dies at calls of a life in which parts are cut in this way."""

    cut = "truncate"
